/* The ring: a small piece of VRAM that `stream` weights pass through, and the schedule of what lies where
 * when.
 *
 * Called by program lowering (program*.c) and the engine; pure arithmetic. Each operation of a `stream` unit
 * that has weights (q k v; o; gate and up; down) is cut into slices of some rows. Slices stand in the ring in
 * order of use, contiguous, and begin again at its start where one does not fit before the end. So the place
 * of every slice, and after whose use it may be overwritten, is known when programs are lowered; every step
 * begins the same way.
 *
 * Packed matrices (common/formats/packed.h) are cut into the same slices and lie in the ring as they are in
 * the arena: whole groups of rows, whose sizes differ and are known once the arena's weights are there; until
 * then the schedule uses their largest size. gpu_expand (below) has the room to expand them.
 *
 * One schedule a phase. After a step of any phase the ring shall hold the first slices of the decode phase,
 * as many as lie there without one overwriting another (the prefix): its tail copies those that it has
 * overwritten, after the last use of what is overwritten. So a step finds the prefix there, or on its way,
 * and the link works while head, sampling and helmd have their turn. A phase that begins with the same slices
 * has them too (`held`). Slices that a tail leaves out, before a step that would not use them, are copied at
 * the beginning of the one that does (struct gpu_prefix). */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"
#include "common/plan/engine_limits.h"
#include "worker-gpu/weights/weights.h"

/* Operation `op` of a unit, or of the head, which stands after the last unit; and its layer. */
const struct math_op *ring_math_of(const struct model *model, uint32_t unit, uint32_t op);
int32_t ring_layer_of(const struct model *model, uint32_t unit);

/* The end of the run of an operation's weights from `first` on that have one format. They are multiplied by
 * together; files may have others in other formats. Those that are used in pairs are always together. */
uint32_t ring_run_end(const struct gpu_weights *weights, const struct math_op *math, int32_t layer,
                      uint32_t first);

/* Rows of one matrix. */
struct ring_part {
    uint32_t weight; /* of its operation's, which one */
    uint32_t row, rows;
    uint64_t at, bytes; /* from the slice's place on */
    const char *from;   /* in the arena; of what is at home packed in VRAM: there */
    /* of packed ones: the first group's entry in the device's table, and where its rows begin when expanded
     */
    const uint32_t *offset;
    uint64_t out;
};

struct ring_slice {
    uint32_t unit, op; /* which operation of the unit's (struct math_part); its parts are of one run */
    struct ring_part part[MATH_WEIGHTS_MAX];
    uint32_t part_count;
    uint64_t place, bytes; /* in the ring; with padding between parts */
    uint64_t expanded;     /* bytes, likewise, of packed ones' rows; 0: they are in the ring as they are */
    int32_t after;         /* the slice whose use must be over before this one is copied; -1: none */
    bool held;             /* there when the step begins, or on its way: slice `prefix` of decode */
    uint32_t prefix;       /* of held ones and of the tail */
};

struct ring_schedule {
    struct ring_slice *slice; /* [count + tail]: the phase's own, then what it copies for the next step */
    uint32_t count, tail;
    uint64_t weight_bytes; /* of its own slices, held or not; as they are computed with */
    uint64_t copy_bytes;   /* copied by a step of this phase */
};

/* The schedule of a phase; `decode` is that of phase 0, NULL when this is it. Tables of `weights` must have
 * the addresses of host weights. HELM_E_CAPACITY: a slice of RING_ROWS rows does not fit. */
HELM_MUST_CHECK int ring_plan(const struct gpu_weights *weights, const struct plan *plan, uint32_t phase,
                              const struct ring_schedule *decode, struct ring_schedule *schedule,
                              struct helm_err *err);
/* Slices of what lies packed in VRAM (struct gpu_weights), in order of units, the head's last: what is
 * expanded at a time where it cannot be multiplied as it is. They have no place in the ring. */
HELM_MUST_CHECK int ring_plan_home(const struct gpu_weights *weights, const struct plan *plan,
                                   struct ring_schedule *schedule, struct helm_err *err);
/* How many slices of decode the prefix has. */
uint32_t ring_prefix(const struct ring_schedule *decode);
void ring_free(struct ring_schedule *schedule);

/* ---- room on the device for packed weights ----
 *
 * The place where one slice of them lies expanded, and the tables of offsets of streamed ones. (Those at home
 * in VRAM have theirs there: weights.h.) Streamed matrices that are packed (common/plan/placement.h) are
 * packed in the ring as well, so a ring holds more of them. The compute queue expands a slice when it has
 * come and just before its use, to one place that every slice takes in turn: its queue does one thing after
 * the other, so nothing is overwritten that is still read, and the ring is free again before the slice is
 * computed with. The link never waits for an expansion. `struct gpu_expand` owns one piece of device memory.
 */

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
