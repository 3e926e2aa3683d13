/* A shared expert's weight. See weigh.h. No state. */
#include "common/model/weigh.h"

#include <math.h>

#define SUMS 16 /* beside each other, in an order of their own */

float weigh_of(const float *x, const float *weight, uint32_t width)
{
    float sum[SUMS] = {0};
    uint32_t i = 0;
    for (; i + SUMS <= width; i += SUMS)
        for (uint32_t j = 0; j < SUMS; j++) sum[j] += x[i + j] * weight[i + j];
    for (; i < width; i++) sum[i % SUMS] += x[i] * weight[i];
    for (uint32_t j = 1; j < SUMS; j++) sum[0] += sum[j];
    return 1.0f / (1.0f + expf(-sum[0]));
}
