/* Functions that templates find by name: Jinja's range, dict and namespace, transformers' raise_exception and
 * strftime_now. See jinja/eval.h. Called through the table at the end. */
#include <locale.h>
#include <time.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

static struct jinja_value call_range(const struct jinja_callable *c)
{
    int64_t part[3] = {0, 0, 1};
    size_t given = c->raw->positional_count;
    if (given < 1 || given > 3 || c->raw->keyword_count)
        jinja_fail(c->run, HELM_E_FORMAT, "'range' takes one to three numbers");
    for (size_t i = 0; i < given; i++) {
        const struct jinja_value *v = &c->raw->positional[i];
        if (!jinja_is_whole(v))
            jinja_fail(c->run, HELM_E_FORMAT, "'range': a '%s' is no whole number", jinja_type_name(v));
        part[given == 1 ? 1 : i] = jinja_whole(v);
    }
    if (part[2] == 0) jinja_fail(c->run, HELM_E_FORMAT, "'range': the step is 0");
    uint64_t step = part[2] > 0 ? (uint64_t)part[2] : 0 - (uint64_t)part[2];
    uint64_t span =
        part[2] > 0 ? (uint64_t)part[1] - (uint64_t)part[0] : (uint64_t)part[0] - (uint64_t)part[1];
    bool empty = part[2] > 0 ? part[0] >= part[1] : part[0] <= part[1];
    uint64_t count = empty ? 0 : (span - 1) / step + 1;
    if (count > JINJA_RANGE_MAX)
        jinja_fail(c->run, HELM_E_LIMIT, "'range' of more than %d items", JINJA_RANGE_MAX);
    struct jinja_list *list = jinja_list_new(c->run, JINJA_LIST_RANGE, count);
    for (uint64_t i = 0; i < count; i++)
        jinja_list_add(c->run, list, jinja_int((int64_t)((uint64_t)part[0] + i * (uint64_t)part[2])));
    memcpy(list->range, part, sizeof part);
    return jinja_list_value(list);
}

/* dict(other, a=1): also what makes a namespace. */
static struct jinja_value call_dict(const struct jinja_callable *c)
{
    struct jinja_dict *dict = jinja_dict_new(c->run, c->raw->keyword_count);
    if (c->raw->positional_count > 1)
        jinja_fail(c->run, HELM_E_FORMAT, "'%s' takes one value and named arguments", c->name);
    for (size_t i = 0; i < c->raw->positional_count; i++) {
        const struct jinja_value *other = &c->raw->positional[i];
        if (other->type != JINJA_DICT)
            jinja_fail(c->run, HELM_E_UNSUPPORTED, "'%s' of a '%s'", c->name, jinja_type_name(other));
        for (size_t k = 0; k < other->as.dict->count; k++)
            jinja_dict_set(c->run, dict, other->as.dict->key[k], other->as.dict->value[k]);
    }
    for (size_t i = 0; i < c->raw->keyword_count; i++)
        jinja_dict_set(c->run, dict, c->raw->keyword_names[i], c->raw->keyword_values[i]);
    return jinja_dict_value(dict);
}

static struct jinja_value call_namespace(const struct jinja_callable *c)
{
    struct jinja_value names = call_dict(c);
    names.type = JINJA_NAMESPACE;
    return names;
}

static struct jinja_value call_raise_exception(const struct jinja_callable *c)
{
    const struct jinja_value words = jinja_to_text(c->run, c->a[0]);
    size_t length = words.as.text.bytes < HELM_ERR_TEXT ? words.as.text.bytes : HELM_ERR_TEXT;
    c->run->line = 0; /* the template's own words, as they are */
    jinja_fail(c->run, HELM_E_MISMATCH, "%.*s", (int)length, words.as.text.data);
}

/* One conversion of strftime in the C locale, whatever the process has set; `plain`: without leading zeros.
 * 0: not known. */
static size_t format_time(char kind, bool plain, const struct tm *t, char text[64])
{
    const char format[] = {'%', plain ? '-' : kind, plain ? kind : '\0', '\0'};
    if (!kind || !strchr("aAbBdeFHIjmMpSTyY%", kind)) return 0;
    locale_t locale = newlocale(LC_ALL_MASK, "C", NULL);
    size_t length = locale ? strftime_l(text, 64, format, t, locale) : 0;
    if (locale) freelocale(locale);
    return length;
}

static struct jinja_value call_strftime_now(const struct jinja_callable *c)
{
    const struct jinja_value format = jinja_parameter_text(c, 0, NULL);
    struct jinja_buffer buffer = {0};
    struct tm local;
    time_t now = (time_t)c->run->now_s;
    if (!localtime_r(&now, &local))
        jinja_fail(c->run, HELM_E_FORMAT, "'strftime_now': no such time as %lld", (long long)now);
    for (size_t i = 0; i < format.as.text.bytes; i++) {
        char text[64], kind = format.as.text.data[i];
        size_t length = 1;
        text[0] = kind;
        if (kind == '%') {
            bool plain = i + 1 < format.as.text.bytes && format.as.text.data[i + 1] == '-';
            i += 1 + plain;
            kind = i < format.as.text.bytes ? format.as.text.data[i] : '\0';
            length = format_time(kind, plain, &local, text);
            if (length == 0) jinja_fail(c->run, HELM_E_UNSUPPORTED, "'strftime_now' with '%%%c'", kind);
        }
        jinja_buffer_add(c->run, &buffer, text, length);
    }
    return jinja_buffer_text(&buffer);
}

const struct jinja_function jinja_global_table[] = {
    {.name = "dict", .call = call_dict, .raw = true},
    {.name = "namespace", .call = call_namespace, .raw = true},
    {.name = "raise_exception", .call = call_raise_exception, .parameters = {"message"}, .required = 1},
    {.name = "range", .call = call_range, .raw = true},
    {.name = "strftime_now", .call = call_strftime_now, .parameters = {"format"}, .required = 1},
    {.name = NULL},
};
