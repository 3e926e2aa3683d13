/* Where a call begins: its name, and how its arguments come. See parts.h. Nothing is used up here; what is no
 * call stays text. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/answer/parts.h"

static enum call_found more(const struct answer *a)
{
    return a->last ? CALL_NONE : CALL_MORE;
}

/* An object begins at rest[at], with a member or none. */
static enum call_found object_begins(const struct answer *a, size_t at)
{
    if (at >= a->rest.length) return more(a);
    if (a->rest.data[at] != '{') return CALL_NONE;
    at = answer_blanks(&a->rest, at + 1);
    if (at >= a->rest.length) return more(a);
    return a->rest.data[at] == '"' || a->rest.data[at] == '}' ? CALL_FOUND : CALL_NONE;
}

/* ---- {"name": NAME, "arguments": ARGUMENTS}, also as the member "function" of an object ---- */

#define MEMBERS_MAX 32 /* of a call's object, before it is certain */

struct members {
    size_t at, count;
    unsigned depth; /* 1: in "function" */
    bool has_name;
    size_t from, until; /* the arguments, where they came before the name or are no object; 0: none */
};

/* A string of JSON that is no longer than a name may be. */
static bool read_string(const struct answer *a, size_t from, size_t until, char *name)
{
    json_t *value = json_loadb(a->rest.data + from, until - from, JSON_DECODE_ANY, NULL);
    const char *text = json_string_value(value);
    const size_t length = json_string_length(value);
    const bool good = text && length && length <= ANSWER_NAME_MAX && strlen(text) == length;
    if (good) memcpy(name, text, length + 1);
    json_decref(value);
    return good;
}

static bool is_key(const struct answer *a, size_t from, size_t until, const char *key)
{
    return until - from == strlen(key) + 2 && memcmp(a->rest.data + from + 1, key, strlen(key)) == 0;
}

/* The names that models give to the two members, with those of other families and services. */
static const char *const name_keys[] = {"name", "tool_name", "tool", NULL};
static const char *const argument_keys[] = {"arguments", "parameters", "args", "input", NULL};

static bool is_any_key(const struct answer *a, size_t from, size_t until, const char *const *keys)
{
    for (; *keys; keys++)
        if (is_key(a, from, until, *keys)) return true;
    return false;
}

/* The arguments as one text: an object, JSON text of one, or nothing. NULL: something else. */
static char *whole_arguments(const struct answer *a, const struct members *m)
{
    static const char empty[] = "{}";
    struct cli_text out = {0};
    struct json_copy copy = {0};
    if (m->until == 0) return strdup(empty);
    const char *text = a->rest.data + m->from;
    size_t length = m->until - m->from;
    json_t *value = json_loadb(text, length, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL), *inner = NULL;
    bool none = json_is_null(value), good = json_is_object(value);
    if (json_is_string(value)) {
        text = json_string_value(value);
        length = json_string_length(value);
        none = length == 0 || strcmp(text, "null") == 0;
        inner = json_loadb(text, length, JSON_DECODE_INT_AS_REAL, NULL);
        good = json_is_object(inner);
    }
    if (good) json_copy_add(&copy, &out, text, length);
    json_decref(value);
    json_decref(inner);
    return none ? strdup(empty) : out.data;
}

/* One member; FOUND: it is well, and `at` is after it. */
static enum call_found read_member(struct answer *a, struct members *m, struct call_head *head)
{
    const struct cli_text *rest = &a->rest;
    if (rest->data[m->at] != '"') return CALL_NONE;
    struct json_skip string = {0};
    const size_t key = m->at, end = json_skip_value(&string, rest, key);
    if (end == SIZE_MAX) return more(a);
    size_t at = answer_blanks(rest, end);
    if (at >= rest->length) return more(a);
    if (rest->data[at] != ':') return CALL_NONE;
    at = answer_blanks(rest, at + 1);
    if (at >= rest->length) return more(a);
    const bool arguments = is_any_key(a, key, end, argument_keys);
    const bool function = is_key(a, key, end, "function");
    if (function && m->depth == 0 && rest->data[at] == '{') {
        m->depth++;
        m->at = at + 1;
        return CALL_FOUND;
    }
    if (arguments && m->has_name && rest->data[at] == '{') {
        const enum call_found begins = object_begins(a, at);
        head->used = at;
        head->wrapped = m->depth + 1;
        head->next = CALL_JSON;
        m->at = SIZE_MAX;
        return begins;
    }
    if (!strchr("{[\"-0123456789tfn", rest->data[at])) return CALL_NONE;
    const bool name = is_any_key(a, key, end, name_keys) || (function && rest->data[at] == '"');
    const bool usual = name || arguments || is_key(a, key, end, "type") || is_key(a, key, end, "id");
    if (a->bare && !usual) return CALL_NONE; /* JSON of another kind does not wait for its end */
    struct json_skip skip = a->skip.begun && a->skip.from == at ? a->skip : (struct json_skip){0};
    const size_t until = json_skip_value(&skip, rest, at);
    if (until == SIZE_MAX) { /* it goes on from here, push after push */
        a->skip = skip;
        return more(a);
    }
    if (arguments) {
        m->from = at;
        m->until = until;
    } else if (name) {
        m->has_name = read_string(a, at, until, head->name);
        if (!m->has_name || (a->bare && !answer_has_tool(a->wish.tools, head->name))) return CALL_NONE;
    }
    m->at = until;
    return CALL_FOUND;
}

static enum call_found find_object(struct answer *a, size_t at, struct call_head *head)
{
    struct members m = {.at = at + 1};
    const enum call_found begins = object_begins(a, at);
    if (begins != CALL_FOUND) return begins;
    for (;;) {
        m.at = answer_blanks(&a->rest, m.at);
        if (m.at >= a->rest.length) return more(a);
        if (a->rest.data[m.at] == '}') {
            m.at++;
            if (m.depth-- == 0) break;
            continue;
        }
        if (a->rest.data[m.at] == ',') {
            m.at++;
            continue;
        }
        if (m.count++ == MEMBERS_MAX) return CALL_NONE;
        const enum call_found member = read_member(a, &m, head);
        if (member != CALL_FOUND) return member;
        if (m.at == SIZE_MAX) return CALL_FOUND;
    }
    if (!m.has_name || !(head->arguments = whole_arguments(a, &m))) return CALL_NONE;
    head->used = m.at;
    head->next = CALL_BETWEEN;
    return CALL_FOUND;
}

/* ---- names ---- */

/* A name at rest[at] that ends before one of `ends`; *after: there. */
static enum call_found find_name(const struct answer *a, size_t at, const char *ends, struct call_head *head,
                                 size_t *after)
{
    static const char never[] = "<>{}[]\"'\n\r";
    size_t n = 0;
    const char *text = a->rest.data + at;
    for (; at + n < a->rest.length && !strchr(ends, text[n]); n++)
        if (n == ANSWER_NAME_MAX || strchr(never, text[n])) return CALL_NONE;
    if (at + n == a->rest.length) return more(a);
    *after = at + n;
    while (n && answer_is_blank(text[n - 1])) n--;
    if (n == 0) return CALL_NONE;
    memcpy(head->name, text, n);
    head->name[n] = 0;
    return CALL_FOUND;
}

/* Kimi's are functions.NAME:NUMBER. */
static void shorten_name(const struct answer *a, char *name)
{
    static const char functions[] = "functions.";
    const size_t bytes = strlen(functions);
    if (answer_has_tool(a->wish.tools, name)) return;
    if (strncmp(name, functions, bytes) == 0 && name[bytes])
        memmove(name, name + bytes, strlen(name + bytes) + 1);
    char *colon = strrchr(name, ':');
    if (colon && colon != name && colon[1] && colon[1 + strspn(colon + 1, "0123456789")] == 0) *colon = 0;
}

/* Mistral's: NAME, perhaps [CALL_ID] and an id, perhaps [ARGS], an object. */
static enum call_found find_divided(struct answer *a, size_t at, struct call_head *head)
{
    static const char id[] = "[CALL_ID]", arguments[] = "[ARGS]";
    enum call_found found = find_name(a, at, "[{", head, &at);
    if (found != CALL_FOUND) return found;
    found = answer_literal(a, at, id);
    if (found == CALL_MORE) return found;
    if (found == CALL_FOUND) {
        char name[ANSWER_NAME_MAX + 1];
        memcpy(name, head->name, sizeof name);
        found = find_name(a, at + strlen(id), "[{", head, &at);
        memcpy(head->name, name, sizeof name);
        if (found != CALL_FOUND) return found;
    }
    found = answer_literal(a, at, arguments);
    if (found == CALL_MORE) return found;
    if (found == CALL_FOUND) at = answer_blanks(&a->rest, at + strlen(arguments));
    head->used = at;
    head->next = CALL_JSON;
    return object_begins(a, at);
}

/* One object, or a list of them. */
static enum call_found find_objects(struct answer *a, size_t at, struct call_head *head)
{
    at = answer_blanks(&a->rest, at);
    if (at >= a->rest.length) return more(a);
    if (a->rest.data[at] == '`' && !a->bare) { /* a fence and its language */
        const char *line = memchr(a->rest.data + at, '\n', a->rest.length - at);
        if (!line) return a->rest.length - at > 16 ? CALL_NONE : more(a);
        at = answer_blanks(&a->rest, (size_t)(line - a->rest.data));
        if (at >= a->rest.length) return more(a);
    }
    const bool begins = !a->in_list && a->rest.data[at] == '[';
    head->in_list = a->in_list || begins;
    if (begins) at = answer_blanks(&a->rest, at + 1);
    return at >= a->rest.length ? more(a) : find_object(a, at, head);
}

static enum call_found find_listed(struct answer *a, size_t at, struct call_head *head)
{
    at = answer_blanks(&a->rest, at);
    if (at >= a->rest.length) return more(a);
    return a->in_list || strchr("[{", a->rest.data[at]) ? find_objects(a, at, head)
                                                        : find_divided(a, at, head);
}

/* ---- the name of a tool on a line of its own ---- */

/* `name` at text, and a line's end after it; *used: up to there. */
static enum call_found name_line(const struct answer *a, const char *text, size_t left, const char *name,
                                 size_t *used)
{
    const size_t bytes = strlen(name);
    size_t at = bytes;
    if (bytes > ANSWER_NAME_MAX || memcmp(text, name, left < bytes ? left : bytes) != 0) return CALL_NONE;
    while (at < left && text[at] != '\n' && answer_is_blank(text[at])) at++;
    if (at >= left) return more(a);
    *used = at + 1;
    return text[at] == '\n' ? CALL_FOUND : CALL_NONE;
}

static enum call_found find_lined(const struct answer *a, size_t at, struct call_head *head)
{
    enum call_found best = CALL_NONE;
    size_t index;
    const json_t *tool;
    json_array_foreach(a->wish.tools, index, tool)
    {
        const char *name = answer_tool_name(tool);
        size_t used = 0;
        if (!name || !*name) continue;
        const enum call_found found = name_line(a, a->rest.data + at, a->rest.length - at, name, &used);
        if (found == CALL_MORE) best = found;
        if (found != CALL_FOUND) continue;
        memcpy(head->name, name, strlen(name) + 1);
        head->used = answer_blanks(&a->rest, at + used);
        head->next = CALL_JSON;
        return object_begins(a, head->used);
    }
    return best;
}

/* ---- a name between markers ---- */

/* A tag may have more in it after the name's quote. */
static enum call_found end_tag(const struct answer *a, const struct call_syntax *s, size_t *at)
{
    if (!s->tags) return CALL_FOUND;
    for (; *at < a->rest.length; (*at)++)
        if (a->rest.data[*at] == '>') {
            (*at)++;
            return CALL_FOUND;
        } else if (a->rest.data[*at] == '<') {
            return CALL_NONE;
        }
    return more(a);
}

/* One of the three texts, or a part of one, is at rest[at]. */
static enum call_found any_of(const struct answer *a, size_t at, const char *const literals[3])
{
    enum call_found best = CALL_NONE;
    if (at >= a->rest.length) return more(a);
    for (int i = 0; i < 3; i++) {
        if (!literals[i]) continue;
        const enum call_found found = answer_literal(a, at, literals[i]);
        if (found == CALL_FOUND) return found;
        if (found == CALL_MORE) best = found;
    }
    return best;
}

/* KEY=, or the end of the arguments, is at rest[at]. */
static enum call_found keyword_begins(const struct answer *a, size_t at)
{
    at = answer_blanks(&a->rest, at);
    if (at < a->rest.length && a->rest.data[at] == ')') return CALL_FOUND;
    const size_t from = at;
    while (at < a->rest.length && at - from < ANSWER_NAME_MAX &&
           (isalnum((unsigned char)a->rest.data[at]) || a->rest.data[at] == '_'))
        at++;
    const size_t end = answer_blanks(&a->rest, at);
    if (end >= a->rest.length) return more(a);
    return at > from && a->rest.data[end] == '=' ? CALL_FOUND : CALL_NONE;
}

static enum call_found find_arguments(const struct answer *a, const struct call_syntax *s, size_t at,
                                      struct call_head *head)
{
    const size_t from = answer_blanks(&a->rest, at);
    head->used = at;
    if (s->form == CALL_BARE || s->form == CALL_PYTHON) {
        head->next = CALL_BARE_VALUE;
        return s->form == CALL_BARE ? CALL_FOUND : keyword_begins(a, at + 1);
    }
    if (s->form == CALL_NAMED || (from < a->rest.length && a->rest.data[from] == '{')) {
        head->used = from;
        head->next = CALL_JSON;
        return object_begins(a, from);
    }
    head->next = CALL_KEYS;
    return any_of(a, from, (const char *const[3]){s->key_open, s->call_close, s->close});
}

static enum call_found find_named(struct answer *a, const struct call_syntax *s, size_t at,
                                  struct call_head *head)
{
    const char *open = s->call_open ? s->call_open : "", *end = s->name_end;
    enum call_found found;
    if (!a->at_name) {
        at = answer_blanks(&a->rest, at);
        if ((found = answer_literal(a, at, open)) != CALL_FOUND) return found;
        at += strlen(open);
    }
    const char ends[] = {end ? *end : '<', end ? 0 : '\n', end ? 0 : ' ', 0};
    if ((found = find_name(a, at, ends, head, &at)) != CALL_FOUND) return found;
    if (s->form == CALL_PYTHON && strpbrk(head->name, " ,;=")) return CALL_NONE;
    if (end) { /* white space of a marker may vary */
        const size_t blanks = strspn(end, " \n"), bytes = strlen(end);
        if (blanks) {
            at = answer_blanks(&a->rest, at);
            found = answer_literal(a, at, end + blanks);
            at += bytes - blanks;
        } else {
            found = answer_literal(a, at, end);
            const bool own = s->form == CALL_BARE || s->form == CALL_PYTHON;
            at += own ? 0 : bytes; /* the brace is the object's */
        }
        if (found != CALL_FOUND) return found;
    }
    shorten_name(a, head->name);
    if ((found = end_tag(a, s, &at)) != CALL_FOUND) return found;
    return find_arguments(a, s, at, head);
}

/* ---- all forms ---- */

static enum call_found find_as(struct answer *a, const struct call_syntax *s, size_t at,
                               struct call_head *head)
{
    *head = (struct call_head){.calls = s};
    enum call_found found;
    switch (s->form) {
    case CALL_OBJECT:
    case CALL_WHOLE:
        found = find_objects(a, at, head);
        break;
    case CALL_LISTED:
        found = find_listed(a, at, head);
        break;
    case CALL_LINED:
        found = find_lined(a, at, head);
        break;
    default:
        found = find_named(a, s, at, head);
    }
    const bool known = (s->form != CALL_WHOLE && !a->bare) || answer_has_tool(a->wish.tools, head->name);
    if (found == CALL_FOUND && known) return found;
    free(head->arguments);
    head->arguments = NULL;
    return found == CALL_FOUND ? CALL_NONE : found;
}

enum call_found call_head_find(struct answer *a, size_t at, struct call_head *head)
{
    const struct call_syntax *s;
    enum call_found best = find_as(a, a->wish.calls, at, head);
    if (best != CALL_NONE || !a->wish.calls->open || a->at_name || a->bare) return best;
    /* the family's marker, and another family's way: models mix them up */
    for (size_t i = 0; (s = call_syntax_row(i)); i++) {
        struct call_head other;
        if (s == a->wish.calls || !s->open || strcmp(s->open, a->wish.calls->open) != 0) continue;
        enum call_found found = find_as(a, s, at, &other);
        const bool unmarked = s->form == CALL_PARAMETERS && !s->call_open;
        if (found == CALL_FOUND && unmarked && !answer_has_tool(a->wish.tools, other.name)) found = CALL_NONE;
        if (found == CALL_FOUND) *head = other;
        if (found == CALL_FOUND) return found;
        if (found == CALL_MORE) best = found;
    }
    return best;
}
