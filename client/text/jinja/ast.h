/* The nodes of a parsed template. Made by jinja/parse.c and jinja/parse_expr.c, walked by jinja/eval.c and
 * jinja/exec.c. They live in the template's arena and do not change once parsed. */
#pragma once

#include "client/text/jinja/lex.h"
#include "client/text/jinja/value.h"

enum jinja_node_kind {
    /* expressions */
    JINJA_NODE_CONST,   /* value */
    JINJA_NODE_NAME,    /* value: the name, a text */
    JINJA_NODE_PIPED,   /* text that a filter block or set block pipes into its filters */
    JINJA_NODE_LIST,    /* list */
    JINJA_NODE_TUPLE,   /* list */
    JINJA_NODE_DICT,    /* list: key, value, key, value ... */
    JINJA_NODE_NEG,     /* a */
    JINJA_NODE_POS,     /* a */
    JINJA_NODE_NOT,     /* a */
    JINJA_NODE_AND,     /* a, b */
    JINJA_NODE_OR,      /* a, b */
    JINJA_NODE_BINARY,  /* op, a, b */
    JINJA_NODE_CONCAT,  /* list, joined by ~ */
    JINJA_NODE_COMPARE, /* a, list of JINJA_NODE_STEP: a < b < c */
    JINJA_NODE_STEP,    /* op, a */
    JINJA_NODE_COND,    /* a if b else c (NULL: no else) */
    JINJA_NODE_GETATTR, /* a, value: the name */
    JINJA_NODE_GETITEM, /* a, b */
    JINJA_NODE_SLICE,   /* a[b:c:d], each of b, c, d may be NULL */
    JINJA_NODE_CALL,    /* a, args */
    JINJA_NODE_FILTER,  /* a, value: the name, args */
    JINJA_NODE_TEST,    /* a, value: the name, args; op 'n' for "is not" */
    /* statements */
    JINJA_NODE_DATA,      /* value: the text */
    JINJA_NODE_PRINT,     /* a */
    JINJA_NODE_IF,        /* list of JINJA_NODE_BRANCH */
    JINJA_NODE_BRANCH,    /* a: the test (NULL: else), list: the body */
    JINJA_NODE_FOR,       /* a: target, b: what it runs over, c: the test or NULL, list: body, other: else */
    JINJA_NODE_SET,       /* a: target, b: value */
    JINJA_NODE_SETBLOCK,  /* a: target, b: filters over PIPED, or NULL, list: body */
    JINJA_NODE_FILTERED,  /* b: filters over PIPED, list: body */
    JINJA_NODE_WITH,      /* other: target, value, target, value ...; list: body */
    JINJA_NODE_MACRO,     /* value: name; other: parameter names; args->positional: defaults of the last ones;
                             list: body; op: bits of enum jinja_macro_uses */
    JINJA_NODE_CALLBLOCK, /* a: the call, b: its body as a macro */
    JINJA_NODE_SCOPELESS, /* list: run as if the tags were not there (generation) */
    JINJA_NODE_BREAK,
    JINJA_NODE_CONTINUE,
};

enum jinja_macro_uses {
    JINJA_MACRO_USES_VARARGS = 1,
    JINJA_MACRO_USES_KWARGS = 2,
    JINJA_MACRO_USES_CALLER = 4,
};

struct jinja_node;
struct jinja_nodes {
    struct jinja_node **item;
    size_t count, space;
};
struct jinja_arguments {
    struct jinja_nodes positional;
    struct jinja_nodes keyword_values;
    struct jinja_value *keyword_names; /* as many as keyword_values */
};

struct jinja_node {
    enum jinja_node_kind kind;
    char op; /* a token's operator, or JINJA_OP_IN, JINJA_OP_NOT_IN */
    uint32_t line;
    struct jinja_value value;
    struct jinja_node *a, *b, *c, *d;
    struct jinja_nodes list, other;
    struct jinja_arguments *args;
};
enum { JINJA_OP_IN = 'i', JINJA_OP_NOT_IN = 'o' };

/* ---- the parser's own state, shared by its two files */

struct jinja_parser {
    struct jinja_run *run;
    const struct jinja_token *token; /* the current one; the last is JINJA_TOKEN_END */
    int depth, loop_depth;
    char macro_uses; /* of the innermost macro being parsed */
};

struct jinja_node *jinja_parse_node(struct jinja_parser *p, enum jinja_node_kind kind);
void jinja_parse_add(struct jinja_parser *p, struct jinja_nodes *list, struct jinja_node *node);
bool jinja_parse_is_op(const struct jinja_parser *p, char op);
bool jinja_parse_is_name(const struct jinja_parser *p, const char *name);
bool jinja_parse_skip_op(struct jinja_parser *p, char op);
bool jinja_parse_skip_name(struct jinja_parser *p, const char *name);
void jinja_parse_expect_op(struct jinja_parser *p, char op);
/* The name or number that is the current token, consumed. */
struct jinja_value jinja_parse_token(struct jinja_parser *p);
/* Fails with "unexpected X, expected `wanted`". */
_Noreturn void jinja_parse_unexpected(struct jinja_parser *p, const char *wanted);
void jinja_parse_enter(struct jinja_parser *p); /* one level deeper; leave with p->depth-- */

/* `condition`: "x if y" may follow. */
struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool condition);
/* An expression, or a tuple without parentheses. It ends before the name `end` (NULL: none). */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, bool condition, const char *end);
/* A name, ns.attribute if `attributes`, or a tuple of such. */
struct jinja_node *jinja_parse_target(struct jinja_parser *p, bool attributes);
/* Filters after `node`; with `inline_first` the first one has no | before it (filter and set blocks). */
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *node, bool inline_first);
