/* Refusals. See refusal.h. */
#include "client/gateway/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/printable.h"

/* A text that was cut must not end inside a character. */
static void end_whole(char *text)
{
    const size_t length = strlen(text);
    enum utf8_state state;
    for (size_t at = 0; at < length;) {
        const size_t step = utf8_step(text + at, length - at, &state);
        if (state == UTF8_INCOMPLETE) text[at] = '\0';
        at += step;
    }
}

bool refuse(struct refusal *refusal, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    refusal->status = status;
    refusal->code = code;
    snprintf(refusal->param, sizeof refusal->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(refusal->text, sizeof refusal->text, fmt, ap);
    va_end(ap);
    end_whole(refusal->param);
    end_whole(refusal->text);
    return false;
}

bool refuse_err(struct refusal *refusal, const char *param, int code, const char *text)
{
    static const struct {
        int from, status;
        const char *code;
    } rows[] = {
        {HELM_E_BUSY, 429, "server_busy"},
        {HELM_E_CAPACITY, 400, "context_length_exceeded"},
        {HELM_E_STATE, 503, "model_not_ready"},
        {HELM_E_PEER, 503, "daemon_lost"},
        {HELM_E_NOT_FOUND, 404, "not_found"},
        {HELM_E_FORMAT, 400, "invalid_value"},
        {HELM_E_LIMIT, 400, "invalid_value"},
        {HELM_E_MISMATCH, 400, "invalid_value"},
        {HELM_E_UNSUPPORTED, 400, "unsupported_value"},
        {HELM_E_CANCELLED, 503, "cancelled"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].from == code) return refuse(refusal, rows[i].status, rows[i].code, param, "%s", text);
    return refuse(refusal, 500, "internal_error", param, "%s", text);
}
