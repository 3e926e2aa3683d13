/* Expressions: literals, operators by precedence, subscripts, calls, filters, tests. See jinja/ast.h.
 * Called by jinja/parse.c. */
#include "client/text/jinja/ast.h"

#include <string.h>

static int parse_or(struct jinja_parser *p, struct jinja_node **out);
static int parse_unary(struct jinja_parser *p, bool filters, struct jinja_node **out);

static struct jinja_node *pair(struct jinja_parser *p, enum jinja_node_kind kind, struct jinja_node *a,
                               struct jinja_node *b)
{
    struct jinja_node *node = jinja_parse_node(p, kind);
    if (!node) return NULL;
    node->a = a;
    node->b = b;
    return node;
}

static struct jinja_value token_text(const struct jinja_token *token)
{
    return jinja_text(token->text, token->length);
}

/* ---- brackets */

static int parse_items(struct jinja_parser *p, char close, struct jinja_nodes *list)
{
    while (!jinja_parse_is_op(p, close)) {
        struct jinja_node *item;
        int rc = list->count ? jinja_parse_expect_op(p, ',') : 0;
        if (!rc && jinja_parse_is_op(p, close)) break;
        if (!rc) rc = jinja_parse_expression(p, true, &item);
        if (!rc) rc = jinja_parse_add(p, list, item);
        if (rc) return rc;
    }
    return jinja_parse_expect_op(p, close);
}

static int parse_dict(struct jinja_parser *p, struct jinja_nodes *list)
{
    while (!jinja_parse_is_op(p, '}')) {
        struct jinja_node *key, *value;
        int rc = list->count ? jinja_parse_expect_op(p, ',') : 0;
        if (!rc && jinja_parse_is_op(p, '}')) break;
        if (!rc) rc = jinja_parse_expression(p, true, &key);
        if (!rc) rc = jinja_parse_expect_op(p, ':');
        if (!rc) rc = jinja_parse_expression(p, true, &value);
        if (!rc) rc = jinja_parse_add(p, list, key);
        if (!rc) rc = jinja_parse_add(p, list, value);
        if (rc) return rc;
    }
    return jinja_parse_expect_op(p, '}');
}

/* The arguments of a call, a filter or a test, after its '('. */
static int parse_arguments(struct jinja_parser *p, struct jinja_arguments **out)
{
    struct jinja_arguments *args = jinja_alloc(p->run, sizeof *args);
    if (!args) return p->run->code;
    size_t name_space = 0, count = 0;
    *out = args;
    while (!jinja_parse_is_op(p, ')')) {
        struct jinja_node *value;
        int rc = count++ ? jinja_parse_expect_op(p, ',') : 0;
        if (rc) return rc;
        if (jinja_parse_is_op(p, ')')) break;
        if (jinja_parse_is_op(p, '*') || jinja_parse_is_op(p, JINJA_OP_POW))
            return jinja_fail(p->run, HELM_E_UNSUPPORTED, "unpacking arguments with * or **");
        bool keyword = p->token->kind == JINJA_TOKEN_NAME && p->token[1].kind == JINJA_TOKEN_OPERATOR &&
                       p->token[1].op == '=';
        struct jinja_value name = jinja_none();
        if (keyword) {
            name = token_text(p->token);
            p->token += 2;
        } else if (args->keyword_values.count) {
            return jinja_fail(p->run, HELM_E_FORMAT, "an argument without a name follows one with a name");
        }
        rc = jinja_parse_expression(p, true, &value);
        if (!rc) rc = jinja_parse_add(p, keyword ? &args->keyword_values : &args->positional, value);
        if (rc) return rc;
        if (!keyword) continue;
        size_t names = args->keyword_values.count - 1;
        rc = jinja_grow(p->run, &args->keyword_names, sizeof name, names, &name_space);
        if (rc) return rc;
        args->keyword_names[names] = name;
    }
    return jinja_parse_expect_op(p, ')');
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
static int parse_strings(struct jinja_parser *p, struct jinja_value *value)
{
    struct jinja_buffer joined = {0};
    *value = token_text(p->token++);
    if (p->token->kind != JINJA_TOKEN_STRING) return 0;
    int rc = jinja_buffer_add(p->run, &joined, value->as.text.data, value->as.text.bytes);
    while (!rc && p->token->kind == JINJA_TOKEN_STRING) {
        rc = jinja_buffer_add(p->run, &joined, p->token->text, p->token->length);
        p->token++;
    }
    *value = jinja_buffer_text(&joined);
    return rc;
}

static int parse_primary(struct jinja_parser *p, struct jinja_node **out)
{
    const struct jinja_token *token = p->token;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_CONST);
    if (!node) return p->run->code;
    *out = node;
    switch (token->kind) {
    case JINJA_TOKEN_NAME:
        p->token++;
        if (constant_name(token, &node->value)) return 0;
        node->kind = JINJA_NODE_NAME;
        node->value = token_text(token);
        if (jinja_text_is(&node->value, "varargs")) p->macro_uses |= JINJA_MACRO_USES_VARARGS;
        if (jinja_text_is(&node->value, "kwargs")) p->macro_uses |= JINJA_MACRO_USES_KWARGS;
        if (jinja_text_is(&node->value, "caller")) p->macro_uses |= JINJA_MACRO_USES_CALLER;
        return 0;
    case JINJA_TOKEN_STRING:
        return parse_strings(p, &node->value);
    case JINJA_TOKEN_INTEGER:
        node->value = jinja_int(token->integer);
        p->token++;
        return 0;
    case JINJA_TOKEN_FLOAT:
        node->value = jinja_float(token->number);
        p->token++;
        return 0;
    case JINJA_TOKEN_OPERATOR:
        break;
    default:
        return jinja_parse_unexpected(p, "an expression");
    }
    if (jinja_parse_skip_op(p, '[')) {
        node->kind = JINJA_NODE_LIST;
        return parse_items(p, ']', &node->list);
    }
    if (jinja_parse_skip_op(p, '{')) {
        node->kind = JINJA_NODE_DICT;
        return parse_dict(p, &node->list);
    }
    if (!jinja_parse_skip_op(p, '(')) return jinja_parse_unexpected(p, "an expression");
    if (jinja_parse_skip_op(p, ')')) {
        node->kind = JINJA_NODE_TUPLE;
        return 0;
    }
    int rc = jinja_parse_tuple(p, true, NULL, out);
    return rc ? rc : jinja_parse_expect_op(p, ')');
}

/* What stands between '[' and ']' after `object`. */
static int parse_subscript(struct jinja_parser *p, struct jinja_node *object, struct jinja_node **out)
{
    struct jinja_node *part[3] = {NULL, NULL, NULL};
    int rc = 0, at = 0;
    bool slice = false;
    while (!rc && !jinja_parse_is_op(p, ']')) {
        if (jinja_parse_skip_op(p, ':')) {
            slice = true;
            if (++at > 2) return jinja_parse_unexpected(p, "']'");
        } else if (part[at]) {
            return jinja_parse_is_op(p, ',')
                       ? jinja_fail(p->run, HELM_E_UNSUPPORTED, "several subscripts in one pair of brackets")
                       : jinja_parse_unexpected(p, "']'");
        } else {
            rc = jinja_parse_expression(p, true, &part[at]);
        }
    }
    if (rc) return rc;
    if (!slice && !part[0]) return jinja_parse_unexpected(p, "a subscript");
    struct jinja_node *node = pair(p, slice ? JINJA_NODE_SLICE : JINJA_NODE_GETITEM, object, part[0]);
    if (!node) return p->run->code;
    node->c = part[1];
    node->d = part[2];
    *out = node;
    return jinja_parse_expect_op(p, ']');
}

static int parse_call(struct jinja_parser *p, struct jinja_node *callee, struct jinja_node **out)
{
    struct jinja_node *node = pair(p, JINJA_NODE_CALL, callee, NULL);
    if (!node) return p->run->code;
    *out = node;
    return parse_arguments(p, &node->args);
}

static int parse_attribute(struct jinja_parser *p, struct jinja_node *object, struct jinja_node **out)
{
    struct jinja_node *node = pair(p, JINJA_NODE_GETATTR, object, NULL);
    if (!node) return p->run->code;
    if (p->token->kind == JINJA_TOKEN_NAME) {
        node->value = token_text(p->token);
    } else if (p->token->kind == JINJA_TOKEN_INTEGER) {
        struct jinja_node *index = jinja_parse_node(p, JINJA_NODE_CONST);
        if (!index) return p->run->code;
        index->value = jinja_int(p->token->integer);
        node->kind = JINJA_NODE_GETITEM;
        node->b = index;
    } else {
        return jinja_parse_unexpected(p, "a name or a number after '.'");
    }
    p->token++;
    *out = node;
    return 0;
}

static int parse_postfix(struct jinja_parser *p, struct jinja_node *node, struct jinja_node **out)
{
    int rc = 0;
    while (!rc) {
        if (jinja_parse_skip_op(p, '.'))
            rc = parse_attribute(p, node, &node);
        else if (jinja_parse_skip_op(p, '['))
            rc = parse_subscript(p, node, &node);
        else if (jinja_parse_skip_op(p, '('))
            rc = parse_call(p, node, &node);
        else
            break;
    }
    *out = node;
    return rc;
}

/* The name of a filter or test; dots are part of it. */
static int parse_dotted_name(struct jinja_parser *p, const char *wanted, struct jinja_value *out)
{
    struct jinja_buffer name = {0};
    if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, wanted);
    *out = token_text(p->token++);
    if (!jinja_parse_is_op(p, '.')) return 0;
    int rc = jinja_buffer_add(p->run, &name, out->as.text.data, out->as.text.bytes);
    while (!rc && jinja_parse_skip_op(p, '.')) {
        if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, wanted);
        rc = jinja_buffer_add(p->run, &name, ".", 1);
        if (!rc) rc = jinja_buffer_add(p->run, &name, p->token->text, p->token->length);
        p->token++;
    }
    *out = jinja_buffer_text(&name);
    return rc;
}

static int parse_filter(struct jinja_parser *p, struct jinja_node *input, struct jinja_node **out)
{
    struct jinja_node *node = pair(p, JINJA_NODE_FILTER, input, NULL);
    if (!node) return p->run->code;
    *out = node;
    int rc = parse_dotted_name(p, "a filter's name", &node->value);
    if (rc) return rc;
    return jinja_parse_skip_op(p, '(') ? parse_arguments(p, &node->args) : 0;
}

static int parse_test(struct jinja_parser *p, struct jinja_node *input, struct jinja_node **out)
{
    struct jinja_node *node = pair(p, JINJA_NODE_TEST, input, NULL);
    if (!node) return p->run->code;
    if (jinja_parse_skip_name(p, "not")) node->op = 'n';
    *out = node;
    int rc = parse_dotted_name(p, "a test's name", &node->value);
    if (rc) return rc;
    if (jinja_parse_skip_op(p, '(')) return parse_arguments(p, &node->args);
    enum jinja_token_kind kind = p->token->kind;
    bool starts = kind == JINJA_TOKEN_NAME || kind == JINJA_TOKEN_STRING || kind == JINJA_TOKEN_INTEGER ||
                  kind == JINJA_TOKEN_FLOAT || jinja_parse_is_op(p, '[') || jinja_parse_is_op(p, '{');
    if (!starts || jinja_parse_is_name(p, "else") || jinja_parse_is_name(p, "or") ||
        jinja_parse_is_name(p, "and"))
        return 0;
    if (jinja_parse_is_name(p, "is")) return jinja_parse_unexpected(p, "one test (\"is\" cannot be chained)");
    struct jinja_node *argument;
    node->args = jinja_alloc(p->run, sizeof *node->args);
    if (!node->args) return p->run->code;
    rc = jinja_parse_enter(p);
    if (!rc) rc = parse_primary(p, &argument);
    if (!rc) rc = parse_postfix(p, argument, &argument);
    if (!rc) rc = jinja_parse_add(p, &node->args->positional, argument);
    p->depth--;
    return rc;
}

int jinja_parse_filters(struct jinja_parser *p, struct jinja_node *node, bool inline_first,
                        struct jinja_node **out)
{
    int rc = inline_first ? parse_filter(p, node, &node) : 0;
    while (!rc && jinja_parse_skip_op(p, '|')) rc = parse_filter(p, node, &node);
    *out = node;
    return rc;
}

static int parse_filters_and_tests(struct jinja_parser *p, struct jinja_node *node, struct jinja_node **out)
{
    int rc = 0;
    while (!rc) {
        if (jinja_parse_skip_op(p, '|'))
            rc = parse_filter(p, node, &node);
        else if (jinja_parse_skip_name(p, "is"))
            rc = parse_test(p, node, &node);
        else if (jinja_parse_skip_op(p, '('))
            rc = parse_call(p, node, &node);
        else
            break;
    }
    *out = node;
    return rc;
}

/* ---- operators, tightest first */

/* *out = *out `op` what `operand` reads. */
static int parse_right(struct jinja_parser *p, enum jinja_node_kind kind, char op,
                       int (*operand)(struct jinja_parser *, struct jinja_node **), struct jinja_node **out)
{
    struct jinja_node *right;
    int rc = operand(p, &right);
    if (rc) return rc;
    *out = pair(p, kind, *out, right);
    if (!*out) return p->run->code;
    (*out)->op = op;
    return 0;
}

static int parse_signed(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node =
        jinja_parse_node(p, jinja_parse_is_op(p, '-') ? JINJA_NODE_NEG : JINJA_NODE_POS);
    if (!node) return p->run->code;
    p->token++;
    *out = node;
    int rc = jinja_parse_enter(p);
    if (!rc) rc = parse_unary(p, false, &node->a);
    p->depth--;
    return rc;
}

static int parse_unary(struct jinja_parser *p, bool filters, struct jinja_node **out)
{
    bool sign = jinja_parse_is_op(p, '-') || jinja_parse_is_op(p, '+');
    int rc = sign ? parse_signed(p, out) : parse_primary(p, out);
    if (!rc) rc = parse_postfix(p, *out, out);
    if (!rc && filters) rc = parse_filters_and_tests(p, *out, out);
    return rc;
}

static int parse_filtered(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_unary(p, true, out);
}

static int parse_pow(struct jinja_parser *p, struct jinja_node **out)
{
    int rc = parse_filtered(p, out);
    while (!rc && jinja_parse_skip_op(p, JINJA_OP_POW))
        rc = parse_right(p, JINJA_NODE_BINARY, JINJA_OP_POW, parse_filtered, out);
    return rc;
}

/* Operators of one rank, from the left. */
static int parse_chain(struct jinja_parser *p, const char *ops,
                       int (*operand)(struct jinja_parser *, struct jinja_node **), struct jinja_node **out)
{
    int rc = operand(p, out);
    while (!rc && p->token->kind == JINJA_TOKEN_OPERATOR && strchr(ops, p->token->op))
        rc = parse_right(p, JINJA_NODE_BINARY, (p->token++)->op, operand, out);
    return rc;
}

static int parse_product(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_chain(p, "*/D%", parse_pow, out);
}

static int parse_concat(struct jinja_parser *p, struct jinja_node **out)
{
    int rc = parse_product(p, out);
    if (rc || !jinja_parse_is_op(p, '~')) return rc;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_CONCAT), *next;
    if (!node) return p->run->code;
    rc = jinja_parse_add(p, &node->list, *out);
    while (!rc && jinja_parse_skip_op(p, '~')) {
        rc = parse_product(p, &next);
        if (!rc) rc = jinja_parse_add(p, &node->list, next);
    }
    *out = node;
    return rc;
}

static int parse_sum(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_chain(p, "+-", parse_concat, out);
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

static int parse_compare(struct jinja_parser *p, struct jinja_node **out)
{
    int rc = parse_sum(p, out);
    struct jinja_node *node = NULL;
    for (char op; !rc && (op = take_comparison(p));) {
        struct jinja_node *step = jinja_parse_node(p, JINJA_NODE_STEP);
        if (!node && step) {
            node = pair(p, JINJA_NODE_COMPARE, *out, NULL);
            *out = node;
        }
        if (!step || !node) return p->run->code;
        step->op = op;
        rc = parse_sum(p, &step->a);
        if (!rc) rc = jinja_parse_add(p, &node->list, step);
    }
    return rc;
}

static int parse_not(struct jinja_parser *p, struct jinja_node **out)
{
    if (!jinja_parse_is_name(p, "not")) return parse_compare(p, out);
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_NOT);
    if (!node) return p->run->code;
    p->token++;
    *out = node;
    int rc = jinja_parse_enter(p);
    if (!rc) rc = parse_not(p, &node->a);
    p->depth--;
    return rc;
}

static int parse_and(struct jinja_parser *p, struct jinja_node **out)
{
    int rc = parse_not(p, out);
    while (!rc && jinja_parse_skip_name(p, "and")) rc = parse_right(p, JINJA_NODE_AND, '\0', parse_not, out);
    return rc;
}

static int parse_or(struct jinja_parser *p, struct jinja_node **out)
{
    int rc = parse_and(p, out);
    while (!rc && jinja_parse_skip_name(p, "or")) rc = parse_right(p, JINJA_NODE_OR, '\0', parse_and, out);
    return rc;
}

static int parse_condition(struct jinja_parser *p, struct jinja_node **out)
{
    int rc = parse_or(p, out);
    while (!rc && jinja_parse_skip_name(p, "if")) {
        struct jinja_node *node = pair(p, JINJA_NODE_COND, *out, NULL);
        if (!node) return p->run->code;
        *out = node;
        rc = parse_or(p, &node->b);
        if (!rc && jinja_parse_skip_name(p, "else")) rc = jinja_parse_expression(p, true, &node->c);
    }
    return rc;
}

int jinja_parse_expression(struct jinja_parser *p, bool condition, struct jinja_node **out)
{
    *out = NULL;
    int rc = jinja_parse_enter(p);
    if (!rc) rc = condition ? parse_condition(p, out) : parse_or(p, out);
    p->depth--;
    return rc;
}

static bool at_tuple_end(const struct jinja_parser *p, const char *end)
{
    return p->token->kind == JINJA_TOKEN_PRINT_END || p->token->kind == JINJA_TOKEN_BLOCK_END ||
           jinja_parse_is_op(p, ')') || (end && jinja_parse_is_name(p, end));
}

int jinja_parse_tuple(struct jinja_parser *p, bool condition, const char *end, struct jinja_node **out)
{
    *out = NULL;
    if (at_tuple_end(p, end)) return jinja_parse_unexpected(p, "an expression");
    int rc = jinja_parse_expression(p, condition, out);
    if (rc || !jinja_parse_is_op(p, ',')) return rc;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_TUPLE), *item;
    if (!node) return p->run->code;
    rc = jinja_parse_add(p, &node->list, *out);
    *out = node;
    while (!rc && jinja_parse_skip_op(p, ',') && !at_tuple_end(p, end)) {
        rc = jinja_parse_expression(p, condition, &item);
        if (!rc) rc = jinja_parse_add(p, &node->list, item);
    }
    return rc;
}

static int parse_one_target(struct jinja_parser *p, bool attributes, struct jinja_node **out)
{
    if (jinja_parse_skip_op(p, '(')) {
        int rc = jinja_parse_enter(p);
        if (!rc) rc = jinja_parse_target(p, attributes, out);
        p->depth--;
        return rc ? rc : jinja_parse_expect_op(p, ')');
    }
    struct jinja_value constant;
    if (p->token->kind != JINJA_TOKEN_NAME || constant_name(p->token, &constant))
        return jinja_parse_unexpected(p, "a name to assign to");
    int rc = parse_primary(p, out);
    if (!rc && attributes && jinja_parse_skip_op(p, '.')) {
        if (p->token->kind != JINJA_TOKEN_NAME) return jinja_parse_unexpected(p, "an attribute's name");
        rc = parse_attribute(p, *out, out);
    }
    return rc;
}

int jinja_parse_target(struct jinja_parser *p, bool attributes, struct jinja_node **out)
{
    int rc = parse_one_target(p, attributes, out);
    if (rc || !jinja_parse_is_op(p, ',')) return rc;
    struct jinja_node *node = jinja_parse_node(p, JINJA_NODE_TUPLE), *item;
    if (!node) return p->run->code;
    rc = jinja_parse_add(p, &node->list, *out);
    *out = node;
    while (!rc && jinja_parse_skip_op(p, ',') &&
           (p->token->kind == JINJA_TOKEN_NAME || jinja_parse_is_op(p, '(')) &&
           !jinja_parse_is_name(p, "in")) {
        rc = parse_one_target(p, attributes, &item);
        if (!rc) rc = jinja_parse_add(p, &node->list, item);
    }
    return rc;
}
