/* Calls of tools as a grammar. See tool_grammar.h. */
#include "client/gateway/tool_grammar.h"

#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/schema.h"

static const char tag_open[] = "<tool_call>", tag_close[] = "</tool_call>", list_open[] = "[TOOL_CALLS]",
                  arguments_open[] = "[ARGS]";

static uint32_t text(struct exprs *x, const char *s)
{
    return expr_text(x, s, strlen(s));
}

static uint32_t any_text(struct exprs *x)
{
    return expr_repeat(x, expr_set(x, &(struct expr_range){0, EXPR_CHAR_MAX}, 1), 0, EXPR_UNBOUNDED);
}

uint32_t tool_grammar_blanks(struct exprs *x)
{
    static const struct expr_range blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    return expr_repeat(x, expr_set(x, blanks, 3), 0, 4);
}

static bool is_special(const struct helm_tokenizer *tokenizer, const char *marker, uint32_t *id)
{
    *id = helm_tokenizer_token_to_id(tokenizer, marker, strlen(marker));
    return *id != HELM_TOKENIZER_NO_ID && helm_tokenizer_is_special(tokenizer, *id);
}

uint32_t tool_grammar_marker(struct exprs *x, const struct helm_tokenizer *tokenizer, const char *marker)
{
    uint32_t id;
    return is_special(tokenizer, marker, &id) ? expr_token(x, id) : text(x, marker);
}

uint32_t tool_grammar_until(struct exprs *x, const struct helm_tokenizer *tokenizer, const char *marker)
{
    uint32_t id;
    if (!is_special(tokenizer, marker, &id)) return expr_until(x, marker);
    return expr_add(x, expr_add(x, expr_seq(x), any_text(x)), expr_token(x, id));
}

static uint32_t without(struct exprs *x, const struct helm_tokenizer *tokenizer, const char *marker)
{
    uint32_t id;
    return is_special(tokenizer, marker, &id) ? any_text(x) : expr_without(x, marker);
}

static bool is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
}

bool tool_grammar_is_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (is_strict(json_array_get(tools, i))) return true;
    return false;
}

/* ---- one call ---- */

static int arguments_of(struct exprs *x, const json_t *tool, uint32_t *out, struct helm_err *err)
{
    const json_t *function = json_object_get(tool, "function"),
                 *parameters = json_object_get(function, "parameters");
    if (!is_strict(tool) || !parameters || json_is_null(parameters)) {
        *out = schema_any_object(x);
        if (!is_strict(tool)) return 0;
        *out = text(x, "{}"); /* it takes none */
        return 0;
    }
    const int rc = schema_compile(x, parameters, out, err);
    return rc ? helm_err_prefix(err, "tool '%.64s'", json_string_value(json_object_get(function, "name")))
              : 0;
}

/* {"name": "NAME", "KEY": ARGUMENTS}, or NAME[ARGS]ARGUMENTS. */
static int one_call(struct exprs *x, const struct tool_wish *w, const json_t *tool, bool named, uint32_t *out,
                    struct helm_err *err)
{
    const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
    const char *key = w->style == TOOLS_OBJECT ? "\"parameters\":" : "\"arguments\":";
    uint32_t arguments, seq = expr_seq(x);
    const int rc = arguments_of(x, tool, &arguments, err);
    if (rc) return rc;
    if (named) {
        expr_add(x, seq, text(x, name));
        expr_add(x, seq, tool_grammar_marker(x, w->tokenizer, arguments_open));
        *out = expr_add(x, seq, arguments);
        return 0;
    }
    const uint32_t parts[] = {text(x, "{"),    schema_space(x), text(x, "\"name\":"),
                              schema_space(x), text(x, "\""),   json_text_of(x, name, strlen(name)),
                              text(x, "\","),  schema_space(x), text(x, key),
                              schema_space(x), arguments,       schema_space(x),
                              text(x, "}")};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) expr_add(x, seq, parts[i]);
    *out = seq;
    return 0;
}

/* A rule: any of the tools that may be called. */
static int any_call(struct exprs *x, const struct tool_wish *w, bool named, uint32_t *rule,
                    struct helm_err *err)
{
    const uint32_t alt = expr_alt(x);
    *rule = exprs_new_rule(x);
    for (size_t i = 0; i < json_array_size(w->tools); i++) {
        const json_t *tool = json_array_get(w->tools, i);
        const char *name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        uint32_t call;
        if (w->only && strcmp(name, w->only) != 0) continue;
        const int rc = one_call(x, w, tool, named, &call, err);
        if (rc) return rc;
        expr_add(x, alt, call);
    }
    exprs_define(x, *rule, alt);
    return 0;
}

/* ---- the styles ---- */

static uint32_t seq3(struct exprs *x, uint32_t a, uint32_t b, uint32_t c)
{
    return expr_add(x, expr_add(x, expr_add(x, expr_seq(x), a), b), c);
}

/* `first`, then more of them divided by `between`, unless there is to be one. */
static uint32_t several(struct exprs *x, const struct tool_wish *w, uint32_t rule, uint32_t between)
{
    const uint32_t first = expr_rule(x, rule);
    if (w->one) return first;
    const uint32_t more = expr_add(x, expr_add(x, expr_seq(x), between), expr_rule(x, rule));
    const uint32_t seq = expr_add(x, expr_seq(x), first);
    return expr_add(x, seq, expr_repeat(x, more, 0, TOOL_CALLS_MAX - 1));
}

static uint32_t as_rule(struct exprs *x, uint32_t e)
{
    const uint32_t rule = exprs_new_rule(x);
    exprs_define(x, rule, e);
    return rule;
}

/* Mistral's tokenizers of the later kind have a token for what stands behind a name. */
static bool is_named(const struct tool_wish *w)
{
    return w->style == TOOLS_LISTED &&
           helm_tokenizer_token_to_id(w->tokenizer, arguments_open, strlen(arguments_open)) !=
               HELM_TOKENIZER_NO_ID;
}

/* What follows the marker of a call, or of a list of them. */
static uint32_t behind_marker(struct exprs *x, const struct tool_wish *w, uint32_t call)
{
    if (w->style == TOOLS_TAGGED)
        return seq3(x, schema_space(x), expr_rule(x, call),
                    expr_add(x, expr_add(x, expr_seq(x), schema_space(x)),
                             tool_grammar_marker(x, w->tokenizer, tag_close)));
    if (is_named(w)) return expr_rule(x, call);
    const uint32_t comma = expr_add(x, expr_add(x, expr_seq(x), text(x, ",")), schema_space(x));
    return seq3(x, expr_add(x, expr_add(x, expr_seq(x), schema_space(x)), text(x, "[")),
                several(x, w, call, comma), text(x, "]"));
}

int tool_grammar_calls(struct exprs *x, const struct tool_wish *w, uint32_t *out, struct helm_err *err)
{
    const bool named = is_named(w);
    uint32_t call;
    int rc = any_call(x, w, named, &call, err);
    if (rc) return rc;
    if (w->style == TOOLS_OBJECT) {
        *out = several(x, w, call, text(x, "; "));
        return 0;
    }
    const char *marker = w->style == TOOLS_TAGGED ? tag_open : list_open;
    const uint32_t marked =
        as_rule(x, expr_add(x, expr_add(x, expr_seq(x), tool_grammar_marker(x, w->tokenizer, marker)),
                            behind_marker(x, w, call)));
    *out = w->style == TOOLS_TAGGED || named
               ? several(x, w, marked, w->style == TOOLS_TAGGED ? schema_space(x) : expr_seq(x))
               : expr_rule(x, marked);
    return 0;
}

int tool_grammar_free(struct exprs *x, const struct tool_wish *w, uint32_t *out, struct helm_err *err)
{
    const uint32_t alt = expr_alt(x);
    uint32_t call;
    int rc = any_call(x, w, is_named(w), &call, err);
    if (rc) return rc;
    if (w->style == TOOLS_OBJECT) { /* what does not begin like a call is text */
        static const struct expr_range begins[] = {{'\t', '\r'}, {' ', ' '}, {'{', '{'}};
        struct expr_range others[5];
        const uint32_t n = ranges_invert(begins, 3, others);
        expr_add(x, alt, several(x, w, call, text(x, "; ")));
        expr_add(x, alt, expr_add(x, expr_add(x, expr_seq(x), expr_set(x, others, n)), any_text(x)));
        *out = alt;
        return 0;
    }
    const char *marker = w->style == TOOLS_TAGGED ? tag_open : list_open;
    const uint32_t marked = expr_add(x, expr_add(x, expr_seq(x), tool_grammar_until(x, w->tokenizer, marker)),
                                     behind_marker(x, w, call));
    const uint32_t calls = expr_repeat(x, marked, 0, w->one ? 1 : TOOL_CALLS_MAX);
    *out = expr_add(x, expr_add(x, expr_seq(x), calls), without(x, w->tokenizer, marker));
    return 0;
}
