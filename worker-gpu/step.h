/* One step of the GPU worker: the step block, the program, the tokens.
 *
 * Called by engine.c. Owns nothing. */
#pragma once

#include "worker-gpu/engine.h"

/* Runs the step; where the plan gives the head to the GPU its result is filled in. An error means that the
 * worker cannot go on. */
HELM_MUST_CHECK int gpu_step_run(struct gpu_engine *engine, const struct step *step, struct helm_err *err);
/* Writes the step block for the engine's batch as this program reads it. */
void gpu_step_fill(const struct gpu_engine *engine, const struct gpu_program *program);
/* Runs a program over made-up tokens, without hand-overs: of a chunk every size that matrix products take. */
HELM_MUST_CHECK int gpu_step_warm(struct gpu_engine *engine, const struct gpu_program *program,
                                  struct helm_err *err);
/* After a failure: lets a queue that waits for a lane run to its end. Its results are not read: the epoch is
 * over. */
void gpu_step_abandon(struct gpu_engine *engine);
