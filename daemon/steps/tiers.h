/* Where the pages of a step's rows lie, when the KV cache has two tiers (arena_layout.h): which get a place
 * in VRAM, which give theirs away, which come back, and what the CPU and the GPU's link each read of the
 * rest.
 *
 * Called by batcher.c, for every step that it forms. Owns the bookkeeping of places and helmd's vram_table in
 * the arena. With one tier it does nothing. Rules:
 *   1. A page that a step appends to has a place, and keeps it until it is whole and that step is done: from
 *      then on its cells are in the arena, too.
 *   2. Above the watermark the oldest whole pages of the least urgent sequence, which is the one that came
 *      last, give their places away. That costs no copy.
 *   3. Pages come back, the newest of the most urgent sequence first, as long as that does not reach the
 *      watermark. A chunk that appends in the arena (STEP_KV_ARENA) is computed there, but for the page that
 *      the next step goes on with: the row's other pages give their places away, and come back by rule 3 when
 *      the prompt is over.
 *   4. Pages that a sequence was given by their tokens (prefix.h) are read in the arena, whether another
 *      sequence has them in VRAM or not: a place belongs to one sequence. They come by rule 3. */
#pragma once

#include "common/plan/plan.h"
#include "common/shared/arena.h"
#include "daemon/steps/kv_places.h"

struct tiers {
    const struct plan *plan;   /* borrowed */
    const struct arena *arena; /* borrowed */
    struct kv_places places;
    uint32_t watermark; /* most places in use as long as pages can lie elsewhere */
};

/* A sequence with a slot, in the order of arrival. */
struct tiers_member {
    uint32_t slot;
    uint32_t whole;      /* pages that are full, and computed by steps that are done */
    uint32_t begin, end; /* pages that its row in the step to be formed appends to; end 0: it has none */
    uint32_t placed;     /* the first of them that has a place: begin, unless the step appends in the arena */
};

HELM_MUST_CHECK int tiers_init(struct tiers *tiers, const struct plan *plan, const struct arena *arena,
                               struct helm_err *err);
void tiers_free(struct tiers *tiers);

/* The slot's sequence now has `whole` pages, all in the arena: it was admitted, found pages, or left (0). */
void tiers_begin(struct tiers *tiers, uint32_t slot, uint32_t whole);
/* Places for every row of the step to be formed. False: too few are free before the steps in flight are
 * done. */
bool tiers_make_room(struct tiers *tiers, const struct tiers_member *member, uint32_t count);
/* Fills in the tiers' members of each row of a formed step, whose flags say whether it appends in the arena,
 * the step's flag STEP_KV_ASSISTED, and the pages that it fetches. decode: the step is of the plan's decode
 * list. */
void tiers_fill(struct tiers *tiers, bool decode, struct step *step);

/* The step that tiers_fill filled was rung; a step is done. */
void tiers_rung(struct tiers *tiers, uint32_t serial);
void tiers_done(struct tiers *tiers, uint32_t serial);
/* Workers were lost, and VRAM with them: no slot has a page. */
void tiers_lost(struct tiers *tiers);

/* Pages of running sequences that have no place. */
uint32_t tiers_host_pages(const struct tiers *tiers);
