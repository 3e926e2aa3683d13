/* Functions that templates find by name: Jinja's range, dict and namespace, transformers' raise_exception and
 * strftime_now. See jinja/eval.h. Called through the table at the end. */
#include <stdio.h>
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

/* One conversion of strftime in the C locale, whatever the process has set. 0: not known. */
static int format_time(char kind, bool plain, const struct tm *t, char text[64])
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    int width = plain ? 1 : 2, hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, year = t->tm_year + 1900;
    switch (kind) {
    case 'a':
        return snprintf(text, 64, "%.3s", days[t->tm_wday]);
    case 'A':
        return snprintf(text, 64, "%s", days[t->tm_wday]);
    case 'b':
        return snprintf(text, 64, "%.3s", months[t->tm_mon]);
    case 'B':
        return snprintf(text, 64, "%s", months[t->tm_mon]);
    case 'd':
        return snprintf(text, 64, "%0*d", width, t->tm_mday);
    case 'e':
        return snprintf(text, 64, "%2d", t->tm_mday);
    case 'F':
        return snprintf(text, 64, "%d-%02d-%02d", year, t->tm_mon + 1, t->tm_mday);
    case 'H':
        return snprintf(text, 64, "%0*d", width, t->tm_hour);
    case 'I':
        return snprintf(text, 64, "%0*d", width, hour12);
    case 'j':
        return snprintf(text, 64, "%0*d", plain ? 1 : 3, t->tm_yday + 1);
    case 'm':
        return snprintf(text, 64, "%0*d", width, t->tm_mon + 1);
    case 'M':
        return snprintf(text, 64, "%0*d", width, t->tm_min);
    case 'p':
        return snprintf(text, 64, "%s", t->tm_hour < 12 ? "AM" : "PM");
    case 'S':
        return snprintf(text, 64, "%0*d", width, t->tm_sec);
    case 'T':
        return snprintf(text, 64, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec);
    case 'y':
        return snprintf(text, 64, "%0*d", width, year % 100);
    case 'Y':
        return snprintf(text, 64, "%d", year);
    case '%':
        return snprintf(text, 64, "%%");
    default:
        return 0;
    }
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
        int length = 1;
        text[0] = kind;
        if (kind == '%') {
            bool plain = i + 1 < format.as.text.bytes && format.as.text.data[i + 1] == '-';
            i += 1 + plain;
            kind = i < format.as.text.bytes ? format.as.text.data[i] : '\0';
            length = format_time(kind, plain, &local, text);
            if (length <= 0)
                return jinja_fail(c->run, HELM_E_UNSUPPORTED, "'strftime_now' with '%%%c'", kind);
        }
        rc = jinja_buffer_add(c->run, &buffer, text, (size_t)length);
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
