/* The type of a parameter that a model writes as bare text, by its tool's schema. See parts.h. */
#include <string.h>
#include <strings.h>

#include "client/text/answer/parts.h"
#include "client/text/grammar/schema.h"

#define SCHEMA_DEPTH 16 /* of references and alternatives */

static const struct {
    const char *name;
    unsigned types;
} names[] = {{"string", VALUE_STRING},   {"integer", VALUE_NUMBER}, {"number", VALUE_NUMBER},
             {"boolean", VALUE_BOOLEAN}, {"null", VALUE_NULL},      {"object", VALUE_OBJECT},
             {"array", VALUE_ARRAY}};

static unsigned named(const json_t *name)
{
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i].name) == 0) return names[i].types;
    return 0;
}

static unsigned type_of(const json_t *value)
{
    return json_is_string(value)    ? VALUE_STRING
           : json_is_number(value)  ? VALUE_NUMBER
           : json_is_boolean(value) ? VALUE_BOOLEAN
           : json_is_null(value)    ? VALUE_NULL
           : json_is_object(value)  ? VALUE_OBJECT
                                    : VALUE_ARRAY;
}

static unsigned schema_types_of(const json_t *document, const json_t *node, int depth)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(node, "type"), *value = json_object_get(node, "const");
    const char *path = json_string_value(json_object_get(node, "$ref"));
    size_t index;
    const json_t *item;
    unsigned types = named(type);
    if (depth == 0) return 0;
    json_array_foreach(type, index, item) types |= named(item);
    if (types) return types;
    if (path) return schema_types_of(document, schema_follow(document, path), depth - 1);
    if (value) return type_of(value);
    json_array_foreach(json_object_get(node, "enum"), index, item) types |= type_of(item);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        json_array_foreach(json_object_get(node, lists[i]), index, item) types |=
            schema_types_of(document, item, depth - 1);
    if (!types && json_object_get(node, "properties")) types = VALUE_OBJECT;
    if (!types && json_object_get(node, "items")) types = VALUE_ARRAY;
    return types;
}

unsigned value_types(const json_t *tools, const char *tool, const char *key)
{
    size_t index;
    const json_t *item;
    json_array_foreach(tools, index, item)
    {
        const json_t *function = json_object_get(item, "function"),
                     *parameters = json_object_get(function, "parameters");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name || strcmp(name, tool) != 0) continue;
        const json_t *node = json_object_get(json_object_get(parameters, "properties"), key);
        return schema_types_of(parameters, node, SCHEMA_DEPTH);
    }
    return 0;
}

bool answer_parameter_is_text(const json_t *tools, const char *tool, const char *key)
{
    return value_types(tools, tool, key) == VALUE_STRING;
}

/* ---- values ---- */

static bool is_number(const char *text, size_t length)
{
    size_t at = length && *text == '-', digits = at;
    while (at < length && text[at] >= '0' && text[at] <= '9') at++;
    if (at == digits || (text[digits] == '0' && at - digits > 1)) return false;
    if (at < length && text[at] == '.') {
        digits = ++at;
        while (at < length && text[at] >= '0' && text[at] <= '9') at++;
        if (at == digits) return false;
    }
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < length && (text[at] == '+' || text[at] == '-')) at++;
        digits = at;
        while (at < length && text[at] >= '0' && text[at] <= '9') at++;
        if (at == digits) return false;
    }
    return at == length;
}

static bool is_word(const char *text, size_t length, const char *word)
{
    return length == strlen(word) && strncasecmp(text, word, length) == 0;
}

bool value_is_literal(const char *text, size_t length)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (length == strlen(words[i]) && memcmp(text, words[i], length) == 0) return true;
    return is_number(text, length);
}

/* The JSON text of a value that is no string, for as many types as are allowed. false: it is none of them. */
static bool add_typed(struct cli_text *out, unsigned types, const char *text, size_t length)
{
    static const struct {
        const char *word, *json;
        unsigned type;
    } words[] = {{"true", "true", VALUE_BOOLEAN},
                 {"false", "false", VALUE_BOOLEAN},
                 {"null", "null", VALUE_NULL},
                 {"None", "null", VALUE_NULL}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!(types & words[i].type) || !is_word(text, length, words[i].word)) continue;
        cli_text_printf(out, "%s", words[i].json);
        return true;
    }
    if (types & VALUE_NUMBER && is_number(text, length)) {
        cli_text_add(out, text, length);
        return true;
    }
    const char first = length ? *text : 0;
    const unsigned wanted = first == '{'   ? VALUE_OBJECT
                            : first == '[' ? VALUE_ARRAY
                            : first == '"' ? VALUE_STRING
                                           : 0;
    if (!(types & wanted)) return false;
    json_t *parsed = json_loadb(text, length, JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY, NULL);
    if (!parsed) return false;
    json_decref(parsed);
    struct json_copy copy = {0};
    if (first == '"') /* quoted where other types are allowed, too */
        cli_text_add(out, text, length);
    else
        json_copy_add(&copy, out, text, length);
    return true;
}

void value_add(struct cli_text *out, unsigned types, const char *text, size_t length)
{
    const unsigned any =
        VALUE_STRING | VALUE_NUMBER | VALUE_BOOLEAN | VALUE_NULL | VALUE_OBJECT | VALUE_ARRAY;
    size_t from = 0, until = length;
    while (from < until && answer_is_blank(text[from])) from++;
    while (until > from && answer_is_blank(text[until - 1])) until--;
    if (add_typed(out, types ? types : any, text + from, until - from)) return;
    cli_text_add(out, "\"", 1);
    json_add_escaped(out, text, length);
    cli_text_add(out, "\"", 1);
}
