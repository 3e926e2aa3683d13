/* The table of paths, and the work of those with a body. See routes.h. */
#include "client/gateway/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "common/base/json.h"

/* ---- work of the threads ---------------------------------------------------------------------------- */

static void read_ask(struct exchange *ex)
{
    if (ex->gone) return; /* while it waited for a thread */
    ex->ask.gone = &ex->gone;
    const struct ask_asker asker = {ex->whose->name, ex->id};
    /* false: the refusal is filled in, which exchange_start looks at */
    (void)!ask_read(ex->route->kind, &ex->gateway->model, &asker, ex->body.data ? ex->body.data : "",
                    ex->body.length, &ex->ask, &ex->refusal);
}

/* The body as an object, for the two below; json_decref it. */
static json_t *body_object(struct exchange *ex)
{
    json_t *body = NULL;
    struct helm_err err = {0};
    const int rc = json_parse_bounded("the body", ex->body.data ? ex->body.data : "", ex->body.length,
                                      GATEWAY_BODY_MAX, &body, &err);
    if (rc < 0)
        refuse_err(&ex->refusal, NULL, rc, err.text);
    else if (!json_is_object(body))
        refuse(&ex->refusal, 400, "invalid_type", NULL, "the body is not a JSON object");
    return body;
}

/* One of the given members, in the order of `keys`; anything else in the object is refused. */
static const json_t *only_members(struct exchange *ex, const json_t *body, const char *const *keys,
                                  size_t count)
{
    const char *key;
    json_t *value, *found = NULL;
    json_object_foreach((json_t *)body, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < count; i++) known |= strcmp(keys[i], key) == 0;
        if (!known) {
            refuse(&ex->refusal, 400, "unknown_parameter", key, "'%.100s' is not a parameter of this request",
                   key);
            return NULL;
        }
        if (!found && (strcmp(key, keys[0]) == 0 || strcmp(key, keys[1]) == 0)) found = value;
    }
    if (!found) refuse(&ex->refusal, 400, "missing_parameter", keys[0], "'%s' is missing", keys[0]);
    return found;
}

/* How many tokens a request is, without an answer. */
static void count_tokens(struct exchange *ex)
{
    read_ask(ex);
    if (ex->refusal.status) return;
    cli_text_fill(&ex->out, "{$'input_tokens':$}",
                  PLAIN(ex->route->kind == ASK_RESPONSE ? "\"object\":\"response.input_tokens\"," : ""),
                  JSON(voice_prompt_tokens(ex)));
}

/* A chat as the model reads it. */
static void apply_template(struct exchange *ex)
{
    read_ask(ex);
    if (ex->refusal.status) return;
    cli_text_fill(&ex->out, "{'prompt':$}", JSON_BYTES(ex->ask.rendered, ex->ask.rendered_length));
}

static void write_ids(struct exchange *ex, const uint32_t *ids, size_t count)
{
    cli_text_fill(&ex->out, "{'tokens':");
    cli_text_ids(&ex->out, ids, count, true);
    cli_text_fill(&ex->out, ",'count':$,'max_model_len':$}", JSON(count), JSON(ex->gateway->model.context));
}

/* llama.cpp's names and defaults (`content`, nothing added), and vLLM's (`prompt`, special tokens added). */
static void tokenize(struct exchange *ex)
{
    static const char *const keys[] = {"content",       "prompt", "add_special", "add_special_tokens",
                                       "parse_special", "model"};
    json_t *body = body_object(ex);
    const json_t *text = ex->refusal.status ? NULL : only_members(ex, body, keys, 6);
    struct helm_err err = {0};
    uint32_t *ids = NULL;
    size_t count = 0;
    bool add = json_object_get(body, "prompt") != NULL, parse = true;
    int rc = json_get_bool(body, keys[2], false, &add, &err);
    if (rc == 0) rc = json_get_bool(body, keys[3], false, &add, &err);
    if (rc == 0) rc = json_get_bool(body, keys[4], false, &parse, &err);
    if (text && !json_is_string(text))
        refuse(&ex->refusal, 400, "invalid_type", keys[0], "'%s' is not a text", keys[0]);
    const unsigned flags =
        (add ? HELM_TOKENIZER_ENCODE_ADD_SPECIAL : 0u) | (parse ? HELM_TOKENIZER_ENCODE_PARSE_ADDED : 0u);
    if (rc == 0 && !ex->refusal.status)
        rc = helm_tokenizer_encode(ex->gateway->model.tokenizer, json_string_value(text),
                                   json_string_length(text), flags, &ids, &count, &err);
    if (rc < 0 && !ex->refusal.status) refuse_err(&ex->refusal, NULL, rc, err.text);
    if (!ex->refusal.status) write_ids(ex, ids, count);
    free(ids);
    json_decref(body);
}

static void detokenize(struct exchange *ex)
{
    static const char *const keys[] = {"tokens", "tokens", "model"};
    json_t *body = body_object(ex);
    const json_t *list = ex->refusal.status ? NULL : only_members(ex, body, keys, 3);
    struct helm_err err = {0};
    const size_t count = json_array_size(list);
    uint32_t *ids = malloc((count ? count : 1) * sizeof *ids);
    char *text = NULL;
    size_t length = 0;
    int rc = ids ? 0 : helm_fail(&err, HELM_E_NOMEM, "no memory for %zu tokens", count);
    if (list && !json_is_array(list))
        refuse(&ex->refusal, 400, "invalid_type", keys[0], "'tokens' is not a list");
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number >= ex->gateway->model.vocab)
            rc = helm_fail(&err, HELM_E_LIMIT, "tokens[%zu] is no token: the vocabulary has %u", i,
                           ex->gateway->model.vocab);
        else
            ids[i] = (uint32_t)number;
    }
    if (rc == 0 && !ex->refusal.status)
        rc = helm_tokenizer_decode(ex->gateway->model.tokenizer, ids, count, HELM_TOKENIZER_DECODE_ALL, &text,
                                   &length, &err);
    if (rc < 0 && !ex->refusal.status) refuse_err(&ex->refusal, keys[0], rc, err.text);
    if (!ex->refusal.status)
        cli_text_fill(&ex->out, "{'content':$,'prompt':$}", JSON_BYTES(text, length),
                      JSON_BYTES(text, length));
    free(ids);
    free(text);
    json_decref(body);
}

/* ---- the table -------------------------------------------------------------------------------------- */

#define ONE_MODEL "helmd serves the one model that it was started with"

const struct route routes[] = {
    {"GET", "/", .open = true, .reply = page_reply},
    {"GET", ROUTES_PAGE, .open = true, .reply = page_reply},
    {"GET", "/health", .open = true, .reserve = true, .reply = info_health},
    {"GET", "/metrics", .wants = INQUIRY_WANTS(INQUIRY_STATUS) | INQUIRY_WANTS(INQUIRY_PLAN),
     .reply = info_metrics},
    {"GET", "/status", .wants = INQUIRY_WANTS(INQUIRY_STATUS) | INQUIRY_WANTS(INQUIRY_PLAN),
     .reply = info_status_page},
    {"GET", "/v1/models", .reply = info_models},
    {"GET", ROUTES_MODEL, .reply = info_model},
    {"POST", "/v1/chat/completions", .work = read_ask, .kind = ASK_CHAT, .voice = &voice_chat},
    {"POST", "/v1/completions", .work = read_ask, .kind = ASK_COMPLETION, .voice = &voice_completion},
    {"POST", "/tokenize", .work = tokenize},
    {"POST", "/detokenize", .work = detokenize},
    {"POST", "/v1/embeddings", .work = read_ask, .kind = ASK_EMBED, .voice = &voice_embeddings},
    {"POST", "/v1/rerank", .work = read_ask, .kind = ASK_RERANK, .voice = &voice_rerank},
    {"POST", "/v1/responses", .work = read_ask, .kind = ASK_RESPONSE, .voice = &voice_responses},
    {"POST", "/v1/responses/input_tokens", .work = count_tokens, .kind = ASK_RESPONSE},
    {"GET", "/v1/responses/{id}", .reply = info_response},
    {"DELETE", "/v1/responses/{id}", .reply = info_response_forget},
    {"GET", "/v1/responses/{id}/input_items", .reply = info_response_input},
    {"POST", "/v1/messages", .error = voice_error_anthropic, .work = read_ask, .kind = ASK_MESSAGE,
     .voice = &voice_messages},
    {"POST", "/v1/messages/count_tokens", .error = voice_error_anthropic, .work = count_tokens,
     .kind = ASK_COUNT},
    /* llama.cpp's */
    {"GET", "/v1/health", .open = true, .reserve = true, .reply = info_health},
    {"GET", "/props", .wants = INQUIRY_WANTS(INQUIRY_PLAN), .reply = info_props},
    {"GET", "/slots", .wants = INQUIRY_WANTS(INQUIRY_LIST), .reply = info_slots},
    {"POST", "/apply-template", .work = apply_template, .kind = ASK_TEMPLATE},
    {"GET", "/api/version", .open = true, .error = voice_error_ollama, .reply = info_version},
    {"GET", "/api/tags", .error = voice_error_ollama, .wants = INQUIRY_WANTS(INQUIRY_MODEL),
     .reply = info_tags},
    {"GET", "/api/ps", .error = voice_error_ollama,
     .wants = INQUIRY_WANTS(INQUIRY_STATUS) | INQUIRY_WANTS(INQUIRY_MODEL), .reply = info_ps},
    {"POST", "/api/show", .error = voice_error_ollama, .wants = INQUIRY_WANTS(INQUIRY_MODEL),
     .work = info_show},
    {"POST", "/api/chat", .error = voice_error_ollama, .work = read_ask, .kind = ASK_OLLAMA_CHAT,
     .voice = &voice_ollama},
    {"POST", "/api/generate", .error = voice_error_ollama, .work = read_ask, .kind = ASK_OLLAMA_GENERATE,
     .voice = &voice_ollama},
    {"POST", "/api/embed", .error = voice_error_ollama, .work = read_ask, .kind = ASK_OLLAMA_EMBED,
     .voice = &voice_ollama_embed},
    {"POST", "/api/embeddings", .error = voice_error_ollama, .work = read_ask, .kind = ASK_OLLAMA_EMBED,
     .voice = &voice_ollama_embedding},
    {"POST", "/api/pull", .error = voice_error_ollama, .work = info_pull},
    {"POST", "/api/push", .error = voice_error_ollama, .unsupported = ONE_MODEL},
    {"POST", "/api/create", .error = voice_error_ollama, .unsupported = ONE_MODEL},
    {"POST", "/api/copy", .error = voice_error_ollama, .unsupported = ONE_MODEL},
    {"DELETE", "/api/delete", .error = voice_error_ollama, .unsupported = ONE_MODEL},
};
const size_t route_count = sizeof routes / sizeof *routes;
_Static_assert(sizeof routes / sizeof *routes < METRICS_ROUTES,
               "the last row of the counters is of unknown paths");

/* Paths that there are not, by how they begin: whose errors their clients read. */
static const struct route strangers[] = {
    {"", "other", .open = true, .error = voice_error_ollama},
    {"", "other", .open = true, .error = voice_error_anthropic},
    {"", "other", .open = true},
};

const struct route route_preflight = {"OPTIONS", "other", .open = true, .reply = info_preflight};

const struct route *routes_stranger(const char *path)
{
    return strncmp(path, "/api/", 5) == 0           ? &strangers[0]
           : strncmp(path, "/v1/messages", 12) == 0 ? &strangers[1]
                                                    : &strangers[2];
}

size_t routes_row(const struct route *route)
{
    return route >= routes && route < routes + route_count ? (size_t)(route - routes) : METRICS_ROUTES - 1;
}

/* "{id}" in a path of the table is any one part. *named is what comes for it, without its end, else
 * untouched. */
static bool matches(const char *path, const char *asked, const char **named)
{
    const char *id = strstr(path, "{id}");
    if (!id) return strcmp(path, asked) == 0;
    const size_t before = (size_t)(id - path);
    if (strncmp(path, asked, before) != 0) return false;
    const size_t length = strcspn(asked + before, "/");
    if (!length || strcmp(id + 4, asked + before + length) != 0) return false;
    *named = asked + before;
    return true;
}

/* A path matches with /v1 before it or without: clients are given either address. */
static bool is_path(const char *path, const char *asked, const char **named)
{
    return matches(path, asked, named) || (strncmp(path, "/v1/", 4) == 0 && matches(path + 3, asked, named));
}

const struct route *routes_find(const char *method, const char *path, const char **named, char allow[64])
{
    const struct route *found = NULL;
    static const struct {
        const char *begin, *row;
    } named_paths[] = {{ROUTES_MODEL, ROUTES_MODEL},
                       {ROUTES_MODEL + 3, ROUTES_MODEL},
                       {ROUTES_PAGE, ROUTES_PAGE}};
    *named = "";
    *allow = 0;
    for (size_t i = 0; i < sizeof named_paths / sizeof *named_paths; i++) {
        const size_t length = strlen(named_paths[i].begin);
        if (strncmp(path, named_paths[i].begin, length) != 0) continue;
        *named = path + length;
        path = named_paths[i].row;
        break;
    }
    for (size_t i = 0; i < route_count; i++) {
        if (!is_path(routes[i].path, path, named)) continue;
        const bool get = strcmp(routes[i].method, "GET") == 0;
        const size_t used = strlen(allow);
        snprintf(allow + used, 64 - used, "%s%s", used ? ", " : "", get ? "GET, HEAD" : routes[i].method);
        if (!found && (strcmp(routes[i].method, method) == 0 || (get && strcmp(method, "HEAD") == 0)))
            found = &routes[i];
    }
    return found;
}
