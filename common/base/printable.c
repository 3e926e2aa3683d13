/* Text made safe to show. See printable.h. Owns nothing but the state of the streams it opens. */
#include "common/base/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "common/base/utf8.h"

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
