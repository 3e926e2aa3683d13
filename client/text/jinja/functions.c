/* Functions that templates find by name: Jinja's range, dict and namespace, transformers' raise_exception and
 * strftime_now. See jinja/eval.h. Called through the table at the end. */
#include <locale.h>
#include <time.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

static int call_range(const struct jinja_callable *c, struct jinja_value *out)
{
    int64_t part[3] = {0, 0, 1};
    size_t given = c->raw->positional_count;
    struct jinja_list *list;
    if (given < 1 || given > 3 || c->raw->keyword_count)
        return jinja_fail(c->run, HELM_E_FORMAT, "'range' takes one to three numbers");
    for (size_t i = 0; i < given; i++) {
        const struct jinja_value *v = &c->raw->positional[i];
        if (!jinja_is_whole(v))
            return jinja_fail(c->run, HELM_E_FORMAT, "'range': a '%s' is no whole number",
                              jinja_type_name(v));
        part[given == 1 ? 1 : i] = jinja_whole(v);
    }
    if (part[2] == 0) return jinja_fail(c->run, HELM_E_FORMAT, "'range': the step is 0");
    uint64_t step = part[2] > 0 ? (uint64_t)part[2] : 0 - (uint64_t)part[2];
    uint64_t span =
        part[2] > 0 ? (uint64_t)part[1] - (uint64_t)part[0] : (uint64_t)part[0] - (uint64_t)part[1];
    bool empty = part[2] > 0 ? part[0] >= part[1] : part[0] <= part[1];
    uint64_t count = empty ? 0 : (span - 1) / step + 1;
    if (count > JINJA_RANGE_MAX)
        return jinja_fail(c->run, HELM_E_LIMIT, "'range' of more than %d items", JINJA_RANGE_MAX);
    int rc = jinja_list_new(c->run, JINJA_LIST_RANGE, count, &list);
    for (uint64_t i = 0; !rc && i < count; i++)
        rc = jinja_list_add(c->run, list, jinja_int((int64_t)((uint64_t)part[0] + i * (uint64_t)part[2])));
    if (rc) return rc;
    memcpy(list->range, part, sizeof part);
    *out = jinja_list_value(list);
    return 0;
}

/* dict(other, a=1): also what makes a namespace. */
static int call_dict(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_dict *dict;
    int rc = jinja_dict_new(c->run, c->raw->keyword_count, &dict);
    if (!rc && c->raw->positional_count > 1)
        rc = jinja_fail(c->run, HELM_E_FORMAT, "'%s' takes one value and named arguments", c->name);
    for (size_t i = 0; !rc && i < c->raw->positional_count; i++) {
        const struct jinja_value *other = &c->raw->positional[i];
        if (other->type != JINJA_DICT) {
            rc = jinja_fail(c->run, HELM_E_UNSUPPORTED, "'%s' of a '%s'", c->name, jinja_type_name(other));
            break;
        }
        for (size_t k = 0; !rc && k < other->as.dict->count; k++)
            rc = jinja_dict_set(c->run, dict, other->as.dict->key[k], other->as.dict->value[k]);
    }
    for (size_t i = 0; !rc && i < c->raw->keyword_count; i++)
        rc = jinja_dict_set(c->run, dict, c->raw->keyword_names[i], c->raw->keyword_values[i]);
    if (!rc) *out = jinja_dict_value(dict);
    return rc;
}

static int call_namespace(const struct jinja_callable *c, struct jinja_value *out)
{
    int rc = call_dict(c, out);
    if (!rc) out->type = JINJA_NAMESPACE;
    return rc;
}

static int call_raise_exception(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value words;
    int rc = jinja_to_text(c->run, c->a[0], &words);
    (void)out;
    if (rc) return rc;
    size_t length = words.as.text.bytes < HELM_ERR_TEXT ? words.as.text.bytes : HELM_ERR_TEXT;
    c->run->line = 0; /* the template's own words, as they are */
    return jinja_fail(c->run, HELM_E_MISMATCH, "%.*s", (int)length, words.as.text.data);
}

/* One conversion of strftime in the C locale, whatever the process has set; `plain`: without leading zeros. 0: not
 * known. */
static size_t format_time(char kind, bool plain, const struct tm *t, char text[64])
{
    const char format[] = {'%', plain ? '-' : kind, plain ? kind : '\0', '\0'};
    if (!kind || !strchr("aAbBdeFHIjmMpSTyY%", kind)) return 0;
    locale_t locale = newlocale(LC_ALL_MASK, "C", NULL);
    size_t length = locale ? strftime_l(text, 64, format, t, locale) : 0;
    if (locale) freelocale(locale);
    return length;
}

static int call_strftime_now(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_value format;
    struct jinja_buffer buffer = {0};
    struct tm local;
    time_t now = (time_t)c->run->now_s;
    int rc = jinja_parameter_text(c, 0, NULL, &format);
    if (!rc && !localtime_r(&now, &local))
        rc = jinja_fail(c->run, HELM_E_FORMAT, "'strftime_now': no such time as %lld", (long long)now);
    for (size_t i = 0; !rc && i < format.as.text.bytes; i++) {
        char text[64], kind = format.as.text.data[i];
        size_t length = 1;
        text[0] = kind;
        if (kind == '%') {
            bool plain = i + 1 < format.as.text.bytes && format.as.text.data[i + 1] == '-';
            i += 1 + plain;
            kind = i < format.as.text.bytes ? format.as.text.data[i] : '\0';
            length = format_time(kind, plain, &local, text);
            if (length == 0)
                return jinja_fail(c->run, HELM_E_UNSUPPORTED, "'strftime_now' with '%%%c'", kind);
        }
        rc = jinja_buffer_add(c->run, &buffer, text, length);
    }
    *out = jinja_buffer_text(&buffer);
    return rc;
}

const struct jinja_function jinja_global_table[] = {
    {.name = "dict", .call = call_dict, .raw = true},
    {.name = "namespace", .call = call_namespace, .raw = true},
    {.name = "raise_exception", .call = call_raise_exception, .parameters = {"message"}, .required = 1},
    {.name = "range", .call = call_range, .raw = true},
    {.name = "strftime_now", .call = call_strftime_now, .parameters = {"format"}, .required = 1},
    {.name = NULL},
};
