/* Making, asking and comparing values. See jinja/value.h. Called by everything that renders. */
#include "client/text/jinja/value.h"
#include "common/base/decimal.h"
#include "common/base/json_numbers.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/text/jinja/jinja.h"

struct jinja_value jinja_text(const char *data, size_t bytes)
{
    return (struct jinja_value){.type = JINJA_TEXT,
                                .as.text = {data, (uint32_t)bytes, (uint32_t)jinja_utf8_count(data, bytes)}};
}

int jinja_undefined(struct jinja_run *run, struct jinja_value *out, const char *fmt, ...)
{
    char words[256];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof words) length = sizeof words - 1;
    char *copy = jinja_alloc(run, (size_t)length + 1);
    if (!copy) return run->code;
    memcpy(copy, words, (size_t)length);
    *out = jinja_text(copy, (size_t)length);
    out->type = JINJA_UNDEFINED;
    return 0;
}

int jinja_list_new(struct jinja_run *run, enum jinja_list_kind kind, size_t space, struct jinja_list **out)
{
    struct jinja_list *list = jinja_alloc(run, sizeof *list);
    if (!list) return run->code;
    list->kind = kind;
    if (space) {
        list->item = jinja_alloc(run, space * sizeof *list->item);
        if (!list->item) return run->code;
    }
    list->space = space;
    *out = list;
    return 0;
}

int jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value item)
{
    int rc = jinja_grow(run, &list->item, sizeof item, list->count, &list->space);
    if (rc) return rc;
    list->item[list->count++] = item;
    return jinja_step(run, 1);
}

int jinja_dict_new(struct jinja_run *run, size_t space, struct jinja_dict **out)
{
    struct jinja_dict *dict = jinja_alloc(run, sizeof *dict);
    if (!dict) return run->code;
    if (space) {
        dict->key = jinja_alloc(run, space * sizeof *dict->key);
        dict->value = jinja_alloc(run, space * sizeof *dict->value);
        if (!dict->key || !dict->value) return run->code;
    }
    dict->space = space;
    *out = dict;
    return 0;
}

int jinja_dict_append(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                      struct jinja_value value)
{
    size_t space = dict->space;
    int rc = jinja_grow(run, &dict->key, sizeof key, dict->count, &space);
    if (!rc) rc = jinja_grow(run, &dict->value, sizeof value, dict->count, &dict->space);
    if (rc) return rc;
    dict->key[dict->count] = key;
    dict->value[dict->count++] = value;
    return 0;
}

static int dict_add(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value)
{
    int rc = jinja_dict_append(run, dict, key, value);
    return rc ? rc : jinja_step(run, 1);
}

/* Each item looked at is a step: tuples that share tuples are small in memory and endless to walk. */
static int check_key(struct jinja_run *run, const struct jinja_value *key, int depth)
{
    bool tuple = key->type == JINJA_LIST && key->as.list->kind == JINJA_LIST_TUPLE;
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    if (key->type == JINJA_DICT ||
        (key->type == JINJA_LIST && !tuple && key->as.list->kind != JINJA_LIST_GENERATOR))
        return jinja_fail(run, HELM_E_FORMAT, "a %s cannot be a key", jinja_type_name(key));
    if (tuple && depth >= JINJA_NESTING_MAX)
        return jinja_fail(run, HELM_E_LIMIT, "a key nested deeper than %d", JINJA_NESTING_MAX);
    for (size_t i = 0; tuple && !rc && i < key->as.list->count; i++)
        rc = check_key(run, &key->as.list->item[i], depth + 1);
    return rc;
}

int jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key,
                    const struct jinja_value **out)
{
    *out = NULL;
    int rc = check_key(run, &key, 0);
    if (!rc) rc = jinja_step(run, dict->count / 16);
    for (size_t i = 0; !rc && i < dict->count; i++) {
        bool same = false;
        if ((key.type == JINJA_TEXT) != (dict->key[i].type == JINJA_TEXT)) continue;
        if (key.type == JINJA_TEXT && key.as.text.bytes != dict->key[i].as.text.bytes) continue;
        if (key.type == JINJA_TEXT && key.as.text.bytes < 64)
            same = memcmp(key.as.text.data, dict->key[i].as.text.data, key.as.text.bytes) == 0;
        else
            rc = jinja_equal(run, &key, &dict->key[i], &same);
        if (!rc && same) {
            *out = &dict->value[i];
            break;
        }
    }
    return rc;
}

int jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                   struct jinja_value value)
{
    const struct jinja_value *old;
    int rc = jinja_dict_find(run, dict, key, &old);
    if (rc || !old) return rc ? rc : dict_add(run, dict, key, value);
    dict->value[old - dict->value] = value;
    return 0;
}

int jinja_own_text(struct jinja_run *run, const char *data, size_t bytes, struct jinja_value *out)
{
    char *copy = jinja_alloc(run, bytes + 1);
    if (!copy) return run->code;
    memcpy(copy, data, bytes);
    jinja_mark_own(run, copy, bytes);
    *out = jinja_text(copy, bytes);
    return 0;
}

/* A word alone spells no token of its own. */
static bool is_own(const struct jinja_run *run, const char *key, const struct jinja_value *value)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    if (!run->marks || !run->own_key || value->type != JINJA_TEXT || strcmp(key, run->own_key) != 0)
        return false;
    for (size_t i = 0; i < value->as.text.bytes; i++)
        if (!memchr(word, value->as.text.data[i], sizeof word - 1)) return false;
    return true;
}

int jinja_from_json(struct jinja_run *run, const json_t *json, struct jinja_value *out)
{
    int rc = 0;
    *out = jinja_none();
    switch (json_typeof(json)) {
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(json));
        break;
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = jinja_float(json_real_value(json));
        out->as.written = json_number_text(run->numbers, json);
        if (out->as.written && !out->as.written[strspn(out->as.written, "-0123456789")])
            out->type = JINJA_WIDE;
        break;
    case JSON_STRING:
        if (json_string_length(json) > run->arena.bytes_max || json_string_length(json) > UINT32_MAX)
            return jinja_fail(run, HELM_E_LIMIT, "a text of %zu bytes", json_string_length(json));
        *out = jinja_text(json_string_value(json), json_string_length(json));
        break;
    case JSON_ARRAY: {
        struct jinja_list *list;
        struct jinja_value item;
        rc = jinja_list_new(run, JINJA_LIST_PLAIN, json_array_size(json), &list);
        for (size_t i = 0; !rc && i < json_array_size(json); i++) {
            rc = jinja_from_json(run, json_array_get(json, i), &item);
            if (!rc) rc = jinja_list_add(run, list, item);
        }
        if (!rc) *out = jinja_list_value(list);
        break;
    }
    case JSON_OBJECT: {
        struct jinja_dict *dict;
        struct jinja_value value;
        rc = jinja_dict_new(run, json_object_size(json), &dict);
        json_t *object = (json_t *)json; /* iterating does not change it */
        for (void *at = json_object_iter(object); !rc && at; at = json_object_iter_next(object, at)) {
            const char *key = json_object_iter_key(at);
            rc = jinja_from_json(run, json_object_iter_value(at), &value);
            if (!rc && is_own(run, key, &value))
                rc = jinja_own_text(run, value.as.text.data, value.as.text.bytes, &value);
            if (!rc) rc = dict_add(run, dict, jinja_text(key, strlen(key)), value);
        }
        if (!rc) *out = jinja_dict_value(dict);
        break;
    }
    default:
        break;
    }
    return rc;
}

/* ---- asking */

bool jinja_text_is(const struct jinja_value *value, const char *text)
{
    return value->type == JINJA_TEXT && value->as.text.bytes == strlen(text) &&
           memcmp(value->as.text.data, text, value->as.text.bytes) == 0;
}

const char *jinja_type_name(const struct jinja_value *value)
{
    static const char *const lists[] = {"list",        "tuple",      "range",    "dict_keys",
                                        "dict_values", "dict_items", "generator"};
    static const char *const names[] = {[JINJA_UNDEFINED] = "Undefined",
                                        [JINJA_NONE] = "NoneType",
                                        [JINJA_BOOL] = "bool",
                                        [JINJA_INT] = "int",
                                        [JINJA_FLOAT] = "float",
                                        [JINJA_WIDE] = "int",
                                        [JINJA_TEXT] = "str",
                                        [JINJA_DICT] = "dict",
                                        [JINJA_NAMESPACE] = "namespace",
                                        [JINJA_LOOP] = "loop",
                                        [JINJA_MACRO] = "macro",
                                        [JINJA_METHOD] = "method",
                                        [JINJA_FUNCTION] = "function",
                                        [JINJA_ABSENT] = "function"};
    return value->type == JINJA_LIST ? lists[value->as.list->kind] : names[value->type];
}

bool jinja_truth(const struct jinja_value *value)
{
    switch (value->type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
    case JINJA_ABSENT:
        return false;
    case JINJA_BOOL:
        return value->as.boolean;
    case JINJA_INT:
        return value->as.integer != 0;
    case JINJA_FLOAT:
        return value->as.number != 0;
    case JINJA_TEXT:
        return value->as.text.bytes != 0;
    case JINJA_LIST:
        return value->as.list->kind == JINJA_LIST_GENERATOR || value->as.list->count != 0;
    case JINJA_DICT:
        return value->as.dict->count != 0;
    default:
        return true;
    }
}

int64_t jinja_whole(const struct jinja_value *v)
{
    return v->type == JINJA_BOOL ? v->as.boolean : v->as.integer;
}

double jinja_number(const struct jinja_value *v)
{
    return v->type == JINJA_FLOAT || v->type == JINJA_WIDE ? v->as.number : (double)jinja_whole(v);
}

int jinja_fail_wide(struct jinja_run *run)
{
    return jinja_fail(run, HELM_E_LIMIT, "a whole number of more than 64 bits");
}

static void whole_text(const struct jinja_value *v, char text[320])
{
    if (v->type == JINJA_FLOAT)
        snprintf(text, 320, "%.0f", v->as.number);
    else
        snprintf(text, 320, "%lld", (long long)jinja_whole(v));
}

/* One of which is WIDE, none infinite. */
static int order_wide(const struct jinja_value *a, const struct jinja_value *b)
{
    struct decimal x, y;
    char of_a[320], of_b[320];
    if (a->type != JINJA_WIDE) whole_text(a, of_a);
    if (b->type != JINJA_WIDE) whole_text(b, of_b);
    decimal_read(a->type == JINJA_WIDE ? a->as.written : of_a, &x);
    decimal_read(b->type == JINJA_WIDE ? b->as.written : of_b, &y);
    return decimal_compare(&x, &y);
}

/* As Python does, without rounding a whole number. 2: one is NaN. */
static int order_numbers(const struct jinja_value *a, const struct jinja_value *b)
{
    const double x = jinja_number(a), y = jinja_number(b);
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return (jinja_whole(a) > jinja_whole(b)) - (jinja_whole(a) < jinja_whole(b));
    if (isnan(x) || isnan(y)) return 2;
    if ((a->type == JINJA_FLOAT && b->type == JINJA_FLOAT) || isinf(x) || isinf(y)) return (x > y) - (x < y);
    if (a->type == JINJA_WIDE || b->type == JINJA_WIDE) return order_wide(a, b);
    const bool swapped = a->type == JINJA_FLOAT; /* one is whole, the other a float */
    const double number = swapped ? x : y;
    const int64_t whole = jinja_whole(swapped ? b : a);
    int order = number < 0 ? 1 : -1; /* of the whole one */
    if (fabs(number) < 0x1p63) {
        const int64_t cut = (int64_t)number;
        order =
            whole != cut ? (whole > cut) - (whole < cut) : ((double)cut > number) - ((double)cut < number);
    }
    return swapped ? -order : order;
}

static int lists_equal(struct jinja_run *run, const struct jinja_list *a, const struct jinja_list *b,
                       bool *out)
{
    *out = a == b;
    if (*out || a->kind != b->kind || a->count != b->count || a->kind == JINJA_LIST_GENERATOR ||
        a->kind == JINJA_LIST_VALUES)
        return 0;
    bool same = true;
    int rc = 0;
    for (size_t i = 0; !rc && same && i < a->count; i++)
        rc = jinja_equal(run, &a->item[i], &b->item[i], &same);
    *out = same;
    return rc;
}

static int dicts_equal(struct jinja_run *run, const struct jinja_dict *a, const struct jinja_dict *b,
                       bool *out)
{
    bool same = a->count == b->count;
    int rc = 0;
    for (size_t i = 0; !rc && same && a != b && i < a->count; i++) {
        const struct jinja_value *other;
        rc = jinja_dict_find(run, b, a->key[i], &other);
        same = other != NULL;
        if (!rc && same) rc = jinja_equal(run, &a->value[i], other, &same);
    }
    *out = same;
    return rc;
}

static int enter_value(struct jinja_run *run)
{
    /* comparing and printing values that hold values: the same guard as for expressions */
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        return jinja_fail(run, HELM_E_LIMIT, "values or expressions are nested deeper than %d",
                          JINJA_EVAL_DEPTH_MAX);
    return 0;
}

int jinja_equal(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b, bool *out)
{
    *out = false;
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = order_numbers(a, b) == 0;
        return 0;
    }
    if (a->type != b->type) return 0;
    switch (a->type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *out = true;
        return 0;
    case JINJA_TEXT:
        *out = a->as.text.bytes == b->as.text.bytes &&
               memcmp(a->as.text.data, b->as.text.data, a->as.text.bytes) == 0;
        return jinja_step(run, a->as.text.bytes == b->as.text.bytes ? a->as.text.bytes / 64 : 0);
    case JINJA_LIST:
    case JINJA_DICT:
        rc = enter_value(run);
        if (!rc)
            rc = a->type == JINJA_LIST ? lists_equal(run, a->as.list, b->as.list, out)
                                       : dicts_equal(run, a->as.dict, b->as.dict, out);
        run->depth--;
        return rc;
    case JINJA_METHOD:
    case JINJA_ABSENT:
        return 0;
    default:
        *out = a->as.dict == b->as.dict; /* the same thing, not one that looks the same */
        return 0;
    }
}

int jinja_order(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b,
                const char *op, int *order)
{
    *order = 0;
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *order = order_numbers(a, b);
        return 0;
    }
    if (a->type == JINJA_TEXT && b->type == JINJA_TEXT) {
        size_t shorter = a->as.text.bytes < b->as.text.bytes ? a->as.text.bytes : b->as.text.bytes;
        int bytes = memcmp(a->as.text.data, b->as.text.data, shorter);
        *order = bytes ? (bytes > 0) - (bytes < 0)
                       : (a->as.text.bytes > b->as.text.bytes) - (a->as.text.bytes < b->as.text.bytes);
        return jinja_step(run, shorter / 64);
    }
    if (a->type == JINJA_UNDEFINED || b->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, a->type == JINJA_UNDEFINED ? a : b);
    if (!jinja_is_sequence_kind(a) || !jinja_is_sequence_kind(b) || a->as.list->kind != b->as.list->kind ||
        a->as.list->kind == JINJA_LIST_RANGE)
        return jinja_fail(run, HELM_E_FORMAT, "'%s' is not supported between '%s' and '%s'", op,
                          jinja_type_name(a), jinja_type_name(b));
    const struct jinja_list *x = a->as.list, *y = b->as.list;
    rc = enter_value(run);
    bool same = true;
    size_t i = 0;
    for (; !rc && i < x->count && i < y->count; i++) {
        rc = jinja_equal(run, &x->item[i], &y->item[i], &same);
        if (!same) break;
    }
    if (!rc && !same) rc = jinja_order(run, &x->item[i], &y->item[i], op, order);
    if (!rc && same) *order = (x->count > y->count) - (x->count < y->count);
    run->depth--;
    return rc;
}

int jinja_contains(struct jinja_run *run, const struct jinja_value *item, const struct jinja_value *container,
                   bool *out)
{
    *out = false;
    if (container->type == JINJA_TEXT) {
        if (item->type != JINJA_TEXT)
            return jinja_fail(run, HELM_E_FORMAT, "'in' a text requires a text, not '%s'",
                              jinja_type_name(item));
        *out = !item->as.text.bytes || memmem(container->as.text.data, container->as.text.bytes,
                                              item->as.text.data, item->as.text.bytes) != NULL;
        return jinja_step(run, 1 + container->as.text.bytes / 64);
    }
    if (container->type == JINJA_DICT) {
        const struct jinja_value *found;
        int rc = jinja_dict_find(run, container->as.dict, *item, &found);
        *out = found != NULL;
        return rc;
    }
    if (container->type != JINJA_LIST && container->type != JINJA_UNDEFINED)
        return jinja_fail(run, HELM_E_FORMAT, "'in': a '%s' contains nothing", jinja_type_name(container));
    struct jinja_iterator it;
    struct jinja_value next;
    int rc = jinja_iterate(run, *container, &it);
    while (!rc && !*out && (rc = jinja_next(run, &it, &next)) == 1) rc = jinja_equal(run, item, &next, out);
    return rc;
}

int jinja_length(struct jinja_run *run, const struct jinja_value *value, size_t *out)
{
    *out = 0;
    if (value->type == JINJA_TEXT)
        *out = value->as.text.chars;
    else if (value->type == JINJA_DICT)
        *out = value->as.dict->count;
    else if (value->type == JINJA_LIST && value->as.list->kind != JINJA_LIST_GENERATOR)
        *out = value->as.list->count;
    else if (value->type != JINJA_UNDEFINED)
        return jinja_fail(run, HELM_E_FORMAT, "a '%s' has no length", jinja_type_name(value));
    return 0;
}

/* ---- iterating */

int jinja_iterate(struct jinja_run *run, struct jinja_value source, struct jinja_iterator *iterator)
{
    *iterator = (struct jinja_iterator){.source = source};
    if (source.type == JINJA_LIST || source.type == JINJA_DICT || source.type == JINJA_TEXT ||
        source.type == JINJA_UNDEFINED)
        return 0;
    return jinja_fail(run, HELM_E_FORMAT, "a '%s' cannot be iterated over", jinja_type_name(&source));
}

int jinja_next(struct jinja_run *run, struct jinja_iterator *iterator, struct jinja_value *item)
{
    const struct jinja_value *source = &iterator->source;
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    if (source->type == JINJA_LIST) {
        struct jinja_list *list = source->as.list;
        size_t *at = list->kind == JINJA_LIST_GENERATOR ? &list->position : &iterator->at;
        if (*at >= list->count) return 0;
        *item = list->item[(*at)++];
        return 1;
    }
    if (source->type == JINJA_DICT) {
        if (iterator->at >= source->as.dict->count) return 0;
        *item = source->as.dict->key[iterator->at++];
        return 1;
    }
    if (source->type != JINJA_TEXT || iterator->at >= source->as.text.bytes) return 0;
    const char *c = source->as.text.data + iterator->at;
    size_t size = jinja_utf8_size((unsigned char)*c);
    *item = jinja_text(c, size);
    iterator->at += size;
    return 1;
}

int jinja_collect(struct jinja_run *run, struct jinja_value source, enum jinja_list_kind kind,
                  struct jinja_list **out)
{
    struct jinja_iterator it;
    struct jinja_value item;
    int rc = jinja_iterate(run, source, &it);
    if (!rc) rc = jinja_list_new(run, kind, 0, out);
    while (!rc && (rc = jinja_next(run, &it, &item)) == 1) rc = jinja_list_add(run, *out, item);
    return rc;
}
