/* A page's cells on their way between VRAM and the arena's session region, for a session that is saved or
 * restored (arena_layout.h, STEP_KV_OUT).
 *
 * Called by step.c. With one tier alone: with two every page that a session can have lies in the arena. Owns
 * nothing. */
#pragma once

#include "worker-gpu/engine.h"

/* Copies what the checked step says, and waits until it is there. HELM_E_MISMATCH: the region is too small
 * for a page's cells of the GPU's layers. */
HELM_MUST_CHECK int gpu_session_move(struct gpu_engine *g, const struct step *step, struct helm_err *err);
