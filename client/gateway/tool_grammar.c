/* Calls of tools as a grammar. See tool_grammar.h. */
#include "client/gateway/tool_grammar.h"

#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/schema.h"

static const char arguments_open[] = "[ARGS]";

static uint32_t marker(struct exprs *x, const struct tool_wish *w, const char *s)
{
    return s ? markers_text(x, w->tokenizer, s) : expr_seq(x);
}

const char *tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

bool tool_is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
}

/* ---- one call ---- */

static int json_arguments(struct exprs *x, const json_t *tool, uint32_t *out, struct helm_err *err)
{
    const json_t *function = json_object_get(tool, "function"),
                 *parameters = json_object_get(function, "parameters");
    if (!tool_is_strict(tool) || !parameters || json_is_null(parameters)) {
        *out = tool_is_strict(tool) ? expr_string(x, "{}") /* it takes none */ : json_any(x, ANY_OBJECT);
        return 0;
    }
    const int rc = schema_compile(x, parameters, out, err);
    return rc ? helm_err_prefix(err, "tool '%.64s'", json_string_value(json_object_get(function, "name")))
              : 0;
}

static int arguments_of(struct exprs *x, const struct tool_wish *w, const json_t *tool, uint32_t *out,
                        struct helm_err *err)
{
    switch (w->syntax->form) {
    case CALL_PARAMETERS:
        return tool_arguments_parameters(x, w, tool, out, err);
    case CALL_BARE:
        return tool_arguments_bare(x, w, tool, out, err);
    case CALL_PYTHON:
        return tool_arguments_python(x, tool, out, err);
    default:
        return json_arguments(x, tool, out, err);
    }
}

/* Mistral's tokenizers of the later kind have a token for what stands after a name. */
static bool is_divided(const struct tool_wish *w)
{
    return w->syntax->form == CALL_LISTED &&
           helm_tokenizer_token_to_id(w->tokenizer, arguments_open, strlen(arguments_open)) !=
               HELM_TOKENIZER_NO_ID;
}

/* {"name": "NAME", "KEY": ARGUMENTS} */
static uint32_t object_call(struct exprs *x, const struct tool_wish *w, const char *name, uint32_t arguments)
{
    const char *key = w->syntax->key;
    return json_form(x, "{ \"name\": \"$\", \"$\": $ }", json_text_of(x, name, strlen(name)),
                     json_text_of(x, key, strlen(key)), arguments);
}

/* A name between its markers, then the arguments. */
static uint32_t named_call(struct exprs *x, const struct tool_wish *w, const char *name, uint32_t arguments)
{
    static const struct expr_range digit = {'0', '9'};
    const struct call_syntax *s = w->syntax;
    const bool bare = s->form == CALL_BARE;
    const uint32_t before = s->counted ? expr_string(x, "functions.") : expr_seq(x);
    const uint32_t after =
        s->counted ? EXPR_SEQ(x, expr_string(x, ":"), expr_repeat(x, expr_set(x, &digit, 1), 1, 2))
                   : expr_seq(x);
    const uint32_t end = bare ? expr_seq(x) : marker(x, w, s->name_end); /* a brace is the object's own */
    const uint32_t tag = s->tags ? expr_string(x, ">") : expr_seq(x);
    const uint32_t space = s->form == CALL_NAMED || bare ? expr_seq(x) : markers_blanks(x);
    const uint32_t close =
        s->call_close && !bare ? json_form(x, " $", marker(x, w, s->call_close)) : expr_seq(x);
    return EXPR_SEQ(x, marker(x, w, s->call_open), before, expr_string(x, name), after, end, tag, space,
                    arguments, close);
}

static int one_call(struct exprs *x, const struct tool_wish *w, const json_t *tool, uint32_t *out,
                    struct helm_err *err)
{
    const char *name = tool_name(tool);
    uint32_t arguments;
    const int rc = arguments_of(x, w, tool, &arguments, err);
    if (rc) return rc;
    switch (w->syntax->form) {
    case CALL_OBJECT:
    case CALL_WHOLE:
        *out = object_call(x, w, name, arguments);
        break;
    case CALL_LISTED:
        *out = is_divided(w) ? EXPR_SEQ(x, expr_string(x, name), marker(x, w, arguments_open), arguments)
                             : object_call(x, w, name, arguments);
        break;
    case CALL_CHANNEL:
        *out = EXPR_SEQ(x, marker(x, w, HARMONY_CHANNEL "commentary to=functions."), expr_string(x, name),
                        marker(x, w, " <|constrain|>json" HARMONY_MESSAGE), arguments);
        break;
    default:
        *out = named_call(x, w, name, arguments);
    }
    return 0;
}

/* A rule: any of the tools that may be called. */
static int any_call(struct exprs *x, const struct tool_wish *w, uint32_t *rule, struct helm_err *err)
{
    const uint32_t alt = expr_alt(x);
    *rule = exprs_new_rule(x);
    for (size_t i = 0; i < json_array_size(w->tools); i++) {
        const json_t *tool = json_array_get(w->tools, i);
        const char *name = tool_name(tool);
        uint32_t call;
        if (w->only && strcmp(name, w->only) != 0) continue;
        const int rc = one_call(x, w, tool, &call, err);
        if (rc) return rc;
        expr_add(x, alt, call);
    }
    exprs_define(x, *rule, alt);
    return x->failed ? helm_fail(err, x->failed, "%s", x->err.text) : 0;
}

/* ---- calls between their markers ---- */

/* `first`, then more of them divided by `between`, unless there is to be one. */
static uint32_t several(struct exprs *x, const struct tool_wish *w, uint32_t rule, uint32_t between)
{
    const uint32_t first = expr_rule(x, rule);
    if (w->one) return first;
    const uint32_t more = EXPR_SEQ(x, between, expr_rule(x, rule));
    return EXPR_SEQ(x, first, expr_repeat(x, more, 0, ANSWER_CALLS_MAX - 1));
}

static uint32_t as_rule(struct exprs *x, uint32_t e)
{
    const uint32_t rule = exprs_new_rule(x);
    exprs_define(x, rule, e);
    return rule;
}

/* The expression after the marker of a call, or of a list of them. */
static uint32_t after_marker(struct exprs *x, const struct tool_wish *w, uint32_t call)
{
    const struct call_syntax *s = w->syntax;
    if (is_divided(w)) return expr_rule(x, call);
    if (s->form == CALL_LISTED) {
        const uint32_t end = s->close && !s->may_end ? marker(x, w, s->close) : expr_seq(x);
        return json_form(x, " [$]$", several(x, w, call, json_form(x, ", ")), end);
    }
    /* one pair of markers around several calls */
    const bool shared = (s->call_open && s->begins) || s->form == CALL_PYTHON;
    const uint32_t calls = shared ? several(x, w, call, json_any(x, ANY_SPACE)) : expr_rule(x, call);
    return json_form(x, " $ $", calls, marker(x, w, s->close));
}

/* The whole answer is calls, or a channel is. */
static uint32_t unmarked(struct exprs *x, const struct tool_wish *w, uint32_t call)
{
    const enum call_form form = w->syntax->form;
    return form == CALL_WHOLE   ? several(x, w, call, expr_string(x, "; "))
           : form == CALL_LINED ? EXPR_SEQ(x, markers_blanks(x), expr_rule(x, call))
                                : expr_rule(x, call);
}

int tool_grammar_calls(struct exprs *x, const struct tool_wish *w, uint32_t *out, struct helm_err *err)
{
    const struct call_syntax *s = w->syntax;
    uint32_t call;
    int rc = any_call(x, w, &call, err);
    if (rc) return rc;
    if (!s->open) {
        *out = unmarked(x, w, call);
        return 0;
    }
    const uint32_t marked = as_rule(x, EXPR_SEQ(x, marker(x, w, s->open), after_marker(x, w, call)));
    const bool list = s->form == CALL_LISTED && !is_divided(w);
    *out = list ? expr_rule(x, marked)
                : several(x, w, marked, is_divided(w) ? expr_seq(x) : json_any(x, ANY_SPACE));
    return 0;
}

/* Text whose second line does not begin with an object: its first may be a tool's name. */
static uint32_t text_of_lines(struct exprs *x, const struct expr_range *others, uint32_t n)
{
    static const struct expr_range in_line[] = {{0, '\n' - 1}, {'\n' + 1, EXPR_CHAR_MAX}};
    const uint32_t line = expr_repeat(x, expr_set(x, in_line, 2), 0, EXPR_UNBOUNDED);
    const uint32_t more =
        EXPR_SEQ(x, expr_string(x, "\n"), markers_blanks(x), expr_set(x, others, n), markers_any(x));
    return EXPR_SEQ(x, markers_blanks(x), expr_set(x, others, n), line, expr_repeat(x, more, 0, 1));
}

int tool_grammar_free(struct exprs *x, const struct tool_wish *w, uint32_t *out, struct helm_err *err)
{
    static const struct expr_range begins[] = {{'\t', '\r'}, {' ', ' '}, {'{', '{'}};
    const struct call_syntax *s = w->syntax;
    const uint32_t alt = expr_alt(x);
    uint32_t call;
    int rc = any_call(x, w, &call, err);
    if (rc) return rc;
    if (!s->open) { /* text does not begin like a call */
        struct expr_range others[5];
        const uint32_t n = ranges_invert(begins, 3, others);
        expr_add(x, alt, unmarked(x, w, call));
        if (s->form == CALL_CHANNEL)
            expr_add(x, alt, EXPR_SEQ(x, markers_header(x, w->tokenizer, "final"), markers_any(x)));
        else if (s->form == CALL_LINED)
            expr_add(x, alt, text_of_lines(x, others, n));
        else
            expr_add(x, alt, EXPR_SEQ(x, expr_set(x, others, n), markers_any(x)));
        *out = alt;
        return 0;
    }
    const uint32_t marked = EXPR_SEQ(x, markers_until(x, w->tokenizer, s->open), after_marker(x, w, call));
    const uint32_t calls = expr_repeat(x, marked, 0, w->one ? 1 : ANSWER_CALLS_MAX);
    *out = EXPR_SEQ(x, calls, markers_without(x, w->tokenizer, s->open));
    return x->failed ? helm_fail(err, x->failed, "%s", x->err.text) : 0;
}
