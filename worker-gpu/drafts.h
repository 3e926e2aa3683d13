/* Drafts by the model's own layer on the device (common/worker/drafting.h). Called by engine.c and step.c.
 *
 * Owns its programs: of a step's tokens, which begin with its hidden states, and of drafts, which begin with
 * those of the drafts before them. They are issued anew each time, since they are short. */
#pragma once

#include "worker-gpu/program/program.h"

struct gpu_engine;

struct gpu_drafts {
    struct gpu_program first[GPU_TIER_COUNT],
        next[GPU_TIER_CHUNK]; /* empty: steps of this tier cannot occur */
    struct step_result drawn;
    bool running; /* a program that nothing has waited for: the end word is its own */
};

/* Lowers the programs where the plan has a layer of drafts and this engine the head, and runs each once, so
 * that all code is loaded. */
HELM_MUST_CHECK int gpu_drafts_open(struct gpu_engine *g, struct helm_err *err);
void gpu_drafts_close(struct gpu_engine *g);
/* After a step of this tier, whose result is written: computes the layer, and the drafts that its rows ask
 * for into the result. The batch and x are overwritten. If no row asks for drafts, the layer may still run
 * when this returns. */
HELM_MUST_CHECK int gpu_drafts_run(struct gpu_engine *g, enum gpu_tier tier, struct step_result *result,
                                   struct helm_err *err);
/* Waits for the layer, before the step's block or the end word are written again. */
HELM_MUST_CHECK int gpu_drafts_settle(struct gpu_engine *g, struct helm_err *err);
