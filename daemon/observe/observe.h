/* Looks at every step that was done: its time beside the one that the plan forecasts for it.
 *
 * Called by batcher.c. Owns the forecast and the drift; writes to the log when a drift begins or ends. */
#pragma once

#include "common/shared/arena_layout.h"
#include "daemon/observe/drift.h"
#include "daemon/observe/forecast.h"
#include "daemon/observe/step_prices.h"

#define OBSERVE_NO_WORKER UINT32_MAX

/* A prompt that is being computed in some slot, for its time to the first token. */
struct observe_prompt {
    uint32_t given; /* tokens that its sequence had then: rows that begin before their end are no answer's */
    bool alone;     /* so far, no other sequence was in its steps */
    uint32_t tokens;
    double measured, planned;
};

struct observe {
    struct forecast forecast;
    struct drift drift;
    struct step_prices prices;
    uint32_t cpu, gpu; /* indices of their times; OBSERVE_NO_WORKER */
    uint32_t gpus;     /* from `gpu` on */
    double max_stall;  /* seconds; 0: no bound */
    struct observe_prompt prompt[ARENA_SLOTS_MAX];
};

/* The forecast is opened by the caller (forecast_open), before. gpus: workers of devices, the last of all. */
void observe_init(struct observe *observe, uint32_t cpu, uint32_t gpu, uint32_t gpus, uint64_t max_stall_ms);
/* Seconds that a step should take; 0: unknown. */
double observe_planned(struct observe *observe, const struct step *step);
/* Holds what the workers say of a step of step_ns against that: no more than all of it; and since they take
 * turns, the second of two workers waited while the first computed, also one on a device that cannot tell,
 * but for what the first may have done before the second's part of the step or after it. done[0] is the CPU
 * worker's, where there is one. With three workers each one's word stands. In a step flagged STEP_KV_ASSISTED
 * both compute at once: then only the first of it. */
void observe_settle(struct arena_times *done, uint32_t workers, uint64_t step_ns, uint32_t step_flags);
/* Both processors' words on a step (copied out of shared memory) and what it took as a whole, of which
 * `further` are as step_prices_take has them. */
void observe_step(struct observe *observe, const struct step *step, const struct arena_times *done,
                  double further, double seconds);
/* Another sequence is in this slot now, with `tokens` tokens: its prompt, and its answer so far if it is
 * computed again. */
void observe_enter(struct observe *observe, uint32_t slot, uint32_t tokens);
/* The workers were lost: what was being computed begins anew. */
void observe_lost(struct observe *observe);
/* Tokens of prompts that a step may hold beside `decoding` sequences that decode; 0: no bound. */
uint32_t observe_prompt_tokens(struct observe *observe, uint32_t decoding, uint32_t context);
