/* Which experts lie in VRAM, or of those on disk in host memory: each sparse layer's slots, which follow what
 * tokens choose.
 *
 * The worker that copies tells what each layer's tokens chose and is told which experts to bring where; the
 * planner's simulation and the tests ask the same functions, so that forecast and worker follow one policy.
 * No clock, no device, no locks: the caller's thread owns it.
 *
 * An expert's worth is its uses, each counting half as much after every half_life steps (Lee et al., LRFU,
 * IEEE Trans. Computers 50(12), 2001). The most valuable absent expert that was just used takes the slot of
 * the least valuable present one. That pays where recent use foretells use: a copy takes the memory's time
 * that a hit saves. So uses are also counted that a pool without limits would have had present, in which an
 * expert arrives two steps after the use that brought it, as here; and those that the slots as they were
 * filled would have had. Nothing moves while
 *
 *     foretold - filled <= cost * (1 - foretold)
 *
 * Routing without order therefore moves nothing, and what the pool was filled with stays. Where it has order,
 * higher bars for single moves lose more hits than they save copies (docs/notes/mixed-experts.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

#define EXPERT_SLOT_NONE 0xffffffffu
#define EXPERT_SLOTS_MAX (1u << 20)

struct expert_slots_case {
    uint32_t layers, experts; /* sparse layers; experts of each: layers * experts <= EXPERT_SLOTS_MAX */
    uint32_t slots;           /* of each layer; at most experts */
    double half_life;         /* steps, above 0 */
    double cost;              /* of a copy, in what a hit saves; 0 or more */
};
/* Best for the traces that tests generate (tests/unit/common/experts/test_slots.c). */
#define EXPERT_HALF_LIFE 1.0
#define EXPERT_COST      0.6

/* One expert to bring: into `slot` of its layer, in which `evicted` was. */
struct expert_move {
    uint32_t layer, expert, slot;
    uint32_t evicted; /* EXPERT_SLOT_NONE: it was empty */
};

struct expert_slots;
/* Empty slots. HELM_E_LIMIT, HELM_E_NOMEM. */
HELM_MUST_CHECK int expert_slots_create(const struct expert_slots_case *size, struct expert_slots **slots,
                                        struct helm_err *err);
void expert_slots_free(struct expert_slots *slots);

/* Fills empty slots, the experts of the most `uses` first ([layers][experts], what an earlier run counted;
 * NULL: the lowest ids). The caller loads what the tables then say. */
void expert_slots_fill(struct expert_slots *slots, const uint64_t *uses);

/* The experts that a layer's tokens chose in this step, then up to `most` moves, the best first: with
 * expert_slots_arrived before the layer's turn in the next step they are of use at once. The evicted are
 * absent from now on, and those that come until they have arrived. */
void expert_slots_used(struct expert_slots *slots, uint32_t layer, const uint32_t *expert, uint32_t count);
uint32_t expert_slots_moves(struct expert_slots *slots, uint32_t layer, struct expert_move *move,
                            uint32_t most);
void expert_slots_arrived(struct expert_slots *slots, const struct expert_move *move);
/* For experts that have to be brought in any case, as from disk: a slot of the layer for this absent one, of
 * which the step's choices were said. False: there is none whose expert this step does not use and is worth
 * less. */
bool expert_slots_admit(struct expert_slots *slots, uint32_t layer, uint32_t expert,
                        struct expert_move *move);
/* All layers had their turn. */
void expert_slots_step(struct expert_slots *slots);

/* [experts] of a layer: its slot, 0 to slots - 1, or EXPERT_SLOT_NONE. */
const uint32_t *expert_slots_table(const struct expert_slots *slots, uint32_t layer);

struct expert_slots_seen {
    uint64_t steps, used, present, moved;
    /* parts of the uses of the last some steps: that a pool without limits would have had present, and that
     * the slots as they were filled would have had */
    double foretold, filled;
    bool moving; /* it pays */
};
struct expert_slots_seen expert_slots_seen(const struct expert_slots *slots);
/* Uses of each expert since it was made, [layers][experts]: what expert_slots_fill takes. */
const uint64_t *expert_slots_uses(const struct expert_slots *slots);
