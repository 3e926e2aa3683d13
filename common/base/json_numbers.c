/* Texts of numbers. See json_numbers.h. An object's members are in the order in which they came, so the
 * numbers of a value are, in its own order, those of its text. */
#include "common/base/grow.h"
#include "common/base/json_numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

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
