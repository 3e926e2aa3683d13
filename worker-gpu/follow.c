/* Steps launched after the one that runs. See follow.h. */
#include "worker-gpu/follow.h"

#include <string.h>

#include "common/base/log.h"
#include "worker-gpu/engine.h"

struct gpuk_token *gpu_follow_tokens(const struct gpu_engine *g, uint32_t at)
{
    return g->source.tokens + at * ARENA_STEP_ROWS;
}

_Atomic uint32_t *gpu_follow_end(const struct gpu_engine *g, uint32_t at)
{
    return g->source.end + at;
}

/* Whether no part of a step is another worker's, and none comes over the link. */
static bool is_alone(const struct gpu_engine *g, const struct gpu_program *p)
{
    return p->count && g->plan.embed == g->base.self && g->plan.head == g->base.self && p->turns == 1 &&
           !p->turn[0].in && !p->turn[0].out && !plan_is_helped(&g->plan, g->base.self) &&
           p->tail == p->count && !p->copy_bytes && !plan_streams(&g->plan, g->base.self) &&
           (!g->staging_bytes || g->tiers.on);
}

/* The chains are the decode step's own: the same operations, in the same memory. */
static int take_chains(const struct gpu_program *from, struct gpu_program *to, struct helm_err *err)
{
    uint32_t f = 0, chains = 0;
    for (uint32_t i = 0; i < to->count; i++) {
        if (to->entry[i].op.kind != OP_CHAIN) continue;
        while (f < from->count && from->entry[f].op.kind != OP_CHAIN) f++;
        if (f == from->count || from->entry[f].op.as.chain.count != to->entry[i].op.as.chain.count)
            return helm_fail(err, HELM_E_INTERNAL,
                             "a step that follows has other chains than the step itself");
        to->entry[i].op.as.chain = from->entry[f++].op.as.chain;
        chains++;
    }
    return chains == from->chains ? 0
                                  : helm_fail(err, HELM_E_INTERNAL, "%u chains of %u", chains, from->chains);
}

/* Without a block, into a place of its own; captured where the decode step is. */
static int make_program(struct gpu_engine *g, const struct gpu_program *decode, struct gpu_program *p,
                        uint32_t at, struct helm_err *err)
{
    const struct gpu_program_kind kind = {.tier = decode->tier, .attending = decode->attending};
    struct gpu_source source = g->source;
    source.tokens = gpu_follow_tokens(g, at);
    source.end = gpu_follow_end(g, at);
    source.follows = true;
    int rc = gpu_program_lower(&source, &kind, p, err);
    if (!rc) rc = take_chains(decode, p, err);
    if (rc || !decode->graph) return rc;
    return gpu_program_capture(&source, p, err);
}

int gpu_follow_open(struct gpu_engine *g, struct helm_err *err)
{
    const uint32_t slots = arena_header_of(g->base.arena)->slots;
    int rc = 0;
    const struct plan_schedule decode = {0};
    const int most = (int)gpu_tier_for(&g->plan, &decode, slots);
    if (plan_phase_count(&g->plan) > 1 || g->plan.draft_layers) return 0;
    for (int t = 0; t < GPU_TIER_COUNT && !rc; t++) {
        if (t > most || !is_alone(g, &g->program[0][t])) continue;
        for (uint32_t at = 0; at < GPU_FOLLOW_PLACES && !rc; at++)
            rc = make_program(g, &g->program[0][t], &g->follow.program[t][at], at, err);
        g->follow.there[t] = !rc;
        const struct gpu_program *apart = t < GPU_TIER_CHUNK ? &g->other[GPU_ATTENDS_APART][t] : NULL;
        for (uint32_t at = 0; at < GPU_FOLLOW_PLACES && !rc && apart && apart->count; at++)
            rc = make_program(g, apart, &g->follow.apart[t][at], at, err);
    }
    return rc;
}

void gpu_follow_close(struct gpu_engine *g)
{
    struct gpu_follow *f = &g->follow;
    if (f->launched)
        log_info("%llu of %llu steps were launched before the host had seen the one before end",
                 (unsigned long long)f->launched, (unsigned long long)f->steps);
    for (int i = 0; i < GPU_TIER_COUNT * GPU_FOLLOW_PLACES; i++)
        gpu_program_free(&f->program[i / GPU_FOLLOW_PLACES][i % GPU_FOLLOW_PLACES], g->device);
    for (int i = 0; i < GPU_TIER_CHUNK * GPU_FOLLOW_PLACES; i++)
        gpu_program_free(&f->apart[i / GPU_FOLLOW_PLACES][i % GPU_FOLLOW_PLACES], g->device);
    memset(f, 0, sizeof *f);
}

bool gpu_follow_take(struct gpu_engine *g)
{
    const bool running = g->follow.running;
    g->follow.running = false;
    g->follow.steps++;
    return running;
}

int gpu_follow_settle(struct gpu_engine *g, struct helm_err *err)
{
    if (!g->follow.running) return 0;
    g->follow.running = false;
    return device_word_poll(g->device, gpu_follow_end(g, g->follow.at), 1, g->wait_ms, err);
}

/* The places in VRAM of the pages that a row appends to. */
static const uint32_t *newest_of(const struct gpu_engine *g, const struct batch_row *row)
{
    return g->tiers.on ? row->places : row->pages;
}

/* Whether `next` takes the batch's rows, each of which has one token, one further. */
static bool follows(const struct gpu_engine *g, const struct step *next)
{
    const struct arena_header *h = arena_header_of(g->base.arena);
    const struct batch *batch = &g->batch;
    const uint32_t pages = g->tiers.on ? h->vram_page_count : h->page_count;
    /* the CPU's part of a step, and pages that come by the way, take a block of the step's own */
    if (batch->assisted || next->flags & STEP_KV_ASSISTED || next->fetch_count) return false;
    if (batch->token_count != batch->row_count || batch->sample_count != batch->row_count ||
        next->row_count != batch->row_count)
        return false;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        const struct step_row *in = &next->row[r];
        if (in->slot != row->slot || in->start != row->start + 1 || in->count != 1 ||
            in->flags != (STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS) || in->start >= h->context_tokens ||
            gpu_states_moves(&g->states, in) || in->host_tokens != row->host_tokens ||
            in->direct_from != row->direct_from)
            return false;
        for (uint32_t p = g->follow.pages[r]; p <= in->start / h->kv.page_tokens; p++)
            if (row->pages[p] >= h->page_count || newest_of(g, row)[p] >= pages ||
                (row->windows && row->windows[p] >= h->window_page_count))
                return false;
    }
    return true;
}

/* Entries of the device's table, from `at` on in the block. */
static int add_entries(struct gpu_engine *g, uint64_t at, const uint32_t *entries, uint32_t count,
                       struct helm_err *err)
{
    const uint64_t bytes = count * sizeof *entries;
    memcpy(g->source.block_host + at, entries, bytes);
    return device_copy(g->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE,
                       (char *)gpu_area(g->source.buffers, GPU_AREA_BLOCK) + at, g->source.block_host + at,
                       bytes, err);
}

/* Adds pages that rows enter to the device's table. Copies of the pinned block for the step in front of this
 * one may hold them or not: that step does not look at them. */
static int add_pages(struct gpu_engine *g, const struct gpu_program *p, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(g->base.arena);
    int rc = 0;
    for (uint32_t r = 0; r < g->batch.row_count && !rc; r++) {
        const struct batch_row *row = &g->batch.row[r];
        uint32_t *have = &g->follow.pages[r], need = (row->start + 1) / h->kv.page_tokens + 1;
        if (need <= *have) continue;
        const uint64_t line = p->step.pages_per_slot,
                       at = p->block.page_table + (r * line + *have) * sizeof(uint32_t);
        rc = add_entries(g, at, newest_of(g, row) + *have, need - *have, err);
        if (!rc && row->windows)
            rc = add_entries(g, at + line / 2 * sizeof(uint32_t), row->windows + *have, need - *have, err);
        *have = need;
    }
    return rc;
}

int gpu_follow_launch(struct gpu_engine *g, const struct step *step, bool *looked, struct helm_err *err)
{
    struct gpu_follow *f = &g->follow;
    const struct arena_control *control = arena_control_of(g->base.arena);
    const struct step *next = &control->step[(step->serial + 1) % ARENA_STEP_RING];
    const uint32_t tokens = g->batch.token_count;
    const struct plan_schedule schedule = {.chunk = g->batch.flags & STEP_PROMPT || tokens > GPUK_BATCH_MAX};
    const enum gpu_tier tier = gpu_tier_for(&g->plan, &schedule, tokens);
    if (!f->there[tier] || g->draw.few_count || g->draw.row_count) {
        *looked = true;
        return 0;
    }
    *looked = step_reached(doorbell_read(&control->step_bell), step->serial + 1);
    if (!*looked || next->epoch != step->epoch || !follows(g, next)) return 0;
    const uint32_t at = (f->at + 1) % GPU_FOLLOW_PLACES;
    uint32_t furthest = 0; /* tier is none of chunks: is_alone */
    for (uint32_t r = 0; r < next->row_count; r++)
        if (next->row[r].start > furthest) furthest = next->row[r].start;
    const bool apart =
        tier < GPU_TIER_CHUNK && f->apart[tier][at].count && gpu_attends_apart(&g->plan, tier, furthest);
    const struct gpu_program *p = apart ? &f->apart[tier][at] : &f->program[tier][at];
    const struct gpu_issue issue = {.tokens = tokens, .rows = tokens, .samples = tokens};
    struct gpu_source source = g->source;
    source.tokens = gpu_follow_tokens(g, at);
    source.end = gpu_follow_end(g, at);
    int rc = gpu_tiers_begin(g, err);
    if (!rc) rc = add_pages(g, p, err);
    atomic_store_explicit(source.end, 0, memory_order_release);
    if (!rc)
        rc = p->graph ? g->device->ops->graph_launch(g->device, p->graph, false, err)
                      : gpu_program_issue(&source, p, &issue, err);
    if (!rc && g->tiers.on) rc = gpu_tiers_store(g, at, 1, err);
    if (rc) return rc;
    f->at = at;
    f->running = true;
    f->launched++;
    return 0;
}
