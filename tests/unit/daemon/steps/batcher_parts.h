/* The parts beneath a batcher in its tests: the demo model's shape, a described machine, an arena of any
 * sizes; no processes. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "daemon/steps/batcher.h"
#include "tests/written_plans.h"

struct batcher_parts {
    struct model model;
    struct profile profile;
    struct plan plan, lists; /* the forecast's, the batcher's */
    struct plan_unit unit[WRITTEN_UNITS(MODEL_LAYERS_MAX)];
    struct observe observe;
    struct metrics metrics;
    struct arena arena;
    struct batcher batcher;
};

struct batcher_parts_case {
    uint32_t slots, context_tokens, step_tokens, page_tokens, pages;
    uint32_t places, direct_permille, direct_positions, free_places; /* of a cache in two tiers; 0: one */
    uint32_t snapshots; /* of a fixed state in layer 0; 0: all layers keep pages */
    uint32_t queue;
    enum prefix_sharing sharing;
    struct batcher_sink sink;
};

/* Into zeroed parts, which stay where they are. */
static inline void batcher_parts_open(struct batcher_parts *p, const struct batcher_parts_case *c)
{
    struct helm_err err = {0};
    if (model_read("tools/models/demo", &p->model, &err) ||
        profile_read("tests/data/profiles/described.json", NULL, &p->profile, &err))
        fail_msg("%s", err.text);
    p->plan = (struct plan){.layers = p->model.config.layers,
                            .context_tokens = c->context_tokens,
                            .step_tokens = c->step_tokens,
                            .slots = c->slots,
                            .kv_dtype = "f16",
                            .unit = units_all(p->unit, p->model.config.layers, PLAN_HOME_CPU)};
    const struct arena_spec spec = {
        .slots = c->slots,
        .context_tokens = c->context_tokens,
        .step_tokens = c->step_tokens,
        .hidden = 16,
        .vocab = p->model.config.vocab,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 8, .page_tokens = c->page_tokens, .dtype = DTYPE_F16},
        .page_count = c->pages,
        .lanes = {0, c->places ? PLAN_LINKS : 0},
        .vram_page_count = c->places,
        .kv_heads_asking = c->places ? 1 : 0};
    if (forecast_open(&p->model, &p->profile, &p->plan, &p->observe.forecast, &err) ||
        arena_create(&spec, &p->arena, &err))
        fail_msg("%s", err.text);
    observe_init(&p->observe, 0, OBSERVE_NO_WORKER, 0, 0);
    metrics_init(&p->metrics);
    p->lists = p->plan;
    p->lists.page_tokens = c->page_tokens;
    p->lists.device[PLAN_GPU0].vram_page_count = c->places;
    p->lists.kv_direct_permille = c->direct_permille;
    p->lists.kv_direct_positions = c->direct_positions;
    p->lists.kv_free_places = c->free_places;
    p->lists.state_snapshots = c->snapshots;
    if (c->snapshots) {
        p->lists.has_states = true;
        for (uint32_t l = 0; l < p->lists.layers; l++)
            p->unit[unit_of(l, UNIT_ATTENTION)].state.kind = STATE_PAGES;
        p->unit[0].state = (struct plan_state){.kind = STATE_FIXED, .bytes = STATE_ALIGN};
    }
    const struct batcher_options options = {.model = &p->model.config,
                                            .plan = &p->lists,
                                            .arena = &p->arena,
                                            .metrics = &p->metrics,
                                            .observe = &p->observe,
                                            .workers = 1,
                                            .queue_limit = c->queue,
                                            .sharing = c->sharing,
                                            .sink = c->sink};
    if (batcher_init(&p->batcher, &options, &err)) fail_msg("%s", err.text);
}

static inline void batcher_parts_close(struct batcher_parts *p)
{
    batcher_free(&p->batcher);
    arena_close(&p->arena);
    forecast_close(&p->observe.forecast);
    model_free(&p->model);
}
