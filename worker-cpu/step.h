/* One step: from the ring's description to the ring's result.
 *
 * Called by engine.c. Every index in the step is checked before it is used; a row that is wrong gets
 * STEP_ROW_BAD and the others are computed. How many tokens those have chooses the phase of the plan and the
 * token tier. */
#pragma once

#include "worker-cpu/program/execute.h"

struct step_programs {
    const struct plan *plan;                             /* whose phases these are; borrowed */
    enum plan_processor self;                            /* of the plan, whose programs these are */
    bool reads_tokens;                                   /* placement_reads_tokens */
    struct program tier[PLAN_PHASES_MAX][OP_TIER_COUNT]; /* empty: nothing to do, or it cannot occur */
    struct program assisted[OP_TIER_FEW + 1];            /* of decode, for steps flagged STEP_KV_ASSISTED */
    struct program head_one, head_many;
    /* Programs of few tokens, and of as few sampled rows, with one token's kernels, where these are faster up
     * to program.few; empty in an invariant plan, whose own are so. */
    struct program apart[PLAN_PHASES_MAX], head_apart;
    /* Programs of the layers that make drafts, where this processor has the head: by the step's hidden
     * states, and by those of drafts; their heads (step.c). Empty in a plan without */
    struct program drafts_first[OP_TIER_COUNT], drafts_next[OP_TIER_FEW + 1], drafts_one, drafts_many;
};

/* Runs `step` and fills in *result (in the arena; not yet announced). HELM_E_LIMIT when the step as a whole
 * is malformed (more rows than a step has; flagged STEP_KV_ASSISTED, but not of decode, or by a plan
 * without): nothing was computed then. */
HELM_MUST_CHECK int step_run(struct run *run, const struct step_programs *programs, const struct step *step,
                             struct step_result *result, struct helm_err *err);
