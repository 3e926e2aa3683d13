/* Slots for experts: plans that have them, their number, the share that is read directly. See experts.h.
 * Called by experts.c; lists belong to the plan. */
#include "daemon/planner/experts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "common/plan/slots.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/profile/policy.h"

#define DIRECT_STEP (PERMILLE / PLANNER_SHARES / 2)
/* Slots are packed where sampled experts shrink below this part of their bytes: then slots have room for
 * nearly all (common/plan/slots.c). */
#define PACKED_SLOTS_WORTH (PROFILE_PACKED_PART * (1 + WORTH_NOTING))

int experts_place(const struct making *m, const struct plan *from, uint32_t whole, enum packs packs,
                  struct plan *plan, struct helm_err *err)
{
    int rc = plan_copy(from, plan, err);
    plan_drop_placements(plan);
    for (uint32_t l = 0, seen = 0; l < model_answer_layers(&m->r->model->config) && !rc; l++) {
        const uint32_t mlp = unit_of(l, UNIT_MLP);
        if (!model_layer_sparse(&m->r->model->config, l) || ledger_is_second(&m->c, mlp)) continue;
        const bool here = seen++ < whole;
        const bool packed = m->table.packs_vram[mlp] &&
                            (here ? packs >= PACKS_WHOLE : packs == PACKS_ALL && m->table.packs_cpu[mlp]);
        plan_set_unit_format(plan, mlp, packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED);
        for (uint32_t p = 0; p < plan_phase_count(plan) && here; p++) plan->unit[mlp].home[p] = PLAN_HOME_GPU;
        if (!here) plan->unit[mlp].home[0] = PLAN_HOME_MIXED;
    }
    return rc;
}

/* VRAM that is left; an emulated device's is the host's. */
static uint64_t left_over(const struct making *m, const struct plan *plan)
{
    const struct ledger *vram = &plan->memory[plan_home_memory(PLAN_HOME_GPU)],
                        *host = &plan->memory[PLAN_HOST];
    uint64_t left = vram->limit - vram->total;
    if (m->machine.device.kind == LEDGER_DEVICE_EMULATED && host->limit - host->total < left)
        left = host->limit - host->total;
    return left > LEDGER_ROUNDING_BYTES ? left - LEDGER_ROUNDING_BYTES : 0;
}

int experts_fill(struct making *m, uint32_t ctx, struct plan *plan, bool *fits, struct helm_err *err)
{
    const struct ledger_wish wish = m->wish;
    struct plan_experts *const mixed = &plan_device_at(plan, PLAN_HOME_MIXED)->experts;
    struct arena_spec arena;
    struct slots_place place = {0};
    *mixed = (struct plan_experts){.slots = 1, .move_cost = PLAN_MOVE_COST};
    *fits = false;
    int rc = ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), plan, &arena, err);
    if (rc || !ledger_fits(plan)) return rc;
    rc = slots_place(m->r->model, plan, &place, err);
    if (rc) return rc;
    const uint64_t slots = 1 + left_over(m, plan) / (place.bytes ? place.bytes : 1);
    const uint32_t experts = m->r->model->config.router.experts;
    mixed->slots = slots < experts ? (uint32_t)slots : experts;
    m->wish.page_count = plan->page_count;
    do {
        rc = ledger_write(&m->c, ctx, plan->page_count, plan, &arena, err);
        *fits = !rc && ledger_fits(plan);
    } while (!rc && !*fits && --mixed->slots > 0);
    m->wish = wish;
    if (!rc && *fits) rc = ledger_fit(&m->c, ctx, plan, &arena, err);
    return !rc && *fits && m->r->experts ? histogram_apply(m->r->experts, plan, err) : rc;
}

int experts_choose_direct(const struct making *m, struct plan *plan, double *least, struct helm_err *err)
{
    uint32_t best = 0;
    int rc = 0;
    struct plan_experts *const mixed = &plan_device_at(plan, PLAN_HOME_MIXED)->experts;
    *least = INFINITY;
    for (uint32_t share = 0; share <= PERMILLE && !rc; share += DIRECT_STEP) {
        double seconds;
        mixed->direct_permille = share;
        rc = making_decode_seconds(m, plan, 0, &seconds, err);
        if (rc || seconds >= *least) continue;
        *least = seconds;
        best = share;
    }
    mixed->direct_permille = best;
    return rc;
}

bool experts_pack_whole(const struct making *m)
{
    const struct ledger_wish *asked = &m->r->wish;
    bool packs = false;
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(m->table.layers); u += UNIT_PARTS)
        packs |= m->table.packs_vram[u] && model_layer_sparse(&m->r->model->config, unit_layer(u));
    return packs && asked->pack && asked->pack_gpu && m->batch == 1 &&
           m->r->profile->gpu.gemv_packed.value > 0;
}

bool experts_pack_slots(const struct making *m)
{
    const struct ledger_wish *asked = &m->r->wish;
    bool packs = false;
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(m->table.layers); u += UNIT_PARTS)
        packs |= m->table.packs_vram[u] && m->table.packs_cpu[u];
    return packs && experts_pack_whole(m) && asked->pack_cpu && asked->parts.mlp < PACKED_SLOTS_WORTH &&
           m->r->profile->cpu.gemv_packed.value > 0;
}

int experts_refuse(struct making *m, uint32_t ctx, const struct plan *plan, struct helm_err *err)
{
    struct plan one = {0};
    struct arena_spec arena;
    char needed[UNITS_TEXT], has[UNITS_TEXT];
    int rc = experts_place(m, plan, 0, PACKS_NONE, &one, err);
    plan_device_at(&one, PLAN_HOME_MIXED)->experts =
        (struct plan_experts){.slots = 1, .move_cost = PLAN_MOVE_COST};
    if (!rc) rc = ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), &one, &arena, err);
    const struct ledger *vram = &one.memory[plan_home_memory(PLAN_HOME_GPU)];
    if (!rc) {
        units_format_size(vram->total, needed), units_format_size(vram->limit, has);
        if (m->r->refusal) {
            *m->r->refusal = (struct planner_refusal){true, "VRAM", vram->total, vram->limit, ""};
            snprintf(m->r->refusal->nearest, sizeof m->r->refusal->nearest,
                     "%s of VRAM, or --strategy experts-cpu", needed);
        }
        rc = helm_fail(
            err, HELM_E_CAPACITY,
            "no plan (%s) fits with a context of %u: a slot for one expert of each of %u layers and what is "
            "beside it need %s of VRAM, there are %s; nearest would be --strategy experts-cpu",
            search_strategy_name(SEARCH_MIXED), ctx, plan_mixed_units(&one), needed, has);
    }
    plan_free(&one);
    return rc;
}
