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

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/plan.h"
#include "common/shared/arena.h"

/* ---- which pages of a running sequence have a place in VRAM: pure bookkeeping ----
 *
 * Called by what decides. Owns its arrays; rows of the arena's VRAM table are passed in. Each
 * slot's pages [0, host) lie in the arena alone and [host, end) have a place, whose numbers are row[host ..
 * end). So pages in the arena alone are always a prefix. A place belongs to one page of one slot. A place
 * that is given away is free once every step is done that was rung by then, since those may read or write it
 * still. Nothing is allocated after kv_places_init. A place with two owners is a broken invariant: abort. */

struct kv_places_slot {
    uint32_t host, end; /* pages */
    uint32_t moved; /* the last step rung when a page was moved out: that step may read row[] of that page */
};

struct kv_places {
    uint32_t count;      /* 0: one tier, and nothing here is used */
    uint32_t free_count; /* stack[0 .. free_count) */
    uint32_t *stack;     /* [count] */
    bool *used;          /* [count]: by a slot, or waiting */
    struct {
        uint32_t place, serial; /* free when this step is done */
    } * waiting;                /* [count], a ring, oldest first */
    uint32_t waiting_first, waiting_count;
    uint32_t rung, done; /* the last step that was rung; that was done */
    struct kv_places_slot slot[ARENA_SLOTS_MAX];
    uint64_t moved_out,
        fetched; /* pages that lost their place while their sequence ran; pages that came back */
};

/* count 0: one tier. */
HELM_MUST_CHECK int kv_places_init(struct kv_places *places, uint32_t count, struct helm_err *err);
void kv_places_free(struct kv_places *places);

/* The slot has `host` pages now, all in the arena: its places are freed. `row`: the slot's. */
void kv_places_begin(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t host);
/* Places for the slot's pages up to `end`, all or nothing: HELM_E_BUSY when too few are free. */
HELM_MUST_CHECK int kv_places_grow(struct kv_places *places, uint32_t slot, uint32_t *row, uint32_t end);
/* The slot's pages below `host` give their places away: they are in the arena, and whole. */
void kv_places_move_out(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t host);
/* The step that is rung next appends to the slot's pages in the arena, and its pages below `to` have no place
 * from then on. It may read those that they have: they are free when that step is done. */
void kv_places_leave(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t to);
/* A place for the last page that the slot has in the arena alone: steps after the one that copies it there
 * find it. HELM_E_BUSY: there is no such page, or no place, or a step in flight may read row[] of that
 * page. */
HELM_MUST_CHECK int kv_places_fetch(struct kv_places *places, uint32_t slot, uint32_t *row);

void kv_places_rung(struct kv_places *places, uint32_t serial);
void kv_places_done(struct kv_places *places, uint32_t serial);
/* Workers were lost, and serials begin anew: all places are free, and slots have no pages. */
void kv_places_reset(struct kv_places *places);

/* Places that slots have; those that wait are neither used nor free. */
static inline uint32_t kv_places_used(const struct kv_places *places)
{
    return places->count - places->free_count - places->waiting_count;
}

/* ---- the two tiers ---- */

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
