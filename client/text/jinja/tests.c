/* Tests: what may stand after "is". See jinja/eval.h. Called through the table at the end. */
#include <utf8proc.h>

#include "client/text/jinja/eval.h"

/* Is the value of one of the types whose bits `which` has? */
static struct jinja_value test_type(const struct jinja_callable *c)
{
    return jinja_bool(c->which >> c->self.type & 1);
}

static struct jinja_value test_truth(const struct jinja_callable *c)
{
    return jinja_bool(c->self.type == JINJA_BOOL && c->self.as.boolean == c->which);
}

static struct jinja_value test_sequence(const struct jinja_callable *c)
{
    enum jinja_type t = c->self.type;
    return jinja_bool(t == JINJA_TEXT || t == JINJA_DICT || t == JINJA_UNDEFINED ||
                      jinja_is_sequence_kind(&c->self));
}

static struct jinja_value test_escaped(const struct jinja_callable *c)
{
    return jinja_bool(c->self.type == JINJA_TEXT && c->self.markup);
}

static struct jinja_value test_sameas(const struct jinja_callable *c)
{
    if (c->self.type != c->a[0].type) return jinja_bool(false);
    const bool equal = jinja_equal(c->run, &c->self, &c->a[0]);
    const bool holds_values = c->self.type == JINJA_LIST || c->self.type == JINJA_DICT;
    return jinja_bool(holds_values ? c->self.as.dict == c->a[0].as.dict : equal);
}

/* Is `which` the rest of a division by the argument, or by 2? */
static struct jinja_value test_remainder(const struct jinja_callable *c)
{
    const struct jinja_value two = jinja_int(2), wanted = jinja_int(c->which);
    if (c->self.type == JINJA_TEXT) jinja_fail(c->run, HELM_E_FORMAT, "'%s': a text is no number", c->name);
    const struct jinja_value rest =
        jinja_binary(c->run, '%', &c->self, c->a[0].type == JINJA_ABSENT ? &two : &c->a[0]);
    return jinja_bool(jinja_equal(c->run, &rest, &wanted));
}

static struct jinja_value test_compare(const struct jinja_callable *c)
{
    return jinja_bool(jinja_compare(c->run, (char)c->which, &c->self, &c->a[0]));
}

/* str.islower and str.isupper: cased letters, all of one case, at least one. */
static struct jinja_value test_case(const struct jinja_callable *c)
{
    const bool upper = c->which == JINJA_CASE_UPPER;
    const struct jinja_value text = jinja_to_text(c->run, c->self);
    bool any = false, other = false;
    jinja_step(c->run, text.as.text.bytes / 64);
    for (size_t i = 0, size; i < text.as.text.bytes; i += size) {
        uint32_t code = jinja_utf8_decode(text.as.text.data + i, &size);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        any |= category == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
        other |= category == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) ||
                 category == UTF8PROC_CATEGORY_LT;
    }
    return jinja_bool(any && !other);
}

static struct jinja_value test_filter(const struct jinja_callable *c)
{
    return jinja_bool(c->self.type == JINJA_TEXT && (jinja_find_function(jinja_text_filters, &c->self) ||
                                                     jinja_find_function(jinja_sequence_filters, &c->self)));
}

static struct jinja_value test_test(const struct jinja_callable *c)
{
    return jinja_bool(c->self.type == JINJA_TEXT && jinja_find_function(jinja_test_table, &c->self));
}

#define ITERABLE                                                                                             \
    (1 << JINJA_TEXT | 1 << JINJA_LIST | 1 << JINJA_DICT | 1 << JINJA_UNDEFINED | 1 << JINJA_LOOP)
/* an undefined value has a __call__, which fails */
#define CALLABLE                                                                                             \
    (1 << JINJA_METHOD | 1 << JINJA_FUNCTION | 1 << JINJA_MACRO | 1 << JINJA_UNDEFINED | 1 << JINJA_LOOP)

const struct jinja_function jinja_test_table[] = {
    {.name = "boolean", .call = test_type, .which = 1 << JINJA_BOOL},
    {.name = "callable", .call = test_type, .which = CALLABLE},
    {.name = "defined", .call = test_type, .which = ~(1 << JINJA_UNDEFINED)},
    {.name = "divisibleby", .call = test_remainder, .which = 0, .parameters = {"num"}, .required = 1},
    {.name = "eq", .call = test_compare, .which = JINJA_OP_EQ, .parameters = {"other"}, .required = 1},
    {.name = "equalto", .call = test_compare, .which = JINJA_OP_EQ, .parameters = {"other"}, .required = 1},
    {.name = "escaped", .call = test_escaped},
    {.name = "even", .call = test_remainder, .which = 0},
    {.name = "false", .call = test_truth, .which = false},
    {.name = "filter", .call = test_filter},
    {.name = "float", .call = test_type, .which = 1 << JINJA_FLOAT},
    {.name = "ge", .call = test_compare, .which = JINJA_OP_GE, .parameters = {"other"}, .required = 1},
    {.name = "greaterthan", .call = test_compare, .which = '>', .parameters = {"other"}, .required = 1},
    {.name = "gt", .call = test_compare, .which = '>', .parameters = {"other"}, .required = 1},
    {.name = "in", .call = test_compare, .which = JINJA_OP_IN, .parameters = {"seq"}, .required = 1},
    {.name = "integer", .call = test_type, .which = 1 << JINJA_INT | 1 << JINJA_WIDE},
    {.name = "iterable", .call = test_type, .which = ITERABLE},
    {.name = "le", .call = test_compare, .which = JINJA_OP_LE, .parameters = {"other"}, .required = 1},
    {.name = "lessthan", .call = test_compare, .which = '<', .parameters = {"other"}, .required = 1},
    {.name = "lower", .call = test_case, .which = JINJA_CASE_LOWER},
    {.name = "lt", .call = test_compare, .which = '<', .parameters = {"other"}, .required = 1},
    {.name = "mapping", .call = test_type, .which = 1 << JINJA_DICT},
    {.name = "ne", .call = test_compare, .which = JINJA_OP_NE, .parameters = {"other"}, .required = 1},
    {.name = "none", .call = test_type, .which = 1 << JINJA_NONE},
    {.name = "number",
     .call = test_type,
     .which = 1 << JINJA_BOOL | 1 << JINJA_INT | 1 << JINJA_FLOAT | 1 << JINJA_WIDE},
    {.name = "odd", .call = test_remainder, .which = 1},
    {.name = "sameas", .call = test_sameas, .parameters = {"other"}, .required = 1},
    {.name = "sequence", .call = test_sequence},
    {.name = "string", .call = test_type, .which = 1 << JINJA_TEXT},
    {.name = "test", .call = test_test},
    {.name = "true", .call = test_truth, .which = true},
    {.name = "undefined", .call = test_type, .which = 1 << JINJA_UNDEFINED},
    {.name = "upper", .call = test_case, .which = JINJA_CASE_UPPER},
    {.name = NULL},
};
