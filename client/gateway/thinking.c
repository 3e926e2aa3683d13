/* Dividing an answer's thinking from what it says. See thinking.h. */
#include "client/gateway/thinking.h"

#include <string.h>

static const char tag_open[] = "<think>", tag_close[] = "</think>";

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t leading_blanks(const struct cli_text *text)
{
    size_t n = 0;
    while (n < text->length && is_blank(text->data[n])) n++;
    return n;
}

static void drop(struct cli_text *text, size_t count)
{
    if (!count) return;
    text->length -= count;
    memmove(text->data, text->data + count, text->length + 1);
}

static void give(struct thinking *t, struct cli_text *to, size_t count)
{
    cli_text_add(to, t->held.data, count);
    drop(&t->held, count);
}

/* false: more has to come. */
static bool begin(struct thinking *t, bool last)
{
    const size_t from = leading_blanks(&t->held), there = t->held.length - from, tag = strlen(tag_open);
    if (there >= tag && memcmp(t->held.data + from, tag_open, tag) == 0) {
        drop(&t->held, from + tag);
        t->state = THINKING_INSIDE;
        return true;
    }
    if (!last && there < tag && (!there || memcmp(t->held.data + from, tag_open, there) == 0)) return false;
    t->state = THINKING_OVER;
    return true;
}

static bool inside(struct thinking *t, bool last)
{
    if (t->thought->length == 0) drop(&t->held, leading_blanks(&t->held));
    const char *end =
        t->held.length ? memmem(t->held.data, t->held.length, tag_close, strlen(tag_close)) : NULL;
    size_t safe = end ? (size_t)(end - t->held.data) : t->held.length;
    const size_t all = end ? safe + strlen(tag_close) : 0;
    for (size_t n = strlen(tag_close) - 1; !end && !last && n > 0; n--)
        if (n <= safe && memcmp(t->held.data + safe - n, tag_close, n) == 0) {
            safe -= n;
            break;
        }
    while (safe && is_blank(t->held.data[safe - 1])) safe--;
    if (end) {
        cli_text_add(t->thought, t->held.data, safe);
        drop(&t->held, all);
        t->state = THINKING_BEHIND;
        return true;
    }
    if (safe) give(t, t->thought, safe);
    if (last) t->held.length = 0; /* white space at the end */
    return false;
}

static bool behind(struct thinking *t)
{
    drop(&t->held, leading_blanks(&t->held));
    if (t->held.length == 0) return false;
    t->state = THINKING_OVER;
    return true;
}

static void take(struct thinking *t, struct cli_text *said, bool last)
{
    bool on = !t->held.failed;
    while (on && t->state != THINKING_OVER)
        on = t->state == THINKING_BEGIN    ? begin(t, last)
             : t->state == THINKING_INSIDE ? inside(t, last)
                                           : behind(t);
    if (t->state == THINKING_OVER && t->held.length) give(t, said, t->held.length);
    if (t->held.failed) said->failed = true;
}

void thinking_push(struct thinking *t, const char *data, size_t length, struct cli_text *said)
{
    if (t->state == THINKING_OVER) {
        cli_text_add(said, data, length);
        return;
    }
    cli_text_add(&t->held, data, length);
    take(t, said, false);
}

void thinking_finish(struct thinking *t, struct cli_text *said)
{
    cli_text_add(&t->held, "", 0);
    take(t, said, true);
}
