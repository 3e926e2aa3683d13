/* Literals and any JSON. See schema.h. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/schema.h"
#include "common/base/json_numbers.h"

#define SPACE_MAX      20 /* after a line end: ten levels of two */
#define DIGITS_MAX     16 /* of a number before its point */
#define INTEGER_DIGITS 18 /* of an integer: it fits 64 bits */
#define LITERAL_MAX    65536

static uint32_t text(struct exprs *x, const char *s)
{
    return expr_text(x, s, strlen(s));
}

static uint32_t one_of(struct exprs *x, const char *chars)
{
    struct expr_range range[32];
    uint32_t n = 0;
    for (; chars[n] && n < 32; n++)
        range[n] = (struct expr_range){(unsigned char)chars[n], (unsigned char)chars[n]};
    return expr_set(x, range, n);
}

static uint32_t digit(struct exprs *x, char low, char high)
{
    return expr_set(x, &(struct expr_range){(unsigned char)low, (unsigned char)high}, 1);
}

/* A sequence of up to four parts. */
static uint32_t seq4(struct exprs *x, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const uint32_t parts[] = {a, b, c, d}, seq = expr_seq(x);
    for (int i = 0; i < 4; i++)
        if (parts[i] != EXPR_NONE) expr_add(x, seq, parts[i]);
    return seq;
}

static uint32_t optional(struct exprs *x, uint32_t e)
{
    return expr_repeat(x, e, 0, 1);
}

/* ---- any JSON ---- */

static uint32_t make_space(struct exprs *x)
{
    const uint32_t alt = expr_alt(x);
    expr_add(x, alt, optional(x, expr_char(x, ' ')));
    return expr_add(x, alt,
                    seq4(x, expr_char(x, '\n'), expr_repeat(x, one_of(x, " \t"), 0, SPACE_MAX), EXPR_NONE,
                         EXPR_NONE));
}

static uint32_t make_string(struct exprs *x)
{
    return seq4(x, expr_char(x, '"'), expr_repeat(x, json_text_any(x), 0, EXPR_UNBOUNDED), expr_char(x, '"'),
                EXPR_NONE);
}

static uint32_t make_digits(struct exprs *x, uint32_t most)
{
    const uint32_t alt = expr_add(x, expr_alt(x), expr_char(x, '0'));
    return expr_add(x, alt,
                    seq4(x, digit(x, '1', '9'), expr_repeat(x, digit(x, '0', '9'), 0, most - 1), EXPR_NONE,
                         EXPR_NONE));
}

static uint32_t make_fraction(struct exprs *x, uint32_t places)
{
    return seq4(x, expr_char(x, '.'), expr_repeat(x, digit(x, '0', '9'), 1, places), EXPR_NONE, EXPR_NONE);
}

static uint32_t make_number(struct exprs *x)
{
    const uint32_t exponent = seq4(x, one_of(x, "eE"), optional(x, one_of(x, "+-")),
                                   expr_repeat(x, digit(x, '0', '9'), 1, 2), EXPR_NONE);
    return seq4(x, optional(x, expr_char(x, '-')), make_digits(x, DIGITS_MAX),
                optional(x, make_fraction(x, SCHEMA_PLACES_MAX)), optional(x, exponent));
}

static uint32_t make_value(struct exprs *x)
{
    static const enum json_rule rules[] = {ANY_OBJECT, ANY_ARRAY, ANY_STRING, ANY_NUMBER};
    static const char *const words[] = {"true", "false", "null"};
    const uint32_t alt = expr_alt(x);
    for (size_t i = 0; i < 4; i++) expr_add(x, alt, expr_rule(x, json_rule(x, rules[i])));
    for (size_t i = 0; i < 3; i++) expr_add(x, alt, text(x, words[i]));
    return alt;
}

/* One item, with white space where it may be. */
static uint32_t make_item(struct exprs *x, bool member)
{
    const uint32_t value = expr_rule(x, json_rule(x, ANY_VALUE));
    if (!member) return value;
    return seq4(x, expr_rule(x, json_rule(x, ANY_STRING)), expr_char(x, ':'), schema_space(x), value);
}

/* An object or an array of anything. */
static uint32_t make_list(struct exprs *x, bool object)
{
    const uint32_t more = seq4(x, expr_char(x, ','), schema_space(x), make_item(x, object), EXPR_NONE);
    const uint32_t items =
        seq4(x, make_item(x, object), expr_repeat(x, more, 0, EXPR_UNBOUNDED), schema_space(x), EXPR_NONE);
    return seq4(x, expr_char(x, object ? '{' : '['), schema_space(x), optional(x, items),
                expr_char(x, object ? '}' : ']'));
}

uint32_t json_rule(struct exprs *x, enum json_rule which)
{
    if (x->json_rule[which]) return x->json_rule[which] - 1;
    const uint32_t rule = exprs_new_rule(x);
    x->json_rule[which] = rule + 1; /* before it is defined: values contain values */
    uint32_t e = 0;
    switch (which) {
    case ANY_SPACE:
        e = make_space(x);
        break;
    case ANY_STRING:
        e = make_string(x);
        break;
    case ANY_NUMBER:
        e = make_number(x);
        break;
    case ANY_INTEGER:
        e = seq4(x, optional(x, expr_char(x, '-')), make_digits(x, INTEGER_DIGITS), EXPR_NONE, EXPR_NONE);
        break;
    case ANY_VALUE:
        e = make_value(x);
        break;
    case ANY_OBJECT:
    case ANY_ARRAY:
        e = make_list(x, which == ANY_OBJECT);
        break;
    }
    exprs_define(x, rule, e);
    return rule;
}

uint32_t schema_space(struct exprs *x)
{
    return expr_rule(x, json_rule(x, ANY_SPACE));
}

uint32_t schema_any_object(struct exprs *x)
{
    return expr_rule(x, json_rule(x, ANY_OBJECT));
}

/* ---- literals ---- */

uint32_t schema_literal(struct schema *s, const json_t *value)
{
    struct exprs *x = s->x;
    if (json_is_string(value))
        return seq4(x, expr_char(x, '"'),
                    json_text_of(x, json_string_value(value), json_string_length(value)), expr_char(x, '"'),
                    EXPR_NONE);
    char *dumped = json_dump_numbers(value, JSON_COMPACT | JSON_ENCODE_ANY, x->numbers);
    if (!dumped || strlen(dumped) > LITERAL_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "a constant has more than %d bytes", LITERAL_MAX);
        free(dumped);
        return 0;
    }
    const uint32_t e = text(x, dumped);
    free(dumped);
    return e;
}
