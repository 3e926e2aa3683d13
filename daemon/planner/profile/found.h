/* Which part of the chosen experts was found in slots in host memory, where experts lie on disk
 * (docs/disk.md): counted by helmd while it served the model, kept for the next plan.
 *
 * Tokens choose some experts more often than others, and how much so is the model's and the text's: only
 * counting shows it. One small JSON file for each model, beside the profiles; what cannot be read or
 * contradicts itself is not used. A run adds its counts to those of the runs before, so a short one does not
 * replace a long one. The sum is bounded, so that a change of use is followed. Called by helmd and
 * helm-plan. */
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
/* Uses that are remembered: 43,000 tokens of 8 experts in 48 layers. A larger sum is scaled down to it. */
#define FOUND_USES_MOST (UINT64_C(1) << 24)
/* Adds what a run counted, of the same model. Counts with another number of slots become what found_part
 * expects with the run's. Counts of another number of experts are replaced. */
void found_add(struct profile_found *counted, const struct profile_found *run);
/* Keeps it. */
HELM_MUST_CHECK int found_write(const struct profile_found *found, struct helm_err *err);
/* The part of one token's experts that is expected in `slots` of `experts` slots.
 *
 *   nothing was counted    slots / experts, as if each was chosen alike
 *   counted                (slots / experts)^a, with the a of what was counted, FOUND_LEAST to 1
 *
 * a = 0.156 goes through what HELM found with 13 and 41 of 128 slots (docs/results/cpu.md); a = 0.178 through
 * what published traces have with an eighth, and is 4 points below theirs with a quarter. */
#define FOUND_LEAST 0.05
double found_part(const struct profile_found *found, uint32_t slots, uint32_t experts);
