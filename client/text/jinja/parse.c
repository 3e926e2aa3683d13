/* Statements of a template, and the template itself. See jinja.h and jinja/ast.h. Expressions are in
 * jinja/parse_expr.c. */
#include "client/text/jinja/ast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

static void parse_body(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list);

/* ---- what both parser files use */

struct jinja_node *jinja_parse_node(struct jinja_parser *p, enum jinja_node_kind kind)
{
    struct jinja_node *node = jinja_alloc(p->run, sizeof *node);
    node->kind = kind;
    node->line = p->run->line = p->token->line;
    return node;
}

void jinja_parse_add(struct jinja_parser *p, struct jinja_nodes *list, struct jinja_node *node)
{
    jinja_grow(p->run, &list->item, sizeof node, list->count, &list->space);
    list->item[list->count++] = node;
}

struct jinja_value jinja_parse_token(struct jinja_parser *p)
{
    const struct jinja_token *token = p->token++;
    return jinja_text(token->text, token->length);
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

void jinja_parse_expect_op(struct jinja_parser *p, char op)
{
    char wanted[4] = {'\'', op, '\'', '\0'};
    if (!jinja_parse_skip_op(p, op)) jinja_parse_unexpected(p, wanted);
}

void jinja_parse_unexpected(struct jinja_parser *p, const char *wanted)
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
    jinja_fail(p->run, HELM_E_FORMAT, "unexpected %s, expected %s", what, wanted);
}

void jinja_parse_enter(struct jinja_parser *p)
{
    if (++p->depth <= JINJA_NESTING_MAX) return;
    p->run->line = p->token->line;
    jinja_fail(p->run, HELM_E_LIMIT, "nested deeper than %d", JINJA_NESTING_MAX);
}

/* ---- statements: each is called with the token after the tag's name, and ends before or after its own %} as
 * its comment says */

static void expect_block_end(struct jinja_parser *p)
{
    if (p->token->kind != JINJA_TOKEN_BLOCK_END) jinja_parse_unexpected(p, "'%}'");
    p->token++;
}

/* %} body {% end... : leaves the end tag's name as the current token. */
static void parse_block(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list)
{
    expect_block_end(p);
    parse_body(p, ends, list);
}

/* The same for a body with one possible end, whose name is consumed. */
static void parse_whole(struct jinja_parser *p, const char *end, struct jinja_nodes *list)
{
    const char *const ends[] = {end, NULL};
    parse_block(p, ends, list);
    p->token++;
}

static void parse_if(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (bool last = false;;) {
        struct jinja_node *branch = jinja_parse_node(p, JINJA_NODE_BRANCH);
        if (!last) branch->a = jinja_parse_tuple(p, false, NULL);
        parse_block(p, last ? ends + 2 : ends, &branch->list);
        jinja_parse_add(p, &node->list, branch);
        if (jinja_parse_skip_name(p, "endif")) return;
        last = jinja_parse_is_name(p, "else");
        p->token++;
    }
}

static void parse_for(struct jinja_parser *p, struct jinja_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    node->a = jinja_parse_target(p, false);
    if (!jinja_parse_skip_name(p, "in")) jinja_parse_unexpected(p, "'in'");
    node->b = jinja_parse_tuple(p, false, "recursive");
    if (jinja_parse_skip_name(p, "if")) node->c = jinja_parse_expression(p, true);
    if (jinja_parse_is_name(p, "recursive"))
        jinja_fail(p->run, HELM_E_UNSUPPORTED, "a recursive loop ('recursive')");
    p->loop_depth++;
    parse_block(p, ends, &node->list);
    p->loop_depth--;
    if (jinja_parse_skip_name(p, "endfor")) return;
    p->token++;
    parse_whole(p, "endfor", &node->other);
}

static void parse_set(struct jinja_parser *p, struct jinja_node *node)
{
    node->a = jinja_parse_target(p, true);
    if (jinja_parse_skip_op(p, '=')) {
        node->b = jinja_parse_tuple(p, true, NULL);
        return;
    }
    node->kind = JINJA_NODE_SETBLOCK;
    if (jinja_parse_is_op(p, '|'))
        node->b = jinja_parse_filters(p, jinja_parse_node(p, JINJA_NODE_PIPED), false);
    parse_whole(p, "endset", &node->list);
}

static void parse_filter_block(struct jinja_parser *p, struct jinja_node *node)
{
    node->b = jinja_parse_filters(p, jinja_parse_node(p, JINJA_NODE_PIPED), true);
    parse_whole(p, "endfilter", &node->list);
}

static void parse_with(struct jinja_parser *p, struct jinja_node *node)
{
    while (p->token->kind != JINJA_TOKEN_BLOCK_END) {
        if (node->other.count) jinja_parse_expect_op(p, ',');
        jinja_parse_add(p, &node->other, jinja_parse_target(p, false));
        jinja_parse_expect_op(p, '=');
        jinja_parse_add(p, &node->other, jinja_parse_expression(p, true));
    }
    parse_whole(p, "endwith", &node->list);
}

/* (a, b=1) */
static void parse_signature(struct jinja_parser *p, struct jinja_node *node)
{
    jinja_parse_expect_op(p, '(');
    while (!jinja_parse_is_op(p, ')')) {
        if (node->other.count) jinja_parse_expect_op(p, ',');
        if (jinja_parse_is_op(p, ')')) break;
        if (p->token->kind != JINJA_TOKEN_NAME) jinja_parse_unexpected(p, "a parameter's name");
        struct jinja_node *name = jinja_parse_node(p, JINJA_NODE_NAME);
        jinja_parse_add(p, &node->other, name);
        name->value = jinja_parse_token(p);
        if (jinja_parse_skip_op(p, '='))
            jinja_parse_add(p, &node->args->positional, jinja_parse_expression(p, true));
        else if (node->args->positional.count)
            jinja_fail(p->run, HELM_E_FORMAT, "a parameter without a default follows one with a default");
    }
    jinja_parse_expect_op(p, ')');
}

static void parse_macro_body(struct jinja_parser *p, struct jinja_node *node, const char *end)
{
    char outer = p->macro_uses;
    int loops = p->loop_depth;
    p->macro_uses = 0;
    p->loop_depth = 0;
    parse_whole(p, end, &node->list);
    node->op = p->macro_uses;
    p->macro_uses = outer;
    p->loop_depth = loops;
}

static void parse_macro(struct jinja_parser *p, struct jinja_node *node)
{
    if (p->token->kind != JINJA_TOKEN_NAME) jinja_parse_unexpected(p, "the macro's name");
    node->value = jinja_parse_token(p);
    node->args = jinja_alloc(p->run, sizeof *node->args);
    parse_signature(p, node);
    parse_macro_body(p, node, "endmacro");
}

static void parse_call_block(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *body = node->b = jinja_parse_node(p, JINJA_NODE_MACRO);
    body->value = jinja_text("caller", 6);
    body->args = jinja_alloc(p->run, sizeof *body->args);
    if (jinja_parse_is_op(p, '(')) parse_signature(p, body);
    node->a = jinja_parse_expression(p, true);
    if (node->a->kind != JINJA_NODE_CALL) jinja_fail(p->run, HELM_E_FORMAT, "'call' without a call");
    parse_macro_body(p, body, "endcall");
}

static void parse_jump(struct jinja_parser *p, struct jinja_node *node)
{
    if (!p->loop_depth)
        jinja_fail(p->run, HELM_E_FORMAT, "'%s' outside a loop",
                   node->kind == JINJA_NODE_BREAK ? "break" : "continue");
}

static void parse_generation(struct jinja_parser *p, struct jinja_node *node)
{
    parse_whole(p, "endgeneration", &node->list);
}

static const struct {
    const char *name;
    enum jinja_node_kind kind;
    void (*parse)(struct jinja_parser *p, struct jinja_node *node);
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
static void parse_statement(struct jinja_parser *p, struct jinja_nodes *list)
{
    static const char *const known[] = {"autoescape", "block",   "do",    "extends", "from",
                                        "import",     "include", "trans", "debug"};
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_IF);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jinja_parse_skip_name(p, statements[i].name)) continue;
        node->kind = statements[i].kind;
        jinja_parse_enter(p);
        statements[i].parse(p, node);
        p->depth--;
        jinja_parse_add(p, list, node);
        expect_block_end(p);
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_parse_is_name(p, known[i]))
            jinja_fail(p->run, HELM_E_UNSUPPORTED, "the tag '%s'", known[i]);
    jinja_parse_unexpected(p, "a tag's name");
}

static bool at_end_tag(struct jinja_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (jinja_parse_is_name(p, *ends)) return true;
    return false;
}

/* Up to {% and one of `ends`, which becomes the current token; with no ends, up to the template's end. */
static void parse_body(struct jinja_parser *p, const char *const *ends, struct jinja_nodes *list)
{
    uint32_t line = p->token->line;
    for (;;) {
        struct jinja_node *node;
        switch (p->token->kind) {
        case JINJA_TOKEN_DATA:
            node = jinja_parse_node(p, JINJA_NODE_DATA);
            node->value = jinja_parse_token(p);
            jinja_parse_add(p, list, node);
            break;
        case JINJA_TOKEN_PRINT_BEGIN:
            p->token++;
            node = jinja_parse_node(p, JINJA_NODE_PRINT);
            jinja_parse_add(p, list, node);
            node->a = jinja_parse_tuple(p, true, NULL);
            if (p->token->kind != JINJA_TOKEN_PRINT_END) jinja_parse_unexpected(p, "'}}'");
            p->token++;
            break;
        case JINJA_TOKEN_BLOCK_BEGIN:
            p->token++;
            if (at_end_tag(p, ends)) return;
            parse_statement(p, list);
            break;
        default: /* JINJA_TOKEN_END: the lexer pairs all others */
            if (!*ends) return;
            p->run->line = line;
            jinja_fail(p->run, HELM_E_FORMAT, "'%s' is missing", ends[0]);
        }
    }
}

struct parsing {
    const char *text;
    size_t length;
    struct jinja_template *template;
};

static void parse_all(struct jinja_run *run, void *what)
{
    static const char *const no_ends[] = {NULL};
    struct parsing *parsing = what;
    struct jinja_parser parser = {.run = run, .token = jinja_lex(run, parsing->text, parsing->length)};
    parse_body(&parser, no_ends, &parsing->template->body);
}

int jinja_parse(const char *text, size_t length, struct jinja_template **out, struct helm_err *err)
{
    struct jinja_run run = {.err = err,
                            .steps_max = UINT64_MAX,
                            .output_max = JINJA_OUTPUT_BYTES_MAX,
                            .arena.bytes_max = JINJA_MEMORY_BYTES_MAX};
    struct parsing parsing = {.text = text, .length = length};
    *out = NULL;
    if (length > JINJA_TEMPLATE_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the template has %zu bytes, more than %u", length,
                         JINJA_TEMPLATE_BYTES_MAX);
    if (!utf8_is_valid(text, length)) return helm_fail(err, HELM_E_FORMAT, "the template is not UTF-8");
    parsing.template = calloc(1, sizeof *parsing.template);
    if (!parsing.template) return helm_fail(err, HELM_E_NOMEM, "no memory for the template");
    const int rc = jinja_try(&run, parse_all, &parsing);
    parsing.template->arena = run.arena;
    if (rc)
        jinja_free(parsing.template);
    else
        *out = parsing.template;
    return rc;
}

void jinja_free(struct jinja_template *template)
{
    if (!template) return;
    jinja_arena_free(&template->arena);
    free(template);
}
