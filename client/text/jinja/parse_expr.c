/* Expressions: literals, operators by precedence, subscripts, calls, filters, tests. See jinja/ast.h.
 * Called by jinja/parse.c. */
#include "client/text/jinja/ast.h"

#include <string.h>

typedef struct jinja_node *operand_fn(struct jinja_parser *p);
static operand_fn parse_or, parse_primary;
static struct jinja_node *parse_unary(struct jinja_parser *p, bool filters);

static struct jinja_node *pair(struct jinja_parser *p, enum jinja_node_kind kind, struct jinja_node *a,
                               struct jinja_node *b)
{
    struct jinja_node *node = jinja_parse_node(p, kind);
    node->a = a;
    node->b = b;
    return node;
}

/* ---- brackets */

/* Items up to `close`, divided by commas; with `pairs` each is KEY: VALUE. */
static void parse_items(struct jinja_parser *p, char close, bool pairs, struct jinja_nodes *list)
{
    while (!jinja_parse_is_op(p, close)) {
        if (list->count) jinja_parse_expect_op(p, ',');
        if (jinja_parse_is_op(p, close)) break;
        jinja_parse_add(p, list, jinja_parse_expression(p, true));
        if (!pairs) continue;
        jinja_parse_expect_op(p, ':');
        jinja_parse_add(p, list, jinja_parse_expression(p, true));
    }
    jinja_parse_expect_op(p, close);
}

/* The arguments of a call, a filter or a test, after its '('. */
static struct jinja_arguments *parse_arguments(struct jinja_parser *p)
{
    struct jinja_arguments *args = jinja_alloc(p->run, sizeof *args);
    size_t name_space = 0, count = 0;
    while (!jinja_parse_is_op(p, ')')) {
        if (count++) jinja_parse_expect_op(p, ',');
        if (jinja_parse_is_op(p, ')')) break;
        if (jinja_parse_is_op(p, '*') || jinja_parse_is_op(p, JINJA_OP_POW))
            jinja_fail(p->run, HELM_E_UNSUPPORTED, "unpacking arguments with * or **");
        if (p->token->kind == JINJA_TOKEN_NAME && p->token[1].kind == JINJA_TOKEN_OPERATOR &&
            p->token[1].op == '=') {
            const struct jinja_value name = jinja_parse_token(p);
            const size_t names = args->keyword_values.count;
            p->token++;
            jinja_parse_add(p, &args->keyword_values, jinja_parse_expression(p, true));
            jinja_grow(p->run, &args->keyword_names, sizeof name, names, &name_space);
            args->keyword_names[names] = name;
        } else if (args->keyword_values.count) {
            jinja_fail(p->run, HELM_E_FORMAT, "an argument without a name follows one with a name");
        } else {
            jinja_parse_add(p, &args->positional, jinja_parse_expression(p, true));
        }
    }
    jinja_parse_expect_op(p, ')');
    return args;
}

/* ---- primary expressions and what follows them */

static bool constant_name(const struct jinja_token *token, struct jinja_value *value)
{
    static const struct {
        const char *name;
        char kind;
    } names[] = {{"true", 't'}, {"True", 't'}, {"false", 'f'}, {"False", 'f'}, {"none", 'n'}, {"None", 'n'}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) != token->length || memcmp(names[i].name, token->text, token->length) != 0)
            continue;
        *value = names[i].kind == 'n' ? jinja_none() : jinja_bool(names[i].kind == 't');
        return true;
    }
    return false;
}

/* 'one' 'two' is one text, as in Python. */
static struct jinja_value parse_strings(struct jinja_parser *p)
{
    const struct jinja_value first = jinja_parse_token(p);
    struct jinja_buffer joined = {0};
    if (p->token->kind != JINJA_TOKEN_STRING) return first;
    jinja_buffer_add(p->run, &joined, first.as.text.data, first.as.text.bytes);
    for (; p->token->kind == JINJA_TOKEN_STRING; p->token++)
        jinja_buffer_add(p->run, &joined, p->token->text, p->token->length);
    return jinja_buffer_text(&joined);
}

static void parse_name(struct jinja_parser *p, struct jinja_node *node)
{
    const bool constant = constant_name(p->token, &node->value);
    const struct jinja_value name = jinja_parse_token(p);
    if (constant) return;
    node->kind = JINJA_NODE_NAME;
    node->value = name;
    if (jinja_text_is(&name, "varargs")) p->macro_uses |= JINJA_MACRO_USES_VARARGS;
    if (jinja_text_is(&name, "kwargs")) p->macro_uses |= JINJA_MACRO_USES_KWARGS;
    if (jinja_text_is(&name, "caller")) p->macro_uses |= JINJA_MACRO_USES_CALLER;
}

static struct jinja_node *parse_primary(struct jinja_parser *p)
{
    const struct jinja_token *token = p->token;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_CONST);
    if (token->kind == JINJA_TOKEN_NAME) {
        parse_name(p, node);
    } else if (token->kind == JINJA_TOKEN_STRING) {
        node->value = parse_strings(p);
    } else if (token->kind == JINJA_TOKEN_INTEGER || token->kind == JINJA_TOKEN_FLOAT) {
        const bool whole = token->kind == JINJA_TOKEN_INTEGER;
        node->value = whole ? jinja_int(token->integer) : jinja_float(token->number);
        p->token++;
    } else if (jinja_parse_skip_op(p, '[')) {
        node->kind = JINJA_NODE_LIST;
        parse_items(p, ']', false, &node->list);
    } else if (jinja_parse_skip_op(p, '{')) {
        node->kind = JINJA_NODE_DICT;
        parse_items(p, '}', true, &node->list);
    } else if (!jinja_parse_skip_op(p, '(')) {
        jinja_parse_unexpected(p, "an expression");
    } else if (jinja_parse_skip_op(p, ')')) {
        node->kind = JINJA_NODE_TUPLE;
    } else {
        node = jinja_parse_tuple(p, true, NULL);
        jinja_parse_expect_op(p, ')');
    }
    return node;
}

/* The subscript between '[' and ']' after `object`. */
static struct jinja_node *parse_subscript(struct jinja_parser *p, struct jinja_node *object)
{
    struct jinja_node *part[3] = {NULL, NULL, NULL};
    int at = 0;
    bool slice = false;
    while (!jinja_parse_is_op(p, ']')) {
        if (jinja_parse_skip_op(p, ':')) {
            slice = true;
            if (++at > 2) jinja_parse_unexpected(p, "']'");
        } else if (!part[at]) {
            part[at] = jinja_parse_expression(p, true);
        } else if (jinja_parse_is_op(p, ',')) {
            jinja_fail(p->run, HELM_E_UNSUPPORTED, "several subscripts in one pair of brackets");
        } else {
            jinja_parse_unexpected(p, "']'");
        }
    }
    if (!slice && !part[0]) jinja_parse_unexpected(p, "a subscript");
    struct jinja_node *node = pair(p, slice ? JINJA_NODE_SLICE : JINJA_NODE_GETITEM, object, part[0]);
    node->c = part[1];
    node->d = part[2];
    jinja_parse_expect_op(p, ']');
    return node;
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *callee)
{
    struct jinja_node *node = pair(p, JINJA_NODE_CALL, callee, NULL);
    node->args = parse_arguments(p);
    return node;
}

static struct jinja_node *parse_attribute(struct jinja_parser *p, struct jinja_node *object)
{
    struct jinja_node *node = pair(p, JINJA_NODE_GETATTR, object, NULL);
    if (p->token->kind == JINJA_TOKEN_NAME) {
        node->value = jinja_parse_token(p);
    } else if (p->token->kind == JINJA_TOKEN_INTEGER) {
        node->kind = JINJA_NODE_GETITEM;
        node->b = jinja_parse_node(p, JINJA_NODE_CONST);
        node->b->value = jinja_int((p->token++)->integer);
    } else {
        jinja_parse_unexpected(p, "a name or a number after '.'");
    }
    return node;
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *node)
{
    for (;;) {
        if (jinja_parse_skip_op(p, '.'))
            node = parse_attribute(p, node);
        else if (jinja_parse_skip_op(p, '['))
            node = parse_subscript(p, node);
        else if (jinja_parse_skip_op(p, '('))
            node = parse_call(p, node);
        else
            return node;
    }
}

/* The name of a filter or test; dots are part of it. */
static struct jinja_value parse_dotted_name(struct jinja_parser *p, const char *wanted)
{
    struct jinja_buffer name = {0};
    do {
        if (p->token->kind != JINJA_TOKEN_NAME) jinja_parse_unexpected(p, wanted);
        if (name.length) jinja_buffer_add(p->run, &name, ".", 1);
        jinja_buffer_add(p->run, &name, p->token->text, p->token->length);
        p->token++;
    } while (jinja_parse_skip_op(p, '.'));
    return jinja_buffer_text(&name);
}

static struct jinja_node *parse_filter(struct jinja_parser *p, struct jinja_node *input)
{
    struct jinja_node *node = pair(p, JINJA_NODE_FILTER, input, NULL);
    node->value = parse_dotted_name(p, "a filter's name");
    if (jinja_parse_skip_op(p, '(')) node->args = parse_arguments(p);
    return node;
}

/* Whether a test's argument without brackets begins here. */
static bool at_argument(const struct jinja_parser *p)
{
    enum jinja_token_kind kind = p->token->kind;
    bool starts = kind == JINJA_TOKEN_NAME || kind == JINJA_TOKEN_STRING || kind == JINJA_TOKEN_INTEGER ||
                  kind == JINJA_TOKEN_FLOAT || jinja_parse_is_op(p, '[') || jinja_parse_is_op(p, '{');
    return starts && !jinja_parse_is_name(p, "else") && !jinja_parse_is_name(p, "or") &&
           !jinja_parse_is_name(p, "and");
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *input)
{
    struct jinja_node *node = pair(p, JINJA_NODE_TEST, input, NULL);
    if (jinja_parse_skip_name(p, "not")) node->op = 'n';
    node->value = parse_dotted_name(p, "a test's name");
    if (jinja_parse_skip_op(p, '(')) {
        node->args = parse_arguments(p);
    } else if (at_argument(p)) {
        if (jinja_parse_is_name(p, "is")) jinja_parse_unexpected(p, "one test (\"is\" cannot be chained)");
        node->args = jinja_alloc(p->run, sizeof *node->args);
        jinja_parse_enter(p);
        jinja_parse_add(p, &node->args->positional, parse_postfix(p, parse_primary(p)));
        p->depth--;
    }
    return node;
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *node, bool inline_first)
{
    if (inline_first) node = parse_filter(p, node);
    while (jinja_parse_skip_op(p, '|')) node = parse_filter(p, node);
    return node;
}

static struct jinja_node *parse_filters_and_tests(struct jinja_parser *p, struct jinja_node *node)
{
    for (;;) {
        if (jinja_parse_skip_op(p, '|'))
            node = parse_filter(p, node);
        else if (jinja_parse_skip_name(p, "is"))
            node = parse_test(p, node);
        else if (jinja_parse_skip_op(p, '('))
            node = parse_call(p, node);
        else
            return node;
    }
}

/* ---- operators, tightest first */

/* `op` between `left` and what `operand` reads. */
static struct jinja_node *binary(struct jinja_parser *p, enum jinja_node_kind kind, char op,
                                 struct jinja_node *left, operand_fn *operand)
{
    struct jinja_node *right = operand(p), *node = pair(p, kind, left, right);
    node->op = op;
    return node;
}

/* `kind` before what `operand` reads, one level deeper; the token is the operator. */
static struct jinja_node *prefix(struct jinja_parser *p, enum jinja_node_kind kind, operand_fn *operand)
{
    struct jinja_node *node = jinja_parse_node(p, kind);
    p->token++;
    jinja_parse_enter(p);
    node->a = operand(p);
    p->depth--;
    return node;
}

static struct jinja_node *parse_signed(struct jinja_parser *p)
{
    return parse_unary(p, false);
}

static struct jinja_node *parse_unary(struct jinja_parser *p, bool filters)
{
    struct jinja_node *node = jinja_parse_is_op(p, '-')   ? prefix(p, JINJA_NODE_NEG, parse_signed)
                              : jinja_parse_is_op(p, '+') ? prefix(p, JINJA_NODE_POS, parse_signed)
                                                          : parse_primary(p);
    node = parse_postfix(p, node);
    return filters ? parse_filters_and_tests(p, node) : node;
}

static struct jinja_node *parse_filtered(struct jinja_parser *p)
{
    return parse_unary(p, true);
}

/* Operators of one rank, from the left. */
static struct jinja_node *parse_chain(struct jinja_parser *p, const char *ops, operand_fn *operand)
{
    struct jinja_node *node = operand(p);
    while (p->token->kind == JINJA_TOKEN_OPERATOR && strchr(ops, p->token->op)) {
        char op = (p->token++)->op;
        node = binary(p, JINJA_NODE_BINARY, op, node, operand);
    }
    return node;
}

static struct jinja_node *parse_pow(struct jinja_parser *p)
{
    return parse_chain(p, "P", parse_filtered);
}

static struct jinja_node *parse_product(struct jinja_parser *p)
{
    return parse_chain(p, "*/D%", parse_pow);
}

static struct jinja_node *parse_concat(struct jinja_parser *p)
{
    struct jinja_node *first = parse_product(p);
    if (!jinja_parse_is_op(p, '~')) return first;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_CONCAT);
    jinja_parse_add(p, &node->list, first);
    while (jinja_parse_skip_op(p, '~')) jinja_parse_add(p, &node->list, parse_product(p));
    return node;
}

static struct jinja_node *parse_sum(struct jinja_parser *p)
{
    return parse_chain(p, "+-", parse_concat);
}

/* The comparison operator that stands here, consumed; 0 if none. */
static char take_comparison(struct jinja_parser *p)
{
    if (p->token->kind == JINJA_TOKEN_OPERATOR && strchr("EN<>LG", p->token->op)) return (p->token++)->op;
    if (jinja_parse_skip_name(p, "in")) return JINJA_OP_IN;
    if (!jinja_parse_is_name(p, "not")) return '\0';
    p->token++;
    if (jinja_parse_skip_name(p, "in")) return JINJA_OP_NOT_IN;
    p->token--;
    return '\0';
}

static struct jinja_node *parse_compare(struct jinja_parser *p)
{
    struct jinja_node *first = parse_sum(p), *node = NULL;
    for (char op; (op = take_comparison(p));) {
        struct jinja_node *step = jinja_parse_node(p, JINJA_NODE_STEP);
        if (!node) node = pair(p, JINJA_NODE_COMPARE, first, NULL);
        step->op = op;
        step->a = parse_sum(p);
        jinja_parse_add(p, &node->list, step);
    }
    return node ? node : first;
}

static struct jinja_node *parse_not(struct jinja_parser *p)
{
    return jinja_parse_is_name(p, "not") ? prefix(p, JINJA_NODE_NOT, parse_not) : parse_compare(p);
}

static struct jinja_node *parse_and(struct jinja_parser *p)
{
    struct jinja_node *node = parse_not(p);
    while (jinja_parse_skip_name(p, "and")) node = binary(p, JINJA_NODE_AND, '\0', node, parse_not);
    return node;
}

static struct jinja_node *parse_or(struct jinja_parser *p)
{
    struct jinja_node *node = parse_and(p);
    while (jinja_parse_skip_name(p, "or")) node = binary(p, JINJA_NODE_OR, '\0', node, parse_and);
    return node;
}

static struct jinja_node *parse_condition(struct jinja_parser *p)
{
    struct jinja_node *node = parse_or(p);
    while (jinja_parse_skip_name(p, "if")) {
        node = pair(p, JINJA_NODE_COND, node, NULL);
        node->b = parse_or(p);
        if (jinja_parse_skip_name(p, "else")) node->c = jinja_parse_expression(p, true);
    }
    return node;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool condition)
{
    jinja_parse_enter(p);
    struct jinja_node *node = condition ? parse_condition(p) : parse_or(p);
    p->depth--;
    return node;
}

static bool at_tuple_end(const struct jinja_parser *p, const char *end)
{
    return p->token->kind == JINJA_TOKEN_PRINT_END || p->token->kind == JINJA_TOKEN_BLOCK_END ||
           jinja_parse_is_op(p, ')') || (end && jinja_parse_is_name(p, end));
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool condition, const char *end)
{
    if (at_tuple_end(p, end)) jinja_parse_unexpected(p, "an expression");
    struct jinja_node *first = jinja_parse_expression(p, condition);
    if (!jinja_parse_is_op(p, ',')) return first;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_TUPLE);
    jinja_parse_add(p, &node->list, first);
    while (jinja_parse_skip_op(p, ',') && !at_tuple_end(p, end))
        jinja_parse_add(p, &node->list, jinja_parse_expression(p, condition));
    return node;
}

static struct jinja_node *parse_one_target(struct jinja_parser *p, bool attributes)
{
    struct jinja_value constant;
    if (jinja_parse_skip_op(p, '(')) {
        jinja_parse_enter(p);
        struct jinja_node *inner = jinja_parse_target(p, attributes);
        p->depth--;
        jinja_parse_expect_op(p, ')');
        return inner;
    }
    if (p->token->kind != JINJA_TOKEN_NAME || constant_name(p->token, &constant))
        jinja_parse_unexpected(p, "a name to assign to");
    struct jinja_node *node = parse_primary(p);
    if (!attributes || !jinja_parse_skip_op(p, '.')) return node;
    if (p->token->kind != JINJA_TOKEN_NAME) jinja_parse_unexpected(p, "an attribute's name");
    return parse_attribute(p, node);
}

struct jinja_node *jinja_parse_target(struct jinja_parser *p, bool attributes)
{
    struct jinja_node *first = parse_one_target(p, attributes);
    if (!jinja_parse_is_op(p, ',')) return first;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_TUPLE);
    jinja_parse_add(p, &node->list, first);
    while (jinja_parse_skip_op(p, ',') && (p->token->kind == JINJA_TOKEN_NAME || jinja_parse_is_op(p, '(')) &&
           !jinja_parse_is_name(p, "in"))
        jinja_parse_add(p, &node->list, parse_one_target(p, attributes));
    return node;
}
