/* Arguments that are not JSON as expressions: parameters in tags, objects with bare keys, Python's keywords.
 * See tool_grammar.h. */
#include <string.h>

#include "client/gateway/tool_grammar.h"
#include "client/text/grammar/schema.h"

#define PARAMETERS_MAX 64 /* of one call whose tool is not strict */

static const char quote[] = "<|\"|>";

static const json_t *parameters_of(const json_t *tool)
{
    return json_object_get(json_object_get(tool, "function"), "parameters");
}

static bool is_required(const json_t *parameters, const char *key)
{
    size_t index;
    const json_t *item;
    json_array_foreach(json_object_get(parameters, "required"), index, item)
    {
        const char *name = json_string_value(item);
        if (name && strcmp(name, key) == 0) return true;
    }
    return false;
}

/* Keywords of a text that cannot be kept to where it stands without quotes. */
static int check_text(const json_t *tool, const char *key, const json_t *schema, struct helm_err *err)
{
    static const char *const keywords[] = {"pattern", "format", "minLength", "maxLength"};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (json_object_get(schema, keywords[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "tool '%.64s': parameter '%.64s': '%s' is not supported where this model writes "
                             "texts without quotes",
                             tool_name(tool), key, keywords[i]);
    return 0;
}

/* A text without quotes, and what ends it. */
static uint32_t text_value(struct exprs *x, const struct tool_wish *w, const json_t *schema,
                           const char *close)
{
    const json_t *values = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    if (!values && !one) return markers_until(x, w->tokenizer, close);
    const uint32_t alt = expr_alt(x);
    size_t index;
    const json_t *value;
    if (one) expr_add(x, alt, expr_text(x, json_string_value(one), json_string_length(one)));
    json_array_foreach(values, index, value)
        expr_add(x, alt, expr_text(x, json_string_value(value), json_string_length(value)));
    return json_form(x, "$ $", alt, markers_text(x, w->tokenizer, close));
}

/* A parameter's schema, with the definitions that it may refer to. */
static int json_value(struct exprs *x, const json_t *tool, const char *key, const json_t *schema,
                      uint32_t *out, struct helm_err *err)
{
    static const char *const definitions[] = {"$defs", "definitions"};
    json_t *own = json_copy((json_t *)schema);
    for (size_t i = 0; json_is_object(own) && i < 2; i++) {
        json_t *shared = json_object_get(parameters_of(tool), definitions[i]);
        if (shared && !json_object_get(own, definitions[i])) json_object_set(own, definitions[i], shared);
    }
    const int rc = schema_compile(x, own, out, err);
    json_decref(own);
    return rc ? helm_err_prefix(err, "tool '%.64s': parameter '%.64s'", tool_name(tool), key) : 0;
}

/* ---- tags ---- */

/* Before the value: the key's tag. `text`: what it says of the value, where it says something. */
static uint32_t key_tag(struct exprs *x, const struct tool_wish *w, uint32_t key, bool text)
{
    const struct call_syntax *s = w->syntax;
    const char *kind = text ? " string=\"true\">" : " string=\"false\">", *tag = s->kinds  ? kind
                                                                                 : s->tags ? ">"
                                                                                           : "";
    const uint32_t open =
        s->value_open ? json_form(x, " $", markers_text(x, w->tokenizer, s->value_open)) : expr_seq(x);
    return EXPR_SEQ(x, markers_text(x, w->tokenizer, s->key_open), key,
                    markers_text(x, w->tokenizer, s->key_end), expr_string(x, tag), open);
}

static int one_parameter(struct exprs *x, const struct tool_wish *w, const json_t *tool, const char *key,
                         const json_t *schema, uint32_t *out, struct helm_err *err)
{
    const char *close = w->syntax->value_close;
    const bool text = answer_parameter_is_text(w->tools, tool_name(tool), key);
    const uint32_t tag = key_tag(x, w, expr_string(x, key), text);
    const uint32_t line = w->syntax->lines ? expr_text(x, "\n", 1) : expr_seq(x);
    uint32_t value;
    int rc = text ? check_text(tool, key, schema, err) : json_value(x, tool, key, schema, &value, err);
    if (rc) return rc;
    value = text ? text_value(x, w, schema, close)
                 : json_form(x, "$ $", value, markers_text(x, w->tokenizer, close));
    *out = EXPR_SEQ(x, tag, line, value, markers_blanks(x));
    return 0;
}

/* Any parameters with any texts. */
static uint32_t any_parameters(struct exprs *x, const struct tool_wish *w)
{
    static const struct expr_range word[] = {{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const uint32_t alt = expr_alt(x);
    for (int text = 0; text < (w->syntax->kinds ? 2 : 1); text++) {
        const uint32_t key = expr_repeat(x, expr_set(x, word, 5), 1, ANSWER_KEY_MAX);
        expr_add(x, alt,
                 EXPR_SEQ(x, key_tag(x, w, key, text), markers_until(x, w->tokenizer, w->syntax->value_close),
                          markers_blanks(x)));
    }
    return expr_repeat(x, alt, 0, PARAMETERS_MAX);
}

int tool_arguments_parameters(struct exprs *x, const struct tool_wish *w, const json_t *tool, uint32_t *out,
                              struct helm_err *err)
{
    const json_t *parameters = parameters_of(tool);
    const char *key;
    json_t *schema;
    if (!tool_is_strict(tool)) {
        *out = any_parameters(x, w);
        return 0;
    }
    *out = expr_seq(x);
    json_object_foreach(json_object_get(parameters, "properties"), key, schema)
    {
        uint32_t one;
        const int rc = one_parameter(x, w, tool, key, schema, &one, err);
        if (rc) return rc;
        expr_add(x, *out, is_required(parameters, key) ? one : expr_repeat(x, one, 0, 1));
    }
    return 0;
}

/* ---- bare keys ---- */

static uint32_t bare_text(struct exprs *x, const struct tool_wish *w, const json_t *schema)
{
    return EXPR_SEQ(x, markers_text(x, w->tokenizer, quote), text_value(x, w, schema, quote));
}

static uint32_t comma(struct exprs *x)
{
    return EXPR_SEQ(x, expr_text(x, ",", 1), markers_blanks(x));
}

/* `one`, and more of it between commas, or nothing. */
static uint32_t listed(struct exprs *x, uint32_t rule)
{
    const uint32_t more = EXPR_SEQ(x, comma(x), expr_rule(x, rule));
    return expr_repeat(x, EXPR_SEQ(x, expr_rule(x, rule), expr_repeat(x, more, 0, EXPR_UNBOUNDED)), 0, 1);
}

/* Any object with bare keys. */
static uint32_t any_bare(struct exprs *x, const struct tool_wish *w)
{
    static const struct expr_range word[] = {{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const char *const words[] = {"true", "false", "null"};
    const uint32_t value = exprs_new_rule(x), pair = exprs_new_rule(x), object = exprs_new_rule(x),
                   alt = expr_alt(x);
    exprs_define(x, pair,
                 EXPR_SEQ(x, expr_repeat(x, expr_set(x, word, 5), 1, ANSWER_KEY_MAX), expr_text(x, ":", 1),
                          expr_rule(x, value)));
    exprs_define(x, object, EXPR_SEQ(x, expr_text(x, "{", 1), listed(x, pair), expr_text(x, "}", 1)));
    expr_add(x, alt, bare_text(x, w, NULL));
    expr_add(x, alt, json_any(x, ANY_NUMBER));
    for (size_t i = 0; i < 3; i++) expr_add(x, alt, expr_string(x, words[i]));
    expr_add(x, alt, expr_rule(x, object));
    expr_add(x, alt, EXPR_SEQ(x, expr_text(x, "[", 1), listed(x, value), expr_text(x, "]", 1)));
    exprs_define(x, value, alt);
    return expr_rule(x, object);
}

typedef int member_fn(struct exprs *x, const struct tool_wish *w, const json_t *tool, const char *key,
                      const json_t *schema, uint32_t *out, struct helm_err *err);

/* Members of a strict tool in the schema's order, with commas; an optional one may be left out. */
static int in_order(struct exprs *x, const struct tool_wish *w, const json_t *tool, member_fn *member,
                    uint32_t *out, struct helm_err *err)
{
    const json_t *parameters = parameters_of(tool);
    const char *key;
    json_t *schema;
    bool any = false; /* a member that is always there stands before: a comma goes before each later one */
    *out = expr_seq(x);
    json_object_foreach(json_object_get(parameters, "properties"), key, schema)
    {
        uint32_t one;
        const bool required = is_required(parameters, key);
        const int rc = member(x, w, tool, key, schema, &one, err);
        if (rc) return rc;
        if (!any && !required)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "tool '%.64s': parameter '%.64s' is optional and comes first: strict tools of this "
                "model need a required one first",
                tool_name(tool), key);
        if (any) one = EXPR_SEQ(x, comma(x), one);
        expr_add(x, *out, required ? one : expr_repeat(x, one, 0, 1));
        any = true;
    }
    return 0;
}

static int bare_member(struct exprs *x, const struct tool_wish *w, const json_t *tool, const char *key,
                       const json_t *schema, uint32_t *out, struct helm_err *err)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    const bool text = answer_parameter_is_text(w->tools, tool_name(tool), key);
    uint32_t value;
    int rc = text ? check_text(tool, key, schema, err) : 0;
    if (!text && (!type || strcmp(type, "object") == 0 || strcmp(type, "array") == 0))
        rc = helm_fail(
            err, HELM_E_UNSUPPORTED,
            "tool '%.64s': parameter '%.64s': strict lists and objects are not supported where this "
            "model writes keys without quotes",
            tool_name(tool), key);
    if (!rc && !text) rc = json_value(x, tool, key, schema, &value, err);
    if (rc) return rc;
    if (text) value = bare_text(x, w, schema);
    *out = EXPR_SEQ(x, expr_string(x, key), expr_text(x, ":", 1), value);
    return 0;
}

int tool_arguments_bare(struct exprs *x, const struct tool_wish *w, const json_t *tool, uint32_t *out,
                        struct helm_err *err)
{
    if (!tool_is_strict(tool)) {
        *out = any_bare(x, w);
        return 0;
    }
    uint32_t members;
    const int rc = in_order(x, w, tool, bare_member, &members, err);
    *out = EXPR_SEQ(x, expr_text(x, "{", 1), members, expr_text(x, "}", 1));
    return rc;
}

/* ---- Python ---- */

static uint32_t keyword(struct exprs *x, uint32_t key, uint32_t value)
{
    return EXPR_SEQ(x, key, expr_text(x, "=", 1), value);
}

static int python_member(struct exprs *x, const struct tool_wish *w, const json_t *tool, const char *key,
                         const json_t *schema, uint32_t *out, struct helm_err *err)
{
    uint32_t value;
    (void)w;
    const int rc = json_value(x, tool, key, schema, &value, err);
    if (!rc) *out = keyword(x, expr_text(x, key, strlen(key)), value);
    return rc;
}

int tool_arguments_python(struct exprs *x, const json_t *tool, uint32_t *out, struct helm_err *err)
{
    static const struct expr_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    uint32_t members;
    int rc = 0;
    if (tool_is_strict(tool)) {
        rc = in_order(x, NULL, tool, python_member, &members, err);
    } else {
        const uint32_t any = exprs_new_rule(x), key = expr_repeat(x, expr_set(x, word, 4), 1, ANSWER_KEY_MAX);
        exprs_define(x, any, keyword(x, key, json_any(x, ANY_VALUE)));
        members = listed(x, any);
    }
    *out = rc ? 0 : EXPR_SEQ(x, members, expr_text(x, ")", 1));
    return rc;
}
