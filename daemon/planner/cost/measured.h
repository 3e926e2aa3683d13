/* Prices of units by the model's own measured programs (daemon/planner/profile/programs.h), where the profile
 * has them. Private to daemon/planner/cost. Pure. */
#pragma once

#include "daemon/planner/cost/rates.h"

/* Puts measured seconds in the place of u->cpu and u->cpu_beside, which are those of rates, and sets
 * u->cpu_measured and u->cpu_spread. Leaves *u alone where nothing of this kind was measured, or not of such
 * a step: a short prompt of an invariant plan, a cache of another type. `unit` after the last one: the head,
 * of the step's sampled rows. */
void measured_price(const struct pricing *p, uint32_t unit, struct cost_unit *u);

/* The same for u->gpu, with all in VRAM as stored, and u->gpu_spread, before a cache in two tiers adds to it.
 * elsewhere: each row's positions that lie elsewhere, in a layer that attends. */
void measured_price_gpu(const struct pricing *p, uint32_t unit, double elsewhere, struct cost_unit *u);
/* Seconds of a step in front of its half layers on the GPU, the embedding included; 0: not measured. */
double measured_begin(const struct pricing *p);
