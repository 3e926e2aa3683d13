/* Numbers that grow by one and are asked for quantiles. See bench.h. Called by drive.c, cells.c and the
 * reports; the caller owns each struct samples. */
#include <stdlib.h>
#include <string.h>

#include "client/bench/bench.h"
#include "common/base/grow.h"
#include "common/measure/stats.h"

int samples_add(struct samples *samples, double value, struct helm_err *err)
{
    if (!GROW(samples->value, samples->count, samples->space))
        return helm_fail(err, HELM_E_NOMEM, "no memory for more than %zu samples", samples->count);
    samples->value[samples->count++] = value;
    return 0;
}

double samples_quantile_from(const struct samples *samples, size_t first, double at)
{
    if (first >= samples->count) return 0;
    size_t count = samples->count - first;
    double *sorted = malloc(count * sizeof *sorted);
    if (!sorted) return 0;
    memcpy(sorted, samples->value + first, count * sizeof *sorted);
    double value = stats_quantile(sorted, count, at);
    free(sorted);
    return value;
}

double samples_quantile(const struct samples *samples, double at)
{
    return samples_quantile_from(samples, 0, at);
}

void samples_free(struct samples *samples)
{
    free(samples->value);
    memset(samples, 0, sizeof *samples);
}
