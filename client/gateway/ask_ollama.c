/* The fields of Ollama's /api/chat and /api/generate and of their `options`, in two tables. See ask.h. */
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/json.h"

#define NAME_BYTES_MAX ((size_t)16 << 10)
#define OLLAMA         (ASK_OLLAMA_CHAT | ASK_OLLAMA_GENERATE)

static bool take_raw(struct ask_reader *r, const json_t *value)
{
    return ask_take_flag(r, value, &r->raw);
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

static const struct ask_field option_rows[] = {
    {"num_predict", OLLAMA, take_predict},
    {"temperature", OLLAMA, ASK_TEMPERATURE},
    {"top_k", OLLAMA, ask_take_top_k},
    {"top_p", OLLAMA, ask_take_top_p},
    {"min_p", OLLAMA, ASK_MIN_P},
    {"repeat_penalty", OLLAMA, ASK_REPETITION},
    {"presence_penalty", OLLAMA, ASK_PRESENCE},
    {"frequency_penalty", OLLAMA, ASK_FREQUENCY},
    {"seed", OLLAMA, take_seed},
    {"stop", OLLAMA, ask_take_stop},
    {"num_ctx", OLLAMA, take_context},
};

static const struct ask_fields options = {ASK_ROWS(option_rows)};

static const struct ask_field rows[] = {
    {"model", OLLAMA, ask_take_model},
    {"messages", ASK_OLLAMA_CHAT, ASK_LATER(messages)},
    {"prompt", ASK_OLLAMA_GENERATE, ASK_SAID(prompt, 0)},
    {"system", ASK_OLLAMA_GENERATE, ASK_SAID(system, 0)},
    {"raw", ASK_OLLAMA_GENERATE, take_raw},
    {"stream", OLLAMA, ASK_FLAG(stream)},
    {"options", OLLAMA, ASK_OBJECT(&options)},
    {"tools", ASK_OLLAMA_CHAT, ask_take_chat_tools},
    {"think", OLLAMA, ask_take_think},
    {"format", OLLAMA, ask_take_format},
    {"logprobs", OLLAMA, ASK_FLAG(logprobs)},
    {"top_logprobs", OLLAMA, ASK_TOP_LOGPROBS},
};

/* ---- prompts ---------------------------------------------------------------------------------------- */

/* /api/generate without `raw` is a conversation of one question. */
static bool add_question(struct ask_reader *r)
{
    json_t *list = r->system ? json_pack("[{s:s, s:O}, {s:s, s:O}]", "role", "system", "content", r->system,
                                         "role", "user", "content", r->prompt)
                             : json_pack("[{s:s, s:O}]", "role", "user", "content", r->prompt);
    if (!list) return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the request");
    const bool good = ask_add_messages(r, list);
    json_decref(list);
    return good;
}

static bool finish(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (ask->kind == ASK_OLLAMA_CHAT) {
        ask->load_only = json_is_array(r->messages) && json_array_size(r->messages) == 0;
        return ask->load_only || ask_add_messages(r, r->messages);
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

const struct ask_dialect ask_ollama = {OLLAMA, {ASK_ROWS(rows)}, finish};

bool ask_read_name(const struct ask_model *model, const char *text, size_t length, bool *stream,
                   struct refusal *refusal)
{
    static const struct ask_field named[] = {{"model", OLLAMA, ask_take_model},
                                             {"name", OLLAMA, ask_take_model}};
    static const struct ask_fields fields = {ASK_ROWS(named)};
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
    good = good && ask_take_fields(&reader, "", body, &fields);
    json_decref(body);
    return good;
}
