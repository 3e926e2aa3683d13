/* Calls of tools between markers, among text. See parts.h. */
#include <stdlib.h>
#include <string.h>

#include "client/text/answer/parts.h"

static const char python_tag[] = "<|python_tag|>";

void calls_begin(struct answer *a, const char *name)
{
    a->count++;
    if (name != a->name) memcpy(a->name, name, strlen(name) + 1);
    answer_tell(a, ANSWER_CALL, a->name, strlen(a->name));
}

void calls_end(struct answer *a)
{
    answer_tell(a, ANSWER_CALL_END, "", 0);
}

static void give_text(struct answer *a, size_t count)
{
    a->spoke = true;
    answer_tell(a, ANSWER_TEXT, a->rest.data, count);
    answer_drop(&a->rest, count);
}

/* ---- text ---- */

/* The first marker of a call; its length in *bytes, or SIZE_MAX. *held: bytes at the end that may begin
 * one. */
static size_t find_marker(struct answer *a, size_t *bytes, size_t *held)
{
    const struct call_syntax *s = a->wish.calls;
    const char *const markers[] = {s->open, s->begins ? s->call_open : NULL};
    size_t first = SIZE_MAX;
    *held = 0;
    for (int i = 0; i < 2; i++) {
        if (!markers[i]) continue;
        const char *at =
            a->rest.length ? memmem(a->rest.data, a->rest.length, markers[i], strlen(markers[i])) : NULL;
        if (at && (size_t)(at - a->rest.data) < first) {
            first = (size_t)(at - a->rest.data);
            *bytes = strlen(markers[i]);
            a->at_name = i == 1;
        }
        const size_t partial = answer_partial(&a->rest, markers[i]);
        if (partial > *held) *held = partial;
    }
    return first;
}

/* Models of families with markers leave them out: the answer may begin with an object, or a list of them. */
static bool begins_bare(struct answer *a)
{
    const size_t at = answer_blanks(&a->rest, 0);
    if (a->wish.calls->form != CALL_OBJECT || a->spoke || a->count || at >= a->rest.length ||
        !strchr("{[", a->rest.data[at]) || answer_any_strict(a->wish.tools))
        return false;
    a->marker = at;
    a->bare = true;
    a->in_list = false;
    a->skip = (struct json_skip){0};
    a->state = CALL_HEAD;
    return true;
}

static bool step_text(struct answer *a)
{
    size_t bytes = 0, held = 0;
    if (begins_bare(a)) return true;
    const size_t at = find_marker(a, &bytes, &held);
    size_t safe = at != SIZE_MAX ? at : a->rest.length - (a->last ? 0 : held);
    if (at == SIZE_MAX && a->last && a->count && answer_blanks(&a->rest, 0) == a->rest.length) {
        a->rest.length = 0; /* white space after the last call */
        return false;
    }
    while ((at != SIZE_MAX || !a->last) && safe && answer_is_blank(a->rest.data[safe - 1])) safe--;
    if (safe) give_text(a, safe);
    if (at == SIZE_MAX) return false;
    a->marker = at - safe + bytes; /* with white space before it */
    a->in_list = a->bare = false;
    a->skip = (struct json_skip){0};
    a->state = CALL_HEAD;
    return true;
}

/* The whole answer is calls, or it is text. */
static bool step_whole(struct answer *a)
{
    size_t at = answer_blanks(&a->rest, 0);
    const enum call_found tag = answer_literal(a, at, python_tag);
    if (tag == CALL_MORE && at <= a->rest.length && (at == a->rest.length || a->rest.data[at] == '<'))
        return false;
    if (tag == CALL_FOUND) at += strlen(python_tag);
    if (tag != CALL_FOUND &&
        (at >= a->rest.length || !strchr(answer_any_strict(a->wish.tools) ? "{" : "{[", a->rest.data[at]))) {
        a->state = CALL_PLAIN;
        return true;
    }
    a->marker = at;
    a->state = CALL_HEAD;
    return true;
}

/* The answer begins with a call, or it is text. */
static bool step_lined(struct answer *a)
{
    a->marker = answer_blanks(&a->rest, 0);
    if (a->marker == a->rest.length && !a->last) return false;
    a->state = CALL_HEAD;
    return true;
}

/* ---- a call ---- */

static bool step_head(struct answer *a)
{
    struct call_head head;
    const bool may_be = a->count < ANSWER_CALLS_MAX && a->rest.length <= ANSWER_HEAD_MAX;
    const enum call_found found = may_be ? call_head_find(a, a->marker, &head) : CALL_NONE;
    if (found == CALL_MORE) return false;
    if (found == CALL_NONE) {
        a->state = a->wish.calls->open || a->wish.calls->begins ? CALL_TEXT : CALL_PLAIN;
        a->spoke = true;
        if (a->marker) give_text(a, a->marker);
        a->marker = 0;
        return true;
    }
    a->calls = head.calls;
    a->state = head.next;
    a->wrapped = head.wrapped;
    a->in_list = head.in_list;
    a->first = true;
    a->copy = (struct json_copy){0};
    a->objects = a->depth = 0;
    a->quoted = a->comma = false;
    answer_drop(&a->rest, head.used);
    calls_begin(a, head.name);
    if (head.arguments) {
        cli_text_add(&a->piece, head.arguments, strlen(head.arguments));
        free(head.arguments);
        calls_end(a);
    }
    return true;
}

static bool step_json(struct answer *a)
{
    answer_drop(&a->rest, json_copy_add(&a->copy, &a->piece, a->rest.data, a->rest.length));
    if (!a->copy.done) return false;
    a->state = a->wrapped ? CALL_REST : CALL_BETWEEN;
    a->copy = (struct json_copy){.in.depth = a->wrapped};
    calls_end(a);
    return true;
}

/* The members after the arguments, and the braces that end their objects. */
static bool step_rest(struct answer *a)
{
    struct cli_text nothing = {0};
    answer_drop(&a->rest, json_copy_add(&a->copy, &nothing, a->rest.data, a->rest.length));
    cli_text_free(&nothing);
    if (!a->copy.done) return false;
    a->state = CALL_BETWEEN;
    return true;
}

/* ---- after a call ---- */

/* Drops the literal if it is there; false: more has to come. */
static bool drop_literal(struct answer *a, const char *literal, bool *dropped)
{
    *dropped = false;
    if (!literal || !*literal) return true;
    const enum call_found found = answer_literal(a, 0, literal);
    *dropped = found == CALL_FOUND;
    if (*dropped) answer_drop(&a->rest, strlen(literal));
    return found != CALL_MORE;
}

/* Another call without a marker of its own begins at rest[at]. */
static bool again(struct answer *a, size_t at)
{
    a->marker = at;
    a->at_name = false;
    a->skip = (struct json_skip){0};
    a->state = CALL_HEAD;
    return true;
}

static bool between_objects(struct answer *a, const char *dividers)
{
    size_t at = 0;
    while (at < a->rest.length && strchr(dividers, a->rest.data[at])) at++;
    if (at == a->rest.length && !a->last) return false;
    if (at < a->rest.length && a->rest.data[at] == '{') {
        answer_drop(&a->rest, at);
        return again(a, 0);
    }
    return true;
}

static bool step_between(struct answer *a)
{
    const struct call_syntax *s = a->calls;
    bool dropped;
    if (s->form == CALL_LISTED && !a->in_list && !s->close) {
        a->state = CALL_TEXT;
        return true;
    }
    answer_drop(&a->rest, answer_blanks(&a->rest, 0));
    if (a->rest.length == 0) return false;
    if (a->in_list) {
        if (!between_objects(a, ", \t\r\n") || a->state == CALL_HEAD) return a->state == CALL_HEAD;
        if (!drop_literal(a, "]", &dropped)) return false;
        a->in_list = false;
        if (s->form == CALL_LISTED && !s->close) a->state = CALL_TEXT;
        return true;
    }
    if (s->form == CALL_WHOLE) {
        if (!between_objects(a, "; \t\r\n") || a->state == CALL_HEAD) return a->state == CALL_HEAD;
        if (!drop_literal(a, python_tag, &dropped)) return false;
        if (!dropped) a->state = CALL_PLAIN;
        return true;
    }
    if (s->form == CALL_OBJECT && !a->bare && strchr("}]`", a->rest.data[0])) {
        answer_drop(&a->rest, 1); /* a brace too many, or the end of a fence */
        return true;
    }
    if (!drop_literal(a, s->call_close, &dropped)) return false;
    if (dropped) return true;
    if (!drop_literal(a, s->close, &dropped)) return false;
    if (dropped) {
        a->state = CALL_TEXT;
        return true;
    }
    if (s->form == CALL_OBJECT && a->rest.data[0] == '{') return again(a, 0);
    if (s->form == CALL_LINED || s->form == CALL_PYTHON) return again(a, 0);
    if (s->call_open) {
        const enum call_found found = answer_literal(a, 0, s->call_open);
        if (found == CALL_MORE) return false;
        if (found == CALL_FOUND) return again(a, 0);
    }
    a->state = CALL_TEXT;
    return true;
}

/* ---- all of it ---- */

static bool step(struct answer *a)
{
    switch (a->state) {
    case CALL_TEXT:
        return a->wish.calls->form == CALL_WHOLE   ? step_whole(a)
               : a->wish.calls->form == CALL_LINED ? step_lined(a)
                                                   : step_text(a);
    case CALL_HEAD:
        return step_head(a);
    case CALL_JSON:
        return step_json(a);
    case CALL_REST:
        return step_rest(a);
    case CALL_KEYS:
        return parameters_keys(a);
    case CALL_VALUE:
        return parameters_value(a);
    case CALL_BARE_VALUE:
        return parameters_bare(a);
    case CALL_BETWEEN:
        return step_between(a);
    case CALL_PLAIN:
        break;
    }
    give_text(a, a->rest.length);
    return false;
}

void answer_calls(struct answer *a, const char *data, size_t length)
{
    if (!a->wish.calls) {
        answer_tell(a, ANSWER_TEXT, data, length);
        return;
    }
    cli_text_add(&a->rest, data, length);
    while (!a->rest.failed && step(a)) continue;
}
