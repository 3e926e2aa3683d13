/* A step over a cache of two tiers (plan.h, arena_layout.h), of the GPU worker's host side: its page tables,
 * the pages that it fills, those that it fetches.
 *
 *   page table   of each position's page where the device finds it: a place in VRAM, a page of the arena, or
 *                nowhere in this step, when the CPU attends to it
 *   filled       of the decode tiers: copied to the arena by the compute queue, after the step's graph and
 *                in front of a step that was launched after it. The step is done when they are there. (A
 *                chunk's are part of its program.)
 *   fetched      by the copy queue, beside the step; the next step begins after them
 *
 * Called by step.c, follow.c and engine.c. With one tier nothing here is called but for gpu_tiers_open and
 * _close. */
#pragma once

#include "worker-gpu/program/program.h"

#define GPU_TIER_PLACES 2 /* of steps in the queue: GPU_FOLLOW_PLACES */

struct gpu_engine;

struct gpu_tiers {
    bool on;                      /* the plan has two tiers */
    bool stores[GPU_TIER_PLACES]; /* the step of this place has filled pages */
    _Atomic uint32_t *stored;     /* pinned, [GPU_TIER_PLACES]: becomes 1 when they are in the arena */
    struct device_event *fetched; /* the last step's fetched pages are there */
    bool fetching;                /* and no step has been put after that yet */
    uint32_t window;              /* of the model's layers that have one; 0: none has */
};

/* stored: pinned words, GPU_TIER_PLACES of them. */
HELM_MUST_CHECK int gpu_tiers_open(struct gpu_engine *g, _Atomic uint32_t *stored, struct helm_err *err);
void gpu_tiers_close(struct gpu_engine *g);
/* Line r of the step block's page tables, from row r of the batch. */
void gpu_tiers_fill(const struct gpu_engine *g, const struct gpu_program *p, uint32_t r);
/* Before the step's graph or list: after what was fetched. */
HELM_MUST_CHECK int gpu_tiers_begin(struct gpu_engine *g, struct helm_err *err);
/* After the graph of a decode tier's step in `place`, which takes the batch's rows `ahead` tokens further. */
HELM_MUST_CHECK int gpu_tiers_store(struct gpu_engine *g, uint32_t place, uint32_t ahead,
                                    struct helm_err *err);
HELM_MUST_CHECK int gpu_tiers_fetch(struct gpu_engine *g, const struct step *step, struct helm_err *err);
/* Waits until what the step in `place` has filled is in the arena. */
HELM_MUST_CHECK int gpu_tiers_finish(struct gpu_engine *g, uint32_t place, struct helm_err *err);
/* Bytes that the batch's step copies over the link between the tiers. */
uint64_t gpu_tiers_copied(const struct gpu_engine *g, const struct step *step);

/* With one tier: a page's cells on their way between VRAM and the arena's session region, for a session that
 * is saved or restored (arena_layout.h, STEP_KV_OUT). With two every page that a session can have lies in the
 * arena. Copies what the checked step says, and waits until it is there. HELM_E_MISMATCH: the region is too
 * small for a page's cells of the GPU's layers. */
HELM_MUST_CHECK int gpu_session_move(struct gpu_engine *g, const struct step *step, struct helm_err *err);
