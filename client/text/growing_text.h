/* Text growing in memory. Called by helm-cli, the gateway and the parser of answers; not part of libhelm's
 * API. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Text growing in memory. Once memory was short nothing is added any more; cli_text_check says so. */
struct cli_text {
    char *data; /* NUL-terminated once something was added */
    size_t length, space;
    bool failed;
};
void cli_text_add(struct cli_text *text, const char *data, size_t length);
void cli_text_printf(struct cli_text *text, const char *fmt, ...) HELM_PRINTF(2, 3);
/* Each control character but tab and newline, and each byte that is no UTF-8, is \xNN. */
void cli_text_shown(struct cli_text *text, const char *data, size_t length);
/* A JSON string with its quotes; C1 controls are escaped, too, since some terminals obey them. */
void cli_text_json(struct cli_text *text, const char *data, size_t length);
/* "[1,2,3]", or without brackets "1,2,3". */
void cli_text_ids(struct cli_text *text, const uint32_t *ids, size_t count, bool brackets);
void cli_text_free(struct cli_text *text);
