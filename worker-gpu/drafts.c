/* Drafts by the model's own layer. See engine.h. */

#include "common/base/units.h"
#include "common/worker/drafting.h"
#include "worker-gpu/engine.h"

static int open_one(struct gpu_engine *g, bool first, enum gpu_tier tier, struct gpu_program *p,
                    struct helm_err *err)
{
    bool occurs = false; /* steps of this tier, in some list */
    for (uint32_t i = 0; i < plan_phase_count(&g->plan); i++) occurs |= g->program[i][tier].count > 0;
    if (!occurs) return 0;
    const int rc = gpu_program_lower_drafts(&g->source, first, tier, p, err);
    return rc ? rc : gpu_step_warm(g, p, err);
}

int gpu_drafts_open(struct gpu_engine *g, struct helm_err *err)
{
    int rc = 0;
    if (!g->plan.draft_layers || g->plan.head != g->base.self) return 0;
    for (int t = 0; t < GPU_TIER_COUNT && !rc; t++)
        rc = open_one(g, true, (enum gpu_tier)t, &g->drafts.first[t], err);
    for (int t = 0; t < GPU_TIER_CHUNK && !rc; t++)
        rc = open_one(g, false, (enum gpu_tier)t, &g->drafts.next[t], err);
    return rc;
}

void gpu_drafts_close(struct gpu_engine *g)
{
    for (int t = 0; t < GPU_TIER_COUNT; t++) gpu_program_free(&g->drafts.first[t], g->device);
    for (int t = 0; t < GPU_TIER_CHUNK; t++) gpu_program_free(&g->drafts.next[t], g->device);
}

int gpu_drafts_settle(struct gpu_engine *g, struct helm_err *err)
{
    if (!g->drafts.running) return 0;
    g->drafts.running = false;
    return device_word_poll(g->device, g->source.end, 1, g->wait_ms, err);
}

/* The batch through the layer, and its samples drawn. Without samples nothing waits for the layer. */
static int run(struct gpu_engine *g, const struct gpu_program *p, struct helm_err *err)
{
    const struct batch *batch = &g->batch;
    const struct gpu_issue issue = gpu_issue_of(g);
    gpu_step_fill(g, p);
    atomic_store_explicit(g->source.end, 0, memory_order_release);
    int rc = gpu_program_issue(&g->source, p, &issue, err);
    g->drafts.running = !rc;
    if (rc || !batch->sample_count) return rc;
    rc = gpu_draw_queue(g, err);
    if (!rc) rc = gpu_drafts_settle(g, err);
    return rc ? rc : gpu_draw_finish(g, gpu_follow_tokens(g, 0), &g->drafts.drawn, err);
}

/* Hidden states of these tokens, which the program has left, become the first ones. They rise, so none is
 * overwritten before it is copied. */
static int gather(struct gpu_engine *g, const struct gpu_program *ran, const uint32_t *from, uint32_t count,
                  struct helm_err *err)
{
    const size_t hidden = g->model.config.hidden;
    float *x = gpu_area(&g->buffers, GPU_AREA_X);
    int rc = 0;
    for (uint32_t i = 0; i < count && !rc; i++) {
        const struct op move = {.kind = OP_LANE_READ,
                                .tokens = 1,
                                .count = ran->step.counts + 2, /* samples: there is one at least */
                                .as.move = {.from = x + from[i] * hidden,
                                            .to = x + i * hidden,
                                            .width = (uint32_t)hidden}};
        if (from[i] != i) rc = device_run(g->device, &move, err);
    }
    return rc;
}

int gpu_drafts_run(struct gpu_engine *g, enum gpu_tier tier, struct step_result *result, struct helm_err *err)
{
    struct draftings drafts;
    struct batch *batch = &g->batch;
    const struct plan_schedule few = {0};
    drafting_begin(g->base.arena, g->model.config.vocab, result, batch, &drafts);
    g->draw.further = DRAFTING_FURTHER;
    const struct gpu_program *ran = &g->drafts.first[tier];
    int rc = run(g, ran, err);
    const uint64_t first_ns = units_now_ns();
    if (!rc) rc = gather(g, ran, drafts.from, drafts.count, err);
    while (!rc && drafts.count && drafting_next(g->base.arena, g->drafts.drawn.row, batch, &drafts, result)) {
        rc = gather(g, ran, drafts.from, drafts.count, err);
        ran = &g->drafts.next[gpu_tier_for(&g->plan, &few, drafts.count)];
        if (!rc) rc = run(g, ran, err);
    }
    g->draw.further = 0;
    result->further_us = (uint32_t)((units_now_ns() - first_ns) / 1000);
    return rc;
}
