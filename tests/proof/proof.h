/* How near a plan is to the best one: what no plan takes less than
 * (docs/planner.md#a-lower-bound-for-all-plans).
 *
 * Linked by tests, which hold the planner to it and print it: no program plans by it. search.c has the bound
 * over a space of homes, plan.c that over plans of a request. Pure. */
#pragma once

#include "daemon/planner/planner.h"

/* A way to have a unit that is not one of the search's homes, the GPU's work whatever the CPU does of it:
 * what the step takes for it, and its bytes. */
struct proof_way {
    double seconds;
    struct search_bytes bytes;
};
struct proof_ways {
    uint32_t count;
    const struct proof_way *const
        *of; /* [units][count]; NULL for units that have none; units alike have the same ones */
};

/* A bound that no plan of the strategy's space is faster than, with units in these ways too (NULL: none): at
 * most `enough`. */
HELM_MUST_CHECK int proof_search(const struct search_problem *problem, enum search_strategy strategy,
                                 const struct proof_ways *ways, double enough, double *bound,
                                 struct helm_err *err);
/* The same for what the search found. */
HELM_MUST_CHECK int proof_found(const struct search_problem *problem, enum search_strategy strategy,
                                const struct search_found *found, double *bound, struct helm_err *err);

/* A plan that planner_make made for the request: seconds of the decode step that was made fastest, and what
 * no plan for the same context, chunks and tiers takes less than, with experts in both memories or not,
 * weights in VRAM packed or not. bound 0: not known, of a dense model's plan with two tiers. */
struct proof {
    double seconds, bound;
};
HELM_MUST_CHECK int proof_plan(const struct planner_request *request, const struct plan *plan,
                               struct proof *proof, struct helm_err *err);
