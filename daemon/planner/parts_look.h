/* Plans of models with large experts: in parts (common/model/parts.h) where experts of a layer lie in both memories.
 *
 * Called by helmd and helm-plan in the place of packed_look_make. Parts make finer what slots hold and what the link brings;
 * a plan that has no such layer gains nothing by them, and a chunk adds up more sums: then experts are whole. Owns nothing. */
#ifndef HELM_DAEMON_PLANNER_PARTS_LOOK_H
#define HELM_DAEMON_PLANNER_PARTS_LOOK_H

#include "daemon/planner/packed_look.h"

/* As packed_look_make. model: the request's, whose experts are then in plan->expert_parts. */
HELM_MUST_CHECK int parts_look_make(struct model *model, struct planner_request *request, struct plan *plan,
                                    struct arena_spec *spec, struct helm_err *err);

#endif
