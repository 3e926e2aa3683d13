/* A conversation as clients send it, made into what chat templates expect, and rendered. See ask.h.
 *
 * Every message is built anew of the members that templates know: parts of text are joined, arguments of
 * calls become objects. Any other member of a message is refused by its name. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/words.h"

struct message {
    struct ask_reader *reader;
    size_t index;
    const json_t *from;
    json_t *to;
};

static bool HELM_PRINTF(4, 5)
    refuse_message(const struct message *m, const char *code, const char *member, const char *fmt, ...)
{
    char param[96], text[HELM_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(param, sizeof param, "messages[%zu]%s%.40s", m->index, *member ? "." : "", member);
    return refuse(m->reader->refusal, 400, code, param, "%s: %s", param, text);
}

static bool set(const struct message *m, const char *key, json_t *value)
{
    if (json_object_set_new(m->to, key, value) == 0) return true;
    return refuse_err(m->reader->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
}

/* ---- reasoning --------------------------------------------------------------------------------------- */

/* The texts of OpenRouter's reasoning_details; what is encrypted or of another kind has none. */
static json_t *join_details(const json_t *list)
{
    static const char *const keys[] = {"text", "summary"};
    struct cli_text text = {0};
    size_t index;
    const json_t *item;
    cli_text_add(&text, "", 0);
    json_array_foreach(list, index, item) for (size_t i = 0; i < 2; i++)
    {
        const json_t *piece = json_object_get(item, keys[i]);
        if (json_is_string(piece)) cli_text_add(&text, json_string_value(piece), json_string_length(piece));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data, text.length);
    cli_text_free(&text);
    return joined;
}

/* The reasoning of an earlier answer, under each name that clients use; reasoning_content wins. */
static bool take_thought(const struct message *m, const char *key, const json_t *value)
{
    static const char common[] = "reasoning_content";
    const struct reasoning_tags *tags = m->reader->model->tags;
    const bool details = strcmp(key, "reasoning_details") == 0;
    if (details ? !json_is_array(value) : !json_is_string(value))
        return refuse_message(m, "invalid_type", key, "not a %s", details ? "list" : "text");
    if (strcmp(key, common) != 0 && json_string_length(json_object_get(m->to, common))) return true;
    json_t *text = details ? join_details(value) : json_incref((json_t *)value);
    if (details && json_string_length(text) == 0) {
        json_decref(text);
        return true;
    }
    /* harmony's template takes it beside a call alone, not beside content */
    const bool own = tags && strcmp(tags->member, common) != 0 &&
                     json_string_length(json_object_get(m->to, "content")) == 0;
    if (own && !set(m, tags->member, json_incref(text))) {
        json_decref(text);
        return false;
    }
    return set(m, common, text);
}

/* ---- content ---------------------------------------------------------------------------------------- */

/* The text of a part. A refusal is what the model said; input_text and output_text are Responses' names. */
static const json_t *part_text(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (WORD_IS(type, "refusal")) return json_object_get(part, type);
    return WORD_IS(type, "text", "input_text", "output_text") ? json_object_get(part, "text") : NULL;
}

static bool join_parts(const struct message *m, const json_t *parts, json_t **joined)
{
    struct cli_text text = {0};
    size_t index;
    const json_t *part;
    bool good = true;
    cli_text_add(&text, "", 0);
    json_array_foreach(parts, index, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *piece = part_text(part), *thought = json_object_get(part, "thinking");
        if (json_is_string(piece)) {
            cli_text_add(&text, json_string_value(piece), json_string_length(piece));
            continue;
        }
        good =
            type && strcmp(type, "thinking") == 0 && thought
                ? take_thought(m, json_is_array(thought) ? "reasoning_details" : type, thought)
                : refuse_message(
                      m, "unsupported_value", "content",
                      "part %zu is '%.40s'; HELM's models read texts ({\"type\": \"text\", \"text\": ...})",
                      index, type ? type : "not an object with a type");
        if (!good) break;
    }
    if (good && text.failed)
        good = refuse_err(m->reader->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
    *joined = good ? json_stringn(text.data, text.length) : NULL;
    cli_text_free(&text);
    return good;
}

static bool take_content(const struct message *m, const json_t *value, bool may_lack)
{
    json_t *joined = NULL;
    if (json_is_string(value)) return set(m, "content", json_incref((json_t *)value));
    if (json_is_array(value)) return join_parts(m, value, &joined) && set(m, "content", joined);
    if (value && !json_is_null(value))
        return refuse_message(m, "invalid_type", "content", "not a text, a list of parts or null");
    if (may_lack) return set(m, "content", json_string(""));
    return refuse_message(m, "missing_parameter", "content", "missing");
}

/* ---- calls of tools --------------------------------------------------------------------------------- */

/* OpenAI has arguments as JSON text, Ollama as an object; templates want the object. */
static json_t *arguments_object(struct ask *ask, const json_t *value)
{
    json_t *parsed = NULL;
    struct helm_err err = {0};
    if (!json_is_string(value)) return json_incref((json_t *)value);
    if (json_string_length(value) == 0 || strcmp(json_string_value(value), "null") == 0) return json_object();
    if (json_parse_numbers("arguments", json_string_value(value), json_string_length(value),
                           json_string_length(value), &ask->numbers, &parsed, &err) < 0)
        return json_incref((json_t *)value); /* a model's faulty text is shown to it as it was */
    return parsed;
}

static bool add_call(const struct message *m, const json_t *call, json_t *list)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments");
    const json_t *id = json_object_get(call, "id");
    if (json_is_null(arguments)) arguments = NULL;
    if (json_is_null(id)) id = NULL;
    if (!json_is_string(name) || (arguments && !json_is_string(arguments) && !json_is_object(arguments)) ||
        (id && !json_is_string(id)))
        return refuse_message(
            m, "invalid_value", "tool_calls",
            "not a list of {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}");
    json_t *to = json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name", name, "arguments",
                           arguments ? arguments_object(m->reader->ask, arguments) : json_object());
    if (to && id) json_object_set(to, "id", (json_t *)id);
    if (json_array_append_new(list, to) == 0) return true;
    return refuse_err(m->reader->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
}

static bool take_calls(const struct message *m, const json_t *value)
{
    size_t index;
    const json_t *call;
    if (!json_is_array(value)) return refuse_message(m, "invalid_type", "tool_calls", "not a list");
    if (json_array_size(value) == 0) return true;
    json_t *list = json_array();
    if (!set(m, "tool_calls", list)) return false;
    json_array_foreach(value, index, call) if (!add_call(m, call, list)) return false;
    return true;
}

/* ---- messages --------------------------------------------------------------------------------------- */

static bool take_member(const struct message *m, const char *key, const json_t *value)
{
    if (json_is_null(value) || WORD_IS(key, "role", "content")) return true;
    if (WORD_IS(key, "reasoning_content", "reasoning", "thinking", "reasoning_details"))
        return take_thought(m, key, value);
    if (strcmp(key, "tool_calls") == 0) return take_calls(m, value);
    if (WORD_IS(key, "name", "tool_call_id", "tool_name")) {
        if (!json_is_string(value)) return refuse_message(m, "invalid_type", key, "not a text");
        return set(m, strcmp(key, "tool_name") == 0 ? "name" : key, json_incref((json_t *)value));
    }
    if (WORD_IS(key, "refusal", "annotations", "audio", "function_call", "images"))
        return (json_is_array(value) && json_array_size(value) == 0) ||
               refuse_message(m, "unsupported_parameter", key, "not supported by HELM's gateway");
    return ask_settle_member(m->reader, "messages.", key, value) ||
           refuse_message(m, "unknown_parameter", key, "not a member of a message");
}

static bool build_message(struct message *m)
{
    const char *role = json_string_value(json_object_get(m->from, "role")), *key;
    json_t *value;
    if (!json_is_object(m->from)) return refuse_message(m, "invalid_type", "", "not an object");
    if (!WORD_IS(role, "system", "developer", "user", "assistant", "tool"))
        return refuse_message(m, "invalid_value", "role",
                              "'%.40s' is none of system, developer, user, assistant, tool",
                              role ? role : "");
    if (strcmp(role, "developer") == 0) role = "system";
    if (!set(m, "role", json_string(role))) return false;
    if (!take_content(m, json_object_get(m->from, "content"), strcmp(role, "assistant") == 0)) return false;
    json_object_foreach((json_t *)m->from, key, value) if (!take_member(m, key, value)) return false;
    return true;
}

/* Templates whose calls are functions.NAME:NUMBER write a call's id alone: ids of clients get that form. */
static bool number_calls(struct ask_reader *r, json_t *list)
{
    json_t *renamed = json_object(), *message, *call;
    size_t index, k, count = 0;
    bool good = renamed != NULL;
    json_array_foreach(list, index, message)
    {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call)
        {
            const char *id = json_string_value(json_object_get(call, "id"));
            json_t *name = json_object_get(json_object_get(call, "function"), "name");
            json_t *own = json_sprintf("functions.%s:%zu", json_string_value(name), count++);
            if (id && json_object_set(renamed, id, own)) good = false;
            if (json_object_set_new(call, "id", own)) good = false;
        }
        const char *of = json_string_value(json_object_get(message, "tool_call_id"));
        json_t *own = of ? json_object_get(renamed, of) : NULL;
        if (own && json_object_set(message, "tool_call_id", own)) good = false;
    }
    json_decref(renamed);
    return good || refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
}

/* Appends the calls of a message as messages of their own, and their results, in the roles that templates of
 * such calls have. */
static bool add_apart(struct ask_reader *r, json_t *message, json_t *to)
{
    static const char call_fields[] = "{s:s, s:O, s:o}";
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    const char *role = json_string_value(json_object_get(message, "role"));
    const bool result = role && strcmp(role, "tool") == 0;
    size_t index;
    if (result && json_object_set_new(message, "role", json_string("observation"))) return false;
    const bool empty = calls && json_string_length(json_object_get(message, "content")) == 0;
    if (!empty && json_array_append(to, message)) return false;
    json_array_foreach(calls, index, call)
    {
        const json_t *function = json_object_get(call, "function"),
                     *arguments = json_object_get(function, "arguments");
        char *written = json_dump_numbers(arguments, JSON_COMPACT | JSON_ENCODE_ANY, r->ask->numbers);
        json_t *content = json_is_string(arguments) ? json_incref((json_t *)arguments) : json_string(written);
        json_t *own = json_pack(call_fields, "role", "assistant", "metadata",
                                json_object_get(function, "name"), "content", content);
        free(written);
        if (json_array_append_new(to, own)) return false;
    }
    return !calls || !json_object_del(message, "tool_calls");
}

/* Calls of the past as messages of their own. */
static bool set_apart(struct ask_reader *r, json_t *list)
{
    json_t *apart = json_array(), *message;
    bool good = apart != NULL;
    size_t index;
    json_array_foreach(list, index, message) good = good && add_apart(r, message, apart);
    good = good && !json_array_clear(list) && !json_array_extend(list, apart);
    json_decref(apart);
    return good || refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
}

static bool build_messages(struct ask_reader *r, const json_t *messages, json_t *list)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return refuse(r->refusal, 400, messages ? "invalid_value" : "missing_parameter", "messages",
                      messages ? "'messages' is not a list of messages" : "'messages' is missing");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        struct message m = {.reader = r,
                            .index = i,
                            .from = json_array_get(messages, i),
                            .to = json_object()};
        if (json_array_append_new(list, m.to) < 0)
            return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
        if (!build_message(&m)) return false;
    }
    const struct call_syntax *calls = r->model->calls;
    if (calls && calls->counted) return number_calls(r, list);
    return !calls || !calls->apart || set_apart(r, list);
}

static bool render(struct ask_reader *r, const json_t *messages)
{
    struct helm_err err = {0};
    struct helm_chat_prompt rendered = {0};
    struct ask_prompt *prompt = ask_new_prompt(r);
    if (!prompt) return false;
    char *list = json_dump_numbers(messages, JSON_COMPACT, r->ask->numbers);
    char *tools = r->ask->tools ? json_dump_numbers(r->ask->tools, JSON_COMPACT, r->ask->numbers) : NULL;
    char *extra = r->extra ? json_dump_numbers(r->extra, JSON_COMPACT, r->ask->numbers) : NULL;
    const struct helm_chat_input input = {.messages = list,
                                          .tools = tools,
                                          .extra = extra,
                                          .add_generation_prompt = 1};
    const unsigned flags = r->model->allow_special ? HELM_CHAT_ALLOW_SPECIAL : HELM_CHAT_TEXT_IS_TEXT;
    const bool short_of_memory = !list || (r->ask->tools && !tools) || (r->extra && !extra);
    const int rc = short_of_memory ? helm_fail(&err, HELM_E_NOMEM, "no memory for the conversation")
                                   : helm_chat_encode_json(r->model->chat, r->model->tokenizer, &input, flags,
                                                           &rendered, &err);
    r->param = "messages";
    r->ask->conversation = true;
    if (rc == 0) {
        if (r->model->tags) r->ask->at = reasoning_after(r->model->tags, rendered.text, rendered.length);
        prompt->ids = rendered.ids;
        prompt->count = rendered.count;
        memcpy(prompt->marks, rendered.marks, sizeof prompt->marks);
        prompt->mark_count = rendered.mark_count;
        rendered.ids = NULL;
    }
    if (rc == 0 && r->ask->kind == ASK_TEMPLATE) {
        r->ask->rendered = rendered.text;
        r->ask->rendered_length = rendered.length;
        rendered.text = NULL;
    }
    helm_chat_prompt_free(&rendered);
    free(list);
    free(tools);
    free(extra);
    return rc == 0 || refuse_err(r->refusal, "messages", rc, err.text);
}

bool ask_add_messages(struct ask_reader *r, const json_t *messages)
{
    if (!r->model->chat)
        return refuse(r->refusal, 400, "unsupported_value", "messages",
                      "this model takes no conversations: %s", r->model->chat_why);
    if (!ask_effort_variables(r)) return false;
    if (r->ask->tools && !r->model->calls)
        return refuse(r->refusal, 400, "unsupported_parameter", "tools",
                      "'tools' is not supported with this model: %s", r->model->calls_why);
    json_t *list = json_array();
    if (!list) return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the conversation");
    const bool good = build_messages(r, messages, list) && render(r, list);
    json_decref(list);
    return good;
}
