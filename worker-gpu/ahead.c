/* Steps launched ahead. See ahead.h. */
#include "worker-gpu/ahead.h"

#include <string.h>

#include "common/log.h"
#include "worker-gpu/engine.h"

struct gpuk_token *gpu_ahead_tokens(const struct gpu_engine *g, uint32_t at)
{
    return g->source.tokens + at * ARENA_STEP_ROWS;
}

_Atomic uint32_t *gpu_ahead_end(const struct gpu_engine *g, uint32_t at)
{
    return g->source.end + at;
}

static struct gpu_program *decode_of(struct gpu_engine *g)
{
    return &g->program[0][GPU_TIER_1];
}

/* Nothing of a step is the other worker's, and nothing of it comes over the link. */
static bool is_alone(const struct gpu_engine *g, const struct gpu_program *p)
{
    return p->graph && g->plan.embed == PLAN_HOME_GPU && g->plan.head == PLAN_HOME_GPU && p->turns == 1 &&
           !p->turn[0].in && !p->turn[0].out && p->tail == p->count && !p->copy_bytes &&
           !plan_has_home(&g->plan, PLAN_HOME_STREAM) && !g->staging_bytes;
}

/* The chains are the decode step's own: the same operations, in the same memory. */
static int take_chains(const struct gpu_program *from, struct gpu_program *to, struct helm_err *err)
{
    uint32_t f = 0, chains = 0;
    for (uint32_t i = 0; i < to->count; i++) {
        if (to->entry[i].kind != GPU_CHAIN) continue;
        while (f < from->count && from->entry[f].kind != GPU_CHAIN) f++;
        if (f == from->count || from->entry[f].as.chain.count != to->entry[i].as.chain.count)
            return helm_fail(err, HELM_E_INTERNAL, "a step ahead has other chains than the step itself");
        to->entry[i].as.chain.chain = from->entry[f++].as.chain.chain;
        chains++;
    }
    return chains == from->chains ? 0
                                  : helm_fail(err, HELM_E_INTERNAL, "%u chains of %u", chains, from->chains);
}

static int make_program(struct gpu_engine *g, uint32_t at, struct helm_err *err)
{
    struct device *d = g->device;
    struct gpu_program *p = &g->ahead.program[at];
    struct gpu_source source = g->source;
    source.tokens = gpu_ahead_tokens(g, at);
    source.end = gpu_ahead_end(g, at);
    source.follows = true;
    int rc = gpu_program_lower(&source, 0, GPU_TIER_1, p, err);
    if (!rc) rc = take_chains(decode_of(g), p, err);
    if (!rc) rc = d->ops->capture_begin(d, err);
    if (rc) return rc;
    const struct gpu_issue issue = {.tokens = p->tokens, .rows = p->samples, .samples = p->samples};
    rc = gpu_program_issue(&source, p, &issue, err);
    int ended = d->ops->capture_end(d, &p->graph, rc ? NULL : err);
    return rc ? rc : ended;
}

int gpu_ahead_open(struct gpu_engine *g, struct helm_err *err)
{
    int rc = 0;
    if (!is_alone(g, decode_of(g))) return 0;
    for (uint32_t at = 0; at < 2 && !rc; at++) rc = make_program(g, at, err);
    g->ahead.there = !rc;
    return rc;
}

void gpu_ahead_close(struct gpu_engine *g)
{
    const struct gpu_ahead *a = &g->ahead;
    if (a->taken + a->unwanted)
        log_info("steps launched ahead: %llu were asked for, %llu were not", (unsigned long long)a->taken,
                 (unsigned long long)a->unwanted);
    for (int i = 0; i < 2; i++) gpu_program_free(&g->ahead.program[i], g->device);
    g->ahead.there = g->ahead.running = false;
}

/* The page table of the block that was copied last; line 0 is the one row's. */
static const uint32_t *pages_of_block(struct gpu_engine *g)
{
    return (const uint32_t *)(const void *)(g->source.block_host + decode_of(g)->block.page_table);
}

bool gpu_ahead_take(struct gpu_engine *g)
{
    struct gpu_ahead *a = &g->ahead;
    const struct batch *batch = &g->batch;
    const struct batch_row *row = &batch->row[0];
    if (!a->running || batch->row_count != 1 || batch->token_count != 1 || batch->sample_count != 1 ||
        row->slot != a->slot || row->start != a->start)
        return false;
    uint32_t pages = a->start / arena_header_of(g->base.arena)->kv.page_tokens + 1;
    if (batch->token[0] != gpu_ahead_tokens(g, 1 - a->at)->id || pages > a->pages ||
        memcmp(row->pages, pages_of_block(g), pages * sizeof *row->pages) != 0)
        return false;
    a->running = false;
    a->taken++;
    return true;
}

int gpu_ahead_settle(struct gpu_engine *g, struct helm_err *err)
{
    struct gpu_ahead *a = &g->ahead;
    if (!a->running) return 0;
    a->running = false;
    a->unwanted++;
    return device_word_poll(g->device, gpu_ahead_end(g, a->at), 1, g->wait_ms, err);
}

int gpu_ahead_launch(struct gpu_engine *g, struct helm_err *err)
{
    struct gpu_ahead *a = &g->ahead;
    const struct arena_header *h = arena_header_of(g->base.arena);
    const struct batch *batch = &g->batch;
    const struct batch_row *row = &batch->row[0];
    if (!a->there || batch->row_count != 1 || batch->token_count != 1 || !row->sample || !row->ahead ||
        g->draw.few_count || g->draw.row_count)
        return 0;
    const uint32_t next = row->start + 1;
    if (next >= h->context_tokens || next / h->kv.page_tokens >= a->pages) return 0;
    const uint32_t at = 1 - a->at;
    atomic_store_explicit(gpu_ahead_end(g, at), 0, memory_order_release);
    int rc = g->device->ops->graph_launch_beside(g->device, a->program[at].graph, err);
    if (rc) return rc;
    a->at = at;
    a->slot = row->slot;
    a->start = next;
    a->running = true;
    return 0;
}
