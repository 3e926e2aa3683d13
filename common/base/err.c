/* Errors: formatting into caller-owned buffers. See err.h. Called by everything; never allocates. */
#include "common/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int helm_fail(struct helm_err *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

int helm_fail_errno(struct helm_err *err, const char *fmt, ...)
{
    int saved = errno;
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = HELM_E_IO;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(saved));
    }
    return HELM_E_IO;
}

int helm_err_prefix(struct helm_err *err, const char *fmt, ...)
{
    if (!err) return HELM_E_INTERNAL;
    char old[HELM_ERR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    size_t used = (size_t)n < sizeof err->text ? (size_t)n : sizeof err->text - 1;
    snprintf(err->text + used, sizeof err->text - used, ": %.*s", HELM_ERR_TEXT - 1, old);
    if (err->code == 0) err->code = HELM_E_INTERNAL;
    return err->code;
}

const char *helm_code_name(int code)
{
    switch (code) {
    case HELM_OK:
        return "ok";
    case HELM_E_USAGE:
        return "usage";
    case HELM_E_NOMEM:
        return "no-memory";
    case HELM_E_IO:
        return "io";
    case HELM_E_NOT_FOUND:
        return "not-found";
    case HELM_E_FORMAT:
        return "format";
    case HELM_E_LIMIT:
        return "limit";
    case HELM_E_UNSUPPORTED:
        return "unsupported";
    case HELM_E_MISMATCH:
        return "mismatch";
    case HELM_E_CAPACITY:
        return "capacity";
    case HELM_E_BUSY:
        return "busy";
    case HELM_E_STATE:
        return "state";
    case HELM_E_PEER:
        return "peer";
    case HELM_E_CANCELLED:
        return "cancelled";
    case HELM_E_PERMISSION:
        return "permission";
    case HELM_E_INTERNAL:
        return "internal";
    case HELM_E_DEVICE:
        return "device";
    default:
        return "unknown";
    }
}
