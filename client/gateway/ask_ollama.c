/* The fields of Ollama's /api/chat and /api/generate and of their `options`, in two tables. See ask.h. */
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/json.h"

#define NAME_BYTES_MAX ((size_t)16 << 10)
#define OLLAMA         (ASK_OLLAMA_CHAT | ASK_OLLAMA_GENERATE)

static bool take_messages(struct ask_reader *r, const json_t *value)
{
    r->messages = value;
    return true;
}
static bool take_prompt(struct ask_reader *r, const json_t *value)
{
    if (!json_is_string(value))
        return refuse(r->refusal, 400, "invalid_type", r->param, "'prompt' is not a text");
    r->prompt = value;
    return true;
}
static bool take_system(struct ask_reader *r, const json_t *value)
{
    if (!json_is_string(value))
        return refuse(r->refusal, 400, "invalid_type", r->param, "'system' is not a text");
    r->system = value;
    return true;
}
static bool take_stream(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->ask->stream);
}
static bool take_raw(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->raw);
}

static bool take_logprobs(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->ask->logprobs);
}
static bool take_top_logprobs(struct ask_reader *r, const json_t *value)
{
    return ask_take_count(r, value, 0, ASK_TOP, &r->ask->top_logprobs);
}

/* ---- options ---------------------------------------------------------------------------------------- */

static bool take_predict(struct ask_reader *r, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) < 0) { /* -1, -2: as many as fit */
        r->ask->max_tokens = 0;
        return true;
    }
    return ask_take_count(r, value, 1, UINT32_MAX, &r->ask->max_tokens);
}
static bool take_seed(struct ask_reader *r, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) == -1) return true; /* any */
    return ask_take_seed(r, value);
}
/* The daemon's context is what it is; a smaller one changes nothing that a client sees. */
static bool take_context(struct ask_reader *r, const json_t *value)
{
    uint32_t tokens = 0;
    return ask_take_count(r, value, 1, r->model->context, &tokens);
}

static const struct ask_field option_fields[] = {
    {"num_predict", OLLAMA, take_predict},
    {"temperature", OLLAMA, ask_take_temperature},
    {"top_k", OLLAMA, ask_take_top_k},
    {"top_p", OLLAMA, ask_take_top_p},
    {"min_p", OLLAMA, ask_take_min_p},
    {"repeat_penalty", OLLAMA, ask_take_repetition},
    {"presence_penalty", OLLAMA, ask_take_presence},
    {"frequency_penalty", OLLAMA, ask_take_frequency},
    {"seed", OLLAMA, take_seed},
    {"stop", OLLAMA, ask_take_stop},
    {"num_ctx", OLLAMA, take_context},
};

static bool take_options(struct ask_reader *r, const json_t *value)
{
    if (!json_is_object(value))
        return refuse(r->refusal, 400, "invalid_type", r->param, "'options' is not an object");
    return ask_take_fields(r, "options.", value, option_fields, sizeof option_fields / sizeof *option_fields);
}

const struct ask_field ask_ollama_fields[] = {
    {"model", OLLAMA, ask_take_model},
    {"messages", ASK_OLLAMA_CHAT, take_messages},
    {"prompt", ASK_OLLAMA_GENERATE, take_prompt},
    {"system", ASK_OLLAMA_GENERATE, take_system},
    {"raw", ASK_OLLAMA_GENERATE, take_raw},
    {"stream", OLLAMA, take_stream},
    {"options", OLLAMA, take_options},
    {"tools", ASK_OLLAMA_CHAT, ask_take_chat_tools},
    {"think", OLLAMA, ask_take_think},
    {"format", OLLAMA, ask_take_format},
    {"logprobs", OLLAMA, take_logprobs},
    {"top_logprobs", OLLAMA, take_top_logprobs},
};
const size_t ask_ollama_field_count = sizeof ask_ollama_fields / sizeof *ask_ollama_fields;

/* ---- prompts ---------------------------------------------------------------------------------------- */

/* /api/generate without `raw` is a conversation of one question. */
static bool add_question(struct ask_reader *r)
{
    json_t *list = r->system ? json_pack("[{s:s, s:O}, {s:s, s:O}]", "role", "system", "content", r->system,
                                         "role", "user", "content", r->prompt)
                             : json_pack("[{s:s, s:O}]", "role", "user", "content", r->prompt);
    if (!list) return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the request");
    r->messages = list;
    const bool good = ask_add_messages(r);
    r->messages = NULL;
    json_decref(list);
    return good;
}

bool ask_ollama_finish(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (ask->kind == ASK_OLLAMA_CHAT) {
        ask->load_only = json_is_array(r->messages) && json_array_size(r->messages) == 0;
        return ask->load_only || ask_add_messages(r);
    }
    ask->load_only = !r->prompt || json_string_length(r->prompt) == 0;
    if (ask->load_only) return true;
    r->param = "prompt";
    if (r->raw && r->system)
        return refuse(r->refusal, 400, "invalid_value", "system",
                      "'system' has no place in a prompt that is \"raw\"");
    /* a model without a chat template goes on with the text */
    if (r->raw || (!r->model->chat && !r->system))
        return ask_add_text(r, json_string_value(r->prompt), json_string_length(r->prompt), !r->raw);
    return add_question(r);
}

bool ask_read_name(const struct ask_model *model, const char *text, size_t length, bool *stream,
                   struct refusal *refusal)
{
    static const struct ask_field fields[] = {
        {"model", OLLAMA, ask_take_model},
        {"name", OLLAMA, ask_take_model},
    };
    struct ask ask = {.kind = ASK_OLLAMA_CHAT};
    struct ask_reader reader = {.model = model, .ask = &ask, .refusal = refusal};
    struct helm_err err = {0};
    json_t *body = NULL;
    const int rc = json_parse_bounded("the body", text, length, NAME_BYTES_MAX, &body, &err);
    bool good = rc == 0 || refuse_err(refusal, NULL, rc, err.text);
    const json_t *flag = json_object_get(body, "stream");
    *stream = !json_is_false(flag); /* Ollama streams unless it is told otherwise */
    if (good && !json_is_object(body))
        good = refuse(refusal, 400, "invalid_type", NULL, "the body is not a JSON object");
    good = good && ask_take_fields(&reader, "", body, fields, sizeof fields / sizeof *fields);
    json_decref(body);
    return good;
}
