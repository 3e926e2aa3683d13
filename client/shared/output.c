/* Reading and writing for helm-cli: messages, text buffers, lists of ids. See cli.h. Keeps no state. */
#include "client/shared/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/printable.h"

void cli_complain(const char *text)
{
    char line[2 * HELM_ERR_TEXT];
    if (!*text) return;
    size_t n = (size_t)snprintf(line, sizeof line, "%.64s: ", program_invocation_short_name);
    n += printable(line + n, sizeof line - n - 1, text);
    line[n++] = '\n';
    (void)!write(STDERR_FILENO, line, n); /* nowhere left to report it */
}

int cli_fail(const struct helm_err *err, bool begun)
{
    cli_complain(err->text);
    if (begun) return CLI_EXIT_FAILED;
    switch (err->code) {
    case HELM_E_USAGE:
        return CLI_EXIT_USAGE;
    case HELM_E_PEER:
    case HELM_E_INTERNAL:
    case HELM_E_IO:
    case HELM_E_NOMEM:
    case HELM_E_CANCELLED:
        return CLI_EXIT_FAILED;
    default:
        return CLI_EXIT_REFUSED;
    }
}

int cli_usage(const struct args_spec *spec, const char *fmt, ...)
{
    struct helm_err err = {.code = HELM_E_USAGE};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err.text, sizeof err.text, fmt, ap);
    va_end(ap);
    return args_usage_error(spec, &err);
}

int cli_write(const void *data, size_t bytes, struct helm_err *err)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(STDOUT_FILENO, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EPIPE) return helm_fail(err, HELM_E_IO, "%s", "");
        if (n < 0) return helm_fail_errno(err, "writing to standard output");
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int cli_read_all(int fd, const char *what, char **text, size_t *length, struct helm_err *err)
{
    size_t space = 65536, used = 0;
    char *data = malloc(space);
    *text = NULL;
    *length = 0;
    for (;;) {
        if (data && used + 1 >= space) {
            space *= 2;
            char *grown = realloc(data, space);
            if (!grown) free(data);
            data = grown;
        }
        if (!data) return helm_fail(err, HELM_E_NOMEM, "no memory for %s", what);
        ssize_t n = read(fd, data + used, space - used - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) break;
            int rc = helm_fail_errno(err, "reading %s", what);
            free(data);
            return rc;
        }
        used += (size_t)n;
        if (used > CLI_TEXT_MAX) {
            free(data);
            return helm_fail(err, HELM_E_LIMIT, "%s is longer than %zu bytes", what, CLI_TEXT_MAX);
        }
    }
    data[used] = 0;
    *text = data;
    *length = used;
    return 0;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

int cli_parse_ids(const char *what, const char *text, size_t length, uint32_t **ids, size_t *count,
                  struct helm_err *err)
{
    size_t begin = 0, end = length, used = 0, space = 64;
    *ids = NULL;
    *count = 0;
    while (begin < end && is_separator(text[begin])) begin++;
    while (end > begin && is_separator(text[end - 1])) end--;
    if (end - begin >= 2 && text[begin] == '[' && text[end - 1] == ']') {
        begin++;
        end--;
    }
    uint32_t *list = malloc(space * sizeof *list);
    if (!list) return helm_fail(err, HELM_E_NOMEM, "no memory for %s", what);
    for (size_t i = begin; i < end;) {
        if (is_separator(text[i])) {
            i++;
            continue;
        }
        uint64_t value = 0;
        size_t from = i;
        while (i < end && text[i] >= '0' && text[i] <= '9' && value <= UINT32_MAX)
            value = value * 10 + (uint64_t)(text[i++] - '0');
        if (i == from || value > UINT32_MAX || (i < end && !is_separator(text[i]))) {
            free(list);
            return helm_fail(err, HELM_E_USAGE, "%s: no token id (0 to %u) at byte %zu", what, UINT32_MAX,
                             from);
        }
        if (used == space) {
            space *= 2;
            uint32_t *grown = realloc(list, space * sizeof *list);
            if (!grown) {
                free(list);
                return helm_fail(err, HELM_E_NOMEM, "no memory for %s", what);
            }
            list = grown;
        }
        list[used++] = (uint32_t)value;
    }
    *ids = list;
    *count = used;
    return 0;
}

/* Room for `more` bytes and a NUL behind what is there; NULL: none. */
static char *text_reserve(struct cli_text *text, size_t more)
{
    if (text->space - text->length <= more && !text->failed) {
        size_t space = 2 * text->space + more + 64;
        char *grown = realloc(text->data, space);
        text->failed = !grown;
        if (grown) text->data = grown;
        if (grown) text->space = space;
    }
    return text->failed ? NULL : text->data + text->length;
}

/* What was written ends at `end`. */
static void text_end(struct cli_text *text, char *end)
{
    *end = 0;
    text->length = (size_t)(end - text->data);
}

void cli_text_add(struct cli_text *text, const char *data, size_t length)
{
    char *to = text_reserve(text, length);
    if (!to) return;
    if (length) memcpy(to, data, length);
    text_end(text, to + length);
}

void cli_text_printf(struct cli_text *text, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *to = n < 0 ? NULL : text_reserve(text, (size_t)n);
    text->failed |= n < 0;
    if (to) text_end(text, to + vsnprintf(to, (size_t)n + 1, fmt, again));
    va_end(ap);
    va_end(again);
}

void cli_text_json(struct cli_text *text, const char *data, size_t length)
{
    static const char plain[] = "\"\\\n\r\t", escaped[] = "\"\\nrt";
    char *to = text_reserve(text, 6 * length + 2); /* every byte may become \u00XX */
    if (!to) return;
    *to++ = '"';
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)data[i];
        const char *found = c ? strchr(plain, c) : NULL;
        const bool more = c == 0xc2 && i + 1 < length; /* C1 controls, some of which terminals obey */
        if (found) {
            *to++ = '\\';
            *to++ = escaped[found - plain];
        } else if (c < 32 || c == 127) {
            to += sprintf(to, "\\u%04x", c);
        } else if (more && (unsigned char)data[i + 1] >= 0x80 && (unsigned char)data[i + 1] < 0xa0) {
            to += sprintf(to, "\\u%04x", (unsigned char)data[++i]);
        } else {
            *to++ = (char)c;
        }
    }
    *to++ = '"';
    text_end(text, to);
}

void cli_text_shown(struct cli_text *text, const char *data, size_t length)
{
    char *to = text_reserve(text, 4 * length + 1); /* every byte may become \xNN */
    if (!to) return;
    for (size_t i = 0, taken; i < length; i += taken) {
        taken = 1;
        if (data[i] == '\n' || data[i] == '\t')
            *to++ = data[i];
        else
            to += printable_show(to, data + i, length - i, &taken);
    }
    text_end(text, to);
}

int cli_show(const char *data, size_t length, bool raw, struct helm_err *err)
{
    struct cli_text shown = {0};
    if (raw || !isatty(STDOUT_FILENO)) return cli_write(data, length, err);
    cli_text_shown(&shown, data, length);
    const int rc = cli_text_write(&shown, err);
    cli_text_free(&shown);
    return rc;
}

void cli_text_ids(struct cli_text *text, const uint32_t *ids, size_t count, bool brackets)
{
    char *to = text_reserve(text, 11 * count + 2); /* ten digits and a comma each */
    if (!to) return;
    if (brackets) *to++ = '[';
    for (size_t i = 0; i < count; i++) {
        char digits[10];
        int n = 0;
        uint32_t id = ids[i];
        do digits[n++] = (char)('0' + id % 10);
        while (id /= 10);
        if (i) *to++ = ',';
        while (n) *to++ = digits[--n];
    }
    if (brackets) *to++ = ']';
    text_end(text, to);
}

int cli_text_check(const struct cli_text *text, struct helm_err *err)
{
    return text->failed
               ? helm_fail(err, HELM_E_NOMEM, "no memory for a text of more than %zu bytes", text->space)
               : 0;
}

int cli_text_write(const struct cli_text *text, struct helm_err *err)
{
    int rc = cli_text_check(text, err);
    return rc ? rc : cli_write(text->data, text->length, err);
}

void cli_text_free(struct cli_text *text)
{
    free(text->data);
    *text = (struct cli_text){0};
}
