/* Bounded JSON parsing and typed getters. See json.h. */
#include "common/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"

/* Nesting is counted on the raw bytes, so that a hostile file is refused before anything recursive sees it.
 */
static int check_depth(const char *what, const char *text, size_t length, struct helm_err *err)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_DEPTH_MAX)
                return helm_fail(err, HELM_E_LIMIT, "%s: JSON nested deeper than %d at byte %zu", what,
                                 JSON_DEPTH_MAX, i);
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return 0;
}

int json_parse_bounded(const char *what, const char *text, size_t length, size_t max_bytes, json_t **out,
                       struct helm_err *err)
{
    *out = NULL;
    if (length > max_bytes)
        return helm_fail(err, HELM_E_LIMIT, "%s: %zu bytes of JSON exceed the limit of %zu", what, length,
                         max_bytes);
    int rc = check_depth(what, text, length, err);
    if (rc) return rc;
    json_error_t detail;
    json_t *value =
        json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &detail);
    if (!value)
        return helm_fail(err, HELM_E_FORMAT, "%s: not valid JSON at line %d, column %d: %s", what,
                         detail.line, detail.column, detail.text);
    *out = value;
    return 0;
}

int json_read_file(const char *path, size_t max_bytes, json_t **out, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    *out = NULL;
    int rc = file_read(path, max_bytes, &text, &length, err);
    if (rc) return rc;
    rc = json_parse_bounded(path, text, length, max_bytes, out, err);
    free(text);
    return rc;
}

/* Shared front half of the getters: 1 = present, 0 = absent and allowed, negative = error. */
static int find_member(const json_t *obj, const char *key, bool required, json_t **value,
                       struct helm_err *err)
{
    *value = json_object_get(obj, key);
    if (*value && !json_is_null(*value)) return 1;
    if (!required) return 0;
    return helm_fail(err, HELM_E_FORMAT, "'%s' is missing", key);
}

int json_get_u64(const json_t *obj, const char *key, bool required, uint64_t min, uint64_t max, uint64_t *out,
                 struct helm_err *err)
{
    json_t *value;
    int rc = find_member(obj, key, required, &value, err);
    if (rc <= 0) return rc;
    if (!json_is_integer(value)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not a whole number", key);
    json_int_t number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max)
        return helm_fail(err, HELM_E_LIMIT, "'%s' is %lld, not between %llu and %llu", key, (long long)number,
                         (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)number;
    return 0;
}

int json_get_double(const json_t *obj, const char *key, bool required, double min, double max, double *out,
                    struct helm_err *err)
{
    json_t *value;
    int rc = find_member(obj, key, required, &value, err);
    if (rc <= 0) return rc;
    if (!json_is_number(value)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not a number", key);
    double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max)
        return helm_fail(err, HELM_E_LIMIT, "'%s' is %g, not between %g and %g", key, number, min, max);
    *out = number;
    return 0;
}

int json_get_bool(const json_t *obj, const char *key, bool required, bool *out, struct helm_err *err)
{
    json_t *value;
    int rc = find_member(obj, key, required, &value, err);
    if (rc <= 0) return rc;
    if (!json_is_boolean(value)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not true or false", key);
    *out = json_is_true(value);
    return 0;
}

int json_get_string(const json_t *obj, const char *key, bool required, const char **out, struct helm_err *err)
{
    json_t *value;
    int rc = find_member(obj, key, required, &value, err);
    if (rc <= 0) return rc;
    if (!json_is_string(value)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not a string", key);
    *out = json_string_value(value);
    return 0;
}
