/* A schema's nodes: references, alternatives, types, enumerations. See schema.h. */
#include "client/text/grammar/schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/grammar.h"
#include "common/base/json.h"
#include "common/base/words.h"

void schema_refuse(struct schema *s, int code, const char *fmt, ...)
{
    char text[HELM_ERR_TEXT - SCHEMA_PATH_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    exprs_fail(s->x, code, "%s", text);
}

/* ---- keywords ---- */

/* Whether a node says something beside the keyword `but`. */
static bool says_more(const json_t *node, const char *but)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)node, name, value)
    {
        if (strcmp(name, but) != 0 && !schema_says_nothing(node, name, value)) return true;
    }
    return false;
}

bool schema_charge(struct schema *s, size_t steps)
{
    if (!s->x->failed && steps > EXPR_WORK_MAX - s->x->work)
        schema_refuse(s, HELM_E_LIMIT, "the schema takes more than %u steps to read", EXPR_WORK_MAX);
    exprs_charge(s->x, steps);
    return !s->x->failed;
}

uint32_t schema_count(struct schema *s, const json_t *node, const char *key, uint32_t absent)
{
    const json_t *value = json_object_get(node, key);
    if (!value) return absent;
    const double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number != floor(number)) {
        schema_refuse(s, HELM_E_FORMAT, "'%s' is not a whole number from 0 on", key);
        return 0;
    }
    if (number > SCHEMA_COUNT_MAX && strncmp(key, "max", 3) == 0) return SCHEMA_COUNT_MAX; /* a part of it */
    if (number > EXPR_REPEAT_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "'%s' is more than %u", key, EXPR_REPEAT_MAX);
        return 0;
    }
    return (uint32_t)number;
}

/* ---- types ---- */

const char *const schema_type_names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

static uint32_t type_of_name(struct schema *s, const json_t *name)
{
    for (uint32_t i = 0; i < SCHEMA_TYPES && json_is_string(name); i++)
        if (strcmp(schema_type_names[i], json_string_value(name)) == 0)
            return 1u << i | (1u << i == SCHEMA_NUMBER ? SCHEMA_INTEGER : 0);
    schema_refuse(s, HELM_E_FORMAT,
                  "'type' is not one of null, boolean, integer, number, string, array and object, or a "
                  "list of them");
    return 0;
}

static uint32_t type_of_value(struct schema *s, const json_t *value)
{
    struct decimal d;
    switch (json_typeof(value)) {
    case JSON_NULL:
        return SCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SCHEMA_BOOLEAN;
    case JSON_INTEGER:
        return SCHEMA_INTEGER;
    case JSON_REAL:
        schema_decimal(s, value, &d);
        return decimal_is_whole(&d) ? SCHEMA_INTEGER : SCHEMA_NUMBER;
    case JSON_STRING:
        return SCHEMA_STRING;
    case JSON_ARRAY:
        return SCHEMA_ARRAY;
    default:
        return SCHEMA_OBJECT;
    }
}

uint32_t schema_types(struct schema *s, const json_t *node)
{
    const json_t *type = json_object_get(node, "type"), *item, *list = json_object_get(node, "enum");
    const json_t *constant = json_object_get(node, "const");
    uint32_t types = type ? 0 : SCHEMA_ALL, values = 0;
    size_t i;
    if (json_is_array(type))
        json_array_foreach(type, i, item) types |= type_of_name(s, item);
    else if (type)
        types = type_of_name(s, type);
    if (type && json_is_true(json_object_get(node, "nullable"))) types |= SCHEMA_NULL;
    if (constant) return types & type_of_value(s, constant);
    if (!list) return types;
    json_array_foreach(list, i, item) values |= type_of_value(s, item);
    return types & values;
}

static uint32_t one_type(struct schema *s, const json_t *node, uint32_t type)
{
    const uint32_t alt = expr_alt(s->x);
    switch (type) {
    case SCHEMA_NULL:
        return expr_string(s->x, "null");
    case SCHEMA_BOOLEAN:
        expr_add(s->x, alt, expr_string(s->x, "true"));
        return expr_add(s->x, alt, expr_string(s->x, "false"));
    case SCHEMA_INTEGER:
        return schema_number(s, node, true);
    case SCHEMA_NUMBER:
        return schema_number(s, node, false);
    case SCHEMA_STRING:
        return schema_string(s, node);
    case SCHEMA_ARRAY:
        return schema_array(s, node);
    default:
        return schema_object(s, node);
    }
}

/* ---- constants ---- */

static uint32_t constants(struct schema *s, const json_t *node, const json_t *list)
{
    const uint32_t alt = expr_alt(s->x), types = schema_types(s, node);
    const char *name;
    json_t *value;
    const json_t *item;
    size_t i;
    json_object_foreach((json_t *)node, name, value)
    {
        if (!WORD_IS(name, "enum", "const", "type") && !schema_says_nothing(node, name, value))
            schema_refuse(s, HELM_E_UNSUPPORTED, "'%.64s' beside 'enum' or 'const' is not supported", name);
    }
    if (!json_is_array(list)) schema_refuse(s, HELM_E_FORMAT, "'enum' is not a list");
    json_array_foreach(list, i, item) if (types & type_of_value(s, item))
        expr_add(s->x, alt, schema_literal(s, item));
    return alt;
}

/* ---- references ---- */

/* Decodes one part of a JSON pointer: ~1 is '/', ~0 is '~'; %xx as in addresses. */
static void decode_part(char *part)
{
    char *to = part;
    for (const char *c = part; *c; c++) {
        unsigned byte;
        if (c[0] == '~' && (c[1] == '0' || c[1] == '1')) {
            *to++ = *++c == '1' ? '/' : '~';
        } else if (c[0] == '%' && sscanf(c + 1, "%2x", &byte) == 1 && c[1] && c[2]) {
            *to++ = (char)byte;
            c += 2;
        } else {
            *to++ = *c;
        }
    }
    *to = 0;
}

const json_t *schema_follow(const json_t *document, const char *pointer)
{
    char part[SCHEMA_PATH_MAX];
    const json_t *at = document;
    if (*pointer++ != '#') return NULL;
    while (at && *pointer == '/') {
        const size_t n = strcspn(++pointer, "/");
        if (n >= sizeof part) return NULL;
        memcpy(part, pointer, n);
        part[n] = 0;
        decode_part(part);
        pointer += n;
        if (json_is_array(at)) {
            char *end;
            const unsigned long index = strtoul(part, &end, 10);
            at = *part && !*end ? json_array_get(at, index) : NULL;
        } else {
            at = json_object_get(at, part);
        }
    }
    return *pointer ? NULL : at;
}

/* One reference. NULL: refused. */
static const json_t *refer(struct schema *s, const json_t *ref)
{
    const char *text = json_string_value(ref);
    if (!text || *text != '#') {
        schema_refuse(s, HELM_E_UNSUPPORTED,
                      "'$ref' %.100s: references within the document (#/...) are supported only",
                      text ? text : "is not a text");
        return NULL;
    }
    const json_t *found = schema_follow(s->document, text);
    if (!found) schema_refuse(s, HELM_E_FORMAT, "'$ref' %.100s leads nowhere", text);
    return found;
}

const json_t *schema_resolve(struct schema *s, const json_t *node)
{
    for (int i = 0; node && i < SCHEMA_DEPTH_MAX; i++) {
        const json_t *ref = json_object_get(node, "$ref");
        if (!ref || says_more(node, "$ref")) return node;
        node = refer(s, ref);
    }
    if (node) schema_refuse(s, HELM_E_FORMAT, "'$ref' leads in a circle");
    return NULL;
}

/* ---- alternatives ---- */

#define ONE_OF_STEPS 16 /* of comparing two schemas that name no values */

json_t *schema_keep(struct schema *s, json_t *value)
{
    if (value && json_array_append_new(s->made, value) == 0) return value;
    exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
    return NULL;
}

/* A copy without one keyword; owned by s->made. */
static json_t *without(struct schema *s, const json_t *node, const char *key)
{
    if (!schema_charge(s, json_object_size(node))) return NULL;
    json_t *copy = schema_keep(s, json_copy((json_t *)node));
    if (copy) json_object_del(copy, key);
    return copy;
}

/* Adds a value that one of several schemas names. false: another one has named it, too. */
static bool add_value(struct schema *s, json_t *seen, const json_t *value)
{
    struct decimal d;
    char *text = NULL;
    if (json_is_number(value)) schema_decimal(s, value, &d);
    if (schema_charge(s, schema_weight(value)))
        text = json_is_number(value) ? decimal_key(&d)
                                     : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    const bool fresh = text && !json_object_get(seen, text);
    if (!text || json_object_set_new_nocheck(seen, text, json_null()))
        exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
    free(text);
    return fresh;
}

/* Whether schemas that each are one constant or a list of them exclude each other, in time that grows as the
 * list does. false: they do not, or are of another kind. */
static bool are_other_constants(struct schema *s, const json_t *list)
{
    json_t *seen = json_object();
    bool apart = seen != NULL;
    for (size_t i = 0; i < json_array_size(list) && apart; i++) {
        const json_t *item = json_array_get(list, i), *constant = json_object_get(item, "const"),
                     *values = json_object_get(item, "enum");
        apart = constant || json_is_array(values);
        if (constant && apart) apart = add_value(s, seen, constant);
        if (constant) continue;
        json_t *own = json_object(); /* a list may say one value twice */
        for (size_t k = 0; k < json_array_size(values) && apart && own; k++)
            if (add_value(s, own, json_array_get(values, k)))
                apart = add_value(s, seen, json_array_get(values, k));
        apart = apart && own;
        json_decref(own);
    }
    json_decref(seen);
    return apart;
}

static void check_one_of(struct schema *s, const json_t *list)
{
    if (are_other_constants(s, list)) return;
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++) {
            if (!schema_charge(s, ONE_OF_STEPS) ||
                schema_are_disjoint(s, json_array_get(list, k), json_array_get(list, i)))
                continue;
            schema_refuse(s, HELM_E_UNSUPPORTED,
                          "'oneOf': a value may fit both %zu and %zu, as far as HELM can tell (types, "
                          "constants of a required "
                          "property); anyOf has no such condition",
                          k, i);
        }
}

static uint32_t alternatives(struct schema *s, const json_t *node, const char *key)
{
    const json_t *list = json_object_get(node, key), *item;
    const bool more = says_more(node, key);
    const uint32_t alt = expr_alt(s->x);
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        schema_refuse(s, HELM_E_FORMAT, "'%s' is not a list of schemas", key);
        return alt;
    }
    if (strcmp(key, "oneOf") == 0) check_one_of(s, list);
    const json_t *base = more ? without(s, node, key) : NULL;
    json_array_foreach(list, i, item)
    {
        char name[32];
        snprintf(name, sizeof name, "%s/%zu", key, i);
        const json_t *whole = base ? schema_merge(s, base, item) : item;
        if (s->x->failed || !whole) break;
        expr_add(s->x, alt, schema_node(s, whole, name));
    }
    return alt;
}

/* All of `allOf` and what stands beside it, as one schema. */
static uint32_t all_of(struct schema *s, const json_t *node)
{
    const json_t *list = json_object_get(node, "allOf"), *item;
    const json_t *whole = without(s, node, "allOf");
    size_t i;
    if (!json_is_array(list)) schema_refuse(s, HELM_E_FORMAT, "'allOf' is not a list of schemas");
    json_array_foreach(list, i, item)
    {
        if (!whole || s->x->failed) return 0;
        whole = schema_merge(s, whole, item);
    }
    return whole && !s->x->failed ? schema_node(s, whole, "allOf") : 0;
}

static uint32_t reference(struct schema *s, const json_t *node)
{
    const json_t *to = refer(s, json_object_get(node, "$ref"));
    if (to && says_more(node, "$ref")) {
        const json_t *rest = without(s, node, "$ref");
        to = rest ? schema_merge(s, rest, to) : NULL;
    }
    return to ? schema_node(s, to, "$ref") : 0;
}

static uint32_t body(struct schema *s, const json_t *node)
{
    const json_t *constant = json_object_get(node, "const"), *list = json_object_get(node, "enum");
    schema_check_keywords(s, node);
    if (s->x->failed) return 0;
    if (json_object_get(node, "$ref")) return reference(s, node);
    if (json_object_get(node, "allOf")) return all_of(s, node);
    if (json_object_get(node, "anyOf")) return alternatives(s, node, "anyOf");
    if (json_object_get(node, "oneOf")) return alternatives(s, node, "oneOf");
    if (json_is_true(json_object_get(node, "nullable"))) {
        const json_t *rest = without(s, node, "nullable");
        const uint32_t either = expr_add(s->x, expr_alt(s->x), expr_text(s->x, "null", 4));
        return rest ? expr_add(s->x, either, schema_node(s, rest, "nullable")) : 0;
    }
    if (constant && list) {
        schema_refuse(s, HELM_E_UNSUPPORTED, "'enum' beside 'const' is not supported");
        return 0;
    }
    if (constant) {
        const json_t *one = schema_keep(s, json_pack("[O]", constant));
        return one ? constants(s, node, one) : 0;
    }
    if (list) return constants(s, node, list);
    uint32_t types = json_object_get(node, "type") ? schema_types(s, node) : schema_inferred_types(node);
    if (types == SCHEMA_ALL && !says_more(node, "type")) return json_any(s->x, ANY_VALUE);
    if (types & SCHEMA_NUMBER) types &= ~(uint32_t)SCHEMA_INTEGER;
    const uint32_t alt = expr_alt(s->x);
    for (uint32_t type = 1; type < SCHEMA_ALL && !s->x->failed; type <<= 1)
        if (types & type) expr_add(s->x, alt, one_type(s, node, type));
    return alt;
}

/* ---- nodes ---- */

/* The rule of a node. *known: it was visited before. */
static uint32_t remember(struct schema *s, const json_t *node, bool *known)
{
    char key[24];
    snprintf(key, sizeof key, "%p", (const void *)node);
    const json_t *found = json_object_get(s->rules, key);
    *known = found != NULL;
    if (found) return (uint32_t)json_integer_value(found);
    const uint32_t rule = exprs_new_rule(s->x);
    if (json_object_set_new(s->rules, key, json_integer(rule)))
        exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
    return rule;
}

uint32_t schema_node(struct schema *s, const json_t *node, const char *name)
{
    const size_t length = strlen(s->path);
    if (s->x->failed) return 0;
    snprintf(s->path + length, sizeof s->path - length, "%s%.64s", *name ? "/" : "", name);
    uint32_t out = 0;
    if (json_is_true(node)) {
        out = json_any(s->x, ANY_VALUE);
    } else if (json_is_false(node)) {
        out = expr_alt(s->x); /* nothing fits */
    } else if (!json_is_object(node)) {
        schema_refuse(s, HELM_E_FORMAT, "a schema is an object, true or false");
    } else if (++s->depth > SCHEMA_DEPTH_MAX || ++s->visited > SCHEMA_NODES_MAX) {
        schema_refuse(s, HELM_E_LIMIT,
                      "schemas nest deeper than %d, or are more than %d with those that they refer to",
                      SCHEMA_DEPTH_MAX, SCHEMA_NODES_MAX);
    } else if (json_object_get(node, "const")) {
        out = body(s, node); /* not a rule: thousands of constants would be as many ways to read one text */
    } else {
        bool known = true;
        const uint32_t rule = remember(s, node, &known);
        if (!known) exprs_define(s->x, rule, body(s, node));
        out = expr_rule(s->x, rule);
    }
    s->depth -= json_is_object(node);
    s->path[length] = 0;
    return out;
}

int schema_compile(struct exprs *x, const json_t *schema, uint32_t *root, struct helm_err *err)
{
    struct schema s = {.x = x, .document = schema, .made = json_array(), .rules = json_object()};
    if (!s.made) return helm_fail(err, HELM_E_NOMEM, "no memory for a schema");
    x->place = s.path;
    *root = schema_node(&s, schema, "");
    x->place = NULL;
    json_decref(s.made);
    json_decref(s.rules);
    return x->failed ? helm_fail(err, x->failed, "%s", x->err.text) : 0;
}

int schema_parse(struct exprs *x, const char *text, size_t length, uint32_t *root, struct helm_err *err)
{
    json_t *schema;
    struct json_numbers *numbers = NULL;
    int rc = json_parse_numbers("the schema", text, length, HELM_GRAMMAR_TEXT_LIMIT, &numbers, &schema, err);
    x->numbers = numbers;
    if (!rc) rc = schema_compile(x, schema, root, err);
    x->numbers = NULL;
    json_decref(schema);
    json_numbers_free(numbers);
    return rc;
}
