/* Characters inside a JSON string. See json_text.h. */
#include "client/text/grammar/json_text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    uint32_t c;
    char letter;
} escapes[] = {{'\b', 'b'}, {'\t', 't'}, {'\n', 'n'}, {'\f', 'f'}, {'\r', 'r'}, {'"', '"'}, {'\\', '\\'}};
#define ESCAPES (sizeof escapes / sizeof *escapes)

static bool holds(const struct expr_range *ranges, uint32_t count, uint32_t c)
{
    for (uint32_t i = 0; i < count; i++)
        if (c >= ranges[i].low && c <= ranges[i].high) return true;
    return false;
}

/* The parts of [low, high] that stand for themselves: no control characters, quotes and backslashes. */
static uint32_t add_plain(struct expr_range *out, uint32_t n, uint32_t low, uint32_t high)
{
    static const struct expr_range plain[] = {{0x20, '"' - 1},
                                              {'"' + 1, '\\' - 1},
                                              {'\\' + 1, EXPR_CHAR_MAX}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        const uint32_t from = low > plain[i].low ? low : plain[i].low,
                       to = high < plain[i].high ? high : plain[i].high;
        if (from <= to) out[n++] = (struct expr_range){from, to};
    }
    return n;
}

uint32_t json_text_set(struct exprs *x, const struct expr_range *ranges, uint32_t count)
{
    enum { ROOM = 64 };
    struct expr_range letters[ESCAPES], plain[3 * ROOM];
    uint32_t letter_count = 0;
    const uint32_t alt = expr_alt(x);
    for (uint32_t first = 0; first < count; first += ROOM) {
        uint32_t n = 0;
        for (uint32_t i = first; i < count && i < first + ROOM; i++)
            n = add_plain(plain, n, ranges[i].low, ranges[i].high);
        if (n) expr_add(x, alt, expr_set(x, plain, n));
    }
    for (size_t i = 0; i < ESCAPES; i++)
        if (holds(ranges, count, escapes[i].c)) {
            const uint32_t letter = (unsigned char)escapes[i].letter;
            letters[letter_count++] = (struct expr_range){letter, letter};
        }
    if (letter_count) expr_add(x, alt, EXPR_SEQ(x, expr_char(x, '\\'), expr_set(x, letters, letter_count)));
    bool all = true; /* control characters: `all but a few others` does not mean them */
    for (uint32_t c = 0; c < 0x20; c++) all = all && holds(ranges, count, c);
    for (uint32_t c = 0; c < 0x20 && !all; c++) {
        char spelling[8];
        if (memchr("\b\t\n\f\r", (int)c, 5) || !holds(ranges, count, c)) continue;
        snprintf(spelling, sizeof spelling, "\\u%04x", c);
        expr_add(x, alt, expr_string(x, spelling));
    }
    return alt;
}

uint32_t json_text_any(struct exprs *x)
{
    return json_text_set(x, &(struct expr_range){0, EXPR_CHAR_MAX}, 1);
}

uint32_t json_text_of(struct exprs *x, const char *text, size_t length)
{
    const uint32_t seq = expr_seq(x);
    for (size_t at = 0; at < length && !x->failed;) {
        uint32_t c;
        if (!expr_next_char(text, length, &at, &c))
            exprs_fail(x, HELM_E_FORMAT, "a text of the schema is not UTF-8");
        else
            expr_add(x, seq, json_text_set(x, &(struct expr_range){c, c}, 1));
    }
    return seq;
}
