/* How far one distribution of the next token is from another: Kullback-Leibler divergence of two rows of
 * logits.
 *
 * Called by check.c. Pure. */
#pragma once

#include <stdint.h>

/* Sum over tokens of p log(p / q), natural logarithm, where p and q are the softmax of `exact` and `other`;
 * never negative. As in sampling, a token whose logit is not finite is out (its probability is 0). INFINITY:
 * no logit of `exact` is finite, or a token that `exact` may draw is out in `other`. */
double divergence_of(const float *exact, const float *other, uint32_t count);
