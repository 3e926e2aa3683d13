/* When the oldest step in flight should end: as long after it began as the steps like it before. Steps of few
 * tokens alternate if their drafts are right at times, so each number of tokens has its own.
 *
 * Called by batcher.c, which tells it of steps, and by loop.c, which looks for the end without pause around
 * that time: waking up takes longer than everything else between two steps. Pure; owns nothing. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/engine_limits.h"

/* Polling begins this long before the expected end and ends this long after it: at least PACE_MARGIN_US, or
 * the step's time by PACE_MARGIN. */
#define PACE_MARGIN_US 100
#define PACE_MARGIN    32
/* The end of a longer step is not polled for. Waking up takes less than a hundredth of it, and polling takes
 * a CPU from workers that compute on all of them: their other threads then wait for the one that was held
 * up. */
#define PACE_LONGEST_US 8000

struct pace_size {
    uint64_t last_us, before_us; /* times of the last two steps of this size; 0: there was none */
};
struct pace {
    uint32_t rows, tokens; /* of the oldest step in flight, or the last one */
    uint64_t begun_us;     /* when it was rung, or the one before it was done */
    struct pace_size few[ENGINE_FEW_TOKENS +
                         1];    /* of so many rows, by tokens; of more tokens, as many as the last one, [0] */
    uint64_t from_us, until_us; /* the end is looked for between these; both 0: it is not */
};

/* A step was rung and none was in flight, or the one before it is done. */
void pace_begin(struct pace *pace, uint32_t rows, uint32_t tokens, uint64_t now_us);
/* It is done. */
void pace_end(struct pace *pace, uint64_t now_us);
/* It will not be. */
void pace_lost(struct pace *pace);
