/* The step behind the one that runs, launched before anybody asked for it.
 *
 * Between two steps of one sequence the device would wait for the host: the end has to be seen, the token
 * checked and sent for, the next step rung, its block written, its graph launched. All of that was 20 to
 * 30 us on an H200, a hundredth of a token of 4B. So where helmd says that a row goes on (STEP_ROW_AHEAD),
 * the engine computes everything and nothing is drawn on the host, the successor's graph is put into the
 * queue right behind the step's own: the argmax has left the step block as the successor's, its token in it
 * and the position one further. When helmd then asks for just that step, it is under way already, or done.
 *
 * What helmd asks for instead, because the token ended the sequence or somebody else has come, waits for the
 * end of the step that nobody wanted: one step at most. That one has written the KV of a position that the
 * sequence had room for, and whoever has those pages now computes behind it.
 *
 * Two programs take turns, each with an end word and a place for the token of its own, so that what the host
 * still reads of one step is not written by the next. Page tables are those of the last step that came with
 * a block: at a page's end one step is launched as it always was.
 *
 * Called by step.c and engine.c. Owns its two programs and their graphs. */
#ifndef HELM_WORKER_GPU_AHEAD_H
#define HELM_WORKER_GPU_AHEAD_H

#include "worker-gpu/program.h"

struct gpu_engine;

struct gpu_ahead {
    struct gpu_program program[2]; /* by the place that they write to */
    bool there;                    /* steps can be launched ahead */
    bool running;                  /* one is: the row below, into place `at` */
    uint32_t at;                   /* the place of the step that was launched last; 0: one with a block */
    uint32_t slot, start;          /* what it computes */
    uint32_t pages;                /* lines of the page table that the device has, since the last block */
    uint64_t before_ns;            /* when the host saw the end of the last step */
    uint64_t usual_ns;             /* what the last step took whose end was seen */
    uint64_t taken, unwanted;      /* steps so far: asked for when they were under way, or not at all */
};

/* Where what step `at` finds and says goes. */
struct gpuk_token *gpu_ahead_tokens(const struct gpu_engine *g, uint32_t at);
_Atomic uint32_t *gpu_ahead_end(const struct gpu_engine *g, uint32_t at);
/* After everything was captured: makes the programs where the engine's decode step is its own from the
 * embedding to the argmax and captured. */
HELM_MUST_CHECK int gpu_ahead_open(struct gpu_engine *g, struct helm_err *err);
void gpu_ahead_close(struct gpu_engine *g);
/* Whether the step that runs ahead is what the batch asks for. True: it is the batch's from here on. */
bool gpu_ahead_take(struct gpu_engine *g);
/* Waits for the end of one that runs and that nobody wants. */
HELM_MUST_CHECK int gpu_ahead_settle(struct gpu_engine *g, struct helm_err *err);
/* Behind the batch's own step: launches its successor, where helmd and the draws allow. */
HELM_MUST_CHECK int gpu_ahead_launch(struct gpu_engine *g, struct helm_err *err);

#endif
