/* Plans with a cache in two tiers: what they are worth, and which processor reads the arena's part.
 *
 * Internal to tiers.c, tiers_score.c and ideas.c. */
#pragma once

#include "daemon/planner/ideas.h"

struct score {
    double at_short, mean; /* seconds of a step: of a short context, geometric mean of all */
    double session;        /* seconds of a prompt and what is decoded after it, likewise; 0: not looked at */
    double prompt;         /* seconds of a long prompt; with session */
};
HELM_MUST_CHECK int tiers_score(const struct making *m, const struct plan *plan, uint32_t ctx,
                                struct score *score, struct helm_err *err);
/* The same of prompts as long as the contexts, in the plan's chunks. */
HELM_MUST_CHECK int tiers_score_session(const struct making *m, const struct plan *plan, uint32_t ctx,
                                        struct score *score, struct helm_err *err);
/* Chooses how much of the arena's part the GPU reads itself, for a plan whose sizes are fixed. */
HELM_MUST_CHECK int tiers_choose_direct(const struct making *m, struct plan *plan, struct helm_err *err);
/* The same for the chosen plan, and its ledgers anew, since the choice decides whether the CPU worker is
 * needed. */
HELM_MUST_CHECK int tiers_finish(struct making *m, struct plan *plan, struct arena_spec *arena,
                                 struct helm_err *err);
