/* UTF-8, the character classes that pre-tokenizers name, the byte-level alphabet, and growing buffers.
 *
 * Called by all of the tokenizer's files. Buffers belong to the caller that declared them. */
#include "client/text/tokenizer/internal.h"
#include "common/base/grow.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void tok_buffer_free(struct tok_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct tok_buffer){.limit = buffer->limit};
}

/* Keeps one byte beyond the capacity asked for, so that callers may always write a NUL. */
bool tok_buffer_reserve(struct tok_buffer *buffer, size_t more)
{
    if (buffer->failed || (buffer->data && more <= buffer->capacity - buffer->length)) return !buffer->failed;
    size_t limit = buffer->limit ? buffer->limit : TOK_BUFFER_LIMIT;
    if (more > limit || buffer->length > limit - more) {
        buffer->failed = HELM_E_LIMIT;
        return false;
    }
    size_t capacity = buffer->capacity < 64 ? 64 : buffer->capacity;
    while (capacity < buffer->length + more) capacity *= 2;
    char *data = realloc(buffer->data, capacity + 1);
    if (!data) {
        buffer->failed = HELM_E_NOMEM;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void tok_buffer_append(struct tok_buffer *buffer, const char *bytes, size_t length)
{
    if (!tok_buffer_reserve(buffer, length) || !length) return;
    memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
}

void tok_buffer_append_char(struct tok_buffer *buffer, uint32_t codepoint)
{
    if (tok_buffer_reserve(buffer, 4)) buffer->length += utf8_put(codepoint, buffer->data + buffer->length);
}

int tok_buffer_check(const struct tok_buffer *buffer, struct helm_err *err)
{
    if (buffer->failed == HELM_E_LIMIT)
        return helm_fail(err, HELM_E_LIMIT, "text grows beyond the limit of %zu bytes",
                         buffer->limit ? buffer->limit : TOK_BUFFER_LIMIT);
    return buffer->failed
               ? helm_fail(err, HELM_E_NOMEM, "no memory for more than %zu bytes of text", buffer->capacity)
               : 0;
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
    if (!GROW(ids->data, ids->count, ids->capacity))
        return helm_fail(err, HELM_E_NOMEM, "no memory for %zu token ids", ids->count + 1);
    ids->data[ids->count++] = id;
    return 0;
}

int tok_pieces_push(struct tok_pieces *pieces, size_t start, size_t end, uint32_t id, bool first,
                    struct helm_err *err)
{
    if (!GROW(pieces->data, pieces->count, pieces->capacity))
        return helm_fail(err, HELM_E_NOMEM, "no memory for %zu pieces of text", pieces->count + 1);
    pieces->data[pieces->count++] = (struct tok_piece){(uint32_t)start, (uint32_t)(end - start), id, first};
    return 0;
}

size_t tok_utf8_append_lossy(struct tok_buffer *out, const char *bytes, size_t length, bool final)
{
    size_t good = 0, at = 0; /* bytes[good..at) is valid and not yet copied */
    while (at < length) {
        enum utf8_state state;
        size_t step = utf8_step(bytes + at, length - at, &state);
        if (state == UTF8_VALID) {
            at += step;
            continue;
        }
        tok_buffer_append(out, bytes + good, at - good);
        good = at;
        if (state == UTF8_INCOMPLETE && !final) break;
        tok_buffer_append(out, "\xEF\xBF\xBD", 3);
        good = at += step;
    }
    tok_buffer_append(out, bytes + good, at - good);
    return at;
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
