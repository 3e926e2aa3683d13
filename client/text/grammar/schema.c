/* A schema's nodes: references, alternatives, types, enumerations. See schema.h. */
#include "client/text/grammar/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/grammar.h"
#include "common/base/json.h"

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

enum keyword_kind { SAYS_NOTHING, SUPPORTED };
static const struct {
    const char *name;
    enum keyword_kind kind;
} keywords[] = {{"title", SAYS_NOTHING},
                {"description", SAYS_NOTHING},
                {"default", SAYS_NOTHING},
                {"example", SAYS_NOTHING},
                {"examples", SAYS_NOTHING},
                {"deprecated", SAYS_NOTHING},
                {"readOnly", SAYS_NOTHING},
                {"writeOnly", SAYS_NOTHING},
                {"$schema", SAYS_NOTHING},
                {"$id", SAYS_NOTHING},
                {"$comment", SAYS_NOTHING},
                {"$defs", SAYS_NOTHING},
                {"definitions", SAYS_NOTHING},
                {"discriminator", SAYS_NOTHING},
                {"$ref", SUPPORTED},
                {"allOf", SUPPORTED},
                {"anyOf", SUPPORTED},
                {"oneOf", SUPPORTED},
                {"type", SUPPORTED},
                {"const", SUPPORTED},
                {"enum", SUPPORTED},
                {"properties", SUPPORTED},
                {"required", SUPPORTED},
                {"additionalProperties", SUPPORTED},
                {"items", SUPPORTED},
                {"prefixItems", SUPPORTED},
                {"additionalItems", SUPPORTED},
                {"minItems", SUPPORTED},
                {"maxItems", SUPPORTED},
                {"minLength", SUPPORTED},
                {"maxLength", SUPPORTED},
                {"pattern", SUPPORTED},
                {"format", SUPPORTED},
                {"minimum", SUPPORTED},
                {"maximum", SUPPORTED},
                {"exclusiveMinimum", SUPPORTED},
                {"exclusiveMaximum", SUPPORTED},
                {"multipleOf", SUPPORTED}};
#define KEYWORDS (sizeof keywords / sizeof *keywords)

static bool says_nothing(const char *name)
{
    if (strncmp(name, "x-", 2) == 0) return true;
    for (size_t i = 0; i < KEYWORDS; i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].kind == SAYS_NOTHING;
    return false;
}

static void check_keywords(struct schema *s, const json_t *node)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)node, name, value)
    {
        size_t i = 0;
        if (strncmp(name, "x-", 2) == 0 || (strcmp(name, "uniqueItems") == 0 && json_is_false(value)))
            continue;
        while (i < KEYWORDS && strcmp(keywords[i].name, name) != 0) i++;
        if (i == KEYWORDS) schema_refuse(s, HELM_E_UNSUPPORTED, "the keyword '%.64s' is not supported", name);
    }
}

/* Whether a node says something beside the keyword `but`. */
static bool says_more(const json_t *node, const char *but)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)node, name,
                        value) if (strcmp(name, but) != 0 && !says_nothing(name)) return true;
    return false;
}

uint32_t schema_count(struct schema *s, const json_t *node, const char *key, uint32_t absent)
{
    const json_t *value = json_object_get(node, key);
    if (!value) return absent;
    const double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number != (double)(uint64_t)number) {
        schema_refuse(s, HELM_E_FORMAT, "'%s' is not a whole number from 0 on", key);
        return 0;
    }
    if (number > EXPR_REPEAT_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "'%s' is more than %u", key, EXPR_REPEAT_MAX);
        return 0;
    }
    return (uint32_t)number;
}

/* ---- types ---- */

static const char *const type_names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
#define TYPES 7

static uint32_t type_of_name(struct schema *s, const json_t *name)
{
    for (uint32_t i = 0; i < TYPES && json_is_string(name); i++)
        if (strcmp(type_names[i], json_string_value(name)) == 0)
            return 1u << i | (1u << i == SCHEMA_NUMBER ? SCHEMA_INTEGER : 0);
    schema_refuse(s, HELM_E_FORMAT,
                  "'type' is not one of null, boolean, integer, number, string, array and object, or a "
                  "list of them");
    return 0;
}

static uint32_t type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return SCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SCHEMA_BOOLEAN;
    case JSON_INTEGER:
        return SCHEMA_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == (double)(int64_t)json_real_value(value) ? SCHEMA_INTEGER
                                                                                 : SCHEMA_NUMBER;
    case JSON_STRING:
        return SCHEMA_STRING;
    case JSON_ARRAY:
        return SCHEMA_ARRAY;
    default:
        return SCHEMA_OBJECT;
    }
}

/* What the keywords of one type say without `type`: the texts that fit are some of those that would be allowed. */
static uint32_t inferred_types(const json_t *node)
{
    static const struct {
        const char *key;
        uint32_t types;
    } hints[] = {{"properties", SCHEMA_OBJECT},
                 {"required", SCHEMA_OBJECT},
                 {"additionalProperties", SCHEMA_OBJECT},
                 {"items", SCHEMA_ARRAY},
                 {"prefixItems", SCHEMA_ARRAY},
                 {"minItems", SCHEMA_ARRAY},
                 {"maxItems", SCHEMA_ARRAY},
                 {"minLength", SCHEMA_STRING},
                 {"maxLength", SCHEMA_STRING},
                 {"pattern", SCHEMA_STRING},
                 {"format", SCHEMA_STRING},
                 {"minimum", SCHEMA_NUMBER | SCHEMA_INTEGER},
                 {"maximum", SCHEMA_NUMBER | SCHEMA_INTEGER},
                 {"exclusiveMinimum", SCHEMA_NUMBER | SCHEMA_INTEGER},
                 {"exclusiveMaximum", SCHEMA_NUMBER | SCHEMA_INTEGER},
                 {"multipleOf", SCHEMA_NUMBER | SCHEMA_INTEGER}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (json_object_get(node, hints[i].key)) return hints[i].types;
    return SCHEMA_ALL;
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
    if (constant) return types & type_of_value(constant);
    if (!list) return types;
    json_array_foreach(list, i, item) values |= type_of_value(item);
    return types & values;
}

static uint32_t one_type(struct schema *s, const json_t *node, uint32_t type)
{
    const uint32_t alt = expr_alt(s->x);
    switch (type) {
    case SCHEMA_NULL:
        return expr_text(s->x, "null", 4);
    case SCHEMA_BOOLEAN:
        expr_add(s->x, alt, expr_text(s->x, "true", 4));
        return expr_add(s->x, alt, expr_text(s->x, "false", 5));
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
    static const char *const beside[] = {"enum", "const", "type"};
    const uint32_t alt = expr_alt(s->x), types = schema_types(s, node);
    const char *name;
    json_t *value;
    const json_t *item;
    size_t i;
    json_object_foreach((json_t *)node, name, value)
    {
        size_t k = 0;
        while (k < 3 && strcmp(beside[k], name) != 0) k++;
        if (k == 3 && !says_nothing(name))
            schema_refuse(s, HELM_E_UNSUPPORTED, "'%.64s' beside 'enum' or 'const' is not supported", name);
    }
    if (!json_is_array(list)) schema_refuse(s, HELM_E_FORMAT, "'enum' is not a list");
    json_array_foreach(list, i, item) if (types & type_of_value(item))
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

static const json_t *follow(const json_t *at, const char *pointer)
{
    char part[SCHEMA_PATH_MAX];
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
    const json_t *found = follow(s->document, text + 1);
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

/* A copy without one keyword; owned by s->made. */
static json_t *without(struct schema *s, const json_t *node, const char *key)
{
    json_t *copy = json_copy((json_t *)node);
    if (!copy || json_array_append_new(s->made, copy)) {
        exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
        return NULL;
    }
    json_object_del(copy, key);
    return copy;
}

static void check_one_of(struct schema *s, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++) {
            if (s->x->failed || schema_are_disjoint(s, json_array_get(list, k), json_array_get(list, i)))
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
    check_keywords(s, node);
    if (s->x->failed) return 0;
    if (json_object_get(node, "$ref")) return reference(s, node);
    if (json_object_get(node, "allOf")) return all_of(s, node);
    if (json_object_get(node, "anyOf")) return alternatives(s, node, "anyOf");
    if (json_object_get(node, "oneOf")) return alternatives(s, node, "oneOf");
    if (constant && list) {
        schema_refuse(s, HELM_E_UNSUPPORTED, "'enum' beside 'const' is not supported");
        return 0;
    }
    if (constant) {
        json_t *one = json_pack("[O]", constant);
        if (!one || json_array_append_new(s->made, one)) {
            exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
            return 0;
        }
        return constants(s, node, one);
    }
    if (list) return constants(s, node, list);
    uint32_t types = json_object_get(node, "type") ? schema_types(s, node) : inferred_types(node);
    if (types == SCHEMA_ALL && !says_more(node, "type")) return expr_rule(s->x, json_rule(s->x, ANY_VALUE));
    if (types & SCHEMA_NUMBER) types &= ~(uint32_t)SCHEMA_INTEGER;
    const uint32_t alt = expr_alt(s->x);
    for (uint32_t type = 1; type < SCHEMA_ALL && !s->x->failed; type <<= 1)
        if (types & type) expr_add(s->x, alt, one_type(s, node, type));
    return alt;
}

/* ---- nodes ---- */

static uint32_t remember(struct schema *s, const json_t *node)
{
    const uint32_t rule = exprs_new_rule(s->x);
    if (s->rule_count == s->rule_space) {
        const uint32_t space = s->rule_space ? 2 * s->rule_space : 64;
        void *grown = realloc(s->rule, space * sizeof *s->rule);
        if (!grown) {
            exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
            return 0;
        }
        s->rule = grown;
        s->rule_space = space;
    }
    s->rule[s->rule_count++] = (struct schema_rule){node, rule};
    return rule;
}

uint32_t schema_node(struct schema *s, const json_t *node, const char *name)
{
    const size_t length = strlen(s->path);
    if (s->x->failed) return 0;
    snprintf(s->path + length, sizeof s->path - length, "%s%.64s", *name ? "/" : "", name);
    uint32_t out = 0;
    if (json_is_true(node)) {
        out = expr_rule(s->x, json_rule(s->x, ANY_VALUE));
    } else if (json_is_false(node)) {
        out = expr_alt(s->x); /* nothing fits */
    } else if (!json_is_object(node)) {
        schema_refuse(s, HELM_E_FORMAT, "a schema is an object, true or false");
    } else if (++s->depth > SCHEMA_DEPTH_MAX || ++s->visited > SCHEMA_NODES_MAX) {
        schema_refuse(s, HELM_E_LIMIT,
                      "schemas nest deeper than %d, or are more than %d with those that they refer to",
                      SCHEMA_DEPTH_MAX, SCHEMA_NODES_MAX);
    } else {
        uint32_t i = 0;
        while (i < s->rule_count && s->rule[i].node != node) i++;
        const bool known = i < s->rule_count;
        const uint32_t rule = known ? s->rule[i].rule : remember(s, node);
        if (!known) exprs_define(s->x, rule, body(s, node));
        out = expr_rule(s->x, rule);
    }
    s->depth -= json_is_object(node);
    s->path[length] = 0;
    return out;
}

int schema_compile(struct exprs *x, const json_t *schema, uint32_t *root, struct helm_err *err)
{
    struct schema s = {.x = x, .document = schema, .made = json_array()};
    if (!s.made) return helm_fail(err, HELM_E_NOMEM, "no memory for a schema");
    x->place = s.path;
    *root = schema_node(&s, schema, "");
    x->place = NULL;
    json_decref(s.made);
    free(s.rule);
    return x->failed ? helm_fail(err, x->failed, "%s", x->err.text) : 0;
}

int schema_parse(struct exprs *x, const char *text, size_t length, uint32_t *root, struct helm_err *err)
{
    json_t *schema;
    int rc = json_parse_bounded("the schema", text, length, HELM_GRAMMAR_TEXT_LIMIT, &schema, err);
    if (rc) return rc;
    rc = schema_compile(x, schema, root, err);
    json_decref(schema);
    return rc;
}
