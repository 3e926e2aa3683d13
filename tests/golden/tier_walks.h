/* Steps of a pair over a cache of two tiers: what helmd decides of places is drawn at random. For
 * test_golden_tiers.c, which includes it once. Everything asserts; owns nothing.
 *
 * Before each step whole pages of its rows move out of VRAM at random, and what lay in their places is
 * overwritten; others are fetched, for the step after; each row's direct_from is anything. After each step
 * the pages that it has filled must be in the arena as they are in VRAM. */
#pragma once

#include "tests/golden/pair_walks.h"
#include "worker-gpu/engine.h"

#define TIER_PAGES_MAX 4096

/* A slot's pages [host, end) have places; those in front lie in the arena alone. */
struct tier_slot {
    uint32_t host, end;
};
struct tier_run {
    struct pair *pair;
    uint64_t random;
    struct tier_slot slot[CASES_MAX];
    uint32_t free[TIER_PAGES_MAX], free_count;
    bool looks;                       /* the device's memory can be looked into */
    bool assisted;                    /* the CPU may attend to a part */
    struct tier_slot left[CASES_MAX]; /* pages that the step reads in VRAM and gives away */
    uint32_t moved, fetched, stored, assisted_steps, host_chunks, direct_steps, arena_chunks; /* so far */
};

static uint32_t tier_random(struct tier_run *t, uint32_t below)
{
    t->random ^= t->random << 13, t->random ^= t->random >> 7, t->random ^= t->random << 17;
    return (uint32_t)((t->random * UINT64_C(0x9e3779b97f4a7c15)) >> 33) % below;
}

static const struct gpu_engine *gpu_of(const struct tier_run *t)
{
    return (const struct gpu_engine *)t->pair->server[PAIR_GPU].engine;
}

/* Places in any order; pages of the arena, too, so that neither side's numbers say anything of the
 * other's. */
static void tier_begin(struct tier_run *t, struct pair *pair, uint64_t seed, bool looks, bool assisted)
{
    const struct arena_header *h = arena_header_of(&pair->arena);
    *t = (struct tier_run){.pair = pair, .random = seed | 1, .looks = looks, .assisted = assisted};
    assert_true(h->vram_page_count && h->vram_page_count <= TIER_PAGES_MAX);
    for (uint32_t i = 0; i < h->vram_page_count; i++) t->free[t->free_count++] = i;
    for (uint32_t i = t->free_count; i > 1; i--) {
        const uint32_t with = tier_random(t, i), kept = t->free[i - 1];
        t->free[i - 1] = t->free[with];
        t->free[with] = kept;
    }
    for (uint32_t s = 0; s < h->slots; s++) {
        uint32_t *pages = arena_page_table_of(&pair->arena, s);
        for (uint32_t i = h->pages_per_slot; i > 1; i--) {
            const uint32_t with = tier_random(t, i), kept = pages[i - 1];
            pages[i - 1] = pages[with];
            pages[with] = kept;
        }
    }
}

/* Gives the places of pages [from, to) away. */
static void tier_free(struct tier_run *t, uint32_t slot, uint32_t from, uint32_t to)
{
    const struct gpu_engine *g = gpu_of(t);
    uint32_t *places = arena_vram_table_of(&t->pair->arena, slot);
    for (uint32_t i = from; i < to; i++) {
        if (t->looks)
            memset((char *)g->kv_pool + places[i] * kv_page_bytes(&g->kv), 0xff, kv_page_bytes(&g->kv));
        t->free[t->free_count++] = places[i];
        places[i] = UINT32_MAX;
        t->moved++;
    }
}

static void tier_move_out(struct tier_run *t, uint32_t slot, uint32_t to)
{
    tier_free(t, slot, t->slot[slot].host, to);
    if (to > t->slot[slot].host) t->slot[slot].host = to;
}

/* Room for `need` more places: whole pages of rows move out until there is. */
static void tier_make_room(struct tier_run *t, const struct step_row *rows, uint32_t count, uint32_t need)
{
    const uint32_t page_tokens = t->pair->plan.page_tokens;
    for (uint32_t i = 0; i < CASES_MAX && t->free_count < need;
         i++) { /* of others first: they are not here */
        bool here = false;
        for (uint32_t r = 0; r < count; r++) here |= rows[r].slot == i;
        if (here) continue;
        tier_move_out(t, i, t->slot[i].end);
        t->slot[i] = (struct tier_slot){0, 0};
    }
    for (uint32_t r = 0; r < count && t->free_count < need; r++)
        tier_move_out(t, rows[r].slot, rows[r].start / page_tokens);
    assert_true(t->free_count >= need);
}

/* The first page of a row that has a place after the step. */
static uint32_t tier_placed(const struct tier_run *t, const struct step_row *row, bool in_arena)
{
    const uint32_t page_tokens = t->pair->plan.page_tokens;
    return in_arena ? plan_placed_from(page_tokens, row->start, row->count) : row->start / page_tokens;
}

static void tier_fill_row(struct tier_run *t, struct step_row *row, bool decode, struct pair_tiers *step)
{
    const struct arena *arena = &t->pair->arena;
    const uint32_t page_tokens = t->pair->plan.page_tokens,
                   end = (row->start + row->count - 1) / page_tokens + 1;
    struct tier_slot *slot = &t->slot[row->slot];
    uint32_t *places = arena_vram_table_of(arena, row->slot);
    const uint32_t placed = tier_placed(t, row, step->flags & STEP_KV_ARENA),
                   begun = row->start / page_tokens;
    t->left[row->slot] = (struct tier_slot){0, 0};
    if (placed > begun) {
        t->left[row->slot] = *slot;
        *slot = (struct tier_slot){placed, placed};
    }
    for (; slot->end < end; slot->end++) places[slot->end] = t->free[--t->free_count];
    row->host_tokens = (placed > begun ? begun : slot->host) * page_tokens;
    row->direct_from = 0;
    if (t->assisted && decode && slot->host)
        row->direct_from = (tier_random(t, 3) ? tier_random(t, slot->host + 1) : slot->host) * page_tokens;
    if (row->direct_from) step->flags |= STEP_KV_ASSISTED;
}

/* Up to two pages of a row come back, for the step after this one. */
static void tier_fetch(struct tier_run *t, uint32_t s, struct pair_tiers *step)
{
    const struct arena *arena = &t->pair->arena;
    for (uint32_t n = tier_random(t, 3); n > 0 && t->slot[s].host && t->free_count; n--) {
        if (step->fetch_count == ARENA_STEP_FETCH) return;
        const uint32_t page = --t->slot[s].host, place = t->free[--t->free_count];
        arena_vram_table_of(arena, s)[page] = place;
        step->fetch[step->fetch_count++] =
            (struct step_fetch){.page = arena_page_table_of(arena, s)[page], .place = place};
        t->fetched++;
    }
}

/* Checks that the pages that the step has filled are in the arena. */
static void tier_check_row(struct tier_run *t, const struct step_row *row)
{
    const struct gpu_engine *g = gpu_of(t);
    const struct arena *arena = &t->pair->arena;
    const struct kv_layout *host = &arena_header_of(arena)->kv;
    const uint32_t page_tokens = host->page_tokens;
    for (uint32_t i = row->start / page_tokens; i < (row->start + row->count) / page_tokens; i++) {
        const uint32_t page = arena_page_table_of(arena, row->slot)[i],
                       place = arena_vram_table_of(arena, row->slot)[i];
        t->stored++;
        if (i < t->slot[row->slot].host) continue; /* it has no place */
        for (uint32_t l = 0; l < g->plan.layers && t->looks; l++) {
            uint32_t kv_layer;
            if (!plan_keeps_pages(&g->plan, l) || plan_kv_of(&g->plan, l, &kv_layer) != PLAN_GPU0) continue;
            const char *there = (const char *)arena_region_ptr(arena, ARENA_REGION_KV) +
                                kv_offset(host, page, plan_kv_layer_in_arena(&g->plan, l), 0, 0);
            assert_memory_equal(there, (const char *)g->kv_pool + kv_offset(&g->kv, place, kv_layer, 0, 0),
                                kv_layer_bytes(host));
        }
    }
}

static int tier_step(void *engines, const struct step_row *rows, uint32_t count,
                     const struct step_result **result, struct helm_err *err)
{
    struct tier_run *t = engines;
    struct step_row own[CASES_MAX];
    struct pair_tiers step = {0};
    const uint32_t page_tokens = t->pair->plan.page_tokens;
    uint32_t tokens = 0, need = 0, ends[CASES_MAX];
    memcpy(own, rows, count * sizeof *own);
    for (uint32_t i = 0; i < count; i++) {
        struct tier_slot *slot = &t->slot[own[i].slot];
        tokens += own[i].count;
        if (own[i].start == 0) { /* another sequence */
            tier_move_out(t, own[i].slot, slot->end);
            *slot = (struct tier_slot){0, 0};
        }
        const uint32_t whole = own[i].start / page_tokens,
                       end = (own[i].start + own[i].count - 1) / page_tokens + 1;
        if (whole > slot->host && tier_random(t, 4) == 0)
            tier_move_out(t, own[i].slot, slot->host + tier_random(t, whole - slot->host + 1));
        ends[i] = end;
    }
    const bool decode = tokens == count && tokens <= ARENA_KV_TOKENS,
               in_arena = tokens > ENGINE_FEW_TOKENS && plan_appends_in_arena(&t->pair->plan);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t placed = tier_placed(t, &own[i], in_arena), there = t->slot[own[i].slot].end,
                       from = placed > there ? placed : there;
        need += ends[i] > from ? ends[i] - from : 0;
    }
    tier_make_room(t, own, count, need);
    step.flags = in_arena ? STEP_KV_ARENA : 0;
    t->arena_chunks += in_arena;
    bool host = false;
    for (uint32_t i = 0; i < count; i++) {
        tier_fill_row(t, &own[i], decode, &step);
        host |= own[i].host_tokens > own[i].direct_from;
    }
    for (uint32_t i = 0; i < count && !in_arena; i++) tier_fetch(t, own[i].slot, &step);
    t->assisted_steps += (step.flags & STEP_KV_ASSISTED) != 0;
    t->host_chunks += host && tokens > ARENA_KV_TOKENS;
    t->direct_steps += host && tokens <= ARENA_KV_TOKENS;
    int rc = pair_wait(t->pair, pair_ring_tiers(t->pair, own, count, &step, result), err);
    for (uint32_t i = 0; i < count && !rc; i++) {
        tier_check_row(t, &own[i]);
        tier_free(t, own[i].slot, t->left[own[i].slot].host, t->left[own[i].slot].end);
    }
    return rc;
}
