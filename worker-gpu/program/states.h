/* The GPU's fixed states: the records of its layers in VRAM, and the copies between them and snapshots
 * (docs/state.md).
 *
 * Opened by engine.c; begun and ended around a launched step by step.c. The one place of this worker that
 * knows where a sequence's state lies. Copies go through the compute queue, so they are ordered with the
 * steps that read and write the slots. Snapshots lie in what engine.c has registered with the device. Owns
 * the slots. */
#pragma once

#include "common/plan/state.h"
#include "common/worker/batch.h"
#include "worker-gpu/device/device.h"

/* Records of one memory; neighbours of the same phases are one. */
struct gpu_records {
    struct state_layout layout;
    struct state_record *record;
    uint32_t count;
    char *slots; /* [slots] of the layout; NULL: there are no records */
};

struct gpu_states {
    struct gpu_records own, /* of the layers that the GPU decodes, in VRAM */
        borrowed; /* of the CPU's that it computes in prompts, in the arena: kernels reach them over the link
                   */
    char *snapshots; /* in the arena */
    uint64_t bytes;  /* of VRAM */
};

/* Sizes alone; then memory, zeroed. */
HELM_MUST_CHECK int gpu_states_plan(const struct plan *plan, enum plan_processor self,
                                    const struct arena *arena, struct gpu_states *states,
                                    struct helm_err *err);
HELM_MUST_CHECK int gpu_states_open(struct gpu_states *states, struct device *device, struct helm_err *err);
void gpu_states_close(struct gpu_states *states, struct device *device);

/* Whether a row has to be begun or left by copies; such a step cannot be launched after another
 * (follow.h). */
bool gpu_states_moves(const struct gpu_states *states, const struct step_row *row);
/* In front of a step of this phase: rows at position 0 get zeros, those with state_from that snapshot.
 * Borrowed states are written at once, since no other step is in flight with one of prompts. */
HELM_MUST_CHECK int gpu_states_begin(const struct gpu_states *states, struct device *device,
                                     const struct batch *batch, uint32_t phase, struct helm_err *err);
/* After it: records of rows that leave a snapshot after their last token, then *word becomes 1. *waits:
 * somebody must wait for that. */
HELM_MUST_CHECK int gpu_states_end(const struct gpu_states *states, struct device *device,
                                   const struct batch *batch, _Atomic uint32_t *word, bool *waits,
                                   struct helm_err *err);
/* The same of what is borrowed, once the step has ended. */
void gpu_states_give_back(const struct gpu_states *states, const struct batch *batch, uint32_t phase);
