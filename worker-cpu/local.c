/* The engine in one process. See local.h. */
#include "worker-cpu/local.h"

#include <stdlib.h>
#include <string.h>

#include "common/plan/state.h"

/* Every unit that the CPU can compute with packed lies so. */
static void pack_all(const struct model *model, struct plan *plan)
{
    bool link[UNIT_PARTS * MODEL_LAYERS_MAX], cpu[UNIT_PARTS * MODEL_LAYERS_MAX];
    placement_packing(model, link, cpu);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (cpu[u]) plan_set_unit_format(plan, u, FORMAT_BF16_PACKED);
}

int local_open(const struct local_options *o, struct local *local, struct helm_err *err)
{
    struct model model = {0};
    struct plan plan = {.invariant = o->invariant,
                        .expert_parts = o->expert_parts,
                        .draft_layers = o->drafts};
    memset(local, 0, sizeof *local);
    local->arena.fd = -1;
    int rc = o->made ? 0 : engine_read_model(o->folder, o->plan ? o->plan : &plan, &model, err);
    if (rc) return rc;
    if (o->made) model = *o->made, *o->made = (struct model){.folder = NULL};
    uint32_t page_tokens = o->page_tokens ? o->page_tokens : KV_PAGE_TOKENS_DEFAULT;
    const uint32_t pages_per_slot = (o->context_tokens + page_tokens - 1) / page_tokens;
    const uint32_t pages_all = o->pages ? o->pages : pages_per_slot * o->slots;
    plan.layers = model.config.layers;
    /* cells of another size have no place in pages; every page has a window's beside it */
    if (model.config.window_heads.head_dim) {
        plan.page_tokens = page_tokens;
        plan.page_count = plan.window_page_count = pages_all;
    }
    if (o->invariant) plan.step_tokens = o->step_tokens;
    rc = o->plan ? plan_copy(o->plan, &plan, err) : plan_make_units(&plan, PLAN_HOME_CPU, err);
    if (!rc && !o->plan) plan_take_states(&plan, &model);
    if (!rc && !o->plan && o->pack_cpu) pack_all(&model, &plan);
    if (!rc) rc = placement_make(&model, NULL, &plan, err);
    if (rc) goto out;
    local->pages_per_slot = pages_per_slot;
    struct arena_spec spec = plan_arena_spec(&plan, &model.config);
    spec.slots = o->slots;
    spec.samples = engine_samples(o->slots, o->draft_tokens);
    spec.context_tokens = o->context_tokens;
    spec.step_tokens = o->step_tokens;
    spec.kv.page_tokens = page_tokens;
    spec.kv.dtype = o->kv_dtype;
    spec.page_count = pages_all;
    spec.snapshot_count = o->snapshots;
    rc = arena_create(&spec, &local->arena, err);
    if (rc) goto out;
    arena_share_pages(&local->arena);
    struct engine_options options = {.folder = o->folder,
                                     .plan = &plan,
                                     .threads = o->threads,
                                     .node = o->node ? *o->node : -1,
                                     .kernels = o->kernels,
                                     .spin_us = o->spin_us ? o->spin_us : POOL_SPIN_US_DEFAULT,
                                     .pin = o->pin,
                                     .blank = o->blank,
                                     .made = o->made ? &model : NULL};
    rc = engine_load(&local->engine.base, &local->arena, &options, err);
out:
    plan_free(&plan);
    model_free(&model);
    if (rc) arena_close(&local->arena);
    return rc;
}

void local_close(struct local *local)
{
    engine_free(&local->engine.base);
    arena_close(&local->arena);
}

int local_step(struct local *local, const struct step_row *rows, uint32_t row_count,
               const struct step_result **result, struct helm_err *err)
{
    struct arena_control *control = arena_control_of(&local->arena);
    if (row_count > ARENA_STEP_ROWS)
        return helm_fail(err, HELM_E_LIMIT, "%u rows, a step has at most %d", row_count, ARENA_STEP_ROWS);
    uint32_t serial = ++local->serial, tokens = 0, drafts = 0;
    struct step *step = &control->step[serial % ARENA_STEP_RING];
    for (uint32_t i = 0; i < row_count; i++) tokens += rows[i].count, drafts += rows[i].drafts;
    step->serial = serial;
    step->epoch = arena_header_of(&local->arena)->epoch;
    step->row_count = row_count;
    step->token_count = tokens;
    step->draft_count = drafts;
    memcpy(step->row, rows, row_count * sizeof *rows);
    *result = &control->result[serial % ARENA_STEP_RING];
    return engine_step(&local->engine.base, serial, err);
}
