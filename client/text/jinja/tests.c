/* Tests: what may stand after "is". See jinja/eval.h. Called through the table at the end. */
#include <utf8proc.h>

#include "client/text/jinja/eval.h"

static int say(struct jinja_value *out, bool holds)
{
    *out = jinja_bool(holds);
    return 0;
}

static int test_defined(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type != JINJA_UNDEFINED);
}

static int test_undefined(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_UNDEFINED);
}

static int test_none(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_NONE);
}

static int test_boolean(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_BOOL);
}

static int test_true(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_BOOL && c->self.as.boolean);
}

static int test_false(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_BOOL && !c->self.as.boolean);
}

static int test_integer(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_INT);
}

static int test_float(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_FLOAT);
}

static int test_number(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, jinja_is_number(&c->self));
}

static int test_string(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_TEXT);
}

static int test_mapping(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_DICT);
}

static int test_iterable(const struct jinja_callable *c, struct jinja_value *out)
{
    enum jinja_type t = c->self.type;
    return say(out, t == JINJA_TEXT || t == JINJA_LIST || t == JINJA_DICT || t == JINJA_UNDEFINED ||
                        t == JINJA_LOOP);
}

static int test_sequence(const struct jinja_callable *c, struct jinja_value *out)
{
    enum jinja_type t = c->self.type;
    return say(out, t == JINJA_TEXT || t == JINJA_DICT || t == JINJA_UNDEFINED ||
                        jinja_is_sequence_kind(&c->self));
}

static int test_callable(const struct jinja_callable *c, struct jinja_value *out)
{
    enum jinja_type t = c->self.type;
    /* an undefined value has a __call__, which fails */
    return say(out, t == JINJA_METHOD || t == JINJA_FUNCTION || t == JINJA_MACRO || t == JINJA_UNDEFINED ||
                        t == JINJA_LOOP);
}

static int test_escaped(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_TEXT && c->self.markup);
}

static int test_sameas(const struct jinja_callable *c, struct jinja_value *out)
{
    bool same = false;
    int rc = c->self.type == c->a[0].type ? jinja_equal(c->run, &c->self, &c->a[0], &same) : 0;
    if (c->self.type == JINJA_LIST || c->self.type == JINJA_DICT)
        same = c->a[0].type == c->self.type && c->self.as.dict == c->a[0].as.dict;
    *out = jinja_bool(same);
    return rc;
}

static int remainder_of(const struct jinja_callable *c, const struct jinja_value *divisor, int64_t wanted,
                        struct jinja_value *out)
{
    struct jinja_value rest, compared = jinja_int(wanted);
    bool same = false;
    if (c->self.type == JINJA_TEXT)
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': a text is no number", c->name);
    int rc = jinja_binary(c->run, '%', &c->self, divisor, &rest);
    if (!rc) rc = jinja_equal(c->run, &rest, &compared, &same);
    *out = jinja_bool(same);
    return rc;
}

static int test_odd(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value two = jinja_int(2);
    return remainder_of(c, &two, 1, out);
}

static int test_even(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value two = jinja_int(2);
    return remainder_of(c, &two, 0, out);
}

static int test_divisibleby(const struct jinja_callable *c, struct jinja_value *out)
{
    return remainder_of(c, &c->a[0], 0, out);
}

static int compare(const struct jinja_callable *c, char op, struct jinja_value *out)
{
    bool holds = false;
    int rc = jinja_compare(c->run, op, &c->self, &c->a[0], &holds);
    *out = jinja_bool(holds);
    return rc;
}

static int test_eq(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, JINJA_OP_EQ, out);
}

static int test_ne(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, JINJA_OP_NE, out);
}

static int test_lt(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, '<', out);
}

static int test_le(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, JINJA_OP_LE, out);
}

static int test_gt(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, '>', out);
}

static int test_ge(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, JINJA_OP_GE, out);
}

static int test_in(const struct jinja_callable *c, struct jinja_value *out)
{
    return compare(c, JINJA_OP_IN, out);
}

/* str.islower and str.isupper: cased letters, all of one case, at least one. */
static int one_case(const struct jinja_callable *c, bool upper, struct jinja_value *out)
{
    struct jinja_value text;
    bool any = false, other = false;
    int rc = jinja_to_text(c->run, c->self, &text);
    if (!rc) rc = jinja_step(c->run, text.as.text.bytes / 64);
    for (size_t i = 0, size; !rc && i < text.as.text.bytes; i += size) {
        uint32_t code = jinja_utf8_decode(text.as.text.data + i, &size);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        any |= category == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
        other |= category == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) ||
                 category == UTF8PROC_CATEGORY_LT;
    }
    *out = jinja_bool(any && !other);
    return rc;
}

static int test_lower(const struct jinja_callable *c, struct jinja_value *out)
{
    return one_case(c, false, out);
}

static int test_upper(const struct jinja_callable *c, struct jinja_value *out)
{
    return one_case(c, true, out);
}

static int test_filter(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_TEXT && (jinja_find_function(jinja_text_filters, &c->self) ||
                                                   jinja_find_function(jinja_sequence_filters, &c->self)));
}

static int test_test(const struct jinja_callable *c, struct jinja_value *out)
{
    return say(out, c->self.type == JINJA_TEXT && jinja_find_function(jinja_test_table, &c->self));
}

const struct jinja_function jinja_test_table[] = {
    {"boolean", test_boolean, {NULL}, 0, false},
    {"callable", test_callable, {NULL}, 0, false},
    {"defined", test_defined, {NULL}, 0, false},
    {"divisibleby", test_divisibleby, {"num"}, 1, false},
    {"eq", test_eq, {"other"}, 1, false},
    {"equalto", test_eq, {"other"}, 1, false},
    {"escaped", test_escaped, {NULL}, 0, false},
    {"even", test_even, {NULL}, 0, false},
    {"false", test_false, {NULL}, 0, false},
    {"filter", test_filter, {NULL}, 0, false},
    {"float", test_float, {NULL}, 0, false},
    {"ge", test_ge, {"other"}, 1, false},
    {"greaterthan", test_gt, {"other"}, 1, false},
    {"gt", test_gt, {"other"}, 1, false},
    {"in", test_in, {"seq"}, 1, false},
    {"integer", test_integer, {NULL}, 0, false},
    {"iterable", test_iterable, {NULL}, 0, false},
    {"le", test_le, {"other"}, 1, false},
    {"lessthan", test_lt, {"other"}, 1, false},
    {"lower", test_lower, {NULL}, 0, false},
    {"lt", test_lt, {"other"}, 1, false},
    {"mapping", test_mapping, {NULL}, 0, false},
    {"ne", test_ne, {"other"}, 1, false},
    {"none", test_none, {NULL}, 0, false},
    {"number", test_number, {NULL}, 0, false},
    {"odd", test_odd, {NULL}, 0, false},
    {"sameas", test_sameas, {"other"}, 1, false},
    {"sequence", test_sequence, {NULL}, 0, false},
    {"string", test_string, {NULL}, 0, false},
    {"test", test_test, {NULL}, 0, false},
    {"true", test_true, {NULL}, 0, false},
    {"undefined", test_undefined, {NULL}, 0, false},
    {"upper", test_upper, {NULL}, 0, false},
    {NULL, NULL, {NULL}, 0, false},
};
