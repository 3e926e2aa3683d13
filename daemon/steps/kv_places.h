/* Which pages of a running sequence have a place in VRAM, where the KV cache has two tiers (arena_layout.h):
 * pure bookkeeping.
 *
 * Called by tiers.c, which decides. Owns its arrays; rows of the arena's VRAM table are passed in. Each
 * slot's pages [0, host) lie in the arena alone and [host, end) have a place, whose numbers are row[host ..
 * end): so what lies in the arena alone is always a prefix. A place belongs to one page of one slot. A place
 * that is given away is free once every step is done that was rung by then, since those may read or write it
 * still. Nothing is allocated after kv_places_init. A place with two owners is a broken invariant: abort. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/shared/arena_layout.h"

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
