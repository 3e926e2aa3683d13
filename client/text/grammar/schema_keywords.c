/* Keywords of schemas, a row each. See schema.h. */
#include <string.h>

#include "client/text/grammar/schema.h"

/* Values with which a keyword excludes nothing. */
enum {
    IF_FALSE = 1,
    IF_TRUE = 2,
    IF_ZERO = 4,
    IF_EMPTY = 8, /* {} */
    IF_TEXTS = 16 /* {"type": "string"} */
};
#define NUMBERS (SCHEMA_NUMBER | SCHEMA_INTEGER)

/* The rows with types come in the order in which these are inferred. */
static const struct schema_keyword keywords[] = {
    {"properties", SCHEMA_OBJECT, MERGE_MEMBERS},
    {"required", SCHEMA_OBJECT, MERGE_UNION},
    {"additionalProperties", SCHEMA_OBJECT, MERGE_BOTH},
    {"propertyNames", SCHEMA_OBJECT, .neutral = IF_TRUE | IF_EMPTY | IF_TEXTS},
    {"items", SCHEMA_ARRAY, MERGE_BOTH},
    {"prefixItems", SCHEMA_ARRAY},
    {"minItems", SCHEMA_ARRAY, MERGE_LARGER, IF_ZERO},
    {"maxItems", SCHEMA_ARRAY, MERGE_SMALLER},
    {"minLength", SCHEMA_STRING, MERGE_LARGER, IF_ZERO},
    {"maxLength", SCHEMA_STRING, MERGE_SMALLER},
    {"pattern", SCHEMA_STRING},
    {"format", SCHEMA_STRING},
    {"minimum", NUMBERS, MERGE_LARGER},
    {"maximum", NUMBERS, MERGE_SMALLER},
    {"exclusiveMinimum", NUMBERS, MERGE_LARGER, IF_FALSE},
    {"exclusiveMaximum", NUMBERS, MERGE_SMALLER, IF_FALSE},
    {"multipleOf", NUMBERS},
    {"minProperties", .merge = MERGE_LARGER, .neutral = IF_ZERO},
    {"type", .merge = MERGE_TYPE},
    {"enum", .merge = MERGE_ENUM},
    {"const"},
    {"nullable", .neutral = IF_FALSE},
    {"additionalItems"},
    {"$ref"},
    {"allOf"},
    {"anyOf"},
    {"oneOf"},
    {"not", .neutral = IF_FALSE, .refused = true},
    {"uniqueItems", .neutral = IF_FALSE, .refused = true},
    {"minContains", .neutral = IF_ZERO, .refused = true},
    {"patternProperties", .neutral = IF_EMPTY, .refused = true},
    {"dependentRequired", .neutral = IF_EMPTY, .refused = true},
    {"dependentSchemas", .neutral = IF_EMPTY, .refused = true},
    {"dependencies", .neutral = IF_EMPTY, .refused = true},
    {"unevaluatedProperties", .neutral = IF_TRUE | IF_EMPTY, .refused = true},
    {"unevaluatedItems", .neutral = IF_TRUE | IF_EMPTY, .refused = true},
};

static const char *const annotations[][20] = {
    {"title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly",
     "$schema", "$id", "$comment", "$defs", "definitions", "discriminator", "$anchor", "$vocabulary", "id"},
    {"contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "xml", "markdownDescription",
     "enumNames", "enumDescriptions", "markdownEnumDescriptions", "errorMessage", "propertyOrdering"}};

const struct schema_keyword *schema_keyword(const char *name)
{
    static const struct schema_keyword annotation = {.merge = MERGE_NOTHING}, unknown = {.refused = true};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, name) == 0) return &keywords[i];
    for (size_t i = 0; i < sizeof annotations / sizeof *annotations; i++)
        for (size_t k = 0; annotations[i][k]; k++)
            if (strcmp(annotations[i][k], name) == 0) return &annotation;
    return strncmp(name, "x-", 2) == 0 ? &annotation : &unknown;
}

uint32_t schema_inferred_types(const json_t *node)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords && keywords[i].types; i++) {
        const json_t *value = json_object_get(node, keywords[i].name);
        const bool format = strcmp(keywords[i].name, "format") == 0;
        if (value && (!format || (json_is_string(value) && schema_format_pattern(json_string_value(value)))))
            return keywords[i].types;
    }
    return SCHEMA_ALL;
}

static bool is_neutral(const json_t *node, const char *name, const json_t *value)
{
    /* alone they bind nothing */
    if ((strcmp(name, "minContains") == 0 || strcmp(name, "maxContains") == 0) &&
        !json_object_get(node, "contains"))
        return true;
    if ((strcmp(name, "then") == 0 || strcmp(name, "else") == 0) && !json_object_get(node, "if")) return true;
    if (strcmp(name, "if") == 0 && !json_object_get(node, "then") && !json_object_get(node, "else"))
        return true;
    if (strcmp(name, "minProperties") == 0 && json_is_number(value) &&
        json_number_value(value) <= (double)json_array_size(json_object_get(node, "required")))
        return true;
    if (strcmp(name, "maxProperties") == 0 && json_is_number(value))
        return json_is_false(json_object_get(node, "additionalProperties")) &&
               json_number_value(value) >= (double)json_object_size(json_object_get(node, "properties"));
    const unsigned neutral = schema_keyword(name)->neutral;
    const char *type = json_string_value(json_object_get(value, "type"));
    return (neutral & IF_FALSE && json_is_false(value)) || (neutral & IF_TRUE && json_is_true(value)) ||
           (neutral & IF_ZERO && json_is_number(value) && json_number_value(value) == 0) ||
           (neutral & IF_EMPTY && json_is_object(value) && json_object_size(value) == 0) ||
           (neutral & IF_TEXTS && json_object_size(value) == 1 && type && strcmp(type, "string") == 0);
}

bool schema_says_nothing(const json_t *node, const char *name, const json_t *value)
{
    return schema_keyword(name)->merge == MERGE_NOTHING || is_neutral(node, name, value);
}

void schema_check_keywords(struct schema *s, const json_t *node)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)node, name, value)
    {
        if (schema_keyword(name)->refused && !schema_says_nothing(node, name, value))
            schema_refuse(s, HELM_E_UNSUPPORTED, "the keyword '%.64s' is not supported", name);
    }
}
