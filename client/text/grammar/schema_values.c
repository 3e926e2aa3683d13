/* Strings, numbers, literals and any JSON. See schema.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/regex.h"
#include "client/text/grammar/schema.h"

#define SPACE_MAX      20 /* behind a line end: ten levels of two */
#define DIGITS_MAX     16 /* of a number before and behind its point */
#define INTEGER_DIGITS 18 /* of an integer: it fits 64 bits */
#define BOUND_MAX      999999999999999999.0
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

static uint32_t make_fraction(struct exprs *x)
{
    return seq4(x, expr_char(x, '.'), expr_repeat(x, digit(x, '0', '9'), 1, DIGITS_MAX), EXPR_NONE,
                EXPR_NONE);
}

static uint32_t make_number(struct exprs *x)
{
    const uint32_t exponent = seq4(x, one_of(x, "eE"), optional(x, one_of(x, "+-")),
                                   expr_repeat(x, digit(x, '0', '9'), 1, 2), EXPR_NONE);
    return seq4(x, optional(x, expr_char(x, '-')), make_digits(x, DIGITS_MAX), optional(x, make_fraction(x)),
                optional(x, exponent));
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
    char *dumped = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!dumped || strlen(dumped) > LITERAL_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "a constant has more than %d bytes", LITERAL_MAX);
        free(dumped);
        return 0;
    }
    const uint32_t e = text(x, dumped);
    free(dumped);
    return e;
}

/* ---- strings ---- */

uint32_t schema_string(struct schema *s, const json_t *node)
{
    struct exprs *x = s->x;
    const json_t *pattern = json_object_get(node, "pattern"), *format = json_object_get(node, "format");
    const uint32_t min = schema_count(s, node, "minLength", 0),
                   max = schema_count(s, node, "maxLength", EXPR_UNBOUNDED);
    const bool bounded = min > 0 || max != EXPR_UNBOUNDED;
    uint32_t inner;
    if ((pattern != NULL) + (format != NULL) + bounded > 1) {
        schema_refuse(s, HELM_E_UNSUPPORTED,
                      "of 'pattern', 'format' and 'minLength' with 'maxLength' one is supported at a time");
        return 0;
    }
    if (max < min) schema_refuse(s, HELM_E_FORMAT, "'maxLength' is less than 'minLength'");
    if (pattern) {
        if (!json_is_string(pattern)) schema_refuse(s, HELM_E_FORMAT, "'pattern' is not a text");
        inner = regex_parse(x, json_string_value(pattern) ? json_string_value(pattern) : "",
                            json_string_length(pattern), REGEX_JSON_SEARCH);
    } else if (format) {
        const char *known = json_is_string(format) ? schema_format_pattern(json_string_value(format)) : NULL;
        if (!known) {
            schema_refuse(s, HELM_E_UNSUPPORTED, "the format '%.64s' is not supported",
                          json_is_string(format) ? json_string_value(format) : "?");
            return 0;
        }
        inner = regex_parse(x, known, strlen(known), REGEX_JSON_SEARCH);
    } else if (!bounded) {
        return expr_rule(x, json_rule(x, ANY_STRING));
    } else {
        inner = expr_repeat(x, json_text_any(x), min, max);
    }
    return seq4(x, expr_char(x, '"'), inner, expr_char(x, '"'), EXPR_NONE);
}

/* ---- numbers in bounds ---- */

/* Numbers of n digits from low to high. */
static uint32_t same_length(struct exprs *x, const char *low, const char *high, size_t n)
{
    static const char zeros[] = "000000000000000000", nines[] = "999999999999999999";
    if (n == 0) return expr_seq(x);
    if (memcmp(low, zeros, n) == 0 && memcmp(high, nines, n) == 0)
        return expr_repeat(x, digit(x, '0', '9'), (uint32_t)n, (uint32_t)n);
    if (low[0] == high[0])
        return seq4(x, expr_char(x, (unsigned char)low[0]), same_length(x, low + 1, high + 1, n - 1),
                    EXPR_NONE, EXPR_NONE);
    const uint32_t alt = expr_alt(x);
    char first = low[0], last = high[0];
    if (memcmp(low + 1, zeros, n - 1) != 0) {
        expr_add(x, alt,
                 seq4(x, expr_char(x, (unsigned char)first), same_length(x, low + 1, nines, n - 1), EXPR_NONE,
                      EXPR_NONE));
        first++;
    }
    if (memcmp(high + 1, nines, n - 1) != 0) {
        expr_add(x, alt,
                 seq4(x, expr_char(x, (unsigned char)last), same_length(x, zeros, high + 1, n - 1), EXPR_NONE,
                      EXPR_NONE));
        last--;
    }
    if (first <= last)
        expr_add(x, alt,
                 seq4(x, digit(x, first, last),
                      expr_repeat(x, digit(x, '0', '9'), (uint32_t)n - 1, (uint32_t)n - 1), EXPR_NONE,
                      EXPR_NONE));
    return alt;
}

/* Whole numbers from low to high, both from 0 to 10^18 - 1; of none: nothing. */
static uint32_t whole_range(struct exprs *x, uint64_t low, uint64_t high)
{
    const uint32_t alt = expr_alt(x);
    uint64_t least = 0, most = 9;
    for (int n = 1; n <= INTEGER_DIGITS; n++, least = most + 1, most = most * 10 + 9) {
        const uint64_t from = low > least ? low : least, to = high < most ? high : most;
        char a[24], b[24];
        if (from > to) continue;
        snprintf(a, sizeof a, "%0*llu", n, (unsigned long long)from);
        snprintf(b, sizeof b, "%0*llu", n, (unsigned long long)to);
        expr_add(x, alt, same_length(x, a, b, (size_t)n));
    }
    return alt;
}

/* Digits with something other than 0 in them. */
static uint32_t fraction_above_zero(struct exprs *x)
{
    return seq4(x, expr_char(x, '.'), expr_repeat(x, expr_char(x, '0'), 0, DIGITS_MAX - 1),
                digit(x, '1', '9'), expr_repeat(x, digit(x, '0', '9'), 0, DIGITS_MAX));
}

struct bounds {
    bool has_low, has_high, open_low, open_high;
    int64_t low, high; /* whole */
};

/* Numbers from low to high, both not negative, in decimals; bounds as `open` says are not in it. */
static uint32_t decimal_range(struct exprs *x, uint64_t low, uint64_t high, bool open_low, bool open_high)
{
    const uint32_t alt = expr_alt(x);
    if (low > high || (low == high && (open_low || open_high))) return alt;
    if (!open_high) {
        const uint32_t zeros = seq4(x, expr_char(x, '.'), expr_repeat(x, expr_char(x, '0'), 1, DIGITS_MAX),
                                    EXPR_NONE, EXPR_NONE);
        expr_add(x, alt, seq4(x, whole_range(x, high, high), optional(x, zeros), EXPR_NONE, EXPR_NONE));
    }
    if (low == high) return alt;
    const uint32_t fraction = open_low ? fraction_above_zero(x) : optional(x, make_fraction(x));
    expr_add(x, alt, seq4(x, whole_range(x, low, low), fraction, EXPR_NONE, EXPR_NONE));
    if (low + 1 < high)
        expr_add(x, alt,
                 seq4(x, whole_range(x, low + 1, high - 1), optional(x, make_fraction(x)), EXPR_NONE,
                      EXPR_NONE));
    return alt;
}

static bool take_bound(struct schema *s, const json_t *node, const char *key, int64_t *to)
{
    const json_t *value = json_object_get(node, key);
    if (!value) return false;
    const double number = json_number_value(value);
    if (!json_is_number(value) || number != floor(number)) {
        schema_refuse(s, HELM_E_UNSUPPORTED, "'%s' that is not a whole number is not supported", key);
        return false;
    }
    if (fabs(number) > BOUND_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "'%s' is %g, not between -10^18 and 10^18", key, number);
        return false;
    }
    *to = json_is_integer(value) ? (int64_t)json_integer_value(value) : (int64_t)number;
    return true;
}

static struct bounds take_bounds(struct schema *s, const json_t *node)
{
    struct bounds b = {.low = -(int64_t)BOUND_MAX, .high = (int64_t)BOUND_MAX};
    int64_t open = 0;
    b.has_low = take_bound(s, node, "minimum", &b.low);
    if (take_bound(s, node, "exclusiveMinimum", &open) && (!b.has_low || open >= b.low)) {
        b.low = open;
        b.has_low = b.open_low = true;
    }
    b.has_high = take_bound(s, node, "maximum", &b.high);
    if (take_bound(s, node, "exclusiveMaximum", &open) && (!b.has_high || open <= b.high)) {
        b.high = open;
        b.has_high = b.open_high = true;
    }
    const int64_t most = 999999999999999999;
    if (b.low < -most) b.low = -most;
    if (b.high > most) b.high = most;
    return b;
}

static uint64_t size_of(int64_t n)
{
    return n < 0 ? (uint64_t)-n : (uint64_t)n;
}

static uint32_t integer_in(struct exprs *x, struct bounds b)
{
    const uint32_t alt = expr_alt(x);
    b.low += b.open_low;
    b.high -= b.open_high;
    if (b.low > b.high) return alt;
    if (b.high >= 0) expr_add(x, alt, whole_range(x, b.low > 0 ? (uint64_t)b.low : 0, (uint64_t)b.high));
    if (b.low < 0) {
        const uint32_t size = whole_range(x, b.high < 0 ? size_of(b.high) : 1, size_of(b.low));
        expr_add(x, alt, seq4(x, expr_char(x, '-'), size, EXPR_NONE, EXPR_NONE));
    }
    return alt;
}

static uint32_t decimal_in(struct exprs *x, const struct bounds *b)
{
    const uint32_t alt = expr_alt(x);
    if (b->high >= 0)
        expr_add(x, alt,
                 decimal_range(x, b->low > 0 ? (uint64_t)b->low : 0, (uint64_t)b->high,
                               b->open_low && b->low >= 0, b->open_high));
    if (b->low < 0) {
        const uint32_t size = decimal_range(x, b->high < 0 ? size_of(b->high) : 0, size_of(b->low),
                                            b->high >= 0 || b->open_high, b->open_low);
        expr_add(x, alt, seq4(x, expr_char(x, '-'), size, EXPR_NONE, EXPR_NONE));
    }
    return alt;
}

uint32_t schema_number(struct schema *s, const json_t *node, bool integer)
{
    const json_t *multiple = json_object_get(node, "multipleOf");
    const struct bounds b = take_bounds(s, node);
    if (multiple && !(integer && json_is_number(multiple) && json_number_value(multiple) == 1))
        schema_refuse(s, HELM_E_UNSUPPORTED, "'multipleOf' is supported as 1 of an integer only");
    if (s->x->failed) return 0;
    if (!b.has_low && !b.has_high)
        return expr_rule(s->x, json_rule(s->x, integer ? ANY_INTEGER : ANY_NUMBER));
    return integer ? integer_in(s->x, b) : decimal_in(s->x, &b);
}
