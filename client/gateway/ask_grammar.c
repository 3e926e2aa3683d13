/* The form of an answer: response_format, Ollama's format, grammars, tool_choice and strict tools, as one
 * grammar. See ask.h.
 *
 * Fields are only kept when they are read (their order is the client's); the grammar is made when all of them
 * and the prompt are known, in the thread that reads the body. Thinking in front of the answer is free. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"
#include "client/gateway/grammars.h"
#include "client/gateway/tool_grammar.h"
#include "client/text/grammar/engine.h"
#include "client/text/grammar/schema.h"

/* ---- fields ---- */

/* Two fields that each say what the answer is. */
static bool keep_format(struct ask_reader *r, enum ask_format format, const json_t *value)
{
    if (r->format != ASK_FORMAT_NONE)
        return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' and '%s' both say what the answer is",
                      r->format_param, r->param);
    r->format = format;
    r->format_value = value;
    r->format_param = r->param;
    return true;
}

static bool take_schema(struct ask_reader *r, const json_t *value)
{
    if (json_is_object(value) || json_is_boolean(value)) return keep_format(r, ASK_FORMAT_SCHEMA, value);
    return refuse(r->refusal, 400, "invalid_type", r->param, "'%s' has a schema that is no object", r->param);
}

bool ask_take_response_format(struct ask_reader *r, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *wrapped = json_object_get(value, "json_schema"),
                 *schema = json_object_get(wrapped, "schema");
    if (type && strcmp(type, "text") == 0) return true;
    if (type && strcmp(type, "json_object") == 0) {
        schema = json_object_get(value, "schema"); /* llama.cpp's */
        return schema ? take_schema(r, schema) : keep_format(r, ASK_FORMAT_OBJECT, NULL);
    }
    if (!type || strcmp(type, "json_schema") != 0)
        return refuse(r->refusal, 400, "unsupported_value", r->param,
                      "'response_format' has no type of text, json_object and json_schema");
    if (!json_is_object(wrapped))
        return refuse(r->refusal, 400, "invalid_value", r->param,
                      "'response_format' lacks 'json_schema': {\"schema\": ...}");
    if (!schema) return keep_format(r, ASK_FORMAT_OBJECT, NULL); /* a name alone: any object */
    return take_schema(r, schema);
}

bool ask_take_json_schema(struct ask_reader *r, const json_t *value)
{
    return take_schema(r, value);
}

static bool take_text(struct ask_reader *r, enum ask_format format, const json_t *value)
{
    if (json_is_string(value)) return keep_format(r, format, value);
    return refuse(r->refusal, 400, "invalid_type", r->param, "'%s' is not a text", r->param);
}
bool ask_take_grammar(struct ask_reader *r, const json_t *value)
{
    if (json_is_string(value) && json_string_length(value) == 0)
        return true; /* llama.cpp's clients send it empty */
    return take_text(r, ASK_FORMAT_GBNF, value);
}
bool ask_take_regex(struct ask_reader *r, const json_t *value)
{
    return take_text(r, ASK_FORMAT_REGEX, value);
}

/* Ollama's: "json", a schema, or nothing. */
bool ask_take_format(struct ask_reader *r, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text && !*text) return true;
    if (text && strcmp(text, "json") == 0) return keep_format(r, ASK_FORMAT_OBJECT, NULL);
    if (text)
        return refuse(r->refusal, 400, "unsupported_value", r->param,
                      "'format' is neither \"json\" nor a JSON schema");
    return take_schema(r, value);
}

/* The function that a choice names; NULL: it names none. Chats say it one level deeper than Responses. */
static const char *chosen_name(const json_t *choice)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    const json_t *function = json_object_get(choice, "function");
    if (!type || strcmp(type, "function") != 0) return NULL;
    return json_string_value(json_object_get(function ? function : choice, "name"));
}

/* OpenAI's {"type": "allowed_tools", "mode", "tools"}; chats have the last two in a member of the type's
 * name. */
static bool take_allowed(struct ask_reader *r, const json_t *value)
{
    const json_t *inner = json_object_get(value, "allowed_tools");
    if (!inner) inner = value;
    const char *mode = json_string_value(json_object_get(inner, "mode"));
    r->allowed_tools = json_object_get(inner, "tools");
    r->forces_call = mode && strcmp(mode, "required") == 0;
    if (json_is_array(r->allowed_tools) && (r->forces_call || (mode && strcmp(mode, "auto") == 0)))
        return true;
    return refuse(
        r->refusal, 400, "invalid_value", "tool_choice",
        "'tool_choice' of type allowed_tools needs a 'mode' of auto or required, and a list 'tools'");
}

bool ask_take_tool_choice(struct ask_reader *r, const json_t *value)
{
    /* a word, or an object with it as its type; "any" is Mistral's and Anthropic's for "required" */
    const char *type = json_string_value(json_is_object(value) ? json_object_get(value, "type") : value);
    if (type && strcmp(type, "auto") == 0) return true;
    if (type && strcmp(type, "allowed_tools") == 0) return take_allowed(r, value);
    r->has_choice_none = type && strcmp(type, "none") == 0;
    r->forces_call = type && (strcmp(type, "required") == 0 || strcmp(type, "any") == 0);
    if (r->has_choice_none || r->forces_call) return true;
    r->forced_tool = chosen_name(value);
    r->forces_call = r->forced_tool != NULL;
    return r->forces_call ||
           refuse(r->refusal, 400, "unsupported_value", "tool_choice",
                  "'tool_choice' is none of \"auto\", \"none\", \"required\", {\"type\": \"function\", "
                  "\"function\": {\"name\": ...}} and {\"type\": \"allowed_tools\", ...}");
}

static bool allows(const json_t *allowed, const char *name)
{
    for (size_t i = 0; i < json_array_size(allowed); i++) {
        const char *chosen = chosen_name(json_array_get(allowed, i));
        if (chosen && strcmp(chosen, name) == 0) return true;
    }
    return false;
}

bool ask_choose_tools(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (r->has_choice_none) ask->tools = NULL;
    for (size_t i = 0; i < json_array_size(r->allowed_tools); i++) {
        const json_t *choice = json_array_get(r->allowed_tools, i);
        const char *type = json_string_value(json_object_get(choice, "type")), *name = chosen_name(choice);
        if (type && strcmp(type, "function") != 0) continue; /* left out of the tools, too */
        if (!name || !answer_has_tool(ask->tools, name))
            return refuse(r->refusal, 400, "invalid_value", "tool_choice",
                          "'tool_choice' allows '%.64s', which is not in 'tools'", name ? name : "");
    }
    for (size_t i = r->allowed_tools ? json_array_size(ask->tools) : 0; i-- > 0;)
        if (!allows(r->allowed_tools, tool_name(json_array_get(ask->tools, i))))
            json_array_remove(ask->made, i);
    if (json_array_size(ask->tools) == 0) ask->tools = NULL;
    return true;
}

/* ---- the grammar ---- */

/* The grammar that is asked for, as a text by which it is found again. */
static char *make_key(const struct ask_reader *r)
{
    const struct ask *ask = r->ask;
    json_t *key =
        json_pack("{s:i, s:i, s:b, s:b, s:b, s:s?, s:O?, s:O?}", "format", (int)r->format, "at", (int)ask->at,
                  "conversation", ask->conversation, "one", ask->one_call, "forces", r->forces_call, "tool",
                  r->forced_tool, "value", r->format_value, "tools", ask->tools);
    char *text = key ? json_dump_numbers(key, JSON_COMPACT, ask->numbers)
                     : NULL; /* members as they came: a schema's order counts */
    json_decref(key);
    return text;
}

static int format_expr(const struct ask_reader *r, struct exprs *x, uint32_t *out, struct helm_err *err)
{
    const enum helm_grammar_kind kind = r->format == ASK_FORMAT_REGEX  ? HELM_GRAMMAR_REGEX
                                        : r->format == ASK_FORMAT_GBNF ? HELM_GRAMMAR_GBNF
                                                                       : HELM_GRAMMAR_JSON_OBJECT;
    if (r->format == ASK_FORMAT_SCHEMA) return schema_compile(x, r->format_value, out, err);
    return grammar_read(x, kind, json_string_value(r->format_value), json_string_length(r->format_value), out,
                        err);
}

/* A format, where the model's answer has it. */
static int final_expr(const struct ask_reader *r, struct exprs *x, uint32_t *out, struct helm_err *err)
{
    const int rc = format_expr(r, x, out, err);
    if (rc == 0 && r->ask->conversation)
        *out = markers_final(x, r->model->tokenizer, r->model->tags, r->ask->at, *out);
    return rc;
}

/* The answer without its thinking. */
static int answer_expr(const struct ask_reader *r, struct exprs *x, uint32_t *out, struct helm_err *err)
{
    const struct ask *ask = r->ask;
    const struct tool_wish wish = {r->model->calls, r->model->tokenizer, ask->tools, r->forced_tool,
                                   ask->one_call};
    uint32_t calls;
    if (!ask->tools) return final_expr(r, x, out, err);
    if (r->forces_call) return tool_grammar_calls(x, &wish, out, err);
    if (r->format == ASK_FORMAT_NONE) return tool_grammar_free(x, &wish, out, err);
    int rc = final_expr(r, x, out, err);
    if (rc == 0) rc = tool_grammar_calls(x, &wish, &calls, err);
    if (rc == 0) *out = expr_add(x, expr_add(x, expr_alt(x), *out), calls);
    return rc;
}

/* A model that thinks may do so first, unless the prompt has closed its thinking. */
static uint32_t with_thinking(const struct ask_reader *r, struct exprs *x, uint32_t answer)
{
    const struct helm_tokenizer *t = r->model->tokenizer;
    const struct reasoning_tags *tags = r->model->tags;
    const enum reasoning_at at = r->ask->at;
    if (!r->ask->conversation || at == REASONING_CLOSED || (at == REASONING_FREE && !r->model->may_think))
        return answer;
    if (!tags->open) {
        const uint32_t rest =
            EXPR_SEQ(x, markers_until(x, t, HARMONY_END), markers_text(x, t, HARMONY_START "assistant"));
        const uint32_t head = at == REASONING_INSIDE ? expr_seq(x) : markers_header(x, t, "analysis");
        const uint32_t thinking = EXPR_SEQ(x, head, rest);
        return EXPR_SEQ(x, at == REASONING_INSIDE ? thinking : expr_repeat(x, thinking, 0, 1), answer);
    }
    const uint32_t begin =
        at == REASONING_INSIDE ? expr_seq(x) : EXPR_SEQ(x, markers_blanks(x), markers_text(x, t, tags->open));
    const uint32_t thinking = EXPR_SEQ(x, begin, markers_until(x, t, tags->close), markers_blanks(x));
    return EXPR_SEQ(x, at == REASONING_INSIDE ? thinking : expr_repeat(x, thinking, 0, 1), answer);
}

static bool refuse_grammar(struct ask_reader *r, int rc, const char *text)
{
    const char *param = r->format != ASK_FORMAT_NONE ? r->format_param : "tools";
    if (rc == HELM_E_NOMEM || rc == HELM_E_BUSY) return refuse_err(r->refusal, param, rc, text);
    return refuse(r->refusal, 400, rc == HELM_E_UNSUPPORTED ? "unsupported_value" : "invalid_value", param,
                  "'%s': %s", param, text);
}

static bool open_grammar(struct ask_reader *r, const char *key)
{
    struct exprs x = {.stop = r->ask->gone, .numbers = r->ask->numbers};
    struct helm_grammar *grammar = NULL;
    struct helm_err err = {0};
    uint32_t root = 0;
    int rc = answer_expr(r, &x, &root, &err);
    if (rc == 0) {
        root = with_thinking(r, &x, root);
        rc = grammar_open_exprs(r->model->vocabulary, &x, root, &grammar, &err);
    }
    exprs_free(&x);
    if (rc == 0) rc = grammars_add(r->model->grammars, key, grammar, &r->ask->grammar, &err);
    return rc == 0 || refuse_grammar(r, rc, err.text);
}

bool ask_make_grammar(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    if (r->forces_call && !ask->tools)
        return refuse(r->refusal, 400, "invalid_value", "tool_choice",
                      "'tool_choice' forces a call, and there are no 'tools'");
    if (r->forced_tool && !answer_has_tool(ask->tools, r->forced_tool))
        return refuse(r->refusal, 400, "invalid_value", "tool_choice",
                      "'tool_choice' names '%.64s', which is not in 'tools'", r->forced_tool);
    if (r->forces_call && r->format != ASK_FORMAT_NONE)
        return refuse(r->refusal, 400, "invalid_value", "tool_choice",
                      "'tool_choice' forces a call, and '%s' says what the answer is", r->format_param);
    if (r->format == ASK_FORMAT_NONE && !r->forces_call && !(ask->tools && answer_any_strict(ask->tools)))
        return true;
    const char *param = r->format != ASK_FORMAT_NONE ? r->format_param
                        : r->forces_call             ? "tool_choice"
                                                     : "tools";
    if (!r->model->vocabulary)
        return refuse(r->refusal, 400, "unsupported_parameter", param,
                      "'%s' is not supported with this model: %s", param, r->model->vocabulary_why);
    if (ask->ignore_eos)
        return refuse(r->refusal, 400, "invalid_value", "ignore_eos",
                      "'ignore_eos' and '%s' exclude each other", param);
    char *key = make_key(r);
    if (!key) return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the request");
    bool good = strlen(key) <= HELM_GRAMMAR_TEXT_LIMIT ||
                refuse(r->refusal, 400, "invalid_value", param, "'%s' takes more than %zu bytes", param,
                       HELM_GRAMMAR_TEXT_LIMIT);
    if (good) ask->grammar = grammars_find(r->model->grammars, key);
    if (good && !ask->grammar) good = open_grammar(r, key);
    free(key);
    return good;
}
