/* Formatting texts, in both of Python's ways. "text" % arguments: %s %r %d %i %f %x %%, flags, width and
 * precision. "text".format(...): {} {0} {name.attribute[key]!r:>8}, with the specifications that templates
 * need: fill, alignment, sign, width, precision, and s, d, x, f. See jinja/value.h and jinja/eval.h. Called
 * for the % operator, the format filter and the method of texts. */
#include "client/text/jinja/eval.h"

#include <math.h>
#include <stdio.h>

#define WIDTH_MAX 1000

/* How a value is written. */
struct specification {
    struct jinja_value fill; /* one character */
    char align;              /* '<', '>', '^', '=' (after the sign), or 0 */
    char sign;               /* '+', ' ', or 0 */
    char kind;               /* a letter, or 0 */
    int width, precision;    /* precision: -1 for none */
    bool given;              /* there is anything */
};

static int read_number(const char **at, const char *end)
{
    int number = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++)
        number = number > WIDTH_MAX ? number : number * 10 + (**at - '0');
    return number;
}

/* `sign` bytes of the body stand before what '=' fills in. */
static void add_aligned(struct jinja_run *run, struct jinja_buffer *out, const struct specification *s,
                        const struct jinja_value *body, size_t sign)
{
    const int missing = s->width > (int)body->as.text.chars ? s->width - (int)body->as.text.chars : 0;
    const int left = s->align == '^' ? missing / 2 : s->align == '<' ? 0 : missing;
    const char *data = body->as.text.data;
    if (s->align != '=') sign = 0;
    jinja_buffer_add(run, out, data, sign);
    for (int i = 0; i < left; i++) jinja_print(run, out, &s->fill);
    jinja_buffer_add(run, out, data + sign, body->as.text.bytes - sign);
    for (int i = left; i < missing; i++) jinja_print(run, out, &s->fill);
}

static void add_text(struct jinja_run *run, struct jinja_buffer *out, const struct specification *s,
                     struct jinja_value body)
{
    if (s->precision >= 0)
        body = jinja_text(body.as.text.data, jinja_text_offset(&body, (size_t)s->precision));
    add_aligned(run, out, s, &body, 0);
}

/* A number's digits, which have room for a sign before them. */
struct digits {
    char text[2 * WIDTH_MAX + 400];
    bool negative;
};

static void whole_digits(struct digits *d, int64_t number, char kind, int least)
{
    const uint64_t size = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    d->negative = number < 0;
    snprintf(d->text + 1, sizeof d->text - 1, kind == 'x' ? "%.*llx" : "%.*llu", least < 1 ? 1 : least,
             (unsigned long long)size);
}

static void real_digits(struct digits *d, double number, int precision)
{
    d->negative = signbit(number);
    snprintf(d->text + 1, sizeof d->text - 1, "%.*f", precision < 0 ? 6 : precision, fabs(number));
}

static void add_digits(struct jinja_run *run, struct jinja_buffer *out, const struct specification *s,
                       struct digits *d)
{
    d->text[0] = d->negative ? '-' : s->sign;
    const char *from = d->text + (d->text[0] ? 0 : 1);
    const struct jinja_value body = jinja_text(from, strlen(from));
    add_aligned(run, out, s, &body, d->text[0] ? 1 : 0);
}

/* ---- "text" % arguments ---- */

static void read_conversion(struct jinja_run *run, const char **at, const char *end, struct specification *s)
{
    bool zero = false;
    *s = (struct specification){.fill = jinja_text(" ", 1), .align = '>', .precision = -1};
    for (; *at < end && strchr("-0+ ", **at) && **at; (*at)++) {
        if (**at == '-') s->align = '<';
        if (**at == '+' || (**at == ' ' && !s->sign)) s->sign = **at;
        zero |= **at == '0';
    }
    s->width = read_number(at, end);
    if (*at < end && **at == '.') {
        (*at)++;
        s->precision = read_number(at, end);
    }
    if (s->width > WIDTH_MAX || s->precision > WIDTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "a format with a width of more than %d", WIDTH_MAX);
    if (*at >= end) jinja_fail(run, HELM_E_FORMAT, "incomplete format");
    s->kind = *(*at)++;
    if (!s->kind || !strchr("srdifx%", s->kind))
        jinja_fail(run, HELM_E_UNSUPPORTED, "the format '%%%c'", s->kind);
    if (zero && s->align != '<' && strchr("difx", s->kind)) {
        s->align = '=';
        s->fill = jinja_text("0", 1);
    }
}

static void convert_number(struct jinja_run *run, struct jinja_buffer *out, const struct specification *s,
                           const struct jinja_value *value)
{
    struct digits digits;
    if (!jinja_is_number(value) || (s->kind == 'x' && value->type == JINJA_FLOAT))
        jinja_fail(run, HELM_E_FORMAT, "%%%c format: a number is required, not '%s'", s->kind,
                   jinja_type_name(value));
    if (value->type == JINJA_WIDE) jinja_fail_wide(run);
    const double number = jinja_number(value);
    if (s->kind == 'f') {
        if (!isfinite(number)) jinja_fail(run, HELM_E_UNSUPPORTED, "%%f of what is not finite");
        real_digits(&digits, number, s->precision);
    } else {
        if (!jinja_is_whole(value) && !(fabs(number) < 9.2e18))
            jinja_fail(run, HELM_E_LIMIT, "%%d of a number of more than 64 bits");
        whole_digits(&digits, jinja_is_whole(value) ? jinja_whole(value) : (int64_t)number, s->kind,
                     s->precision);
    }
    add_digits(run, out, s, &digits);
}

struct jinja_value jinja_format(struct jinja_run *run, const struct jinja_value *format,
                                const struct jinja_value *arguments)
{
    const char *at = format->as.text.data, *end = at + format->as.text.bytes;
    const struct jinja_value *list = arguments;
    size_t count = 1, used = 0;
    struct jinja_buffer buffer = {0};
    if (arguments->type == JINJA_LIST && arguments->as.list->kind == JINJA_LIST_TUPLE) {
        list = arguments->as.list->item;
        count = arguments->as.list->count;
    }
    while (at < end) {
        const char *percent = memchr(at, '%', (size_t)(end - at));
        jinja_buffer_add(run, &buffer, at, (size_t)((percent ? percent : end) - at));
        if (!percent) break;
        at = percent + 1;
        if (at < end && *at == '(') jinja_fail(run, HELM_E_UNSUPPORTED, "a format with named arguments");
        struct specification s;
        struct jinja_buffer shown = {0};
        read_conversion(run, &at, end, &s);
        if (s.kind == '%') {
            jinja_buffer_add(run, &buffer, "%", 1);
            continue;
        }
        if (used >= count) jinja_fail(run, HELM_E_FORMAT, "not enough arguments for format string");
        const struct jinja_value *value = &list[used++];
        if (s.kind == 's' || s.kind == 'r') {
            (s.kind == 's' ? jinja_print : jinja_repr)(run, &shown, value);
            add_text(run, &buffer, &s, jinja_buffer_text(&shown));
        } else {
            convert_number(run, &buffer, &s, value);
        }
    }
    if (used < count && !(arguments->type == JINJA_DICT || arguments->type == JINJA_UNDEFINED ||
                          (arguments->type == JINJA_LIST && list == arguments)))
        jinja_fail(run, HELM_E_FORMAT, "not all arguments converted during string formatting");
    return jinja_buffer_text(&buffer);
}

/* ---- "text".format(...) ---- */

struct fields {
    const struct jinja_callable *c;
    size_t next;          /* field that has no number */
    bool counted, stated; /* there were fields without, with a number */
};

static size_t character_bytes(const char *at, const char *end)
{
    size_t n = 1;
    while (at + n < end && ((unsigned char)at[n] & 0xc0) == 0x80) n++;
    return n;
}

static void read_specification(struct jinja_run *run, const char *at, const char *end,
                               struct specification *s)
{
    const char *begin = at;
    *s = (struct specification){.fill = jinja_text(" ", 1), .precision = -1, .given = at < end};
    const size_t first = at < end ? character_bytes(at, end) : 0;
    if (at + first < end && strchr("<>^=", at[first])) {
        s->fill = jinja_text(at, first);
        s->align = at[first];
        at += first + 1;
    } else if (at < end && strchr("<>^=", *at)) {
        s->align = *at++;
    }
    if (at < end && strchr("+- ", *at)) {
        s->sign = *at == '-' ? '\0' : *at;
        at++;
    }
    if (at < end && *at == '0') {
        if (!s->align) s->align = '0'; /* '=' of a number, nothing of a text */
        s->fill = s->align == '0' ? jinja_text("0", 1) : s->fill;
        at++;
    }
    s->width = read_number(&at, end);
    if (at < end && *at == '.') {
        at++;
        if (at == end || *at < '0' || *at > '9')
            jinja_fail(run, HELM_E_FORMAT, "'format': a specification without its precision");
        s->precision = read_number(&at, end);
    }
    if (at < end && strchr("sdxf", *at)) s->kind = *at++;
    if (s->width > WIDTH_MAX || s->precision > WIDTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "'format': a width of more than %d", WIDTH_MAX);
    if (at != end)
        jinja_fail(run, HELM_E_UNSUPPORTED, "'format' with the specification '%.*s'", (int)(end - begin),
                   begin);
}

static void field_text(struct jinja_run *run, struct jinja_buffer *out, struct specification *s,
                       const struct jinja_value *value)
{
    if (s->kind && s->kind != 's')
        jinja_fail(run, HELM_E_FORMAT, "'format': the kind '%c' of a text", s->kind);
    if (s->align == '=' || s->sign) jinja_fail(run, HELM_E_FORMAT, "'format': a number's sign of a text");
    if (!s->align || s->align == '0') s->align = '<';
    add_text(run, out, s, *value);
}

static void field_number(struct jinja_run *run, struct jinja_buffer *out, struct specification *s,
                         const struct jinja_value *value)
{
    struct digits digits;
    const bool whole = jinja_is_whole(value);
    const double number = jinja_number(value);
    if (s->kind == 's' || (!whole && s->kind && s->kind != 'f') ||
        (whole && s->kind != 'f' && s->precision >= 0))
        jinja_fail(run, HELM_E_FORMAT, "'format': such a specification of a number");
    if (!isfinite(number) || (!whole && !s->kind && s->precision >= 0))
        jinja_fail(run, HELM_E_UNSUPPORTED, "'format' of such a number");
    if (s->kind == 'f') {
        real_digits(&digits, number, s->precision);
    } else if (whole) {
        whole_digits(&digits, jinja_whole(value), s->kind, 1);
    } else {
        jinja_float_text(fabs(number), digits.text + 1);
        digits.negative = signbit(number);
    }
    if (!s->align) s->align = '>';
    if (s->align == '0') s->align = '=';
    add_digits(run, out, s, &digits);
}

static void add_value(struct jinja_run *run, struct jinja_buffer *out, struct specification *s,
                      const struct jinja_value *value)
{
    if (value->type == JINJA_WIDE && s->given) jinja_fail_wide(run);
    if (value->type == JINJA_TEXT)
        field_text(run, out, s, value);
    else if (jinja_is_number(value) && value->type != JINJA_WIDE && (value->type != JINJA_BOOL || s->given))
        field_number(run, out, s, value);
    else if (!s->given)
        jinja_print(run, out, value);
    else
        jinja_fail(run, HELM_E_FORMAT, "'format': a specification of a %s", jinja_type_name(value));
}

/* The argument that the field's first word means: the next one, one by its number, or one by its name. */
static struct jinja_value find_argument(struct fields *f, const char *name, size_t length)
{
    struct jinja_run *run = f->c->run;
    const struct jinja_call *call = f->c->raw;
    const struct jinja_value word = jinja_text(name, length);
    const char *at = name;
    size_t index = f->next;
    const bool number = length > 0 && *name >= '0' && *name <= '9';
    if (!length) f->next++;
    if (number) index = (size_t)read_number(&at, name + length);
    f->counted = f->counted || !length;
    f->stated = f->stated || number;
    if (f->counted && f->stated)
        jinja_fail(run, HELM_E_FORMAT, "'format': fields with numbers beside fields without");
    if (!length || (number && at == name + length)) {
        if (index >= call->positional_count)
            jinja_fail(run, HELM_E_FORMAT, "'format': no argument for field %zu", index);
        return call->positional[index];
    }
    for (size_t i = 0; i < call->keyword_count; i++)
        if (jinja_same_text(&call->keyword_names[i], &word)) return call->keyword_values[i];
    jinja_fail(run, HELM_E_FORMAT, "'format': no argument '%.*s'", (int)length, name);
}

/* Follows ".name" and "[key]" after the value. */
static struct jinja_value follow_path(struct jinja_run *run, const char *at, const char *end,
                                      struct jinja_value value)
{
    while (at < end) {
        const bool key = *at++ == '[';
        const char *stop = at, *digits = at;
        while (stop < end && (key ? *stop != ']' : *stop != '.' && *stop != '[')) stop++;
        if (stop == at || (key && stop == end))
            jinja_fail(run, HELM_E_FORMAT, "'format': a field with an empty name");
        const int index = read_number(&digits, stop);
        const struct jinja_value name =
            key && digits == stop ? jinja_int(index) : jinja_text(at, (size_t)(stop - at));
        value = key ? jinja_getitem(run, &value, &name) : jinja_getattr(run, &value, &name);
        at = stop + key;
        if (at < end && *at != '.' && *at != '[')
            jinja_fail(run, HELM_E_FORMAT, "'format': only '.' or '[' may follow ']'");
    }
    return value;
}

/* Between the braces. */
static void add_field(struct fields *f, const char *at, const char *end, struct jinja_buffer *out)
{
    struct jinja_run *run = f->c->run;
    const char *path, *stop;
    struct specification s;
    for (stop = at; stop < end && *stop != '!' && *stop != ':';) stop += 1;
    for (path = at; path < stop && *path != '.' && *path != '[';) path++;
    struct jinja_value value = find_argument(f, at, (size_t)(path - at));
    value = follow_path(run, path, stop, value);
    if (stop < end && *stop == '!') {
        struct jinja_buffer shown = {0};
        if (stop + 1 == end || !strchr("rs", stop[1]) || (stop + 2 < end && stop[2] != ':'))
            jinja_fail(run, HELM_E_UNSUPPORTED, "'format' with such a conversion");
        (stop[1] == 'r' ? jinja_repr : jinja_print)(run, &shown, &value);
        value = jinja_buffer_text(&shown);
        stop += 2;
    }
    if (stop < end) stop++; /* the colon */
    read_specification(run, stop, end, &s);
    add_value(run, out, &s, &value);
}

struct jinja_value jinja_format_fields(const struct jinja_callable *c)
{
    const char *at = c->self.as.text.data, *end = at + c->self.as.text.bytes;
    struct fields f = {.c = c};
    struct jinja_buffer buffer = {0};
    while (at < end) {
        const char *brace = at;
        while (brace < end && *brace != '{' && *brace != '}') brace++;
        jinja_buffer_add(c->run, &buffer, at, (size_t)(brace - at));
        if (brace == end) break;
        if (brace + 1 < end && brace[1] == *brace) { /* twice: itself */
            jinja_buffer_add(c->run, &buffer, brace, 1);
            at = brace + 2;
            continue;
        }
        const char *close = brace + 1;
        while (close < end && *close != '}' && *close != '{') close++;
        if (*brace == '}' || close == end)
            jinja_fail(c->run, HELM_E_FORMAT, "'format': a single '%c'", *brace);
        if (*close == '{') jinja_fail(c->run, HELM_E_UNSUPPORTED, "'format' with a field inside a field");
        add_field(&f, brace + 1, close, &buffer);
        at = close + 1;
    }
    return jinja_buffer_text(&buffer);
}
