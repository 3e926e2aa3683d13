/* Forecasts of the running plan's steps: the cost model's answers, remembered, so that each step can be held
 * against one.
 *
 * Called by observe.c (which compares) and batcher.c (which sizes chunks). Owns its tables; borrows model,
 * plan and profile. Forecasts of decode steps are made at contexts that are powers of two and interpolated
 * between them, which is exact for attention's growth; where a cache of two tiers outgrows its places, on
 * either side of that alone. Those of other steps are made anew each time (some 50 us). */
#pragma once

#include "common/shared/arena_layout.h"
#include "daemon/planner/cost/cost.h"

#define FORECAST_CONTEXTS 30 /* powers of two up to MODEL_CONTEXT_MAX and beyond */
#define FORECAST_CELLS                                                                                       \
    (FORECAST_CONTEXTS + 2)     /* and the last that all has places in, and the one that follows it */
#define FORECAST_CHUNK_LEAST 16 /* tokens of a prompt that a step takes whatever others wait for */
/* The most time that a step takes which takes longer than it may with those already, in times of that. */
#define FORECAST_CHUNK_STRETCH 1.25

struct forecast {
    struct cost_case c;
    struct analyse_table analysed;
    struct cost_forecast *decode;   /* [slots][FORECAST_CELLS]; seconds 0: not asked yet */
    uint32_t *chunk;                /* [slots + 1][FORECAST_CONTEXTS]; 0: not asked yet */
    double chunk_seconds;           /* that they were asked for */
    bool reads;                     /* the link is the disk, which gives the same bytes in each step */
    uint64_t cpu_bytes, link_bytes; /* of weights, as they lie there, that a decode step reads and copies */
};

/* Fails where the profile does not say what the plan needs. forecast_close on the caller, also after an
 * error. */
HELM_MUST_CHECK int forecast_open(const struct model *model, const struct profile *profile,
                                  const struct plan *plan, struct forecast *forecast, struct helm_err *err);
void forecast_close(struct forecast *forecast);

/* A decode step of `batch` sequences (at most the plan's slots) that attend to `context` positions each. */
void forecast_decode(struct forecast *forecast, uint32_t batch, uint32_t context, struct cost_forecast *out);
/* Seconds of any step; 0 without memory to reckon in. */
double forecast_step(const struct forecast *forecast, const struct cost_step *step);
/* How many tokens of prompts may join a step in which `decoding` sequences get a token each, so that it takes
 * no longer than `seconds`: at least FORECAST_CHUNK_LEAST, at most what the plan's steps hold. Where even the
 * least do not keep within, as many as come nearly for free with them: weights that are streamed cross the
 * link once for any number of tokens. */
uint32_t forecast_chunk(struct forecast *forecast, uint32_t decoding, uint32_t context, double seconds);
