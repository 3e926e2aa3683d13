/* Seconds of one device by what they are spent on, and functions that add to them. Private to
 * daemon/planner/cost: cost.c prices half layers with it, ends.c the ends before and after them. */
#pragma once

#include "daemon/planner/cost/rates.h"

/* A unit's time on one device, by what it is spent on. */
struct spent {
    double total, beside;             /* alone; while the link streams */
    double memory, compute, overhead; /* of total */
};

/* T 4.10: the slower of reading the weights, once for each part, and of the work for `tokens`. */
void spent_linear(const struct device_rates *r, double bytes, double parameters, double tokens,
                  struct spent *s);
void spent_bytes(const struct device_rates *r, double bytes, double rate, struct spent *s);
void spent_overhead(const struct device_rates *r, double seconds, struct spent *s);
void spent_operations(const struct device_rates *r, double count, struct spent *s);
/* "memory", "compute" or "overhead", whichever is the most of it. */
const char *spent_bound(const struct spent *s);

/* A product's seconds in addition to its work. */
static inline double product_of(const struct device_rates *r)
{
    return r->product > 0 ? r->product : r->operation;
}
/* In how many slices weights cross the link, or are expanded. */
double slices_of(uint64_t bytes, bool packed);
/* Expanding at `rate` bytes a second, a slice at a time; packed weights at their rate. */
double expanding_seconds(const struct pricing *p, double rate, double bytes);
double expand_seconds(const struct pricing *p, double bytes);
/* How much longer a product of one token takes with whole packed matrices in VRAM than with plain ones;
 * negative where memory alone bounds it. Unmeasured: as with packed slices. */
double longer_packed(const struct pricing *p, double bytes);

/* ---- ends.c ---- */

/* Final norm, lm_head, a token from the logits; the embedding; what a step has beside all units. */
void price_head(const struct pricing *p, const struct analyse_table *analysed, struct cost_unit *u);
void price_embed(const struct pricing *p, const struct analyse_table *analysed, struct cost_unit *u);
void price_rest(const struct pricing *p, struct cost_table *table);
