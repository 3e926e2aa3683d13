/* Costs of a mixture's products with experts, and of a unit whose experts lie in both memories: the GPU
 * computes with those in VRAM and reads some of the others over the link, while the CPU computes with the
 * rest.
 *
 * Internal to cost.c. Pure. Equations are in docs/planner-experts.md. */
#pragma once

#include "daemon/planner/cost/rates.h"

/* Rates of experts' products: those of a step of as many tokens as one of the chosen experts has. */
HELM_MUST_CHECK int experts_rates(const struct pricing *p, struct format_rates with[FORMAT_COUNT],
                                  struct helm_err *err);

/* Experts' products of the unit, of all that the step's tokens choose: seconds of either processor, on the
 * GPU without the launches of their kernels, which stand apart; bytes as they lie; and on the GPU by kernels
 * of their own the unit's other products, and the whole unit. */
struct experts_parts {
    double cpu, cpu_beside, gpu, launches, bytes, beside, unit;
    bool cpu_all; /* the GPU takes none, though some lie in its slots */
};
/* unit->disk, from its price on the CPU: the missing experts are read while the CPU computes the others. */
void experts_price_disk(const struct pricing *p, uint32_t unit, const struct experts_parts *all,
                        struct cost_unit *price);
/* Adds to a unit's prices those with its experts in both memories: unit->mixed, unit->mixed_kv. Its price on
 * the GPU stands. */
void experts_price(const struct pricing *p, const struct experts_parts *all, struct cost_unit *unit);
