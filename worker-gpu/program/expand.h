/* Room on the device for packed weights: the place where one slice of them lies expanded, and the tables of
 * offsets of streamed ones. (Those at home in VRAM have theirs there: weights.h.)
 *
 * Called by engine.c and print.c. Streamed matrices that are packed (common/plan/placement.h) are packed in
 * the ring as well, so a ring holds more of them. The compute queue expands a slice when it has come and just
 * before its use, to one place that every slice takes in turn: its queue does one thing after the other, so
 * nothing is overwritten that is still read, and the ring is free again before the slice is computed with.
 * The link never waits for an expansion. `struct gpu_expand` owns one piece of device memory. */
#pragma once

#include "worker-gpu/program/ring.h"

struct gpu_expand {
    uint64_t slice_bytes; /* of the largest one, expanded; 0: nothing is packed */
    uint64_t bytes;       /* with the tables after it */
    char *memory;
};

/* Sizes, which the planner charges: common/program/slices.h. */
void gpu_expand_plan(const struct model *model, const struct plan *plan, enum plan_processor self,
                     struct gpu_expand *expand);
/* Once host weights are there and known to the device: checks the tables in the arena, copies them into
 * expand->memory and notes in the weights where each is. ring_plan then goes by sizes as they are. */
HELM_MUST_CHECK int gpu_expand_take_tables(struct gpu_expand *expand, struct gpu_weights *weights,
                                           struct device *device, struct helm_err *err);
/* The same without tables, for printing programs: sizes stay bounds. */
void gpu_expand_pretend(struct gpu_expand *expand, struct gpu_weights *weights, char *memory);
