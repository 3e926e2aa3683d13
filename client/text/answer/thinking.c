/* The thinking part of an answer, between tags. See parts.h.
 *
 * An answer thinks if it begins with the tag, or if its prompt ended with that; white space around the part
 * belongs to neither. */
#include <string.h>

#include "client/text/answer/parts.h"

static void give(struct answer *a, enum answer_event event, size_t count)
{
    if (event == ANSWER_TEXT)
        answer_calls(a, a->held.data, count);
    else
        answer_tell(a, event, a->held.data, count);
    answer_drop(&a->held, count);
}

/* false: more has to come. */
static bool begin(struct answer *a)
{
    const char *tag = a->wish.tags->open;
    const size_t from = answer_blanks(&a->held, 0), there = a->held.length - from, bytes = strlen(tag);
    if (there >= bytes && memcmp(a->held.data + from, tag, bytes) == 0) {
        answer_drop(&a->held, from + bytes);
        a->thinking = THINKING_INSIDE;
        a->thought = false;
        return true;
    }
    if (!a->ending && there < bytes && (!there || memcmp(a->held.data + from, tag, there) == 0)) return false;
    a->thinking = THINKING_OVER;
    return true;
}

static bool inside(struct answer *a)
{
    const char *tag = a->wish.tags->close;
    if (!a->thought) answer_drop(&a->held, answer_blanks(&a->held, 0));
    const char *end = a->held.length ? memmem(a->held.data, a->held.length, tag, strlen(tag)) : NULL;
    size_t safe = end ? (size_t)(end - a->held.data) : a->held.length;
    const size_t all = end ? safe + strlen(tag) : 0;
    if (!end && !a->ending) safe -= answer_partial(&a->held, tag);
    while (safe && answer_is_blank(a->held.data[safe - 1])) safe--;
    a->thought |= safe > 0;
    if (end) {
        answer_tell(a, ANSWER_THOUGHT, a->held.data, safe);
        answer_drop(&a->held, all);
        a->thinking = THINKING_AFTER;
        return true;
    }
    give(a, ANSWER_THOUGHT, safe);
    if (a->ending) a->held.length = 0; /* white space at the end */
    return false;
}

static bool after(struct answer *a)
{
    answer_drop(&a->held, answer_blanks(&a->held, 0));
    if (a->held.length == 0) return false;
    a->thinking = THINKING_BEGIN; /* it may go on thinking */
    if (!a->wish.tags->anywhere) a->thinking = THINKING_OVER;
    return true;
}

/* Text; a tag that is a special token may come again. */
static bool over(struct answer *a)
{
    if (!a->wish.tags || !a->wish.tags->anywhere) {
        give(a, ANSWER_TEXT, a->held.length);
        return false;
    }
    const char *tag = a->wish.tags->open;
    const char *at = a->held.length ? memmem(a->held.data, a->held.length, tag, strlen(tag)) : NULL;
    size_t safe = at ? (size_t)(at - a->held.data) : a->held.length;
    if (!at && !a->ending) safe -= answer_partial(&a->held, tag);
    give(a, ANSWER_TEXT, safe);
    if (at && answer_is_calling(a)) /* inside a call it is one of its arguments' texts */
        give(a, ANSWER_TEXT, strlen(tag));
    else if (at)
        a->thinking = THINKING_BEGIN;
    return at != NULL;
}

void answer_think(struct answer *a, const char *data, size_t length)
{
    bool on = true;
    cli_text_add(&a->held, data, length); /* also of nothing: it ends with NUL then */
    while (on && !a->held.failed)
        on = a->thinking == THINKING_BEGIN    ? begin(a)
             : a->thinking == THINKING_INSIDE ? inside(a)
             : a->thinking == THINKING_AFTER  ? after(a)
                                              : over(a);
    if (!a->ending) return;
    a->last = true;
    answer_calls(a, "", 0);
}
