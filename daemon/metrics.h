/* Counters for Status: what was done and where the workers' time went. Plain sums, written by batcher.c and
 * read by serve.c; both run in the one loop, so there is nothing to lock. */
#ifndef HELM_DAEMON_METRICS_H
#define HELM_DAEMON_METRICS_H

#include <stdint.h>

#include "common/arena_layout.h"

struct metrics {
    uint64_t started_us;
    uint64_t ready_us; /* first READY: idle time counts from here; 0 before */
    uint64_t requests_total, tokens_prompt_total, tokens_output_total, steps_total;
    uint64_t preemptions_total, restarts_total;
    uint64_t busy_ns, linear_ns, attention_ns, sample_ns;
};

void metrics_init(struct metrics *metrics);
void metrics_add_step(struct metrics *metrics, const struct step_result *result);
double metrics_idle_seconds(const struct metrics *metrics);

#endif
