/* The table of tokens that end a turn. See ends.h. */
#include "client/text/answer/ends.h"

#include <stdlib.h>
#include <string.h>

/* Control tokens; one that has another meaning in some family says beside which token it is an end. */
static const struct {
    const char *name;
    const char *with, *without; /* a token that the vocabulary has to have, or must not have; NULL: any */
} names[] = {
    {"<|im_end|>", NULL, NULL},      /* ChatML: Qwen, Kimi, ... */
    {"<|endoftext|>", NULL, NULL},   /* the same families' texts */
    {"<|eot_id|>", NULL, NULL},      /* Llama 3 */
    {"<|eom_id|>", NULL, NULL},      /* Llama 3: the tool's turn */
    {"<|end_of_text|>", NULL, NULL}, /* Llama 3's and Granite's texts */
    {"<|eot|>", NULL, NULL},         /* Llama 4 */
    {"<|eom|>", NULL, NULL},
    {"<|return|>", NULL, NULL}, /* harmony */
    {"<|call|>", NULL, NULL},
    {"<|end|>", NULL, "<|channel|>"}, /* Phi; in harmony a message's end, after which the answer goes on */
    {"<end_of_turn>", NULL, NULL},    /* Gemma */
    {"<turn|>", NULL, NULL},
    {"<|tool_response>", NULL, NULL},
    {"<eos>", NULL, NULL},
    {"</s>", NULL, NULL}, /* Llama 2, Mistral */
    {"<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
     NULL, NULL},                  /* DeepSeek */
    {"<|user|>", "[gMASK]", NULL}, /* GLM */
    {"<|observation|>", "[gMASK]", NULL},
    {"[e~[", NULL, NULL}, /* MiniMax */
    {"<|END_OF_TURN_TOKEN|>", NULL, NULL},
    {"<end_of_utterance>", NULL, NULL},
};

static uint32_t find(const struct helm_tokenizer *t, const char *name)
{
    const uint32_t id = helm_tokenizer_token_to_id(t, name, strlen(name));
    return id != HELM_TOKENIZER_NO_ID && helm_tokenizer_is_special(t, id) ? id : HELM_TOKENIZER_NO_ID;
}

static void add(struct ends *ends, uint32_t id, uint32_t vocab)
{
    if (id == HELM_TOKENIZER_NO_ID || id >= vocab || ends->count == ENDS_MAX) return;
    for (size_t i = 0; i < ends->count; i++)
        if (ends->ids[i] == id) return;
    ends->ids[ends->count++] = id;
}

/* The control token that the template writes after an answer, or HELM_TOKENIZER_NO_ID. */
static uint32_t template_end(const struct helm_tokenizer *t, const struct helm_chat *chat)
{
    static const char answer[] = "answer-of-helm";
    const struct helm_chat_message messages[] = {{"user", "a"}, {"assistant", answer}, {"user", "b"}};
    char *text = NULL;
    size_t length = 0, count = 0;
    uint32_t *ids = NULL, id = HELM_TOKENIZER_NO_ID;
    struct helm_err err = {0}; /* a template that refuses this conversation shows nothing */
    if (helm_chat_render(chat, messages, 3, 1, &text, &length, &err) == 0) {
        const char *at = strstr(text, answer);
        if (at) at += sizeof answer - 1;
        while (at && *at && strchr(" \t\r\n", *at)) at++;
        if (at &&
            helm_tokenizer_encode(t, at, strlen(at), HELM_TOKENIZER_ENCODE_PARSE_ADDED, &ids, &count, &err) ==
                0 &&
            count && helm_tokenizer_is_special(t, ids[0]))
            id = ids[0];
    }
    free(ids);
    free(text);
    return id;
}

void ends_find(const struct helm_tokenizer *t, const struct helm_chat *chat, uint32_t vocab,
               struct ends *ends)
{
    static const char *const roles[] = {"eos_token", "eot_token", "eom_token"};
    /* harmony's template ends an answer of the past with <|end|>, which a new one goes on after */
    const bool channels = find(t, "<|channel|>") != HELM_TOKENIZER_NO_ID;
    *ends = (struct ends){0};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!channels || i == 0) add(ends, helm_tokenizer_role_id(t, roles[i]), vocab);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool with = !names[i].with || find(t, names[i].with) != HELM_TOKENIZER_NO_ID;
        const bool without = !names[i].without || find(t, names[i].without) == HELM_TOKENIZER_NO_ID;
        if (with && without) add(ends, find(t, names[i].name), vocab);
    }
    if (chat && !channels) add(ends, template_end(t, chat), vocab);
}
