/* Several schemas of one value as one: allOf, and what stands beside a reference or alternatives. See
 * schema.h. */
#include <string.h>

#include "client/text/grammar/schema.h"

void schema_decimal(struct schema *s, const json_t *number, struct decimal *out)
{
    const char *text = json_number_text(s->x->numbers, number);
    (void)schema_charge(s, 4 + (text ? strlen(text) / 8 : 0));
    decimal_of(number, s->x->numbers, out);
}

bool schema_same_value(struct schema *s, const json_t *a, const json_t *b)
{
    const char *name;
    json_t *value;
    size_t i;
    if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) {
        struct decimal x, y;
        if (json_number_value(a) != json_number_value(b))
            return false; /* the same number is the same double */
        schema_decimal(s, a, &x);
        schema_decimal(s, b, &y);
        return decimal_compare(&x, &y) == 0;
    }
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        bool same = json_array_size(a) == json_array_size(b);
        json_array_foreach((json_t *)a, i, value) same =
            same && schema_same_value(s, value, json_array_get(b, i));
        return same;
    }
    if (!json_is_object(a)) return json_equal(a, b);
    bool same = json_object_size(a) == json_object_size(b);
    json_object_foreach((json_t *)a, name, value)
    {
        const json_t *other = json_object_get(b, name);
        same = same && other && schema_same_value(s, value, other);
    }
    return same;
}

static json_t *both(struct schema *s, const json_t *a, const json_t *b)
{
    return schema_same_value(s, a, b) ? json_incref((json_t *)a) : json_pack("{s:[O,O]}", "allOf", a, b);
}

static json_t *merge_members(struct schema *s, const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)a);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)b, name, value)
    {
        const json_t *have = json_object_get(a, name);
        json_object_set_new(out, name, have ? both(s, have, value) : json_incref(value));
    }
    return out;
}

size_t schema_weight(const json_t *value)
{
    size_t weight = 1, i;
    const char *name;
    json_t *member;
    if (json_is_array(value)) json_array_foreach((json_t *)value, i, member) weight += schema_weight(member);
    if (json_is_object(value))
        json_object_foreach((json_t *)value, name, member) weight += schema_weight(member);
    if (json_is_string(value)) weight += json_string_length(value) / 64;
    return weight;
}

static bool has(struct schema *s, const json_t *list, const json_t *value)
{
    if (!schema_charge(s, json_array_size(list) * schema_weight(value))) return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (schema_same_value(s, json_array_get(list, i), value)) return true;
    return false;
}

/* with: what stays of b's values is what a has, or what a has not. */
static json_t *merge_lists(struct schema *s, const json_t *a, const json_t *b, bool with)
{
    json_t *out = with ? json_array() : json_copy((json_t *)a);
    for (size_t i = 0; i < json_array_size(b); i++)
        if (!s->x->failed && has(s, a, json_array_get(b, i)) == with)
            json_array_append(out, json_array_get(b, i));
    return out;
}

static json_t *merge_types(struct schema *s, const json_t *a, const json_t *b)
{
    json_t *first = json_pack("{s:O}", "type", a), *second = json_pack("{s:O}", "type", b),
           *out = json_array();
    const uint32_t types = schema_types(s, first) & schema_types(s, second);
    for (uint32_t i = 0; i < SCHEMA_TYPES; i++)
        if ((types >> i & 1) && !(1u << i == SCHEMA_INTEGER && (types & SCHEMA_NUMBER)))
            json_array_append_new(out, json_string(schema_type_names[i]));
    json_decref(first);
    json_decref(second);
    return out;
}

static json_t *merge_bounds(struct schema *s, const char *name, const json_t *a, const json_t *b, bool larger)
{
    struct decimal x, y;
    if (json_is_boolean(a) && json_is_boolean(b)) return json_incref((json_t *)(json_is_true(a) ? a : b));
    if (!json_is_number(a) || !json_is_number(b)) {
        schema_refuse(s, HELM_E_UNSUPPORTED, "two '%.64s' of one value that are not two numbers", name);
        return NULL;
    }
    schema_decimal(s, a, &x);
    schema_decimal(s, b, &y);
    return json_incref((json_t *)((decimal_compare(&x, &y) > 0) == larger ? a : b));
}

static json_t *merge_values(struct schema *s, const char *name, const json_t *a, const json_t *b)
{
    const enum merge_kind kind = schema_keyword(name)->merge;
    if (kind == MERGE_EQUAL && !schema_same_value(s, a, b)) {
        schema_refuse(s, HELM_E_UNSUPPORTED, "two different '%.64s' of one value are not supported", name);
        return NULL;
    }
    switch (kind) {
    case MERGE_EQUAL:
    case MERGE_NOTHING:
        return json_incref((json_t *)a);
    case MERGE_LARGER:
    case MERGE_SMALLER:
        return merge_bounds(s, name, a, b, kind == MERGE_LARGER);
    case MERGE_BOTH:
        return both(s, a, b);
    case MERGE_MEMBERS:
        return merge_members(s, a, b);
    case MERGE_UNION:
        return merge_lists(s, a, b, false);
    case MERGE_ENUM:
        return merge_lists(s, a, b, true);
    case MERGE_TYPE:
        return merge_types(s, a, b);
    }
    return NULL;
}

/* Properties of `other` alone must fit what `node` says of additional ones. */
static json_t *bound_members(struct schema *s, const json_t *node, const json_t *other)
{
    const json_t *more = json_object_get(node, "additionalProperties"),
                 *mine = json_object_get(node, "properties");
    json_t *members = json_object_get(other, "properties"), *value;
    const char *name;
    if (!more || !members) return json_incref(members);
    json_t *out = json_object();
    json_object_foreach(members, name, value)
        json_object_set_new(out, name,
                            json_object_get(mine, name) ? json_incref(value) : both(s, value, more));
    return out;
}

const json_t *schema_merge(struct schema *s, const json_t *a, const json_t *b)
{
    const char *name;
    json_t *value;
    a = schema_resolve(s, a);
    b = schema_resolve(s, b);
    if (!a || !b) return NULL;
    if (json_is_true(b)) return a;
    if (json_is_true(a) || json_is_false(b)) return b;
    if (json_is_false(a)) return a;
    if (!json_is_object(a) || !json_is_object(b)) {
        schema_refuse(s, HELM_E_FORMAT, "a schema is an object, true or false");
        return NULL;
    }
    if (!schema_charge(s, json_object_size(a) + json_object_size(b) +
                              2 * json_object_size(json_object_get(a, "properties")) +
                              2 * json_object_size(json_object_get(b, "properties"))))
        return NULL;
    json_t *out = schema_keep(s, json_copy((json_t *)a));
    json_t *of_a = bound_members(s, b, a), *of_b = bound_members(s, a, b);
    if (of_a && !s->x->failed) json_object_set(out, "properties", of_a);
    json_object_foreach((json_t *)b, name, value)
    {
        if (s->x->failed) break;
        const json_t *have = json_object_get(out, name);
        const json_t *with = strcmp(name, "properties") == 0 && of_b ? of_b : value;
        json_t *merged = have ? merge_values(s, name, have, with) : json_incref((json_t *)with);
        if (merged && json_object_set_new(out, name, merged))
            exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
    }
    json_decref(of_a);
    json_decref(of_b);
    return s->x->failed ? NULL : out;
}

/* ---- whether two exclude each other ---- */

static const json_t *values_of(const json_t *node, const json_t **one)
{
    *one = json_object_get(node, "const");
    return json_object_get(node, "enum");
}

/* Both name their values, and none is the other's. */
static bool have_other_values(struct schema *s, const json_t *a, const json_t *b)
{
    const json_t *one_a, *one_b, *list_a = values_of(a, &one_a), *list_b = values_of(b, &one_b);
    if ((!list_a && !one_a) || (!list_b && !one_b)) return false;
    if (one_a && one_b) return !schema_same_value(s, one_a, one_b);
    if (one_a) return !has(s, list_b, one_a);
    if (one_b) return !has(s, list_a, one_b);
    for (size_t i = 0; i < json_array_size(list_a); i++)
        if (has(s, list_b, json_array_get(list_a, i))) return false;
    return true;
}

/* Whether what `a` requires does not fit `b`. deep: also where both require it. */
static bool requires_other(struct schema *s, const json_t *a, const json_t *b, bool deep)
{
    const json_t *item;
    size_t i;
    bool disjoint = false;
    json_array_foreach(json_object_get(a, "required"), i, item)
    {
        const char *name = json_string_value(item);
        if (disjoint || !name) continue;
        const json_t *of_a = json_object_get(json_object_get(a, "properties"), name),
                     *of_b = json_object_get(json_object_get(b, "properties"), name);
        disjoint = !of_b && json_is_false(json_object_get(b, "additionalProperties"));
        if (deep && of_a && of_b && has(s, json_object_get(b, "required"), item))
            disjoint = schema_are_disjoint(s, of_a, of_b);
    }
    return disjoint;
}

bool schema_are_disjoint(struct schema *s, const json_t *a, const json_t *b)
{
    if (++s->depth > SCHEMA_DEPTH_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "schemas nest deeper than %d", SCHEMA_DEPTH_MAX);
        return false;
    }
    bool disjoint = false;
    a = schema_resolve(s, a);
    b = schema_resolve(s, b);
    if (json_is_object(a) && json_is_object(b)) {
        schema_charge(s, json_array_size(json_object_get(a, "enum")) +
                             json_array_size(json_object_get(b, "enum")) +
                             json_array_size(json_object_get(a, "required")) +
                             json_array_size(json_object_get(b, "required")));
        if (s->x->failed) return false;
        const uint32_t types = schema_types(s, a) & schema_types(s, b);
        disjoint = types == 0 || have_other_values(s, a, b);
        if (types == SCHEMA_OBJECT && !disjoint)
            disjoint = requires_other(s, a, b, true) || requires_other(s, b, a, false);
    }
    s->depth--;
    return disjoint;
}
