/* Whether a session's pages are those of this daemon: their shape, and their origin as far as it shows in
 * their bits.
 *
 * The origin is a digest, of an invariant plan (common/plan/schedule.h) alone: of the version, the workers'
 * kernels and devices, the homes and formats of units in the list that computed the prompt, and how
 * activations are rounded. Pages of one origin, model and type of cache are the same for the same tokens.
 *
 * Called by sessions.c, for origins once workers are ready. */
#pragma once

#include "common/plan/plan.h"
#include "daemon/children/workers.h"
#include "daemon/steps/request.h"

/* 0: the plan is not invariant. exact: steps are STEP_EXACT. */
uint64_t session_origin_of(const struct plan *plan, const struct workers *workers, uint32_t list, bool exact);
/* The list of an invariant plan whose pages have this origin; 0 of another plan. False: none has it. */
bool session_origin_list(const struct plan *plan, const struct workers *workers, uint64_t origin, bool exact,
                         uint32_t *list);
/* Writes what differs between two shapes, in words; false: nothing does. */
bool session_shape_differs(const struct request_shape *from, const struct request_shape *to, char *text,
                           size_t room);
