/* Plans whose room for weights packed in VRAM is that of the very weights they pack.
 *
 * Called by helmd and helm-plan: packed_look_first, and then the others in the place of planner_make and
 * planner_take. Layers differ: the few that a plan packs may come to more than the
 * mean of all, and then a worker could not load them. Owns nothing. */
#pragma once

#include "daemon/planner/planner.h"

/* Where the request allows packed weights: samples the model's weights and puts their packed sizes into
 * request->wish.parts. Weights that cannot be read are a warning here, and parts stay unknown; loading will
 * fail with the error. Returns the number of bytes read. */
uint64_t packed_look_first(struct planner_request *request);
/* As planner_make; looks at what the plan packs, and where that comes to more than was reckoned with, makes
 * another with the larger parts, which are then in request->wish.parts. */
HELM_MUST_CHECK int packed_look_make(struct planner_request *request, struct plan *plan,
                                     struct arena_spec *spec, struct helm_err *err);
/* The same with large experts in parts (common/model/parts.h) where experts of a layer lie in both memories:
 * parts make finer what slots hold and what the link brings. A plan that has no such layer gains nothing by
 * them, and a chunk adds up more sums: then experts are whole. model: the request's, whose experts are then
 * in plan->expert_parts. */
HELM_MUST_CHECK int parts_look_make(struct model *model, struct planner_request *request, struct plan *plan,
                                    struct arena_spec *spec, struct helm_err *err);
/* As planner_take, likewise: the room grows. */
HELM_MUST_CHECK int packed_look_take(struct planner_request *request, struct plan *plan,
                                     struct arena_spec *spec, struct helm_err *err);
