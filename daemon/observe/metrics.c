/* Counters for Status. See metrics.h. */
#include "daemon/observe/metrics.h"

#include <string.h>

#include "common/base/units.h"

/* Times of one decade three or four times each: quantiles read from them are right within a factor of 1.6 to
 * 2.5. */
static const double waits[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                               1,     2.5,    5,     10,   25,    50,   100, 250,  600};
static const double tokens[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.025,
                                0.04,   0.06,    0.1,    0.15,  0.25,   0.5,   1,    2.5,   10};
static const double sequences[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

#define BOUNDS(array) array, sizeof array / sizeof *array
static const struct {
    const double *bound;
    uint32_t count;
} kinds[METRICS_KINDS] = {
    [METRICS_QUEUE] = {BOUNDS(waits)},
    [METRICS_TTFT] = {BOUNDS(waits)},
    [METRICS_TPOT] = {BOUNDS(tokens)},
    [METRICS_STEP_SEQUENCES] = {BOUNDS(sequences)},
};
static_assert(sizeof waits / sizeof *waits <= METRICS_BUCKETS &&
                  sizeof tokens / sizeof *tokens <= METRICS_BUCKETS,
              "a bucket for each bound");
static_assert(ARENA_SLOTS_MAX == 64, "the last bound of `sequences` is what a step can hold");

const double *metrics_bounds(enum metrics_kind kind, uint32_t *count)
{
    *count = kinds[kind].count;
    return kinds[kind].bound;
}

void metrics_add_value(struct metrics *metrics, enum metrics_kind kind, double value)
{
    struct metrics_histogram *h = &metrics->histogram[kind];
    uint32_t at = 0;
    while (at < kinds[kind].count && value > kinds[kind].bound[at]) at++;
    h->bucket[at]++;
    h->sum += value;
}

void metrics_add_request(struct metrics *metrics, const struct metrics_request *request)
{
    if (request->finish < METRICS_ENDS) metrics->ended[request->finish]++;
    if (request->queue_seconds >= 0) metrics_add_value(metrics, METRICS_QUEUE, request->queue_seconds);
    if (request->ttft_seconds >= 0) metrics_add_value(metrics, METRICS_TTFT, request->ttft_seconds);
    if (request->tpot_seconds >= 0) metrics_add_value(metrics, METRICS_TPOT, request->tpot_seconds);
}

void metrics_add_refusal(struct metrics *metrics, uint32_t code)
{
    if (code < METRICS_REFUSALS) metrics->refused[code]++;
}

void metrics_init(struct metrics *metrics)
{
    memset(metrics, 0, sizeof *metrics);
    metrics->started_us = units_now_us();
}

void metrics_add_step(struct metrics *metrics, const struct step_result *result,
                      const struct arena_times *done, uint32_t workers, uint64_t step_ns)
{
    uint64_t busy_ns = 0;
    for (uint32_t w = 0; w < workers; w++) {
        busy_ns += done[w].busy_ns;
        metrics->link_bytes += done[w].link_bytes;
        metrics->worker[w].busy_ns += done[w].busy_ns;
        metrics->worker[w].wait_ns += done[w].wait_ns;
        metrics->worker[w].weight_bytes += done[w].weight_bytes;
        metrics->worker[w].link_bytes += done[w].link_bytes;
    }
    metrics->step_ns += step_ns;
    if (step_ns > busy_ns) metrics->nobody_ns += step_ns - busy_ns; /* they take turns */
    metrics_add_value(metrics, METRICS_STEP_SEQUENCES, result->row_count);
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
