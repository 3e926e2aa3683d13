/* Arguments that a model does not write as JSON: parameters in tags, and objects with bare keys. See
 * parts.h. */
#include <ctype.h>
#include <string.h>

#include "client/text/answer/parts.h"

#define WORD_MAX 4096 /* bytes of a bare value */

/* ---- keys ---- */

/* The last parameter was there. */
static bool end_keys(struct answer *a)
{
    cli_text_add(&a->piece, a->first ? "{}" : "}", a->first ? 2 : 1);
    a->state = CALL_BETWEEN;
    calls_end(a);
    return true;
}

/* Reads the type that the rest of a key's tag gives its value: DeepSeek's string="true". */
static void read_attribute(struct answer *a, const char *key, const char *tag, size_t length)
{
    static const char text[] = "string=\"true\"", json[] = "string=\"false\"";
    a->types = value_types(a->wish.tools, a->name, key);
    if (memmem(tag, length, text, strlen(text))) a->types = VALUE_STRING;
    if (memmem(tag, length, json, strlen(json))) a->types = 0;
}

/* The key at rest[from], as far as it is there; *used: its tag and what opens the value. */
static enum call_found find_key(struct answer *a, size_t from, char key[ANSWER_NAME_MAX + 1], size_t *used)
{
    const struct call_syntax *s = a->calls;
    const size_t left = a->rest.length - from;
    const char *end = left ? memmem(a->rest.data + from, left, s->key_end, strlen(s->key_end)) : NULL;
    if (!end) return left > ANSWER_NAME_MAX + strlen(s->key_end) ? CALL_NONE : CALL_MORE;
    const size_t length = (size_t)(end - a->rest.data) - from;
    if (length > ANSWER_NAME_MAX) return CALL_NONE;
    memcpy(key, a->rest.data + from, length);
    key[length] = 0;
    size_t at = from + length + strlen(s->key_end);
    const size_t tag = at;
    if (s->tags) {
        const char *close = at < a->rest.length ? memchr(a->rest.data + at, '>', a->rest.length - at) : NULL;
        if (!close) return a->rest.length - at > ANSWER_NAME_MAX ? CALL_NONE : CALL_MORE;
        at = (size_t)(close - a->rest.data) + 1;
    }
    read_attribute(a, key, a->rest.data + tag, at - tag);
    if (s->value_open) {
        at = answer_blanks(&a->rest, at);
        const enum call_found open = answer_literal(a, at, s->value_open);
        if (open != CALL_FOUND) return open;
        at += strlen(s->value_open);
    }
    *used = at;
    return CALL_FOUND;
}

bool parameters_keys(struct answer *a)
{
    const struct call_syntax *s = a->calls;
    char key[ANSWER_NAME_MAX + 1];
    size_t used = 0;
    answer_drop(&a->rest, answer_blanks(&a->rest, 0));
    if (a->rest.length == 0) return a->last && end_keys(a);
    enum call_found found = answer_literal(a, 0, s->key_open);
    if (found == CALL_FOUND) {
        found = find_key(a, strlen(s->key_open), key, &used);
        if (found == CALL_MORE) {
            if (a->last) a->rest.length = 0; /* cut in a tag: the call stays open */
            return false;
        }
        if (found == CALL_FOUND) {
            cli_text_add(&a->piece, a->first ? "{\"" : ",\"", 2);
            json_add_escaped(&a->piece, key, strlen(key));
            cli_text_add(&a->piece, "\":", 2);
            answer_drop(&a->rest, used);
            a->first = a->value_begun = false;
            a->searched = 0;
            a->state = CALL_VALUE;
            return true;
        }
    }
    const char *const ends[] = {s->call_close, s->close, s->open};
    for (int i = 0; i < 3 && found == CALL_NONE; i++) {
        if (!ends[i] || !*ends[i]) continue;
        found = answer_literal(a, 0, ends[i]);
        if (found == CALL_FOUND) return end_keys(a);
    }
    if (found == CALL_MORE) return false;
    answer_drop(&a->rest, 1); /* a byte of no parameter */
    return true;
}

/* ---- values ---- */

/* A value that is a string is told as it comes. */
static void give_string(struct answer *a, size_t count)
{
    json_add_escaped(&a->piece, a->rest.data, count);
    answer_drop(&a->rest, count);
}

bool parameters_value(struct answer *a)
{
    const struct call_syntax *s = a->calls;
    const size_t bytes = strlen(s->value_close);
    const bool string = a->types == VALUE_STRING;
    if (!a->value_begun) {
        if (a->rest.length == 0) return false;
        if (s->lines && a->rest.data[0] == '\n') answer_drop(&a->rest, 1);
        if (string) cli_text_add(&a->piece, "\"", 1);
        a->value_begun = true;
    }
    const char *end =
        a->rest.length - a->searched
            ? memmem(a->rest.data + a->searched, a->rest.length - a->searched, s->value_close, bytes)
            : NULL;
    if (!end) {
        size_t safe = a->rest.length;
        if (!a->last) safe -= answer_partial(&a->rest, s->value_close);
        if (!a->last && s->lines && safe && a->rest.data[safe - 1] == '\n') safe--;
        if (string)
            give_string(a, safe);
        else
            a->searched = a->rest.length > bytes ? a->rest.length - bytes : 0;
        if (a->last) a->rest.length = a->searched = 0; /* the call stays open */
        return false;
    }
    const size_t all = (size_t)(end - a->rest.data);
    const size_t length = all && s->lines && a->rest.data[all - 1] == '\n' ? all - 1 : all;
    if (string) {
        json_add_escaped(&a->piece, a->rest.data, length);
        cli_text_add(&a->piece, "\"", 1);
    } else {
        value_add(&a->piece, a->types, a->rest.data, length);
    }
    answer_drop(&a->rest, all + bytes);
    a->state = CALL_KEYS;
    return true;
}

/* ---- objects with bare keys ---- */

static const char quote[] = "<|\"|>";

static bool in_object(const struct answer *a)
{
    return a->objects & 1;
}

static void bracket(struct answer *a, char c)
{
    cli_text_add(&a->piece, &c, 1);
    if (c == '{' || c == '[') {
        a->objects = a->objects << 1 | (c == '{');
        a->depth++;
    } else {
        a->objects >>= 1;
        a->depth -= a->depth > 0;
    }
}

/* Inside a string: up to its end. */
static bool bare_string(struct answer *a)
{
    if (!a->plain_quotes) {
        const char *end = a->rest.length ? memmem(a->rest.data, a->rest.length, quote, strlen(quote)) : NULL;
        const size_t held = end || a->last ? 0 : answer_partial(&a->rest, quote);
        give_string(a, end ? (size_t)(end - a->rest.data) : a->rest.length - held);
        if (!end) return false;
        answer_drop(&a->rest, strlen(quote));
    } else {
        size_t at = 0;
        for (; at < a->rest.length && (a->escaped || a->rest.data[at] != '"'); at++)
            a->escaped = !a->escaped && a->rest.data[at] == '\\';
        cli_text_add(&a->piece, a->rest.data, at);
        const bool ended = at < a->rest.length;
        answer_drop(&a->rest, at + ended);
        if (!ended) return false;
    }
    cli_text_add(&a->piece, "\"", 1);
    a->quoted = false;
    return true;
}

/* Adds what a backslash in a string of Python begins, at this place of the rest. Returns its bytes; 0: more
 * of it has to come. */
static size_t add_escape(struct answer *a, size_t at)
{
    struct cli_text *out = &a->piece;
    const char *from = a->rest.data + at;
    const size_t left = a->rest.length - at;
    const char c = left > 1 ? from[1] : 0;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    size_t have = 0;
    while (have < digits && 2 + have < left && isxdigit((unsigned char)from[2 + have])) have++;
    if ((left < 2 || (have < digits && 2 + have == left)) && !a->last) return 0;
    if (digits && have == digits) {
        cli_text_printf(out, "\\u%s%.*s", c == 'x' ? "00" : "", (int)digits, from + 2);
        return 2 + digits;
    }
    if (c == '\n') return 2; /* the line goes on */
    if (c == '\'')
        cli_text_add(out, &c, 1);
    else if (c && strchr("\"\\bfnrt", c))
        cli_text_printf(out, "\\%c", c);
    else { /* none: the backslash is itself */
        cli_text_add(out, "\\\\", 2);
        return 1;
    }
    return 2;
}

/* The same in Python: between either quotes. */
static bool python_string(struct answer *a)
{
    size_t at = 0;
    bool ended = false;
    while (at < a->rest.length && !ended) {
        const char c = a->rest.data[at];
        const size_t bytes = c == '\\' ? add_escape(a, at) : 1;
        if (!bytes) break;
        ended = c == a->quote;
        if (!ended && c != '\\') json_add_escaped(&a->piece, &c, 1);
        at += bytes;
    }
    answer_drop(&a->rest, at);
    if (!ended) return false;
    cli_text_add(&a->piece, "\"", 1);
    a->quoted = false;
    return true;
}

/* The sign of JSON that one of Python stands for: arguments are an object, tuples are lists. */
static char python_sign(const struct answer *a, char c)
{
    if (c == '(') return a->depth ? '[' : '{';
    if (c == ')') return a->depth == 1 ? '}' : ']';
    return c == '=' && a->depth == 1 ? ':' : c;
}

/* Python's word for a value, as JSON has it, or NULL. */
static const char *python_word(const char *text, size_t length)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i][0]) == length && memcmp(words[i][0], text, length) == 0) return words[i][1];
    return NULL;
}

/* A word without quotes: a key, a number, true, false, null, or a string after all. */
static bool bare_word(struct answer *a)
{
    const bool python = a->calls->form == CALL_PYTHON;
    const char *const ends = python ? ",:={}[]()'\"" : ",:{}[]<\"";
    size_t n = 0;
    while (n < a->rest.length && n < WORD_MAX && !strchr(ends, a->rest.data[n])) n++;
    if (n == a->rest.length && !a->last && n < WORD_MAX) return false;
    const char sign = n == a->rest.length ? 0 : python ? python_sign(a, a->rest.data[n]) : a->rest.data[n];
    const bool key = in_object(a) && sign == ':';
    if (n == 0) { /* a sign that belongs nowhere */
        answer_drop(&a->rest, 1);
        return true;
    }
    size_t length = n;
    while (length && answer_is_blank(a->rest.data[length - 1])) length--;
    const char *word = python && !key ? python_word(a->rest.data, length) : NULL;
    if (word) {
        cli_text_add(&a->piece, word, strlen(word));
    } else if (!key && value_is_literal(a->rest.data, length)) {
        cli_text_add(&a->piece, a->rest.data, length);
    } else {
        cli_text_add(&a->piece, "\"", 1);
        json_add_escaped(&a->piece, a->rest.data, length);
        cli_text_add(&a->piece, "\"", 1);
    }
    answer_drop(&a->rest, n);
    return true;
}

bool parameters_bare(struct answer *a)
{
    const bool python = a->calls->form == CALL_PYTHON;
    if (a->quoted) return python ? python_string(a) : bare_string(a);
    answer_drop(&a->rest, answer_blanks(&a->rest, 0));
    if (a->rest.length == 0) return false;
    const char c = python ? python_sign(a, a->rest.data[0]) : a->rest.data[0];
    if (a->comma && !strchr("}]", c)) cli_text_add(&a->piece, ",", 1);
    a->comma = python && c == ',';
    if (a->comma) {
        answer_drop(&a->rest, 1);
        return true;
    }
    if (strchr("{}[]", c)) {
        bracket(a, c);
        answer_drop(&a->rest, 1);
        if (a->depth) return true;
        a->state = CALL_BETWEEN;
        calls_end(a);
        return true;
    }
    if (c == ',' || c == ':') {
        cli_text_add(&a->piece, &c, 1);
        answer_drop(&a->rest, 1);
        return true;
    }
    const enum call_found marked = python ? CALL_NONE : answer_literal(a, 0, quote);
    if (marked == CALL_MORE) return false;
    if (marked == CALL_NONE && c != '"' && !(python && c == '\'')) return bare_word(a);
    a->quote = c;
    a->plain_quotes = marked == CALL_NONE;
    a->quoted = true;
    a->escaped = false;
    cli_text_add(&a->piece, "\"", 1);
    answer_drop(&a->rest, marked == CALL_NONE ? 1 : strlen(quote));
    return true;
}
