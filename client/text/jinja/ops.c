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

int jinja_fail_undefined(struct jinja_run *run, const struct jinja_value *undefined)
{
    return jinja_fail(run, HELM_E_FORMAT, "%.*s", (int)undefined->as.text.bytes, undefined->as.text.data);
}

static int fail_operands(struct jinja_run *run, char op, const struct jinja_value *a,
                         const struct jinja_value *b)
{
    char text[2];
    if (a->type == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    if (b->type == JINJA_UNDEFINED) return jinja_fail_undefined(run, b);
    return jinja_fail(run, HELM_E_FORMAT, "'%s' cannot be applied to '%s' and '%s'", jinja_op_text(op, text),
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

static int whole_binary(struct jinja_run *run, char op, int64_t a, int64_t b, struct jinja_value *out)
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
        if (b < 0) {
            if (a == 0) return jinja_fail(run, HELM_E_FORMAT, "0 cannot be raised to a negative power");
            *out = jinja_float(pow((double)a, (double)b));
            return 0;
        }
        overflow = !power(a, b, &result);
        break;
    default:
        if (b == 0) return jinja_fail(run, HELM_E_FORMAT, "division by zero");
        if (op == '/') {
            *out = jinja_float((double)((long double)a / (long double)b)); /* which holds 64 bits */
            return 0;
        }
        overflow = a == INT64_MIN && b == -1;
        if (overflow) break;
        result = floor_divide(a, b, &rest);
        if (op == '%') result = rest;
    }
    if (overflow) return jinja_fail_wide(run);
    *out = jinja_int(result);
    return 0;
}

static int float_binary(struct jinja_run *run, char op, double a, double b, struct jinja_value *out)
{
    if (b == 0 && (op == '/' || op == '%' || op == JINJA_OP_FLOORDIV))
        return jinja_fail(run, HELM_E_FORMAT, "division by zero");
    double result, rest;
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        result = a * b;
        break;
    case '/':
        result = a / b;
        break;
    case JINJA_OP_POW:
        if ((a == 0 && b < 0) || (a < 0 && isfinite(b) && b != floor(b)))
            return jinja_fail(run, HELM_E_FORMAT, "a power that is not a real number");
        result = pow(a, b);
        if (isinf(result) && isfinite(a) && isfinite(b))
            return jinja_fail(run, HELM_E_LIMIT, "a power too large for a float");
        break;
    default:
        rest = fmod(a, b);
        result = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
            result -= 1;
        }
        if (rest == 0) rest = copysign(0, b);
        if (op == '%') {
            result = rest;
        } else if (result != 0) {
            double whole = floor(result);
            result = result - whole > 0.5 ? whole + 1 : whole;
        } else {
            result = copysign(0, a / b);
        }
    }
    *out = jinja_float(result);
    return 0;
}

/* ---- texts and lists */

static int escape_if(struct jinja_run *run, bool needed, const struct jinja_value *in,
                     struct jinja_value *out)
{
    *out = *in;
    return needed && !in->markup ? jinja_escape(run, *in, out) : 0;
}

static int add_texts(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b,
                     struct jinja_value *out)
{
    struct jinja_value x, y;
    bool markup = a->markup || b->markup;
    int rc = escape_if(run, markup, a, &x);
    if (!rc) rc = escape_if(run, markup, b, &y);
    if (rc) return rc;
    struct jinja_buffer buffer = {0};
    rc = jinja_buffer_add(run, &buffer, x.as.text.data, x.as.text.bytes);
    if (!rc) rc = jinja_buffer_add(run, &buffer, y.as.text.data, y.as.text.bytes);
    *out = jinja_buffer_text(&buffer);
    out->markup = markup;
    return rc;
}

static int add_lists(struct jinja_run *run, const struct jinja_list *a, const struct jinja_list *b,
                     struct jinja_value *out)
{
    struct jinja_list *list;
    int rc = jinja_list_new(run, a->kind, a->count + b->count, &list);
    for (size_t i = 0; !rc && i < a->count; i++) rc = jinja_list_add(run, list, a->item[i]);
    for (size_t i = 0; !rc && i < b->count; i++) rc = jinja_list_add(run, list, b->item[i]);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int repeat(struct jinja_run *run, const struct jinja_value *what, int64_t times,
                  struct jinja_value *out)
{
    struct jinja_buffer buffer = {0};
    struct jinja_list *list;
    int rc = 0;
    if (what->type == JINJA_TEXT) {
        for (int64_t i = 0; !rc && what->as.text.bytes && i < times; i++) {
            rc = jinja_step(run, 1);
            if (!rc) rc = jinja_buffer_add(run, &buffer, what->as.text.data, what->as.text.bytes);
        }
        *out = jinja_buffer_text(&buffer);
        out->markup = what->markup;
        return rc;
    }
    const struct jinja_list *source = what->as.list;
    rc = jinja_list_new(run, source->kind, 0, &list);
    for (int64_t i = 0; !rc && source->count && i < times; i++)
        for (size_t k = 0; !rc && k < source->count; k++) rc = jinja_list_add(run, list, source->item[k]);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static bool repeatable(const struct jinja_value *v)
{
    return v->type == JINJA_TEXT || (v->type == JINJA_LIST && jinja_list_holds(v->as.list));
}

int jinja_binary(struct jinja_run *run, char op, const struct jinja_value *a, const struct jinja_value *b,
                 struct jinja_value *out)
{
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return whole_binary(run, op, jinja_whole(a), jinja_whole(b), out);
    if (jinja_is_number(a) && jinja_is_number(b) && (a->type == JINJA_WIDE || b->type == JINJA_WIDE))
        return jinja_fail_wide(run);
    if (jinja_is_number(a) && jinja_is_number(b))
        return float_binary(run, op, jinja_number(a), jinja_number(b), out);
    if (op == '+' && a->type == JINJA_TEXT && b->type == JINJA_TEXT) return add_texts(run, a, b, out);
    if (op == '+' && a->type == JINJA_LIST && b->type == JINJA_LIST && a->as.list->kind == b->as.list->kind &&
        jinja_list_holds(a->as.list))
        return add_lists(run, a->as.list, b->as.list, out);
    if (op == '*' && repeatable(a) && jinja_is_whole(b)) return repeat(run, a, jinja_whole(b), out);
    if (op == '*' && repeatable(b) && jinja_is_whole(a)) return repeat(run, b, jinja_whole(a), out);
    if (op == '%' && a->type == JINJA_TEXT) return jinja_format(run, a, b, out);
    return fail_operands(run, op, a, b);
}

int jinja_negate(struct jinja_run *run, const struct jinja_value *a, bool minus, struct jinja_value *out)
{
    if (a->type == JINJA_FLOAT) {
        *out = jinja_float(minus ? -a->as.number : a->as.number);
        return 0;
    }
    if (a->type == JINJA_WIDE) return jinja_fail_wide(run);
    if (jinja_is_whole(a)) return whole_binary(run, minus ? '-' : '+', 0, jinja_whole(a), out);
    if (a->type == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    return jinja_fail(run, HELM_E_FORMAT, "a sign before a '%s'", jinja_type_name(a));
}

int jinja_compare(struct jinja_run *run, char op, const struct jinja_value *a, const struct jinja_value *b,
                  bool *out)
{
    char text[2];
    int rc, order;
    switch (op) {
    case JINJA_OP_EQ:
    case JINJA_OP_NE:
        rc = jinja_equal(run, a, b, out);
        *out ^= op == JINJA_OP_NE;
        return rc;
    case JINJA_OP_IN:
    case JINJA_OP_NOT_IN:
        rc = jinja_contains(run, a, b, out);
        *out ^= op == JINJA_OP_NOT_IN;
        return rc;
    default:
        rc = jinja_order(run, a, b, jinja_op_text(op, text), &order);
        *out = order != 2 && (op == '<'           ? order < 0
                              : op == '>'         ? order > 0
                              : op == JINJA_OP_LE ? order <= 0
                                                  : order >= 0);
        return rc;
    }
}

/* ---- attributes and subscripts */

static int no_attribute(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *name,
                        struct jinja_value *out)
{
    int length = (int)(name->as.text.bytes < 100 ? name->as.text.bytes : 100);
    if (a->type == JINJA_NONE)
        return jinja_undefined(run, out, "'None' has no attribute '%.*s'", length, name->as.text.data);
    return jinja_undefined(run, out, "'%s object' has no attribute '%.*s'", jinja_type_name(a), length,
                           name->as.text.data);
}

int jinja_getattr(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *name,
                  struct jinja_value *out)
{
    const struct jinja_value *found = NULL;
    int rc = 0;
    if (a->type == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    if (a->type == JINJA_LOOP) {
        rc = jinja_loop_attribute(run, a, name, out);
        return rc == 1 ? no_attribute(run, a, name, out) : rc;
    }
    if (a->type != JINJA_NAMESPACE) {
        rc = jinja_method_find(run, a, name, out);
        if (rc <= 0) return rc; /* found, or refused */
    }
    if (a->type == JINJA_DICT || a->type == JINJA_NAMESPACE) {
        rc = jinja_dict_find(run, a->as.dict, *name, &found);
        if (rc) return rc;
    }
    if (found) {
        *out = *found;
        return 0;
    }
    return no_attribute(run, a, name, out);
}

size_t jinja_text_offset(const struct jinja_value *text, size_t index)
{
    if (text->as.text.bytes == text->as.text.chars)
        return index < text->as.text.bytes ? index : text->as.text.bytes;
    size_t at = 0;
    while (index-- && at < text->as.text.bytes) at += jinja_utf8_size((unsigned char)text->as.text.data[at]);
    return at;
}

int jinja_getitem(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *index,
                  struct jinja_value *out)
{
    if (a->type == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    if (a->type == JINJA_DICT) {
        const struct jinja_value *found = NULL;
        int rc = index->type == JINJA_LIST && index->as.list->kind != JINJA_LIST_TUPLE
                     ? 0
                     : jinja_dict_find(run, a->as.dict, *index, &found);
        if (rc) return rc;
        if (found) {
            *out = *found;
            return 0;
        }
    }
    bool subscripts = jinja_is_sequence_kind(a) || a->type == JINJA_TEXT;
    if (subscripts && jinja_is_whole(index)) {
        size_t length;
        int rc = jinja_length(run, a, &length);
        if (rc) return rc;
        int64_t at = jinja_whole(index);
        if (at < 0) at += (int64_t)length;
        if (at >= 0 && (uint64_t)at < length) {
            if (a->type == JINJA_LIST) {
                *out = a->as.list->item[at];
                return 0;
            }
            size_t offset = jinja_text_offset(a, (size_t)at);
            *out =
                jinja_text(a->as.text.data + offset, jinja_utf8_size((unsigned char)a->as.text.data[offset]));
            return jinja_step(run, offset / 64);
        }
    }
    if (index->type == JINJA_TEXT && a->type != JINJA_NONE) return jinja_getattr(run, a, index, out);
    struct jinja_buffer buffer = {0};
    int rc = index->type == JINJA_UNDEFINED || index->type > JINJA_DICT ? 0 : jinja_repr(run, &buffer, index);
    return rc ? rc
              : jinja_undefined(run, out, "'%s object' has no element %.*s", jinja_type_name(a),
                                (int)(buffer.length < 100 ? buffer.length : 100),
                                buffer.data ? buffer.data : "");
}

/* Python's slice.indices. */
static int slice_bound(struct jinja_run *run, const struct jinja_value *bound, int64_t length, bool backward,
                       int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (bound->type == JINJA_NONE) return 0;
    if (!jinja_is_whole(bound))
        return jinja_fail(run, HELM_E_FORMAT, "a slice's bound is a '%s'", jinja_type_name(bound));
    int64_t at = jinja_whole(bound), low = backward ? -1 : 0, high = backward ? length - 1 : length;
    if (at < 0) at += length;
    *out = at < low ? low : at > high ? high : at;
    return 0;
}

int jinja_slice(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value bounds[3],
                struct jinja_value *out)
{
    size_t count;
    if (a->type == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    if (a->type != JINJA_TEXT && !jinja_is_sequence_kind(a))
        return jinja_fail(run, HELM_E_FORMAT, "a '%s' cannot be sliced", jinja_type_name(a));
    int rc = jinja_length(run, a, &count);
    if (rc) return rc;
    int64_t length = (int64_t)count, step = 1, start, stop;
    if (bounds[2].type != JINJA_NONE) {
        if (!jinja_is_whole(&bounds[2]))
            return jinja_fail(run, HELM_E_FORMAT, "a slice's step is a '%s'", jinja_type_name(&bounds[2]));
        step = jinja_whole(&bounds[2]);
        if (step == 0) return jinja_fail(run, HELM_E_FORMAT, "a slice's step is 0");
    }
    /* a step past either end takes one item; clamped so that adding it cannot overflow */
    if (step > length) step = length + 1;
    if (step < -length) step = -length - 1;
    bool backward = step < 0;
    rc = slice_bound(run, &bounds[0], length, backward, backward ? length - 1 : 0, &start);
    if (!rc) rc = slice_bound(run, &bounds[1], length, backward, backward ? -1 : length, &stop);
    if (rc) return rc;
    if (a->type == JINJA_TEXT) {
        struct jinja_buffer buffer = {0};
        size_t from = jinja_text_offset(a, (size_t)(start < 0 ? 0 : start));
        if (step == 1) {
            size_t to = stop > start ? jinja_text_offset(a, (size_t)stop) : from;
            *out = jinja_text(a->as.text.data + from, to - from);
            return jinja_step(run, to / 64);
        }
        for (int64_t i = start; !rc && (backward ? i > stop : i < stop); i += step) {
            size_t at = jinja_text_offset(a, (size_t)i);
            rc = jinja_step(run, 1 + (a->as.text.bytes == a->as.text.chars ? 0 : at / 64));
            if (!rc)
                rc = jinja_buffer_add(run, &buffer, a->as.text.data + at,
                                      jinja_utf8_size((unsigned char)a->as.text.data[at]));
        }
        *out = jinja_buffer_text(&buffer);
        return rc;
    }
    struct jinja_list *list;
    /* a slice of a range prints as a list here: templates do not look */
    enum jinja_list_kind kind = a->as.list->kind == JINJA_LIST_TUPLE ? JINJA_LIST_TUPLE : JINJA_LIST_PLAIN;
    rc = jinja_list_new(run, kind, 0, &list);
    for (int64_t i = start; !rc && (backward ? i > stop : i < stop); i += step)
        rc = jinja_list_add(run, list, a->as.list->item[i]);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}
