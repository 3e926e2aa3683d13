/* Plans with weights on disk, whichever they are. See disk_plans.h. */
#include "daemon/planner/disk_plans.h"

#include "common/base/units.h"

int disk_write(struct making *m, const struct disk_lists *lists, struct plan *plan, struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    struct arena_spec arena;
    plan_drop_placements(plan);
    plan->layers = config->layers;
    plan->draft_layers = config->drafts;
    plan->expert_parts = 1;
    plan->embed = lists->embed;
    plan->head = lists->head;
    int rc = plan->unit ? 0 : plan_make_units(plan, PLAN_HOME_CPU, err);
    if (rc) return rc;
    plan_set_homes(plan, 0, lists->home);
    plan_device_at(plan, PLAN_HOME_DISK)->experts.slots = lists->slots;
    plan_device_at(plan, PLAN_HOME_DISK)->ring_bytes = lists->ring;
    return ledger_write(&m->c, lists->ctx, ledger_least_pages(&m->c, lists->ctx), plan, &arena, err);
}

void disk_begin_wish(struct making *m, uint32_t step_tokens)
{
    candidate_begin(m, 0);
    m->wish.pack_cpu = m->wish.pack_gpu = false;
    if (!m->wish.step_tokens) m->wish.step_tokens = step_tokens;
}

uint64_t disk_host_needed(const struct plan *plan)
{
    const uint64_t total = plan->memory[PLAN_HOST].total;
    for (int m = PLAN_HOST + 1; m < PLAN_MEMORIES; m++)
        if (plan->memory[m].total > plan->memory[m].limit) return 0;
    return total + (total < GIB ? MIB : GIB) / PERCENT;
}
