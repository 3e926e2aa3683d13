/* Methods of texts. See jinja/eval.h. Called through the table at the end. */
#include <utf8proc.h>

#include "client/text/jinja/eval.h"

/* The `which` of most methods: the end that they begin at, or cut off. */
enum { LEFT = 1, RIGHT = 2, FIND_MUST = 4 /* as LEFT, and it is an error to find nothing */ };

static struct jinja_value method_case(const struct jinja_callable *c)
{
    return jinja_change_case(c->run, c->self, (enum jinja_case)c->which);
}

static struct jinja_value method_strip(const struct jinja_callable *c)
{
    const struct jinja_value *set = &c->a[0];
    if (set->type != JINJA_ABSENT && set->type != JINJA_NONE && set->type != JINJA_TEXT)
        jinja_fail(c->run, HELM_E_FORMAT, "'%s': the characters are a '%s'", c->name, jinja_type_name(set));
    return jinja_strip(c->run, c->self, set, c->which & LEFT, c->which & RIGHT);
}

/* The part of a text between the optional start and end arguments (a[1], a[2]). */
struct part {
    struct jinja_value text;
    int64_t skipped; /* characters before it */
    bool valid;      /* false: the start lies past the end */
};

static struct part part_of(const struct jinja_callable *c)
{
    const int64_t length = c->self.as.text.chars;
    int64_t start = jinja_parameter_whole(c, 1, 0), end = jinja_parameter_whole(c, 2, length);
    if (start < 0) start = start + length < 0 ? 0 : start + length;
    if (end < 0) end = end + length < 0 ? 0 : end + length;
    if (end > length) end = length;
    struct part part = {.skipped = start, .valid = start <= end};
    if (!part.valid) return part;
    size_t from = jinja_text_offset(&c->self, (size_t)start), to = jinja_text_offset(&c->self, (size_t)end);
    part.text = jinja_text(c->self.as.text.data + from, to - from);
    jinja_step(c->run, to / 64);
    return part;
}

static bool ends_fit(const struct jinja_value *text, const struct jinja_value *affix, bool at_end)
{
    size_t n = affix->as.text.bytes;
    if (n > text->as.text.bytes) return false;
    return memcmp(text->as.text.data + (at_end ? text->as.text.bytes - n : 0), affix->as.text.data, n) == 0;
}

static struct jinja_value method_has_affix(const struct jinja_callable *c)
{
    const struct part part = part_of(c);
    const struct jinja_value *affix = &c->a[0];
    size_t count = 1;
    bool found = false;
    if (affix->type == JINJA_LIST && affix->as.list->kind == JINJA_LIST_TUPLE) {
        count = affix->as.list->count;
        affix = affix->as.list->item;
    }
    for (size_t i = 0; i < count; i++) {
        if (affix[i].type != JINJA_TEXT)
            jinja_fail(c->run, HELM_E_FORMAT, "'%s' expects a text or a tuple of texts, not a '%s'", c->name,
                       jinja_type_name(&affix[i]));
        jinja_step(c->run, 1 + affix[i].as.text.bytes / 64);
        found |= part.valid && ends_fit(&part.text, &affix[i], c->which == RIGHT);
    }
    return jinja_bool(found);
}

static struct jinja_value method_remove_affix(const struct jinja_callable *c)
{
    const bool at_end = c->which == RIGHT;
    const struct jinja_value affix = jinja_parameter_text(c, 0, NULL);
    const size_t n = ends_fit(&c->self, &affix, at_end) ? affix.as.text.bytes : 0;
    jinja_step(c->run, c->self.as.text.bytes / 64);
    return jinja_text(c->self.as.text.data + (at_end ? 0 : n), c->self.as.text.bytes - n);
}

/* The first place of a text in another one; `last`: the last one, which takes a comparison at every place. */
static const char *find(const char *data, size_t bytes, const struct jinja_value *what, bool last)
{
    const size_t width = what->as.text.bytes;
    if (!last) return width ? memmem(data, bytes, what->as.text.data, width) : data;
    for (size_t at = bytes + 1; at-- > 0;)
        if (width <= bytes - at && memcmp(data + at, what->as.text.data, width) == 0) return data + at;
    return NULL;
}

/* Charges the steps of looking for the last place. */
static void charge_last(const struct jinja_callable *c, const struct jinja_value *what)
{
    jinja_step(c->run, (uint64_t)c->self.as.text.bytes / 64 * (1 + what->as.text.bytes / 64));
}

static struct jinja_value method_find(const struct jinja_callable *c)
{
    const bool last = c->which == RIGHT;
    const struct jinja_value what = jinja_parameter_text(c, 0, NULL);
    const struct part part = part_of(c);
    if (last) charge_last(c, &what);
    const char *data = part.text.as.text.data,
               *found = part.valid ? find(data, part.text.as.text.bytes, &what, last) : NULL;
    if (!found && c->which == FIND_MUST)
        jinja_fail(c->run, HELM_E_FORMAT, "'%s': substring not found", c->name);
    return jinja_int(found ? part.skipped + (int64_t)jinja_utf8_count(data, (size_t)(found - data)) : -1);
}

static struct jinja_value method_count(const struct jinja_callable *c)
{
    const struct jinja_value what = jinja_parameter_text(c, 0, NULL);
    const struct part part = part_of(c);
    int64_t count = 0;
    if (!part.valid) return jinja_int(0);
    if (!what.as.text.bytes) return jinja_int((int64_t)part.text.as.text.chars + 1);
    const char *at = part.text.as.text.data, *end = at + part.text.as.text.bytes;
    while ((at = memmem(at, (size_t)(end - at), what.as.text.data, what.as.text.bytes))) {
        at += what.as.text.bytes;
        count++;
    }
    return jinja_int(count);
}

static struct jinja_value method_replace(const struct jinja_callable *c)
{
    const struct jinja_value old = jinja_parameter_text(c, 0, NULL), fresh = jinja_parameter_text(c, 1, NULL);
    return jinja_replace(c->run, c->self, old, fresh, jinja_parameter_whole(c, 2, -1));
}

static struct jinja_value method_join(const struct jinja_callable *c)
{
    return jinja_join(c->run, c->a[0], c->self, true);
}

static struct jinja_value method_splitlines(const struct jinja_callable *c)
{
    return jinja_list_value(jinja_split_lines(c->run, c->self, jinja_parameter_truth(c, 0, false)));
}

/* Words between white space; after `most` cuts the rest is one piece. */
static void split_space(struct jinja_run *run, struct jinja_value text, int64_t most, bool from_right,
                        struct jinja_list *list)
{
    const char *data = text.as.text.data;
    size_t start = 0, end = text.as.text.bytes, size;
    for (;; most -= most > 0) {
        if (from_right)
            end -= jinja_space_after(data, end);
        else
            start += jinja_space_before(data + start, end - start);
        if (start >= end) return;
        size_t from = start, to = end;
        if (most != 0 && from_right) {
            for (from = end; from > start; from = jinja_utf8_before(data, from))
                if (jinja_is_space(jinja_utf8_decode(data + jinja_utf8_before(data, from), &size))) break;
            end = from;
        } else if (most != 0) {
            to = start;
            while (to < end && !jinja_is_space(jinja_utf8_decode(data + to, &size))) to += size;
            start = to;
        }
        jinja_list_add(run, list, jinja_text(data + from, to - from));
        if (most == 0) return;
    }
}

static void split_by(struct jinja_run *run, struct jinja_value text, const struct jinja_value *by,
                     int64_t most, bool from_right, struct jinja_list *list)
{
    const char *data = text.as.text.data;
    size_t start = 0, end = text.as.text.bytes, width = by->as.text.bytes;
    for (; most != 0; most -= most > 0) {
        const char *found = find(data + start, end - start, by, from_right);
        if (!found) break;
        size_t at = (size_t)(found - data);
        if (from_right) {
            jinja_list_add(run, list, jinja_text(data + at + width, end - at - width));
            end = at;
        } else {
            jinja_list_add(run, list, jinja_text(data + start, at - start));
            start = at + width;
        }
    }
    jinja_list_add(run, list, jinja_text(data + start, end - start));
}

static struct jinja_value method_split(const struct jinja_callable *c)
{
    const bool from_right = c->which == RIGHT;
    const struct jinja_value *by = &c->a[0];
    const bool space = by->type == JINJA_ABSENT || by->type == JINJA_NONE;
    const int64_t most = jinja_parameter_whole(c, 1, -1);
    jinja_step(c->run, c->self.as.text.bytes / 64);
    struct jinja_list *list = jinja_list_new(c->run, JINJA_LIST_PLAIN, 0);
    if (!space && by->type != JINJA_TEXT)
        jinja_fail(c->run, HELM_E_FORMAT, "'%s': the separator is a '%s'", c->name, jinja_type_name(by));
    if (!space && !by->as.text.bytes) jinja_fail(c->run, HELM_E_FORMAT, "'%s': empty separator", c->name);
    if (!space && from_right) charge_last(c, by);
    if (space)
        split_space(c->run, c->self, most, from_right, list);
    else
        split_by(c->run, c->self, by, most, from_right, list);
    for (size_t i = 0; from_right && i < list->count / 2; i++) {
        struct jinja_value swap = list->item[i];
        list->item[i] = list->item[list->count - 1 - i];
        list->item[list->count - 1 - i] = swap;
    }
    return jinja_list_value(list);
}

static struct jinja_value method_partition(const struct jinja_callable *c)
{
    const bool last = c->which == RIGHT;
    const struct jinja_value by = jinja_parameter_text(c, 0, NULL);
    if (!by.as.text.bytes) jinja_fail(c->run, HELM_E_FORMAT, "'%s': empty separator", c->name);
    charge_last(c, &by);
    struct jinja_list *list = jinja_list_new(c->run, JINJA_LIST_TUPLE, 3);
    const char *data = c->self.as.text.data;
    const size_t bytes = c->self.as.text.bytes;
    const char *found = find(data, bytes, &by, last);
    const size_t at = found  ? (size_t)(found - data)
                      : last ? 0
                             : bytes,
                 after = found ? at + by.as.text.bytes : at;
    jinja_list_add(c->run, list, jinja_text(data, at));
    jinja_list_add(c->run, list, found ? by : jinja_text("", 0));
    jinja_list_add(c->run, list, jinja_text(data + after, bytes - after));
    return jinja_list_value(list);
}

enum character_class { CLASS_DIGIT, CLASS_LETTER, CLASS_ALNUM, CLASS_SPACE };

/* Are all characters of that class, and is there one? */
static struct jinja_value method_all_are(const struct jinja_callable *c)
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
    jinja_step(c->run, c->self.as.text.bytes / 64);
    return jinja_bool(all);
}

static struct jinja_value method_is_case(const struct jinja_callable *c)
{
    const char *test = c->which == JINJA_CASE_UPPER ? "upper" : "lower";
    const struct jinja_value name = jinja_text(test, strlen(test));
    return jinja_bool(jinja_apply_test(c->run, &name, c->self, NULL));
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
