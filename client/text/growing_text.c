/* Text growing in memory. See growing_text.h. */
#include "client/text/growing_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/printable.h"

/* Room for `more` bytes and a NUL after the text; NULL: none. */
static char *text_reserve(struct cli_text *text, size_t more)
{
    if (text->space - text->length <= more && !text->failed) {
        size_t space = 2 * text->space + more + 64;
        char *grown = realloc(text->data, space);
        text->failed = !grown;
        if (grown) text->data = grown;
        if (grown) text->space = space;
    }
    return text->failed ? NULL : text->data + text->length;
}

/* The written text ends at `end`. */
static void text_end(struct cli_text *text, char *end)
{
    *end = 0;
    text->length = (size_t)(end - text->data);
}

void cli_text_add(struct cli_text *text, const char *data, size_t length)
{
    char *to = text_reserve(text, length);
    if (!to) return;
    if (length) memcpy(to, data, length);
    text_end(text, to + length);
}

void cli_text_printf(struct cli_text *text, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *to = n < 0 ? NULL : text_reserve(text, (size_t)n);
    text->failed |= n < 0;
    if (to) text_end(text, to + vsnprintf(to, (size_t)n + 1, fmt, again));
    va_end(ap);
    va_end(again);
}

void cli_text_shown(struct cli_text *text, const char *data, size_t length)
{
    char *to = text_reserve(text, 4 * length + 1); /* every byte may become \xNN */
    if (!to) return;
    for (size_t i = 0, taken; i < length; i += taken) {
        taken = 1;
        if (data[i] == '\n' || data[i] == '\t')
            *to++ = data[i];
        else
            to += printable_show(to, data + i, length - i, &taken);
    }
    text_end(text, to);
}

void cli_text_ids(struct cli_text *text, const uint32_t *ids, size_t count, bool brackets)
{
    char *to = text_reserve(text, 11 * count + 2); /* ten digits and a comma each */
    if (!to) return;
    if (brackets) *to++ = '[';
    for (size_t i = 0; i < count; i++) {
        char digits[10];
        int n = 0;
        uint32_t id = ids[i];
        do digits[n++] = (char)('0' + id % 10);
        while (id /= 10);
        if (i) *to++ = ',';
        while (n) *to++ = digits[--n];
    }
    if (brackets) *to++ = ']';
    text_end(text, to);
}

/* ---- templates ---- */

struct cli_value cli_value_bool(bool value)
{
    return PLAIN(value ? "true" : "false");
}
struct cli_value cli_value_string(const char *value)
{
    return value ? JSON_BYTES(value, strlen(value)) : PLAIN("null");
}
struct cli_value cli_value_real(double value)
{
    return cli_value_digits(value, 9);
}

static struct cli_value HELM_PRINTF(1, 2) number(const char *fmt, ...)
{
    struct cli_value value = {CLI_VALUE_PLAIN};
    va_list ap;
    va_start(ap, fmt);
    value.length = (size_t)vsnprintf(value.number, sizeof value.number, fmt, ap);
    va_end(ap);
    return value;
}

/* JSON has no infinity: a token of probability zero gets the lowest value of a float, and so does what is
 * beyond. So a number's digits have room. */
static double in_json(double value)
{
    return fabs(value) <= 3.4e38 ? value : value > 0 ? 3.4e38 : -3.4e38;
}

struct cli_value cli_value_integer(int64_t value)
{
    return number("%" PRId64, value);
}
struct cli_value cli_value_whole(uint64_t value)
{
    return number("%" PRIu64, value);
}
struct cli_value cli_value_digits(double value, int digits)
{
    return number("%.*g", digits, in_json(value));
}
struct cli_value cli_value_fixed(double value, int digits)
{
    return number("%.*f", digits, in_json(value));
}

/* The text's characters; "?" in the place of those that may not be shown. */
static void add_clean(struct cli_text *to, const struct cli_value *v)
{
    for (size_t at = 0, bytes; at < v->length; at += bytes ? bytes : 1) {
        bytes = printable_character(v->text + at, v->length - at);
        cli_text_add(to, bytes ? v->text + at : "?", bytes ? bytes : 1);
    }
}

/* A JSON string with its quotes. C1 controls are escaped, too, since some terminals obey them; U+FFFD stands
 * for each run of bytes that begins no character. */
static void add_string(struct cli_text *to, const struct cli_value *v)
{
    static const char plain[] = "\"\\\n\r\t", escaped[] = "\"\\nrt", instead[] = "\xEF\xBF\xBD";
    char *at = text_reserve(to, 6 * v->length + 2); /* every byte may become \u00XX */
    if (!at) return;
    *at++ = '"';
    for (size_t i = 0, bytes; i < v->length; i += bytes) {
        const char *from = v->text + i;
        const unsigned char c = (unsigned char)*from;
        const char *found = c ? strchr(plain, c) : NULL;
        enum utf8_state state;
        bytes = utf8_step(from, v->length - i, &state);
        if (state != UTF8_VALID) {
            at = mempcpy(at, instead, sizeof instead - 1);
        } else if (found) {
            *at++ = '\\';
            *at++ = escaped[found - plain];
        } else if (c < 32 || c == 127) {
            at += sprintf(at, "\\u%04x", c);
        } else if (c == 0xc2 && (unsigned char)from[1] < 0xa0) {
            at += sprintf(at, "\\u%04x", (unsigned char)from[1]);
        } else {
            at = mempcpy(at, from, bytes);
        }
    }
    *at++ = '"';
    text_end(to, at);
}

static void add_value(struct cli_text *to, const struct cli_value *v)
{
    if (v->kind == CLI_VALUE_PLAIN)
        cli_text_add(to, v->text ? v->text : v->number, v->length);
    else if (v->kind == CLI_VALUE_CLEAN)
        add_clean(to, v);
    else
        add_string(to, v);
}

void cli_text_add_template(struct cli_text *to, const char *marks, const char *template,
                           const struct cli_value *values)
{
    for (const char *at = template;; at++) {
        const size_t plain = strcspn(at, marks);
        cli_text_add(to, at, plain);
        at += plain;
        const bool divided = to->length && to->data[to->length - 1] == ',';
        if (!*at) return;
        if (*at == '$') {
            add_value(to, values++);
        } else if (*at == '\'') {
            cli_text_add(to, "\"", 1);
        } else {
            if (divided) to->length--;
            cli_text_add(to, at, 1);
        }
    }
}

void cli_text_add_members(struct cli_text *text, const struct cli_member *members)
{
    for (; members->name; members++) cli_text_fill(text, "'$':$,", PLAIN(members->name), members->value);
}

void cli_text_free(struct cli_text *text)
{
    free(text->data);
    *text = (struct cli_text){0};
}
