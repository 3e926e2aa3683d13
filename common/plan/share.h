/* Units at home on `shared`: dense MLPs of which a device has the first rows and its helper the others.
 * See home.h and common/model/share.h. Called by the planner and by workers; pure but for copies of a
 * model. */
#pragma once

#include "common/model/share.h"
#include "common/plan/plan.h"

/* Units of the decode list at home there; the index of one among them, by which their hand-overs are
 * counted. */
uint32_t plan_shared_units(const struct plan *plan);
uint32_t plan_shared_index(const struct plan *plan, uint32_t unit);
/* plan_check's part. */
HELM_MUST_CHECK int plan_check_shared(const struct plan *plan, struct helm_err *err);
/* Cuts the model's MLPs as the plan has them: a worker's own, or a copy (model_share_copy), which is empty
 * where the plan shares none: *of is the model to use. */
HELM_MUST_CHECK int plan_share_model(const struct plan *plan, struct model *model, struct helm_err *err);
HELM_MUST_CHECK int plan_share_copy(const struct plan *plan, const struct model *whole, struct model *cut,
                                    const struct model **of, struct helm_err *err);
