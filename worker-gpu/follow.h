/* Steps launched after the one that runs, before the host has seen that one's end.
 *
 * Between two steps a device would wait for the host to see the end, note the tokens, write the next step's
 * block and launch its graph: 20 to 30 us on an H200, a hundredth of a token of 4B. So a step is put into the
 * device's queue at once where the engine computes everything, the step after the running one in the ring
 * (STEP_ROW_FOLLOWS) takes the same rows one token further, and the host draws no token of the running one.
 * The argmax turns the running step's block into its successor's: it writes the tokens and moves each
 * position one further. When the step's turn comes it is under way already, or done.
 *
 * Two programs of each tier take turns, each with an end word and a place for tokens of its own, so that what
 * the host still reads of one step is not written by the next. A page that a row enters is added to the
 * block's page table between the two steps.
 *
 * Called by step.c and engine.c. Owns its programs and their graphs. */
#pragma once

#include "worker-gpu/program/program.h"

#define GPU_FOLLOW_PLACES 2

struct gpu_engine;

struct gpu_follow {
    struct gpu_program program[GPU_TIER_COUNT][GPU_FOLLOW_PLACES]; /* by the place that they write to */
    struct gpu_program apart[GPU_TIER_CHUNK]
                            [GPU_FOLLOW_PLACES]; /* over a long context, where there are such */
    bool there[GPU_TIER_COUNT];                  /* steps of this tier can be launched so */
    bool running;                                /* the next step of the ring has been */
    uint32_t at;                     /* the place of the step that was launched last; 0: one with a block */
    uint32_t pages[ARENA_STEP_ROWS]; /* of each row, how many the device's page table has */
    uint64_t before_ns;              /* when the host saw the end of the last step */
    uint64_t usual_ns;               /* time of the last step whose end was seen */
    uint64_t launched, steps;        /* so far: after another, and all */
};

/* Where what a step writes in place `at` finds and says goes. */
struct gpuk_token *gpu_follow_tokens(const struct gpu_engine *g, uint32_t at);
_Atomic uint32_t *gpu_follow_end(const struct gpu_engine *g, uint32_t at);
/* After everything was captured: makes the programs where the engine's decode steps are its own from the
 * embedding to the argmax. */
HELM_MUST_CHECK int gpu_follow_open(struct gpu_engine *g, struct helm_err *err);
void gpu_follow_close(struct gpu_engine *g);
/* A step of the batch begins. True: it was launched after the one before, and is the batch's from here on.
 * Not `running` any more either way. */
bool gpu_follow_take(struct gpu_engine *g);
/* After the batch's own step, whose draws have been asked for: launches the next one, if it is in the ring
 * and follows. *looked: whether it was there to be looked at, so that it need not be again. */
HELM_MUST_CHECK int gpu_follow_launch(struct gpu_engine *g, const struct step *step, bool *looked,
                                      struct helm_err *err);
/* Waits for the end of one that runs and will not be asked for: the worker ends. */
HELM_MUST_CHECK int gpu_follow_settle(struct gpu_engine *g, struct helm_err *err);
