/* Whether blocks are multiplied with activations as they are or rounded to int8
 * (common/formats/linear_inputs.h), by processor.
 *
 * Called by main.c and helm-plan before a plan is made, and again where the model's own check failed. Pure. A
 * plan with int8 activations is priced by the rates that the profile has of them: in a copy of it they stand
 * in the place of the exact ones, so that prices know nothing of the difference. */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"
#include "daemon/planner/profile/profile.h"

enum activations_option { ACTIVATIONS_AUTO, ACTIVATIONS_EXACT, ACTIVATIONS_INT8, ACTIVATIONS_OPTIONS };
#define ACTIVATIONS_CHOICES "auto|exact|int8"
/* The option of this text, one of ACTIVATIONS_CHOICES. */
enum activations_option activations_option_named(const char *name);

/* How many times as fast a processor multiplies one token by the model's weights in blocks with int8
 * activations; 0: the profile has no rates of that, or there are no blocks. */
double activations_gain(const struct model *model, const struct profile *profile,
                        enum plan_processor processor);

/* Chooses each processor's activations. ACTIVATIONS_AUTO: int8 where it gains; ACTIVATIONS_INT8: wherever
 * `can` says that there are kernels. */
void activations_choose(enum activations_option option, const struct model *model,
                        const struct profile *profile, const bool can[PLAN_PROCESSORS],
                        enum linear_inputs inputs[PLAN_PROCESSORS]);
bool activations_any(const enum linear_inputs inputs[PLAN_PROCESSORS]);

/* The profile of the same machine multiplying so. */
void activations_rates(const struct profile *profile, const enum linear_inputs inputs[PLAN_PROCESSORS],
                       struct profile *with);

/* Half layers, and the head, that decode computes with int8 activations: those with a matrix in blocks on a
 * processor that rounds. */
uint32_t activations_units(const struct plan *plan, const struct model *model);
