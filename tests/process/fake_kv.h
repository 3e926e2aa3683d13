/* A fake worker's "KV cache": token ids in pages of the arena and of a pool of its own, and workers' steps
 * with a cache in two tiers (arena_layout.h). Included by fake_worker.c alone; the pool is that file's.
 *
 * The GPU worker keeps what its places hold, copies every page that a step has filled to the arena, fetches
 * pages as early as a copy may be, and reads each position where the step says. In steps flagged
 * STEP_KV_ASSISTED the CPU worker reads the positions below direct_from, and the hash of them goes through
 * the kv lanes, layer by layer. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/unit.h"
#include "common/plan/plan.h"
#include "common/shared/arena.h"

struct fake_kv {
    struct arena *arena;
    struct plan *plan;
    enum plan_processor me;
    struct {
        char *at;
        struct kv_layout kv;
    } pool[2];         /* by worker: KV pages of the arena, of this process (GPU) */
    uint32_t first[2]; /* by worker: the first layer whose cache is its, whose cells are written */
    bool in_arena;     /* the step that is computed appends there (STEP_KV_ARENA) */
};

static void find_first_layers(struct fake_kv *kv)
{
    uint32_t kv_layer;
    kv->first[PLAN_CPU0] = kv->first[PLAN_GPU0] = UINT32_MAX;
    for (uint32_t l = kv->plan->layers; l-- > 0;) kv->first[plan_kv_of(kv->plan, l, &kv_layer)] = l;
}

static void fail_step(const char *what)
{
    fprintf(stderr, "fake worker: %s\n", what);
    abort();
}

/* The cells of a page of the layer that is kept of `owner`'s: in the arena, or in the GPU's own pool. */
static uint32_t *arena_cells(struct fake_kv *kv, enum plan_processor owner, uint32_t page)
{
    const uint32_t layer = plan_kv_tiered(kv->plan) ? kv->first[owner] : 0;
    return (uint32_t *)(kv->pool[PLAN_CPU0].at + kv_offset(&kv->pool[PLAN_CPU0].kv, page, layer, 0, 0));
}

static uint32_t *vram_cells(struct fake_kv *kv, uint32_t page)
{
    return (uint32_t *)(kv->pool[PLAN_GPU0].at + kv_offset(&kv->pool[PLAN_GPU0].kv, page, 0, 0, 0));
}

static uint32_t entry_of(const struct step_row *row, const uint32_t *table, uint32_t at, uint32_t count)
{
    if (table[at] < count) return table[at];
    fprintf(stderr, "fake worker: slot %u has page %u on %u of %u\n", row->slot, at, table[at], count);
    abort();
}

/* Where position p of this row keeps its "KV" of that worker's layers. */
static uint32_t *cell(struct fake_kv *kv, enum plan_processor owner, const struct step_row *row,
                      uint32_t position)
{
    const struct arena_header *h = arena_header_of(kv->arena);
    const uint32_t at = position / h->kv.page_tokens, in_page = position % h->kv.page_tokens,
                   page = entry_of(row, arena_page_table_of(kv->arena, row->slot), at, h->page_count);
    const uint32_t begun = row->start / h->kv.page_tokens * h->kv.page_tokens;
    const bool in_arena =
        kv->in_arena ? position < begun || position >= row->start : position < row->host_tokens;
    if (owner == PLAN_CPU0 || in_arena) return arena_cells(kv, owner, page) + in_page;
    if (!plan_kv_tiered(kv->plan)) return vram_cells(kv, page) + in_page;
    return vram_cells(kv, entry_of(row, arena_vram_table_of(kv->arena, row->slot), at, h->vram_page_count)) +
           in_page;
}

/* Goes on with the hash of the positions below `from`, up to `to`. */
static uint64_t hash_on(struct fake_kv *kv, enum plan_processor owner, const struct step_row *row,
                        uint64_t hash, uint32_t from, uint32_t to)
{
    if (from == 0) hash = 1469598103934665603u ^ arena_slot_of(kv->arena, row->slot)->sampling.seed;
    for (uint32_t p = from; p < to; p++) hash = (hash ^ *cell(kv, owner, row, p)) * 1099511628211u;
    return hash;
}

/* ---- two tiers ---- */

static struct lane *kv_lane(const struct fake_kv *kv, enum plan_processor from, enum plan_processor to)
{
    return arena_lane_at(kv->arena, ARENA_LANE_KV, plan_link_of(from, to));
}
static struct lane *query_lane(const struct fake_kv *kv)
{
    return kv_lane(kv, PLAN_GPU0, PLAN_CPU0);
}
static struct lane *partial_lane(const struct fake_kv *kv)
{
    return kv_lane(kv, PLAN_CPU0, PLAN_GPU0);
}

/* A row's place in one of them, of which a head has head_dim floats and `more`. */
static float *lane_row(struct fake_kv *kv, struct lane *lane, uint32_t more, uint32_t row)
{
    const struct arena_header *h = arena_header_of(kv->arena);
    return lane->data + (size_t)row * h->kv_heads_asking * (h->kv.head_dim + more);
}

/* A query's number, its whole content. */
static uint64_t query_of(const struct step *step, uint32_t ticket, uint32_t row)
{
    return (uint64_t)step->serial << 32 | ticket << 8 | row;
}

/* The GPU's part of a hand-over: asks, and takes what the CPU makes of the positions below direct_from. */
static void ask(struct fake_kv *kv, const struct step *step, uint32_t ticket, uint64_t *hash)
{
    struct lane *query = query_lane(kv), *partial = partial_lane(kv);
    struct helm_err err = {0};
    if (lane_acquire(query, ticket, 0, 60000, NULL, &err)) fail_step(err.text);
    for (uint32_t i = 0; i < step->row_count; i++)
        memcpy(lane_row(kv, query, 0, i), &(uint64_t){query_of(step, ticket, i)}, sizeof *hash);
    if (lane_publish(query, ticket, &err)) fail_step(err.text);
    if (lane_wait(partial, ticket, 0, 60000, NULL, &err)) fail_step(err.text);
    for (uint32_t i = 0; i < step->row_count; i++) {
        uint64_t got;
        memcpy(&got, lane_row(kv, partial, 2, i), sizeof got);
        if (ticket > 1 && step->row[i].direct_from && got != hash[i])
            fail_step("layers have other KV in the arena");
        hash[i] = got;
    }
    if (ticket == plan_layers_of(kv->plan, PLAN_GPU0)) lane_release(partial);
}

/* The CPU's part of it. */
static void answer(struct fake_kv *kv, const struct step *step, uint32_t ticket)
{
    struct lane *query = query_lane(kv), *partial = partial_lane(kv);
    struct helm_err err = {0};
    if (lane_wait(query, ticket, 0, 60000, NULL, &err)) fail_step(err.text);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->row[i];
        uint64_t asked, hash = hash_on(kv, PLAN_GPU0, row, 0, 0, row->direct_from);
        memcpy(&asked, lane_row(kv, query, 0, i), sizeof asked);
        if (asked != query_of(step, ticket, i)) fail_step("another query");
        memcpy(lane_row(kv, partial, 2, i), &hash, sizeof hash);
    }
    if (lane_acquire(partial, ticket, 0, 60000, NULL, &err)) fail_step(err.text);
    if (ticket == plan_layers_of(kv->plan, PLAN_GPU0)) lane_release(query);
    if (lane_publish(partial, ticket, &err)) fail_step(err.text);
}

/* Asks the GPU's queries in a span of half layers, or answers them on the CPU. */
static void assist(struct fake_kv *kv, const struct step *step, const struct plan_span *span,
                   uint32_t *ticket, uint64_t *hash)
{
    uint32_t kv_layer;
    for (uint32_t u = span->first_unit; u < span->first_unit + span->unit_count; u++) {
        if (unit_part(u) != UNIT_ATTENTION || plan_kv_of(kv->plan, unit_layer(u), &kv_layer) != PLAN_GPU0)
            continue;
        if (kv->me == PLAN_GPU0)
            ask(kv, step, ++*ticket, hash);
        else
            answer(kv, step, ++*ticket);
    }
}

/* A page's begun part comes down, and the pages that the next step goes on with go up. */
static void bring_back(struct fake_kv *kv, const struct step_row *row)
{
    const struct arena_header *h = arena_header_of(kv->arena);
    const uint32_t tokens = h->kv.page_tokens, begun = row->start / tokens, end = row->start + row->count,
                   *pages = arena_page_table_of(kv->arena, row->slot),
                   *places = arena_vram_table_of(kv->arena, row->slot);
    if (row->start % tokens)
        memcpy(arena_cells(kv, PLAN_GPU0, pages[begun]),
               vram_cells(kv, entry_of(row, places, begun, h->vram_page_count)),
               row->start % tokens * sizeof(uint32_t));
    for (uint32_t p = plan_placed_from(tokens, row->start, row->count); p * tokens < end; p++)
        memcpy(vram_cells(kv, entry_of(row, places, p, h->vram_page_count)),
               arena_cells(kv, PLAN_GPU0, pages[p]), tokens * sizeof(uint32_t));
}

/* As early as a copy may be. */
static void fetch_pages(struct fake_kv *kv, const struct step *step)
{
    kv->in_arena = step->flags & STEP_KV_ARENA;
    const size_t bytes = arena_header_of(kv->arena)->kv.page_tokens * sizeof(uint32_t);
    for (uint32_t i = 0; i < step->fetch_count && kv->me == PLAN_GPU0; i++)
        memcpy(vram_cells(kv, step->fetch[i].place), arena_cells(kv, PLAN_GPU0, step->fetch[i].page), bytes);
}

/* Pages that the step has filled are in the arena before it is done. */
static void store_pages(struct fake_kv *kv, const struct step *step)
{
    const uint32_t tokens = arena_header_of(kv->arena)->kv.page_tokens;
    if (kv->me != PLAN_GPU0 || !plan_kv_tiered(kv->plan)) return;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->row[i];
        if (kv->in_arena) bring_back(kv, row);
        for (uint32_t page = row->start / tokens;
             !kv->in_arena && (page + 1) * tokens <= row->start + row->count; page++)
            memcpy(arena_cells(kv, PLAN_GPU0, arena_page_table_of(kv->arena, row->slot)[page]),
                   cell(kv, PLAN_GPU0, row, page * tokens), tokens * sizeof(uint32_t));
    }
}
