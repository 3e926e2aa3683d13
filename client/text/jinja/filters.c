/* Filters on texts and numbers, and what they share with methods of texts. See jinja/eval.h. Called through
 * the table at the end. */
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "client/text/jinja/eval.h"

/* ---- shared with methods */

struct jinja_value jinja_escape(struct jinja_run *run, struct jinja_value in)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jinja_buffer buffer = {0};
    in = jinja_to_text(run, in);
    for (size_t i = 0; i < in.as.text.bytes; i++) {
        const char *c = &in.as.text.data[i], *found = *c ? strchr(from, *c) : NULL;
        if (found)
            jinja_buffer_add(run, &buffer, to[found - from], strlen(to[found - from]));
        else
            jinja_buffer_add(run, &buffer, c, 1);
    }
    struct jinja_value out = jinja_buffer_text(&buffer);
    out.markup = true;
    return out;
}

static bool is_letter(uint32_t code)
{
    if (code < 0x80) return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

enum letter { LETTER_LOWER, LETTER_UPPER, LETTER_TITLE };

/* Adds one character in that case. The sharp s is the one common letter whose upper case is two letters. */
static void add_letter(struct jinja_run *run, struct jinja_buffer *buffer, uint32_t code, enum letter to)
{
    char bytes[4];
    utf8proc_int32_t c = (utf8proc_int32_t)code;
    if (code == 0xDF && to != LETTER_LOWER) {
        jinja_buffer_add(run, buffer, to == LETTER_UPPER ? "SS" : "Ss", 2);
        return;
    }
    c = to == LETTER_LOWER   ? utf8proc_tolower(c)
        : to == LETTER_UPPER ? utf8proc_toupper(c)
                             : utf8proc_totitle(c);
    jinja_buffer_add(run, buffer, bytes, utf8_put((uint32_t)c, bytes));
}

struct jinja_value jinja_change_case(struct jinja_run *run, struct jinja_value text, enum jinja_case to)
{
    struct jinja_buffer buffer = {0};
    bool inside = false; /* a word, or past the first character */
    for (size_t i = 0, size; i < text.as.text.bytes; i += size) {
        uint32_t code = jinja_utf8_decode(text.as.text.data + i, &size);
        add_letter(run, &buffer, code,
                   to == JINJA_CASE_UPPER             ? LETTER_UPPER
                   : to == JINJA_CASE_LOWER || inside ? LETTER_LOWER
                                                      : LETTER_TITLE);
        inside = to == JINJA_CASE_CAPITALIZE || is_letter(code);
    }
    if (jinja_is_own(run, text.as.text.data, text.as.text.bytes))
        jinja_mark_own(run, buffer.data, buffer.length);
    return jinja_buffer_text(&buffer);
}

/* Whether one character is in the set, or is white space without one. *looked: bytes compared that are not
 * yet counted as steps; counted here, because what one character costs is up to the template. */
static bool in_set(struct jinja_run *run, const struct jinja_value *set, const char *c, size_t size,
                   size_t *looked)
{
    bool in;
    *looked += size;
    if (set) {
        const char *found = memmem(set->as.text.data, set->as.text.bytes, c, size);
        *looked += found ? (size_t)(found - set->as.text.data) : set->as.text.bytes;
        in = found != NULL;
    } else {
        in = jinja_is_space(jinja_utf8_decode(c, &size));
    }
    jinja_step(run, *looked / 64);
    *looked %= 64;
    return in;
}

struct jinja_value jinja_strip(struct jinja_run *run, struct jinja_value text, const struct jinja_value *set,
                               bool left, bool right)
{
    const char *data = text.as.text.data;
    size_t start = 0, end = text.as.text.bytes, looked = 0;
    if (set && set->type != JINJA_TEXT) set = NULL;
    jinja_step(run, end / 64); /* the result's characters are counted */
    while (left && start < end) {
        size_t size = jinja_utf8_size((unsigned char)data[start]);
        if (!in_set(run, set, data + start, size, &looked)) break;
        start += size;
    }
    while (right && end > start) {
        size_t at = jinja_utf8_before(data, end);
        if (!in_set(run, set, data + at, end - at, &looked)) break;
        end = at;
    }
    return jinja_text(data + start, end - start);
}

struct jinja_value jinja_replace(struct jinja_run *run, struct jinja_value text, struct jinja_value old,
                                 struct jinja_value fresh, int64_t count)
{
    struct jinja_buffer buffer = {0};
    const char *data = text.as.text.data;
    size_t at = 0, end = text.as.text.bytes;
    jinja_step(run, end / 64);
    while (count != 0) {
        const char *found =
            old.as.text.bytes ? memmem(data + at, end - at, old.as.text.data, old.as.text.bytes) : data + at;
        if (!found) break;
        jinja_buffer_add(run, &buffer, data + at, (size_t)(found - data) - at);
        jinja_buffer_add(run, &buffer, fresh.as.text.data, fresh.as.text.bytes);
        jinja_step(run, 1);
        at = (size_t)(found - data) + old.as.text.bytes;
        count -= count > 0;
        if (old.as.text.bytes) continue;
        /* an empty text stands between any two characters, and at both ends */
        if (at >= end) break;
        size_t size = jinja_utf8_size((unsigned char)data[at]);
        jinja_buffer_add(run, &buffer, data + at, size);
        at += size;
    }
    jinja_buffer_add(run, &buffer, data + at, end - at);
    return jinja_buffer_text(&buffer);
}

struct jinja_list *jinja_split_lines(struct jinja_run *run, struct jinja_value text, bool keep_ends)
{
    const char *data = text.as.text.data;
    size_t start = 0, end = text.as.text.bytes;
    struct jinja_list *lines = jinja_list_new(run, JINJA_LIST_PLAIN, 0);
    jinja_step(run, end / 64);
    for (size_t i = 0, size; i < end; i += size) {
        uint32_t code = jinja_utf8_decode(data + i, &size);
        if (!((code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
              code == 0x2028 || code == 0x2029))
            continue;
        if (code == '\r' && i + 1 < end && data[i + 1] == '\n') size = 2;
        jinja_list_add(run, lines, jinja_text(data + start, (keep_ends ? i + size : i) - start));
        start = i + size;
    }
    if (start < end) jinja_list_add(run, lines, jinja_text(data + start, end - start));
    return lines;
}

/* ---- filters; each has the parameters that the table names */

static struct jinja_value filter_case(const struct jinja_callable *c)
{
    return jinja_change_case(c->run, jinja_to_text(c->run, c->self), (enum jinja_case)c->which);
}

/* Jinja's own rule, not str.title: words begin after white space, '-' or an opening bracket. */
static struct jinja_value filter_title(const struct jinja_callable *c)
{
    const struct jinja_value text = jinja_to_text(c->run, c->self);
    struct jinja_buffer buffer = {0};
    bool start = true;
    for (size_t i = 0, size; i < text.as.text.bytes; i += size) {
        uint32_t code = jinja_utf8_decode(text.as.text.data + i, &size);
        add_letter(c->run, &buffer, code, start ? LETTER_UPPER : LETTER_LOWER);
        start = jinja_is_space(code) || (code && code < 0x80 && strchr("-({[<", (int)code));
    }
    return jinja_buffer_text(&buffer);
}

static struct jinja_value filter_trim(const struct jinja_callable *c)
{
    return jinja_strip(c->run, jinja_to_text(c->run, c->self), &c->a[0], true, true);
}

static struct jinja_value filter_replace(const struct jinja_callable *c)
{
    const int64_t count = jinja_parameter_whole(c, 2, -1);
    const struct jinja_value text = jinja_to_text(c->run, c->self), old = jinja_to_text(c->run, c->a[0]);
    return jinja_replace(c->run, text, old, jinja_to_text(c->run, c->a[1]), count);
}

static struct jinja_value filter_string(const struct jinja_callable *c)
{
    return jinja_to_text(c->run, c->self);
}

static struct jinja_value filter_safe(const struct jinja_callable *c)
{
    struct jinja_value text = jinja_to_text(c->run, c->self);
    text.markup = true;
    return text;
}

/* `which`: even where it is escaped already. */
static struct jinja_value filter_escape(const struct jinja_callable *c)
{
    const bool escaped = c->self.type == JINJA_TEXT && c->self.markup && !c->which;
    return escaped ? c->self : jinja_escape(c->run, c->self);
}

static struct jinja_value filter_indent(const struct jinja_callable *c)
{
    struct jinja_buffer pad = {0}, buffer = {0};
    const bool first = jinja_parameter_truth(c, 1, false), blank = jinja_parameter_truth(c, 2, false);
    if (c->self.type != JINJA_TEXT)
        jinja_fail(c->run, HELM_E_FORMAT, "'indent' of a '%s'", jinja_type_name(&c->self));
    /* Jinja adds a line end before it splits, so that one at the end makes an empty last line */
    const struct jinja_value line_end = jinja_text("\n", 1),
                             text = jinja_binary(c->run, '+', &c->self, &line_end);
    if (c->a[0].type == JINJA_TEXT)
        jinja_print(c->run, &pad, &c->a[0]);
    else
        for (int64_t i = jinja_parameter_whole(c, 0, 4); i > 0; i--) jinja_buffer_add(c->run, &pad, " ", 1);
    const struct jinja_list *lines = jinja_split_lines(c->run, text, false);
    for (size_t i = 0; i < lines->count; i++) {
        if (i) jinja_buffer_add(c->run, &buffer, "\n", 1);
        if (i ? blank || lines->item[i].as.text.bytes : first)
            jinja_buffer_add(c->run, &buffer, pad.data, pad.length);
        jinja_print(c->run, &buffer, &lines->item[i]);
    }
    return jinja_buffer_text(&buffer);
}

static struct jinja_value filter_wordcount(const struct jinja_callable *c)
{
    const struct jinja_value text = jinja_to_text(c->run, c->self);
    int64_t words = 0;
    bool inside = false;
    jinja_step(c->run, text.as.text.bytes / 64);
    for (size_t i = 0, size; i < text.as.text.bytes; i += size) {
        uint32_t code = jinja_utf8_decode(text.as.text.data + i, &size);
        bool word = code == '_' || is_letter(code) || (code < 0x80 && code >= '0' && code <= '9') ||
                    (code >= 0x80 && utf8proc_category((utf8proc_int32_t)code) >= UTF8PROC_CATEGORY_LU &&
                     utf8proc_category((utf8proc_int32_t)code) <= UTF8PROC_CATEGORY_NO);
        words += word && !inside;
        inside = word;
    }
    return jinja_int(words);
}

static struct jinja_value filter_default(const struct jinja_callable *c)
{
    bool use =
        c->self.type == JINJA_UNDEFINED || (jinja_parameter_truth(c, 1, false) && !jinja_truth(&c->self));
    return !use ? c->self : c->a[0].type == JINJA_ABSENT ? jinja_text("", 0) : c->a[0];
}

/* The number that a text spells, white space and '_' between digits allowed. */
static bool spelled_number(const struct jinja_value *text, int base, bool whole, int64_t *i, double *d)
{
    char clean[400];
    const char *data = text->as.text.data;
    size_t start = jinja_space_before(data, text->as.text.bytes), used = 0;
    size_t end = text->as.text.bytes - jinja_space_after(data, text->as.text.bytes);
    if (end <= start || end - start >= sizeof clean) return false;
    for (size_t k = start; k < end; k++) {
        if (data[k] == '_') {
            bool between = k > start && k + 1 < end && isxdigit((unsigned char)data[k - 1]) &&
                           isxdigit((unsigned char)data[k + 1]);
            if (!between) return false;
            continue;
        }
        /* strtod would read hexadecimal, which float() does not */
        if (!whole && (data[k] == 'x' || data[k] == 'X' || data[k] == 'p' || data[k] == '(')) return false;
        if (jinja_is_space((unsigned char)data[k]) || !data[k]) return false;
        clean[used++] = data[k];
    }
    clean[used] = '\0';
    char *after;
    errno = 0;
    if (whole)
        *i = strtoll(clean, &after, base);
    else
        *d = strtod(clean, &after);
    return *after == '\0' && after != clean && !(whole && errno == ERANGE);
}

static struct jinja_value filter_int(const struct jinja_callable *c)
{
    const struct jinja_value *v = &c->self, fallback = c->a[0].type == JINJA_ABSENT ? jinja_int(0) : c->a[0];
    const int64_t base = jinja_parameter_whole(c, 1, 10);
    int64_t i;
    double d = NAN;
    if (v->type == JINJA_TEXT) jinja_step(c->run, v->as.text.bytes / 64);
    if (base != 0 && (base < 2 || base > 36))
        jinja_fail(c->run, HELM_E_FORMAT, "'int': a base of %lld", (long long)base);
    if (v->type == JINJA_UNDEFINED) jinja_fail_undefined(c->run, v);
    if (jinja_is_whole(v)) return jinja_int(jinja_whole(v));
    if (v->type == JINJA_WIDE) return *v;
    if (v->type == JINJA_FLOAT) d = v->as.number;
    if (v->type == JINJA_TEXT && spelled_number(v, (int)base, true, &i, &d)) return jinja_int(i);
    if (v->type == JINJA_TEXT && !spelled_number(v, 10, false, &i, &d)) d = NAN;
    if (isfinite(d) && fabs(d) >= 0x1p63) jinja_fail_wide(c->run);
    if (isinf(d) && v->type == JINJA_FLOAT) jinja_fail(c->run, HELM_E_FORMAT, "'int' of what is not finite");
    return isfinite(d) ? jinja_int((int64_t)d) : fallback;
}

static struct jinja_value filter_float(const struct jinja_callable *c)
{
    int64_t i;
    double d;
    if (c->self.type == JINJA_UNDEFINED) jinja_fail_undefined(c->run, &c->self);
    if (c->self.type == JINJA_TEXT) jinja_step(c->run, c->self.as.text.bytes / 64);
    if (c->self.type == JINJA_WIDE && fabs(c->self.as.number) >= DBL_MAX) jinja_fail_wide(c->run);
    if (jinja_is_number(&c->self)) return jinja_float(jinja_number(&c->self));
    if (c->self.type == JINJA_TEXT && spelled_number(&c->self, 10, false, &i, &d)) return jinja_float(d);
    return c->a[0].type == JINJA_ABSENT ? jinja_float(0) : c->a[0];
}

static struct jinja_value filter_abs(const struct jinja_callable *c)
{
    bool negative = jinja_is_number(&c->self) && jinja_number(&c->self) < 0;
    return c->self.type == JINJA_WIDE && !negative ? c->self : jinja_negate(c->run, &c->self, negative);
}

static struct jinja_value filter_round(const struct jinja_callable *c)
{
    const int64_t precision = jinja_parameter_whole(c, 0, 0);
    const struct jinja_value method = jinja_parameter_text(c, 1, "common");
    if (c->self.type == JINJA_WIDE) jinja_fail_wide(c->run);
    if (!jinja_is_number(&c->self))
        jinja_fail(c->run, HELM_E_FORMAT, "'round': a '%s' is no number", jinja_type_name(&c->self));
    if (precision < 0 || precision > 15)
        jinja_fail(c->run, HELM_E_UNSUPPORTED, "'round' to %lld digits", (long long)precision);
    double number = jinja_number(&c->self), scale = pow(10, (double)precision);
    if (jinja_text_is(&method, "common")) {
        char text[400]; /* printf rounds the exact value, halves to even, as Python does */
        if (jinja_is_whole(&c->self)) return jinja_int(jinja_whole(&c->self));
        snprintf(text, sizeof text, "%.*f", (int)precision, number);
        return jinja_float(strtod(text, NULL));
    }
    bool up = jinja_text_is(&method, "ceil");
    if (!up && !jinja_text_is(&method, "floor"))
        jinja_fail(c->run, HELM_E_FORMAT, "'round': the method is common, ceil or floor");
    return jinja_float((up ? ceil(number * scale) : floor(number * scale)) / scale);
}

static struct jinja_value filter_tojson(const struct jinja_callable *c)
{
    struct jinja_buffer buffer = {0};
    struct jinja_json_style style = {.ascii = jinja_parameter_truth(c, 0, false),
                                     .indent = c->a[1],
                                     .sort_keys = jinja_parameter_truth(c, 3, false),
                                     .key_separator = jinja_text(": ", 2)};
    if (style.indent.type == JINJA_ABSENT) style.indent = jinja_none();
    if (style.indent.type != JINJA_NONE && style.indent.type != JINJA_TEXT && !jinja_is_whole(&style.indent))
        jinja_fail(c->run, HELM_E_FORMAT, "'tojson': an indent of a '%s'", jinja_type_name(&style.indent));
    style.item_separator = style.indent.type == JINJA_NONE ? jinja_text(", ", 2) : jinja_text(",", 1);
    if (c->a[2].type != JINJA_ABSENT && c->a[2].type != JINJA_NONE) {
        const struct jinja_value *pair = &c->a[2];
        if (!jinja_is_sequence_kind(pair) || pair->as.list->count != 2 ||
            pair->as.list->item[0].type != JINJA_TEXT || pair->as.list->item[1].type != JINJA_TEXT)
            jinja_fail(c->run, HELM_E_FORMAT, "'tojson': separators are two texts");
        style.item_separator = pair->as.list->item[0];
        style.key_separator = pair->as.list->item[1];
    }
    jinja_json(c->run, &buffer, &c->self, &style, 0);
    return jinja_buffer_text(&buffer);
}

static struct jinja_value filter_format(const struct jinja_callable *c)
{
    const struct jinja_value text = jinja_to_text(c->run, c->self);
    if (c->raw->keyword_count) jinja_fail(c->run, HELM_E_UNSUPPORTED, "'format' with named arguments");
    const struct jinja_value arguments = jinja_given(c->run, c->raw);
    return jinja_format(c->run, &text, &arguments);
}

const struct jinja_function jinja_text_filters[] = {
    {.name = "abs", .call = filter_abs},
    {.name = "capitalize", .call = filter_case, .which = JINJA_CASE_CAPITALIZE},
    {.name = "d", .call = filter_default, .parameters = {"default_value", "boolean"}},
    {.name = "default", .call = filter_default, .parameters = {"default_value", "boolean"}},
    {.name = "e", .call = filter_escape},
    {.name = "escape", .call = filter_escape},
    {.name = "float", .call = filter_float, .parameters = {"default"}},
    {.name = "forceescape", .call = filter_escape, .which = true},
    {.name = "format", .call = filter_format, .raw = true},
    {.name = "indent", .call = filter_indent, .parameters = {"width", "first", "blank"}},
    {.name = "int", .call = filter_int, .parameters = {"default", "base"}},
    {.name = "lower", .call = filter_case, .which = JINJA_CASE_LOWER},
    {.name = "replace", .call = filter_replace, .parameters = {"old", "new", "count"}, .required = 2},
    {.name = "round", .call = filter_round, .parameters = {"precision", "method"}},
    {.name = "safe", .call = filter_safe},
    {.name = "string", .call = filter_string},
    {.name = "title", .call = filter_title},
    {.name = "tojson",
     .call = filter_tojson,
     .parameters = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "trim", .call = filter_trim, .parameters = {"chars"}},
    {.name = "upper", .call = filter_case, .which = JINJA_CASE_UPPER},
    {.name = "wordcount", .call = filter_wordcount},
    {.name = NULL},
};
