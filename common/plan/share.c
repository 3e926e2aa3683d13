/* Units at home on `shared`. See share.h. */
#include "common/plan/share.h"

uint32_t plan_shared_index(const struct plan *plan, uint32_t unit)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit; u++) count += plan->unit[u].home[0] == PLAN_HOME_SHARED;
    return count;
}

uint32_t plan_shared_units(const struct plan *plan)
{
    return plan_shared_index(plan, unit_count(plan->layers));
}

/* Prompts have all rows on the device, to which the helper's are streamed. */
static int check_lists(const struct plan *plan, uint32_t unit, struct helm_err *err)
{
    if (unit_part(unit) != UNIT_MLP)
        return helm_fail(err, HELM_E_FORMAT,
                         "layer %u has 'shared' as home of its attention: it is for the MLP of a layer",
                         unit_layer(unit));
    if (plan_unit_format(plan, unit) != PLAN_AS_STORED)
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "the MLP of layer %u is 'shared' and lies as '%s': rows are shared as they are stored",
            unit_layer(unit), tensor_format_name(plan_unit_format(plan, unit)));
    for (uint32_t p = 1; p < plan_phase_count(plan); p++)
        if (plan->unit[unit].home[p] != PLAN_HOME_STREAM)
            return helm_fail(
                err, HELM_E_FORMAT,
                "the MLP of layer %u is at home on 'shared' in decode and on '%s' in prefill list "
                "%u: only 'stream' has its rows that lie in VRAM, too",
                unit_layer(unit), plan_home_name(plan->unit[unit].home[p]), p);
    return 0;
}

int plan_check_shared(const struct plan *plan, struct helm_err *err)
{
    uint32_t units = 0;
    int rc = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers) && !rc; u++) {
        const bool shared = plan->unit[u].home[0] == PLAN_HOME_SHARED;
        units += shared;
        if (shared) rc = check_lists(plan, u, err);
        for (uint32_t p = 1; p < plan_phase_count(plan) && !rc; p++)
            if (plan->unit[u].home[p] == PLAN_HOME_SHARED)
                rc = helm_fail(err, HELM_E_FORMAT,
                               "layer %u is at home on 'shared' in a prefill list: it is for the decode list",
                               unit_layer(u));
    }
    if (rc) return rc;
    if (!units != !plan->shared_rows)
        return helm_fail(err, HELM_E_FORMAT, "%u layers have 'shared' as home, 'shared_rows' is %u", units,
                         plan->shared_rows);
    return 0;
}

static int share(const struct plan *plan, struct model *model, const struct model *whole,
                 struct helm_err *err)
{
    bool shared[MODEL_LAYERS_MAX] = {false};
    for (uint32_t l = 0; l < plan->layers && l < whole->config.layers; l++)
        shared[l] = plan->unit[unit_of(l, UNIT_MLP)].home[0] == PLAN_HOME_SHARED;
    return model == whole ? model_share(model, shared, plan->shared_rows, err)
                          : model_share_copy(whole, shared, plan->shared_rows, model, err);
}

int plan_share_model(const struct plan *plan, struct model *model, struct helm_err *err)
{
    return plan_shared_units(plan) ? share(plan, model, model, err) : 0;
}

int plan_share_copy(const struct plan *plan, const struct model *whole, struct model *cut,
                    const struct model **of, struct helm_err *err)
{
    *cut = (struct model){0};
    *of = whole;
    if (!plan_shared_units(plan)) return 0;
    *of = cut;
    return share(plan, cut, whole, err);
}
