/* Any bytes as the body of a request to helm-gateway, with the demo model's tokenizer and template: refused
 * with a status and words that can be written as JSON, or prompts and parameters within their bounds. Byte 0
 * picks the dialect. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "client/gateway/grammars.h"
#include "client/gateway/voice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void open_model(struct ask_model *model)
{
    static struct helm_tokenizer *tokenizer;
    static struct helm_chat *chat;
    static struct helm_vocabulary *vocabulary;
    static struct grammars *grammars;
    const uint32_t end = 2;
    struct helm_err err = {0};
    if (helm_tokenizer_open("tools/models/demo", &tokenizer, &err) ||
        helm_chat_open("tools/models/demo", &chat, &err) ||
        helm_vocabulary_open(tokenizer, &end, 1, 4096, &vocabulary, &err) || grammars_open(&grammars, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    *model = (struct ask_model){.name = "demo",
                                .tokenizer = tokenizer,
                                .chat = chat,
                                .calls = call_syntax_of("tools <tool_call>"),
                                .tags = reasoning_tags_of("<think>"),
                                .may_think = true,
                                .vocabulary = vocabulary,
                                .grammars = grammars,
                                .context = 2048,
                                .vocab = 4096,
                                .ends = {.ids = {2}, .count = 1}};
}

static void check_refusal(const struct refusal *refusal)
{
    struct cli_text text[3] = {0};
    if (refusal->status < 400 || refusal->status > 599 || !refusal->code || !refusal->text[0]) abort();
    voice_error_openai(&text[0], refusal);
    voice_error_ollama(&text[1], refusal);
    voice_error_anthropic(&text[2], refusal);
    for (int i = 0; i < 3; i++) {
        json_t *json = json_loadb(text[i].data, text[i].length, 0, NULL);
        if (!json) abort();
        json_decref(json);
        cli_text_free(&text[i]);
    }
}

static void check_ask(const struct ask *ask, const struct ask_model *model)
{
    if (ask->load_only) return;
    if (!ask->choices || !ask->prompt_count ||
        ask->prompt_count * ask->choices > (ask->kind & ASK_EMBEDS ? ASK_INPUTS : ASK_CHOICES))
        abort();
    for (size_t i = 0; i < ask->prompt_count; i++) {
        const bool generates = !(ask->kind & (ASK_COUNT | ASK_TEMPLATE));
        if (generates && (!ask->prompt[i].count || ask->prompt[i].count + ask->max_tokens > model->context))
            abort();
        for (size_t k = 0; k < ask->prompt[i].count; k++)
            if (ask->prompt[i].ids[k] >= model->vocab) abort();
    }
    for (const char *c = ask->ignored; *c; c++) /* it goes into a header */
        if (*c < 32 || *c > 126) abort();
    for (size_t i = 0; i < ask->stop_count; i++)
        if (!ask->stop[i][0]) abort();
    if (ask->top_logprobs > ASK_TOP || ask->sampling.bias_count > ASK_BIASES) abort();
    if (!(ask->sampling.temperature >= 0) || !(ask->sampling.top_p >= 0 && ask->sampling.top_p <= 1)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum ask_kind kinds[] = {ASK_CHAT,  ASK_COMPLETION,   ASK_OLLAMA_CHAT, ASK_OLLAMA_GENERATE,
                                          ASK_EMBED, ASK_OLLAMA_EMBED, ASK_RESPONSE,    ASK_MESSAGE,
                                          ASK_COUNT, ASK_TEMPLATE};
    static struct ask_model model;
    struct refusal refusal = {0};
    struct ask ask;
    static const struct ask_asker asker = {"fuzz", "00112233445566778899aabbccddeeff"};
    struct helm_err err = {0};
    if (!model.tokenizer) open_model(&model);
    if (!model.responses && responses_open(1 << 20, &model.responses, &err) < 0) abort();
    if (size == 0) return 0;
    if (ask_read(kinds[data[0] % (sizeof kinds / sizeof *kinds)], &model, &asker, (const char *)data + 1,
                 size - 1, &ask, &refusal))
        check_ask(&ask, &model);
    else
        check_refusal(&refusal);
    ask_free(&ask);
    return 0;
}
