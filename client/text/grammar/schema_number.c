/* Numbers in bounds, and multiples. See schema.h.
 *
 * A number is written from its first digit on. Three things alone decide how it may go on: the place of the
 * next digit, whether the digits so far are still the lower or the upper bound's own, and the remainder by
 * `multipleOf`. Bounds are exact, however many digits they have. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/schema.h"

#define WHOLE_MAX   80 /* digits before the point of a bound: 2^256 has 78 */
#define MODULUS_MAX 256
#define SCALE_MAX   77              /* zeros of a multiple, at either end */
#define SCALE_NONE  (SCALE_MAX + 1) /* nothing is said about any digit */

#define MODULUS_DIGITS 3
#define DEFAULT_ZEROS  15 /* multiples of more have but a few numbers of 64 bits, or none but 0 */
#define PLACES         (WHOLE_MAX + 2 + SCHEMA_PLACES_MAX)

/* The numbers that are written without signs, of one sign. */
struct span {
    struct exprs *x;
    const struct decimal *low, *high;
    bool open_low, open_high; /* the bound is not in it */
    uint32_t modulus;         /* multiples of modulus * 10^-scale */
    int64_t scale;
    int64_t places; /* most digits after the point */
    uint32_t
        rule[PLACES]
            [MODULUS_MAX]; /* of a next place and a remainder, without bounds; plus one; 0: not made yet */
};

/* How much of the bounds the digits so far are. */
struct tight {
    bool low, high;
};

static uint32_t digits(struct exprs *x, uint32_t first, uint32_t last)
{
    return expr_set(x, &(struct expr_range){'0' + first, '0' + last}, 1);
}

/* Digits before the point: one of what is below 1. */
static int64_t whole_digits(const struct decimal *d)
{
    return d->point > 0 ? d->point : 1;
}

/* Whether every digit is free: no multiple says anything about it. */
static bool is_free(const struct span *s)
{
    return s->modulus == 1 && s->scale >= s->places;
}

/* All digits above `place` are written, and no more follow. */
static bool may_end(const struct span *s, int64_t place, uint32_t remainder, struct tight t)
{
    const bool rest_low = s->low->count && s->low->point - (int64_t)s->low->count <= place,
               rest_high = s->high->count && s->high->point - (int64_t)s->high->count <= place;
    if (t.low && (rest_low || s->open_low)) return false;
    if (t.high && !rest_high && s->open_high) return false;
    for (int64_t left = place + s->scale; left >= 0 && remainder; left--)
        remainder = remainder * 10 % s->modulus;
    return remainder == 0;
}

static uint32_t next_digit(struct span *s, int64_t place, uint32_t remainder, struct tight t, uint32_t least);

/* The digits of `place` and below it. */
static uint32_t rest(struct span *s, int64_t place, uint32_t remainder, struct tight t)
{
    struct exprs *x = s->x;
    if (place >= 0) return next_digit(s, place, remainder, t, 0);
    const uint32_t alt = expr_alt(x);
    if (may_end(s, place, remainder, t)) expr_add(x, alt, expr_seq(x));
    if (-place > s->places) return alt;
    const uint32_t more = next_digit(s, place, remainder, t, 0);
    return expr_add(x, alt, place == -1 ? EXPR_SEQ(x, expr_char(x, '.'), more) : more);
}

/* The same without bounds, as a rule if there is much to say. */
static uint32_t free_rest(struct span *s, int64_t place, uint32_t remainder)
{
    struct exprs *x = s->x;
    if (is_free(s)) {
        const uint32_t whole = place < 0 ? 0 : (uint32_t)place + 1,
                       left = (uint32_t)(place < -1 ? s->places + place + 1 : s->places);
        const uint32_t seq = expr_add(x, expr_seq(x), expr_repeat(x, digits(x, 0, 9), whole, whole));
        if (!left) return seq;
        if (place < -1) return expr_add(x, seq, expr_repeat(x, digits(x, 0, 9), 0, left));
        const uint32_t part = EXPR_SEQ(x, expr_char(x, '.'), expr_repeat(x, digits(x, 0, 9), 1, left));
        return expr_add(x, seq, expr_repeat(x, part, 0, 1));
    }
    uint32_t *known = &s->rule[place + 1 + SCHEMA_PLACES_MAX][remainder];
    if (!*known) {
        const uint32_t rule = exprs_new_rule(x);
        *known = rule + 1;
        exprs_define(x, rule, rest(s, place, remainder, (struct tight){false, false}));
    }
    return expr_rule(x, *known - 1);
}

static uint32_t after_digit(struct span *s, int64_t place, uint32_t remainder, uint32_t digit, struct tight t)
{
    const struct tight now = {t.low && digit == decimal_digit(s->low, place),
                              t.high && digit == decimal_digit(s->high, place)};
    const bool counts = place >= -s->scale; /* below it there are but zeros */
    const uint32_t left = counts ? (remainder * 10 + digit) % s->modulus : remainder;
    return now.low || now.high ? rest(s, place - 1, left, now) : free_rest(s, place - 1, left);
}

/* A digit from `least` on, and what follows it. */
static uint32_t next_digit(struct span *s, int64_t place, uint32_t remainder, struct tight t, uint32_t least)
{
    struct exprs *x = s->x;
    const uint32_t alt = expr_alt(x), low = t.low ? decimal_digit(s->low, place) : 0,
                   last = place < -s->scale ? 0
                          : t.high          ? decimal_digit(s->high, place)
                                            : 9;
    uint32_t first = low > least ? low : least;
    if (place < -s->scale && remainder) return alt;
    for (uint32_t d = first; d <= last && !x->failed; d++) {
        const bool bound = (t.low && d == low) || (t.high && d == decimal_digit(s->high, place));
        uint32_t to = d; /* all digits between the bounds are alike */
        if (is_free(s) && !bound) to = t.high && last == decimal_digit(s->high, place) ? last - 1 : last;
        expr_add(x, alt, EXPR_SEQ(x, digits(x, d, to), after_digit(s, place, remainder, d, t)));
        d = to;
    }
    return alt;
}

/* All of them. Those of as many digits as a bound begin as it does; the others are free. */
static uint32_t numbers(struct span *s)
{
    struct exprs *x = s->x;
    const uint32_t alt = expr_alt(x);
    const int64_t least = whole_digits(s->low), most = whole_digits(s->high);
    for (int64_t n = least; n <= most && !x->failed; n++) {
        const struct tight t = {n == least, n == most};
        if (is_free(s) && n > 1 && !t.low && !t.high) { /* all such lengths at once */
            const uint32_t more = expr_repeat(x, digits(x, 0, 9), (uint32_t)n - 1, (uint32_t)most - 2);
            expr_add(x, alt, EXPR_SEQ(x, digits(x, 1, 9), EXPR_SEQ(x, more, free_rest(s, -1, 0))));
            n = most - 1;
        } else {
            expr_add(x, alt, next_digit(s, n - 1, 0, t, n > 1));
        }
    }
    return alt;
}

/* ---- bounds ---- */

struct bound {
    bool given, open;
    struct decimal at;
};

/* One keyword's; false: it binds nothing that could be written. */
static bool take_bound(struct schema *s, const json_t *node, const char *key, struct bound *to)
{
    const json_t *value = json_object_get(node, key);
    const bool lower = strstr(key, "inimum") != NULL;
    if (!value || (*key == 'e' && json_is_boolean(value)))
        return false; /* the latter says how the other one is meant */
    if (!json_is_number(value)) {
        schema_refuse(s, HELM_E_FORMAT, "'%s' is not a number", key);
        return false;
    }
    schema_decimal(s, value, &to->at);
    if (whole_digits(&to->at) > WHOLE_MAX) {
        if (to->at.negative != lower)
            schema_refuse(s, HELM_E_LIMIT, "'%s' has more than %d digits before its point", key, WHOLE_MAX);
        return false;
    }
    to->given = true;
    to->open = *key == 'e';
    return true;
}

/* The narrower of two keywords, the second of which excludes its number. Draft 4 has a boolean in its
 * place. */
static void take_bounds(struct schema *s, const json_t *node, bool lower, struct bound *a, struct bound *b,
                        struct bound **out)
{
    const char *open = lower ? "exclusiveMinimum" : "exclusiveMaximum";
    (void)take_bound(s, node, lower ? "minimum" : "maximum", a);
    (void)take_bound(s, node, open, b);
    a->open = json_is_true(json_object_get(node, open));
    *out = a;
    if (!b->given) return;
    const int order = a->given ? decimal_compare(&b->at, &a->at) : 0;
    if (!a->given || order == 0 || (order > 0) == lower) *out = b;
}

/* The bound of a number where the schema has none: 64 bits, or some digits more than the other bound or a
 * multiple has. */
static void default_bound(const struct span *s, const struct bound *other, bool negative, struct decimal *out)
{
    static const char nines[] =
        "999999999999999999999999999999999999999999999999999999999999999999999999999999999";
    _Static_assert(sizeof nines == WHOLE_MAX + 2, "a digit more than a bound");
    decimal_read(negative ? "9223372036854775808" : "9223372036854775807", out);
    int64_t places = s->scale < -DEFAULT_ZEROS ? MODULUS_DIGITS - s->scale : 0;
    if (other->given && other->at.negative == negative && decimal_compare_sizes(&other->at, out) >= 0 &&
        whole_digits(&other->at) >= places)
        places = whole_digits(&other->at) + 1;
    if (places) decimal_read(nines + sizeof nines - 1 - places, out);
}

/* ---- multiples ---- */

/* Takes `multipleOf`. false: refused. */
static bool take_multiple(struct schema *s, const json_t *value, struct span *span, bool *integer)
{
    struct decimal d;
    if (!json_is_number(value) || (schema_decimal(s, value, &d), d.negative || !d.count)) {
        schema_refuse(s, HELM_E_FORMAT, "'multipleOf' is not a number above 0");
        return false;
    }
    uint32_t modulus = 0;
    for (size_t i = 0; i < d.count && modulus <= MODULUS_MAX; i++)
        modulus = 10 * modulus + decimal_digit(&d, d.point - 1 - (int64_t)i);
    span->scale = (int64_t)d.count - d.point;
    if (modulus > MODULUS_MAX || span->scale > SCALE_MAX || span->scale < -SCALE_MAX) {
        schema_refuse(s, HELM_E_LIMIT,
                      "'multipleOf' is %.15g; without zeros at its ends it is more than %d, or the zeros are "
                      "more than %d",
                      json_number_value(value), MODULUS_MAX, SCALE_MAX);
        return false;
    }
    span->modulus = modulus;
    if (span->scale <= 0) *integer = true;
    return true;
}

/* ---- both ---- */

static uint32_t bounded(struct schema *s, const json_t *node, struct span *span)
{
    struct exprs *x = s->x;
    struct bound bounds[4] = {0}, *low, *high;
    struct decimal least, most, zero;
    take_bounds(s, node, true, &bounds[0], &bounds[1], &low);
    take_bounds(s, node, false, &bounds[2], &bounds[3], &high);
    if (x->failed) return 0;
    if (!low->given && !high->given && is_free(span) && (!span->places || span->scale == SCALE_NONE))
        return json_any(x, span->places ? ANY_NUMBER : ANY_INTEGER);
    const uint32_t alt = expr_alt(x);
    decimal_read("0", &zero);
    default_bound(span, low, false, &most);
    default_bound(span, high, true, &least);
    const struct decimal *from = low->given ? &low->at : NULL, *to = high->given ? &high->at : NULL;
    if (!to || !to->negative) { /* 0 and above */
        const bool above = from && !from->negative;
        span->low = above ? from : &zero;
        span->high = to ? to : &most;
        span->open_low = above && low->open;
        span->open_high = to && high->open;
        if (decimal_compare(span->low, span->high) <= 0) expr_add(x, alt, numbers(span));
    }
    if (!from || from->negative) {
        const bool below = to && to->negative;
        span->low = below ? to : &zero;
        span->high = from ? from : &least;
        span->open_low = !below || high->open; /* no -0 */
        span->open_high = from && low->open;
        if (decimal_compare_sizes(span->low, span->high) <= 0)
            expr_add(x, alt, EXPR_SEQ(x, expr_char(x, '-'), numbers(span)));
    }
    return alt;
}

uint32_t schema_number(struct schema *s, const json_t *node, bool integer)
{
    const json_t *multiple = json_object_get(node, "multipleOf");
    struct span *span = calloc(1, sizeof *span);
    uint32_t out = 0;
    if (!span) {
        exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
        return 0;
    }
    span->x = s->x;
    span->modulus = 1;
    span->scale = SCALE_NONE;
    if (!multiple || take_multiple(s, multiple, span, &integer)) {
        span->places = integer ? 0 : span->scale < SCHEMA_PLACES_MAX ? span->scale : SCHEMA_PLACES_MAX;
        out = bounded(s, node, span);
    }
    free(span);
    return out;
}
