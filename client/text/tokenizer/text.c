/* UTF-8, the character classes that pre-tokenizers name, the byte-level alphabet, and growing buffers.
 *
 * Called by all of the tokenizer's files. Buffers belong to the caller that declared them. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void tok_buffer_free(struct tok_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct tok_buffer){.limit = buffer->limit};
}

/* Keeps one byte beyond the capacity asked for, so that callers may always write a NUL. */
int tok_buffer_reserve(struct tok_buffer *buffer, size_t more, struct helm_err *err)
{
    if (buffer->data && more <= buffer->capacity - buffer->length) return 0;
    size_t limit = buffer->limit ? buffer->limit : TOK_BUFFER_LIMIT;
    if (more > limit || buffer->length > limit - more)
        return helm_fail(err, HELM_E_LIMIT, "text grows beyond the limit of %zu bytes", limit);
    size_t wanted = buffer->length + more;
    size_t capacity = buffer->capacity < 64 ? 64 : buffer->capacity;
    while (capacity < wanted) capacity *= 2;
    char *data = realloc(buffer->data, capacity + 1);
    if (!data) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu bytes of text", capacity);
    buffer->data = data;
    buffer->capacity = capacity;
    return 0;
}

int tok_buffer_append(struct tok_buffer *buffer, const char *bytes, size_t length, struct helm_err *err)
{
    int rc = tok_buffer_reserve(buffer, length, err);
    if (rc) return rc;
    if (length) memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
    return 0;
}

int tok_buffer_append_char(struct tok_buffer *buffer, uint32_t codepoint, struct helm_err *err)
{
    int rc = tok_buffer_reserve(buffer, 4, err);
    if (rc) return rc;
    buffer->length += tok_utf8_put(codepoint, buffer->data + buffer->length);
    return 0;
}

int tok_ids_reserve(struct tok_ids *ids, size_t more, struct helm_err *err)
{
    if (ids->data && more <= ids->capacity - ids->count) return 0;
    size_t capacity = ids->capacity < 32 ? 32 : ids->capacity;
    while (capacity < ids->count + more) capacity *= 2;
    uint32_t *data = realloc(ids->data, capacity * sizeof *data);
    if (!data) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu token ids", capacity);
    ids->data = data;
    ids->capacity = capacity;
    return 0;
}

int tok_ids_push(struct tok_ids *ids, uint32_t id, struct helm_err *err)
{
    if (ids->count == ids->capacity) {
        int rc = tok_ids_reserve(ids, 1, err);
        if (rc) return rc;
    }
    ids->data[ids->count++] = id;
    return 0;
}

int tok_pieces_push(struct tok_pieces *pieces, size_t start, size_t end, uint32_t id, bool first,
                    struct helm_err *err)
{
    if (pieces->count == pieces->capacity) {
        size_t capacity = pieces->capacity ? pieces->capacity * 2 : 32;
        struct tok_piece *data = realloc(pieces->data, capacity * sizeof *data);
        if (!data) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu pieces of text", capacity);
        pieces->data = data;
        pieces->capacity = capacity;
    }
    pieces->data[pieces->count++] = (struct tok_piece){(uint32_t)start, (uint32_t)(end - start), id, first};
    return 0;
}

size_t tok_utf8_step(const char *bytes, size_t length, enum tok_utf8_state *state)
{
    const uint8_t *p = (const uint8_t *)bytes;
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    size_t wanted;
    *state = TOK_UTF8_VALID;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) {
        wanted = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        wanted = 3;
        if (lead == 0xE0) low = 0xA0;  /* shorter forms exist */
        if (lead == 0xED) high = 0x9F; /* surrogates */
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        wanted = 4;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F; /* beyond U+10FFFF */
    } else {
        *state = TOK_UTF8_INVALID;
        return 1;
    }
    for (size_t i = 1; i < wanted; i++) {
        if (i >= length) {
            *state = TOK_UTF8_INCOMPLETE;
            return i;
        }
        if (p[i] < low || p[i] > high) {
            *state = TOK_UTF8_INVALID;
            return i;
        }
        low = 0x80;
        high = 0xBF;
    }
    return wanted;
}

size_t tok_utf8_get(const char *bytes, uint32_t *codepoint)
{
    const uint8_t *p = (const uint8_t *)bytes;
    if (p[0] < 0x80) {
        *codepoint = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *codepoint = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *codepoint = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *codepoint = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

size_t tok_utf8_get_before(const char *bytes, size_t end, uint32_t *codepoint)
{
    size_t at = end - 1;
    while (at > 0 && ((uint8_t)bytes[at] & 0xC0) == 0x80) at--;
    return tok_utf8_get(bytes + at, codepoint);
}

size_t tok_utf8_put(uint32_t codepoint, char *out)
{
    if (codepoint < 0x80) {
        out[0] = (char)codepoint;
        return 1;
    }
    if (codepoint < 0x800) {
        out[0] = (char)(0xC0 | codepoint >> 6);
        out[1] = (char)(0x80 | (codepoint & 0x3F));
        return 2;
    }
    if (codepoint < 0x10000) {
        out[0] = (char)(0xE0 | codepoint >> 12);
        out[1] = (char)(0x80 | (codepoint >> 6 & 0x3F));
        out[2] = (char)(0x80 | (codepoint & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | codepoint >> 18);
    out[1] = (char)(0x80 | (codepoint >> 12 & 0x3F));
    out[2] = (char)(0x80 | (codepoint >> 6 & 0x3F));
    out[3] = (char)(0x80 | (codepoint & 0x3F));
    return 4;
}

static size_t skip_ascii(const char *bytes, size_t length)
{
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (i < length && (uint8_t)bytes[i] < 0x80) i++;
    return i;
}

bool tok_utf8_is_valid(const char *bytes, size_t length)
{
    enum tok_utf8_state state;
    for (size_t i = 0; i < length;) {
        i += skip_ascii(bytes + i, length - i);
        if (i == length) break;
        i += tok_utf8_step(bytes + i, length - i, &state);
        if (state != TOK_UTF8_VALID) return false;
    }
    return true;
}

int tok_utf8_append_lossy(struct tok_buffer *out, const char *bytes, size_t length, bool final, size_t *taken,
                          struct helm_err *err)
{
    size_t good = 0, at = 0; /* bytes[good..at) is valid and not yet copied */
    *taken = 0;
    if (length == 0) return 0; /* bytes may be NULL */
    while (at < length) {
        enum tok_utf8_state state;
        size_t step = tok_utf8_step(bytes + at, length - at, &state);
        if (state == TOK_UTF8_VALID) {
            at += step;
            continue;
        }
        int rc = tok_buffer_append(out, bytes + good, at - good, err);
        if (rc) return rc;
        good = at;
        if (state == TOK_UTF8_INCOMPLETE && !final) break;
        rc = tok_buffer_append(out, "\xEF\xBF\xBD", 3, err);
        if (rc) return rc;
        at += step;
        good = at;
    }
    *taken = at;
    return tok_buffer_append(out, bytes + good, at - good, err);
}

bool tok_char_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool tok_char_is_numeric(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
}

bool tok_char_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
               (c >= '{' && c <= '~');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool tok_char_is_mark(uint32_t c)
{
    if (c < 0x300) return false;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool tok_char_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    static const uint32_t words =
        1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT |
        1u << UTF8PROC_CATEGORY_LM | 1u << UTF8PROC_CATEGORY_LO | 1u << UTF8PROC_CATEGORY_MN |
        1u << UTF8PROC_CATEGORY_MC | 1u << UTF8PROC_CATEGORY_ME | 1u << UTF8PROC_CATEGORY_ND |
        1u << UTF8PROC_CATEGORY_NL | 1u << UTF8PROC_CATEGORY_PC;
    if (words >> utf8proc_category((utf8proc_int32_t)c) & 1) return true;
    /* Other_Alphabetic symbols (circled and squared letters) and the two join controls. */
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

/* Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 in order. */
static bool stands_for_itself(uint32_t c)
{
    return (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

uint32_t tok_bytelevel_char(uint8_t byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xA0) return 0x121u + (byte - 0x7Fu);
    return 0x143; /* 0xAD */
}

int tok_bytelevel_byte(uint32_t c)
{
    if (c < 0x100) return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);
    if (c <= 0x142) return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}
