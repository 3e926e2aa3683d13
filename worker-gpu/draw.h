/* Tokens of a step's sampled rows, from logits that lie on the device.
 *
 * Called by step.c, and by engine.c which owns it. A greedy token is the graph's own argmax. For any other,
 * common/sampling/sampling.h says which numbers of the row the draw needs; they are asked for in the compute
 * queue after the step: candidates found by a kernel, or the whole row copied into the arena. */
#pragma once

#include "common/shared/arena.h"
#include "worker-gpu/kernels/kernels_few.h"

struct gpu_engine;
struct gpuk_token;

struct gpu_draw {
    struct gpuk_few_room *room; /* pinned, [samples] */
    _Atomic uint32_t *done;     /* pinned: becomes 1 when all of it is there */
    uint32_t *times;            /* [samples][SAMPLING_CHANGES_MAX] */
    struct sampling_changes changes[ARENA_STEP_ROWS];
    struct gpuk_few few[ARENA_STEP_ROWS]; /* few[i].row: index of the sample */
    uint32_t few_count;
    uint32_t row[ARENA_STEP_ROWS]; /* samples whose whole row is copied */
    uint32_t row_count;
    uint32_t further; /* tokens after a sampled position that are known: of drafts (drafting.h) */
    bool copy_rows;   /* into the arena, also where candidates suffice: for a caller that wants logits */
    /* of all steps: drawn from candidates, from rows; rows among them that candidates were not enough for */
    uint64_t from_few, from_rows, not_enough;
};

HELM_MUST_CHECK int gpu_draw_open(struct gpu_engine *g, struct helm_err *err);
void gpu_draw_close(struct gpu_engine *g);
/* After the step's last operation: asks the device for what the batch's samples need. */
HELM_MUST_CHECK int gpu_draw_queue(struct gpu_engine *g, struct helm_err *err);
/* When the step's end word is written: draws. found: the argmax of each sample. */
HELM_MUST_CHECK int gpu_draw_finish(struct gpu_engine *g, const struct gpuk_token *found,
                                    struct step_result *result, struct helm_err *err);

/* Rows whose hidden states are pooled (STEP_ROW_POOL_...), where the head is the GPU's.
 *
 * Called by step.c once a step's draws are done and before the next one may be launched: the residual stream
 * is in the workspace still. It is copied to the arena's logits, which are unused at that time, a few rows at
 * a time, and the host pools it (common/worker/batch.h). That saves two kernels and costs copies: 8 MiB for
 * a chunk of 512 tokens of 4,096 numbers. */
HELM_MUST_CHECK int gpu_pool_rows(struct gpu_engine *g, struct helm_err *err);
