/* The fields of /v1/responses: items and instructions become the messages of a conversation, tools those of a
 * chat, and what the answer repeats of the request is kept. See ask.h.
 *
 * ask_history.c finds what was kept, and keeps what is said. */
#include <stdio.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "client/gateway/gateway.h"
#include "client/text/answer/answer.h"

#define METADATA_PAIRS_MAX 16
#define METADATA_KEY_MAX   64
#define METADATA_VALUE_MAX 512
#define ECHO_MAX           (GATEWAY_BACKLOG_MAX / 4)

/* ---- items ------------------------------------------------------------------------------------------ */

struct items {
    struct ask_reader *reader;
    const char *place; /* the items that `index` counts */
    size_t index;
    json_t *messages;
    const json_t *thought; /* of the assistant's next message */
};

static bool refuse_item(const struct items *s, const char *code, const char *text)
{
    char param[64];
    snprintf(param, sizeof param, "%s[%zu]", s->place, s->index);
    return refuse(s->reader->refusal, 400, code, param, "%s %s", param, text);
}

/* A text, or a list of texts as `types` name them: joined, in a list of parts as chats have them. NULL:
 * refused. */
static json_t *content_of(const struct items *s, const json_t *value, const char *types)
{
    size_t index;
    const json_t *part;
    if (json_is_string(value)) return json_incref((json_t *)value);
    json_t *list = json_is_array(value) ? json_array() : NULL;
    if (!list) {
        refuse_item(s, "invalid_type", "has a content that is neither a text nor a list of parts");
        return NULL;
    }
    json_array_foreach(value, index, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const bool refusal = type && strcmp(type, "refusal") == 0; /* the model's words instead */
        const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
        if (!type || !(refusal || strstr(types, type)) || !json_is_string(text)) {
            refuse_item(s, "unsupported_value", "has a part that is no text; HELM's models read texts");
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", text));
    }
    return list;
}

/* Takes the content. */
static bool add_message(struct items *s, const char *role, json_t *content)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    if (message && s->thought && strcmp(role, "assistant") == 0) {
        json_object_set(message, "reasoning_content", (json_t *)s->thought);
        s->thought = NULL;
    }
    return json_array_append_new(s->messages, message) == 0 || ask_out_of_memory(s->reader);
}

static bool take_message(struct items *s, const json_t *item)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    if (!role) return refuse_item(s, "missing_parameter", "is a message without a 'role'");
    json_t *content = content_of(s, json_object_get(item, "content"), "input_text|output_text|text");
    return content && add_message(s, role, content);
}

/* The name that a function of a namespace is offered by; NULL: it is not known. */
static const char *offered_name(const struct ask *ask, const char *space, const char *name)
{
    const char *offered;
    const json_t *of;
    json_object_foreach(ask->spaces, offered, of)
    {
        const char *is = json_string_value(json_object_get(of, "name"));
        const char *in = json_string_value(json_object_get(of, "namespace"));
        if (is && in && strcmp(is, name) == 0 && strcmp(in, space) == 0) return offered;
    }
    return NULL;
}

/* Calls that follow each other are one message's. */
static bool take_call(struct items *s, const json_t *item)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
                 *arguments = json_object_get(item, "arguments");
    const size_t count = json_array_size(s->messages);
    json_t *last = count ? json_array_get(s->messages, count - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return refuse_item(s, "invalid_value", "is no function_call with 'call_id', 'name' and 'arguments'");
    if (!role || strcmp(role, "assistant") != 0) {
        if (!add_message(s, "assistant", json_string(""))) return false;
        last = json_array_get(s->messages, count);
    }
    json_t *calls = json_object_get(last, "tool_calls");
    if (!calls) {
        json_object_set_new(last, "tool_calls", json_array());
        calls = json_object_get(last, "tool_calls");
    }
    const char *space = json_string_value(json_object_get(item, "namespace"));
    const char *offered = space ? offered_name(s->reader->ask, space, json_string_value(name)) : NULL;
    json_t *call = json_pack("{s:O, s:s, s:{s:s, s:O}}", "id", id, "type", "function", "function", "name",
                             offered ? offered : json_string_value(name), "arguments", arguments);
    return json_array_append_new(calls, call) == 0 || ask_out_of_memory(s->reader);
}

/* A call of a tool that is no function: to the model it was a call with one text. */
static bool take_custom(struct items *s, const json_t *item)
{
    json_t *input = json_pack("{s:O?}", "input", json_object_get(item, "input"));
    char *arguments = json_dumps(input, JSON_COMPACT);
    json_t *call = json_deep_copy(item);
    json_object_set_new(call, "arguments", json_string(arguments ? arguments : ""));
    const bool good = take_call(s, call);
    json_decref(call);
    json_decref(input);
    free(arguments);
    return good;
}

static bool take_output(struct items *s, const json_t *item)
{
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id)) return refuse_item(s, "missing_parameter", "lacks 'call_id'");
    json_t *content = content_of(s, json_object_get(item, "output"), "input_text|output_text|text");
    if (!content || !add_message(s, "tool", content)) return false;
    json_t *message = json_array_get(s->messages, json_array_size(s->messages) - 1);
    return json_object_set(message, "tool_call_id", (json_t *)id) == 0 || ask_out_of_memory(s->reader);
}

/* The reasoning of an earlier answer, where the item has it as text. */
static bool take_reasoning(struct items *s, const json_t *item)
{
    const json_t *first = json_array_get(json_object_get(item, "content"), 0);
    const json_t *text = json_object_get(first, "text");
    if (first && !json_is_string(text))
        return refuse_item(s, "invalid_value", "is a reasoning whose content has no text");
    if (json_array_size(json_object_get(item, "content")) > 1)
        return refuse_item(s, "unsupported_value", "is a reasoning of more than one part");
    s->thought = text;
    return true;
}

static bool take_item(struct items *s, const json_t *item)
{
    static const struct {
        const char *type;
        bool (*take)(struct items *items, const json_t *item);
        const char *members;
    } rows[] = {{"message", take_message, "|type|role|content|id|status|phase|"},
                {"function_call", take_call,
                 "|type|call_id|name|arguments|id|status|parsed_arguments|namespace|"},
                {"function_call_output", take_output, "|type|call_id|output|id|status|"},
                {"custom_tool_call", take_custom, "|type|call_id|name|input|id|status|namespace|"},
                {"custom_tool_call_output", take_output, "|type|call_id|output|id|status|name|"},
                {"reasoning", take_reasoning, "|type|content|id|status|summary|encrypted_content|"}};
    /* a service's actions and notes: not shown to the model */
    static const char services[] =
        "|web_search_call|file_search_call|code_interpreter_call|image_generation_call|computer_call|"
        "computer_call_output|local_shell_call|local_shell_call_output|shell_call|shell_call_output|"
        "apply_patch_call|apply_patch_call_output|mcp_call|mcp_list_tools|mcp_approval_request|"
        "mcp_approval_response|tool_search_call|tool_search_output|compaction|compaction_summary|"
        "compaction_trigger|ghost_snapshot|";
    char own[64];
    const json_t *named = json_object_get(item, "type");
    const char *type = named ? json_string_value(named) : "message", *key;
    json_t *value;
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(type, rows[i].type) != 0) continue;
        json_object_foreach((json_t *)item, key, value)
        {
            char wanted[64];
            snprintf(wanted, sizeof wanted, "|%.48s|", key);
            if (!strstr(rows[i].members, wanted))
                return refuse_item(s, "unknown_parameter", "has a member that HELM's gateway does not know");
        }
        return rows[i].take(s, item);
    }
    snprintf(own, sizeof own, "|%.48s|", type ? type : "");
    if (type && strstr(services, own)) {
        char name[64];
        snprintf(name, sizeof name, "input.%.48s", type);
        ask_note_ignored(s->reader->ask, name);
        return true;
    }
    return refuse_item(s, "unsupported_value",
                       "is of a type that HELM's gateway does not support: message, function_call, "
                       "custom_tool_call, their outputs and reasoning are");
}

/* `before`: the items of an earlier conversation. */
static bool build_messages(struct ask_reader *r, const json_t *before, json_t *messages)
{
    struct items s = {.reader = r, .place = "previous_response_id", .messages = messages};
    if (!r->prompt) return refuse(r->refusal, 400, "missing_parameter", "input", "'input' is missing");
    if (r->system && !add_message(&s, "system", json_incref((json_t *)r->system))) return false;
    for (; s.index < json_array_size(before); s.index++)
        if (!take_item(&s, json_array_get(before, s.index))) return false;
    s.place = "input";
    s.index = 0;
    if (json_is_string(r->prompt)) return add_message(&s, "user", json_incref((json_t *)r->prompt));
    if (json_array_size(r->prompt) == 0)
        return refuse(r->refusal, 400, "invalid_value", "input",
                      "'input' is neither a text nor a list of items");
    for (; s.index < json_array_size(r->prompt); s.index++)
        if (!take_item(&s, json_array_get(r->prompt, s.index))) return false;
    return true;
}

/* ---- fields ----------------------------------------------------------------------------------------- */

static bool take_input(struct ask_reader *r, const json_t *value)
{
    r->prompt = value;
    return ask_resolve_items(r, (json_t *)value);
}
static bool take_include(struct ask_reader *r, const json_t *value)
{
    size_t index;
    const json_t *item;
    if (!json_is_array(value)) return ask_wrong_type(r, "a list");
    json_array_foreach(value, index, item)
    {
        const char *name = json_string_value(item);
        if (name && strcmp(name, "message.output_text.logprobs") == 0)
            r->ask->logprobs = true;
        else if (!name || !ask_settle_member(r, "include.", name, item))
            return refuse(r->refusal, 400, "unsupported_value", "include",
                          "'include' has '%.60s', which is nothing that an answer may hold",
                          name ? name : "");
    }
    return true;
}

/* {"type": "json_schema", "name", "schema", "strict"} as chat's response_format has it. */
static bool take_format(struct ask_reader *r, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *schema = json_object_get(value, "schema");
    r->param = "text.format";
    if (!type || strcmp(type, "json_schema") != 0) return ask_take_response_format(r, value);
    if (!schema)
        return refuse(r->refusal, 400, "missing_parameter", r->param, "'text.format' lacks 'schema'");
    return ask_take_json_schema(r, schema);
}

/* {"type": "function", "name", ...} as chat has it, one level deeper. A name that two namespaces have is
 * offered with the second one's before it. */
static bool add_function(struct ask_reader *r, const json_t *tool, const char *space)
{
    static const char *const keys[] = {"name", "description", "parameters", "strict"};
    struct ask *ask = r->ask;
    json_t *function = json_object(), *name = json_object_get(tool, "name");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *member = json_object_get(tool, keys[i]);
        if (member && !json_is_null(member)) json_object_set(function, keys[i], member);
    }
    if (space && json_is_string(name)) {
        const bool taken = answer_has_tool(ask->made, json_string_value(name));
        json_t *offered = taken ? json_sprintf("%s__%s", space, json_string_value(name)) : json_incref(name);
        if (!ask->spaces) ask->spaces = json_object();
        json_object_set_new(ask->spaces, json_string_value(offered),
                            json_pack("{s:s, s:O}", "namespace", space, "name", name));
        json_object_set_new(function, "name", offered);
    }
    return ask_add_function(r, function);
}

/* The functions of a namespace, if it is one. */
static bool add_namespace(struct ask_reader *r, const json_t *tool)
{
    const char *space = json_string_value(json_object_get(tool, "name"));
    size_t index;
    const json_t *inner;
    json_array_foreach(json_object_get(tool, "tools"), index, inner)
    {
        const char *type = json_string_value(json_object_get(inner, "type"));
        if (!type || strcmp(type, "function") != 0)
            ask_note_tool(r->ask, type);
        else if (!add_function(r, inner, space))
            return false;
    }
    return true;
}

/* Tools that are no functions are a service's own: the model is not told of them. */
static bool take_tools(struct ask_reader *r, const json_t *value)
{
    size_t index;
    const json_t *tool;
    if (!json_is_array(value)) return ask_wrong_type(r, "a list");
    r->ask->made = json_array();
    json_array_foreach(value, index, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type) return refuse(r->refusal, 400, "invalid_value", "tools", "tools[%zu] has no type", index);
        bool good = true;
        if (strcmp(type, "function") == 0)
            good = add_function(r, tool, NULL);
        else if (strcmp(type, "namespace") == 0)
            good = add_namespace(r, tool);
        else
            ask_note_tool(r->ask, type);
        if (!good) return false;
    }
    return ask_take_tools(r, r->ask->made);
}
static const struct ask_field text_rows[] = {{"format", ASK_RESPONSE, take_format}};
static const struct ask_fields text_fields = {ASK_ROWS(text_rows)}, no_fields = {0};

static const struct ask_field rows[] = {
    {"model", ASK_RESPONSE, ask_take_model},
    {"input", ASK_RESPONSE, take_input},
    {"instructions", ASK_RESPONSE, ASK_SAID(system, 0)},
    {"previous_response_id", ASK_RESPONSE, ask_take_previous},
    {"store", ASK_RESPONSE, ask_take_store},
    {"stream", ASK_RESPONSE, ASK_FLAG(stream)},
    {"stream_options", ASK_RESPONSE, ASK_OBJECT(&no_fields)},
    {"max_output_tokens", ASK_RESPONSE, ask_take_max_tokens},
    {"temperature", ASK_RESPONSE, ASK_TEMPERATURE},
    {"top_p", ASK_RESPONSE, ask_take_top_p},
    {"include", ASK_RESPONSE, take_include},
    {"top_logprobs", ASK_RESPONSE, ASK_TOP_LOGPROBS},
    {"text", ASK_RESPONSE, ASK_OBJECT(&text_fields)},
    {"tools", ASK_RESPONSE, take_tools},
    {"tool_choice", ASK_RESPONSE, ask_take_tool_choice},
    {"parallel_tool_calls", ASK_RESPONSE, ask_take_parallel},
    {"reasoning", ASK_RESPONSE, ASK_OBJECT(&ask_reasoning)},
    {"user", ASK_RESPONSE, ask_take_user},
    /* beyond OpenAI, as in chats */
    {"seed", ASK_RESPONSE, ask_take_seed},
    {"top_k", ASK_RESPONSE, ask_take_top_k},
    {"min_p", ASK_RESPONSE, ASK_MIN_P},
    {"repetition_penalty", ASK_RESPONSE, ASK_REPETITION},
    {"chat_template_kwargs", ASK_RESPONSE, ASK_LATER(extra)},
};

/* ---- what the answer says of the request ------------------------------------------------------------ */

static json_t *echoed(const struct ask *ask, const char *key, json_t *missing)
{
    json_t *value = json_object_get(ask->body, key);
    if (!value || json_is_null(value)) return missing;
    json_decref(missing);
    return json_incref(value);
}

/* Characters of a text, which is UTF-8. */
static size_t characters(const char *text)
{
    size_t count = 0;
    for (; *text; text++) count += (*text & 0xC0) != 0x80;
    return count;
}

/* As OpenAI bounds it. */
static bool check_metadata(struct ask_reader *r, const json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!metadata || json_is_null(metadata)) return true;
    if (!json_is_object(metadata))
        return refuse(r->refusal, 400, "invalid_type", "metadata", "'metadata' is not an object");
    if (json_object_size(metadata) > METADATA_PAIRS_MAX)
        return refuse(r->refusal, 400, "invalid_value", "metadata",
                      "'metadata' has %zu members, more than %d", json_object_size(metadata),
                      METADATA_PAIRS_MAX);
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (characters(key) > METADATA_KEY_MAX)
            return refuse(r->refusal, 400, "invalid_value", "metadata",
                          "a name in 'metadata' has %zu characters, more than %d", characters(key),
                          METADATA_KEY_MAX);
        if (!json_is_string(value) || characters(json_string_value(value)) > METADATA_VALUE_MAX)
            return refuse(r->refusal, 400, "invalid_value", "metadata",
                          "'metadata.%.64s' is not a text of at most %d characters", key, METADATA_VALUE_MAX);
    }
    return true;
}

/* A stream says it three times, twice before the first token: what a client that reads slowly may leave
 * waiting has to hold that, or the answer would be dropped after it was begun. */
static bool check_echo(struct ask_reader *r)
{
    char *text = r->ask->echo_text = json_dump_numbers(r->ask->echo, JSON_COMPACT, r->ask->numbers);
    const size_t bytes = r->ask->echo_bytes = text ? strlen(text) : 0;
    if (!text) return ask_out_of_memory(r);
    if (bytes <= ECHO_MAX) return true;
    return refuse(
        r->refusal, 400, "invalid_value", "instructions",
        "what the answer repeats of the request (instructions, tools, text, user) has %zu bytes, more "
        "than %zu",
        bytes, ECHO_MAX);
}

static bool keep_echo(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (!check_metadata(r, json_object_get(ask->body, "metadata"))) return false;
    ask->echo =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:f, s:f, s:i, s:b, s:b, s:s, s:o}",
                  "instructions", echoed(ask, "instructions", json_null()), "metadata",
                  echoed(ask, "metadata", json_object()), "tools", echoed(ask, "tools", json_array()),
                  "tool_choice", echoed(ask, "tool_choice", json_string("auto")), "text",
                  echoed(ask, "text", json_pack("{s:{s:s}}", "format", "type", "text")),
                  "parallel_tool_calls", !ask->one_call, "max_output_tokens",
                  echoed(ask, "max_output_tokens", json_null()), "user", echoed(ask, "user", json_null()),
                  "temperature", (double)ask->sampling.temperature, "top_p",
                  ask->sampling.top_p > 0 ? (double)ask->sampling.top_p : 1.0, "top_logprobs",
                  (int)ask->top_logprobs, "store", ask->store, "background", false, "truncation", "disabled",
                  "previous_response_id", echoed(ask, "previous_response_id", json_null()));
    return ask->echo ? check_echo(r) : ask_out_of_memory(r);
}

static bool finish(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (ask->top_logprobs && !ask->logprobs)
        return refuse(r->refusal, 400, "invalid_value", "top_logprobs",
                      "'top_logprobs' needs \"include\": [\"message.output_text.logprobs\"]");
    if (!ask_choose_tools(r)) return false;
    json_t *messages = json_array(), *before = json_array();
    bool good = (messages && before) || ask_out_of_memory(r);
    good = good && ask_add_history(r, before) && build_messages(r, before, messages) && ask_keep_input(r) &&
           keep_echo(r) && ask_add_messages(r, messages);
    json_decref(messages);
    json_decref(before);
    return good;
}

const struct ask_dialect ask_response = {ASK_RESPONSE, {ASK_ROWS(rows)}, finish};
