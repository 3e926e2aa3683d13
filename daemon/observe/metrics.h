/* Counters for Status: what was done and where the workers' time went. Plain sums, written by batcher.c and
 * read by serve.c; both run in the one loop, so there is nothing to lock. */
#ifndef HELM_DAEMON_OBSERVE_METRICS_H
#define HELM_DAEMON_OBSERVE_METRICS_H

#include <stdint.h>

#include "common/shared/arena_layout.h"

/* Of one worker, all its lives together: never falls. */
struct metrics_worker {
    uint64_t busy_ns, wait_ns, weight_bytes, link_bytes;
};

struct metrics {
    uint64_t started_us;
    uint64_t ready_us; /* first READY: idle time counts from here; 0 before */
    uint64_t requests_total, tokens_prompt_total, tokens_output_total, steps_total;
    uint64_t preemptions_total, restarts_total;
    uint64_t prefix_hits_total,
        tokens_found_total; /* requests whose prompts' pages were there; tokens of these */
    uint64_t busy_ns, linear_ns, attention_ns, sample_ns;
    uint64_t step_ns; /* steps from one to the next, as helmd sees them */
    struct metrics_worker worker[ARENA_WORKERS_MAX];
};

void metrics_init(struct metrics *metrics);
/* `done`: what each of the workers wrote of its part; `step_ns`: the step's time as helmd saw it. */
void metrics_add_step(struct metrics *metrics, const struct step_result *result,
                      const struct arena_times *done, uint32_t workers, uint64_t step_ns);
double metrics_idle_seconds(const struct metrics *metrics);

#endif
