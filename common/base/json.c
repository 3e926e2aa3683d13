/* Bounded JSON parsing and typed getters. See json.h. */
#include "common/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/grow.h"

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

/* ---- lists of numbers ---- */

struct entry {
    json_t *value; /* NULL: free */
    char *text;
};

struct json_numbers {
    struct entry *entry; /* [space], a power of two: by the value's address */
    size_t count, space;
};

/* ---- the table -------------------------------------------------------------------------------------- */

static struct entry *place_of(const struct json_numbers *t, const json_t *value)
{
    size_t at = (size_t)((uintptr_t)value * 0x9e3779b97f4a7c15u >> 20) & (t->space - 1);
    while (t->entry[at].value && t->entry[at].value != value) at = (at + 1) & (t->space - 1);
    return &t->entry[at];
}

static bool grow(struct json_numbers *t)
{
    struct json_numbers larger = {.count = t->count, .space = t->space ? 2 * t->space : 64};
    larger.entry = calloc(larger.space, sizeof *larger.entry);
    if (!larger.entry) return false;
    for (size_t i = 0; i < t->space; i++)
        if (t->entry[i].value) *place_of(&larger, t->entry[i].value) = t->entry[i];
    free(t->entry);
    *t = larger;
    return true;
}

static bool add(struct json_numbers *t, json_t *value, const char *text, size_t length)
{
    if (2 * t->count >= t->space && !grow(t)) return false;
    char *copy = strndup(text, length);
    if (!copy) return false;
    *place_of(t, value) = (struct entry){json_incref(value), copy};
    t->count++;
    return true;
}

const char *json_number_text(const struct json_numbers *t, const json_t *value)
{
    return t && t->space ? place_of(t, value)->text : NULL;
}

void json_numbers_free(struct json_numbers *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->space; i++) {
        json_decref(t->entry[i].value);
        free(t->entry[i].text);
    }
    free(t->entry);
    free(t);
}

/* ---- numbers of a value and of its text ------------------------------------------------------------- */

struct leaves {
    json_t **item;
    size_t count, space;
};

/* As deep as a text may be that was parsed, and a few levels around it. */
static bool collect(json_t *value, struct leaves *to)
{
    bool good = true;
    if (json_is_number(value)) {
        if (!GROW(to->item, to->count, to->space)) return false;
        to->item[to->count++] = value;
    } else if (json_is_array(value)) {
        for (size_t i = 0; good && i < json_array_size(value); i++)
            good = collect(json_array_get(value, i), to);
    } else if (json_is_object(value)) {
        for (void *at = json_object_iter(value); good && at; at = json_object_iter_next(value, at))
            good = collect(json_object_iter_value(at), to);
    }
    return good;
}

/* The first number at or after `at`, and its length; 0: there is none. NaN and -Infinity are words, not
 * numbers. */
static size_t next_number(const char *text, size_t length, size_t *at)
{
    bool in_string = false;
    for (size_t i = *at; i < length; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if ((c >= '0' && c <= '9') ||
                   (c == '-' && i + 1 < length && text[i + 1] >= '0' && text[i + 1] <= '9')) {
            size_t n = 1;
            while (i + n < length && text[i + n] && strchr("+-.0123456789eE", text[i + n])) n++;
            *at = i;
            return n;
        }
    }
    return 0;
}

static bool is_plain(const json_t *value, const char *text, size_t length)
{
    char plain[JSON_REAL_TEXT + 8];
    if (json_is_integer(value))
        snprintf(plain, sizeof plain, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        json_real_text(json_real_value(value), plain, sizeof plain);
    return strlen(plain) == length && memcmp(plain, text, length) == 0;
}

static bool note(struct json_numbers **numbers, const struct leaves *leaves, const char *text, size_t length)
{
    size_t at = 0, n;
    for (size_t i = 0; i < leaves->count && (n = next_number(text, length, &at)) > 0; i++, at += n) {
        if (is_plain(leaves->item[i], text + at, n)) continue;
        if (!*numbers) *numbers = calloc(1, sizeof **numbers);
        if (!*numbers || !add(*numbers, leaves->item[i], text + at, n)) return false;
    }
    return true;
}

int json_parse_numbers(const char *what, const char *text, size_t length, size_t max_bytes,
                       struct json_numbers **numbers, json_t **out, struct helm_err *err)
{
    struct leaves leaves = {0};
    int rc = json_parse_bounded(what, text, length, max_bytes, out, err);
    if (rc) return rc;
    if (!collect(*out, &leaves) || !note(numbers, &leaves, text, length)) {
        json_decref(*out);
        *out = NULL;
        rc = helm_fail(err, HELM_E_NOMEM, "%s: no memory for its numbers", what);
    }
    free(leaves.item);
    return rc;
}

/* The text with kept numbers in place of the written ones; takes it. */
static char *replace(char *text, const struct leaves *leaves, const struct json_numbers *numbers)
{
    const size_t length = strlen(text);
    size_t more = 0, at = 0, done = 0, used = 0, n;
    for (size_t i = 0; i < leaves->count; i++) {
        const char *kept = json_number_text(numbers, leaves->item[i]);
        more += kept ? strlen(kept) : 0;
    }
    char *out = malloc(length + more + 1);
    for (size_t i = 0; out && i < leaves->count && (n = next_number(text, length, &at)) > 0; i++, at += n) {
        const char *kept = json_number_text(numbers, leaves->item[i]);
        if (!kept) continue;
        memcpy(out + used, text + done, at - done);
        used += at - done;
        memcpy(out + used, kept, strlen(kept));
        used += strlen(kept);
        done = at + n;
    }
    if (out) memcpy(out + used, text + done, length - done + 1);
    free(text);
    return out;
}

char *json_dump_numbers(const json_t *value, size_t flags, const struct json_numbers *numbers)
{
    struct leaves leaves = {0};
    char *text = json_dump_text(value, flags);
    if (!text || !numbers) return text;
    if (collect((json_t *)value, &leaves)) {
        text = replace(text, &leaves, numbers);
    } else {
        free(text);
        text = NULL;
    }
    free(leaves.item);
    return text;
}
