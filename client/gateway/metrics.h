/* The gateway's counters, and /metrics: these and the daemon's status, as Prometheus reads them. */
#pragma once

#include <stdint.h>

#define METRICS_BUCKETS 14
#define METRICS_ROUTES  48 /* as many as routes.c may have */
#define METRICS_CLASSES 6  /* statuses by their hundreds; 0: the client went away before there was one */

/* Seconds in buckets, as Prometheus has histograms. */
struct metrics_histogram {
    uint64_t bucket[METRICS_BUCKETS + 1];
    double sum;
};

struct metrics {
    uint64_t requests[METRICS_ROUTES][METRICS_CLASSES];
    uint64_t prompt_tokens, completion_tokens;
    uint64_t cancelled, slow_dropped, refused_keys;
    struct metrics_histogram first_token, duration; /* of generations */
    struct metrics_histogram handover;              /* of streams: from a token's coming to its writing */
    struct metrics_histogram turn; /* of the loop: between two waits, everything else waits */
};

void metrics_observe(struct metrics_histogram *histogram, double seconds);

struct gateway;
struct inquiry_fact;
struct cli_text;
/* status, plan: what helmd said last; NULL: nothing, or it is gone. */
void metrics_write(struct gateway *gateway, const struct inquiry_fact *status,
                   const struct inquiry_fact *plan, struct cli_text *out);
