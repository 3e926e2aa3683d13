/* An answer's parts in order: thinking or channels, then text and calls. See answer.h and parts.h. */
#include <stdlib.h>
#include <string.h>

#include "client/text/answer/parts.h"

/* ---- for all ---- */

void answer_tell(struct answer *a, enum answer_event event, const char *data, size_t length)
{
    const bool text = event == ANSWER_THOUGHT || event == ANSWER_TEXT;
    if (text && !length) return;
    if (a->piece.length && event != ANSWER_ARGUMENTS) { /* arguments that came before it */
        a->take(a->user, ANSWER_ARGUMENTS, a->piece.data, a->piece.length);
        a->piece.length = 0;
    }
    if (text) a->said[event] = true;
    a->take(a->user, event, data, length);
}

void answer_drop(struct cli_text *text, size_t count)
{
    if (!count) return;
    text->length -= count;
    memmove(text->data, text->data + count, text->length + 1);
}

bool answer_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

size_t answer_blanks(const struct cli_text *text, size_t at)
{
    while (at < text->length && answer_is_blank(text->data[at])) at++;
    return at;
}

size_t answer_partial(const struct cli_text *text, const char *marker)
{
    size_t longest = strlen(marker) - 1;
    if (longest > text->length) longest = text->length;
    for (size_t n = longest; n > 0; n--)
        if (memcmp(text->data + text->length - n, marker, n) == 0) return n;
    return 0;
}

enum call_found answer_literal(const struct answer *a, size_t at, const char *literal)
{
    const size_t there = a->rest.length - at, bytes = strlen(literal);
    if (there && memcmp(a->rest.data + at, literal, there < bytes ? there : bytes) != 0) return CALL_NONE;
    if (there >= bytes) return CALL_FOUND;
    return a->last ? CALL_NONE : CALL_MORE;
}

const char *answer_tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

bool answer_has_tool(const json_t *tools, const char *name)
{
    size_t index;
    const json_t *tool;
    json_array_foreach(tools, index, tool)
    {
        const char *listed = answer_tool_name(tool);
        if (listed && strcmp(listed, name) == 0) return true;
    }
    return false;
}

bool answer_any_strict(const json_t *tools)
{
    size_t index;
    const json_t *tool;
    json_array_foreach(tools, index, tool)
    {
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict"))) return true;
    }
    return false;
}

/* ---- the whole ---- */

static void take(struct answer *a, const char *data, size_t length)
{
    const bool channels = a->wish.tags && !a->wish.tags->open;
    if (channels)
        answer_harmony(a, data, length);
    else
        answer_think(a, data, length);
    if (a->piece.length) {
        a->take(a->user, ANSWER_ARGUMENTS, a->piece.data, a->piece.length);
        a->piece.length = 0;
    }
    a->failed |= a->held.failed || a->rest.failed || a->piece.failed;
}

struct answer *answer_open(const struct answer_wish *wish, answer_take *take_event, void *user)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->wish = *wish;
    a->calls = wish->calls;
    a->take = take_event;
    a->user = user;
    a->thinking = !wish->tags                    ? THINKING_OVER
                  : wish->at == REASONING_INSIDE ? THINKING_INSIDE
                                                 : THINKING_BEGIN;
    a->harmony = wish->at == REASONING_FREE ? HARMONY_HEADER : HARMONY_BODY;
    a->target = wish->at == REASONING_INSIDE ? ANSWER_THOUGHT : ANSWER_TEXT;
    return a;
}

void answer_push(struct answer *a, const char *data, size_t length)
{
    take(a, data, length);
}

void answer_finish(struct answer *a)
{
    a->ending = true;
    take(a, "", 0);
}

bool answer_failed(const struct answer *a)
{
    return a->failed;
}

bool answer_is_thinking(const struct answer *a)
{
    if (a->wish.tags && !a->wish.tags->open) return a->harmony == HARMONY_BODY && a->target == ANSWER_THOUGHT;
    return a->thinking == THINKING_INSIDE;
}

bool answer_is_calling(const struct answer *a)
{
    return a->state != CALL_TEXT && a->state != CALL_PLAIN;
}

void answer_close(struct answer *a)
{
    if (!a) return;
    cli_text_free(&a->held);
    cli_text_free(&a->rest);
    cli_text_free(&a->piece);
    free(a);
}
