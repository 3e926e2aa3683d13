/* Counters for Status: what was done, how long it took, and where the workers' time went. Plain sums and
 * histograms, written by batcher.c and serve.c and read by serve.c; all run in the one loop, so there is
 * nothing to lock. */
#pragma once

#include <stdint.h>

#include "common/shared/arena_layout.h"

/* Totals of one worker over all its restarts: they never fall. */
struct metrics_worker {
    uint64_t busy_ns, wait_ns, weight_bytes, link_bytes;
};

#define METRICS_BUCKETS  18 /* that any histogram has at most, without the one beyond its last bound */
#define METRICS_ENDS     8  /* finish reasons and error codes: numbers of helm.proto below these */
#define METRICS_REFUSALS 16

enum metrics_kind {
    METRICS_QUEUE,          /* seconds until a request had a slot */
    METRICS_TTFT,           /* seconds from a request's admission to its first token */
    METRICS_TPOT,           /* seconds a token after the first, a request's mean */
    METRICS_STEP_SEQUENCES, /* sequences that a step computed */
    METRICS_KINDS
};
/* Upper bounds of a kind's buckets, rising; *count of them. */
const double *metrics_bounds(enum metrics_kind kind, uint32_t *count);

struct metrics_histogram {
    uint64_t bucket[METRICS_BUCKETS + 1]; /* values of this bucket alone */
    double sum;
};

struct metrics {
    uint64_t started_us;
    uint64_t ready_us; /* first READY: idle time counts from here; 0 before */
    uint64_t requests_total, tokens_prompt_total, tokens_output_total, steps_total;
    uint64_t preemptions_total, restarts_total;
    uint64_t prefix_hits_total,
        tokens_found_total; /* requests whose prompts' pages were there; tokens of these */
    uint64_t tokens_drafted_total, tokens_accepted_total;
    double with_drafts_s, without_drafts_s; /* as Status has them */
    uint64_t busy_ns, linear_ns, attention_ns, sample_ns;
    uint64_t step_ns;                   /* steps from one to the next, as helmd sees them */
    uint64_t nobody_ns;                 /* the part of step_ns in which no worker computed */
    uint64_t link_bytes;                /* of all workers */
    uint64_t ended[METRICS_ENDS];       /* accepted requests, by finish reason */
    uint64_t refused[METRICS_REFUSALS]; /* others, by error code */
    struct metrics_histogram histogram[METRICS_KINDS];
    struct metrics_worker worker[ARENA_WORKERS_MAX];
};

/* An accepted request that is over. Seconds below 0: it did not come so far. */
struct metrics_request {
    uint32_t finish; /* Helm__V1__FinishReason */
    double queue_seconds, ttft_seconds, tpot_seconds;
};

void metrics_init(struct metrics *metrics);
/* `done`: what each of the workers wrote of its part; `step_ns`: the step's time as helmd saw it. */
void metrics_add_step(struct metrics *metrics, const struct step_result *result,
                      const struct arena_times *done, uint32_t workers, uint64_t step_ns);
void metrics_add_request(struct metrics *metrics, const struct metrics_request *request);
/* `code`: Helm__V1__ErrorCode of the answer. */
void metrics_add_refusal(struct metrics *metrics, uint32_t code);
void metrics_add_value(struct metrics *metrics, enum metrics_kind kind, double value);
double metrics_idle_seconds(const struct metrics *metrics);
