/* Reading and writing for helm-cli: messages, lists of ids. See cli.h. Keeps no state. */
#include "client/shared/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/grow.h"
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
    char part[65536];
    struct cli_text all = {0};
    ssize_t n;
    int rc = 0;
    *text = NULL;
    *length = 0;
    cli_text_add(&all, "", 0);
    while (!rc && (n = read(fd, part, sizeof part)) != 0) {
        if (n > 0) cli_text_add(&all, part, (size_t)n);
        if (n < 0 && errno != EINTR) rc = helm_fail_errno(err, "reading %s", what);
        if (all.failed) break;
        if (all.length > CLI_TEXT_MAX)
            rc = helm_fail(err, HELM_E_LIMIT, "%s is longer than %zu bytes", what, CLI_TEXT_MAX);
    }
    if (!rc && all.failed) rc = helm_fail(err, HELM_E_NOMEM, "no memory for %s", what);
    if (rc) {
        cli_text_free(&all);
        return rc;
    }
    *text = all.data;
    *length = all.length;
    return 0;
}

int cli_read_operand(const char *operand, bool prompt, char **text, size_t *length, struct helm_err *err)
{
    if (operand && strcmp(operand, "-") != 0) {
        *text = strdup(operand);
        *length = strlen(operand);
        return *text ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the text");
    }
    int rc = cli_read_all(STDIN_FILENO, "standard input", text, length, err);
    if (rc == 0 && prompt && *length && (*text)[*length - 1] == '\n') (*text)[--*length] = 0;
    return rc;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

int cli_parse_ids(const char *what, const char *text, size_t length, uint32_t **ids, size_t *count,
                  struct helm_err *err)
{
    size_t begin = 0, end = length, space = 0;
    int rc = 0;
    *ids = NULL;
    *count = 0;
    while (begin < end && is_separator(text[begin])) begin++;
    while (end > begin && is_separator(text[end - 1])) end--;
    if (end - begin >= 2 && text[begin] == '[' && text[end - 1] == ']') {
        begin++;
        end--;
    }
    for (size_t i = begin; !rc && i < end;) {
        if (is_separator(text[i])) {
            i++;
            continue;
        }
        uint64_t value = 0;
        size_t from = i;
        while (i < end && text[i] >= '0' && text[i] <= '9' && value <= UINT32_MAX)
            value = value * 10 + (uint64_t)(text[i++] - '0');
        if (i == from || value > UINT32_MAX || (i < end && !is_separator(text[i])))
            rc =
                helm_fail(err, HELM_E_USAGE, "%s: no token id (0 to %u) at byte %zu", what, UINT32_MAX, from);
        else if (!GROW(*ids, *count, space))
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for %s", what);
        else
            (*ids)[(*count)++] = (uint32_t)value;
    }
    if (!rc && !*ids && !(*ids = malloc(sizeof **ids)))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %s", what);
    if (rc) {
        free(*ids);
        *ids = NULL;
        *count = 0;
    }
    return rc;
}

int cli_read_ids(const char *tokens, const char *tokens_file, uint32_t **ids, size_t *count,
                 struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    if (tokens) return cli_parse_ids("--tokens", tokens, strlen(tokens), ids, count, err);
    int rc = file_read(tokens_file, CLI_TEXT_MAX, &text, &length, err);
    if (!rc) rc = cli_parse_ids(tokens_file, text, length, ids, count, err);
    free(text);
    return rc;
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
