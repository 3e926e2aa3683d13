/* Filters on sequences and dicts. See jinja/eval.h. Called through the table at the end. */
#include "client/text/jinja/eval.h"

/* ---- what several filters do */

/* "a.b.0" looked up in an item: an attribute, or an index. `fallback` for what is not there. */
static struct jinja_value find_attribute(struct jinja_run *run, struct jinja_value object,
                                         const struct jinja_value *path, const struct jinja_value *fallback)
{
    if (path->type == JINJA_ABSENT || path->type == JINJA_NONE) return object;
    if (jinja_is_whole(path)) return jinja_getitem(run, &object, path);
    if (path->type != JINJA_TEXT)
        jinja_fail(run, HELM_E_FORMAT, "an attribute's name is a '%s'", jinja_type_name(path));
    const char *at = path->as.text.data, *end = at + path->as.text.bytes;
    for (;;) {
        const char *dot = at < end ? memchr(at, '.', (size_t)(end - at)) : NULL;
        size_t length = (size_t)((dot ? dot : end) - at);
        jinja_step(run, 1 + length / 64);
        struct jinja_value part = jinja_text(at, length);
        bool digits = length > 0 && length < 10;
        int64_t index = 0;
        for (size_t i = 0; i < length; i++) {
            digits &= at[i] >= '0' && at[i] <= '9';
            if (digits) index = index * 10 + (at[i] - '0');
        }
        if (digits) part = jinja_int(index);
        object = jinja_getitem(run, &object, &part);
        if (object.type == JINJA_UNDEFINED && fallback && fallback->type != JINJA_ABSENT) object = *fallback;
        if (!dot) return object;
        at = dot + 1;
    }
}

/* The key that an item is compared by: its attribute, texts without regard to case unless case_sensitive. */
static struct jinja_value sort_key(const struct jinja_callable *c, struct jinja_value item,
                                   const struct jinja_value *path, bool case_sensitive)
{
    const struct jinja_value key = find_attribute(c->run, item, path, NULL);
    return case_sensitive || key.type != JINJA_TEXT ? key : jinja_change_case(c->run, key, JINJA_CASE_LOWER);
}

/* Stable merge sort of `order` (indexes into key) by key. */
static void merge_sort(struct jinja_run *run, const struct jinja_value *key, size_t *order, size_t *spare,
                       size_t count, bool reverse)
{
    if (count < 2) return;
    size_t half = count / 2;
    merge_sort(run, key, order, spare, half, reverse);
    merge_sort(run, key, order + half, spare, count - half, reverse);
    memcpy(spare, order, half * sizeof *order);
    size_t i = 0, j = half, k = 0;
    while (i < half && j < count) {
        const int sign = jinja_order(run, &key[order[j]], &key[spare[i]], "<");
        bool right = reverse ? sign > 0 && sign != 2 : sign < 0;
        order[k++] = right ? order[j++] : spare[i++];
    }
    memcpy(order + k, spare + i, (half - i) * sizeof *order);
}

/* The items in the order of their keys. */
static struct jinja_value sort_items(const struct jinja_callable *c, struct jinja_list *items,
                                     const struct jinja_value *path, bool case_sensitive, bool reverse)
{
    size_t count = items->count;
    struct jinja_value *keys = jinja_alloc(c->run, (count + 1) * sizeof *keys);
    for (size_t i = 0; i < count; i++) keys[i] = sort_key(c, items->item[i], path, case_sensitive);
    size_t *order = jinja_alloc(c->run, 2 * (count + 1) * sizeof *order);
    struct jinja_value *sorted = jinja_alloc(c->run, (count + 1) * sizeof *sorted);
    for (size_t i = 0; i < count; i++) order[i] = i;
    merge_sort(c->run, keys, order, order + count + 1, count, reverse);
    for (size_t i = 0; i < count; i++) sorted[i] = items->item[order[i]];
    if (count) items->item = sorted;
    return jinja_list_value(items);
}

struct jinja_value jinja_join(struct jinja_run *run, struct jinja_value items, struct jinja_value between,
                              bool strict)
{
    struct jinja_iterator it = jinja_iterate(run, items);
    struct jinja_value item;
    struct jinja_buffer buffer = {0};
    for (bool first = true; jinja_next(run, &it, &item); first = false) {
        if (!first) jinja_print(run, &buffer, &between);
        if (strict && item.type != JINJA_TEXT)
            jinja_fail(run, HELM_E_FORMAT, "'join' expects texts, not a '%s'", jinja_type_name(&item));
        jinja_print(run, &buffer, &item);
    }
    return jinja_buffer_text(&buffer);
}

struct jinja_list *jinja_dict_items(struct jinja_run *run, const struct jinja_dict *dict,
                                    enum jinja_list_kind kind)
{
    struct jinja_list *items = jinja_list_new(run, kind, dict->count);
    for (size_t i = 0; i < dict->count; i++) {
        struct jinja_list *pair = jinja_list_new(run, JINJA_LIST_TUPLE, 2);
        jinja_list_add(run, pair, dict->key[i]);
        jinja_list_add(run, pair, dict->value[i]);
        jinja_list_add(run, items, jinja_list_value(pair));
    }
    return items;
}

/* ---- filters */

static struct jinja_value filter_length(const struct jinja_callable *c)
{
    return jinja_int((int64_t)jinja_length(c->run, &c->self));
}

static struct jinja_list *collect(const struct jinja_callable *c)
{
    return jinja_collect(c->run, c->self, JINJA_LIST_PLAIN);
}

static struct jinja_value filter_join(const struct jinja_callable *c)
{
    const bool divided = c->a[0].type != JINJA_ABSENT;
    const struct jinja_value between = divided ? jinja_to_text(c->run, c->a[0]) : jinja_text("", 0);
    struct jinja_value items = c->self;
    if (c->a[1].type != JINJA_ABSENT && c->a[1].type != JINJA_NONE) {
        struct jinja_list *list = collect(c);
        for (size_t i = 0; i < list->count; i++)
            list->item[i] = find_attribute(c->run, list->item[i], &c->a[1], NULL);
        items = jinja_list_value(list);
    }
    return jinja_join(c->run, items, between, false);
}

static struct jinja_value filter_first(const struct jinja_callable *c)
{
    struct jinja_iterator it = jinja_iterate(c->run, c->self);
    struct jinja_value first;
    if (jinja_next(c->run, &it, &first)) return first;
    return jinja_undefined(c->run, "No first item, sequence was empty.");
}

static struct jinja_value filter_last(const struct jinja_callable *c)
{
    if (c->self.type == JINJA_LIST && c->self.as.list->kind == JINJA_LIST_GENERATOR)
        jinja_fail(c->run, HELM_E_FORMAT, "'last': a generator cannot be reversed");
    const struct jinja_list *list = collect(c);
    if (!list->count) return jinja_undefined(c->run, "No last item, sequence was empty.");
    return list->item[list->count - 1];
}

static struct jinja_value filter_list(const struct jinja_callable *c)
{
    return jinja_list_value(collect(c));
}

static struct jinja_value filter_reverse(const struct jinja_callable *c)
{
    const struct jinja_list *list = collect(c);
    struct jinja_list *reversed = jinja_list_new(c->run, JINJA_LIST_GENERATOR, list->count);
    for (size_t i = list->count; i > 0; i--) jinja_list_add(c->run, reversed, list->item[i - 1]);
    const struct jinja_value value = jinja_list_value(reversed);
    return c->self.type == JINJA_TEXT ? jinja_join(c->run, value, jinja_text("", 0), false) : value;
}

static struct jinja_value filter_items(const struct jinja_callable *c)
{
    if (c->self.type == JINJA_DICT)
        return jinja_list_value(jinja_dict_items(c->run, c->self.as.dict, JINJA_LIST_GENERATOR));
    if (c->self.type != JINJA_UNDEFINED)
        jinja_fail(c->run, HELM_E_FORMAT, "'items': a '%s' is no mapping", jinja_type_name(&c->self));
    return jinja_list_value(jinja_list_new(c->run, JINJA_LIST_GENERATOR, 0));
}

static struct jinja_value filter_dictsort(const struct jinja_callable *c)
{
    const struct jinja_value by = jinja_parameter_text(c, 1, "key");
    if (c->self.type != JINJA_DICT)
        jinja_fail(c->run, HELM_E_FORMAT, "'dictsort': a '%s' is no dict", jinja_type_name(&c->self));
    if (!jinja_text_is(&by, "key") && !jinja_text_is(&by, "value"))
        jinja_fail(c->run, HELM_E_FORMAT, "'dictsort': by is key or value");
    const struct jinja_value part = jinja_int(jinja_text_is(&by, "value"));
    return sort_items(c, jinja_dict_items(c->run, c->self.as.dict, JINJA_LIST_PLAIN), &part,
                      jinja_parameter_truth(c, 0, false), jinja_parameter_truth(c, 2, false));
}

static struct jinja_value filter_sort(const struct jinja_callable *c)
{
    struct jinja_list *items = collect(c);
    if (c->a[2].type == JINJA_TEXT && memchr(c->a[2].as.text.data, ',', c->a[2].as.text.bytes))
        jinja_fail(c->run, HELM_E_UNSUPPORTED, "'sort' by several attributes");
    return sort_items(c, items, &c->a[2], jinja_parameter_truth(c, 1, false),
                      jinja_parameter_truth(c, 0, false));
}

static struct jinja_value filter_unique(const struct jinja_callable *c)
{
    const bool case_sensitive = jinja_parameter_truth(c, 0, false);
    const struct jinja_list *items = collect(c);
    struct jinja_list *unique = jinja_list_new(c->run, JINJA_LIST_GENERATOR, 0);
    struct jinja_dict *seen = jinja_dict_new(c->run, 0);
    for (size_t i = 0; i < items->count; i++) {
        const struct jinja_value key = sort_key(c, items->item[i], &c->a[1], case_sensitive);
        if (jinja_dict_find(c->run, seen, key)) continue;
        jinja_dict_set(c->run, seen, key, jinja_none());
        jinja_list_add(c->run, unique, items->item[i]);
    }
    return jinja_list_value(unique);
}

/* min and max: `which` is the sign of what is better. */
static struct jinja_value filter_extreme(const struct jinja_callable *c)
{
    const bool case_sensitive = jinja_parameter_truth(c, 0, false);
    const struct jinja_list *items = collect(c);
    struct jinja_value best, best_key;
    if (!items->count) return jinja_undefined(c->run, "No aggregated item, sequence was empty.");
    for (size_t i = 0; i < items->count; i++) {
        const struct jinja_value key = sort_key(c, items->item[i], &c->a[1], case_sensitive);
        if (i && jinja_order(c->run, &key, &best_key, c->which < 0 ? "<" : ">") != c->which) continue;
        best_key = key;
        best = items->item[i];
    }
    return best;
}

static struct jinja_value filter_sum(const struct jinja_callable *c)
{
    struct jinja_value total = c->a[1].type == JINJA_ABSENT ? jinja_int(0) : c->a[1];
    const struct jinja_list *items = collect(c);
    for (size_t i = 0; i < items->count; i++) {
        const struct jinja_value item = find_attribute(c->run, items->item[i], &c->a[0], NULL);
        total = jinja_binary(c->run, '+', &total, &item);
    }
    return total;
}

static struct jinja_value filter_attr(const struct jinja_callable *c)
{
    const struct jinja_value name = jinja_parameter_text(c, 0, NULL);
    struct jinja_value method;
    if (c->self.type != JINJA_DICT) return jinja_getattr(c->run, &c->self, &name);
    if (jinja_method_find(c->run, &c->self, &name, &method))
        return method; /* unlike a.b, this sees no keys */
    return jinja_undefined(c->run, "'dict object' has no attribute '%.*s'", JINJA_SHOWN(&name));
}

/* ---- map, select, reject */

/* A false value (none, 0) has no items here, and is no error: so Jinja has it. */
static struct jinja_list *collect_true(const struct jinja_callable *c)
{
    return jinja_truth(&c->self) ? collect(c) : jinja_list_new(c->run, JINJA_LIST_PLAIN, 0);
}

/* The first argument of a call, which loses it; NULL: there is none. */
static const struct jinja_value *take_argument(struct jinja_call *call)
{
    if (!call->positional_count) return NULL;
    call->positional_count--;
    return call->positional++;
}

/* map(attribute='a', default=x), or map('filter', arguments...) */
static struct jinja_value filter_map(const struct jinja_callable *c)
{
    struct jinja_call call = *c->raw;
    const struct jinja_value *filter = take_argument(&call);
    struct jinja_value path = {.type = JINJA_ABSENT}, fallback = {.type = JINJA_ABSENT};
    for (size_t i = 0; i < call.keyword_count && !filter; i++) {
        const struct jinja_value *name = &call.keyword_names[i];
        bool attribute = jinja_text_is(name, "attribute");
        if (!attribute && !jinja_text_is(name, "default"))
            jinja_fail(c->run, HELM_E_FORMAT, "'map' got the unknown argument '%.*s'",
                       (int)name->as.text.bytes, name->as.text.data);
        *(attribute ? &path : &fallback) = call.keyword_values[i];
    }
    if (path.type == JINJA_ABSENT && (!filter || filter->type != JINJA_TEXT))
        jinja_fail(c->run, HELM_E_FORMAT, "'map' needs a filter's name or attribute=");
    const struct jinja_list *items = collect_true(c);
    struct jinja_list *result = jinja_list_new(c->run, JINJA_LIST_GENERATOR, items->count);
    for (size_t i = 0; i < items->count; i++)
        jinja_list_add(c->run, result,
                       path.type != JINJA_ABSENT ? find_attribute(c->run, items->item[i], &path, &fallback)
                                                 : jinja_apply_filter(c->run, filter, items->item[i], &call));
    return jinja_list_value(result);
}

/* select and reject, with PICK_BY_ATTRIBUTE selectattr and rejectattr: ([attribute,] [test, arguments...]) */
enum { PICK_KEEPS = 1, PICK_BY_ATTRIBUTE = 2 };
static struct jinja_value filter_pick(const struct jinja_callable *c)
{
    const bool keep = c->which & PICK_KEEPS;
    struct jinja_call inner = *c->raw;
    const struct jinja_value whole = {.type = JINJA_ABSENT}, *path = &whole;
    if (c->which & PICK_BY_ATTRIBUTE) {
        path = take_argument(&inner);
        if (!path) jinja_fail(c->run, HELM_E_FORMAT, "'%s' needs an attribute", c->name);
    }
    const struct jinja_value *test = take_argument(&inner);
    if (test && test->type != JINJA_TEXT)
        jinja_fail(c->run, HELM_E_FORMAT, "'%s': a test is a name", c->name);
    const struct jinja_list *items = collect_true(c);
    struct jinja_list *result = jinja_list_new(c->run, JINJA_LIST_GENERATOR, 0);
    for (size_t i = 0; i < items->count; i++) {
        const struct jinja_value value = find_attribute(c->run, items->item[i], path, NULL);
        const bool holds = test ? jinja_apply_test(c->run, test, value, &inner) : jinja_truth(&value);
        if (holds == keep) jinja_list_add(c->run, result, items->item[i]);
    }
    return jinja_list_value(result);
}

const struct jinja_function jinja_sequence_filters[] = {
    {.name = "attr", .call = filter_attr, .parameters = {"name"}, .required = 1},
    {.name = "count", .call = filter_length},
    {.name = "dictsort", .call = filter_dictsort, .parameters = {"case_sensitive", "by", "reverse"}},
    {.name = "first", .call = filter_first},
    {.name = "items", .call = filter_items},
    {.name = "join", .call = filter_join, .parameters = {"d", "attribute"}},
    {.name = "last", .call = filter_last},
    {.name = "length", .call = filter_length},
    {.name = "list", .call = filter_list},
    {.name = "map", .call = filter_map, .raw = true},
    {.name = "max", .call = filter_extreme, .which = 1, .parameters = {"case_sensitive", "attribute"}},
    {.name = "min", .call = filter_extreme, .which = -1, .parameters = {"case_sensitive", "attribute"}},
    {.name = "reject", .call = filter_pick, .which = 0, .raw = true},
    {.name = "rejectattr", .call = filter_pick, .which = PICK_BY_ATTRIBUTE, .raw = true},
    {.name = "reverse", .call = filter_reverse},
    {.name = "select", .call = filter_pick, .which = PICK_KEEPS, .raw = true},
    {.name = "selectattr", .call = filter_pick, .which = PICK_KEEPS | PICK_BY_ATTRIBUTE, .raw = true},
    {.name = "sort", .call = filter_sort, .parameters = {"reverse", "case_sensitive", "attribute"}},
    {.name = "sum", .call = filter_sum, .parameters = {"attribute", "start"}},
    {.name = "unique", .call = filter_unique, .parameters = {"case_sensitive", "attribute"}},
    {.name = NULL},
};
