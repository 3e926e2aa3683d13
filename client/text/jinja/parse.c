/* Statements of a template, and the template itself. See jinja.h and jinja/ast.h. Expressions are in
 * jinja/parse_expr.c. */
#include "client/text/jinja/ast.h"

#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

static int parse_body(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list);

/* ---- what both parser files use */

struct jinja_node *jinja_parse_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *node = jinja_alloc(p->run, sizeof *node);
    if (!node) return NULL;
    node->kind = kind;
    node->line = p->run->line = p->token->line;
    return node;
}

int jinja_parse_add(struct jinja_parser *p, struct jinja_nodes *list, struct jinja_node *node)
{
    int rc = jinja_grow(p->run, &list->item, sizeof node, list->count, &list->space);
    if (!rc) list->item[list->count++] = node;
    return rc;
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

int jinja_parse_expect_op(struct jinja_parser *p, char op)
{
    char wanted[4] = {'\'', op, '\'', '\0'};
    return jinja_parse_skip_op(p, op) ? 0 : jinja_parse_unexpected(p, wanted);
}

int jinja_parse_unexpected(struct jinja_parser *p, const char *wanted)
{
    const struct jinja_token *token = p->token;
    char text[2];
    p->run->line = token->line;
    switch (token->kind) {
    case JINJA_TOKEN_NAME:
        return jinja_fail(p->run, HELM_E_FORMAT, "unexpected '%.*s', expected %s",
                          (int)(token->length < 64 ? token->length : 64), token->text, wanted);
    case JINJA_TOKEN_OPERATOR:
        return jinja_fail(p->run, HELM_E_FORMAT, "unexpected '%s', expected %s",
                          jinja_op_text(token->op, text), wanted);
    case JINJA_TOKEN_STRING:
        return jinja_fail(p->run, HELM_E_FORMAT, "unexpected string, expected %s", wanted);
    case JINJA_TOKEN_INTEGER:
    case JINJA_TOKEN_FLOAT:
        return jinja_fail(p->run, HELM_E_FORMAT, "unexpected number, expected %s", wanted);
    default:
        return jinja_fail(p->run, HELM_E_FORMAT, "unexpected end of %s, expected %s",
                          token->kind == JINJA_TOKEN_END ? "the template" : "a tag", wanted);
    }
}

int jinja_parse_enter(struct jinja_parser *p)
{
    if (++p->depth <= JINJA_NESTING_MAX) return 0;
    p->run->line = p->token->line;
    return jinja_fail(p->run, HELM_E_LIMIT, "nested deeper than %d", JINJA_NESTING_MAX);
}

/* ---- statements: each is called with the token after the tag's name, and ends before or after its own %} as
 * its comment says */

static int expect_block_end(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_TOKEN_BLOCK_END) return jinja_parse_unexpected(p, "'%}'");
    p->token++;
    return 0;
}

/* %} body {% end... : leaves the end tag's name as the current token. */
static int parse_block(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list)
{
    int rc = expect_block_end(p);
    return rc ? rc : parse_body(p, ends, list);
}

/* The same for a body with one possible end, whose name is consumed. */
static int parse_whole(struct jinja_parser *p, const char *end, struct jinja_nodes *list)
{
    const char *const ends[] = {end, NULL};
    int rc = parse_block(p, ends, list);
    p->token += !rc;
    return rc;
}

static int parse_if(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (bool last = false;;) {
        struct jinja_node *branch = jinja_parse_node(p, JINJA_NODE_BRANCH);
        if (!branch) return p->run->code;
        int rc = last ? 0 : jinja_parse_tuple(p, false, NULL, &branch->a);
        if (!rc) rc = parse_block(p, last ? ends + 2 : ends, &branch->list);
        if (!rc) rc = jinja_parse_add(p, &node->list, branch);
        if (rc) return rc;
        if (jinja_parse_skip_name(p, "endif")) return 0;
        last = jinja_parse_is_name(p, "else");
        p->token++;
    }
}

static int parse_for(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    int rc = jinja_parse_target(p, false, &node->a);
    if (rc) return rc;
    if (!jinja_parse_skip_name(p, "in")) return jinja_parse_unexpected(p, "'in'");
    rc = jinja_parse_tuple(p, false, "recursive", &node->b);
    if (!rc && jinja_parse_skip_name(p, "if")) rc = jinja_parse_expression(p, true, &node->c);
    if (rc) return rc;
    if (jinja_parse_is_name(p, "recursive"))
        return jinja_fail(p->run, HELM_E_UNSUPPORTED, "a recursive loop ('recursive')");
    p->loop_depth++;
    rc = parse_block(p, ends, &node->list);
    p->loop_depth--;
    if (rc || jinja_parse_skip_name(p, "endfor")) return rc;
    p->token++;
    return parse_whole(p, "endfor", &node->other);
}

static int parse_set(struct jinja_parser *p, struct jinja_node *node)
{
    int rc = jinja_parse_target(p, true, &node->a);
    if (rc) return rc;
    if (jinja_parse_skip_op(p, '=')) return jinja_parse_tuple(p, true, NULL, &node->b);
    node->kind = JINJA_NODE_SETBLOCK;
    if (jinja_parse_is_op(p, '|')) {
        struct jinja_node *piped = jinja_parse_node(p, JINJA_NODE_PIPED);
        if (!piped) return p->run->code;
        rc = jinja_parse_filters(p, piped, false, &node->b);
    }
    return rc ? rc : parse_whole(p, "endset", &node->list);
}

static int parse_filter_block(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *piped = jinja_parse_node(p, JINJA_NODE_PIPED);
    if (!piped) return p->run->code;
    int rc = jinja_parse_filters(p, piped, true, &node->b);
    return rc ? rc : parse_whole(p, "endfilter", &node->list);
}

static int parse_with(struct jinja_parser *p, struct jinja_node *node)
{
    while (p->token->kind != JINJA_TOKEN_BLOCK_END) {
        struct jinja_node *target, *value;
        int rc = node->other.count ? jinja_parse_expect_op(p, ',') : 0;
        if (!rc) rc = jinja_parse_target(p, false, &target);
        if (!rc) rc = jinja_parse_expect_op(p, '=');
        if (!rc) rc = jinja_parse_expression(p, true, &value);
        if (!rc) rc = jinja_parse_add(p, &node->other, target);
        if (!rc) rc = jinja_parse_add(p, &node->other, value);
        if (rc) return rc;
    }
    return parse_whole(p, "endwith", &node->list);
}

/* (a, b=1) */
static int parse_signature(struct jinja_parser *p, struct jinja_node *node)
{
    int rc = jinja_parse_expect_op(p, '(');
    node->args = jinja_alloc(p->run, sizeof *node->args);
    if (!node->args) return p->run->code;
    while (!rc && !jinja_parse_is_op(p, ')')) {
        struct jinja_node *name, *value;
        if (node->other.count) rc = jinja_parse_expect_op(p, ',');
        if (rc || jinja_parse_is_op(p, ')')) break;
        if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, "a parameter's name");
        name = jinja_parse_node(p, JINJA_NODE_NAME);
        if (!name) return p->run->code;
        name->value = jinja_text(p->token->text, p->token->length);
        p->token++;
        rc = jinja_parse_add(p, &node->other, name);
        if (rc) break;
        if (jinja_parse_skip_op(p, '=')) {
            rc = jinja_parse_expression(p, true, &value);
            if (!rc) rc = jinja_parse_add(p, &node->args->positional, value);
        } else if (node->args->positional.count) {
            return jinja_fail(p->run, HELM_E_FORMAT,
                              "a parameter without a default follows one with a default");
        }
    }
    return rc ? rc : jinja_parse_expect_op(p, ')');
}

static int parse_macro_body(struct jinja_parser *p, struct jinja_node *node, const char *end)
{
    char outer = p->macro_uses;
    int loops = p->loop_depth;
    p->macro_uses = 0;
    p->loop_depth = 0;
    int rc = parse_whole(p, end, &node->list);
    node->op = p->macro_uses;
    p->macro_uses = outer;
    p->loop_depth = loops;
    return rc;
}

static int parse_macro(struct jinja_parser *p, struct jinja_node *node)
{
    if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, "the macro's name");
    node->value = jinja_text(p->token->text, p->token->length);
    p->token++;
    int rc = parse_signature(p, node);
    return rc ? rc : parse_macro_body(p, node, "endmacro");
}

static int parse_call_block(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *body = node->b = jinja_parse_node(p, JINJA_NODE_MACRO);
    if (!body) return p->run->code;
    body->value = jinja_text("caller", 6);
    int rc = 0;
    if (jinja_parse_is_op(p, '(')) {
        rc = parse_signature(p, body);
    } else {
        body->args = jinja_alloc(p->run, sizeof *body->args);
        if (!body->args) return p->run->code;
    }
    if (!rc) rc = jinja_parse_expression(p, true, &node->a);
    if (rc) return rc;
    if (node->a->kind != JINJA_NODE_CALL) return jinja_fail(p->run, HELM_E_FORMAT, "'call' without a call");
    return parse_macro_body(p, body, "endcall");
}

static int parse_jump(struct jinja_parser *p, struct jinja_node *node)
{
    if (p->loop_depth) return 0;
    return jinja_fail(p->run, HELM_E_FORMAT, "'%s' outside a loop",
                      node->kind == JINJA_NODE_BREAK ? "break" : "continue");
}

static int parse_generation(struct jinja_parser *p, struct jinja_node *node)
{
    return parse_whole(p, "endgeneration", &node->list);
}

static const struct {
    const char *name;
    enum jinja_node_kind kind;
    int (*parse)(struct jinja_parser *p, struct jinja_node *node);
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
static int parse_statement(struct jinja_parser *p, struct jinja_nodes *list)
{
    static const char *const known[] = {"autoescape", "block",   "do",    "extends", "from",
                                        "import",     "include", "trans", "debug"};
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_IF);
    if (!node) return p->run->code;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jinja_parse_skip_name(p, statements[i].name)) continue;
        node->kind = statements[i].kind;
        int rc = jinja_parse_enter(p);
        if (!rc) rc = statements[i].parse(p, node);
        p->depth--;
        if (!rc) rc = jinja_parse_add(p, list, node);
        return rc ? rc : expect_block_end(p);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_parse_is_name(p, known[i]))
            return jinja_fail(p->run, HELM_E_UNSUPPORTED, "the tag '%s'", known[i]);
    return jinja_parse_unexpected(p, "a tag's name");
}

static bool at_end_tag(struct jinja_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (jinja_parse_is_name(p, *ends)) return true;
    return false;
}

/* Up to {% and one of `ends`, which becomes the current token; with no ends, up to the template's end. */
static int parse_body(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list)
{
    uint32_t line = p->token->line;
    for (int rc = 0; !rc;) {
        struct jinja_node *node;
        switch (p->token->kind) {
        case JINJA_TOKEN_DATA:
            node = jinja_parse_node(p, JINJA_NODE_DATA);
            if (!node) return p->run->code;
            node->value = jinja_text(p->token->text, p->token->length);
            p->token++;
            rc = jinja_parse_add(p, list, node);
            break;
        case JINJA_TOKEN_PRINT_BEGIN:
            p->token++;
            node = jinja_parse_node(p, JINJA_NODE_PRINT);
            if (!node) return p->run->code;
            rc = jinja_parse_tuple(p, true, NULL, &node->a);
            if (!rc && p->token->kind != JINJA_TOKEN_PRINT_END) rc = jinja_parse_unexpected(p, "'}}'");
            if (!rc) rc = jinja_parse_add(p, list, node);
            p->token++;
            break;
        case JINJA_TOKEN_BLOCK_BEGIN:
            p->token++;
            if (at_end_tag(p, ends)) return 0;
            rc = parse_statement(p, list);
            break;
        default: /* JINJA_TOKEN_END: the lexer pairs all others */
            if (!*ends) return 0;
            p->run->line = line;
            return jinja_fail(p->run, HELM_E_FORMAT, "'%s' is missing", ends[0]);
        }
        if (rc) return rc;
    }
    return 0;
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
    if (!jinja_utf8_valid(text, length)) return helm_fail(err, HELM_E_FORMAT, "the template is not UTF-8");
    struct jinja_template *template = calloc(1, sizeof *template);
    if (!template) return helm_fail(err, HELM_E_NOMEM, "no memory for the template");
    run.arena.bytes_max = JINJA_MEMORY_BYTES_MAX;
    int rc = jinja_lex(&run, text, length, &tokens, &count);
    if (!rc) {
        struct jinja_parser parser = {.run = &run, .token = tokens};
        rc = parse_body(&parser, no_ends, &template->body);
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
