/* The arena that a plan needs. Called by the ledger, and by what opens a worker without helmd. */
#pragma once

#include "common/model/config.h"
#include "common/plan/plan.h"
#include "common/shared/arena.h"

/* The lanes of a kind that a plan needs: none, or up to the last link that such hand-overs take. */
uint32_t plan_lanes_of(const struct plan *plan, enum arena_lane_kind kind);
/* By the plan's sizes, homes, states and placements. Sessions have no room: session_bytes is the caller's. */
struct arena_spec plan_arena_spec(const struct plan *plan, const struct model_config *config);
