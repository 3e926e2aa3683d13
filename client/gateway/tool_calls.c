/* Finding calls of tools in an answer. See tool_calls.h. */
#include "client/gateway/tool_calls.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

static const char tag_open[] = "<tool_call>", tag_close[] = "</tool_call>", list_open[] = "[TOOL_CALLS]",
                  arguments_open[] = "[ARGS]", python_tag[] = "<|python_tag|>";
static const char blanks[] = " \t\r\n";

enum tool_style tool_style_of(const char *text)
{
    if (!text || !strstr(text, "tools")) return TOOLS_NONE;
    if (strstr(text, tag_open)) return TOOLS_TAGGED;
    if (strstr(text, list_open)) return TOOLS_LISTED;
    if (strstr(text, "<|start_header_id|>")) return TOOLS_OBJECT;
    return TOOLS_NONE;
}

bool tool_calls_is_marker(enum tool_style style, const char *token)
{
    switch (style) {
    case TOOLS_TAGGED:
        return strcmp(token, tag_open) == 0 || strcmp(token, tag_close) == 0;
    case TOOLS_LISTED:
        return strcmp(token, list_open) == 0 || strcmp(token, arguments_open) == 0;
    case TOOLS_OBJECT:
        return strcmp(token, python_tag) == 0;
    case TOOLS_NONE:
        break;
    }
    return false;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static bool is_listed(const json_t *tools, const char *name)
{
    size_t index;
    const json_t *tool;
    json_array_foreach(tools, index, tool)
    {
        const char *listed = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (listed && strcmp(listed, name) == 0) return true;
    }
    return false;
}

/* false: it is no call, or there are too many. */
static bool add_call(struct tool_parser *p, const char *name, const json_t *arguments)
{
    static const char empty[] = "{}";
    if (!name || !*name || p->count == TOOL_CALLS_MAX) return false;
    if (arguments && !json_is_object(arguments)) return false;
    char *text = arguments ? json_dumps(arguments, JSON_COMPACT) : strdup(empty);
    char *copy = strdup(name);
    if (!text || !copy) {
        free(text);
        free(copy);
        p->held.failed = true;
        return false;
    }
    p->calls[p->count++] = (struct tool_call){copy, text};
    return true;
}

static bool add_object(struct tool_parser *p, const json_t *object)
{
    const char *name = json_string_value(json_object_get(object, "name"));
    const json_t *arguments = json_object_get(object, "arguments");
    if (!arguments) arguments = json_object_get(object, "parameters");
    if (name && p->style == TOOLS_OBJECT && !is_listed(p->tools, name)) return false;
    return add_call(p, name, arguments);
}

/* One JSON value that begins at held[from] and ends before `end`; *used is its length. NULL: there is none (yet). What was
 * looked at is not looked at again when more has come. */
static json_t *parse_value(struct tool_parser *p, size_t from, size_t end, size_t *used)
{
    struct tool_scan *scan = &p->scan;
    const char *text = p->held.data;
    if (scan->from != from || !scan->begun)
        *scan = (struct tool_scan){.begun = true, .from = from, .at = from};
    while (scan->at < end) {
        const char c = text[scan->at++];
        if (scan->in_string) {
            scan->in_string = scan->escaped || c != '"';
            scan->escaped = !scan->escaped && c == '\\';
        } else if (c == '"') {
            scan->in_string = true;
        } else if (c == '{' || c == '[') {
            scan->depth++;
            scan->too_deep |= scan->depth > JSON_DEPTH_MAX; /* as everywhere: what nests deeper is no call */
        } else if ((c == '}' || c == ']') && scan->depth && --scan->depth == 0) {
            json_t *value = scan->too_deep ? NULL : json_loadb(text + from, scan->at - from, 0, NULL);
            *used = scan->at - from;
            scan->begun = false;
            return value;
        }
    }
    return NULL;
}

static size_t skip_blanks(const struct cli_text *held, size_t at)
{
    while (at < held->length && strchr(blanks, held->data[at]) && held->data[at]) at++;
    return at;
}

static void drop(struct tool_parser *p, size_t count)
{
    p->held.length -= count;
    memmove(p->held.data, p->held.data + count, p->held.length + 1);
    p->scan = (struct tool_scan){0};
    p->searched = 0;
}

static void give_text(struct tool_parser *p, size_t count)
{
    cli_text_add(p->text, p->held.data, count);
    drop(p, count);
}

/* How many bytes at the end of held could begin `marker`. */
static size_t partial(const struct cli_text *held, const char *marker)
{
    size_t longest = strlen(marker) - 1;
    if (longest > held->length) longest = held->length;
    for (size_t n = longest; n > 0; n--)
        if (memcmp(held->data + held->length - n, marker, n) == 0) return n;
    return 0;
}

/* ---- the styles ------------------------------------------------------------------------------------- */

/* Text up to a marker, then the marker itself: true when one was found. White space before it belongs to it. */
static bool find_marker(struct tool_parser *p, const char *marker, bool last)
{
    const char *at = p->held.length ? memmem(p->held.data, p->held.length, marker, strlen(marker)) : NULL;
    if (!at) {
        size_t safe = p->held.length;
        if (last && p->count && skip_blanks(&p->held, 0) == safe) return false; /* behind the last call */
        if (!last) safe -= partial(&p->held, marker);
        while (!last && safe && strchr(blanks, p->held.data[safe - 1])) safe--;
        if (safe) give_text(p, safe);
        return false;
    }
    size_t before = (size_t)(at - p->held.data), text = before;
    while (text && strchr(blanks, p->held.data[text - 1])) text--;
    cli_text_add(p->text, p->held.data, text);
    drop(p, before + strlen(marker));
    return true;
}

/* What began as a call is text. */
static void give_back(struct tool_parser *p, const char *marker, size_t count)
{
    cli_text_add(p->text, marker, strlen(marker));
    if (count) give_text(p, count);
}

static void push_tagged(struct tool_parser *p, bool last)
{
    for (;;) {
        if (!p->inside && !find_marker(p, tag_open, last)) return;
        p->inside = true;
        const size_t left = p->held.length - p->searched, bytes = strlen(tag_close);
        const char *end = left ? memmem(p->held.data + p->searched, left, tag_close, bytes) : NULL;
        if (!end && !last) {
            if (left >= bytes) p->searched = p->held.length - bytes + 1;
            return;
        }
        /* an answer may end without the last tag */
        const size_t inner = end ? (size_t)(end - p->held.data) : p->held.length;
        size_t used = 0, from = skip_blanks(&p->held, 0);
        json_t *value = from < inner ? parse_value(p, from, inner, &used) : NULL;
        const bool whole = value && skip_blanks(&p->held, from + used) >= inner;
        const size_t all = inner + (end ? bytes : 0);
        if (whole && add_object(p, value))
            drop(p, all);
        else
            give_back(p, tag_open, all);
        json_decref(value);
        p->inside = false;
        if (!end) return;
    }
}

/* Behind the marker: a list, or NAME[ARGS]{...} once for each call, each with a marker of its own. */
static void push_listed(struct tool_parser *p, bool last)
{
    while (p->inside || find_marker(p, list_open, last)) {
        p->inside = true;
        size_t used = 0, from = skip_blanks(&p->held, 0), name_end = from;
        if (from == p->held.length && !last) return;
        const bool list = from < p->held.length && p->held.data[from] == '[';
        char *name = NULL;
        if (!list) {
            name_end = from + strcspn(p->held.data ? p->held.data + from : "", "{[");
            if (name_end >= p->held.length && !last) return;
            name = strndup(p->held.data ? p->held.data + from : "", name_end - from);
            from = name_end;
            const size_t bytes = strlen(arguments_open);
            if (p->held.length - from >= bytes && memcmp(p->held.data + from, arguments_open, bytes) == 0)
                from += bytes;
        }
        json_t *value = from < p->held.length ? parse_value(p, from, p->held.length, &used) : NULL;
        if (!value && !used && !last) {
            free(name);
            return;
        }
        size_t found = 0, index;
        const json_t *call;
        if (list)
            json_array_foreach(value, index, call) found += add_object(p, call);
        else if (value && name)
            found += add_call(p, name, value);
        if (found) {
            drop(p, from + used);
        } else {
            give_back(p, list_open, used ? from + used : p->held.length);
        }
        json_decref(value);
        free(name);
        p->inside = false;
    }
}

/* The whole answer is calls, or it is text. */
static void push_object(struct tool_parser *p, bool last)
{
    if (p->decided) {
        if (p->held.length) give_text(p, p->held.length);
        return;
    }
    size_t from = skip_blanks(&p->held, 0);
    const size_t tag = strlen(python_tag), there = p->held.length - from;
    const bool tagged = there >= tag && memcmp(p->held.data + from, python_tag, tag) == 0;
    const bool maybe =
        !tagged && there < tag && (!there || memcmp(p->held.data + from, python_tag, there) == 0);
    if (!last && (maybe || tagged || p->held.data[from] == '{')) return;
    if (tagged) from += tag;
    size_t found = 0, used = 0;
    for (from = skip_blanks(&p->held, from); last && from < p->held.length; found++) {
        json_t *value = parse_value(p, from, p->held.length, &used);
        const bool taken = value && add_object(p, value);
        json_decref(value);
        if (!taken) break;
        from += used;
        while (from < p->held.length && strchr("; \t\r\n", p->held.data[from])) from++;
    }
    p->decided = true;
    if (found) drop(p, from);
    if (p->held.length) give_text(p, p->held.length);
}

static void take(struct tool_parser *p, bool last)
{
    switch (p->style) {
    case TOOLS_TAGGED:
        push_tagged(p, last);
        break;
    case TOOLS_LISTED:
        push_listed(p, last);
        break;
    case TOOLS_OBJECT:
        push_object(p, last);
        break;
    case TOOLS_NONE:
        break;
    }
    if (p->held.failed) p->text->failed = true;
}

void tool_parser_push(struct tool_parser *p, const char *data, size_t length)
{
    if (p->style == TOOLS_NONE) {
        cli_text_add(p->text, data, length);
        return;
    }
    cli_text_add(&p->held, data, length);
    if (!p->held.failed) take(p, false);
}

void tool_parser_finish(struct tool_parser *p)
{
    if (p->style == TOOLS_NONE || p->held.failed) return;
    cli_text_add(&p->held, "", 0); /* so that there is a text, and it ends with NUL */
    take(p, true);
}

void tool_parser_free(struct tool_parser *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->calls[i].name);
        free(p->calls[i].arguments);
    }
    cli_text_free(&p->held);
    *p = (struct tool_parser){0};
}
