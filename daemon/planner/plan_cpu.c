/* The CPU-only plan. See plan_cpu.h. Called at helmd's start; the stages belong to the plan. */
#include "daemon/planner/plan_cpu.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/planner/analyse.h"

int plan_cpu_build(const struct model *model, struct plan *plan, struct helm_err *err)
{
    memset(plan, 0, sizeof *plan);
    plan->stages = calloc(1, sizeof *plan->stages);
    if (!plan->stages) return helm_fail(err, HELM_E_NOMEM, "no memory for a plan");
    struct analyse_totals totals;
    analyse_totals(model, &totals);
    plan->layers = model->config.layers;
    plan->stage_count = 1;
    plan->stages[0] = (struct plan_stage){.first = 0,
                                          .last = model->config.layers - 1,
                                          .home = PLAN_HOME_CPU,
                                          .bytes = totals.layer_bytes};
    return 0;
}

int plan_cpu_check(const struct model *model, const struct plan *plan, struct helm_err *err)
{
    if (plan->layers != model->config.layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         model->config.layers);
    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (plan->stages[i].home != PLAN_HOME_CPU)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "stage %u of the plan is at home on '%s'; this build has only 'cpu'", i,
                             plan_home_name(plan->stages[i].home));
    return 0;
}
