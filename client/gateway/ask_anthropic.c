/* The fields of Anthropic's /v1/messages and /v1/messages/count_tokens: blocks become the messages of a
 * conversation, tools those of a chat. See ask.h.
 *
 * Claude Code writes a stamp that changes with each request into its first system block. It is left out, so
 * that the prompt begins as the last one did and its prefix is found again. */
#include <stdio.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/words.h"

#define KINDS ASK_ANTHROPIC
#define STAMP "x-anthropic-billing-header"

/* ---- blocks ----------------------------------------------------------------------------------------- */

/* A message of the client, and what is made of it. */
struct turn {
    struct ask_reader *reader;
    size_t index;
    const char *role;
    json_t *messages; /* of the conversation: borrowed */
    struct cli_text text, thought;
    json_t *calls; /* NULL: none */
};

static bool refuse_block(const struct turn *t, const char *code, const char *text)
{
    char param[48];
    snprintf(param, sizeof param, "messages[%zu].content", t->index);
    return refuse(t->reader->refusal, 400, code, param, "%s %s", param, text);
}

/* Blocks are divided by an end of line, except for a model's own texts, which must come back as it wrote
 * them. */
static void add_line(struct cli_text *to, const json_t *text, bool divide)
{
    if (divide && to->length) cli_text_add(to, "\n", 1);
    cli_text_add(to, json_string_value(text), json_string_length(text));
}

/* Makes a message of the gathered blocks, if there are any. */
static bool flush(struct turn *t)
{
    const bool assistant = strcmp(t->role, "assistant") == 0;
    if (!t->text.length && !t->thought.length && !t->calls) return true;
    if (t->text.failed || t->thought.failed) return ask_out_of_memory(t->reader);
    json_t *message = json_pack("{s:s, s:o}", "role", t->role, "content",
                                json_stringn(t->text.data ? t->text.data : "", t->text.length));
    if (message && assistant && t->thought.length)
        json_object_set_new(message, "reasoning_content", json_stringn(t->thought.data, t->thought.length));
    if (message && t->calls) json_object_set(message, "tool_calls", t->calls);
    json_decref(t->calls);
    t->calls = NULL;
    t->text.length = t->thought.length = 0;
    return json_array_append_new(t->messages, message) == 0 || ask_out_of_memory(t->reader);
}

static bool take_text(struct turn *t, const json_t *block)
{
    const json_t *text = json_object_get(block, "text");
    if (!json_is_string(text)) return refuse_block(t, "invalid_type", "has a text block without 'text'");
    add_line(&t->text, text, strcmp(t->role, "assistant") != 0);
    return true;
}

static bool take_thought(struct turn *t, const json_t *block)
{
    const json_t *text = json_object_get(block, "thinking");
    if (!json_is_string(text))
        return refuse_block(t, "invalid_type", "has a thinking block without 'thinking'");
    add_line(&t->thought, text, true);
    return true;
}

/* Thinking that only its service can read, and tools that ran there. */
static bool take_nothing(struct turn *t, const json_t *block)
{
    ask_note_ignored(t->reader->ask, json_string_value(json_object_get(block, "type")));
    return true;
}

static bool take_call(struct turn *t, const json_t *block)
{
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name) || (input && !json_is_object(input)))
        return refuse_block(t, "invalid_value",
                            "has a tool_use block without 'id', 'name' and an object 'input'");
    if (!t->calls) t->calls = json_array();
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function", "name",
                             name, "arguments", input ? json_incref(input) : json_object());
    return json_array_append_new(t->calls, call) == 0 || ask_out_of_memory(t->reader);
}

/* The texts of a block's own content. */
static bool join_texts(struct turn *t, const json_t *content, struct cli_text *to)
{
    size_t index;
    const json_t *part;
    if (json_is_string(content)) add_line(to, content, true);
    if (!content || json_is_null(content) || json_is_string(content)) return true;
    if (!json_is_array(content))
        return refuse_block(t, "invalid_type", "is neither a text nor a list of blocks");
    json_array_foreach(content, index, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
            return refuse_block(t, "unsupported_value",
                                "has a result that is no text; HELM's models read texts");
        add_line(to, text, true);
    }
    return true;
}

/* A document, or a result of a search: its texts. */
static bool take_document(struct turn *t, const json_t *block)
{
    const json_t *source = json_object_get(block, "source"), *title = json_object_get(block, "title");
    const json_t *data = json_object_get(source, "data"), *content = json_object_get(source, "content");
    const char *type = json_string_value(json_object_get(source, "type"));
    if (json_is_string(title)) add_line(&t->text, title, true);
    if (json_is_string(source)) return join_texts(t, json_object_get(block, "content"), &t->text);
    if (type && strcmp(type, "content") == 0) return join_texts(t, content, &t->text);
    if (!type || strcmp(type, "text") != 0 || !json_is_string(data))
        return refuse_block(t, "unsupported_value",
                            "has a document that is no text; HELM's models read texts");
    add_line(&t->text, data, true);
    return true;
}

static bool take_result(struct turn *t, const json_t *block)
{
    json_t *id = json_object_get(block, "tool_use_id");
    struct cli_text text = {0};
    if (!json_is_string(id))
        return refuse_block(t, "missing_parameter", "has a tool_result block without 'tool_use_id'");
    if (!flush(t)) return false;
    if (json_is_true(json_object_get(block, "is_error"))) cli_text_printf(&text, "Error:");
    bool good = join_texts(t, json_object_get(block, "content"), &text);
    if (good && text.failed) good = ask_out_of_memory(t->reader);
    if (good) {
        json_t *message = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content",
                                    json_stringn(text.data ? text.data : "", text.length));
        good = json_array_append_new(t->messages, message) == 0 || ask_out_of_memory(t->reader);
    }
    cli_text_free(&text);
    return good;
}

static bool take_block(struct turn *t, const json_t *block)
{
    static const struct {
        const char *type, *role;
        bool (*take)(struct turn *turn, const json_t *block);
    } rows[] = {{"text", NULL, take_text},
                {"thinking", "assistant", take_thought},
                {"redacted_thinking", "assistant", take_nothing},
                {"server_tool_use", "assistant", take_nothing},
                {"mcp_tool_use", "assistant", take_nothing},
                {"tool_use", "assistant", take_call},
                {"tool_result", "user", take_result},
                {"document", "user", take_document},
                {"search_result", "user", take_document}};
    static const char result[] = "_tool_result"; /* of a tool that ran at Anthropic */
    const char *type = json_string_value(json_object_get(block, "type"));
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(type, rows[i].type) == 0 && (!rows[i].role || strcmp(rows[i].role, t->role) == 0))
            return rows[i].take(t, block);
    const size_t bytes = type ? strlen(type) : 0;
    if (bytes >= sizeof result && strcmp(type + bytes - strlen(result), result) == 0 &&
        strcmp(t->role, "assistant") == 0)
        return take_nothing(t, block);
    return refuse_block(
        t, "unsupported_value",
        "has a block of a type that HELM's gateway does not support in this role: text, thinking "
        "and tool_use (assistant), tool_result, document and search_result (user) are");
}

static bool take_turn(struct turn *t, const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content"), *block;
    size_t index;
    t->role = role;
    if (!WORD_IS(role, "user", "assistant", "system"))
        return refuse_block(t, "invalid_value", "is of a role that is none of user, assistant and system");
    if (json_is_string(content)) {
        add_line(&t->text, content, true);
        return flush(t);
    }
    if (!json_is_array(content))
        return refuse_block(t, "invalid_type", "is neither a text nor a list of blocks");
    json_array_foreach(content, index, block) if (!take_block(t, block)) return false;
    return flush(t);
}

/* ---- system ----------------------------------------------------------------------------------------- */

/* A text of the system prompt, without the stamp that its first line may be. */
static void add_system(struct ask_reader *r, struct cli_text *to, const json_t *value)
{
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (strncmp(text, STAMP ":", strlen(STAMP ":")) == 0) {
        const char *end = memchr(text, '\n', length);
        ask_note_ignored(r->ask, "system." STAMP);
        length = end ? length - (size_t)(end + 1 - text) : 0;
        text = end ? end + 1 : "";
    }
    if (length && to->length) cli_text_add(to, "\n", 1);
    cli_text_add(to, text, length);
}

static bool take_system_blocks(struct ask_reader *r, struct cli_text *to)
{
    size_t index;
    const json_t *block;
    if (!r->system) return true;
    if (json_is_string(r->system)) add_system(r, to, r->system);
    json_array_foreach(r->system, index, block)
    {
        const json_t *text = json_object_get(block, "text");
        if (!json_is_string(text))
            return refuse(r->refusal, 400, "invalid_value", "system", "system[%zu] is no block with a 'text'",
                          index);
        add_system(r, to, text);
    }
    return !to->failed || ask_out_of_memory(r);
}

/* ---- fields ----------------------------------------------------------------------------------------- */

static bool take_system(struct ask_reader *r, const json_t *value)
{
    if (!json_is_string(value) && !json_is_array(value))
        return refuse(r->refusal, 400, "invalid_type", r->param,
                      "'system' is neither a text nor a list of blocks");
    r->system = value;
    return true;
}

/* {"name", "description", "input_schema"} as chat has it. Tools with a type of their own run at Anthropic, or
 * have a schema that only its models know. */
static bool take_tools(struct ask_reader *r, const json_t *value)
{
    size_t index;
    const json_t *tool;
    if (!json_is_array(value)) return ask_wrong_type(r, "a list");
    r->ask->made = json_array();
    json_array_foreach(value, index, tool)
    {
        static const char *const keys[][2] = {{"name", "name"},
                                              {"description", "description"},
                                              {"input_schema", "parameters"},
                                              {"strict", "strict"}};
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "custom") != 0) {
            ask_note_tool(r->ask, type);
            continue;
        }
        if (!json_is_string(json_object_get(tool, "name")))
            return refuse(r->refusal, 400, "invalid_value", "tools",
                          "tools[%zu] is not {\"name\", \"description\", \"input_schema\"}", index);
        json_t *function = json_object();
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            json_t *member = json_object_get(tool, keys[i][0]);
            if (member && !json_is_null(member)) json_object_set(function, keys[i][1], member);
        }
        if (!ask_add_function(r, function)) return false;
    }
    return ask_take_tools(r, r->ask->made);
}

static bool take_tool_choice(struct ask_reader *r, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *name = json_object_get(value, "name"),
                 *one = json_object_get(value, "disable_parallel_tool_use");
    if (one && !ask_take_flag(r, one, &r->ask->one_call)) return false;
    r->has_choice_none = type && strcmp(type, "none") == 0;
    r->forces_call =
        type && (strcmp(type, "any") == 0 || (strcmp(type, "tool") == 0 && json_is_string(name)));
    if (r->forces_call && strcmp(type, "tool") == 0) r->forced_tool = json_string_value(name);
    return r->has_choice_none || r->forces_call || (type && strcmp(type, "auto") == 0) ||
           refuse(r->refusal, 400, "unsupported_value", "tool_choice",
                  "'tool_choice' has no type of auto, any, none, and tool with a 'name'");
}

/* {"type": "json_schema", "schema": ...} */
static bool take_format(struct ask_reader *r, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *schema = json_object_get(value, "schema");
    if (!type || strcmp(type, "json_schema") != 0 || !schema)
        return refuse(r->refusal, 400, "unsupported_value", r->param,
                      "'%s' is not {\"type\": \"json_schema\", \"schema\": ...}", r->param);
    return ask_take_json_schema(r, schema);
}
/* `effort`: how much, of a model that is to think at all. */
static const struct ask_field output_rows[] = {{"format", KINDS, take_format},
                                               {"effort", KINDS, ask_take_effort}};
static const struct ask_fields output_config = {ASK_ROWS(output_rows)};

static const struct ask_field rows[] = {
    {"model", KINDS, ask_take_model},
    {"messages", KINDS, ASK_LATER(messages)},
    {"system", KINDS, take_system},
    {"stream", KINDS, ASK_FLAG(stream)},
    {"max_tokens", KINDS, ask_take_max_tokens},
    {"stop_sequences", KINDS, ask_take_stop},
    {"temperature", KINDS, ASK_TEMPERATURE},
    {"top_p", KINDS, ask_take_top_p},
    {"top_k", KINDS, ask_take_top_k},
    {"tools", KINDS, take_tools},
    {"tool_choice", KINDS, take_tool_choice},
    {"thinking", KINDS, ask_take_thinking},
    {"output_config", KINDS, ASK_OBJECT(&output_config)},
    {"output_format", KINDS, take_format},
    /* beyond Anthropic, as in chats */
    {"seed", KINDS, ask_take_seed},
    {"min_p", KINDS, ASK_MIN_P},
    {"repetition_penalty", KINDS, ASK_REPETITION},
    {"chat_template_kwargs", KINDS, ASK_LATER(extra)},
};

/* ---- the conversation ------------------------------------------------------------------------------- */

static bool build_messages(struct ask_reader *r, json_t *messages)
{
    struct cli_text system = {0};
    struct turn t = {.reader = r, .messages = messages};
    if (!json_is_array(r->messages) || json_array_size(r->messages) == 0)
        return refuse(r->refusal, 400, r->messages ? "invalid_value" : "missing_parameter", "messages",
                      r->messages ? "'messages' is not a list of messages" : "'messages' is missing");
    bool good = take_system_blocks(r, &system);
    if (good && system.length) {
        json_t *message =
            json_pack("{s:s, s:o}", "role", "system", "content", json_stringn(system.data, system.length));
        good = json_array_append_new(messages, message) == 0 || ask_out_of_memory(r);
    }
    cli_text_free(&system);
    for (; good && t.index < json_array_size(r->messages); t.index++)
        good = take_turn(&t, json_array_get(r->messages, t.index));
    cli_text_free(&t.text);
    cli_text_free(&t.thought);
    json_decref(t.calls);
    if (good && r->ask->kind == ASK_MESSAGE && strcmp(t.role, "assistant") == 0)
        return refuse(r->refusal, 400, "unsupported_value", "messages",
                      "the last message is the assistant's: an answer that has begun is not supported, the "
                      "conversation must end with a user message");
    return good;
}

static bool finish(struct ask_reader *r)
{
    if (!ask_choose_tools(r)) return false;
    json_t *messages = json_array();
    if (!messages) return ask_out_of_memory(r);
    const bool good = build_messages(r, messages) && ask_add_messages(r, messages);
    json_decref(messages);
    return good;
}

const struct ask_dialect ask_message = {KINDS, {ASK_ROWS(rows)}, finish};
