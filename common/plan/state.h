/* What each layer of a plan keeps of a sequence, and where the fixed states of its layers lie (docs/state.md).
 *
 * Called by the planner, which takes it from the model and charges it, by helmd and by the workers, so that all go by the
 * same numbers. Pure but for the plan's own list. */
#ifndef HELM_COMMON_PLAN_STATE_H
#define HELM_COMMON_PLAN_STATE_H

#include "common/model/model.h"
#include "common/plan/plan.h"
#include "common/shared/state_layout.h"

/* What the model's layer keeps: of the half of a layer that has a state. */
struct plan_state plan_state_of_layer(const struct model *model, uint32_t layer);
/* Makes what the plan's layers keep the model's; has_states where not all keep pages. */
void plan_take_states(struct plan *plan, const struct model *model);
/* HELM_E_MISMATCH: a layer of the plan keeps something else than the model's. */
HELM_MUST_CHECK int plan_check_states(const struct plan *plan, const struct model *model,
                                      struct helm_err *err);
/* plan_check's part: a fixed state stays with one processor. */
HELM_MUST_CHECK int plan_check_state_homes(const struct plan *plan, struct helm_err *err);

bool plan_has_fixed(const struct plan *plan);
/* Slots in the memory of `processor`, and snapshots. */
struct state_layout plan_state_layout(const struct plan *plan, enum plan_processor processor);
/* The record of a layer in them. False: the layer has no fixed state, or another processor has it. */
bool plan_state_record(const struct plan *plan, enum plan_processor processor, uint32_t layer,
                       struct state_record *record);

/* All records of a processor's layers, in order, in a fresh array (free()). */
HELM_MUST_CHECK int plan_state_records(const struct plan *plan, enum plan_processor processor,
                                       struct state_record **records, uint32_t *count, struct helm_err *err);

/* "states": [{"layers": [first, last], "kind": "pages" | "fixed" | ..., "bytes": N (of fixed ones)}, ...] */
json_t *plan_states_to_json(const struct plan *plan);
HELM_MUST_CHECK int plan_states_from_json(const json_t *json, struct plan *plan, struct helm_err *err);

#endif
