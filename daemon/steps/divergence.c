/* Divergence of two rows of logits. See divergence.h. */
#include "daemon/steps/divergence.h"

#include <math.h>
#include <stdbool.h>

static float largest(const float *row, uint32_t count)
{
    float most = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        if (isfinite(row[i]) && row[i] > most) most = row[i];
    return most;
}

double divergence_of(const float *exact, const float *other, uint32_t count)
{
    const float top = largest(exact, count), other_top = largest(other, count);
    double sum = 0, other_sum = 0, differences = 0; /* weights by exp(x - top) */
    if (!isfinite(top) || !isfinite(other_top)) return INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        const bool in = isfinite(exact[i]), other_in = isfinite(other[i]);
        if (other_in) other_sum += expf(other[i] - other_top);
        if (!in) continue;
        if (!other_in) return INFINITY;
        const double weight = expf(exact[i] - top);
        sum += weight;
        differences += weight * ((double)exact[i] - (double)other[i]);
    }
    const double divergence =
        differences / sum - ((double)top + log(sum)) + ((double)other_top + log(other_sum));
    return divergence > 0 ? divergence : 0;
}
