/* Operators, attributes, subscripts and slices, as Python computes them. See jinja/value.h. Called by
 * jinja/eval.c, and by filters that look into values. */
#include <math.h>
#include <stdio.h>

#include "client/text/jinja/eval.h"

const char *jinja_op_text(char op, char text[2])
{
    static const char codes[] = "ENLGPD", *const texts[] = {"==", "!=", "<=", ">=", "**", "//"};
    const char *found = strchr(codes, op);
    text[0] = op;
    text[1] = '\0';
    return op && found ? texts[found - codes] : text;
}

void jinja_fail_undefined(struct jinja_run *run, const struct jinja_value *undefined)
{
    jinja_fail(run, HELM_E_FORMAT, "%.*s", (int)undefined->as.text.bytes, undefined->as.text.data);
}

static _Noreturn void fail_operands(struct jinja_run *run, char op, const struct jinja_value *a,
                                    const struct jinja_value *b)
{
    char text[2];
    if (a->type == JINJA_UNDEFINED) jinja_fail_undefined(run, a);
    if (b->type == JINJA_UNDEFINED) jinja_fail_undefined(run, b);
    jinja_fail(run, HELM_E_FORMAT, "'%s' cannot be applied to '%s' and '%s'", jinja_op_text(op, text),
               jinja_type_name(a), jinja_type_name(b));
}

/* ---- numbers */

static int64_t floor_divide(int64_t a, int64_t b, int64_t *rest)
{
    int64_t quotient = a / b, remainder = a % b;
    if (remainder && (remainder < 0) != (b < 0)) {
        quotient--;
        remainder += b;
    }
    *rest = remainder;
    return quotient;
}

static bool power(int64_t base, int64_t exponent, int64_t *out)
{
    int64_t result = 1;
    for (;;) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return false;
        exponent >>= 1;
        if (!exponent) break;
        if (__builtin_mul_overflow(base, base, &base)) return false;
    }
    *out = result;
    return true;
}

static struct jinja_value whole_binary(struct jinja_run *run, char op, int64_t a, int64_t b)
{
    int64_t result = 0, rest;
    bool overflow = false;
    switch (op) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case JINJA_OP_POW:
        if (b < 0 && a == 0) jinja_fail(run, HELM_E_FORMAT, "0 cannot be raised to a negative power");
        if (b < 0) return jinja_float(pow((double)a, (double)b));
        overflow = !power(a, b, &result);
        break;
    default:
        if (b == 0) jinja_fail(run, HELM_E_FORMAT, "division by zero");
        if (op == '/')
            return jinja_float((double)((long double)a / (long double)b)); /* which holds 64 bits */
        overflow = a == INT64_MIN && b == -1;
        if (overflow) break;
        result = floor_divide(a, b, &rest);
        if (op == '%') result = rest;
    }
    if (overflow) jinja_fail_wide(run);
    return jinja_int(result);
}

static double float_power(struct jinja_run *run, double a, double b)
{
    if ((a == 0 && b < 0) || (a < 0 && isfinite(b) && b != floor(b)))
        jinja_fail(run, HELM_E_FORMAT, "a power that is not a real number");
    const double result = pow(a, b);
    if (isinf(result) && isfinite(a) && isfinite(b))
        jinja_fail(run, HELM_E_LIMIT, "a power too large for a float");
    return result;
}

static double float_binary(struct jinja_run *run, char op, double a, double b)
{
    if (b == 0 && (op == '/' || op == '%' || op == JINJA_OP_FLOORDIV))
        jinja_fail(run, HELM_E_FORMAT, "division by zero");
    if (op == '+') return a + b;
    if (op == '-') return a - b;
    if (op == '*') return a * b;
    if (op == '/') return a / b;
    if (op == JINJA_OP_POW) return float_power(run, a, b);
    double rest = fmod(a, b), result = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        result -= 1;
    }
    if (op == '%') return rest == 0 ? copysign(0, b) : rest;
    if (result == 0) return copysign(0, a / b);
    const double whole = floor(result);
    return result - whole > 0.5 ? whole + 1 : whole;
}

/* ---- texts and lists */

static struct jinja_value add_texts(struct jinja_run *run, const struct jinja_value *a,
                                    const struct jinja_value *b)
{
    const struct jinja_value *const parts[] = {a, b};
    const bool markup = a->markup || b->markup;
    struct jinja_buffer buffer = {0};
    for (int i = 0; i < 2; i++) {
        const struct jinja_value part =
            markup && !parts[i]->markup ? jinja_escape(run, *parts[i]) : *parts[i];
        jinja_buffer_add(run, &buffer, part.as.text.data, part.as.text.bytes);
    }
    struct jinja_value sum = jinja_buffer_text(&buffer);
    sum.markup = markup;
    return sum;
}

static struct jinja_value add_lists(struct jinja_run *run, const struct jinja_list *a,
                                    const struct jinja_list *b)
{
    struct jinja_list *list = jinja_list_new(run, a->kind, a->count + b->count);
    for (size_t i = 0; i < a->count; i++) jinja_list_add(run, list, a->item[i]);
    for (size_t i = 0; i < b->count; i++) jinja_list_add(run, list, b->item[i]);
    return jinja_list_value(list);
}

static struct jinja_value repeat_text(struct jinja_run *run, const struct jinja_value *what, int64_t times)
{
    struct jinja_buffer buffer = {0};
    for (int64_t i = 0; what->as.text.bytes && i < times; i++) {
        jinja_step(run, 1);
        jinja_buffer_add(run, &buffer, what->as.text.data, what->as.text.bytes);
    }
    struct jinja_value text = jinja_buffer_text(&buffer);
    text.markup = what->markup;
    return text;
}

static struct jinja_value repeat(struct jinja_run *run, const struct jinja_value *what, int64_t times)
{
    if (what->type == JINJA_TEXT) return repeat_text(run, what, times);
    const struct jinja_list *source = what->as.list;
    struct jinja_list *list = jinja_list_new(run, source->kind, 0);
    for (int64_t i = 0; source->count && i < times; i++)
        for (size_t k = 0; k < source->count; k++) jinja_list_add(run, list, source->item[k]);
    return jinja_list_value(list);
}

static bool repeatable(const struct jinja_value *v)
{
    return v->type == JINJA_TEXT || (v->type == JINJA_LIST && jinja_list_holds(v->as.list));
}

struct jinja_value jinja_binary(struct jinja_run *run, char op, const struct jinja_value *a,
                                const struct jinja_value *b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b)) return whole_binary(run, op, jinja_whole(a), jinja_whole(b));
    if (jinja_is_number(a) && jinja_is_number(b) && (a->type == JINJA_WIDE || b->type == JINJA_WIDE))
        jinja_fail_wide(run);
    if (jinja_is_number(a) && jinja_is_number(b))
        return jinja_float(float_binary(run, op, jinja_number(a), jinja_number(b)));
    if (op == '+' && a->type == JINJA_TEXT && b->type == JINJA_TEXT) return add_texts(run, a, b);
    if (op == '+' && a->type == JINJA_LIST && b->type == JINJA_LIST && a->as.list->kind == b->as.list->kind &&
        jinja_list_holds(a->as.list))
        return add_lists(run, a->as.list, b->as.list);
    if (op == '*' && repeatable(a) && jinja_is_whole(b)) return repeat(run, a, jinja_whole(b));
    if (op == '*' && repeatable(b) && jinja_is_whole(a)) return repeat(run, b, jinja_whole(a));
    if (op == '%' && a->type == JINJA_TEXT) return jinja_format(run, a, b);
    fail_operands(run, op, a, b);
}

struct jinja_value jinja_negate(struct jinja_run *run, const struct jinja_value *a, bool minus)
{
    if (a->type == JINJA_FLOAT) return jinja_float(minus ? -a->as.number : a->as.number);
    if (a->type == JINJA_WIDE) jinja_fail_wide(run);
    if (jinja_is_whole(a)) return whole_binary(run, minus ? '-' : '+', 0, jinja_whole(a));
    if (a->type == JINJA_UNDEFINED) jinja_fail_undefined(run, a);
    jinja_fail(run, HELM_E_FORMAT, "a sign before a '%s'", jinja_type_name(a));
}

bool jinja_compare(struct jinja_run *run, char op, const struct jinja_value *a, const struct jinja_value *b)
{
    char text[2];
    if (op == JINJA_OP_EQ || op == JINJA_OP_NE) return jinja_equal(run, a, b) == (op == JINJA_OP_EQ);
    if (op == JINJA_OP_IN || op == JINJA_OP_NOT_IN) return jinja_contains(run, a, b) == (op == JINJA_OP_IN);
    const int order = jinja_order(run, a, b, jinja_op_text(op, text));
    return order != 2 && (op == '<'           ? order < 0
                          : op == '>'         ? order > 0
                          : op == JINJA_OP_LE ? order <= 0
                                              : order >= 0);
}

/* ---- attributes and subscripts */

static struct jinja_value no_attribute(struct jinja_run *run, const struct jinja_value *a,
                                       const struct jinja_value *name)
{
    if (a->type == JINJA_NONE)
        return jinja_undefined(run, "'None' has no attribute '%.*s'", JINJA_SHOWN(name));
    return jinja_undefined(run, "'%s object' has no attribute '%.*s'", jinja_type_name(a), JINJA_SHOWN(name));
}

struct jinja_value jinja_getattr(struct jinja_run *run, const struct jinja_value *a,
                                 const struct jinja_value *name)
{
    const struct jinja_value *found = NULL;
    struct jinja_value own;
    if (a->type == JINJA_UNDEFINED) jinja_fail_undefined(run, a);
    if (a->type == JINJA_LOOP)
        return jinja_loop_attribute(run, a, name, &own) ? own : no_attribute(run, a, name);
    if (a->type != JINJA_NAMESPACE && jinja_method_find(run, a, name, &own)) return own;
    if (a->type == JINJA_DICT || a->type == JINJA_NAMESPACE) found = jinja_dict_find(run, a->as.dict, *name);
    return found ? *found : no_attribute(run, a, name);
}

size_t jinja_text_offset(const struct jinja_value *text, size_t index)
{
    if (text->as.text.bytes == text->as.text.chars)
        return index < text->as.text.bytes ? index : text->as.text.bytes;
    size_t at = 0;
    while (index-- && at < text->as.text.bytes) at += jinja_utf8_size((unsigned char)text->as.text.data[at]);
    return at;
}

/* One item of a sequence, or one character; false: there is none at this index. */
static bool item_at(struct jinja_run *run, const struct jinja_value *a, int64_t at, struct jinja_value *out)
{
    const size_t length = jinja_length(run, a);
    if (at < 0) at += (int64_t)length;
    if (at < 0 || (uint64_t)at >= length) return false;
    if (a->type == JINJA_LIST) {
        *out = a->as.list->item[at];
        return true;
    }
    const size_t offset = jinja_text_offset(a, (size_t)at);
    *out = jinja_text(a->as.text.data + offset, jinja_utf8_size((unsigned char)a->as.text.data[offset]));
    jinja_step(run, offset / 64);
    return true;
}

struct jinja_value jinja_getitem(struct jinja_run *run, const struct jinja_value *a,
                                 const struct jinja_value *index)
{
    struct jinja_value item;
    if (a->type == JINJA_UNDEFINED) jinja_fail_undefined(run, a);
    if (a->type == JINJA_DICT && (index->type != JINJA_LIST || index->as.list->kind == JINJA_LIST_TUPLE)) {
        const struct jinja_value *found = jinja_dict_find(run, a->as.dict, *index);
        if (found) return *found;
    }
    if ((jinja_is_sequence_kind(a) || a->type == JINJA_TEXT) && jinja_is_whole(index) &&
        item_at(run, a, jinja_whole(index), &item))
        return item;
    if (index->type == JINJA_TEXT && a->type != JINJA_NONE) return jinja_getattr(run, a, index);
    struct jinja_buffer buffer = {0};
    if (index->type != JINJA_UNDEFINED && index->type <= JINJA_DICT) jinja_repr(run, &buffer, index);
    const struct jinja_value shown = jinja_buffer_text(&buffer);
    return jinja_undefined(run, "'%s object' has no element %.*s", jinja_type_name(a), JINJA_SHOWN(&shown));
}

/* Python's slice.indices. */
static int64_t slice_bound(struct jinja_run *run, const struct jinja_value *bound, int64_t length,
                           bool backward, int64_t fallback)
{
    if (bound->type == JINJA_NONE) return fallback;
    if (!jinja_is_whole(bound))
        jinja_fail(run, HELM_E_FORMAT, "a slice's bound is a '%s'", jinja_type_name(bound));
    int64_t at = jinja_whole(bound), low = backward ? -1 : 0, high = backward ? length - 1 : length;
    if (at < 0) at += length;
    return at < low ? low : at > high ? high : at;
}

/* The step of a slice of so many items. One past either end takes one item; it is clamped so that adding it
 * cannot overflow. */
static int64_t slice_step(struct jinja_run *run, const struct jinja_value *bound, int64_t length)
{
    if (bound->type == JINJA_NONE) return 1;
    if (!jinja_is_whole(bound))
        jinja_fail(run, HELM_E_FORMAT, "a slice's step is a '%s'", jinja_type_name(bound));
    const int64_t step = jinja_whole(bound);
    if (step == 0) jinja_fail(run, HELM_E_FORMAT, "a slice's step is 0");
    return step > length ? length + 1 : step < -length ? -length - 1 : step;
}

static struct jinja_value slice_text(struct jinja_run *run, const struct jinja_value *a, int64_t start,
                                     int64_t stop, int64_t step)
{
    struct jinja_buffer buffer = {0};
    if (step == 1) {
        size_t from = jinja_text_offset(a, (size_t)start);
        size_t to = stop > start ? jinja_text_offset(a, (size_t)stop) : from;
        jinja_step(run, to / 64);
        return jinja_text(a->as.text.data + from, to - from);
    }
    for (int64_t i = start; step < 0 ? i > stop : i < stop; i += step) {
        size_t at = jinja_text_offset(a, (size_t)i);
        jinja_step(run, 1 + (a->as.text.bytes == a->as.text.chars ? 0 : at / 64));
        jinja_buffer_add(run, &buffer, a->as.text.data + at,
                         jinja_utf8_size((unsigned char)a->as.text.data[at]));
    }
    return jinja_buffer_text(&buffer);
}

struct jinja_value jinja_slice(struct jinja_run *run, const struct jinja_value *a,
                               const struct jinja_value bounds[3])
{
    if (a->type == JINJA_UNDEFINED) jinja_fail_undefined(run, a);
    if (a->type != JINJA_TEXT && !jinja_is_sequence_kind(a))
        jinja_fail(run, HELM_E_FORMAT, "a '%s' cannot be sliced", jinja_type_name(a));
    const int64_t length = (int64_t)jinja_length(run, a), step = slice_step(run, &bounds[2], length);
    const bool backward = step < 0;
    const int64_t start = slice_bound(run, &bounds[0], length, backward, backward ? length - 1 : 0),
                  stop = slice_bound(run, &bounds[1], length, backward, backward ? -1 : length);
    if (a->type == JINJA_TEXT) return slice_text(run, a, start, stop, step);
    /* a slice of a range prints as a list here: templates do not look */
    const bool tuple = a->as.list->kind == JINJA_LIST_TUPLE;
    struct jinja_list *list = jinja_list_new(run, tuple ? JINJA_LIST_TUPLE : JINJA_LIST_PLAIN, 0);
    for (int64_t i = start; backward ? i > stop : i < stop; i += step)
        jinja_list_add(run, list, a->as.list->item[i]);
    return jinja_list_value(list);
}
