/* Where falling order is cut: the k-th of floats, of candidates, or the one at which their weights reach a
 * sum.
 *
 * Called by common/sampling/sampling.c; the emulated device does with it what the GPU does. Pure functions
 * over caller-owned memory. */
#pragma once

#include <stdbool.h>

#include "common/sampling/pass.h"

#define SAMPLING_BUCKETS 1024

struct sampling_bucket {
    uint64_t count, weight;
};
struct sampling_cut {
    struct sampling_bucket *bucket;       /* [SAMPLING_BUCKETS] */
    struct sampling_candidate *candidate; /* in any order; only read */
    struct sampling_candidate *select;    /* as many, reordered by selection */
};

/* The k-th largest of n floats (k from 1), which are reordered. */
float sampling_kth_largest(float *x, size_t n, size_t k);
/* The key at which the running total over the first n candidates in falling order first reaches `target` (at
 * least 1 and at most the whole): of weights, or of their number. */
uint64_t sampling_find_cut(const struct sampling_cut *cut, const struct sampling_row *row, size_t n,
                           uint64_t target, bool by_weight);
/* Keeps those with keys up to `cut`, in their order; returns how many. */
size_t sampling_keep_up_to(struct sampling_candidate *c, size_t n, uint64_t cut);
uint64_t sampling_sum_weights(const struct sampling_candidate *c, size_t n);
