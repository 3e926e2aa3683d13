/* Values as text: Python's str and repr, and JSON as json.dumps writes it. See jinja/value.h. Called for
 * every {{ }}, by the filters string, join and tojson, and by ~. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/value.h"

static void add_text(struct jinja_run *run, struct jinja_buffer *buffer, const char *text)
{
    jinja_buffer_add(run, buffer, text, strlen(text));
}

void jinja_float_text(double number, char text[40])
{
    if (isnan(number) || isinf(number)) {
        strcpy(text, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
        return;
    }
    /* the fewest digits that read back as the same number */
    char digits[40];
    int precision = 0;
    do snprintf(digits, sizeof digits, "%.*e", precision, number);
    while (strtod(digits, NULL) != number && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= 16 || exponent < -4) {
        char *e = strchr(digits, 'e');
        snprintf(text, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    snprintf(text, 40, "%.*f", decimals > 1 ? decimals : 1, number);
}

/* ---- repr */

static bool is_printable(uint32_t code)
{
    if (code < 0x80) return code >= 0x20 && code != 0x7F;
    static const uint32_t hidden = 1u << UTF8PROC_CATEGORY_CC | 1u << UTF8PROC_CATEGORY_CF |
                                   1u << UTF8PROC_CATEGORY_CS | 1u << UTF8PROC_CATEGORY_CO |
                                   1u << UTF8PROC_CATEGORY_CN | 1u << UTF8PROC_CATEGORY_ZL |
                                   1u << UTF8PROC_CATEGORY_ZP | 1u << UTF8PROC_CATEGORY_ZS;
    return !(hidden >> utf8proc_category((utf8proc_int32_t)code) & 1);
}

static void repr_text(struct jinja_run *run, struct jinja_buffer *buffer, const char *data, size_t bytes)
{
    char quote = memchr(data, '\'', bytes) && !memchr(data, '"', bytes) ? '"' : '\'';
    jinja_buffer_add(run, buffer, &quote, 1);
    for (size_t i = 0, size; i < bytes; i += size) {
        uint32_t code = jinja_utf8_decode(data + i, &size);
        char escape[16];
        if (code == '\n' || code == '\r' || code == '\t')
            snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (code == '\\' || code == (uint32_t)(unsigned char)quote)
            snprintf(escape, sizeof escape, "\\%c", (char)code);
        else if (!is_printable(code))
            snprintf(escape, sizeof escape,
                     code < 0x100     ? "\\x%02x"
                     : code < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                     code);
        else {
            jinja_buffer_add(run, buffer, data + i, size);
            continue;
        }
        add_text(run, buffer, escape);
    }
    jinja_buffer_add(run, buffer, &quote, 1);
}

static void repr_items(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_list *list,
                       const char *open, const char *close)
{
    add_text(run, buffer, open);
    for (size_t i = 0; i < list->count; i++) {
        if (i) add_text(run, buffer, ", ");
        jinja_repr(run, buffer, &list->item[i]);
    }
    add_text(run, buffer, close);
}

static void repr_list(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_list *list)
{
    static const char *const brackets[][2] = {[JINJA_LIST_PLAIN] = {"[", "]"},
                                              [JINJA_LIST_TUPLE] = {"(", ")"},
                                              [JINJA_LIST_KEYS] = {"dict_keys([", "])"},
                                              [JINJA_LIST_VALUES] = {"dict_values([", "])"},
                                              [JINJA_LIST_ITEMS] = {"dict_items([", "])"}};
    char words[96];
    if (list->kind == JINJA_LIST_GENERATOR)
        jinja_fail(run, HELM_E_UNSUPPORTED, "printing a generator (put '|list' after it)");
    if (list->kind != JINJA_LIST_RANGE) {
        const bool single = list->kind == JINJA_LIST_TUPLE && list->count == 1;
        repr_items(run, buffer, list, brackets[list->kind][0], single ? ",)" : brackets[list->kind][1]);
        return;
    }
    snprintf(words, sizeof words, list->range[2] == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
             (long long)list->range[0], (long long)list->range[1], (long long)list->range[2]);
    add_text(run, buffer, words);
}

static void repr_dict(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_dict *dict)
{
    add_text(run, buffer, "{");
    for (size_t i = 0; i < dict->count; i++) {
        if (i) add_text(run, buffer, ", ");
        jinja_repr(run, buffer, &dict->key[i]);
        add_text(run, buffer, ": ");
        jinja_repr(run, buffer, &dict->value[i]);
    }
    add_text(run, buffer, "}");
}

/* Values that hold values, one level deeper. */
static void repr_inside(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "values are nested deeper than %d", JINJA_EVAL_DEPTH_MAX);
    if (value->type == JINJA_LIST) {
        repr_list(run, buffer, value->as.list);
    } else {
        if (value->type == JINJA_NAMESPACE) add_text(run, buffer, "<Namespace ");
        repr_dict(run, buffer, value->as.dict);
        if (value->type == JINJA_NAMESPACE) add_text(run, buffer, ">");
    }
    run->depth--;
}

void jinja_repr(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    char number[40];
    jinja_step(run, 1);
    switch (value->type) {
    case JINJA_UNDEFINED:
        add_text(run, buffer, "Undefined");
        break;
    case JINJA_NONE:
        add_text(run, buffer, "None");
        break;
    case JINJA_BOOL:
        add_text(run, buffer, value->as.boolean ? "True" : "False");
        break;
    case JINJA_INT:
        snprintf(number, sizeof number, "%lld", (long long)value->as.integer);
        add_text(run, buffer, number);
        break;
    case JINJA_FLOAT:
    case JINJA_WIDE:
        if (!value->as.written) jinja_float_text(value->as.number, number);
        add_text(run, buffer, value->as.written ? value->as.written : number);
        break;
    case JINJA_TEXT:
        if (value->markup) add_text(run, buffer, "Markup(");
        repr_text(run, buffer, value->as.text.data, value->as.text.bytes);
        if (value->markup) add_text(run, buffer, ")");
        break;
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_NAMESPACE:
        repr_inside(run, buffer, value);
        break;
    default:
        jinja_fail(run, HELM_E_UNSUPPORTED, "printing a %s", jinja_type_name(value));
    }
}

void jinja_print(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    if (value->type == JINJA_TEXT)
        jinja_buffer_add(run, buffer, value->as.text.data, value->as.text.bytes);
    else if (value->type != JINJA_UNDEFINED)
        jinja_repr(run, buffer, value);
}

struct jinja_value jinja_to_text(struct jinja_run *run, struct jinja_value value)
{
    struct jinja_buffer buffer = {0};
    if (value.type == JINJA_TEXT) return value;
    jinja_print(run, &buffer, &value);
    return jinja_buffer_text(&buffer);
}

/* ---- JSON */

static void json_text(struct jinja_run *run, struct jinja_buffer *buffer, const char *data, size_t bytes,
                      bool ascii)
{
    static const char short_codes[] = "\"\\\b\f\n\r\t", short_names[] = "\"\\bfnrt";
    size_t plain = 0; /* start of what needs no escape */
    add_text(run, buffer, "\"");
    for (size_t i = 0, size; i < bytes; i += size) {
        char escape[16];
        uint32_t code = jinja_utf8_decode(data + i, &size);
        const char *found = code && code < 0x80 ? strchr(short_codes, (int)code) : NULL;
        if (!found && code >= 0x20 && (code < 0x7F || !ascii)) continue;
        if (found)
            snprintf(escape, sizeof escape, "\\%c", short_names[found - short_codes]);
        else if (code < 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x", code);
        else
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                     0xDC00 + ((code - 0x10000) & 0x3FF));
        jinja_buffer_add(run, buffer, data + plain, i - plain);
        add_text(run, buffer, escape);
        plain = i + size;
    }
    jinja_buffer_add(run, buffer, data + plain, bytes - plain);
    add_text(run, buffer, "\"");
}

static void json_number(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    const double number = value->as.number;
    char text[40];
    jinja_float_text(number, text);
    if (isnan(number)) strcpy(text, "NaN");
    if (isinf(number)) strcpy(text, number < 0 ? "-Infinity" : "Infinity");
    add_text(run, buffer, value->as.written ? value->as.written : text);
}

/* A line end and the indentation of `level`, where there is one. */
static void json_newline(struct jinja_run *run, struct jinja_buffer *buffer,
                         const struct jinja_json_style *style, int level)
{
    if (style->indent.type == JINJA_NONE) return;
    add_text(run, buffer, "\n");
    for (int i = 0; i < level; i++) {
        if (style->indent.type == JINJA_TEXT)
            jinja_print(run, buffer, &style->indent);
        else
            for (int64_t k = 0; k < jinja_whole(&style->indent); k++) add_text(run, buffer, " ");
    }
}

static void json_list(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_list *list,
                      const struct jinja_json_style *style, int level)
{
    add_text(run, buffer, "[");
    for (size_t i = 0; i < list->count; i++) {
        if (i) jinja_print(run, buffer, &style->item_separator);
        json_newline(run, buffer, style, level + 1);
        jinja_json(run, buffer, &list->item[i], style, level + 1);
    }
    if (list->count) json_newline(run, buffer, style, level);
    add_text(run, buffer, "]");
}

static void json_key(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *key,
                     bool ascii)
{
    if (key->type == JINJA_TEXT) {
        json_text(run, buffer, key->as.text.data, key->as.text.bytes, ascii);
        return;
    }
    if (key->type != JINJA_NONE && !jinja_is_number(key))
        jinja_fail(run, HELM_E_FORMAT, "tojson: a %s cannot be a key", jinja_type_name(key));
    add_text(run, buffer, "\"");
    if (key->type == JINJA_NONE || key->type == JINJA_BOOL)
        add_text(run, buffer, key->type == JINJA_NONE ? "null" : key->as.boolean ? "true" : "false");
    else if (key->type == JINJA_FLOAT)
        json_number(run, buffer, key);
    else
        jinja_repr(run, buffer, key);
    add_text(run, buffer, "\"");
}

/* Indexes of the pairs by key, for sort_keys: insertion, since these dicts are small. */
static size_t *sorted_order(struct jinja_run *run, const struct jinja_dict *dict)
{
    size_t *order = jinja_alloc(run, (dict->count + 1) * sizeof *order);
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        for (; at > 0 && jinja_order(run, &dict->key[order[at - 1]], &dict->key[i], "<") > 0; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

static void json_dict(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_dict *dict,
                      const struct jinja_json_style *style, int level)
{
    const size_t *order = style->sort_keys && dict->count ? sorted_order(run, dict) : NULL;
    add_text(run, buffer, "{");
    for (size_t i = 0; i < dict->count; i++) {
        size_t k = order ? order[i] : i;
        if (i) jinja_print(run, buffer, &style->item_separator);
        json_newline(run, buffer, style, level + 1);
        json_key(run, buffer, &dict->key[k], style->ascii);
        jinja_print(run, buffer, &style->key_separator);
        jinja_json(run, buffer, &dict->value[k], style, level + 1);
    }
    if (dict->count) json_newline(run, buffer, style, level);
    add_text(run, buffer, "}");
}

void jinja_json(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value,
                const struct jinja_json_style *style, int level)
{
    const bool list = value->type == JINJA_LIST && jinja_list_holds(value->as.list);
    jinja_step(run, 1);
    if ((list || value->type == JINJA_DICT) && level >= JINJA_NESTING_MAX)
        jinja_fail(run, HELM_E_LIMIT, "tojson: nested deeper than %d", JINJA_NESTING_MAX);
    if (value->type == JINJA_NONE)
        add_text(run, buffer, "null");
    else if (value->type == JINJA_BOOL)
        add_text(run, buffer, value->as.boolean ? "true" : "false");
    else if (value->type == JINJA_INT)
        jinja_repr(run, buffer, value);
    else if (value->type == JINJA_FLOAT || value->type == JINJA_WIDE)
        json_number(run, buffer, value);
    else if (value->type == JINJA_TEXT)
        json_text(run, buffer, value->as.text.data, value->as.text.bytes, style->ascii);
    else if (list)
        json_list(run, buffer, value->as.list, style, level);
    else if (value->type == JINJA_DICT)
        json_dict(run, buffer, value->as.dict, style, level);
    else
        jinja_fail(run, HELM_E_FORMAT, "tojson: a %s is not JSON", jinja_type_name(value));
}
