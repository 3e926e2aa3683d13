/* States: the part of a sequence that each layer of a plan keeps, and where fixed states and windows lie
 * (docs/state.md).
 *
 * Called by the planner, which takes it from the model and charges it, by helmd and by the workers, so that
 * all go by the same numbers. Pure but for the plan's own list. */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"
#include "common/shared/arena.h"
#include "common/shared/state_layout.h"

/* The state that the model's layer keeps, in the half that has one. */
struct plan_state plan_state_of_layer(const struct model *model, uint32_t layer);
/* Bytes of one snapshot: of the records of all layers with a fixed state. */
uint64_t plan_snapshot_bytes(const struct model *model);
/* Makes what the plan's layers keep the model's; has_states where not all keep pages. With
 * window_page_count layers with a window keep STATE_WINDOW, and window_tokens becomes the model's. */
void plan_take_states(struct plan *plan, const struct model *model);
/* HELM_E_MISMATCH: a layer of the plan keeps something else than the model's. */
HELM_MUST_CHECK int plan_check_states(const struct plan *plan, const struct model *model,
                                      struct helm_err *err);
/* plan_check's part: pools of windows have room for all slots. */
HELM_MUST_CHECK int plan_check_windows(const struct plan *plan, struct helm_err *err);

bool plan_has_fixed(const struct plan *plan);
/* Slots in the memory of `processor`, and snapshots. */
struct state_layout plan_state_layout(const struct plan *plan, enum plan_processor processor);
/* The record of a layer in them. False: the layer has no fixed state, or another processor has it. */
bool plan_state_record(const struct plan *plan, enum plan_processor processor, uint32_t layer,
                       struct state_record *record);

/* The records that `keeper` holds of layers that `worker` computes in some phase, in order, in a fresh array
 * (free()). A GPU is the worker of the CPU's records in prompts whose layers it computes. */
HELM_MUST_CHECK int plan_state_records(const struct plan *plan, enum plan_processor keeper,
                                       enum plan_processor worker, struct state_record **records,
                                       uint32_t *count, struct helm_err *err);

/* ---- windows ----
 *
 * A layer with STATE_WINDOW has its cells in pages of a pool that only such layers have. Its page table has
 * an entry for each page of the sequence, as the other one has, but only entries of pages that a step can
 * still see mean anything: a page that has left the window is given to others. A page number means the same
 * page in the pools of all processors. */

/* Whether the model's layer may keep a window. Where all layers of a model have one, the first keeps all
 * pages: so a page is never without cells, in pools, files of sessions and answers. */
bool plan_may_keep_window(const struct model *model, uint32_t layer);
/* Pages that a sequence keeps at the end of a page, to go on from there: positions of the last window_tokens
 * - 1. */
static inline uint32_t plan_window_kept(const struct plan *plan)
{
    return plan->window_tokens ? (plan->window_tokens - 2 + plan->page_tokens) / plan->page_tokens : 0;
}
/* Pages that all slots hold at most, with steps in flight, and sessions that move one each. */
#define PLAN_SESSION_PAGES 4
uint32_t plan_window_pages_least(uint32_t window_tokens, const struct plan *sizes);
/* Layers whose windows lie in a processor's memory; those of devices together, and before this one. */
uint32_t plan_window_layers(const struct plan *plan, enum plan_processor processor);
uint32_t plan_session_window_layer(const struct plan *plan, enum plan_processor processor);
/* Bytes of the arena's session region for a page: of the pool where more of its cells lie in devices' memory
 * alone, pages or windows. */
uint64_t plan_session_bytes(const struct plan *plan, uint64_t layer_bytes, uint64_t window_bytes);

/* "states": [{"layers": [first, last], "kind": "pages" | "fixed" | ..., "bytes": N (of fixed ones)}, ...] */
json_t *plan_states_to_json(const struct plan *plan);
HELM_MUST_CHECK int plan_states_from_json(const json_t *json, struct plan *plan, struct helm_err *err);

/* ---- the arena that a plan needs ---- */

/* The lanes of a kind that a plan needs: none, or up to the last link that such hand-overs take. */
uint32_t plan_lanes_of(const struct plan *plan, enum arena_lane_kind kind);
/* By the plan's sizes, homes, states and placements. Sessions have no room: session_bytes is the caller's. */
struct arena_spec plan_arena_spec(const struct plan *plan, const struct model_config *config);
