/* The findings of the model's own check of int8 activations (daemon/steps/check.h), kept for the next start.
 *
 * Called by main.c, which has it measured, and by helm-plan, which shows it. One small JSON file for each
 * model, mixture and version of HELM, beside the profiles; a file that cannot be read, is of something else
 * or contradicts itself is refused, and measured anew. */
#pragma once

#include <float.h>

#include "common/model/model.h"
#include "common/base/digest.h"
#include "daemon/planner/profile/policy.h"

/* The most that the mean divergence of the next token's distribution may be, in nats. */
#define VERDICT_KL_MAX  0.001
#define VERDICT_KL_HUGE FLT_MAX /* stands for one that is not finite */

struct verdict {
    double one_token, tokens;          /* mean divergences: of steps of one row, of several */
    uint32_t positions, one_positions; /* that they were taken over: of all steps, of those of one row */
    uint32_t units;                    /* half layers, and the head, that computed with int8 */
};

/* The worse of both. */
double verdict_kl(const struct verdict *verdict);
bool verdict_passes(const struct verdict *verdict);
/* Whether it is over enough positions to decide. One that is not was interrupted: the next check goes on from
 * it. */
bool verdict_says_enough(const struct verdict *verdict);
/* Whether it says enough and covers a plan that computes `units` units with int8 activations: a pass covers
 * fewer units, a failure covers more. */
bool verdict_holds(const struct verdict *verdict, uint32_t units);

/* A verdict's key, a digest in hexadecimal digits: of the model's files (names, sizes, times, a sample of
 * their bytes), the mixture that they are converted to, the kernels asked for, HELM's version. */
HELM_MUST_CHECK int verdict_key(const struct model *model, const char *kernels, char key[DIGEST_TEXT],
                                struct helm_err *err);
/* HELM_E_NOT_FOUND: there is none. */
HELM_MUST_CHECK int verdict_read(const char *key, struct verdict *verdict, struct helm_err *err);
HELM_MUST_CHECK int verdict_write(const char *key, const struct verdict *verdict, struct helm_err *err);
