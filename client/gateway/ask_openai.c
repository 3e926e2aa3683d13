/* The fields of /v1/chat/completions and /v1/completions, in one table. See ask.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/units.h"

#define CHATS             ASK_CHATS
#define BOTH              (CHATS | ASK_COMPLETION)
#define COMPLETION_TOKENS 16 /* of /v1/completions without max_tokens, as OpenAI has it */

/* Chat: a flag, and top_logprobs beside it. Completions: how many. */
static bool take_logprobs(struct ask_reader *r, const json_t *value)
{
    if (r->ask->kind & CHATS) return ask_take_flag(r, value, &r->ask->logprobs);
    r->ask->logprobs = true;
    return ask_take_count(r, value, 0, ASK_TOP, &r->ask->top_logprobs);
}
static bool take_logit_bias(struct ask_reader *r, const json_t *value)
{
    const char *key;
    const json_t *bias;
    struct ask *ask = r->ask;
    if (!json_is_object(value)) return ask_wrong_type(r, "an object");
    if (json_object_size(value) > ASK_BIASES)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'logit_bias' has more than %d entries",
                      ASK_BIASES);
    json_object_foreach((json_t *)value, key, bias)
    {
        uint64_t token = 0;
        struct helm_err err = {0};
        struct helm_logit_bias *to = &ask->bias[ask->sampling.bias_count];
        if (units_parse_u64("logit_bias: a token", key, 0, r->model->vocab - 1, &token, &err) < 0)
            return refuse(r->refusal, 400, "invalid_value", r->param, "%s", err.text);
        to->token = (uint32_t)token;
        if (!ask_take_number(r, bias, -100, 100, &to->bias)) return false;
        ask->sampling.bias_count++;
    }
    return true;
}

/* Shown by `helm-cli ps` beside the gateway's name: as much of it as a label may hold. */
bool ask_take_user(struct ask_reader *r, const json_t *value)
{
    if (!json_is_string(value)) return ask_wrong_type(r, "a text");
    size_t used = 0;
    for (const char *c = json_string_value(value); *c && used < ASK_LABEL - 16; c++)
        if (*c > 32 && *c < 127) r->ask->label[used++] = *c;
    r->ask->label[used] = 0;
    return true;
}

/* One text of a prediction. Tokens beyond a request's limit could only help further on. */
static bool add_prediction(struct ask_reader *r, const json_t *text)
{
    struct ask_ids *to = &r->ask->prediction;
    uint32_t *ids = NULL, *grown;
    size_t count = 0;
    struct helm_err err = {0};
    if (!json_is_string(text)) return ask_wrong_type(r, "a text");
    if (helm_tokenizer_encode(r->model->tokenizer, json_string_value(text), json_string_length(text), 0, &ids,
                              &count, &err))
        return refuse(r->refusal, 400, "invalid_value", r->param, "'prediction': %.300s", err.text);
    if (count > HELM_PREDICTION_MAX - to->count) count = HELM_PREDICTION_MAX - to->count;
    grown = count ? realloc(to->data, (to->count + count) * sizeof *grown) : NULL;
    if (grown) {
        memcpy(grown + to->count, ids, count * sizeof *grown);
        to->data = grown;
        to->count += count;
    }
    free(ids);
    return true;
}

/* A text that the answer may repeat: {"type": "content", "content": TEXT or [{"type": "text", "text":
 * TEXT}]}. It only makes the answer faster, so without memory for it there is none. */
static bool take_prediction(struct ask_reader *r, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *content = json_object_get(value, "content"), *part;
    size_t index;
    if (json_is_null(value)) return true;
    if (!json_is_object(value)) return ask_wrong_type(r, "an object");
    if (type && strcmp(type, "content") != 0)
        return refuse(r->refusal, 400, "invalid_value", r->param,
                      "'prediction': its type is not \"content\"");
    if (!content) return true;
    if (!json_is_array(content)) return add_prediction(r, content);
    json_array_foreach(content, index, part)
    {
        if (!add_prediction(r, json_object_get(part, "text"))) return false;
    }
    return true;
}

static const struct ask_field stream_rows[] = {{"include_usage", BOTH, ASK_FLAG(include_usage)}};
static const struct ask_fields stream_options = {ASK_ROWS(stream_rows)};

static const struct ask_field rows[] = {
    {"model", BOTH, ask_take_model},
    {"messages", CHATS, ASK_LATER(messages)},
    {"prompt", ASK_COMPLETION, ASK_LATER(prompt)},
    {"stream", BOTH, ASK_FLAG(stream)},
    {"stream_options", BOTH, ASK_OBJECT(&stream_options)},
    {"n", BOTH, ASK_WHOLE(choices, 1, ASK_CHOICES)},
    {"max_tokens", BOTH, ask_take_max_tokens},
    {"max_completion_tokens", CHATS, ask_take_max_tokens},
    {"stop", BOTH, ask_take_stop},
    {"seed", BOTH, ask_take_seed},
    {"temperature", BOTH, ASK_TEMPERATURE},
    {"top_p", BOTH, ask_take_top_p},
    {"presence_penalty", BOTH, ASK_PRESENCE},
    {"frequency_penalty", BOTH, ASK_FREQUENCY},
    {"logit_bias", BOTH, take_logit_bias},
    {"logprobs", BOTH, take_logprobs},
    {"top_logprobs", CHATS, ASK_TOP_LOGPROBS},
    {"tools", CHATS, ask_take_chat_tools},
    {"tool_choice", CHATS, ask_take_tool_choice},
    {"parallel_tool_calls", CHATS, ask_take_parallel},
    {"response_format", CHATS, ask_take_response_format},
    {"user", BOTH, ask_take_user},
    {"prediction", CHATS, take_prediction},
    /* beyond OpenAI, by the names that vLLM and llama.cpp give them */
    {"top_k", BOTH, ask_take_top_k},
    {"min_p", BOTH, ASK_MIN_P},
    {"repetition_penalty", BOTH, ASK_REPETITION},
    {"repeat_penalty", BOTH, ASK_REPETITION},
    {"ignore_eos", BOTH, ASK_FLAG(ignore_eos)},
    {"chat_template_kwargs", CHATS, ASK_LATER(extra)},
    {"reasoning_effort", CHATS, ask_take_effort},
    {"reasoning", CHATS, ASK_OBJECT(&ask_reasoning)},
    {"thinking", CHATS, ask_take_thinking},
    {"enable_thinking", CHATS, ask_take_think},
    {"thinking_budget", CHATS, ask_take_budget},
    {"reasoning_budget", CHATS, ask_take_budget},
    {"think", CHATS, ask_take_think},
    {"json_schema", BOTH, ask_take_json_schema},
    {"guided_json", BOTH, ask_take_json_schema},
    {"guided_regex", BOTH, ask_take_regex},
    {"guided_grammar", BOTH, ask_take_grammar},
    {"grammar", BOTH, ask_take_grammar},
};

static bool finish(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (ask->include_usage && !ask->stream)
        return refuse(r->refusal, 400, "invalid_value", "stream_options",
                      "'stream_options' needs \"stream\": true");
    if (ask->kind == ASK_COMPLETION) {
        if (!ask->max_tokens) ask->max_tokens = COMPLETION_TOKENS;
        r->param = "prompt";
        return ask_add_prompts(r, r->prompt);
    }
    if (ask->top_logprobs && !ask->logprobs)
        return refuse(r->refusal, 400, "invalid_value", "top_logprobs",
                      "'top_logprobs' needs \"logprobs\": true");
    return ask_choose_tools(r) && ask_add_messages(r, r->messages);
}

const struct ask_dialect ask_openai = {BOTH, {ASK_ROWS(rows)}, finish};
