/* Takes model.vocab and model.merges out of tokenizer.json, and reads the strings and numbers inside them.
 *
 * A tokenizer.json is ten megabytes, nearly all of it these two values; as a JSON tree they would cost
 * several hundred thousand allocations. So they are found here by a walk that only knows strings and
 * brackets, the small rest goes to the JSON parser, and the two are read in place. Whatever the walk gets
 * wrong on bytes that are not JSON, the parser or the readers below then refuse. Called by tokenizer/load.c
 * and tokenizer/vocab.c; owns nothing. */
#include "client/text/tokenizer/internal.h"
#include "common/base/units.h"

#include <string.h>

static bool is_json_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && is_json_space(*at)) at++;
    return at;
}

/* at points at '"'; returns just after the closing one, or NULL. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\')
            at++;
        else if (*at == '"')
            return at + 1;
    }
    return NULL;
}

/* Returns just after the value at `at`, or NULL if the text ends first. */
static const char *skip_value(const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        char c = *at;
        if (c == '"') {
            at = skip_string(at, end);
            if (!at) return NULL;
            if (depth == 0) return at;
            continue;
        }
        if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return at;
            if (--depth == 0) return at + 1;
        } else if (depth == 0 && (c == ',' || is_json_space(c))) {
            return at;
        }
        at++;
    }
    return NULL;
}

struct member {
    const char *key; /* without quotes, escapes as written */
    size_t key_length;
    const char *value;
    const char *value_end;
};

/* Steps to the next member of an object whose '{' or last member ended just before *at; 0 at the end of it.
 */
static int next_member(const char **at, const char *end, struct member *member)
{
    const char *p = skip_space(*at, end);
    if (p < end && *p == ',') p = skip_space(p + 1, end);
    if (p >= end || *p != '"') return 0;
    member->key = p + 1;
    p = skip_string(p, end);
    if (!p) return 0;
    member->key_length = (size_t)(p - 1 - member->key);
    p = skip_space(p, end);
    if (p >= end || *p != ':') return 0;
    member->value = skip_space(p + 1, end);
    member->value_end = skip_value(member->value, end);
    if (!member->value_end || member->value_end == member->value) return 0;
    *at = member->value_end;
    return 1;
}

static bool key_is(const struct member *member, const char *key)
{
    return member->key_length == strlen(key) && memcmp(member->key, key, member->key_length) == 0;
}

int tok_json_cut(const char *text, size_t length, struct tok_buffer *rest, struct tok_slice *vocab,
                 struct tok_slice *merges, struct helm_err *err)
{
    const char *end = text + length, *copied = text;
    const char *at = skip_space(text, end);
    struct member outer, inner;
    *vocab = (struct tok_slice){0};
    *merges = (struct tok_slice){0};
    if (at < end && *at == '{') at++;
    while (next_member(&at, end, &outer)) {
        if (!key_is(&outer, "model") || *outer.value != '{') continue;
        const char *in = outer.value + 1;
        while (next_member(&in, outer.value_end, &inner)) {
            bool is_vocab = key_is(&inner, "vocab") && *inner.value == '{';
            bool is_merges = key_is(&inner, "merges") && *inner.value == '[';
            if (!is_vocab && !is_merges) continue;
            struct tok_slice *found = is_vocab ? vocab : merges;
            /* A second one stays in the rest, where the parser reports the duplicate key. */
            if (found->text) continue;
            *found = (struct tok_slice){inner.value, (size_t)(inner.value_end - inner.value)};
            tok_buffer_append(rest, copied, (size_t)(inner.value - copied));
            tok_buffer_append(rest, is_vocab ? "{}" : "[]", 2);
            copied = inner.value_end;
        }
    }
    tok_buffer_append(rest, copied, (size_t)(end - copied));
    return tok_buffer_check(rest, err);
}

int tok_scan_fail(const struct tok_scan *scan, const char *expected, struct helm_err *err)
{
    return helm_fail(err, HELM_E_FORMAT, "%s: %s expected at byte %zu of it", scan->what, expected,
                     (size_t)(scan->at - scan->start));
}

bool tok_scan_take(struct tok_scan *scan, char wanted)
{
    scan->at = skip_space(scan->at, scan->end);
    if (scan->at >= scan->end || *scan->at != wanted) return false;
    scan->at++;
    return true;
}

static bool scan_hex4(struct tok_scan *scan, uint32_t *value)
{
    *value = 0;
    if (scan->end - scan->at < 4) return false;
    for (int i = 0; i < 4; i++) {
        int digit = units_hex_digit(scan->at[i]);
        if (digit < 0) return false;
        *value = *value << 4 | (uint32_t)digit;
    }
    scan->at += 4;
    return true;
}

/* Just after a backslash. */
static int scan_escape(struct tok_scan *scan, uint32_t *codepoint, struct helm_err *err)
{
    static const char plain[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (scan->at >= scan->end) return tok_scan_fail(scan, "an escape", err);
    char c = *scan->at++;
    const char *found = c ? strchr(plain, c) : NULL;
    if (found) {
        *codepoint = (uint8_t)meant[found - plain];
        return 0;
    }
    if (c != 'u' || !scan_hex4(scan, codepoint)) return tok_scan_fail(scan, "a valid escape", err);
    if (*codepoint >= 0xD800 && *codepoint <= 0xDBFF) {
        uint32_t low = 0;
        if (scan->end - scan->at < 6 || scan->at[0] != '\\' || scan->at[1] != 'u')
            return tok_scan_fail(scan, "the second half of a surrogate pair", err);
        scan->at += 2;
        if (!scan_hex4(scan, &low) || low < 0xDC00 || low > 0xDFFF)
            return tok_scan_fail(scan, "the second half of a surrogate pair", err);
        *codepoint = 0x10000 + ((*codepoint - 0xD800) << 10) + (low - 0xDC00);
    } else if (*codepoint >= 0xDC00 && *codepoint <= 0xDFFF) {
        return tok_scan_fail(scan, "the first half of a surrogate pair", err);
    }
    return 0;
}

int tok_scan_string(struct tok_scan *scan, struct tok_buffer *out, struct helm_err *err)
{
    if (!tok_scan_take(scan, '"')) return tok_scan_fail(scan, "a string", err);
    const char *run = scan->at;
    while (scan->at < scan->end) {
        uint8_t c = (uint8_t)*scan->at;
        if (c == '"' || c == '\\') {
            tok_buffer_append(out, run, (size_t)(scan->at - run));
            scan->at++;
            if (c == '"') return 0;
            uint32_t codepoint = 0;
            int rc = scan_escape(scan, &codepoint, err);
            if (rc) return rc;
            tok_buffer_append_char(out, codepoint);
            run = scan->at;
        } else if (c < 0x20) {
            return tok_scan_fail(scan, "no bare control character", err);
        } else if (c < 0x80) {
            scan->at++;
        } else {
            enum utf8_state state;
            size_t step = utf8_step(scan->at, (size_t)(scan->end - scan->at), &state);
            if (state != UTF8_VALID) return tok_scan_fail(scan, "valid UTF-8", err);
            scan->at += step;
        }
    }
    return tok_scan_fail(scan, "the end of a string", err);
}

int tok_scan_id(struct tok_scan *scan, uint32_t *id, struct helm_err *err)
{
    scan->at = skip_space(scan->at, scan->end);
    const char *start = scan->at;
    uint64_t value = 0;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9') {
        value = value * 10 + (uint64_t)(*scan->at++ - '0');
        if (value >= HELM_TOKENIZER_ID_LIMIT)
            return helm_fail(err, HELM_E_LIMIT, "%s: the id at byte %zu of it is not below %u", scan->what,
                             (size_t)(start - scan->start), HELM_TOKENIZER_ID_LIMIT);
    }
    if (scan->at == start || (scan->at - start > 1 && *start == '0'))
        return tok_scan_fail(scan, "an id", err);
    *id = (uint32_t)value;
    return 0;
}
