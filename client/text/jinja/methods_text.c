/* Methods of texts. See jinja/eval.h. Called through the table at the end. */
#include <utf8proc.h>

#include "client/text/jinja/eval.h"

/* The `which` of most methods: the end that they begin at, or cut off. */
enum { LEFT = 1, RIGHT = 2, FIND_MUST = 4 /* as LEFT, and it is an error to find nothing */ };

static int method_case(const struct jinja_callable *c, struct jinja_value *out)
{
    return jinja_change_case(c->run, c->self, (enum jinja_case)c->which, out);
}

static int method_strip(const struct jinja_callable *c, struct jinja_value *out)
{
    const struct jinja_value *set = &c->a[0];
    if (set->type != JINJA_ABSENT && set->type != JINJA_NONE && set->type != JINJA_TEXT)
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': the characters are a '%s'", c->name,
                          jinja_type_name(set));
    return jinja_strip(c->run, c->self, set, c->which & LEFT, c->which & RIGHT, out);
}

/* The part of a text between the optional start and end arguments (a[1], a[2]); *skipped: characters before
 * it. False: the start lies past the end. */
static int bounds(const struct jinja_callable *c, struct jinja_value *part, int64_t *skipped, bool *valid)
{
    int64_t length = c->self.as.text.chars, start, end;
    int rc = jinja_parameter_whole(c, 1, 0, &start);
    if (!rc) rc = jinja_parameter_whole(c, 2, length, &end);
    if (rc) return rc;
    if (start < 0) start = start + length < 0 ? 0 : start + length;
    if (end < 0) end = end + length < 0 ? 0 : end + length;
    if (end > length) end = length;
    *valid = start <= end;
    *skipped = start;
    if (!*valid) return 0;
    size_t from = jinja_text_offset(&c->self, (size_t)start), to = jinja_text_offset(&c->self, (size_t)end);
    *part = jinja_text(c->self.as.text.data + from, to - from);
    return jinja_step(c->run, to / 64);
}

static bool ends_fit(const struct jinja_value *text, const struct jinja_value *affix, bool at_end)
{
    size_t n = affix->as.text.bytes;
    if (n > text->as.text.bytes) return false;
    return memcmp(text->as.text.data + (at_end ? text->as.text.bytes - n : 0), affix->as.text.data, n) == 0;
}

static int method_has_affix(const struct jinja_callable *c, struct jinja_value *out)
{
    bool at_end = c->which == RIGHT;
    struct jinja_value part;
    int64_t skipped;
    bool valid, found = false;
    int rc = bounds(c, &part, &skipped, &valid);
    if (rc) return rc;
    const struct jinja_value *affix = &c->a[0];
    size_t count = 1;
    if (affix->type == JINJA_LIST && affix->as.list->kind == JINJA_LIST_TUPLE) {
        count = affix->as.list->count;
        affix = affix->as.list->item;
    }
    for (size_t i = 0; i < count; i++) {
        if (affix[i].type != JINJA_TEXT)
            return jinja_fail(c->run, HELM_E_FORMAT, "'%s' expects a text or a tuple of texts, not a '%s'",
                              c->name, jinja_type_name(&affix[i]));
        rc = jinja_step(c->run, 1 + affix[i].as.text.bytes / 64);
        if (rc) return rc;
        found |= valid && ends_fit(&part, &affix[i], at_end);
    }
    *out = jinja_bool(found);
    return 0;
}

static int method_remove_affix(const struct jinja_callable *c, struct jinja_value *out)
{
    bool at_end = c->which == RIGHT;
    struct jinja_value affix;
    int rc = jinja_parameter_text(c, 0, NULL, &affix);
    if (rc) return rc;
    const char *data = c->self.as.text.data;
    size_t n = ends_fit(&c->self, &affix, at_end) ? affix.as.text.bytes : 0;
    *out = jinja_text(data + (at_end ? 0 : n), c->self.as.text.bytes - n);
    return jinja_step(c->run, c->self.as.text.bytes / 64);
}

static const char *find_last(const char *data, size_t bytes, const struct jinja_value *what)
{
    for (size_t at = bytes + 1; at-- > 0;)
        if (what->as.text.bytes <= bytes - at &&
            memcmp(data + at, what->as.text.data, what->as.text.bytes) == 0)
            return data + at;
    return NULL;
}

/* find_last compares at every place. */
static int charge_last(struct jinja_run *run, const struct jinja_value *text, const struct jinja_value *what)
{
    return jinja_step(run, (uint64_t)text->as.text.bytes / 64 * (1 + what->as.text.bytes / 64));
}

static int method_find(const struct jinja_callable *c, struct jinja_value *out)
{
    bool last = c->which == RIGHT;
    struct jinja_value part, what;
    int64_t skipped;
    bool valid;
    int rc = jinja_parameter_text(c, 0, NULL, &what);
    if (!rc) rc = bounds(c, &part, &skipped, &valid);
    if (!rc && last) rc = charge_last(c->run, &c->self, &what);
    if (rc) return rc;
    const char *data = valid ? part.as.text.data : NULL, *found = NULL;
    if (valid && last)
        found = find_last(data, part.as.text.bytes, &what);
    else if (valid)
        found = what.as.text.bytes ? memmem(data, part.as.text.bytes, what.as.text.data, what.as.text.bytes)
                                   : data;
    if (!found && c->which == FIND_MUST)
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': substring not found", c->name);
    *out = jinja_int(found ? skipped + (int64_t)jinja_utf8_count(data, (size_t)(found - data)) : -1);
    return 0;
}

static int method_count(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value part, what;
    int64_t skipped, count = 0;
    bool valid;
    int rc = jinja_parameter_text(c, 0, NULL, &what);
    if (!rc) rc = bounds(c, &part, &skipped, &valid);
    if (!rc && valid && !what.as.text.bytes) count = (int64_t)part.as.text.chars + 1;
    if (!rc && valid && what.as.text.bytes) {
        const char *at = part.as.text.data, *end = at + part.as.text.bytes;
        while ((at = memmem(at, (size_t)(end - at), what.as.text.data, what.as.text.bytes))) {
            at += what.as.text.bytes;
            count++;
        }
    }
    *out = jinja_int(count);
    return rc;
}

static int method_replace(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value old, fresh;
    int64_t count;
    int rc = jinja_parameter_text(c, 0, NULL, &old);
    if (!rc) rc = jinja_parameter_text(c, 1, NULL, &fresh);
    if (!rc) rc = jinja_parameter_whole(c, 2, -1, &count);
    return rc ? rc : jinja_replace(c->run, c->self, old, fresh, count, out);
}

static int method_join(const struct jinja_callable *c, struct jinja_value *out)
{
    return jinja_join(c->run, c->a[0], c->self, true, out);
}

static int method_splitlines(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *lines;
    int rc = jinja_split_lines(c->run, c->self, jinja_parameter_truth(c, 0, false), &lines);
    if (!rc) *out = jinja_list_value(lines);
    return rc;
}

/* Words between white space; after `most` cuts the rest is one piece. */
static int split_space(struct jinja_run *run, struct jinja_value text, int64_t most, bool from_right,
                       struct jinja_list *list)
{
    const char *data = text.as.text.data;
    size_t start = 0, end = text.as.text.bytes;
    int rc = 0;
    while (!rc) {
        if (from_right)
            end -= jinja_space_after(data, end);
        else
            start += jinja_space_before(data + start, end - start);
        if (start >= end) break;
        size_t from = start, to = end, size;
        if (most == 0) {
            if (!from_right) to = end;
            return jinja_list_add(run, list, jinja_text(data + from, to - from));
        }
        if (from_right) {
            from = end;
            while (from > start) {
                size_t before = from - 1;
                while (before > start && ((unsigned char)data[before] & 0xC0) == 0x80) before--;
                if (jinja_is_space(jinja_utf8_decode(data + before, &size))) break;
                from = before;
            }
            end = from;
        } else {
            to = start;
            while (to < end && !jinja_is_space(jinja_utf8_decode(data + to, &size))) to += size;
            start = to;
        }
        rc = jinja_list_add(run, list, jinja_text(data + from, to - from));
        most -= most > 0;
    }
    return rc;
}

static int split_by(struct jinja_run *run, struct jinja_value text, const struct jinja_value *by,
                    int64_t most, bool from_right, struct jinja_list *list)
{
    const char *data = text.as.text.data;
    size_t start = 0, end = text.as.text.bytes, width = by->as.text.bytes;
    int rc = 0;
    for (; !rc && most != 0; most -= most > 0) {
        const char *found = from_right ? find_last(data, end, by)
                                       : memmem(data + start, end - start, by->as.text.data, width);
        if (!found) break;
        size_t at = (size_t)(found - data);
        rc = from_right ? jinja_list_add(run, list, jinja_text(data + at + width, end - at - width))
                        : jinja_list_add(run, list, jinja_text(data + start, at - start));
        if (from_right)
            end = at;
        else
            start = at + width;
    }
    return rc ? rc : jinja_list_add(run, list, jinja_text(data + start, end - start));
}

static int method_split(const struct jinja_callable *c, struct jinja_value *out)
{
    bool from_right = c->which == RIGHT;
    struct jinja_list *list;
    int64_t most;
    const struct jinja_value *by = &c->a[0];
    bool space = by->type == JINJA_ABSENT || by->type == JINJA_NONE;
    int rc = jinja_parameter_whole(c, 1, -1, &most);
    if (!rc) rc = jinja_step(c->run, c->self.as.text.bytes / 64);
    if (!rc) rc = jinja_list_new(c->run, JINJA_LIST_PLAIN, 0, &list);
    if (rc) return rc;
    if (!space && by->type != JINJA_TEXT)
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': the separator is a '%s'", c->name,
                          jinja_type_name(by));
    if (!space && !by->as.text.bytes)
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': empty separator", c->name);
    if (!space && from_right) rc = charge_last(c->run, &c->self, by);
    if (rc) return rc;
    rc = space ? split_space(c->run, c->self, most, from_right, list)
               : split_by(c->run, c->self, by, most, from_right, list);
    for (size_t i = 0; !rc && from_right && i < list->count / 2; i++) {
        struct jinja_value swap = list->item[i];
        list->item[i] = list->item[list->count - 1 - i];
        list->item[list->count - 1 - i] = swap;
    }
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int method_partition(const struct jinja_callable *c, struct jinja_value *out)
{
    bool last = c->which == RIGHT;
    struct jinja_value by;
    struct jinja_list *list;
    int rc = jinja_parameter_text(c, 0, NULL, &by);
    if (!rc && !by.as.text.bytes) return jinja_fail(c->run, HELM_E_FORMAT, "'%s': empty separator", c->name);
    if (!rc) rc = charge_last(c->run, &c->self, &by);
    if (!rc) rc = jinja_list_new(c->run, JINJA_LIST_TUPLE, 3, &list);
    if (rc) return rc;
    const char *data = c->self.as.text.data;
    size_t bytes = c->self.as.text.bytes;
    const char *found =
        last ? find_last(data, bytes, &by) : memmem(data, bytes, by.as.text.data, by.as.text.bytes);
    size_t at = found ? (size_t)(found - data) : last ? 0 : bytes;
    size_t after = found ? at + by.as.text.bytes : at;
    rc = jinja_list_add(c->run, list, jinja_text(data, at));
    if (!rc) rc = jinja_list_add(c->run, list, found ? by : jinja_text("", 0));
    if (!rc) rc = jinja_list_add(c->run, list, jinja_text(data + after, bytes - after));
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

enum character_class { CLASS_DIGIT, CLASS_LETTER, CLASS_ALNUM, CLASS_SPACE };

/* Are all characters of that class, and is there one? */
static int method_all_are(const struct jinja_callable *c, struct jinja_value *out)
{
    enum character_class wanted = (enum character_class)c->which;
    bool all = c->self.as.text.bytes > 0;
    for (size_t i = 0, size; all && i < c->self.as.text.bytes; i += size) {
        uint32_t code = jinja_utf8_decode(c->self.as.text.data + i, &size);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)code);
        bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
        bool digit = k == UTF8PROC_CATEGORY_ND;
        all = wanted == CLASS_SPACE   ? jinja_is_space(code)
              : wanted == CLASS_DIGIT ? digit
              : wanted == CLASS_LETTER
                  ? letter
                  : letter || digit || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
    }
    *out = jinja_bool(all);
    return jinja_step(c->run, c->self.as.text.bytes / 64);
}

static int method_is_case(const struct jinja_callable *c, struct jinja_value *out)
{
    const char *test = c->which == JINJA_CASE_UPPER ? "upper" : "lower";
    struct jinja_value name = jinja_text(test, strlen(test));
    bool holds = false;
    int rc = jinja_apply_test(c->run, c->scope, &name, c->self, NULL, &holds);
    *out = jinja_bool(holds);
    return rc;
}

#define NEEDS(what)  .parameters = {what}, .required = 1
#define WITHIN(what) .parameters = {what, "start", "end"}, .required = 1
const struct jinja_function jinja_text_methods[] = {
    {.name = "capitalize", .call = method_case, .which = JINJA_CASE_CAPITALIZE},
    {.name = "count", .call = method_count, WITHIN("sub")},
    {.name = "endswith", .call = method_has_affix, .which = RIGHT, WITHIN("suffix")},
    {.name = "find", .call = method_find, .which = LEFT, WITHIN("sub")},
    {.name = "format", .call = jinja_format_fields, .raw = true},
    {.name = "index", .call = method_find, .which = FIND_MUST, WITHIN("sub")},
    {.name = "isalnum", .call = method_all_are, .which = CLASS_ALNUM},
    {.name = "isalpha", .call = method_all_are, .which = CLASS_LETTER},
    {.name = "isdigit", .call = method_all_are, .which = CLASS_DIGIT},
    {.name = "islower", .call = method_is_case, .which = JINJA_CASE_LOWER},
    {.name = "isspace", .call = method_all_are, .which = CLASS_SPACE},
    {.name = "isupper", .call = method_is_case, .which = JINJA_CASE_UPPER},
    {.name = "join", .call = method_join, NEEDS("items")},
    {.name = "lower", .call = method_case, .which = JINJA_CASE_LOWER},
    {.name = "lstrip", .call = method_strip, .which = LEFT, .parameters = {"chars"}},
    {.name = "partition", .call = method_partition, .which = LEFT, NEEDS("sep")},
    {.name = "removeprefix", .call = method_remove_affix, .which = LEFT, NEEDS("prefix")},
    {.name = "removesuffix", .call = method_remove_affix, .which = RIGHT, NEEDS("suffix")},
    {.name = "replace", .call = method_replace, .parameters = {"old", "new", "count"}, .required = 2},
    {.name = "rfind", .call = method_find, .which = RIGHT, WITHIN("sub")},
    {.name = "rpartition", .call = method_partition, .which = RIGHT, NEEDS("sep")},
    {.name = "rsplit", .call = method_split, .which = RIGHT, .parameters = {"sep", "maxsplit"}},
    {.name = "rstrip", .call = method_strip, .which = RIGHT, .parameters = {"chars"}},
    {.name = "split", .call = method_split, .which = LEFT, .parameters = {"sep", "maxsplit"}},
    {.name = "splitlines", .call = method_splitlines, .parameters = {"keepends"}},
    {.name = "startswith", .call = method_has_affix, .which = LEFT, WITHIN("prefix")},
    {.name = "strip", .call = method_strip, .which = LEFT | RIGHT, .parameters = {"chars"}},
    {.name = "title", .call = method_case, .which = JINJA_CASE_TITLE},
    {.name = "upper", .call = method_case, .which = JINJA_CASE_UPPER},
    {.name = NULL},
};
