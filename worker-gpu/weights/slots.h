/* Experts that lie in VRAM beside host memory (plan.h, `mixed`): their slots, filled at load and kept by what
 * tokens choose.
 *
 * Called by engine.c (load), by step.c at the begin and the end of each step, and by lowering, which takes
 * addresses. Kernels of a decode step leave its tokens' choice in host memory. At its end the policy
 * (common/experts/slots.h) says which of them come instead of others: at most plan_experts(plan)->moves a
 * step, which the copy queue brings while the next step is computed, and which serve the step after that. The
 * device's table of what is where is written between steps alone. While experts move kernels read none in
 * host memory: both would wait for each other on the link. */
#pragma once

#include "common/experts/slots.h"
#include "common/plan/slots.h"
#include "common/shared/arena.h"
#include "worker-gpu/weights/weights.h"

struct gpu_slots {
    struct slots_place place; /* its units: owned */
    struct device *device;    /* borrowed, as are: */
    const struct model *model;
    const struct plan *plan;
    const struct gpu_weights *weights;
    const struct arena *arena;
    char *memory; /* on the device: place.bytes */
    /* there: [units][experts], the slot of each expert or GPUK_SLOT_ABSENT; then how many of 1,000 of the
     * missing ones kernels read in host memory; then [experts]: a table in which all are absent */
    uint32_t *table_device;
    void *pinned;
    uint32_t *table,
        *seen;    /* pinned: the same table; [units][GPUK_BATCH_MAX][chosen] of the step that ran last */
    bool changed; /* the table, since the device has it */
    struct expert_slots *policy;
    struct expert_slots_seen before; /* of workers before this one: counts */
    struct expert_move *move;        /* [plan_experts(plan)->moves]: on their way */
    uint32_t moving, turn;           /* how many; the unit that may move first */
    bool chosen;                     /* they are, but not sent for yet */
    struct device_event *copied;
};

/* Bytes that it takes, in place.bytes; 0 where the plan has no such experts. */
HELM_MUST_CHECK int gpu_slots_plan(const struct gpu_weights *weights, const struct plan *plan,
                                   struct gpu_slots *slots, struct helm_err *err);
/* Takes device memory and pinned memory. */
HELM_MUST_CHECK int gpu_slots_open(struct gpu_slots *slots, struct device *device, const struct arena *arena,
                                   struct helm_err *err);
/* Once host weights are there and known to the device: fills the slots as the plan says, or after a worker
 * before this one with what was used most. */
HELM_MUST_CHECK int gpu_slots_fill(struct gpu_slots *slots, struct helm_err *err);
/* For programs that run alone, which do not ask: no expert is in a slot, so that none is read as another,
 * which a packed one cannot be. slot: where steps' kernels find experts. */
HELM_MUST_CHECK int gpu_slots_hide(const struct gpu_slots *slots, uint32_t *slot, struct helm_err *err);
/* Nothing runs on the device any more. */
void gpu_slots_close(struct gpu_slots *slots);

/* Before a step's program: the device's table, where it has changed. */
HELM_MUST_CHECK int gpu_slots_begin(struct gpu_slots *slots, struct helm_err *err);
/* After a decode step's launch: starts the copies that the end of the step before chose, whose places no step
 * reads any more. */
HELM_MUST_CHECK int gpu_slots_send(struct gpu_slots *slots, struct helm_err *err);
/* On the device: how many of 1,000 missing experts kernels read in host memory now. */
const uint32_t *gpu_slots_direct(const struct gpu_slots *slots);
/* On the device: of a layer's experts, by its number among those in both memories, the slots of a step of few
 * tokens; and of a chunk, whose kernels take no packed ones: all are absent then. */
const uint32_t *gpu_slots_table(const struct gpu_slots *slots, uint32_t index);
const uint32_t *gpu_slots_table_chunk(const struct gpu_slots *slots, uint32_t index);
/* A decode step of `tokens` tokens is over. */
HELM_MUST_CHECK int gpu_slots_end(struct gpu_slots *slots, uint32_t tokens, struct helm_err *err);
