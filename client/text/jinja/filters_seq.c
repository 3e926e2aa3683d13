/* Filters on sequences and dicts. See jinja/eval.h. Called through the table at the end. */
#include "client/text/jinja/eval.h"

/* ---- what several filters do */

/* "a.b.0" looked up in an item: an attribute, or an index. `fallback` for what is not there. */
static int find_attribute(struct jinja_run *run, const struct jinja_value *item,
                          const struct jinja_value *path, const struct jinja_value *fallback,
                          struct jinja_value *out)
{
    *out = *item;
    if (path->type == JINJA_ABSENT || path->type == JINJA_NONE) return 0;
    if (jinja_is_whole(path)) return jinja_getitem(run, item, path, out);
    if (path->type != JINJA_TEXT)
        return jinja_fail(run, HELM_E_FORMAT, "an attribute's name is a '%s'", jinja_type_name(path));
    const char *at = path->as.text.data, *end = at + path->as.text.bytes;
    for (;;) {
        const char *dot = at < end ? memchr(at, '.', (size_t)(end - at)) : NULL;
        size_t length = (size_t)((dot ? dot : end) - at);
        int rc = jinja_step(run, 1 + length / 64);
        if (rc) return rc;
        struct jinja_value part = jinja_text(at, length), object = *out;
        bool digits = length > 0 && length < 10;
        int64_t index = 0;
        for (size_t i = 0; i < length; i++) {
            digits &= at[i] >= '0' && at[i] <= '9';
            if (digits) index = index * 10 + (at[i] - '0');
        }
        if (digits) part = jinja_int(index);
        rc = jinja_getitem(run, &object, &part, out);
        if (rc) return rc;
        if (out->type == JINJA_UNDEFINED && fallback && fallback->type != JINJA_ABSENT) *out = *fallback;
        if (!dot) break;
        at = dot + 1;
    }
    return 0;
}

/* What an item is compared by: its attribute, texts without regard to case unless case_sensitive. */
static int sort_key(const struct jinja_callable *c, const struct jinja_value *item,
                    const struct jinja_value *path, bool case_sensitive, struct jinja_value *out)
{
    int rc = find_attribute(c->run, item, path, NULL, out);
    if (rc || case_sensitive || out->type != JINJA_TEXT) return rc;
    return jinja_change_case(c->run, *out, JINJA_CASE_LOWER, out);
}

/* Stable merge sort of `order` (indexes into key) by key. */
static int merge_sort(struct jinja_run *run, const struct jinja_value *key, size_t *order, size_t *spare,
                      size_t count, bool reverse)
{
    if (count < 2) return 0;
    size_t half = count / 2;
    int rc = merge_sort(run, key, order, spare, half, reverse);
    if (!rc) rc = merge_sort(run, key, order + half, spare, count - half, reverse);
    if (rc) return rc;
    memcpy(spare, order, half * sizeof *order);
    size_t i = 0, j = half, k = 0;
    while (i < half && j < count) {
        int sign;
        rc = jinja_order(run, &key[order[j]], &key[spare[i]], "<", &sign);
        if (rc) return rc;
        bool right = reverse ? sign > 0 && sign != 2 : sign < 0;
        order[k++] = right ? order[j++] : spare[i++];
    }
    memcpy(order + k, spare + i, (half - i) * sizeof *order);
    return 0;
}

static int sort_items(struct jinja_run *run, struct jinja_list *items, const struct jinja_value *keys,
                      bool reverse)
{
    size_t count = items->count;
    size_t *order = jinja_alloc(run, 2 * (count + 1) * sizeof *order);
    struct jinja_value *sorted = jinja_alloc(run, (count + 1) * sizeof *sorted);
    if (!order || !sorted) return run->code;
    for (size_t i = 0; i < count; i++) order[i] = i;
    int rc = merge_sort(run, keys, order, order + count + 1, count, reverse);
    for (size_t i = 0; !rc && i < count; i++) sorted[i] = items->item[order[i]];
    if (!rc && count) items->item = sorted;
    return rc;
}

int jinja_join(struct jinja_run *run, struct jinja_value items, struct jinja_value between, bool strict,
               struct jinja_value *out)
{
    struct jinja_iterator it;
    struct jinja_value item;
    struct jinja_buffer buffer = {0};
    bool first = true;
    int rc = jinja_iterate(run, items, &it);
    while (!rc && (rc = jinja_next(run, &it, &item)) == 1) {
        rc = first ? 0 : jinja_print(run, &buffer, &between);
        first = false;
        if (!rc && strict && item.type != JINJA_TEXT)
            rc = jinja_fail(run, HELM_E_FORMAT, "'join' expects texts, not a '%s'", jinja_type_name(&item));
        if (!rc) rc = jinja_print(run, &buffer, &item);
    }
    *out = jinja_buffer_text(&buffer);
    return rc;
}

int jinja_dict_items(struct jinja_run *run, const struct jinja_dict *dict, enum jinja_list_kind kind,
                     struct jinja_list **out)
{
    int rc = jinja_list_new(run, kind, dict->count, out);
    for (size_t i = 0; !rc && i < dict->count; i++) {
        struct jinja_list *pair;
        rc = jinja_list_new(run, JINJA_LIST_TUPLE, 2, &pair);
        if (!rc) rc = jinja_list_add(run, pair, dict->key[i]);
        if (!rc) rc = jinja_list_add(run, pair, dict->value[i]);
        if (!rc) rc = jinja_list_add(run, *out, jinja_list_value(pair));
    }
    return rc;
}

/* ---- filters */

static int filter_length(const struct jinja_callable *c, struct jinja_value *out)
{
    size_t length;
    int rc = jinja_length(c->run, &c->self, &length);
    *out = jinja_int((int64_t)length);
    return rc;
}

static int filter_join(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value between = jinja_text("", 0), items = c->self;
    int rc = c->a[0].type == JINJA_ABSENT ? 0 : jinja_to_text(c->run, c->a[0], &between);
    if (!rc && c->a[1].type != JINJA_ABSENT && c->a[1].type != JINJA_NONE) {
        struct jinja_list *list;
        rc = jinja_collect(c->run, items, JINJA_LIST_PLAIN, &list);
        for (size_t i = 0; !rc && i < list->count; i++) {
            struct jinja_value item = list->item[i];
            rc = find_attribute(c->run, &item, &c->a[1], NULL, &list->item[i]);
        }
        if (!rc) items = jinja_list_value(list);
    }
    return rc ? rc : jinja_join(c->run, items, between, false, out);
}

static int filter_first(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_iterator it;
    int rc = jinja_iterate(c->run, c->self, &it);
    if (!rc) rc = jinja_next(c->run, &it, out);
    if (rc) return rc < 0 ? rc : 0;
    return jinja_undefined(c->run, out, "No first item, sequence was empty.");
}

static int filter_last(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *list;
    if (c->self.type == JINJA_LIST && c->self.as.list->kind == JINJA_LIST_GENERATOR)
        return jinja_fail(c->run, HELM_E_FORMAT, "'last': a generator cannot be reversed");
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &list);
    if (rc) return rc;
    if (!list->count) return jinja_undefined(c->run, out, "No last item, sequence was empty.");
    *out = list->item[list->count - 1];
    return 0;
}

static int filter_list(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *list;
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &list);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int filter_reverse(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *list, *reversed;
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &list);
    if (!rc) rc = jinja_list_new(c->run, JINJA_LIST_GENERATOR, list->count, &reversed);
    for (size_t i = 0; !rc && i < list->count; i++)
        rc = jinja_list_add(c->run, reversed, list->item[list->count - 1 - i]);
    if (rc) return rc;
    *out = jinja_list_value(reversed);
    return c->self.type == JINJA_TEXT ? jinja_join(c->run, *out, jinja_text("", 0), false, out) : 0;
}

static int filter_items(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *list;
    int rc;
    if (c->self.type == JINJA_UNDEFINED)
        rc = jinja_list_new(c->run, JINJA_LIST_GENERATOR, 0, &list);
    else if (c->self.type == JINJA_DICT)
        rc = jinja_dict_items(c->run, c->self.as.dict, JINJA_LIST_GENERATOR, &list);
    else
        return jinja_fail(c->run, HELM_E_FORMAT, "'items': a '%s' is no mapping", jinja_type_name(&c->self));
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int filter_dictsort(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value by, part;
    struct jinja_list *items;
    bool case_sensitive = jinja_parameter_truth(c, 0, false);
    int rc = jinja_parameter_text(c, 1, "key", &by);
    if (rc) return rc;
    if (c->self.type != JINJA_DICT)
        return jinja_fail(c->run, HELM_E_FORMAT, "'dictsort': a '%s' is no dict", jinja_type_name(&c->self));
    if (!jinja_text_is(&by, "key") && !jinja_text_is(&by, "value"))
        return jinja_fail(c->run, HELM_E_FORMAT, "'dictsort': by is key or value");
    part = jinja_int(jinja_text_is(&by, "value"));
    rc = jinja_dict_items(c->run, c->self.as.dict, JINJA_LIST_PLAIN, &items);
    if (rc) return rc;
    struct jinja_value *keys = jinja_alloc(c->run, (items->count + 1) * sizeof *keys);
    if (!keys) return c->run->code;
    for (size_t i = 0; !rc && i < items->count; i++)
        rc = sort_key(c, &items->item[i], &part, case_sensitive, &keys[i]);
    if (!rc) rc = sort_items(c->run, items, keys, jinja_parameter_truth(c, 2, false));
    if (!rc) *out = jinja_list_value(items);
    return rc;
}

static int filter_sort(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *items;
    bool case_sensitive = jinja_parameter_truth(c, 1, false);
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &items);
    if (rc) return rc;
    if (c->a[2].type == JINJA_TEXT && memchr(c->a[2].as.text.data, ',', c->a[2].as.text.bytes))
        return jinja_fail(c->run, HELM_E_UNSUPPORTED, "'sort' by several attributes");
    struct jinja_value *keys = jinja_alloc(c->run, (items->count + 1) * sizeof *keys);
    if (!keys) return c->run->code;
    for (size_t i = 0; !rc && i < items->count; i++)
        rc = sort_key(c, &items->item[i], &c->a[2], case_sensitive, &keys[i]);
    if (!rc) rc = sort_items(c->run, items, keys, jinja_parameter_truth(c, 0, false));
    if (!rc) *out = jinja_list_value(items);
    return rc;
}

static int filter_unique(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *items, *unique;
    struct jinja_dict *seen;
    bool case_sensitive = jinja_parameter_truth(c, 0, false);
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &items);
    if (!rc) rc = jinja_list_new(c->run, JINJA_LIST_GENERATOR, 0, &unique);
    if (!rc) rc = jinja_dict_new(c->run, 0, &seen);
    for (size_t i = 0; !rc && i < items->count; i++) {
        const struct jinja_value *before;
        struct jinja_value key;
        rc = sort_key(c, &items->item[i], &c->a[1], case_sensitive, &key);
        if (!rc) rc = jinja_dict_find(c->run, seen, key, &before);
        if (rc || before) continue;
        rc = jinja_dict_set(c->run, seen, key, jinja_none());
        if (!rc) rc = jinja_list_add(c->run, unique, items->item[i]);
    }
    if (!rc) *out = jinja_list_value(unique);
    return rc;
}

static int filter_extreme(const struct jinja_callable *c, struct jinja_value *out)
{
    int wanted = c->which;
    struct jinja_list *items;
    struct jinja_value best_key;
    bool case_sensitive = jinja_parameter_truth(c, 0, false);
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &items);
    if (!rc && !items->count) return jinja_undefined(c->run, out, "No aggregated item, sequence was empty.");
    for (size_t i = 0; !rc && i < items->count; i++) {
        struct jinja_value key;
        int sign = wanted;
        rc = sort_key(c, &items->item[i], &c->a[1], case_sensitive, &key);
        if (!rc && i) rc = jinja_order(c->run, &key, &best_key, wanted < 0 ? "<" : ">", &sign);
        if (rc || sign != wanted) continue;
        best_key = key;
        *out = items->item[i];
    }
    return rc;
}

static int filter_sum(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *items;
    struct jinja_value total = c->a[1].type == JINJA_ABSENT ? jinja_int(0) : c->a[1];
    int rc = jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, &items);
    for (size_t i = 0; !rc && i < items->count; i++) {
        struct jinja_value item, before = total;
        rc = find_attribute(c->run, &items->item[i], &c->a[0], NULL, &item);
        if (!rc) rc = jinja_binary(c->run, '+', &before, &item, &total);
    }
    *out = total;
    return rc;
}

static int filter_attr(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value name;
    int rc = jinja_parameter_text(c, 0, NULL, &name);
    if (rc) return rc;
    if (c->self.type == JINJA_DICT) { /* unlike a.b, this sees no keys */
        rc = jinja_method_find(c->run, &c->self, &name, out);
        return rc <= 0 ? rc
                       : jinja_undefined(c->run, out, "'dict object' has no attribute '%.*s'",
                                         (int)(name.as.text.bytes < 100 ? name.as.text.bytes : 100),
                                         name.as.text.data);
    }
    return jinja_getattr(c->run, &c->self, &name, out);
}

/* ---- map, select, reject */

/* What is false (none, 0) has no items here, and is no error: so Jinja has it. */
static int collect_true(const struct jinja_callable *c, struct jinja_list **items)
{
    if (!jinja_truth(&c->self)) return jinja_list_new(c->run, JINJA_LIST_PLAIN, 0, items);
    return jinja_collect(c->run, c->self, JINJA_LIST_PLAIN, items);
}

/* map(attribute='a', default=x), or map('filter', arguments...) */
static int filter_map(const struct jinja_callable *c, struct jinja_value *out)
{
    const struct jinja_call *call = c->raw;
    struct jinja_value path = {.type = JINJA_ABSENT}, fallback = {.type = JINJA_ABSENT}, item, mapped;
    struct jinja_list *items, *result;
    for (size_t i = 0; i < call->keyword_count && !call->positional_count; i++) {
        bool attribute = jinja_text_is(&call->keyword_names[i], "attribute");
        if (!attribute && !jinja_text_is(&call->keyword_names[i], "default"))
            return jinja_fail(c->run, HELM_E_FORMAT, "'map' got the unknown argument '%.*s'",
                              (int)call->keyword_names[i].as.text.bytes, call->keyword_names[i].as.text.data);
        *(attribute ? &path : &fallback) = call->keyword_values[i];
    }
    if (path.type == JINJA_ABSENT && (!call->positional_count || call->positional[0].type != JINJA_TEXT))
        return jinja_fail(c->run, HELM_E_FORMAT, "'map' needs a filter's name or attribute=");
    struct jinja_call inner = *call;
    if (call->positional_count) {
        inner.positional++;
        inner.positional_count--;
    }
    int rc = collect_true(c, &items);
    if (!rc) rc = jinja_list_new(c->run, JINJA_LIST_GENERATOR, items->count, &result);
    for (size_t i = 0; !rc && i < items->count; i++) {
        item = items->item[i];
        rc = path.type != JINJA_ABSENT
                 ? find_attribute(c->run, &item, &path, &fallback, &mapped)
                 : jinja_apply_filter(c->run, c->scope, &call->positional[0], item, &inner, &mapped);
        if (!rc) rc = jinja_list_add(c->run, result, mapped);
    }
    if (!rc) *out = jinja_list_value(result);
    return rc;
}

/* select and reject, with PICK_BY_ATTRIBUTE selectattr and rejectattr: ([attribute,] [test, arguments...]) */
enum { PICK_KEEPS = 1, PICK_BY_ATTRIBUTE = 2 };
static int filter_pick(const struct jinja_callable *c, struct jinja_value *out)
{
    bool keep = c->which & PICK_KEEPS;
    struct jinja_call inner = *c->raw;
    struct jinja_value path = {.type = JINJA_ABSENT};
    const struct jinja_value *test = NULL;
    struct jinja_list *items, *result;
    if (c->which & PICK_BY_ATTRIBUTE) {
        if (!inner.positional_count)
            return jinja_fail(c->run, HELM_E_FORMAT, "'%s' needs an attribute", c->name);
        path = inner.positional[0];
        inner.positional++;
        inner.positional_count--;
    }
    if (inner.positional_count) {
        test = inner.positional;
        if (test->type != JINJA_TEXT)
            return jinja_fail(c->run, HELM_E_FORMAT, "'%s': a test is a name", c->name);
        inner.positional++;
        inner.positional_count--;
    }
    int rc = collect_true(c, &items);
    if (!rc) rc = jinja_list_new(c->run, JINJA_LIST_GENERATOR, 0, &result);
    for (size_t i = 0; !rc && i < items->count; i++) {
        struct jinja_value value;
        bool holds = false;
        rc = find_attribute(c->run, &items->item[i], &path, NULL, &value);
        if (!rc && test) rc = jinja_apply_test(c->run, c->scope, test, value, &inner, &holds);
        if (!test) holds = jinja_truth(&value);
        if (!rc && holds == keep) rc = jinja_list_add(c->run, result, items->item[i]);
    }
    if (!rc) *out = jinja_list_value(result);
    return rc;
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
