/* The idea of experts on disk. See ideas.h and common/plan/disk.h. Called by planner.c where nothing else
 * fits; lists belong to the plan.
 *
 * All on the CPU, and every layer's experts on disk with as many slots as host memory has room for beside the
 * rest. All layers, since the same memory finds more of what tokens choose as slots of every layer than as
 * whole layers: where tokens choose evenly it finds as much, and tokens choose some experts more often than
 * others. The first context counts for which a layer's slots hold the experts of one token; otherwise the
 * largest with a slot. */
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/plan/disk.h"
#include "daemon/planner/ideas.h"

/* Whether each sparse layer's experts can be read one by one, and what a slot in all of them takes. */
static bool can(const struct making *m, uint64_t *slot_bytes)
{
    const struct model *model = m->r->model;
    struct helm_err why;
    *slot_bytes = 0;
    if (model_expert_parts(&model->config) > 1 || m->r->profile->disk_read.value <= 0) return false;
    for (uint32_t l = 0; l < model_answer_layers(&model->config); l++) {
        struct disk_unit unit;
        if (!model_layer_sparse(&model->config, l)) continue;
        if (disk_place_unit(model, unit_of(l, UNIT_MLP), &unit, &why)) {
            log_info("experts are not planned on disk: %s", why.text);
            return false;
        }
        *slot_bytes += unit.slot_bytes;
    }
    return *slot_bytes > 0;
}

static int write_plan(struct making *m, uint32_t ctx, uint32_t slots, struct plan *plan, struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    struct arena_spec arena;
    plan_drop_placements(plan);
    plan->layers = config->layers;
    plan->draft_layers = config->drafts;
    plan->expert_parts = 1;
    int rc = plan->unit ? 0 : plan_make_units(plan, PLAN_HOME_CPU, err);
    for (uint32_t l = 0; l < model_answer_layers(config) && !rc; l++)
        if (model_layer_sparse(config, l)) plan->unit[unit_of(l, UNIT_MLP)].home[0] = PLAN_HOME_DISK;
    plan_device_at(plan, PLAN_HOME_DISK)->experts.slots = slots;
    return rc ? rc : ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), plan, &arena, err);
}

/* With one slot a layer, then with as many as the rest leaves room for. */
static int make(struct making *m, uint32_t ctx, uint64_t slot_bytes, struct candidate *out,
                struct helm_err *err)
{
    const struct ledger *host = &out->plan.memory[PLAN_HOST];
    const uint32_t experts = m->r->model->config.router.experts;
    candidate_begin(m, 0);
    m->wish.pack_cpu = m->wish.pack_gpu = false;
    if (!m->wish.step_tokens) m->wish.step_tokens = LEDGER_STEP_TOKENS;
    int rc = write_plan(m, ctx, 1, &out->plan, err);
    out->fits = !rc && ledger_fits(&out->plan);
    if (!out->fits) return rc;
    const uint64_t left = host->limit - host->total,
                   more = left > LEDGER_ROUNDING_BYTES ? (left - LEDGER_ROUNDING_BYTES) / slot_bytes : 0;
    rc = write_plan(m, ctx, more + 1 < experts ? (uint32_t)more + 1 : experts, &out->plan, err);
    out->wish = m->wish;
    out->fits = !rc && ledger_fits(&out->plan);
    return rc;
}

int disk_try(struct making *m, struct spec *spec, struct candidate *best, struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    uint64_t slot_bytes;
    int rc = 0;
    if (best->fits || spec->device || !can(m, &slot_bytes)) return 0;
    for (uint32_t ctx = making_first_ctx(m); ctx && !rc; ctx = making_next_ctx(m, ctx)) {
        struct candidate now = {.fits = false};
        rc = make(m, ctx, slot_bytes, &now, err);
        const bool enough = now.fits && plan_disk_slots(&now.plan) >= config->router.chosen;
        const bool better = !rc && now.fits && (!best->fits || enough);
        if (better) spec->ctx = ctx;
        candidate_keep(m, best, &now, better);
        if (enough) break;
    }
    return rc || !best->fits ? rc : making_decode_seconds(m, &best->plan, 0, &best->seconds, err);
}
