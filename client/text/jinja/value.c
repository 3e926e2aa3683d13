/* Making, asking and comparing values. See jinja/value.h. Called by everything that renders. */
#include "client/text/jinja/value.h"
#include "common/base/decimal.h"
#include "common/base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/text/jinja/jinja.h"

struct jinja_value jinja_text(const char *data, size_t bytes)
{
    return (struct jinja_value){.type = JINJA_TEXT,
                                .as.text = {data, (uint32_t)bytes, (uint32_t)jinja_utf8_count(data, bytes)}};
}

struct jinja_value jinja_undefined(struct jinja_run *run, const char *fmt, ...)
{
    char words[256];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof words) length = sizeof words - 1;
    char *copy = jinja_alloc(run, (size_t)length + 1);
    memcpy(copy, words, (size_t)length);
    struct jinja_value value = jinja_text(copy, (size_t)length);
    value.type = JINJA_UNDEFINED;
    return value;
}

struct jinja_list *jinja_list_new(struct jinja_run *run, enum jinja_list_kind kind, size_t space)
{
    struct jinja_list *list = jinja_alloc(run, sizeof *list);
    list->kind = kind;
    if (space) list->item = jinja_alloc(run, space * sizeof *list->item);
    list->space = space;
    return list;
}

void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value item)
{
    jinja_grow(run, &list->item, sizeof item, list->count, &list->space);
    list->item[list->count++] = item;
    jinja_step(run, 1);
}

struct jinja_dict *jinja_dict_new(struct jinja_run *run, size_t space)
{
    struct jinja_dict *dict = jinja_alloc(run, sizeof *dict);
    if (space) {
        dict->key = jinja_alloc(run, space * sizeof *dict->key);
        dict->value = jinja_alloc(run, space * sizeof *dict->value);
    }
    dict->space = space;
    return dict;
}

void jinja_dict_append(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                       struct jinja_value value)
{
    size_t space = dict->space;
    jinja_grow(run, &dict->key, sizeof key, dict->count, &space);
    jinja_grow(run, &dict->value, sizeof value, dict->count, &dict->space);
    dict->key[dict->count] = key;
    dict->value[dict->count++] = value;
}

static void dict_add(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                     struct jinja_value value)
{
    jinja_dict_append(run, dict, key, value);
    jinja_step(run, 1);
}

/* Each item looked at is a step: tuples that share tuples are small in memory and endless to walk. */
static void check_key(struct jinja_run *run, const struct jinja_value *key, int depth)
{
    bool tuple = key->type == JINJA_LIST && key->as.list->kind == JINJA_LIST_TUPLE;
    jinja_step(run, 1);
    if (key->type == JINJA_DICT ||
        (key->type == JINJA_LIST && !tuple && key->as.list->kind != JINJA_LIST_GENERATOR))
        jinja_fail(run, HELM_E_FORMAT, "a %s cannot be a key", jinja_type_name(key));
    if (tuple && depth >= JINJA_NESTING_MAX)
        jinja_fail(run, HELM_E_LIMIT, "a key nested deeper than %d", JINJA_NESTING_MAX);
    for (size_t i = 0; tuple && i < key->as.list->count; i++)
        check_key(run, &key->as.list->item[i], depth + 1);
}

const struct jinja_value *jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict,
                                          struct jinja_value key)
{
    check_key(run, &key, 0);
    jinja_step(run, dict->count / 16);
    for (size_t i = 0; i < dict->count; i++) {
        const bool text = key.type == JINJA_TEXT;
        if (text != (dict->key[i].type == JINJA_TEXT)) continue;
        if (text && key.as.text.bytes != dict->key[i].as.text.bytes) continue;
        if (text && key.as.text.bytes < 64 ? jinja_same_text(&key, &dict->key[i])
                                           : jinja_equal(run, &key, &dict->key[i]))
            return &dict->value[i];
    }
    return NULL;
}

void jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value)
{
    const struct jinja_value *old = jinja_dict_find(run, dict, key);
    if (old)
        dict->value[old - dict->value] = value;
    else
        dict_add(run, dict, key, value);
}

struct jinja_value jinja_own_text(struct jinja_run *run, const char *data, size_t bytes)
{
    char *copy = jinja_alloc(run, bytes + 1);
    memcpy(copy, data, bytes);
    jinja_mark_own(run, copy, bytes);
    return jinja_text(copy, bytes);
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

static struct jinja_value list_from_json(struct jinja_run *run, const json_t *json)
{
    struct jinja_list *list = jinja_list_new(run, JINJA_LIST_PLAIN, json_array_size(json));
    for (size_t i = 0; i < json_array_size(json); i++)
        jinja_list_add(run, list, jinja_from_json(run, json_array_get(json, i)));
    return jinja_list_value(list);
}

static struct jinja_value dict_from_json(struct jinja_run *run, const json_t *json)
{
    struct jinja_dict *dict = jinja_dict_new(run, json_object_size(json));
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)json, key, member) /* iterating does not change it */
    {
        struct jinja_value value = jinja_from_json(run, member);
        if (is_own(run, key, &value)) value = jinja_own_text(run, value.as.text.data, value.as.text.bytes);
        dict_add(run, dict, jinja_text(key, strlen(key)), value);
    }
    return jinja_dict_value(dict);
}

struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json)
{
    struct jinja_value value;
    switch (json_typeof(json)) {
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(json));
    case JSON_INTEGER:
        return jinja_int(json_integer_value(json));
    case JSON_REAL:
        value = jinja_float(json_real_value(json));
        value.as.written = json_number_text(run->numbers, json);
        if (value.as.written && !value.as.written[strspn(value.as.written, "-0123456789")])
            value.type = JINJA_WIDE;
        return value;
    case JSON_STRING:
        if (json_string_length(json) > run->arena.bytes_max || json_string_length(json) > UINT32_MAX)
            jinja_fail(run, HELM_E_LIMIT, "a text of %zu bytes", json_string_length(json));
        return jinja_text(json_string_value(json), json_string_length(json));
    case JSON_ARRAY:
        return list_from_json(run, json);
    case JSON_OBJECT:
        return dict_from_json(run, json);
    default:
        return jinja_none();
    }
}

/* ---- asking */

bool jinja_same_text(const struct jinja_value *a, const struct jinja_value *b)
{
    return a->as.text.bytes == b->as.text.bytes &&
           memcmp(a->as.text.data, b->as.text.data, a->as.text.bytes) == 0;
}

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

void jinja_fail_wide(struct jinja_run *run)
{
    jinja_fail(run, HELM_E_LIMIT, "a whole number of more than 64 bits");
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

static bool lists_equal(struct jinja_run *run, const struct jinja_list *a, const struct jinja_list *b)
{
    if (a == b) return true;
    if (a->kind != b->kind || a->count != b->count || a->kind == JINJA_LIST_GENERATOR ||
        a->kind == JINJA_LIST_VALUES)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!jinja_equal(run, &a->item[i], &b->item[i])) return false;
    return true;
}

static bool dicts_equal(struct jinja_run *run, const struct jinja_dict *a, const struct jinja_dict *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; a != b && i < a->count; i++) {
        const struct jinja_value *other = jinja_dict_find(run, b, a->key[i]);
        if (!other || !jinja_equal(run, &a->value[i], other)) return false;
    }
    return true;
}

static void enter_value(struct jinja_run *run)
{
    /* comparing and printing values that hold values: the same guard as for expressions */
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "values or expressions are nested deeper than %d",
                   JINJA_EVAL_DEPTH_MAX);
}

bool jinja_equal(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b)
{
    bool same;
    jinja_step(run, 1);
    if (jinja_is_number(a) && jinja_is_number(b)) return order_numbers(a, b) == 0;
    if (a->type != b->type) return false;
    switch (a->type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    case JINJA_TEXT:
        jinja_step(run, a->as.text.bytes == b->as.text.bytes ? a->as.text.bytes / 64 : 0);
        return jinja_same_text(a, b);
    case JINJA_LIST:
    case JINJA_DICT:
        enter_value(run);
        same = a->type == JINJA_LIST ? lists_equal(run, a->as.list, b->as.list)
                                     : dicts_equal(run, a->as.dict, b->as.dict);
        run->depth--;
        return same;
    case JINJA_METHOD:
    case JINJA_ABSENT:
        return false;
    default:
        return a->as.dict == b->as.dict; /* the same thing, not one that looks the same */
    }
}

/* The order of the first items that differ, or of the lengths. */
static int order_lists(struct jinja_run *run, const struct jinja_list *a, const struct jinja_list *b,
                       const char *op)
{
    for (size_t i = 0; i < a->count && i < b->count; i++)
        if (!jinja_equal(run, &a->item[i], &b->item[i]))
            return jinja_order(run, &a->item[i], &b->item[i], op);
    return (a->count > b->count) - (a->count < b->count);
}

int jinja_order(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b,
                const char *op)
{
    jinja_step(run, 1);
    if (jinja_is_number(a) && jinja_is_number(b)) return order_numbers(a, b);
    if (a->type == JINJA_TEXT && b->type == JINJA_TEXT) {
        size_t shorter = a->as.text.bytes < b->as.text.bytes ? a->as.text.bytes : b->as.text.bytes;
        int bytes = memcmp(a->as.text.data, b->as.text.data, shorter);
        jinja_step(run, shorter / 64);
        return bytes ? (bytes > 0) - (bytes < 0)
                     : (a->as.text.bytes > b->as.text.bytes) - (a->as.text.bytes < b->as.text.bytes);
    }
    if (a->type == JINJA_UNDEFINED || b->type == JINJA_UNDEFINED)
        jinja_fail_undefined(run, a->type == JINJA_UNDEFINED ? a : b);
    if (!jinja_is_sequence_kind(a) || !jinja_is_sequence_kind(b) || a->as.list->kind != b->as.list->kind ||
        a->as.list->kind == JINJA_LIST_RANGE)
        jinja_fail(run, HELM_E_FORMAT, "'%s' is not supported between '%s' and '%s'", op, jinja_type_name(a),
                   jinja_type_name(b));
    enter_value(run);
    const int order = order_lists(run, a->as.list, b->as.list, op);
    run->depth--;
    return order;
}

bool jinja_contains(struct jinja_run *run, const struct jinja_value *item,
                    const struct jinja_value *container)
{
    if (container->type == JINJA_TEXT) {
        if (item->type != JINJA_TEXT)
            jinja_fail(run, HELM_E_FORMAT, "'in' a text requires a text, not '%s'", jinja_type_name(item));
        jinja_step(run, 1 + container->as.text.bytes / 64);
        return !item->as.text.bytes || memmem(container->as.text.data, container->as.text.bytes,
                                              item->as.text.data, item->as.text.bytes) != NULL;
    }
    if (container->type == JINJA_DICT) return jinja_dict_find(run, container->as.dict, *item) != NULL;
    if (container->type != JINJA_LIST && container->type != JINJA_UNDEFINED)
        jinja_fail(run, HELM_E_FORMAT, "'in': a '%s' contains nothing", jinja_type_name(container));
    struct jinja_iterator it = jinja_iterate(run, *container);
    for (struct jinja_value next; jinja_next(run, &it, &next);)
        if (jinja_equal(run, item, &next)) return true;
    return false;
}

size_t jinja_length(struct jinja_run *run, const struct jinja_value *value)
{
    if (value->type == JINJA_TEXT) return value->as.text.chars;
    if (value->type == JINJA_DICT) return value->as.dict->count;
    if (value->type == JINJA_LIST && value->as.list->kind != JINJA_LIST_GENERATOR)
        return value->as.list->count;
    if (value->type == JINJA_UNDEFINED) return 0;
    jinja_fail(run, HELM_E_FORMAT, "a '%s' has no length", jinja_type_name(value));
}

/* ---- iterating */

struct jinja_iterator jinja_iterate(struct jinja_run *run, struct jinja_value source)
{
    if (source.type != JINJA_LIST && source.type != JINJA_DICT && source.type != JINJA_TEXT &&
        source.type != JINJA_UNDEFINED)
        jinja_fail(run, HELM_E_FORMAT, "a '%s' cannot be iterated over", jinja_type_name(&source));
    return (struct jinja_iterator){.source = source};
}

bool jinja_next(struct jinja_run *run, struct jinja_iterator *iterator, struct jinja_value *item)
{
    const struct jinja_value *source = &iterator->source;
    jinja_step(run, 1);
    if (source->type == JINJA_LIST) {
        struct jinja_list *list = source->as.list;
        size_t *at = list->kind == JINJA_LIST_GENERATOR ? &list->position : &iterator->at;
        if (*at >= list->count) return false;
        *item = list->item[(*at)++];
        return true;
    }
    if (source->type == JINJA_DICT) {
        if (iterator->at >= source->as.dict->count) return false;
        *item = source->as.dict->key[iterator->at++];
        return true;
    }
    if (source->type != JINJA_TEXT || iterator->at >= source->as.text.bytes) return false;
    const char *c = source->as.text.data + iterator->at;
    size_t size = jinja_utf8_size((unsigned char)*c);
    *item = jinja_text(c, size);
    iterator->at += size;
    return true;
}

struct jinja_list *jinja_collect(struct jinja_run *run, struct jinja_value source, enum jinja_list_kind kind)
{
    struct jinja_iterator it = jinja_iterate(run, source);
    struct jinja_list *list = jinja_list_new(run, kind, 0);
    for (struct jinja_value item; jinja_next(run, &it, &item);) jinja_list_add(run, list, item);
    return list;
}
