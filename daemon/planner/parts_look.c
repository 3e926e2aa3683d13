/* Plans of models with large experts. See parts_look.h. */
#include "daemon/planner/parts_look.h"

#include "common/model/parts.h"

int parts_look_make(struct model *model, struct planner_request *r, struct plan *plan,
                    struct arena_spec *spec, struct helm_err *err)
{
    const uint32_t parts = model_parts_wanted(model);
    int rc = model_cut_experts(model, parts, err);
    if (!rc) rc = packed_look_make(r, plan, spec, err);
    /* what has no room in parts may have some whole */
    const bool stands = parts == 1 || (rc ? rc != HELM_E_CAPACITY : plan_mixed_units(plan) > 0);
    if (stands) return rc;
    plan_free(plan);
    rc = model_cut_experts(model, 1, err);
    return rc ? rc : packed_look_make(r, plan, spec, err);
}
