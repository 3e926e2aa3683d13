/* Bounded JSON parsing and typed getters. See json.h. */
#include "common/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"

/* The first pass over the bytes: a hostile nesting is refused before anything recursive sees it, and numbers
 * that jansson cannot hold are found. */
struct survey {
    const char *what, *text;
    size_t length;
    bool python;   /* NaN, Infinity and -Infinity are values */
    bool changed;  /* it is not JSON as jansson takes it */
    char *rewrite; /* NULL: only looks */
    size_t written;
};

#define INTEGER_DIGITS 18 /* an integer of as many fits 64 bits */

static void put(struct survey *s, const char *bytes, size_t count)
{
    if (s->rewrite) memcpy(s->rewrite + s->written, bytes, count);
    s->written += count;
}

/* A number such as 1e999, which is larger than any real number. */
static bool is_beyond(const char *text, size_t length)
{
    char number[64];
    const char *exponent = memchr(text, 'e', length), *other = memchr(text, 'E', length);
    if ((!exponent && !other) || length >= sizeof number) return false;
    memcpy(number, text, length);
    number[length] = 0;
    return isinf(strtod(number, NULL));
}

/* The number or word at `at`, with what stands for it: an integer beyond 64 bits is a real number, one beyond
 * a real number's range the largest of those, NaN and Infinity are texts of that name, which no getter takes
 * for a number. */
static size_t put_word(struct survey *s, size_t at)
{
    static const char most[] = "1.7976931348623157e308";
    const char *from = s->text + at;
    const size_t minus = *from == '-';
    size_t n = minus, digits;
    bool whole = true;
    for (; at + n < s->length && from[n] &&
           strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", from[n]);
         n++)
        whole = whole && from[n] >= '0' && from[n] <= '9';
    digits = n - minus;
    char quoted[16];
    if (s->python && ((digits == 3 && !minus && memcmp(from, "NaN", 3) == 0) ||
                      (digits == 8 && memcmp(from + minus, "Infinity", 8) == 0))) {
        s->changed = true;
        quoted[0] = quoted[n + 1] = '"';
        memcpy(quoted + 1, from, n);
        put(s, quoted, n + 2);
    } else if (whole && digits > INTEGER_DIGITS && from[minus] != '0') {
        s->changed = true;
        if (digits > 308) {
            put(s, from, minus);
            put(s, most, sizeof most - 1);
        } else if (digits > INTEGER_DIGITS + 1 ||
                   memcmp(from + minus, minus ? "9223372036854775808" : "9223372036854775807", 19) > 0) {
            put(s, from, n);
            put(s, ".0", 2);
        } else {
            put(s, from, n);
        }
    } else if (!whole && is_beyond(from, n)) {
        s->changed = true;
        put(s, from, minus);
        put(s, most, sizeof most - 1);
    } else {
        put(s, from, n);
    }
    return n;
}

static int survey(struct survey *s, struct helm_err *err)
{
    int depth = 0;
    bool in_string = false;
    s->written = 0;
    for (size_t i = 0; i < s->length;) {
        const char c = s->text[i];
        size_t n = 1;
        if (in_string) {
            if (c == '\\' && i + 1 < s->length)
                n = 2;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_DEPTH_MAX)
                return helm_fail(err, HELM_E_LIMIT, "%s: JSON nested deeper than %d at byte %zu", s->what,
                                 JSON_DEPTH_MAX, i);
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == '-' || (c >= '0' && c <= '9') || c == 'N' || c == 'I') {
            i += put_word(s, i);
            continue;
        }
        put(s, s->text + i, n);
        i += n;
    }
    return 0;
}

static int parse(const char *what, const char *text, size_t length, size_t max_bytes, bool python,
                 json_t **out, struct helm_err *err)
{
    struct survey s = {.what = what, .text = text, .length = length, .python = python};
    *out = NULL;
    if (length > max_bytes)
        return helm_fail(err, HELM_E_LIMIT, "%s: %zu bytes of JSON exceed the limit of %zu", what, length,
                         max_bytes);
    int rc = survey(&s, err);
    if (rc) return rc;
    if (s.changed) {
        s.rewrite = malloc(s.written ? s.written : 1);
        if (!s.rewrite)
            return helm_fail(err, HELM_E_NOMEM, "%s: no memory for %zu bytes of JSON", what, s.written);
        rc = survey(&s, err);
        if (rc) return rc;
    }
    json_error_t detail;
    json_t *value = json_loadb(s.rewrite ? s.rewrite : text, s.rewrite ? s.written : length,
                               JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &detail);
    free(s.rewrite);
    if (!value)
        return helm_fail(err, HELM_E_FORMAT, "%s: not valid JSON at line %d, column %d: %s", what,
                         detail.line, detail.column, detail.text);
    *out = value;
    return 0;
}

int json_parse_bounded(const char *what, const char *text, size_t length, size_t max_bytes, json_t **out,
                       struct helm_err *err)
{
    return parse(what, text, length, max_bytes, false, out, err);
}

int json_parse_python(const char *what, const char *text, size_t length, size_t max_bytes, json_t **out,
                      struct helm_err *err)
{
    return parse(what, text, length, max_bytes, true, out, err);
}

/* ---- texts of numbers ---- */

size_t json_real_text(double value, char *out, size_t space)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, space, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    char *exponent = strchr(out, 'e');
    if (exponent) { /* 1e30 and 1e-7, as jansson writes them: not 1e+30 and 1e-07 */
        char *to = exponent + 1, *from = to;
        if (*from == '-') to++;
        if (*from == '-' || *from == '+') from++;
        while (*from == '0') from++;
        memmove(to, from, strlen(from) + 1);
    } else if (!strpbrk(out, ".n")) {
        strcat(out, ".0");
    }
    return strlen(out);
}

char *json_dump_text(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags);
    size_t to = 0;
    bool in_string = false;
    for (size_t i = 0; text && text[i];) {
        const char c = text[i];
        size_t n = 1;
        if (in_string ? c == '\\' : c == '-' || (c >= '0' && c <= '9')) {
            char number[JSON_REAL_TEXT];
            n = in_string ? 2 : strspn(text + i, "+-.0123456789eE");
            const size_t real = in_string ? 0 : strcspn(text + i, ".eE");
            if (!in_string && real < n) { /* never longer than the 17 digits that are there */
                const size_t length = json_real_text(strtod(text + i, NULL), number, sizeof number);
                memcpy(text + to, number, length);
                to += length;
                i += n;
                continue;
            }
        } else if (c == '"') {
            in_string = !in_string;
        }
        memmove(text + to, text + i, n);
        to += n;
        i += n;
    }
    if (text) text[to] = 0;
    return text;
}

int json_read_file(const char *path, size_t max_bytes, json_t **out, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    *out = NULL;
    int rc = file_read(path, max_bytes, &text, &length, err);
    if (rc) return rc;
    rc = json_parse_python(path, text, length, max_bytes, out, err);
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
