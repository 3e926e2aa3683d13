/* Rows whose hidden states are pooled: the final norm and the sum, by one definition for every worker.
 *
 * Called by the head's worker after a step's layers; writes the slot's place in the arena's `pooled`, nothing
 * else. */
#pragma once

#include "common/worker/batch.h"

/* x: [count][hidden], the residual stream of the row's tokens first .. first + count, in order and without
 * gaps from call to call. norm: [hidden], the final norm's weight; eps: what it adds to the mean of squares
 * (Zhang, Sennrich 2019: RMSNorm). */
struct pooled_part {
    uint32_t first, count;
    const float *x, *norm;
    const float *bias; /* of a LayerNorm; NULL: the norm is RMS, or has none */
    bool layer_norm;
    double eps;
};
void pooled_take(const struct arena *arena, const struct batch_row *row, const struct pooled_part *part);
