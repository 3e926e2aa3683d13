/* The idea of shared experts, or a dense MLP, in VRAM beside experts on the CPU. See ideas.h. Called by
 * experts.c and strategies.c.
 *
 * These go into VRAM, as all else does, where that is faster and there is room for one slot of each layer,
 * which never changes: kernels read no expert in host memory, and none move. So the forecast of `experts-cpu`
 * is that of other programs' way. */
#include <math.h>

#include "daemon/planner/experts.h"

int experts_try_shared(struct making *m, const struct spec *spec, struct candidate *best,
                       struct helm_err *err)
{
    struct candidate beside = *best;
    struct arena_spec arena;
    const struct model_math *math = &m->r->model->math;
    bool beside_experts = false;
    for (uint32_t p = 0; p < math->parts; p++) beside_experts |= math->part[p].beside;
    if (!best->fits || spec->strategy != SEARCH_EXPERTS_CPU || m->r->one_memory || !beside_experts) return 0;
    beside.seconds = INFINITY;
    int rc = experts_place(m, &best->plan, 0, PACKS_NONE, &beside.plan, err);
    plan_device_at(&beside.plan, PLAN_HOME_MIXED)->experts =
        (struct plan_experts){.slots = 1, .moves = 1, .move_cost = PLAN_MOVE_COST_MAX};
    if (!rc)
        rc = ledger_write(&m->c, spec->ctx, ledger_least_pages(&m->c, spec->ctx), &beside.plan, &arena, err);
    if (!rc && ledger_fits(&beside.plan))
        rc = making_decode_seconds(m, &beside.plan, 0, &beside.seconds, err);
    candidate_keep(m, best, &beside, !rc && beside.seconds < best->seconds);
    return rc;
}
