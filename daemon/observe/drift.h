/* Measured beside planned: how long steps take and how long they should, by kind of step; and when that
 * drifts apart, the resource that explains it.
 *
 * Called by observe.c after each step and by serve.c for the Plan reply. Pure: knows no clock and no log.
 * Owns nothing outside its struct. "A minute" is one of decoding: idle time neither sustains a drift nor ends
 * it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/shared/arena_layout.h"

#define DRIFT_LIMIT          0.15 /* of the planned time */
#define DRIFT_BUCKET_SECONDS 10.0 /* of decode steps: within them single slow steps do not count */
#define DRIFT_BUCKETS        6    /* in a row make a drift */
#define DRIFT_BUCKETS_END    3    /* in a row within the limit end it */
#define DRIFT_SAMPLES        64   /* the latest of each kind, of which the median is shown */
#define DRIFT_TTFTS          28   /* kinds of prompts: of 2^i to 2^(i+1) - 1 tokens */
#define DRIFT_TEXT           200

/* The work of one step, or a sum over steps. */
struct drift_work {
    double seconds;
    double cpu_busy, gpu_busy;      /* seconds; the GPU's with its waits for the link and hand-overs */
    double gpu_computes, link_busy; /* of them, and of the link, or the disk: known of plans only */
    double cpu_bytes, link_bytes;   /* of weights */
};

struct drift_kind {
    uint64_t count;                                        /* of all; the latest are kept */
    float measured[DRIFT_SAMPLES], planned[DRIFT_SAMPLES]; /* seconds; planned 0: unknown */
    float shape[DRIFT_SAMPLES];                            /* context of a decode step, tokens of a prompt */
};

struct drift {
    struct drift_kind decode[ARENA_SLOTS_MAX]; /* by sequences in the step, less one */
    struct drift_kind ttft[DRIFT_TTFTS];
    struct drift_work measured, planned; /* sums over all decode steps that a plan is known for */
    struct {
        struct drift_work measured, planned;
    } bucket[DRIFT_BUCKETS]; /* ring; bucket[buckets % DRIFT_BUCKETS] is being filled */
    uint64_t buckets;
    uint32_t slow, fast, within; /* buckets in a row that are beyond the limit, and within it */
    bool drifting;
    char text[DRIFT_TEXT]; /* while drifting, and at its end: what is to be said of it */
};

enum drift_event { DRIFT_NOTHING, DRIFT_BEGINS, DRIFT_ENDS };

/* A decode step of `batch` sequences with `context` positions each (the mean). An event is told once; its
 * words are in drift->text. */
enum drift_event drift_take_decode(struct drift *drift, uint32_t batch, double context,
                                   const struct drift_work *measured, const struct drift_work *planned);
/* From a prompt's first step to its first token, nothing else being computed. */
void drift_take_ttft(struct drift *drift, uint32_t tokens, double measured, double planned);

/* Medians of a kind's latest samples; false when there are none. planned is 0 where it is unknown. */
struct drift_report {
    uint64_t count;
    double shape, measured, planned;
};
bool drift_report(const struct drift_kind *kind, struct drift_report *report);
