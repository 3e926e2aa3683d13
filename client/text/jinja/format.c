/* "text" % arguments, as Python's printf-style formatting has it: %s %r %d %i %f %x %%, flags, width and
 * precision. See jinja/value.h. Called for the % operator and the format filter. */
#include <math.h>
#include <stdio.h>

#include "client/text/jinja/value.h"

#define WIDTH_MAX 1000

struct conversion {
    bool left, zero, plus, space;
    int width, precision; /* precision: -1 for none */
    char kind;
};

static int parse_number(const char **at, const char *end)
{
    int number = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        number = number * 10 + (**at - '0');
        if (number > WIDTH_MAX) number = WIDTH_MAX + 1;
        (*at)++;
    }
    return number;
}

static struct conversion parse_conversion(struct jinja_run *run, const char **at, const char *end)
{
    struct conversion c = {.precision = -1};
    for (; *at < end && strchr("-0+ ", **at) && **at; (*at)++) {
        c.left |= **at == '-';
        c.zero |= **at == '0';
        c.plus |= **at == '+';
        c.space |= **at == ' ';
    }
    c.width = parse_number(at, end);
    if (*at < end && **at == '.') {
        (*at)++;
        c.precision = parse_number(at, end);
    }
    if (c.width > WIDTH_MAX || c.precision > WIDTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "a format with a width of more than %d", WIDTH_MAX);
    if (*at >= end) jinja_fail(run, HELM_E_FORMAT, "incomplete format");
    c.kind = *(*at)++;
    if (!c.kind || !strchr("srdifx%", c.kind))
        jinja_fail(run, HELM_E_UNSUPPORTED, "the format '%%%c'", c.kind);
    return c;
}

/* `body` with its sign, padded to the width: zeros go between the sign and the digits. */
static void add_padded(struct jinja_run *run, struct jinja_buffer *out, const struct conversion *c,
                       const struct jinja_value *body, bool number)
{
    const char *data = body->as.text.data;
    size_t bytes = body->as.text.bytes;
    int missing = c->width > (int)body->as.text.chars ? c->width - (int)body->as.text.chars : 0;
    bool zeros = number && c->zero && !c->left;
    if (zeros && bytes && strchr("+- ", *data)) {
        jinja_buffer_add(run, out, data++, 1);
        bytes--;
    }
    for (int i = 0; !c->left && i < missing; i++) jinja_buffer_add(run, out, zeros ? "0" : " ", 1);
    jinja_buffer_add(run, out, data, bytes);
    for (int i = 0; c->left && i < missing; i++) jinja_buffer_add(run, out, " ", 1);
}

static void add_number(struct jinja_run *run, struct jinja_buffer *out, const struct conversion *c,
                       const struct jinja_value *value)
{
    char text[2 * WIDTH_MAX + 400], *digits = text + 1;
    if (!jinja_is_number(value) || (c->kind == 'x' && value->type == JINJA_FLOAT))
        jinja_fail(run, HELM_E_FORMAT, "%%%c format: a number is required, not '%s'", c->kind,
                   jinja_type_name(value));
    if (value->type == JINJA_WIDE) jinja_fail_wide(run);
    double number = jinja_number(value);
    bool negative = number < 0 || (number == 0 && signbit(number) && c->kind == 'f');
    if (c->kind == 'f') {
        if (!isfinite(number)) jinja_fail(run, HELM_E_UNSUPPORTED, "%%f of what is not finite");
        snprintf(digits, sizeof text - 1, "%.*f", c->precision < 0 ? 6 : c->precision, fabs(number));
    } else {
        if (!jinja_is_whole(value) && !(fabs(number) < 9.2e18))
            jinja_fail(run, HELM_E_LIMIT, "%%d of a number of more than 64 bits");
        int64_t whole = jinja_is_whole(value) ? jinja_whole(value) : (int64_t)number;
        uint64_t size = whole < 0 ? 0 - (uint64_t)whole : (uint64_t)whole;
        negative = whole < 0;
        snprintf(digits, sizeof text - 1, c->kind == 'x' ? "%.*llx" : "%.*llu",
                 c->precision < 1 ? 1 : c->precision, (unsigned long long)size);
    }
    char sign = negative ? '-' : c->plus ? '+' : c->space ? ' ' : '\0';
    if (sign) *--digits = sign;
    const struct jinja_value body = jinja_text(digits, strlen(digits));
    add_padded(run, out, c, &body, true);
}

static void add_value(struct jinja_run *run, struct jinja_buffer *out, const struct conversion *c,
                      const struct jinja_value *value)
{
    struct jinja_buffer text = {0};
    if (c->kind == '%') {
        jinja_buffer_add(run, out, "%", 1);
    } else if (c->kind == 's' || c->kind == 'r') {
        (c->kind == 's' ? jinja_print : jinja_repr)(run, &text, value);
        struct jinja_value body = jinja_buffer_text(&text);
        if (c->precision >= 0)
            body = jinja_text(body.as.text.data, jinja_text_offset(&body, (size_t)c->precision));
        add_padded(run, out, c, &body, false);
    } else {
        add_number(run, out, c, value);
    }
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
        const struct conversion c = parse_conversion(run, &at, end);
        const bool takes = c.kind != '%';
        if (takes && used >= count) jinja_fail(run, HELM_E_FORMAT, "not enough arguments for format string");
        add_value(run, &buffer, &c, takes ? &list[used++] : NULL);
    }
    if (used < count && !(arguments->type == JINJA_DICT || arguments->type == JINJA_UNDEFINED ||
                          (arguments->type == JINJA_LIST && list == arguments)))
        jinja_fail(run, HELM_E_FORMAT, "not all arguments converted during string formatting");
    return jinja_buffer_text(&buffer);
}
