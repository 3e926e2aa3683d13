/* Why a request is refused, before it is written in the shape that its client expects.
 *
 * Called by everything in the gateway that can refuse. Texts are UTF-8; what of them came from a stranger is
 * escaped where they are written. */
#pragma once

#include <stdbool.h>

#include "common/base/err.h"

struct refusal {
    int status;       /* of HTTP; 0: nothing is refused */
    const char *code; /* a constant such as "context_length_exceeded" */
    char param[128];  /* the field, or "" */
    char text[HELM_ERR_TEXT];
};

/* Fills it in and returns false, for `return refuse(...)`. param may be NULL. */
bool refuse(struct refusal *refusal, int status, const char *code, const char *param, const char *fmt, ...)
    HELM_PRINTF(5, 6);

/* The same of a libhelm error: its code picks the status. */
bool refuse_err(struct refusal *refusal, const char *param, int code, const char *text);
