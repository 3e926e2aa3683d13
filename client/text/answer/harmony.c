/* Channels of harmony, as gpt-oss writes them. See parts.h.
 *
 * An answer is messages: a header with channel and recipient, <|message|>, a body, a token that ends it.
 * `analysis` is thinking, a recipient functions.NAME is a call, all else is said. */
#include <string.h>

#include "client/text/answer/parts.h"

static const char message[] = HARMONY_MESSAGE, start[] = HARMONY_START, channel[] = HARMONY_CHANNEL;

/* The first of the tokens that end a body; *which: NULL if none came. `held`: bytes that may begin one. */
static size_t find_end(const struct answer *a, const char **which, size_t *held)
{
    static const char *const ends[] = {HARMONY_END, "<|return|>", "<|call|>", HARMONY_START, HARMONY_CHANNEL};
    size_t first = a->rest.length;
    *which = NULL;
    *held = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *at =
            a->rest.length ? memmem(a->rest.data, a->rest.length, ends[i], strlen(ends[i])) : NULL;
        if (at && (size_t)(at - a->rest.data) < first) {
            first = (size_t)(at - a->rest.data);
            *which = ends[i];
        }
        const size_t partial = answer_partial(&a->rest, ends[i]);
        if (partial > *held) *held = partial;
    }
    return first;
}

/* The word after `mark` in the header; false: there is none. */
static bool word_after(const struct answer *a, size_t length, const char *mark,
                       char word[ANSWER_NAME_MAX + 1])
{
    const char *at = memmem(a->rest.data, length, mark, strlen(mark));
    size_t n = 0;
    if (!at) return false;
    at += strlen(mark);
    while (at + n < a->rest.data + length && at[n] != '<' && !answer_is_blank(at[n])) n++;
    if (n == 0 || n > ANSWER_NAME_MAX) return false;
    memcpy(word, at, n);
    word[n] = 0;
    return true;
}

/* Reads a header: the kind of the body after it. */
static void read_header(struct answer *a, size_t length)
{
    static const char functions[] = "functions.";
    char to[ANSWER_NAME_MAX + 1], where[ANSWER_NAME_MAX + 1] = "";
    const bool sent = word_after(a, length, "to=", to);
    const char *name = to;
    word_after(a, length, channel, where);
    a->begun = false;
    a->target = strcmp(where, "analysis") == 0 ? ANSWER_THOUGHT : ANSWER_TEXT;
    if (!sent || !a->wish.calls || a->count == ANSWER_CALLS_MAX) return;
    const bool function = strncmp(to, functions, strlen(functions)) == 0 && to[strlen(functions)];
    if (function)
        name += strlen(functions);
    else if (!answer_has_tool(a->wish.tools, to))
        return;
    a->target = ANSWER_ARGUMENTS;
    a->copy = (struct json_copy){0};
    calls_begin(a, name);
}

/* Text that no header is around, which a model should not write. */
static bool is_plain(const struct answer *a)
{
    static const char *const begins[] = {HARMONY_CHANNEL, HARMONY_MESSAGE, HARMONY_START,
                                         "to=", "<|constrain|>"};
    const size_t from = answer_blanks(&a->rest, 0);
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (answer_literal(a, from, begins[i]) != CALL_NONE) return false;
    return from < a->rest.length;
}

static void give(struct answer *a, size_t count)
{
    if (a->target == ANSWER_ARGUMENTS) {
        json_copy_add(&a->copy, &a->piece, a->rest.data, count);
    } else {
        if (count && !a->begun && a->said[a->target]) answer_tell(a, a->target, "\n\n", 2);
        a->begun |= count > 0;
        answer_tell(a, a->target, a->rest.data, count);
    }
    answer_drop(&a->rest, count);
}

/* false: more has to come. */
static bool header(struct answer *a)
{
    const char *at = a->rest.length ? memmem(a->rest.data, a->rest.length, message, strlen(message)) : NULL;
    const bool too_long = !at && a->rest.length > ANSWER_HEADER_MAX;
    if (is_plain(a) || too_long) {
        a->harmony = HARMONY_BODY;
        a->target = ANSWER_TEXT;
        a->begun = false;
        if (too_long) give(a, a->rest.length); /* with the markers that it begins with */
        return true;
    }
    if (!at) {
        if (a->last) a->rest.length = 0; /* a header that was cut */
        return false;
    }
    const size_t length = (size_t)(at - a->rest.data);
    read_header(a, length);
    answer_drop(&a->rest, length + strlen(message));
    a->harmony = HARMONY_BODY;
    return true;
}

/* A call that the model ends is over, whatever its arguments are; one that is cut with the answer stays
 * open. */
static void end_body(struct answer *a, bool cut)
{
    if (a->target != ANSWER_ARGUMENTS) return;
    if (!a->copy.begun) cli_text_add(&a->piece, "{}", 2);
    if (!a->copy.begun || a->copy.done || !cut) calls_end(a);
    a->target = ANSWER_TEXT;
}

static bool body(struct answer *a)
{
    const char *which;
    size_t held;
    const size_t end = find_end(a, &which, &held);
    if (!which) {
        give(a, a->rest.length - (a->last ? 0 : held));
        if (a->last) end_body(a, true);
        return false;
    }
    give(a, end);
    end_body(a, false);
    a->harmony = HARMONY_HEADER;
    if (strcmp(which, channel) != 0 && strcmp(which, start) != 0) answer_drop(&a->rest, strlen(which));
    return true;
}

/* After <|start|> comes a role; both are no part of a header. false: there is none, or it has not come
 * whole. */
static bool skip_role(struct answer *a)
{
    const size_t bytes = strlen(start);
    if (a->rest.length < bytes || memcmp(a->rest.data, start, bytes) != 0) return false;
    size_t at = bytes;
    while (at < a->rest.length && a->rest.data[at] >= 'a' && a->rest.data[at] <= 'z') at++;
    if (at == a->rest.length) return false;
    answer_drop(&a->rest, at);
    return true;
}

void answer_harmony(struct answer *a, const char *data, size_t length)
{
    bool on = true;
    a->last = a->ending;
    cli_text_add(&a->rest, data, length);
    while (on && !a->rest.failed) {
        while (a->harmony == HARMONY_HEADER && skip_role(a)) continue;
        on = a->harmony == HARMONY_HEADER ? header(a) : body(a);
    }
}
