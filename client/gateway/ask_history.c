/* Requests of /v1/responses and kept responses (responses.h): items that a request takes from them, and items
 * of it that are kept. See ask.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/responses.h"

#define ID_SHOWN 100 /* characters of a stranger's id in a message */

/* ---- fields ----------------------------------------------------------------------------------------- */

bool ask_take_previous(struct ask_reader *r, const json_t *value)
{
    const char *id = json_string_value(value);
    struct responses *kept = r->model->responses;
    if (!id || strncmp(id, "resp_", 5) != 0)
        return refuse(r->refusal, 400, "invalid_value", r->param,
                      "'previous_response_id' is '%.*s', and ids of responses begin with 'resp_'", ID_SHOWN,
                      id ? id : "no text");
    if (!responses_keep_any(kept))
        return refuse(r->refusal, 400, "unsupported_parameter", r->param,
                      "'previous_response_id' is not supported: this gateway keeps no responses "
                      "(--keep-responses 0)");
    if (r->asker) r->ask->before = responses_find(kept, r->asker->owner, id);
    return r->ask->before || refuse(r->refusal, 400, "previous_response_not_found", r->param,
                                    "Previous response with id '%.*s' not found.", ID_SHOWN, id);
}

bool ask_take_store(struct ask_reader *r, const json_t *value)
{
    if (!ask_take_flag(r, value, &r->ask->store)) return false;
    if (r->ask->store && !responses_keep_any(r->model->responses)) {
        r->ask->store = false;
        ask_note_ignored(r->ask, r->param);
    }
    return true;
}

/* ---- what was kept ---------------------------------------------------------------------------------- */

/* Items that are read back. Together they are bounded as a body is. */
struct reading {
    const char *param, *what; /* for the refusal: where they come from */
    size_t bytes, values;
};

static bool read_item(struct ask_reader *r, struct reading *all, const char *text, json_t **item)
{
    const size_t length = strlen(text);
    struct helm_err err = {0};
    all->bytes += length;
    all->values += ask_count_values(text, length);
    if (all->bytes > GATEWAY_BODY_MAX || all->values > ASK_VALUES)
        return refuse(r->refusal, 400, "context_length_exceeded", all->param,
                      "%s more than %zu bytes or %u values", all->what, GATEWAY_BODY_MAX, ASK_VALUES);
    const int rc =
        json_parse_numbers("a kept item", text, length, GATEWAY_BODY_MAX, &r->ask->numbers, item, &err);
    return rc == 0 || refuse_err(r->refusal, NULL, rc, err.text);
}

static bool add_turn(struct ask_reader *r, json_t *list, const struct response *turn, struct reading *all)
{
    const struct response_items *items = response_items(turn);
    for (size_t i = 0; i < items->count; i++) {
        json_t *item = NULL;
        if (!read_item(r, all, items->item[i].text, &item)) return false;
        if (json_array_append_new(list, item) < 0) return ask_out_of_memory(r);
    }
    return true;
}

bool ask_add_history(struct ask_reader *r, json_t *list)
{
    struct reading all = {"previous_response_id", "the conversation before this request has", 0, 0};
    size_t depth = 0;
    bool good = true;
    for (const struct response *t = r->ask->before; t; t = response_before(t)) depth++;
    const struct response **turns = calloc(depth ? depth : 1, sizeof *turns);
    if (!turns) return ask_out_of_memory(r);
    const struct response *turn = r->ask->before;
    for (size_t i = depth; i > 0; i--, turn = response_before(turn)) turns[i - 1] = turn;
    for (size_t i = 0; i < depth && good; i++) good = add_turn(r, list, turns[i], &all);
    free(turns);
    return good;
}

/* {"type": "item_reference", "id"}; the type may be missing. */
static const char *referred(const json_t *item)
{
    const json_t *type = json_object_get(item, "type");
    const char *id = json_string_value(json_object_get(item, "id"));
    const bool bare = (!type || json_is_null(type)) && !json_object_get(item, "role");
    const bool named = json_is_string(type) && strcmp(json_string_value(type), "item_reference") == 0;
    return bare || named ? id ? id : "" : NULL;
}

/* An earlier reasoning that came back by its id alone. */
static const char *empty_reasoning(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!type || strcmp(type, "reasoning") != 0 || json_array_size(json_object_get(item, "content")))
        return NULL;
    return json_string_value(json_object_get(item, "id"));
}

bool ask_resolve_items(struct ask_reader *r, json_t *input)
{
    struct reading all = {"input", "the items that 'input' refers to have", 0, 0};
    for (size_t i = 0; i < json_array_size(input); i++) {
        const json_t *item = json_array_get(input, i);
        const char *reference = referred(item), *id = reference ? reference : empty_reasoning(item);
        json_t *found = NULL;
        if (!id) continue;
        char *text = r->asker ? responses_copy_item(r->model->responses, r->asker->owner, id) : NULL;
        if (!text && !reference) continue;
        if (!text)
            return refuse(r->refusal, 404, "", "input",
                          "Item with id '%.*s' not found. Items are not kept when `store` is false, and the "
                          "oldest go when memory is full.",
                          ID_SHOWN, id);
        const bool good = read_item(r, &all, text, &found);
        free(text);
        if (!good) return false;
        if (json_array_set_new(input, i, found) < 0) return ask_out_of_memory(r);
    }
    return true;
}

/* ---- what is kept ----------------------------------------------------------------------------------- */

/* A text as the parts that items have. */
static json_t *parts_of(const json_t *content, const char *role)
{
    const bool own = role && strcmp(role, "assistant") == 0;
    return json_is_string(content)
               ? json_pack("[{s:s, s:O}]", "type", own ? "output_text" : "input_text", "text", content)
               : json_incref((json_t *)content);
}

static bool keep_item(struct ask_reader *r, const json_t *from, size_t index)
{
    static const struct {
        const char *type, *prefix;
    } rows[] = {{"message", "msg"},
                {"function_call", "fc"},
                {"function_call_output", "fco"},
                {"reasoning", "rs"}};
    json_t *item = json_copy((json_t *)from);
    const json_t *named = json_object_get(item, "type");
    const char *type = named && !json_is_null(named) ? json_string_value(named) : "message", *prefix = "item";
    const char *role = json_string_value(json_object_get(item, "role"));
    char made[80];
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0) prefix = rows[i].prefix;
    snprintf(made, sizeof made, "%s_%.32s_%zu", prefix, r->asker->id, index);
    if (!json_is_string(json_object_get(item, "id"))) json_object_set_new(item, "id", json_string(made));
    if (!named) json_object_set_new(item, "type", json_string("message"));
    if (type && strcmp(type, "message") == 0)
        json_object_set_new(item, "content", parts_of(json_object_get(item, "content"), role));
    if (!json_object_get(item, "status")) json_object_set_new(item, "status", json_string("completed"));
    char *text = json_dump_numbers(item, JSON_COMPACT, r->ask->numbers);
    const bool good =
        text && response_items_add(&r->ask->items, json_string_value(json_object_get(item, "id")), text,
                                   strlen(text));
    free(text);
    json_decref(item);
    return good || ask_out_of_memory(r);
}

bool ask_keep_input(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    bool good = true;
    if (!ask->store || !r->asker) return true;
    if (json_is_string(r->prompt)) {
        json_t *message =
            json_pack("{s:s, s:s, s:O}", "type", "message", "role", "user", "content", r->prompt);
        good = message ? keep_item(r, message, 0) : ask_out_of_memory(r);
        json_decref(message);
    }
    for (size_t i = 0; good && i < json_array_size(r->prompt); i++)
        good = keep_item(r, json_array_get(r->prompt, i), i);
    ask->items.said = ask->items.count;
    return good;
}
