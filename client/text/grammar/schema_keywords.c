/* Keywords of schemas: which are supported, which say nothing, and values that exclude nothing. See
 * schema.h. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/schema.h"

enum keyword_kind { SUPPORTED, SAYS_NOTHING, UNKNOWN };
static const struct {
    enum keyword_kind kind;
    const char *names[24];
} keywords[] = {
    {SUPPORTED,
     {"$ref",
      "allOf",
      "anyOf",
      "oneOf",
      "type",
      "const",
      "enum",
      "nullable",
      "items",
      "prefixItems",
      "additionalItems",
      "minItems",
      "maxItems",
      "minLength",
      "maxLength",
      "pattern",
      "format",
      "minimum",
      "maximum",
      "exclusiveMinimum",
      "exclusiveMaximum",
      "multipleOf"}},
    {SUPPORTED, {"properties", "required", "additionalProperties", "propertyNames", "minProperties"}},
    {SAYS_NOTHING,
     {"title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly",
      "$schema", "$id", "$comment", "$defs", "definitions", "discriminator", "$anchor", "$vocabulary", "id"}},
    {SAYS_NOTHING,
     {"contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "xml", "markdownDescription",
      "enumNames", "enumDescriptions", "markdownEnumDescriptions", "errorMessage", "propertyOrdering"}},
};

/* Values of keywords that exclude nothing, as compact JSON: such a keyword says nothing, supported or not. */
static const struct {
    const char *name, *values[3];
} neutral[] = {
    {"nullable", {"false"}},
    {"uniqueItems", {"false"}},
    {"minProperties", {"0", "0.0"}},
    {"minItems", {"0", "0.0"}},
    {"minLength", {"0", "0.0"}},
    {"patternProperties", {"{}"}},
    {"dependentRequired", {"{}"}},
    {"dependentSchemas", {"{}"}},
    {"dependencies", {"{}"}},
    {"unevaluatedProperties", {"true", "{}"}},
    {"unevaluatedItems", {"true", "{}"}},
    {"propertyNames", {"true", "{}", "{\"type\":\"string\"}"}},
    {"not", {"false"}},
    {"minContains", {"0", "0.0"}},
    {"exclusiveMinimum", {"false"}},
    {"exclusiveMaximum", {"false"}},
};

static bool is_neutral(const json_t *node, const char *name, const json_t *value)
{
    bool found = false;
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
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral && !found; i++) {
        if (strcmp(neutral[i].name, name) != 0) continue;
        if (json_is_object(value) && json_object_size(value) > 1) return false;
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        for (size_t k = 0; text && k < 3 && neutral[i].values[k]; k++)
            found = found || strcmp(text, neutral[i].values[k]) == 0;
        free(text);
    }
    return found;
}

static enum keyword_kind kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        for (size_t k = 0; k < 24 && keywords[i].names[k]; k++)
            if (strcmp(keywords[i].names[k], name) == 0) return keywords[i].kind;
    return strncmp(name, "x-", 2) == 0 ? SAYS_NOTHING : UNKNOWN;
}

bool schema_says_nothing(const json_t *node, const char *name, const json_t *value)
{
    return kind_of(name) == SAYS_NOTHING || is_neutral(node, name, value);
}

void schema_check_keywords(struct schema *s, const json_t *node)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)node, name, value)
    {
        if (kind_of(name) == UNKNOWN && !is_neutral(node, name, value))
            schema_refuse(s, HELM_E_UNSUPPORTED, "the keyword '%.64s' is not supported", name);
    }
}
