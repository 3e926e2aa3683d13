/* Counters for Status. See metrics.h. */
#include "daemon/observe/metrics.h"

#include <string.h>

#include "common/base/units.h"

void metrics_init(struct metrics *metrics)
{
    memset(metrics, 0, sizeof *metrics);
    metrics->started_us = units_now_us();
}

void metrics_add_step(struct metrics *metrics, const struct step_result *result,
                      const struct arena_times *done, uint32_t workers, uint64_t step_ns)
{
    for (uint32_t w = 0; w < workers; w++) {
        metrics->worker[w].busy_ns += done[w].busy_ns;
        metrics->worker[w].wait_ns += done[w].wait_ns;
        metrics->worker[w].weight_bytes += done[w].weight_bytes;
        metrics->worker[w].link_bytes += done[w].link_bytes;
    }
    metrics->step_ns += step_ns;
    metrics->steps_total++;
    metrics->busy_ns += result->compute_ns;
    metrics->linear_ns += result->linear_ns;
    metrics->attention_ns += result->attention_ns;
    metrics->sample_ns += result->sample_ns;
}

double metrics_idle_seconds(const struct metrics *metrics)
{
    if (!metrics->ready_us) return 0;
    double up = (double)(units_now_us() - metrics->ready_us) / 1e6, busy = (double)metrics->busy_ns / 1e9;
    return up > busy ? up - busy : 0;
}
