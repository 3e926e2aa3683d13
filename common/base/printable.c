/* Text made safe to show. See printable.h. Owns nothing but the state of the streams it opens. */
#include "common/base/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

size_t printable_character(const char *text, size_t length)
{
    enum utf8_state state;
    const size_t bytes = utf8_step(text, length, &state);
    const unsigned char *from = (const unsigned char *)text;
    const bool control =
        from[0] < 0x20 || from[0] == 0x7f || (from[0] == 0xc2 && bytes == 2 && from[1] < 0xa0);
    return state == UTF8_VALID && !control ? bytes : 0;
}

size_t printable_show(char to[4], const char *from, size_t length, size_t *taken)
{
    static const char digit[] = "0123456789abcdef";
    const size_t bytes = printable_character(from, length);
    const unsigned char first = (unsigned char)*from;
    *taken = bytes ? bytes : 1;
    if (bytes) {
        memcpy(to, from, bytes);
        return bytes;
    }
    to[0] = '\\';
    to[1] = 'x';
    to[2] = digit[first >> 4];
    to[3] = digit[first & 15];
    return 4;
}

size_t printable(char *to, size_t size, const char *from)
{
    const size_t length = strlen(from);
    size_t used = 0, taken;
    for (size_t i = 0; i < length; i += taken) {
        char text[4];
        const size_t n = printable_show(text, from + i, length - i, &taken);
        if (used + n >= size) break;
        memcpy(to + used, text, n);
        used += n;
    }
    if (size) to[used] = '\0';
    return used;
}

/* ---- streams ------------------------------------------------------------------------------------------ */

struct stream {
    FILE *to;
    unsigned char held[4]; /* the beginning of a character whose end has not been written yet */
    size_t held_bytes;
};

/* Whether these few bytes may be the beginning of a character. */
static bool is_begun(const unsigned char *from, size_t length)
{
    const size_t bytes = from[0] >= 0xf0 ? 4 : from[0] >= 0xe0 ? 3 : from[0] >= 0xc2 ? 2 : 0;
    return length < bytes;
}

static bool put(struct stream *s, const unsigned char *from, size_t length, bool last)
{
    size_t taken;
    for (size_t i = 0; i < length; i += taken) {
        char text[4];
        taken = 1;
        if (from[i] == '\n' || from[i] == '\t') {
            if (putc(from[i], s->to) == EOF) return false;
            continue;
        }
        if (!last && is_begun(from + i, length - i)) {
            s->held_bytes = length - i;
            memcpy(s->held, from + i, s->held_bytes);
            return true;
        }
        const size_t n = printable_show(text, (const char *)from + i, length - i, &taken);
        if (fwrite(text, 1, n, s->to) != n) return false;
    }
    return true;
}

static ssize_t stream_write(void *cookie, const char *from, size_t length)
{
    struct stream *s = cookie;
    const unsigned char *at = (const unsigned char *)from, *const end = at + length;
    while (s->held_bytes && at < end) {
        unsigned char joined[4];
        const size_t held = s->held_bytes;
        memcpy(joined, s->held, held);
        joined[held] = *at++;
        s->held_bytes = 0;
        if (!put(s, joined, held + 1, false)) return 0;
    }
    return put(s, at, (size_t)(end - at), false) ? (ssize_t)length : 0;
}

static int stream_close(void *cookie)
{
    struct stream *s = cookie;
    const bool good = put(s, s->held, s->held_bytes, true);
    const int rc = fflush(s->to);
    free(s);
    return good ? rc : EOF;
}

FILE *printable_open(FILE *to)
{
    struct stream *s = malloc(sizeof *s);
    if (!s) return NULL;
    *s = (struct stream){.to = to};
    FILE *stream = fopencookie(s, "w", (cookie_io_functions_t){.write = stream_write, .close = stream_close});
    if (!stream) free(s);
    return stream;
}

/* ---- UTF-8 ---- */

size_t utf8_step(const char *bytes, size_t length, enum utf8_state *state)
{
    const uint8_t *p = (const uint8_t *)bytes;
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    size_t wanted;
    *state = UTF8_VALID;
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
        *state = UTF8_INVALID;
        return 1;
    }
    for (size_t i = 1; i < wanted; i++) {
        if (i >= length) {
            *state = UTF8_INCOMPLETE;
            return i;
        }
        if (p[i] < low || p[i] > high) {
            *state = UTF8_INVALID;
            return i;
        }
        low = 0x80;
        high = 0xBF;
    }
    return wanted;
}

size_t utf8_get(const char *bytes, uint32_t *codepoint)
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

size_t utf8_get_before(const char *bytes, size_t end, uint32_t *codepoint)
{
    size_t at = end - 1;
    while (at > 0 && ((uint8_t)bytes[at] & 0xC0) == 0x80) at--;
    return utf8_get(bytes + at, codepoint);
}

size_t utf8_put(uint32_t codepoint, char *out)
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

bool utf8_is_valid(const char *bytes, size_t length)
{
    enum utf8_state state;
    for (size_t i = 0; i < length;) {
        i += skip_ascii(bytes + i, length - i);
        if (i == length) break;
        i += utf8_step(bytes + i, length - i, &state);
        if (state != UTF8_VALID) return false;
    }
    return true;
}
