/* The host's side of a step over a cache of two tiers. See tiers.h. */
#include "worker-gpu/tiers.h"

#include <string.h>

#include "worker-gpu/engine.h"
#include "worker-gpu/program/pieces.h"
#include "worker-gpu/program/tiers.h"
#include "common/plan/state.h"

static_assert(GPU_TIER_PLACES == GPU_FOLLOW_PLACES,
              "a place of a step is one of those that steps take in turn");

int gpu_tiers_open(struct gpu_engine *g, _Atomic uint32_t *stored, struct helm_err *err)
{
    g->tiers.on = plan_kv_tiered(&g->plan);
    g->tiers.stored = stored;
    g->tiers.window = model_window(&g->model.config);
    return g->tiers.on ? g->device->ops->event_create(g->device, DEVICE_EVENT_PLAIN, &g->tiers.fetched, err)
                       : 0;
}

void gpu_tiers_close(struct gpu_engine *g)
{
    if (g->tiers.fetched) g->device->ops->event_free(g->device, g->tiers.fetched);
    g->tiers = (struct gpu_tiers){0};
}

/* ---- page tables ---- */

static uint32_t *array_at(const struct gpu_engine *g, uint32_t offset)
{
    return (uint32_t *)(void *)(g->source.block_host + offset);
}

void gpu_tiers_fill(const struct gpu_engine *g, const struct gpu_program *p, uint32_t r)
{
    const struct batch_row *row = &g->batch.row[r];
    const struct gpu_block *b = &p->block;
    const uint32_t page_tokens = g->kv.page_tokens, count = (row->start + row->count - 1) / page_tokens + 1;
    const uint32_t host = row->host_tokens / page_tokens;
    const uint32_t absent = p->attending == GPU_ATTENDS_ASSISTED ? row->direct_from / page_tokens : 0;
    const size_t line = (size_t)r * p->step.pages_per_slot;
    uint32_t *table = array_at(g, b->page_table) + line, *arena = array_at(g, b->arena_table) + line;
    if (g->batch.flags & STEP_KV_ARENA) { /* no layer has other pages */
        gpu_pieces_fill(&g->plan, row, r, false, array_at(g, b->arena_pieces), arena);
        return;
    }
    for (uint32_t i = 0; i < absent; i++) table[i] = GPUK_PAGE_ABSENT;
    if (p->tier == GPU_TIER_CHUNK)
        gpu_pieces_fill(&g->plan, row, r, true, array_at(g, b->pieces), table);
    else
        for (uint32_t i = absent; i < host; i++) table[i] = row->pages[i] | GPUK_PAGE_HOST;
    if (count > host) memcpy(table + host, row->places + host, (count - host) * sizeof *table);
    array_at(g, b->row_begin)[r] = absent * page_tokens;
    if (b->arena_table == b->page_table) return;
    if (p->attending == GPU_ATTENDS_ASSISTED) { /* of layers with a window */
        const uint32_t from = plan_assists_layer(&g->plan, g->tiers.window)
                                  ? batch_direct_from(row, g->tiers.window, page_tokens) / page_tokens
                                  : 0;
        for (uint32_t i = 0; i < from; i++) arena[i] = GPUK_PAGE_ABSENT;
        for (uint32_t i = from; i < host; i++) arena[i] = row->pages[i] | GPUK_PAGE_HOST;
        memcpy(arena + host, row->places + host, (count - host) * sizeof *arena);
        array_at(g, b->window_begin)[r] = from * page_tokens;
        return;
    }
    gpu_pieces_fill(&g->plan, row, r, false, array_at(g, b->arena_pieces), arena);
}

/* ---- copies ---- */

int gpu_tiers_begin(struct gpu_engine *g, struct helm_err *err)
{
    if (!g->tiers.fetching) return 0;
    g->tiers.fetching = false;
    return g->device->ops->event_follow(g->device, DEVICE_COMPUTE, g->tiers.fetched, err);
}

int gpu_tiers_store(struct gpu_engine *g, uint32_t place, uint32_t ahead, struct helm_err *err)
{
    struct gpu_tiers *t = &g->tiers;
    struct gpu_cells cells;
    const uint32_t pages = gpu_fills(&g->batch, g->kv.page_tokens, ahead);
    t->stores[place] = pages > 0;
    if (!pages) return 0;
    atomic_store_explicit(&t->stored[place], 0, memory_order_release);
    int rc = 0;
    for (uint32_t from = 0; !rc && gpu_cells_next(&g->source, from, &cells);
         from = cells.layer + cells.layers)
        rc = gpu_store_filled(&g->source, DEVICE_COMPUTE, &cells, &g->batch, ahead, err);
    return rc ? rc : device_word_write(g->device, &t->stored[place], 1, err);
}

int gpu_tiers_fetch(struct gpu_engine *g, const struct step *step, struct helm_err *err)
{
    if (!step->fetch_count) return 0;
    int rc = gpu_fetch_pages(&g->source, step->fetch, step->fetch_count, err);
    if (!rc) rc = g->device->ops->event_record(g->device, DEVICE_COPY, g->tiers.fetched, err);
    g->tiers.fetching = !rc;
    return rc;
}

uint64_t gpu_tiers_copied(const struct gpu_engine *g, const struct step *step)
{
    if (!g->tiers.on) return 0;
    const bool in_arena = g->batch.flags & STEP_KV_ARENA; /* then gpu_program_borrowed has them */
    const uint32_t filled = in_arena ? 0 : gpu_fills(&g->batch, g->kv.page_tokens, 0);
    return (filled + step->fetch_count) * gpu_tier_page_bytes(&g->source);
}

int gpu_tiers_finish(struct gpu_engine *g, uint32_t place, struct helm_err *err)
{
    if (!g->tiers.stores[place]) return 0;
    g->tiers.stores[place] = false;
    return device_word_poll(g->device, &g->tiers.stored[place], 1, g->wait_ms, err);
}

/* ---- sessions ---- */

int gpu_session_move(struct gpu_engine *g, const struct step *step, struct helm_err *err)
{
    const struct arena *arena = g->base.arena;
    const bool window = step->flags & STEP_KV_WINDOW;
    const struct kv_layout *kv = window ? &g->window_kv : &g->kv;
    const uint32_t before = window ? plan_session_window_layer(&g->plan, g->base.self)
                                   : plan_session_layer(&g->plan, g->base.self);
    const uint64_t bytes = kv_page_bytes(kv), at = before * kv_layer_bytes(kv),
                   room = arena_header_of(arena)->region[ARENA_REGION_SESSION].bytes;
    if (!bytes) return 0; /* no layer's cache is the GPU's */
    if (room < at + bytes)
        return helm_fail(err, HELM_E_MISMATCH,
                         "step %u moves a page of %llu bytes, the arena's region for that has %llu",
                         step->serial, (unsigned long long)(at + bytes), (unsigned long long)room);
    char *there = (char *)arena_region_ptr(arena, ARENA_REGION_SESSION) + at;
    char *here = (char *)g->kv_pool + (window ? g->window_at : 0) + step->page * bytes;
    const bool out = (step->flags & STEP_KV_OUT) != 0;
    atomic_store_explicit(g->source.moved, 0, memory_order_release);
    int rc = device_copy(g->device, DEVICE_COMPUTE, out ? DEVICE_TO_HOST : DEVICE_TO_DEVICE,
                         out ? there : here, out ? here : there, bytes, err);
    if (!rc) rc = device_word_write(g->device, g->source.moved, 1, err);
    return rc ? rc : device_word_poll(g->device, g->source.moved, 1, g->wait_ms, err);
}
