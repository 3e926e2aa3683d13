/* Pooling hidden states. See pooled.h. */
#include "common/worker/pooled.h"

#include <math.h>
#include <string.h>

#define LANES 8 /* sums side by side, so that one addition need not wait for the one before */

static double inverse_rms(const float *x, uint32_t n, double eps)
{
    double sum[LANES] = {0}, all = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) sum[k] += (double)x[i + k] * x[i + k];
    for (; i < n; i++) sum[0] += (double)x[i] * x[i];
    for (uint32_t k = 0; k < LANES; k++) all += sum[k];
    return 1 / sqrt(all / n + eps);
}

static void add_layer_norm(double *to, const float *x, uint32_t n, const struct pooled_part *part)
{
    double mean = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) mean += (double)x[i] / n;
    for (uint32_t i = 0; i < n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1 / sqrt(sum / n + part->eps);
    for (uint32_t i = 0; i < n; i++)
        to[i] +=
            ((double)x[i] - mean) * scale * (double)part->norm[i] + (part->bias ? (double)part->bias[i] : 0);
}

void pooled_take(const struct arena *arena, const struct batch_row *row, const struct pooled_part *part)
{
    const uint32_t hidden = arena_header_of(arena)->hidden, end = part->first + part->count;
    const bool mean = row->pools == STEP_ROW_POOL_MEAN;
    double *to = arena_pooled_of(arena, row->slot);
    if (!mean && end < row->count) return;
    if (!mean || (row->start == 0 && part->first == 0)) memset(to, 0, hidden * sizeof *to);
    for (uint32_t t = mean ? 0 : part->count - 1; t < part->count; t++) {
        const float *x = part->x + (size_t)t * hidden;
        if (part->layer_norm) {
            add_layer_norm(to, x, hidden, part);
            continue;
        }
        const double scale = inverse_rms(x, hidden, part->eps);
        for (uint32_t i = 0; i < hidden; i++) to[i] += x[i] * scale * part->norm[i];
    }
}
