/* Objects and arrays. See schema.h.
 *
 * An object's members come in the schema's order. Two rules a place say what may follow it: once some member
 * was written, with a comma in front, and before that. So a schema of n members has 3 n rules, however many
 * are optional. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/schema.h"
#include "common/base/words.h"

#define MEMBERS_MAX 1024
#define PREFIX_MAX  256

/* ---- objects ---- */

struct members {
    const char *name[MEMBERS_MAX];
    uint32_t rule[MEMBERS_MAX]; /* "name": value */
    bool required[MEMBERS_MAX];
    uint32_t count;
    uint32_t extra; /* rule of a member that is not listed, or EXPR_NONE */
};

static bool is_required(struct schema *s, const json_t *node, const char *name)
{
    const json_t *list = json_object_get(node, "required");
    if (!schema_charge(s, json_array_size(list))) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text && strcmp(text, name) == 0) return true;
    }
    return false;
}

/* The rest of a name's characters, of which names[0 .. count) would be a listed one from byte `at` on. */
static uint32_t other_name(struct exprs *x, const char **names, uint32_t count, size_t at, uint32_t depth)
{
    const uint32_t alt = expr_alt(x);
    struct expr_range *seen = malloc((count + 1) * sizeof *seen),
                      *others = malloc((count + 3) * sizeof *others);
    const char **with = malloc((count + 1) * sizeof *with);
    uint32_t n = 0;
    bool ends = false;
    if (!seen || !others || !with || depth > 400)
        exprs_fail(x, depth > 400 ? HELM_E_LIMIT : HELM_E_NOMEM,
                   "schema: a property's name is too long beside "
                   "additionalProperties");
    for (uint32_t i = 0; i < count && !x->failed; i++) {
        size_t next = at;
        uint32_t c, subset = 0;
        if (!names[i][at]) {
            ends = true;
            continue;
        }
        if (!expr_next_char(names[i], strlen(names[i]), &next, &c)) break;
        bool known = false;
        for (uint32_t k = 0; k < n; k++) known = known || seen[k].low == c;
        if (known) continue;
        seen[n++] = (struct expr_range){c, c};
        for (uint32_t k = i; k < count; k++)
            if (strncmp(names[k] + at, names[i] + at, next - at) == 0) with[subset++] = names[k];
        expr_add(x, alt,
                 EXPR_SEQ(x, json_text_set(x, &seen[n - 1], 1),
                          other_name(x, with, subset, next, depth + 1)));
    }
    if (!x->failed) {
        n = ranges_normalize(seen, n);
        n = ranges_invert(seen, n, others);
        expr_add(x, alt,
                 EXPR_SEQ(x, json_text_set(x, others, n),
                          expr_repeat(x, json_text_any(x), 0, EXPR_UNBOUNDED)));
        if (!ends) expr_add(x, alt, expr_seq(x));
    }
    free(seen);
    free(others);
    free(with);
    return alt;
}

static uint32_t make_member(struct schema *s, const char *name, const json_t *value)
{
    struct exprs *x = s->x;
    const uint32_t rule = exprs_new_rule(x);
    const uint32_t key = json_text_of(x, name, strlen(name));
    exprs_define(x, rule, json_form(x, "\"$\": $", key, schema_node(s, value, name)));
    return rule;
}

static bool add_member(struct schema *s, struct members *m, const char *name, const json_t *value,
                       bool required)
{
    if (s->x->failed) return false;
    if (m->count == MEMBERS_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "an object has more than %d properties", MEMBERS_MAX);
        return false;
    }
    if (json_is_false(value) && !required) return true; /* it never is there */
    m->name[m->count] = name;
    m->required[m->count] = required;
    m->rule[m->count++] = make_member(s, name, value);
    return true;
}

static bool is_listed(struct schema *s, const struct members *m, const char *name)
{
    bool listed = false;
    if (!schema_charge(s, m->count)) return false;
    for (uint32_t k = 0; k < m->count && !listed; k++) listed = strcmp(m->name[k], name) == 0;
    return listed;
}

/* The names that `propertyNames` lists: each may be there once, in its order. true: there are no others. */
static bool take_names(struct schema *s, struct members *m, const json_t *names, const json_t *more)
{
    const json_t *list = json_object_get(names, "enum"), *item;
    size_t i;
    if (!json_is_array(list)) return false;
    json_array_foreach(list, i, item)
    {
        const char *text = json_string_value(item);
        if (text && !is_listed(s, m, text) && !add_member(s, m, text, more ? more : json_true(), false))
            break;
    }
    for (uint32_t k = 0; k < m->count && !s->x->failed; k++) {
        bool allowed = false;
        if (!schema_charge(s, json_array_size(list))) break;
        json_array_foreach(list, i, item)
        {
            const char *text = json_string_value(item);
            allowed = allowed || (text && strcmp(text, m->name[k]) == 0);
        }
        if (!allowed)
            schema_refuse(s, HELM_E_UNSUPPORTED, "the property '%.64s' is not one of 'propertyNames'",
                          m->name[k]);
    }
    return true;
}

/* Whether `propertyNames` says more than that names are texts. */
static bool names_say_more(struct schema *s, const json_t *names)
{
    bool more = false;
    const char *key;
    json_t *value;
    if (!(schema_types(s, names) & SCHEMA_STRING))
        schema_refuse(s, HELM_E_FORMAT, "'propertyNames' allows no text");
    json_object_foreach((json_t *)names, key, value)
    {
        if (strcmp(key, "type") == 0 || schema_says_nothing(names, key, value)) continue;
        if (!WORD_IS(key, "pattern", "format", "minLength", "maxLength"))
            schema_refuse(s, HELM_E_UNSUPPORTED, "'%.64s' in 'propertyNames' is not supported", key);
        more = true;
    }
    return more;
}

/* A name that is not listed. */
static uint32_t extra_name(struct schema *s, const struct members *m, const json_t *names)
{
    struct exprs *x = s->x;
    if (names_say_more(s, names)) {
        if (m->count)
            schema_refuse(
                s, HELM_E_UNSUPPORTED,
                "'propertyNames' beside 'properties' or 'required' is supported as a list of names");
        return s->x->failed ? 0 : schema_string(s, names);
    }
    const char **listed = malloc((m->count + 1) * sizeof *listed);
    if (!listed) {
        exprs_fail(x, HELM_E_NOMEM, "no memory for a schema");
        return 0;
    }
    memcpy(listed, m->name, m->count * sizeof *listed);
    const uint32_t name = other_name(x, listed, m->count, 0, 0);
    free(listed);
    return json_form(x, "\"$\"", name);
}

static void gather_members(struct schema *s, const json_t *node, struct members *m)
{
    json_t *properties = json_object_get(node, "properties"), *value, *item;
    const json_t *more = json_object_get(node, "additionalProperties"),
                 *required = json_object_get(node, "required");
    const char *name;
    size_t i;
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required)))
        schema_refuse(s, HELM_E_FORMAT, "'properties' is not an object, or 'required' no list");
    json_object_foreach(properties, name,
                        value) if (!add_member(s, m, name, value, is_required(s, node, name))) return;
    json_array_foreach(required, i, item)
    {
        const char *text = json_string_value(item);
        bool listed = !text;
        if (!text) schema_refuse(s, HELM_E_FORMAT, "'required' is not a list of texts");
        listed = listed || is_listed(s, m, text);
        if (!listed && !add_member(s, m, text, more ? more : json_true(), true)) return;
    }
    /* a schema that says nothing about the object allows any */
    bool open = more ? !json_is_false(more) : !properties && !required;
    const json_t *names = json_object_get(node, "propertyNames");
    if (names && !json_is_boolean(names)) names = schema_resolve(s, names);
    if (json_is_false(names) || (open && take_names(s, m, names, more))) open = false;
    if (!open || s->x->failed) return;
    m->extra = exprs_new_rule(s->x);
    const uint32_t key = extra_name(s, m, names);
    const uint32_t of = more ? schema_node(s, more, "additionalProperties") : json_any(s->x, ANY_VALUE);
    exprs_define(s->x, m->extra, json_form(s->x, "$: $", key, of));
}

/* `minProperties` of more than `required` has: 1 is supported. */
static bool takes_one(struct schema *s, const json_t *node)
{
    const uint32_t least = schema_count(s, node, "minProperties", 0);
    if (least > 1 && least > json_array_size(json_object_get(node, "required")))
        schema_refuse(s, HELM_E_UNSUPPORTED,
                      "'minProperties' of more than 1 that are not required is not supported");
    return least > 0;
}

/* A comma, then the next member. */
static uint32_t next_member(struct exprs *x, uint32_t rule)
{
    return json_form(x, ", $", expr_rule(x, rule));
}

uint32_t schema_object(struct schema *s, const json_t *node)
{
    struct exprs *x = s->x;
    struct members *m = calloc(1, sizeof *m);
    if (!m) {
        exprs_fail(x, HELM_E_NOMEM, "no memory for a schema");
        return 0;
    }
    m->extra = EXPR_NONE;
    gather_members(s, node, m);
    bool may_be_empty = !takes_one(s, node);
    /* from the last place to the first: `rest` once some member was written, `begin` before that */
    uint32_t rest = exprs_new_rule(x), begin = exprs_new_rule(x);
    const bool extra = m->extra != EXPR_NONE;
    exprs_define(x, rest, extra ? expr_repeat(x, next_member(x, m->extra), 0, EXPR_UNBOUNDED) : expr_seq(x));
    exprs_define(x, begin, extra ? EXPR_SEQ(x, expr_rule(x, m->extra), expr_rule(x, rest)) : expr_alt(x));
    for (uint32_t i = m->count; i-- > 0 && !x->failed;) {
        const uint32_t rest_here = exprs_new_rule(x), begin_here = exprs_new_rule(x), alt = expr_alt(x);
        uint32_t one = next_member(x, m->rule[i]);
        if (!m->required[i]) one = expr_repeat(x, one, 0, 1);
        exprs_define(x, rest_here, EXPR_SEQ(x, one, expr_rule(x, rest)));
        expr_add(x, alt, EXPR_SEQ(x, expr_rule(x, m->rule[i]), expr_rule(x, rest)));
        if (!m->required[i]) expr_add(x, alt, expr_rule(x, begin));
        exprs_define(x, begin_here, alt);
        may_be_empty = may_be_empty && !m->required[i];
        rest = rest_here;
        begin = begin_here;
    }
    free(m);
    const uint32_t inner = json_form(x, "$ ", expr_rule(x, begin));
    return json_form(x, "{ $}", may_be_empty ? expr_repeat(x, inner, 0, 1) : inner);
}

/* ---- arrays ---- */

uint32_t schema_array(struct schema *s, const json_t *node)
{
    struct exprs *x = s->x;
    const json_t *items = json_object_get(node, "items"), *prefix = json_object_get(node, "prefixItems");
    const uint32_t min = schema_count(s, node, "minItems", 0),
                   max = schema_count(s, node, "maxItems", EXPR_UNBOUNDED);
    if (json_is_array(items)) { /* as it was written before 2020 */
        prefix = items;
        items = json_object_get(node, "additionalItems");
    }
    if (max < min) schema_refuse(s, HELM_E_FORMAT, "'maxItems' is less than 'minItems'");
    if (prefix && !json_is_array(prefix)) schema_refuse(s, HELM_E_FORMAT, "'prefixItems' is not a list");
    if (json_array_size(prefix) > PREFIX_MAX)
        schema_refuse(s, HELM_E_LIMIT, "'prefixItems' has more than %d schemas", PREFIX_MAX);
    if (x->failed) return 0;
    uint32_t first = (uint32_t)json_array_size(prefix);
    if (first > max) first = max;
    /* items after the listed ones, then those from the last to the first */
    uint32_t tail = expr_seq(x);
    if (!json_is_false(items) && max > first) {
        const uint32_t rule = exprs_new_rule(x), least = min > first ? min - first : 0;
        exprs_define(x, rule, items ? schema_node(s, items, "items") : json_any(x, ANY_VALUE));
        const uint32_t most = max == EXPR_UNBOUNDED ? max : max - first;
        const uint32_t more = next_member(x, rule);
        if (first) {
            tail = expr_repeat(x, more, least, most);
        } else {
            tail = EXPR_SEQ(x, expr_rule(x, rule),
                            expr_repeat(x, more, least ? least - 1 : 0,
                                        most == EXPR_UNBOUNDED ? most : most - 1));
            if (!least) tail = expr_repeat(x, tail, 0, 1);
        }
    } else if (min > first) {
        tail = expr_alt(x); /* nothing is as long */
    }
    for (uint32_t i = first; i-- > 0 && !x->failed;) {
        const uint32_t item = schema_node(s, json_array_get(prefix, i), "prefixItems");
        const uint32_t one = json_form(x, i ? ", $$" : "$$", item, tail);
        tail = i >= min ? expr_repeat(x, one, 0, 1) : one;
    }
    return json_form(x, "[ $ ]", tail);
}
