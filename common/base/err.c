/* Errors: formatting into caller-owned buffers, as text that may be shown. See err.h. Called by everything;
 * never allocates. */
#include "common/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/printable.h"

static void fill(struct helm_err *err, int code, const char *fmt, va_list ap)
{
    char text[HELM_ERR_TEXT];
    if (!err) return;
    err->code = code;
    vsnprintf(text, sizeof text, fmt, ap);
    printable(err->text, sizeof err->text, text);
}

int helm_fail(struct helm_err *err, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, fmt, ap);
    va_end(ap);
    return code;
}

int helm_fail_errno(struct helm_err *err, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    fill(err, HELM_E_IO, fmt, ap);
    va_end(ap);
    size_t used = err ? strlen(err->text) : 0;
    if (err) snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(saved));
    return HELM_E_IO;
}

int helm_err_prefix(struct helm_err *err, const char *fmt, ...)
{
    if (!err) return HELM_E_INTERNAL;
    char old[HELM_ERR_TEXT], text[HELM_ERR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t used = printable(err->text, sizeof err->text, text);
    snprintf(err->text + used, sizeof err->text - used, ": %.*s", HELM_ERR_TEXT - 1, old);
    if (err->code == 0) err->code = HELM_E_INTERNAL;
    return err->code;
}

const char *helm_code_name(int code)
{
    static const char *const names[] = {
        [HELM_OK] = "ok",
        [-HELM_E_USAGE] = "usage",
        [-HELM_E_NOMEM] = "no-memory",
        [-HELM_E_IO] = "io",
        [-HELM_E_NOT_FOUND] = "not-found",
        [-HELM_E_FORMAT] = "format",
        [-HELM_E_LIMIT] = "limit",
        [-HELM_E_UNSUPPORTED] = "unsupported",
        [-HELM_E_MISMATCH] = "mismatch",
        [-HELM_E_CAPACITY] = "capacity",
        [-HELM_E_BUSY] = "busy",
        [-HELM_E_STATE] = "state",
        [-HELM_E_PEER] = "peer",
        [-HELM_E_CANCELLED] = "cancelled",
        [-HELM_E_PERMISSION] = "permission",
        [-HELM_E_INTERNAL] = "internal",
        [-HELM_E_DEVICE] = "device",
    };
    const size_t count = sizeof names / sizeof *names;
    return code <= 0 && code > -(int)count ? names[-code] : "unknown";
}
