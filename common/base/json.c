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

/* Bytes of the number that begins at `text`, without its sign. *whole: it has neither fraction nor exponent. */
static size_t number_bytes(const char *text, size_t length, bool *whole)
{
    size_t digits = 0;
    while (digits < length && text[digits] >= '0' && text[digits] <= '9') digits++;
    size_t bytes = digits;
    while (bytes < length && text[bytes] && strchr("+-.0123456789eE", text[bytes])) bytes++;
    *whole = bytes == digits;
    return bytes;
}

#define REAL_DIGITS 300 /* more may be beyond a double: the largest stands for them */
/* What a whole number that does not fit 64 bits becomes: the same number as a real. NULL: it fits. */
static const char *widened(const char *digits, size_t count, size_t *kept)
{
    static const char most[] = "9223372036854775807";
    const size_t fits = sizeof most - 1;
    if (count < fits || (count == fits && memcmp(digits, most, fits) <= 0)) return NULL;
    *kept = count > REAL_DIGITS ? 1 : count;
    return count > REAL_DIGITS ? "e307" : "e0";
}

/* JSON's whole numbers are as wide as their writers like. Whoever reads one of these as a whole number refuses it, and
 * whoever reads none is not bothered. `to` NULL: counts alone. Returns the bytes of the text that stands instead. */
static size_t widen(const char *text, size_t length, char *to)
{
    bool in_string = false, whole = false;
    size_t used = 0, bytes;
    for (size_t i = 0; i < length; i += bytes) {
        const char *more = NULL;
        bytes = 1;
        if (text[i] == '"')
            in_string = !in_string;
        else if (in_string && text[i] == '\\' && i + 1 < length)
            bytes = 2;
        else if (!in_string && text[i] >= '0' && text[i] <= '9')
            bytes = number_bytes(text + i, length - i, &whole);
        size_t kept = bytes;
        if (!in_string && bytes > 2 && whole) more = widened(text + i, bytes, &kept);
        if (to) memcpy(to + used, text + i, kept);
        if (to && more) memcpy(to + used + kept, more, strlen(more));
        used += kept + (more ? strlen(more) : 0);
    }
    return used;
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
    const size_t bytes = widen(text, length, NULL);
    char *wide = bytes == length ? NULL : malloc(bytes + 1);
    if (bytes != length && !wide) return helm_fail(err, HELM_E_NOMEM, "%s: no memory for its numbers", what);
    if (wide) widen(text, length, wide);
    json_t *value = json_loadb(wide ? wide : text, bytes,
                               JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &detail);
    free(wide);
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
