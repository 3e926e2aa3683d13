/* The cost of attention: over a cache in the attending processor's memory, and over one that lies partly in
 * the arena alone.
 *
 * Internal to cost.c. Pure. Equations are in docs/planner-prices.md. */
#pragma once

#include "daemon/planner/cost/rates.h"

static inline double pricing_tokens_a_row(const struct cost_step *step)
{
    return (double)step->tokens / step->rows;
}
/* Bytes of K and V of one position of one layer. */
static inline double pricing_kv_bytes(const struct pricing *p)
{
    return (double)model_kv_bytes_per_token(&p->model->config, 1, p->step->kv_dtype);
}

/* Seconds: reading the cache alone and while the link streams, and the work. The slower counts. */
struct attention_price {
    double memory, beside, compute;
};
/* T 4.11 to 4.13, of one layer. `window`: 0: none. `elsewhere`: positions of each row that another processor
 * attends to. */
void attention_price(const struct pricing *p, const struct device_rates *r, double window, double elsewhere,
                     struct attention_price *out);

/* Positions of each row that a layer of this window sees and that are not part of the GPU's own attention in
 * this step: attention_price_host has them. 0 with one tier. */
double attention_elsewhere(const struct pricing *p, double window);
/* With two tiers: adds to an attention half's prices on the GPU what comes of the positions that lie in the
 * arena alone. */
void attention_price_host(const struct pricing *p, double window, struct cost_unit *unit);
