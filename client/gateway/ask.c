/* Reading a body: what all dialects share. See ask.h. Owns nothing between calls. */
#include "client/gateway/ask.h"
#include "client/gateway/grammars.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/grow.h"
#include "common/base/words.h"

#define BODY_BYTES_MAX ((size_t)64 << 20)

/* ---- fields ----------------------------------------------------------------------------------------- */

bool ask_wrong_type(struct ask_reader *r, const char *wanted)
{
    return refuse(r->refusal, 400, "invalid_type", r->param, "'%.100s' is not %s", r->param, wanted);
}

static const struct ask_field *find_field(const struct ask_fields *fields, const char *name, unsigned kind)
{
    for (const struct ask_field *f = fields->row; f < fields->row + fields->count; f++)
        if ((f->kinds & kind) && strcmp(f->name, name) == 0) return f;
    return NULL;
}

static bool take_field(struct ask_reader *r, const struct ask_field *f, const json_t *value)
{
    void *in_ask = (char *)r->ask + f->at;
    const json_t **in_reader = (const json_t **)(void *)((char *)r + f->at);
    char place[64];
    switch (f->shape) {
    case ASK_SHAPE_OWN:
        return f->take(r, value);
    case ASK_SHAPE_FLAG:
        return ask_take_flag(r, value, in_ask);
    case ASK_SHAPE_COUNT:
        return ask_take_count(r, value, (uint64_t)f->min, (uint64_t)f->max, in_ask);
    case ASK_SHAPE_NUMBER:
        return ask_take_number(r, value, f->min, f->max, in_ask);
    case ASK_SHAPE_TEXT:
        if (!json_is_string(value) || (double)json_string_length(value) < f->min)
            return ask_wrong_type(r, "a text");
        *in_reader = value;
        return true;
    case ASK_SHAPE_JSON:
        *in_reader = value;
        return true;
    case ASK_SHAPE_OBJECT:
        break;
    }
    if (!json_is_object(value)) return ask_wrong_type(r, "an object");
    snprintf(place, sizeof place, "%s.", f->name);
    return ask_take_fields(r, place, value, f->inner);
}

bool ask_take_fields(struct ask_reader *r, const char *place, const json_t *object,
                     const struct ask_fields *fields)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        const struct ask_field *field = find_field(fields, name, r->ask->kind);
        r->param = name;
        if (!field) {
            if (!ask_settle_member(r, place, name, value)) return false;
        } else if (!json_is_null(value) && !take_field(r, field, value)) {
            return false;
        }
    }
    return true;
}

bool ask_take_number(struct ask_reader *r, const json_t *value, double min, double max, float *out)
{
    if (!json_is_number(value)) return ask_wrong_type(r, "a number");
    const double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' is %g, not between %g and %g",
                      r->param, number, min, max);
    *out = (float)number;
    return true;
}

bool ask_out_of_memory(struct ask_reader *r)
{
    return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the request");
}

bool ask_take_count(struct ask_reader *r, const json_t *value, uint64_t min, uint64_t max, uint32_t *out)
{
    if (!json_is_integer(value)) return ask_wrong_type(r, "a whole number");
    const json_int_t number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' is %lld, not between %llu and %llu",
                      r->param, (long long)number, (unsigned long long)min, (unsigned long long)max);
    *out = (uint32_t)number;
    return true;
}

bool ask_take_flag(struct ask_reader *r, const json_t *value, bool *out)
{
    if (!json_is_boolean(value)) return ask_wrong_type(r, "true or false");
    *out = json_is_true(value);
    return true;
}

bool ask_take_parallel(struct ask_reader *r, const json_t *value)
{
    bool parallel = true;
    if (!ask_take_flag(r, value, &parallel)) return false;
    r->ask->one_call = !parallel;
    return true;
}

static bool add_stop(struct ask_reader *r, const json_t *value)
{
    struct ask *ask = r->ask;
    if (!json_is_string(value)) return ask_wrong_type(r, "a text or a list of texts");
    const char *text = json_string_value(value);
    if (!*text || strlen(text) != json_string_length(value))
        return refuse(r->refusal, 400, "invalid_value", r->param,
                      "'%s' has a text that is empty or holds a NUL", r->param);
    if (strlen(text) > ASK_STOP_BYTES)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' has a text of more than %d bytes",
                      r->param, ASK_STOP_BYTES);
    const unsigned most = ask->kind & (ASK_CHAT | ASK_COMPLETION) ? ASK_STOPS_CHAT : ASK_STOPS;
    if (ask->stop_count == most)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' has more than %u texts", r->param,
                      most);
    ask->stop[ask->stop_count++] = text;
    return true;
}

bool ask_take_stop(struct ask_reader *r, const json_t *value)
{
    size_t index;
    const json_t *item;
    r->ask->stop_count = 0;
    if (!json_is_array(value)) return add_stop(r, value);
    json_array_foreach(value, index, item) if (!add_stop(r, item)) return false;
    return true;
}

bool ask_take_model(struct ask_reader *r, const json_t *value)
{
    static const char latest[] = ":latest"; /* Ollama's tools add it */
    if (!json_is_string(value)) return ask_wrong_type(r, "a text");
    const char *name = json_string_value(value);
    size_t length = strlen(name);
    const struct ask_model *m = r->model;
    for (int cut = 0; cut < 2; cut++) {
        if (strlen(m->name) == length && memcmp(m->name, name, length) == 0) return true;
        for (uint32_t i = 0; m->aliases && i < m->aliases->count; i++)
            if (strlen(m->aliases->item[i]) == length && memcmp(m->aliases->item[i], name, length) == 0)
                return true;
        if (length < strlen(latest) || strcmp(name + length - strlen(latest), latest) != 0) break;
        length -= strlen(latest);
    }
    return refuse(r->refusal, 404, "model_not_found", "model",
                  "the model '%.100s' is not served here, '%.100s' is", name, m->name);
}

bool ask_take_seed(struct ask_reader *r, const json_t *value)
{
    if (!json_is_integer(value)) return ask_wrong_type(r, "a whole number");
    r->ask->sampling.has_seed = true;
    r->ask->sampling.seed = (uint64_t)json_integer_value(value);
    return true;
}

bool ask_take_top_p(struct ask_reader *r, const json_t *value)
{
    if (!ask_take_number(r, value, 0, 1, &r->ask->sampling.top_p)) return false;
    if (r->ask->sampling.top_p < (float)ASK_ABOVE_ZERO)
        r->ask->sampling.top_p = (float)ASK_ABOVE_ZERO; /* the likeliest token alone */
    return true;
}
bool ask_take_top_k(struct ask_reader *r, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) == -1) { /* off, as vLLM has it */
        r->ask->sampling.top_k = 0;
        return true;
    }
    return ask_take_count(r, value, 0, UINT32_MAX, &r->ask->sampling.top_k);
}

bool ask_take_max_tokens(struct ask_reader *r, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) == -1) {
        r->ask->max_tokens = 0;
        return true;
    }
    return ask_take_count(r, value, 1, UINT32_MAX, &r->ask->max_tokens);
}

bool ask_take_tools(struct ask_reader *r, const json_t *value)
{
    size_t index;
    const json_t *tool;
    if (!json_is_array(value)) return ask_wrong_type(r, "a list");
    json_array_foreach(value, index, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        if (!type || strcmp(type, "function") != 0 || !json_is_string(name) || json_string_length(name) == 0)
            return refuse(r->refusal, 400, "invalid_value", "tools",
                          "tools[%zu] is not {\"type\": \"function\", \"function\": {\"name\": ...}}", index);
    }
    r->ask->tools = json_array_size(value) ? value : NULL;
    return true;
}

bool ask_add_function(struct ask_reader *r, json_t *function)
{
    json_t *tool = json_pack("{s:s, s:o}", "type", "function", "function", function);
    return json_array_append_new(r->ask->made, tool) == 0 || ask_out_of_memory(r);
}

bool ask_take_chat_tools(struct ask_reader *r, const json_t *value)
{
    size_t index;
    json_t *tool;
    if (!json_is_array(value)) return ask_wrong_type(r, "a list");
    json_decref(r->ask->made);
    r->ask->made = json_array();
    json_array_foreach(value, index, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        json_t *function = json_object_get(tool, "function");
        if (type && strcmp(type, "function") != 0)
            ask_note_tool(r->ask, type);
        else if (!type && json_is_object(function) && !ask_add_function(r, json_incref(function)))
            return false;
        else if ((type || !json_is_object(function)) && json_array_append(r->ask->made, tool))
            return ask_out_of_memory(r);
    }
    return ask_take_tools(r, r->ask->made);
}

/* ---- prompts ---------------------------------------------------------------------------------------- */

struct ask_prompt *ask_new_prompt(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    const size_t most = ask->kind & ASK_EMBEDS   ? ASK_INPUTS
                        : ask->kind & ASK_RERANK ? ASK_DOCUMENTS
                                                 : ASK_CHOICES;
    if (ask->gone && atomic_load(ask->gone)) { /* before a text is tokenized */
        refuse_err(r->refusal, NULL, HELM_E_CANCELLED, "the client went away");
        return NULL;
    }
    if (ask->prompt_count == most) {
        refuse(r->refusal, 400, "invalid_value", r->param, "'%s' has more than %zu entries", r->param, most);
        return NULL;
    }
    if (!GROW(ask->prompt, ask->prompt_count, ask->prompt_space)) {
        refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the prompts");
        return NULL;
    }
    ask->prompt[ask->prompt_count] = (struct ask_prompt){0};
    return &ask->prompt[ask->prompt_count++]; /* ask_free has it from here on */
}

static bool add_ids(struct ask_reader *r, const json_t *list)
{
    struct ask_prompt *prompt = ask_new_prompt(r);
    const size_t count = json_array_size(list);
    if (!prompt) return false;
    prompt->ids = malloc((count ? count : 1) * sizeof *prompt->ids);
    if (!prompt->ids) return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the prompt");
    prompt->count = count;
    for (size_t i = 0; i < count; i++)
        if (!ask_take_count(r, json_array_get(list, i), 0, r->model->vocab - 1, &prompt->ids[i]))
            return false;
    return true;
}

static bool add_prompt(struct ask_reader *r, const json_t *value)
{
    if (json_is_array(value)) return add_ids(r, value);
    if (!json_is_string(value))
        return refuse(r->refusal, 400, "invalid_type", r->param,
                      "'%s' is not a text, a list of texts, a list of token ids or a list of such lists",
                      r->param);
    return ask_add_text(r, json_string_value(value), json_string_length(value), true);
}

bool ask_add_prompts(struct ask_reader *r, const json_t *value)
{
    if (!value) return refuse(r->refusal, 400, "missing_parameter", r->param, "'%s' is missing", r->param);
    if (!json_is_array(value) || json_is_integer(json_array_get(value, 0))) return add_prompt(r, value);
    if (json_array_size(value) == 0)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' is an empty list", r->param);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_prompt(r, json_array_get(value, i))) return false;
    return true;
}

bool ask_add_text(struct ask_reader *r, const char *text, size_t length, bool special)
{
    struct helm_err err = {0};
    struct ask_prompt *prompt = ask_new_prompt(r);
    if (!prompt) return false;
    const unsigned flags = HELM_TOKENIZER_ENCODE_PARSE_ADDED |
                           (special ? HELM_TOKENIZER_ENCODE_ADD_SPECIAL : HELM_TOKENIZER_ENCODE_PLAIN);
    const int rc =
        helm_tokenizer_encode(r->model->tokenizer, text, length, flags, &prompt->ids, &prompt->count, &err);
    return rc < 0 ? refuse_err(r->refusal, r->param, rc, err.text) : true;
}

/* Anthropic's clients ask for as many tokens as its own models write: what does not fit ends the answer, not
 * the request. They begin a conversation anew, shortened, when a refusal says "prompt is too long". */
static bool fit_message(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    const uint32_t context = r->model->context;
    const size_t count = ask->prompt[0].count;
    if (count >= context)
        return refuse(r->refusal, 400, "context_length_exceeded", r->param,
                      "prompt is too long: %zu tokens > %u maximum", count, context - 1);
    ask->fills_context = !ask->max_tokens || count + ask->max_tokens > context;
    if (ask->fills_context) ask->max_tokens = 0;
    return true;
}

/* The daemon would say it too, but not before it has read a frame of it. */
static bool check_context(struct ask_reader *r)
{
    const struct ask *ask = r->ask;
    const uint32_t context = r->model->context;
    if (ask->kind == ASK_MESSAGE && ask->prompt[0].count) return fit_message(r);
    for (size_t i = 0; i < ask->prompt_count; i++) {
        const size_t count = ask->prompt[i].count, wanted = ask->kind & ASK_EMBEDS ? 0
                                                            : ask->max_tokens      ? ask->max_tokens
                                                                                   : 1;
        if (count == 0)
            return refuse(r->refusal, 400, "invalid_value", r->param,
                          "the prompt is empty: it needs at least one token");
        if (count + wanted > context)
            return refuse(
                r->refusal, 400, "context_length_exceeded", r->param,
                "this model's maximum context length is %u tokens, and the request needs %zu: %zu in the "
                "prompt and %s%zu of output",
                context, count + wanted, count, ask->max_tokens || !wanted ? "" : "at least ", wanted);
    }
    return true;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

static void take_defaults(const struct sampling_options *from, struct helm_sampling *to)
{
    *to = (struct helm_sampling){.temperature = (float)from->temperature,
                                 .top_k = (uint32_t)from->top_k,
                                 .top_p = (float)from->top_p,
                                 .min_p = (float)from->min_p,
                                 .repetition_penalty = (float)from->repetition_penalty};
}

size_t ask_count_values(const char *text, size_t length)
{
    size_t values = 1;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"')
            in_string = !in_string;
        else if (in_string)
            i += text[i] == '\\';
        else
            values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    }
    return values;
}

/* Before anything is allocated for them. */
static bool check_values(struct ask_reader *r, const char *text, size_t length)
{
    return ask_count_values(text, length) <= ASK_VALUES ||
           refuse(r->refusal, 400, "invalid_value", NULL, "the body has more than %u values", ASK_VALUES);
}

/* An answer may take an hour: what was made into prompts is not kept so long. */
static void drop_read(struct ask *ask)
{
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(ask->body, next, name, value)
    {
        const bool kept = value == ask->tools || (value == ask->documents && ask->return_documents) ||
                          WORD_IS(name, "stop", "options", "stop_sequences");
        if (!kept) json_object_del(ask->body, name);
    }
}

static const struct ask_dialect *const dialects[] = {&ask_openai, &ask_ollama,   &ask_rerank,
                                                     &ask_embed,  &ask_response, &ask_message};

static bool read_body(struct ask_reader *r, const char *text, size_t length)
{
    struct ask *ask = r->ask;
    struct helm_err err = {0};
    const bool ollama = ask->kind & (ASK_OLLAMA_CHAT | ASK_OLLAMA_GENERATE);
    if (!check_values(r, text, length)) return false;
    int rc = json_parse_numbers("the body", text, length, BODY_BYTES_MAX, &ask->numbers, &ask->body, &err);
    if (rc < 0) return refuse_err(r->refusal, NULL, rc, err.text);
    if (!json_is_object(ask->body))
        return refuse(r->refusal, 400, "invalid_type", NULL, "the body is not a JSON object");
    ask->stream = ollama; /* unless it is told otherwise */
    size_t d = 0;
    while (!(dialects[d]->kinds & ask->kind)) d++;
    if (!ask_take_fields(r, "", ask->body, &dialects[d]->fields) || !dialects[d]->finish(r)) return false;
    if (ask->load_only || ask->kind & (ASK_COUNT | ASK_TEMPLATE)) return true; /* nothing is generated */
    if (!(ask->kind & ASK_BATCHES) && ask->prompt_count * ask->choices > ASK_CHOICES)
        return refuse(r->refusal, 400, "invalid_value", "n",
                      "%zu prompts with %u answers each are more than %d", ask->prompt_count, ask->choices,
                      ASK_CHOICES);
    return check_context(r) && ask_make_grammar(r);
}

bool ask_read(enum ask_kind kind, const struct ask_model *model, const struct ask_asker *asker,
              const char *text, size_t length, struct ask *ask, struct refusal *refusal)
{
    struct ask_reader reader = {.model = model, .asker = asker, .ask = ask, .refusal = refusal};
    *refusal = (struct refusal){0};
    *ask = (struct ask){.kind = kind,
                        .gone = ask->gone,
                        .choices = 1,
                        .store = kind == ASK_RESPONSE && responses_keep_any(model->responses),
                        .pooling = model->pooling,
                        .truncate = kind == ASK_OLLAMA_EMBED};
    take_defaults(&model->defaults, &ask->sampling);
    if (!read_body(&reader, text, length)) {
        ask_free(ask);
        return false;
    }
    ask->sampling.bias = ask->bias;
    drop_read(ask);
    return true;
}

void ask_free(struct ask *ask)
{
    for (size_t i = 0; i < ask->prompt_count; i++) free(ask->prompt[i].ids);
    free(ask->prompt);
    free(ask->prediction.data);
    json_decref(ask->body);
    json_numbers_free(ask->numbers);
    json_decref(ask->extra);
    json_decref(ask->made);
    json_decref(ask->echo);
    free(ask->echo_text);
    json_decref(ask->spaces);
    responses_give_back(ask->before);
    response_items_free(&ask->items);
    free(ask->rendered);
    grammars_give_back(ask->grammar);
    *ask = (struct ask){0};
}
