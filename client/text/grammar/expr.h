/* Grammars as rules of expressions: the form that regex.c, gbnf.c and schema.c make and nfa.c compiles.
 *
 * Everything lies in one `struct exprs`, by number. The first failure (memory, a limit) is kept in it and
 * later calls do nothing, so that a builder checks for errors once, at the end. Characters are Unicode's; a
 * text is their UTF-8. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define EXPR_NODES_MAX  (1u << 20)
#define EXPR_RULES_MAX  (1u << 16)
#define EXPR_REPEAT_MAX 65536u     /* a count of {m,n} */
#define EXPR_UNBOUNDED  UINT32_MAX /* no upper count */
#define EXPR_NONE       UINT32_MAX
#define EXPR_CHAR_MAX   0x10ffffu
#define EXPR_WORK_MAX   (1u << 23) /* steps of reading a text, some 50 ms */

struct expr_range {
    uint32_t low, high; /* both in it */
};

enum expr_kind {
    EXPR_SET,    /* one character of ranges[first .. first + count) */
    EXPR_SEQ,    /* all children, in order; of none: the empty text */
    EXPR_ALT,    /* one of the children; of none: nothing matches */
    EXPR_REPEAT, /* the one child, min to max times */
    EXPR_RULE,   /* the expression of rule `first` */
    EXPR_TOKEN,  /* the special token with id `first` */
    EXPR_BYTE,   /* one byte from min to max, which need not be a character */
};

struct expr {
    enum expr_kind kind;
    uint32_t first, count; /* see above */
    uint32_t min, max;
    uint32_t child, last, next; /* first and last child, next one of the same parent; EXPR_NONE: none */
};

struct exprs {
    struct expr *nodes;
    struct expr_range *ranges;
    uint32_t *rules; /* the expression of each; EXPR_NONE: not defined yet */
    uint32_t node_count, node_space, range_count, range_space, rule_count, rule_space;
    uint32_t json_rule[8]; /* schema_values.c: the rules of any JSON, by enum json_rule */
    bool has_json_rules;
    uint32_t work;            /* steps that were charged */
    int failed;               /* code of the first failure, which is in err */
    const _Atomic bool *stop; /* set by another thread: the grammar is not wanted any more; NULL: none */
    const struct json_numbers
        *numbers;      /* borrowed: texts of a schema's numbers; NULL: as their values are written */
    const char *place; /* in a schema, that failures name; NULL: none is being read */
    struct helm_err err;
};

void exprs_free(struct exprs *exprs);
/* Notes the first failure. */
void exprs_fail(struct exprs *exprs, int code, const char *fmt, ...) HELM_PRINTF(3, 4);

/* Counts steps before they are made: a reader's loops over what a stranger wrote are charged. Fails beyond
 * EXPR_WORK_MAX, and once *stop is set. */
void exprs_charge(struct exprs *exprs, size_t steps);

/* All return the new expression's number (or any number after a failure). */
uint32_t expr_set(struct exprs *exprs, const struct expr_range *ranges, uint32_t count);
uint32_t expr_char(struct exprs *exprs, uint32_t c);
/* UTF-8, exactly; of a string. */
uint32_t expr_text(struct exprs *exprs, const char *text, size_t length);
uint32_t expr_string(struct exprs *exprs, const char *text);
uint32_t expr_seq(struct exprs *exprs);
uint32_t expr_alt(struct exprs *exprs);
/* A sequence of `count` expressions. */
uint32_t expr_seq_of(struct exprs *exprs, const uint32_t *parts, size_t count);
#define EXPR_SEQ(x, ...)                                                                                     \
    expr_seq_of(x, (const uint32_t[]){__VA_ARGS__},                                                          \
                sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
/* Adds a child, which has no other parent, to a sequence or alternative; returns the parent. */
uint32_t expr_add(struct exprs *exprs, uint32_t parent, uint32_t child);
uint32_t expr_repeat(struct exprs *exprs, uint32_t child, uint32_t min, uint32_t max);
uint32_t expr_token(struct exprs *exprs, uint32_t id);
uint32_t expr_rule(struct exprs *exprs, uint32_t rule);
uint32_t expr_byte(struct exprs *exprs, uint32_t low, uint32_t high);

/* A rule to be defined later. */
uint32_t exprs_new_rule(struct exprs *exprs);
void exprs_define(struct exprs *exprs, uint32_t rule, uint32_t expr);

/* Sorts and joins ranges in place; returns how many are left. Then: all characters but those (surrogates are
 * none); `out` has room for count + 2. */
uint32_t ranges_normalize(struct expr_range *ranges, uint32_t count);
uint32_t ranges_invert(const struct expr_range *ranges, uint32_t count, struct expr_range *out);

/* Any text up to and with `marker` (of ASCII, its first character once in it); or any text without it. */
uint32_t expr_until(struct exprs *exprs, const char *marker);
uint32_t expr_without(struct exprs *exprs, const char *marker);

/* One character of a text, 1 to 4 bytes at *at, which must be UTF-8: false where it is not. */
bool expr_next_char(const char *text, size_t length, size_t *at, uint32_t *c);
