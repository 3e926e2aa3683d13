/* Where falling order is cut: the k-th of floats, of candidates, or the one at which their weights reach a
 * sum.
 *
 * Called by common/sampling/sampling.c; the emulated device does with it what the GPU does. Pure functions
 * over caller-owned memory. */
#pragma once

#include <stdbool.h>

#include "common/sampling/pass.h"
#include "common/sampling/sampling.h"

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

/* ---- which logits penalties and bias change, and what they make of them ----
 *
 * Only tokens of the history and of the bias list change; each one's changes are computed in double and
 * rounded once per step. */

bool sampling_changes_logits(const struct sampling_params *params);
/* Lists the distinct tokens that change, in order of their first place; `seen` [vocab] needs no content
 * before and holds their indices afterwards. False: more than `capacity`. */
bool sampling_list_changes(const struct sampling_params *params, const struct sampling_tokens *tokens,
                           uint32_t vocab, uint32_t capacity, uint32_t *seen,
                           struct sampling_changes *changes);
/* Fills `seen` for a list made before. */
void sampling_index_changes(const struct sampling_changes *changes, uint32_t *seen);
/* Whether the list has this token: `seen` may hold anything for those it has not. */
static inline bool sampling_is_changed(const struct sampling_changes *changes, const uint32_t *seen,
                                       uint32_t token)
{
    return seen[token] < changes->count && changes->token[seen[token]] == token;
}
/* x[i], the logit of changes->token[i], becomes what penalties and bias make of it. */
void sampling_apply_changes(const struct sampling_params *params, uint32_t vocab,
                            const struct sampling_changes *changes, const uint32_t *seen, float *x);
