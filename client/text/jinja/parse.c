/* Statements of a template, and the template itself. See jinja.h and jinja/ast.h. Expressions are in
 * jinja/parse_expr.c. */
#include "client/text/jinja/ast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

static bool parse_body(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list);

/* ---- what both parser files use */

struct jinja_node *jinja_parse_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *node = jinja_alloc(p->run, sizeof *node);
    if (!node) return NULL;
    node->kind = kind;
    node->line = p->run->line = p->token->line;
    return node;
}

bool jinja_parse_add(struct jinja_parser *p, struct jinja_nodes *list, struct jinja_node *node)
{
    if (!node || jinja_grow(p->run, &list->item, sizeof node, list->count, &list->space)) return false;
    list->item[list->count++] = node;
    return true;
}

bool jinja_parse_is_op(const struct jinja_parser *p, char op)
{
    return p->token->kind == JINJA_TOKEN_OPERATOR && p->token->op == op;
}

bool jinja_parse_is_name(const struct jinja_parser *p, const char *name)
{
    return p->token->kind == JINJA_TOKEN_NAME && p->token->length == strlen(name) &&
           memcmp(p->token->text, name, p->token->length) == 0;
}

bool jinja_parse_skip_op(struct jinja_parser *p, char op)
{
    bool found = jinja_parse_is_op(p, op);
    p->token += found;
    return found;
}

bool jinja_parse_skip_name(struct jinja_parser *p, const char *name)
{
    bool found = jinja_parse_is_name(p, name);
    p->token += found;
    return found;
}

bool jinja_parse_expect_op(struct jinja_parser *p, char op)
{
    char wanted[4] = {'\'', op, '\'', '\0'};
    return jinja_parse_skip_op(p, op) || jinja_parse_unexpected(p, wanted);
}

bool jinja_parse_unexpected(struct jinja_parser *p, const char *wanted)
{
    const struct jinja_token *token = p->token;
    char what[80], op[2];
    p->run->line = token->line;
    if (token->kind == JINJA_TOKEN_NAME)
        snprintf(what, sizeof what, "'%.*s'", (int)(token->length < 64 ? token->length : 64), token->text);
    else if (token->kind == JINJA_TOKEN_OPERATOR)
        snprintf(what, sizeof what, "'%s'", jinja_op_text(token->op, op));
    else
        snprintf(what, sizeof what, "%s",
                 token->kind == JINJA_TOKEN_STRING                                        ? "string"
                 : token->kind == JINJA_TOKEN_INTEGER || token->kind == JINJA_TOKEN_FLOAT ? "number"
                 : token->kind == JINJA_TOKEN_END ? "end of the template"
                                                  : "end of a tag");
    return !jinja_fail(p->run, HELM_E_FORMAT, "unexpected %s, expected %s", what, wanted);
}

bool jinja_parse_enter(struct jinja_parser *p)
{
    if (++p->depth <= JINJA_NESTING_MAX) return true;
    p->run->line = p->token->line;
    return !jinja_fail(p->run, HELM_E_LIMIT, "nested deeper than %d", JINJA_NESTING_MAX);
}

/* ---- statements: each is called with the token after the tag's name, and ends before or after its own %} as
 * its comment says */

static bool expect_block_end(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_TOKEN_BLOCK_END) return jinja_parse_unexpected(p, "'%}'");
    p->token++;
    return true;
}

/* %} body {% end... : leaves the end tag's name as the current token. */
static bool parse_block(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list)
{
    return expect_block_end(p) && parse_body(p, ends, list);
}

/* The same for a body with one possible end, whose name is consumed. */
static bool parse_whole(struct jinja_parser *p, const char *end, struct jinja_nodes *list)
{
    const char *const ends[] = {end, NULL};
    bool ok = parse_block(p, ends, list);
    p->token += ok;
    return ok;
}

static bool parse_if(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (bool last = false;;) {
        struct jinja_node *branch = jinja_parse_node(p, JINJA_NODE_BRANCH);
        if (!branch || (!last && !(branch->a = jinja_parse_tuple(p, false, NULL))) ||
            !parse_block(p, last ? ends + 2 : ends, &branch->list) ||
            !jinja_parse_add(p, &node->list, branch))
            return false;
        if (jinja_parse_skip_name(p, "endif")) return true;
        last = jinja_parse_is_name(p, "else");
        p->token++;
    }
}

static bool parse_for(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    node->a = jinja_parse_target(p, false);
    if (!node->a) return false;
    if (!jinja_parse_skip_name(p, "in")) return jinja_parse_unexpected(p, "'in'");
    node->b = jinja_parse_tuple(p, false, "recursive");
    if (!node->b) return false;
    if (jinja_parse_skip_name(p, "if") && !(node->c = jinja_parse_expression(p, true))) return false;
    if (jinja_parse_is_name(p, "recursive"))
        return !jinja_fail(p->run, HELM_E_UNSUPPORTED, "a recursive loop ('recursive')");
    p->loop_depth++;
    bool ok = parse_block(p, ends, &node->list);
    p->loop_depth--;
    if (!ok || jinja_parse_skip_name(p, "endfor")) return ok;
    p->token++;
    return parse_whole(p, "endfor", &node->other);
}

static bool parse_set(struct jinja_parser *p, struct jinja_node *node)
{
    node->a = jinja_parse_target(p, true);
    if (!node->a) return false;
    if (jinja_parse_skip_op(p, '=')) return (node->b = jinja_parse_tuple(p, true, NULL)) != NULL;
    node->kind = JINJA_NODE_SETBLOCK;
    if (jinja_parse_is_op(p, '|') &&
        !(node->b = jinja_parse_filters(p, jinja_parse_node(p, JINJA_NODE_PIPED), false)))
        return false;
    return parse_whole(p, "endset", &node->list);
}

static bool parse_filter_block(struct jinja_parser *p, struct jinja_node *node)
{
    node->b = jinja_parse_filters(p, jinja_parse_node(p, JINJA_NODE_PIPED), true);
    return node->b && parse_whole(p, "endfilter", &node->list);
}

static bool parse_with(struct jinja_parser *p, struct jinja_node *node)
{
    while (p->token->kind != JINJA_TOKEN_BLOCK_END) {
        if (node->other.count && !jinja_parse_expect_op(p, ',')) return false;
        if (!jinja_parse_add(p, &node->other, jinja_parse_target(p, false)) ||
            !jinja_parse_expect_op(p, '=') ||
            !jinja_parse_add(p, &node->other, jinja_parse_expression(p, true)))
            return false;
    }
    return parse_whole(p, "endwith", &node->list);
}

/* (a, b=1) */
static bool parse_signature(struct jinja_parser *p, struct jinja_node *node)
{
    node->args = jinja_alloc(p->run, sizeof *node->args);
    if (!node->args || !jinja_parse_expect_op(p, '(')) return false;
    while (!jinja_parse_is_op(p, ')')) {
        if (node->other.count && !jinja_parse_expect_op(p, ',')) return false;
        if (jinja_parse_is_op(p, ')')) break;
        if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, "a parameter's name");
        struct jinja_node *name = jinja_parse_node(p, JINJA_NODE_NAME);
        if (!jinja_parse_add(p, &node->other, name)) return false;
        name->value = jinja_text(p->token->text, p->token->length);
        p->token++;
        if (jinja_parse_skip_op(p, '=')) {
            if (!jinja_parse_add(p, &node->args->positional, jinja_parse_expression(p, true))) return false;
        } else if (node->args->positional.count) {
            return !jinja_fail(p->run, HELM_E_FORMAT,
                               "a parameter without a default follows one with a default");
        }
    }
    return jinja_parse_expect_op(p, ')');
}

static bool parse_macro_body(struct jinja_parser *p, struct jinja_node *node, const char *end)
{
    char outer = p->macro_uses;
    int loops = p->loop_depth;
    p->macro_uses = 0;
    p->loop_depth = 0;
    bool ok = parse_whole(p, end, &node->list);
    node->op = p->macro_uses;
    p->macro_uses = outer;
    p->loop_depth = loops;
    return ok;
}

static bool parse_macro(struct jinja_parser *p, struct jinja_node *node)
{
    if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, "the macro's name");
    node->value = jinja_text(p->token->text, p->token->length);
    p->token++;
    return parse_signature(p, node) && parse_macro_body(p, node, "endmacro");
}

static bool parse_call_block(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *body = node->b = jinja_parse_node(p, JINJA_NODE_MACRO);
    if (!body) return false;
    body->value = jinja_text("caller", 6);
    body->args = jinja_alloc(p->run, sizeof *body->args);
    if (!body->args || (jinja_parse_is_op(p, '(') && !parse_signature(p, body))) return false;
    node->a = jinja_parse_expression(p, true);
    if (!node->a) return false;
    if (node->a->kind != JINJA_NODE_CALL) return !jinja_fail(p->run, HELM_E_FORMAT, "'call' without a call");
    return parse_macro_body(p, body, "endcall");
}

static bool parse_jump(struct jinja_parser *p, struct jinja_node *node)
{
    return p->loop_depth || !jinja_fail(p->run, HELM_E_FORMAT, "'%s' outside a loop",
                                        node->kind == JINJA_NODE_BREAK ? "break" : "continue");
}

static bool parse_generation(struct jinja_parser *p, struct jinja_node *node)
{
    return parse_whole(p, "endgeneration", &node->list);
}

static const struct {
    const char *name;
    enum jinja_node_kind kind;
    bool (*parse)(struct jinja_parser *p, struct jinja_node *node);
} statements[] = {
    {"if", JINJA_NODE_IF, parse_if},
    {"for", JINJA_NODE_FOR, parse_for},
    {"set", JINJA_NODE_SET, parse_set},
    {"macro", JINJA_NODE_MACRO, parse_macro},
    {"call", JINJA_NODE_CALLBLOCK, parse_call_block},
    {"filter", JINJA_NODE_FILTERED, parse_filter_block},
    {"with", JINJA_NODE_WITH, parse_with},
    {"generation", JINJA_NODE_SCOPELESS, parse_generation},
    {"break", JINJA_NODE_BREAK, parse_jump},
    {"continue", JINJA_NODE_CONTINUE, parse_jump},
};

/* After {% : one statement with its end tag. */
static bool parse_statement(struct jinja_parser *p, struct jinja_nodes *list)
{
    static const char *const known[] = {"autoescape", "block",   "do",    "extends", "from",
                                        "import",     "include", "trans", "debug"};
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_IF);
    if (!node) return false;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jinja_parse_skip_name(p, statements[i].name)) continue;
        node->kind = statements[i].kind;
        bool ok = jinja_parse_enter(p) && statements[i].parse(p, node);
        p->depth--;
        return ok && jinja_parse_add(p, list, node) && expect_block_end(p);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_parse_is_name(p, known[i]))
            return !jinja_fail(p->run, HELM_E_UNSUPPORTED, "the tag '%s'", known[i]);
    return jinja_parse_unexpected(p, "a tag's name");
}

static bool at_end_tag(struct jinja_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (jinja_parse_is_name(p, *ends)) return true;
    return false;
}

/* Up to {% and one of `ends`, which becomes the current token; with no ends, up to the template's end. */
static bool parse_body(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list)
{
    uint32_t line = p->token->line;
    for (bool ok = true; ok;) {
        struct jinja_node *node;
        switch (p->token->kind) {
        case JINJA_TOKEN_DATA:
            node = jinja_parse_node(p, JINJA_NODE_DATA);
            ok = jinja_parse_add(p, list, node);
            if (ok) node->value = jinja_text(p->token->text, p->token->length);
            p->token++;
            break;
        case JINJA_TOKEN_PRINT_BEGIN:
            p->token++;
            node = jinja_parse_node(p, JINJA_NODE_PRINT);
            ok = jinja_parse_add(p, list, node) && (node->a = jinja_parse_tuple(p, true, NULL));
            if (ok && p->token->kind != JINJA_TOKEN_PRINT_END) ok = jinja_parse_unexpected(p, "'}}'");
            p->token++;
            break;
        case JINJA_TOKEN_BLOCK_BEGIN:
            p->token++;
            if (at_end_tag(p, ends)) return true;
            ok = parse_statement(p, list);
            break;
        default: /* JINJA_TOKEN_END: the lexer pairs all others */
            if (!*ends) return true;
            p->run->line = line;
            return !jinja_fail(p->run, HELM_E_FORMAT, "'%s' is missing", ends[0]);
        }
    }
    return false;
}

int jinja_parse(const char *text, size_t length, struct jinja_template **out, struct helm_err *err)
{
    static const char *const no_ends[] = {NULL};
    struct jinja_run run = {.err = err, .steps_max = UINT64_MAX, .output_max = JINJA_OUTPUT_BYTES_MAX};
    struct jinja_token *tokens;
    size_t count;
    *out = NULL;
    if (length > JINJA_TEMPLATE_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the template has %zu bytes, more than %u", length,
                         JINJA_TEMPLATE_BYTES_MAX);
    if (!utf8_is_valid(text, length)) return helm_fail(err, HELM_E_FORMAT, "the template is not UTF-8");
    struct jinja_template *template = calloc(1, sizeof *template);
    if (!template) return helm_fail(err, HELM_E_NOMEM, "no memory for the template");
    run.arena.bytes_max = JINJA_MEMORY_BYTES_MAX;
    int rc = jinja_lex(&run, text, length, &tokens, &count);
    if (!rc) {
        struct jinja_parser parser = {.run = &run, .token = tokens};
        rc = parse_body(&parser, no_ends, &template->body) ? 0 : run.code;
    }
    template->arena = run.arena;
    if (rc) {
        jinja_free(template);
        return rc;
    }
    *out = template;
    return 0;
}

void jinja_free(struct jinja_template *template)
{
    if (!template) return;
    jinja_arena_free(&template->arena);
    free(template);
}
