/* What values look like: Python's str and repr, and JSON as json.dumps writes it. See jinja/value.h. Called
 * for every {{ }}, by the filters string, join and tojson, and by ~. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/value.h"

static int add_text(struct jinja_run *run, struct jinja_buffer *buffer, const char *text)
{
    return jinja_buffer_add(run, buffer, text, strlen(text));
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

static int repr_text(struct jinja_run *run, struct jinja_buffer *buffer, const char *data, size_t bytes)
{
    char quote = memchr(data, '\'', bytes) && !memchr(data, '"', bytes) ? '"' : '\'';
    int rc = jinja_buffer_add(run, buffer, &quote, 1);
    for (size_t i = 0, size; !rc && i < bytes; i += size) {
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
            rc = jinja_buffer_add(run, buffer, data + i, size);
            continue;
        }
        rc = add_text(run, buffer, escape);
    }
    return rc ? rc : jinja_buffer_add(run, buffer, &quote, 1);
}

static int repr_items(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_list *list,
                      const char *open, const char *close)
{
    int rc = add_text(run, buffer, open);
    for (size_t i = 0; !rc && i < list->count; i++) {
        if (i) rc = add_text(run, buffer, ", ");
        if (!rc) rc = jinja_repr(run, buffer, &list->item[i]);
    }
    return rc ? rc : add_text(run, buffer, close);
}

static int repr_list(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_list *list)
{
    char words[96];
    switch (list->kind) {
    case JINJA_LIST_PLAIN:
        return repr_items(run, buffer, list, "[", "]");
    case JINJA_LIST_TUPLE:
        return repr_items(run, buffer, list, "(", list->count == 1 ? ",)" : ")");
    case JINJA_LIST_RANGE:
        snprintf(words, sizeof words, list->range[2] == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)list->range[0], (long long)list->range[1], (long long)list->range[2]);
        return add_text(run, buffer, words);
    case JINJA_LIST_KEYS:
        return repr_items(run, buffer, list, "dict_keys([", "])");
    case JINJA_LIST_VALUES:
        return repr_items(run, buffer, list, "dict_values([", "])");
    case JINJA_LIST_ITEMS:
        return repr_items(run, buffer, list, "dict_items([", "])");
    default:
        return jinja_fail(run, HELM_E_UNSUPPORTED, "printing a generator (put '|list' after it)");
    }
}

static int repr_dict(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_dict *dict)
{
    int rc = add_text(run, buffer, "{");
    for (size_t i = 0; !rc && i < dict->count; i++) {
        if (i) rc = add_text(run, buffer, ", ");
        if (!rc) rc = jinja_repr(run, buffer, &dict->key[i]);
        if (!rc) rc = add_text(run, buffer, ": ");
        if (!rc) rc = jinja_repr(run, buffer, &dict->value[i]);
    }
    return rc ? rc : add_text(run, buffer, "}");
}

int jinja_repr(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    char number[40];
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    switch (value->type) {
    case JINJA_UNDEFINED:
        return add_text(run, buffer, "Undefined");
    case JINJA_NONE:
        return add_text(run, buffer, "None");
    case JINJA_BOOL:
        return add_text(run, buffer, value->as.boolean ? "True" : "False");
    case JINJA_INT:
        snprintf(number, sizeof number, "%lld", (long long)value->as.integer);
        return add_text(run, buffer, number);
    case JINJA_FLOAT:
    case JINJA_WIDE:
        if (value->as.written) return add_text(run, buffer, value->as.written);
        jinja_float_text(value->as.number, number);
        return add_text(run, buffer, number);
    case JINJA_TEXT:
        if (value->markup) rc = add_text(run, buffer, "Markup(");
        if (!rc) rc = repr_text(run, buffer, value->as.text.data, value->as.text.bytes);
        return rc || !value->markup ? rc : add_text(run, buffer, ")");
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_NAMESPACE:
        break;
    default:
        return jinja_fail(run, HELM_E_UNSUPPORTED, "printing a %s", jinja_type_name(value));
    }
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        return jinja_fail(run, HELM_E_LIMIT, "values are nested deeper than %d", JINJA_EVAL_DEPTH_MAX);
    if (value->type == JINJA_LIST) {
        rc = repr_list(run, buffer, value->as.list);
    } else {
        if (value->type == JINJA_NAMESPACE) rc = add_text(run, buffer, "<Namespace ");
        if (!rc) rc = repr_dict(run, buffer, value->as.dict);
        if (!rc && value->type == JINJA_NAMESPACE) rc = add_text(run, buffer, ">");
    }
    run->depth--;
    return rc;
}

int jinja_print(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    if (value->type == JINJA_TEXT)
        return jinja_buffer_add(run, buffer, value->as.text.data, value->as.text.bytes);
    return value->type == JINJA_UNDEFINED ? 0 : jinja_repr(run, buffer, value);
}

int jinja_to_text(struct jinja_run *run, struct jinja_value value, struct jinja_value *out)
{
    struct jinja_buffer buffer = {0};
    *out = value;
    if (value.type == JINJA_TEXT) return 0;
    int rc = jinja_print(run, &buffer, &value);
    *out = jinja_buffer_text(&buffer);
    return rc;
}

/* ---- JSON */

static int json_text(struct jinja_run *run, struct jinja_buffer *buffer, const char *data, size_t bytes,
                     bool ascii)
{
    static const char short_codes[] = "\"\\\b\f\n\r\t", short_names[] = "\"\\bfnrt";
    int rc = add_text(run, buffer, "\"");
    size_t plain = 0; /* start of what needs no escape */
    for (size_t i = 0, size; !rc && i < bytes; i += size) {
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
        rc = jinja_buffer_add(run, buffer, data + plain, i - plain);
        if (!rc) rc = add_text(run, buffer, escape);
        plain = i + size;
    }
    if (!rc) rc = jinja_buffer_add(run, buffer, data + plain, bytes - plain);
    return rc ? rc : add_text(run, buffer, "\"");
}

static int json_number(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value)
{
    const double number = value->as.number;
    char text[40];
    if (value->as.written) return add_text(run, buffer, value->as.written);
    jinja_float_text(number, text);
    if (isnan(number)) strcpy(text, "NaN");
    if (isinf(number)) strcpy(text, number < 0 ? "-Infinity" : "Infinity");
    return add_text(run, buffer, text);
}

/* A line end and the indentation of `level`, where there is one. */
static int json_newline(struct jinja_run *run, struct jinja_buffer *buffer,
                        const struct jinja_json_style *style, int level)
{
    if (style->indent.type == JINJA_NONE) return 0;
    int rc = add_text(run, buffer, "\n");
    for (int i = 0; !rc && i < level; i++) {
        if (style->indent.type == JINJA_TEXT) {
            rc = jinja_print(run, buffer, &style->indent);
            continue;
        }
        for (int64_t k = 0; !rc && k < jinja_whole(&style->indent); k++) rc = add_text(run, buffer, " ");
    }
    return rc;
}

static int json_list(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_list *list,
                     const struct jinja_json_style *style, int level)
{
    if (list->count == 0) return add_text(run, buffer, "[]");
    int rc = add_text(run, buffer, "[");
    for (size_t i = 0; !rc && i < list->count; i++) {
        if (i) rc = jinja_print(run, buffer, &style->item_separator);
        if (!rc) rc = json_newline(run, buffer, style, level + 1);
        if (!rc) rc = jinja_json(run, buffer, &list->item[i], style, level + 1);
    }
    if (!rc) rc = json_newline(run, buffer, style, level);
    return rc ? rc : add_text(run, buffer, "]");
}

static int json_key(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *key,
                    bool ascii)
{
    if (key->type == JINJA_TEXT) return json_text(run, buffer, key->as.text.data, key->as.text.bytes, ascii);
    if (key->type == JINJA_NONE) return add_text(run, buffer, "\"null\"");
    if (key->type == JINJA_BOOL) return add_text(run, buffer, key->as.boolean ? "\"true\"" : "\"false\"");
    if (!jinja_is_number(key))
        return jinja_fail(run, HELM_E_FORMAT, "tojson: a %s cannot be a key", jinja_type_name(key));
    int rc = add_text(run, buffer, "\"");
    if (!rc) rc = key->type == JINJA_FLOAT ? json_number(run, buffer, key) : jinja_repr(run, buffer, key);
    return rc ? rc : add_text(run, buffer, "\"");
}

/* Indexes of the pairs by key, for sort_keys: insertion, since these dicts are small. */
static int sorted_order(struct jinja_run *run, const struct jinja_dict *dict, size_t **out)
{
    size_t *order = jinja_alloc(run, (dict->count + 1) * sizeof *order);
    *out = order;
    if (!order) return run->code;
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        for (int rc, sign; at > 0; at--) {
            rc = jinja_order(run, &dict->key[order[at - 1]], &dict->key[i], "<", &sign);
            if (rc) return rc;
            if (sign <= 0) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return 0;
}

static int json_dict(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_dict *dict,
                     const struct jinja_json_style *style, int level)
{
    size_t *order = NULL;
    if (dict->count == 0) return add_text(run, buffer, "{}");
    int rc = style->sort_keys ? sorted_order(run, dict, &order) : 0;
    if (!rc) rc = add_text(run, buffer, "{");
    for (size_t i = 0; !rc && i < dict->count; i++) {
        size_t k = order ? order[i] : i;
        if (i) rc = jinja_print(run, buffer, &style->item_separator);
        if (!rc) rc = json_newline(run, buffer, style, level + 1);
        if (!rc) rc = json_key(run, buffer, &dict->key[k], style->ascii);
        if (!rc) rc = jinja_print(run, buffer, &style->key_separator);
        if (!rc) rc = jinja_json(run, buffer, &dict->value[k], style, level + 1);
    }
    if (!rc) rc = json_newline(run, buffer, style, level);
    return rc ? rc : add_text(run, buffer, "}");
}

int jinja_json(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value,
               const struct jinja_json_style *style, int level)
{
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    switch (value->type) {
    case JINJA_NONE:
        return add_text(run, buffer, "null");
    case JINJA_BOOL:
        return add_text(run, buffer, value->as.boolean ? "true" : "false");
    case JINJA_INT:
        return jinja_repr(run, buffer, value);
    case JINJA_FLOAT:
    case JINJA_WIDE:
        return json_number(run, buffer, value);
    case JINJA_TEXT:
        return json_text(run, buffer, value->as.text.data, value->as.text.bytes, style->ascii);
    case JINJA_LIST:
        if (!jinja_list_holds(value->as.list)) break;
        if (level >= JINJA_NESTING_MAX)
            return jinja_fail(run, HELM_E_LIMIT, "tojson: nested deeper than %d", JINJA_NESTING_MAX);
        return json_list(run, buffer, value->as.list, style, level);
    case JINJA_DICT:
        if (level >= JINJA_NESTING_MAX)
            return jinja_fail(run, HELM_E_LIMIT, "tojson: nested deeper than %d", JINJA_NESTING_MAX);
        return json_dict(run, buffer, value->as.dict, style, level);
    default:
        break;
    }
    return jinja_fail(run, HELM_E_FORMAT, "tojson: a %s is not JSON", jinja_type_name(value));
}
