/* Numbers, literals and any JSON. See schema.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/schema.h"
#include "common/base/json_numbers.h"

#define SPACE_MAX          20 /* behind a line end: ten levels of two */
#define DIGITS_MAX         16 /* of a number before and behind its point */
#define INTEGER_DIGITS     18 /* of an integer: it fits 64 bits */
#define INTEGER_DIGITS_MAX 19 /* of one in bounds: 2^63 */
#define BOUND_MAX          9223372036854775808.0
#define MODULUS_MAX        256
#define LITERAL_MAX        65536

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
                optional(x, make_fraction(x, DIGITS_MAX)), optional(x, exponent));
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

/* ---- multiples ---- */

/* Whole numbers that `modulus` divides, by their digits: a rule for each remainder and number of digits to come. Of a
 * multiple of 10^n the last digits are not looked at: `zeros` follow. */
struct multiple {
    uint32_t modulus, zeros;
    uint32_t rule[INTEGER_DIGITS_MAX + 1][MODULUS_MAX]; /* plus one; 0: not made yet */
};

static uint32_t digits_of(struct exprs *x, struct multiple *m, uint32_t remainder, size_t left)
{
    if (m->modulus == 1) return expr_repeat(x, digit(x, '0', '9'), (uint32_t)left, (uint32_t)left);
    if (left == 0) return remainder ? expr_alt(x) : expr_seq(x);
    if (!m->rule[left][remainder]) {
        const uint32_t rule = exprs_new_rule(x), alt = expr_alt(x);
        m->rule[left][remainder] = rule + 1;
        for (uint32_t d = 0; d < 10 && !x->failed; d++)
            expr_add(x, alt,
                     seq4(x, expr_char(x, '0' + d),
                          digits_of(x, m, (remainder * 10 + d) % m->modulus, left - 1), EXPR_NONE,
                          EXPR_NONE));
        exprs_define(x, rule, alt);
    }
    return expr_rule(x, m->rule[left][remainder] - 1);
}

/* Any of the digits from first to last, then `left` more. */
static uint32_t digit_and_more(struct exprs *x, struct multiple *m, uint32_t remainder, char first, char last,
                               size_t left)
{
    if (m->modulus == 1)
        return seq4(x, digit(x, first, last), digits_of(x, m, 0, left), EXPR_NONE, EXPR_NONE);
    const uint32_t alt = expr_alt(x);
    for (char d = first; d <= last; d++)
        expr_add(x, alt,
                 seq4(x, expr_char(x, (unsigned char)d),
                      digits_of(x, m, (remainder * 10 + (uint32_t)(d - '0')) % m->modulus, left), EXPR_NONE,
                      EXPR_NONE));
    return alt;
}

/* ---- numbers in bounds ---- */

/* Numbers of n digits from low to high; the digits before them left `remainder`. */
static uint32_t same_length(struct exprs *x, struct multiple *m, uint32_t remainder, const char *low,
                            const char *high, size_t n)
{
    static const char zeros[] = "0000000000000000000", nines[] = "9999999999999999999";
    if (n == 0) return remainder ? expr_alt(x) : expr_seq(x);
    if (memcmp(low, zeros, n) == 0 && memcmp(high, nines, n) == 0) return digits_of(x, m, remainder, n);
    char first = low[0], last = high[0];
    const uint32_t after_low = (remainder * 10 + (uint32_t)(first - '0')) % m->modulus,
                   after_high = (remainder * 10 + (uint32_t)(last - '0')) % m->modulus;
    if (first == last)
        return seq4(x, expr_char(x, (unsigned char)first),
                    same_length(x, m, after_low, low + 1, high + 1, n - 1), EXPR_NONE, EXPR_NONE);
    const uint32_t alt = expr_alt(x);
    if (memcmp(low + 1, zeros, n - 1) != 0)
        expr_add(x, alt,
                 seq4(x, expr_char(x, (unsigned char)first++),
                      same_length(x, m, after_low, low + 1, nines, n - 1), EXPR_NONE, EXPR_NONE));
    if (memcmp(high + 1, nines, n - 1) != 0)
        expr_add(x, alt,
                 seq4(x, expr_char(x, (unsigned char)last--),
                      same_length(x, m, after_high, zeros, high + 1, n - 1), EXPR_NONE, EXPR_NONE));
    if (first <= last) expr_add(x, alt, digit_and_more(x, m, remainder, first, last, n - 1));
    return alt;
}

/* Whole numbers from low to high, both from 0 to 10^19 - 1; of none: nothing. */
static uint32_t whole_multiples(struct exprs *x, struct multiple *m, uint64_t low, uint64_t high)
{
    const uint32_t alt = expr_alt(x);
    uint64_t least = 0, most = 9;
    for (int n = 1; n <= INTEGER_DIGITS_MAX; n++) {
        const uint64_t from = low > least ? low : least, to = high < most ? high : most;
        char a[24], b[24];
        snprintf(a, sizeof a, "%0*llu", n, (unsigned long long)from);
        snprintf(b, sizeof b, "%0*llu", n, (unsigned long long)to);
        if (from <= to) expr_add(x, alt, same_length(x, m, 0, a, b, (size_t)n));
        if (n == INTEGER_DIGITS_MAX) break; /* 10^20 does not fit */
        least = most + 1;
        most = most * 10 + 9;
    }
    return alt;
}

static uint32_t whole_range(struct exprs *x, uint64_t low, uint64_t high)
{
    struct multiple all = {.modulus = 1};
    return whole_multiples(x, &all, low, high);
}

/* At most `places` digits with something other than 0 in them. */
static uint32_t fraction_above_zero(struct exprs *x, uint32_t places)
{
    const uint32_t alt = expr_alt(x);
    for (uint32_t zeros = 0; zeros < places; zeros++)
        expr_add(x, alt,
                 seq4(x, expr_char(x, '.'), expr_repeat(x, expr_char(x, '0'), zeros, zeros),
                      digit(x, '1', '9'), expr_repeat(x, digit(x, '0', '9'), 0, places - 1 - zeros)));
    return alt;
}

struct bounds {
    bool has_low, has_high, open_low, open_high;
    int64_t low, high; /* whole */
    uint32_t places;   /* of a decimal */
};

/* Numbers from low to high, both not negative, in decimals; bounds as `open` says are not in it. */
static uint32_t decimal_range(struct exprs *x, uint64_t low, uint64_t high, bool open_low, bool open_high,
                              uint32_t places)
{
    const uint32_t alt = expr_alt(x);
    if (low > high || (low == high && (open_low || open_high))) return alt;
    if (!open_high) {
        const uint32_t zeros =
            seq4(x, expr_char(x, '.'), expr_repeat(x, expr_char(x, '0'), 1, places), EXPR_NONE, EXPR_NONE);
        expr_add(x, alt, seq4(x, whole_range(x, high, high), optional(x, zeros), EXPR_NONE, EXPR_NONE));
    }
    if (low == high) return alt;
    const uint32_t fraction =
        open_low ? fraction_above_zero(x, places) : optional(x, make_fraction(x, places));
    expr_add(x, alt, seq4(x, whole_range(x, low, low), fraction, EXPR_NONE, EXPR_NONE));
    if (low + 1 < high)
        expr_add(x, alt,
                 seq4(x, whole_range(x, low + 1, high - 1), optional(x, make_fraction(x, places)), EXPR_NONE,
                      EXPR_NONE));
    return alt;
}

/* A bound of a whole number, or of a decimal. Beyond 64 bits it binds nothing that could be written, or leaves nothing. */
static bool take_bound(struct schema *s, const json_t *node, const char *key, bool integer, int64_t *to)
{
    const json_t *value = json_object_get(node, key);
    const bool least = strstr(key, "inimum") != NULL;
    if (!value) return false;
    double number = json_number_value(value);
    if (!json_is_number(value)) {
        schema_refuse(s, HELM_E_FORMAT, "'%s' is not a number", key);
        return false;
    }
    if (json_is_integer(value)) {
        *to = (int64_t)json_integer_value(value);
        return true;
    }
    if (number != floor(number) && !integer) {
        schema_refuse(s, HELM_E_UNSUPPORTED, "'%s' that is not a whole number is not supported", key);
        return false;
    }
    if (fabs(number) >= BOUND_MAX) {
        if ((number > 0) == least)
            schema_refuse(s, HELM_E_LIMIT, "'%s' is %g, not between -2^63 and 2^63", key, number);
        return false;
    }
    *to = (int64_t)number;
    return true;
}

/* A bound that is not whole, of whole numbers: the next one is in it. */
static bool is_between(const json_t *node, const char *key)
{
    const double number = json_number_value(json_object_get(node, key));
    return number != floor(number);
}

static struct bounds take_bounds(struct schema *s, const json_t *node, bool integer)
{
    struct bounds b = {.low = INT64_MIN, .high = INT64_MAX, .places = DIGITS_MAX};
    int64_t bound = 0;
    static const char *const lower[] = {"minimum", "exclusiveMinimum"}, *const upper[] = {"maximum",
                                                                                          "exclusiveMaximum"};
    for (int open = 0; open < 2; open++) {
        if (take_bound(s, node, lower[open], integer, &bound)) {
            const bool between = is_between(node, lower[open]); /* cut towards 0 */
            const int64_t low =
                between && bound >= 0 && json_number_value(json_object_get(node, lower[open])) > 0 ? bound + 1
                                                                                                   : bound;
            if (!b.has_low || low > b.low || (low == b.low && open && !between)) {
                b.low = low;
                b.open_low = open && !between;
            }
            b.has_low = true;
        }
        if (take_bound(s, node, upper[open], integer, &bound)) {
            const bool between = is_between(node, upper[open]);
            const int64_t high =
                between && json_number_value(json_object_get(node, upper[open])) < 0 ? bound - 1 : bound;
            if (!b.has_high || high < b.high || (high == b.high && open && !between)) {
                b.high = high;
                b.open_high = open && !between;
            }
            b.has_high = true;
        }
    }
    return b;
}

static uint64_t size_of(int64_t n)
{
    return n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
}

static uint32_t integer_in(struct exprs *x, struct bounds b, struct multiple *m)
{
    const uint32_t alt = expr_alt(x);
    int64_t unit = 1;
    if ((b.open_low && b.low == INT64_MAX) || (b.open_high && b.high == INT64_MIN)) return alt;
    b.low += b.open_low;
    b.high -= b.open_high;
    for (uint32_t i = 0; i < m->zeros; i++) unit *= 10;
    const bool holds_zero = b.low <= 0 && b.high >= 0;
    b.low = b.low / unit + (b.low > 0 && b.low % unit);
    b.high = b.high / unit - (b.high < 0 && b.high % unit);
    const uint32_t ones = m->zeros;
    if (holds_zero) expr_add(x, alt, expr_char(x, '0'));
    if (b.low > b.high) return alt;
    if (b.high > 0)
        expr_add(x, alt,
                 seq4(x, whole_multiples(x, m, b.low > 1 ? (uint64_t)b.low : 1, (uint64_t)b.high),
                      expr_repeat(x, expr_char(x, '0'), ones, ones), EXPR_NONE, EXPR_NONE));
    if (b.low < 0)
        expr_add(x, alt,
                 seq4(x, expr_char(x, '-'),
                      whole_multiples(x, m, b.high < 0 ? size_of(b.high) : 1, size_of(b.low)),
                      expr_repeat(x, expr_char(x, '0'), ones, ones), EXPR_NONE));
    return alt;
}

static uint32_t decimal_in(struct exprs *x, const struct bounds *b)
{
    const uint32_t alt = expr_alt(x);
    if (b->high >= 0)
        expr_add(x, alt,
                 decimal_range(x, b->low > 0 ? (uint64_t)b->low : 0, (uint64_t)b->high,
                               b->open_low && b->low >= 0, b->open_high, b->places));
    if (b->low < 0) {
        const uint32_t size = decimal_range(x, b->high < 0 ? size_of(b->high) : 0, size_of(b->low),
                                            b->high >= 0 || b->open_high, b->open_low, b->places);
        expr_add(x, alt, seq4(x, expr_char(x, '-'), size, EXPR_NONE, EXPR_NONE));
    }
    return alt;
}

/* What `multipleOf` says: of whole numbers a modulus and zeros, of decimals how many places. false: refused. */
static bool take_multiple(struct schema *s, const json_t *value, bool *integer, struct multiple *m,
                          uint32_t *places)
{
    const double number = json_number_value(value), parts = 1 / number;
    if (!json_is_number(value) || !(number > 0)) {
        schema_refuse(s, HELM_E_FORMAT, "'multipleOf' is not a number above 0");
        return false;
    }
    if (*integer && parts == floor(parts)) return true; /* such as 0.5: every whole number is one */
    if (number == floor(number) && number < BOUND_MAX) {
        uint64_t modulus = (uint64_t)number;
        for (; modulus % 10 == 0; modulus /= 10) m->zeros++;
        if (modulus > MODULUS_MAX) {
            schema_refuse(s, HELM_E_LIMIT, "'multipleOf' is %g; without its zeros it is more than %d", number,
                          MODULUS_MAX);
            return false;
        }
        m->modulus = (uint32_t)modulus;
        *integer = true;
        return true;
    }
    double unit = 1;
    for (*places = 0; !*integer && *places < DIGITS_MAX; unit *= 10)
        if (++*places < DIGITS_MAX && fabs(number * unit * 10 - 1) < 1e-9) return true;
    schema_refuse(s, HELM_E_UNSUPPORTED, "'multipleOf' is %g; whole numbers and 0.1, 0.01, ... are supported",
                  number);
    return false;
}

uint32_t schema_number(struct schema *s, const json_t *node, bool integer)
{
    const json_t *value = json_object_get(node, "multipleOf");
    struct multiple *m = calloc(1, sizeof *m);
    uint32_t out = 0, places = DIGITS_MAX;
    if (!m) {
        exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
        return 0;
    }
    m->modulus = 1;
    const bool bound = value && take_multiple(s, value, &integer, m, &places);
    struct bounds b = take_bounds(s, node, integer);
    b.places = places;
    const bool free_of_bounds = !b.has_low && !b.has_high;
    if (s->x->failed)
        out = 0;
    else if (free_of_bounds && (!bound || (integer && m->modulus == 1 && !m->zeros)))
        out = expr_rule(s->x, json_rule(s->x, integer ? ANY_INTEGER : ANY_NUMBER));
    else if (integer)
        out = integer_in(s->x, b, m);
    else
        out = decimal_in(s->x, &b);
    free(m);
    return out;
}
