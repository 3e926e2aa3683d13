/* Which part of the chosen experts was found in slots in host memory, where experts lie on disk
 * (docs/disk.md): counted by helmd while it served the model, kept for the next plan.
 *
 * Tokens choose some experts more often than others, and how much so is the model's and the text's: only
 * counting shows it. One small JSON file for each model, beside the profiles; what cannot be read or
 * contradicts itself is not used. Called by helmd and helm-plan. */
#pragma once

#include "common/base/err.h"
#include "common/model/model.h"
#include "daemon/planner/profile/profile.h"

#define FOUND_LEAST_STEPS 64 /* of a few tokens, from which on a run says something */

/* Reads this model's counts into profile->found, and its digest into profile->found.of. That reads a few MB
 * of the model's files. HELM_E_NOT_FOUND: nothing was counted. */
HELM_MUST_CHECK int found_read(const struct model *model, struct profile *profile, struct helm_err *err);
/* The same where a plan may have experts on disk; counts that cannot be read are warned of. */
void found_look(const struct model *model, struct profile *profile);
/* Keeps it. */
HELM_MUST_CHECK int found_write(const struct profile_found *found, struct helm_err *err);
/* The part of one token's experts that is expected in `slots` of `experts` slots.
 *
 *   nothing was counted    slots / experts, as if each was chosen alike
 *   counted                (slots / experts)^a, with the a of what was counted, FOUND_LEAST to 1
 *
 * a = 0.156 goes through what HELM found with 13 and 41 of 128 slots (docs/disk.md); a = 0.178 through what
 * published traces have with an eighth, and is 4 points below theirs with a quarter. */
#define FOUND_LEAST 0.05
double found_part(const struct profile_found *found, uint32_t slots, uint32_t experts);
