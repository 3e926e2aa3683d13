/* Breaking lines and dimming. See present.h. A word is held until it ends, since only then its line is
 * known. */
#include "client/cli/present.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include "client/shared/cli.h"

#define THINK_BEGIN "<think>"
#define THINK_END   "</think>"
#define FENCE       "```"
#define DIM         "\033[2m"
#define UNDIMMED    "\033[0m"

void present_begin(struct present *p, bool thinking)
{
    struct winsize size;
    const bool terminal = isatty(STDOUT_FILENO);
    *p = (struct present){.write = cli_write, .dims = terminal && !getenv("NO_COLOR"), .thinking = thinking};
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) p->width = size.ws_col;
}

static int show(struct present *p, const char *text, size_t length, struct helm_err *err)
{
    return length ? p->write(text, length, err) : 0;
}

static int show_text(struct present *p, const char *text, struct helm_err *err)
{
    return show(p, text, strlen(text), err);
}

static int dim(struct present *p, bool on, struct helm_err *err)
{
    if (!p->dims || p->dimmed == on) return 0;
    p->dimmed = on;
    return show_text(p, on ? DIM : UNDIMMED, err);
}

/* The word in hand, on this line or the next. */
static int end_word(struct present *p, struct helm_err *err)
{
    static const char blanks[] = "                ";
    int rc = 0;
    if (!p->length) return 0;
    if (!p->line_began && p->length >= strlen(FENCE) && memcmp(p->word, FENCE, strlen(FENCE)) == 0)
        p->code = !p->code;
    const bool full =
        p->width && !p->code && p->line_began && p->column + p->spaces + p->word_width > p->width;
    if (full) {
        rc = show_text(p, "\n", err);
        p->column = p->spaces = 0;
    }
    p->column += p->spaces + p->word_width;
    for (; p->spaces > 0 && !rc; p->spaces -= (int)sizeof blanks - 1)
        rc = show(p, blanks, p->spaces < (int)sizeof blanks ? (size_t)p->spaces : sizeof blanks - 1, err);
    if (!rc) rc = show(p, p->word, p->length, err);
    p->line_began = true;
    p->length = 0;
    p->spaces = p->word_width = 0;
    return rc;
}

static bool word_ends_with(const struct present *p, const char *end)
{
    const size_t n = strlen(end);
    return p->length >= n && memcmp(p->word + p->length - n, end, n) == 0;
}

/* A tag is of its part: dimming begins before and ends after it. */
static int take_tag(struct present *p, struct helm_err *err)
{
    const bool begin = word_ends_with(p, THINK_BEGIN), end = word_ends_with(p, THINK_END);
    int rc = 0;
    if (begin && !p->thinking) {
        p->length -= strlen(THINK_BEGIN);
        p->word_width -= (int)strlen(THINK_BEGIN);
        rc = end_word(p, err);
        if (!rc) rc = dim(p, true, err);
        memcpy(p->word, THINK_BEGIN, strlen(THINK_BEGIN));
        p->length = strlen(THINK_BEGIN);
        p->word_width = (int)p->length;
        p->thinking = true;
    } else if (end && p->thinking) {
        rc = end_word(p, err);
        if (!rc) rc = dim(p, false, err);
        p->thinking = false;
    }
    return rc;
}

static int end_line(struct present *p, struct helm_err *err)
{
    int rc = end_word(p, err);
    p->column = p->spaces = 0;
    p->line_began = false;
    return rc ? rc : show_text(p, "\n", err);
}

static int add_character(struct present *p, const char *text, size_t bytes, int width, struct helm_err *err)
{
    int rc = 0;
    const bool wide = width > 1 && p->width; /* a script that is broken anywhere */
    if (p->length + bytes > sizeof p->word || wide) rc = end_word(p, err);
    memcpy(p->word + p->length, text, bytes);
    p->length += bytes;
    p->word_width += width;
    if (!rc && wide) rc = end_word(p, err);
    if (!rc && *text == '>') rc = take_tag(p, err);
    return rc;
}

int present_add(struct present *p, const char *text, size_t length, struct helm_err *err)
{
    int rc = 0;
    if (p->thinking) rc = dim(p, true, err);
    for (size_t at = 0; at < length && !rc;) {
        utf8proc_int32_t c = 0;
        utf8proc_ssize_t bytes =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(length - at), &c);
        if (bytes < 1) { /* not UTF-8: passed on as it is */
            bytes = 1;
            c = '?';
        }
        if (c == '\n') {
            rc = end_line(p, err);
        } else if (c == ' ') {
            rc = end_word(p, err);
            p->spaces++;
        } else {
            rc = add_character(p, text + at, (size_t)bytes, utf8proc_charwidth(c), err);
        }
        at += (size_t)bytes;
    }
    return rc;
}

int present_end(struct present *p, struct helm_err *err)
{
    int rc = end_word(p, err);
    return rc ? rc : dim(p, false, err);
}
