/* Which activations blocks are multiplied with, and why: the option, what the profile says, and the model's
 * own check.
 *
 * Called by main.c and helm-plan: before the plan is made, after it, and when the check has ended.
 * daemon/steps/check.h is the check itself, daemon/planner/activations/verdict.h keeps its findings. Owns
 * nothing. */
#pragma once

#include "daemon/planner/activations/choice.h"
#include "daemon/planner/activations/verdict.h"

struct activations {
    enum activations_option option;
    enum linear_inputs inputs[PLAN_PROCESSORS]; /* to plan with */
    bool can[PLAN_PROCESSORS];                  /* there are kernels of int8 */
    const char *kernels;                        /* --kernels, borrowed */
    char key[DIGEST_TEXT];                      /* "": the model has none, so nothing is kept */
    struct verdict before;                      /* of a check that was interrupted; positions 0: none */
    bool checks;                                /* the check has to run when the workers are ready */
    bool waits;                                 /* it goes on between requests, */
    bool exact;                                 /* and steps are exact until then */
    bool decided;                               /* by what it found, now or before */
    char text[256];                             /* for status: which, and why */
};

/* Before the plan is made: what to plan with. */
void activations_want(const struct model *model, const struct profile *profile, unsigned features,
                      struct activations *activations);
/* A hand-written plan keeps its activations where there are kernels for them, unless the option says
 * otherwise. Else, and once the choice is decided, it gets those that are wanted. */
void activations_take(struct plan *plan, struct activations *activations);
/* After the plan is made: looks for an earlier check's findings. *again: that check failed, and the plan has
 * to be made with exact activations, which `inputs` says now. */
void activations_look(const struct model *model, const struct plan *plan, struct activations *activations,
                      bool *again);
/* The check was interrupted: keeps what it found so far. It goes on between requests, and at the next
 * start. */
void activations_wait(const struct plan *plan, const struct verdict *verdict,
                      struct activations *activations);
/* The check has ended between requests; says and keeps what it found. True: exact steps end. A plan is not
 * made again while it serves, and an invariant one keeps to exact steps until the next start: its requests
 * have the same bits before and after. */
bool activations_decide_between(const struct plan *plan, const struct verdict *verdict,
                                struct activations *activations);
/* The check has ended, or (NULL) cannot be. Keeps what it found, says so, and *again as above. */
void activations_decide(const struct plan *plan, const struct verdict *verdict,
                        struct activations *activations, bool *again);
