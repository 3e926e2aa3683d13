/* helmd's counters as Prometheus reads them: the one place that makes this text. `helm-cli metrics` prints
 * it, the gateway's /metrics has it after the gateway's own counters. */
#pragma once

#include "client/shared/cli.h"

/* `status` NULL: no daemon answers (helm_up is 0, and all there is). `plan` NULL: unknown. Both are
 * borrowed. */
void daemon_metrics_write(const struct helm_status *status, const struct helm_plan_info *plan,
                          struct cli_text *out);
