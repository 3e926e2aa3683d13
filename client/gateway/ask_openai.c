/* The fields of /v1/chat/completions and /v1/completions, in one table. See ask.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/units.h"

#define CHATS             ASK_CHATS
#define BOTH              (CHATS | ASK_COMPLETION)
#define COMPLETION_TOKENS 16 /* of /v1/completions without max_tokens, as OpenAI has it */

static bool take_messages(struct ask_reader *r, const json_t *value)
{
    r->messages = value;
    return true;
}
static bool take_prompt(struct ask_reader *r, const json_t *value)
{
    r->prompt = value;
    return true;
}

static bool take_stream(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->ask->stream);
}
static bool take_include_usage(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->ask->include_usage);
}
static bool take_stream_options(struct ask_reader *r, const json_t *value)
{
    static const struct ask_field fields[] = {
        {"include_usage", BOTH, take_include_usage},
    };
    if (!json_is_object(value))
        return refuse(r->refusal, 400, "invalid_type", r->param, "'stream_options' is not an object");
    return ask_take_fields(r, "stream_options.", value, fields, sizeof fields / sizeof *fields);
}

static bool take_n(struct ask_reader *r, const json_t *value)
{
    return ask_take_count(r, value, 1, ASK_CHOICES, &r->ask->choices);
}
static bool take_ignore_eos(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->ask->ignore_eos);
}

/* Chat: a flag, and top_logprobs beside it. Completions: how many. */
static bool take_logprobs(struct ask_reader *r, const json_t *value)
{
    if (r->ask->kind & CHATS) return ask_take_flag(r, value, &r->ask->logprobs);
    r->ask->logprobs = true;
    return ask_take_count(r, value, 0, ASK_TOP, &r->ask->top_logprobs);
}
static bool take_top_logprobs(struct ask_reader *r, const json_t *value)
{
    return ask_take_count(r, value, 0, ASK_TOP, &r->ask->top_logprobs);
}

static bool take_logit_bias(struct ask_reader *r, const json_t *value)
{
    const char *key;
    const json_t *bias;
    struct ask *ask = r->ask;
    if (!json_is_object(value))
        return refuse(r->refusal, 400, "invalid_type", r->param, "'logit_bias' is not an object");
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
    if (!json_is_string(value))
        return refuse(r->refusal, 400, "invalid_type", r->param, "'user' is not a text");
    size_t used = 0;
    for (const char *c = json_string_value(value); *c && used < ASK_LABEL - 16; c++)
        if (*c > 32 && *c < 127) r->ask->label[used++] = *c;
    r->ask->label[used] = 0;
    return true;
}

const struct ask_field ask_openai_fields[] = {
    {"model", BOTH, ask_take_model},
    {"messages", CHATS, take_messages},
    {"prompt", ASK_COMPLETION, take_prompt},
    {"stream", BOTH, take_stream},
    {"stream_options", BOTH, take_stream_options},
    {"n", BOTH, take_n},
    {"max_tokens", BOTH, ask_take_max_tokens},
    {"max_completion_tokens", CHATS, ask_take_max_tokens},
    {"stop", BOTH, ask_take_stop},
    {"seed", BOTH, ask_take_seed},
    {"temperature", BOTH, ask_take_temperature},
    {"top_p", BOTH, ask_take_top_p},
    {"presence_penalty", BOTH, ask_take_presence},
    {"frequency_penalty", BOTH, ask_take_frequency},
    {"logit_bias", BOTH, take_logit_bias},
    {"logprobs", BOTH, take_logprobs},
    {"top_logprobs", CHATS, take_top_logprobs},
    {"tools", CHATS, ask_take_chat_tools},
    {"tool_choice", CHATS, ask_take_tool_choice},
    {"parallel_tool_calls", CHATS, ask_take_parallel},
    {"response_format", CHATS, ask_take_response_format},
    {"user", BOTH, ask_take_user},
    /* beyond OpenAI, by the names that vLLM and llama.cpp give them */
    {"top_k", BOTH, ask_take_top_k},
    {"min_p", BOTH, ask_take_min_p},
    {"repetition_penalty", BOTH, ask_take_repetition},
    {"repeat_penalty", BOTH, ask_take_repetition},
    {"ignore_eos", BOTH, take_ignore_eos},
    {"chat_template_kwargs", CHATS, ask_take_template_arguments},
    {"reasoning_effort", CHATS, ask_take_effort},
    {"reasoning", CHATS, ask_take_reasoning},
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
const size_t ask_openai_field_count = sizeof ask_openai_fields / sizeof *ask_openai_fields;

bool ask_openai_finish(struct ask_reader *r)
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
    return ask_choose_tools(r) && ask_add_messages(r);
}
