/* The emulated device's gated delta nets: the convolution and the rule by the CPU's kernels. See emulated.h.
 *
 * As on a GPU the convolution reads the columns of a record and the rule, which comes after it, replaces
 * them. A row's tokens are computed in runs, each up to where the row leaves its state. */
#include <string.h>

#include "worker-gpu/device/emulated/emulated.h"

_Static_assert(DELTA_COLUMNS == GPUK_DELTA_COLUMNS && DELTA_HEAD_MAX == GPUK_DELTA_HEAD_MAX &&
                   DELTA_HEAD_UNIT == GPUK_DELTA_HEAD_UNIT,
               "a GPU's heads and columns are the CPU's");

/* A row's tokens, its record, and its line of the page table. */
struct row {
    uint32_t first, count, line;
    char *record;
};
static struct row row_of(const struct gpuk_delta *d, uint32_t r)
{
    const uint32_t first = d->step.row_first[r];
    return (struct row){.first = first,
                        .count = d->step.row_first[r + 1] - first,
                        .line = d->step.row_slot[r],
                        .record = d->state + d->row_state[d->step.row_slot[r]] * d->slot_bytes};
}

void emulated_convolve(struct emulated_math *math, const struct gpuk_delta *d)
{
    const size_t channels = gpuk_delta_channels(d);
    float *columns = emulated_scratch(math, SCRATCH_Y, DELTA_COLUMNS * channels * sizeof *columns);
    for (uint32_t r = 0; r < d->step.counts[1] && columns; r++) {
        const struct row row = row_of(d, r);
        float *x = d->mixed + row.first * channels;
        for (uint32_t t = 0; t < row.count; t++)
            memcpy(x + t * channels, d->in + (size_t)(row.first + t) * d->in_stride, channels * sizeof *x);
        memcpy(columns, row.record, DELTA_COLUMNS * channels * sizeof *columns);
        const struct delta_convolution run = {.x = x,
                                              .stride = channels,
                                              .tokens = row.count,
                                              .channels = (uint32_t)channels,
                                              .weight = d->conv,
                                              .weight_stride = channels,
                                              .state = columns,
                                              .state_stride = channels};
        math->vector->delta->convolve(&run);
    }
}

/* The columns at `to` become the last inputs of a row's first `count` tokens. */
static void keep_columns(const struct gpuk_delta *d, const struct row *row, uint32_t count, char *to)
{
    const size_t channels = gpuk_delta_channels(d);
    const float *columns = (const float *)(const void *)row->record;
    for (uint32_t c = 0; c < DELTA_COLUMNS; c++) {
        const uint32_t at = c + count; /* of the columns and, after them, the tokens */
        const float *from = at < DELTA_COLUMNS
                                ? columns + at * channels
                                : d->in + (size_t)(row->first + at - DELTA_COLUMNS) * d->in_stride;
        memmove(to + c * channels * sizeof *columns, from, channels * sizeof *columns);
    }
}

/* A v head's rule over `count` of a row's tokens, from `first` on. */
static void head(struct emulated_math *math, const struct gpuk_delta *d, const struct row *row, size_t first,
                 uint32_t count, uint32_t head)
{
    const size_t channels = gpuk_delta_channels(d), keys = (size_t)d->key_heads * d->key_dim,
                 at = (size_t)head * d->value_dim;
    const float *x = d->mixed + first * channels;
    const size_t key = (size_t)gpuk_delta_key_of(d, head) * d->key_dim;
    float *out = emulated_scratch(math, SCRATCH_Y, (size_t)count * d->value_dim * sizeof *out);
    if (!out) return;
    const struct delta_run run = {
        .tokens = count,
        .key = d->key_dim,
        .value = d->value_dim,
        .q = x + key,
        .k = x + keys + key,
        .v = x + 2 * keys + at,
        .stride = channels,
        .z = d->z + first * d->in_stride + at,
        .z_stride = d->in_stride,
        .alpha = d->alpha + first * d->in_stride + head,
        .beta = d->beta + first * d->in_stride + head,
        .gate_stride = d->in_stride,
        .decay = d->decay[head],
        .dt_bias = d->time_bias[head],
        .norm = d->norm,
        .eps = d->eps,
        .state = (float *)(void *)(row->record + d->matrices_at) + at * d->key_dim,
        .out = out,
        .out_stride = d->value_dim,
    };
    math->vector->delta->rule(&run);
    for (uint32_t t = 0; t < count; t++)
        emulated_store(math, d->out, (first + t) * d->out_stride + at, d->out_dtype,
                       out + (size_t)t * d->value_dim, d->value_dim);
}

void emulated_delta_rule(struct emulated_math *math, const struct gpuk_delta *d)
{
    for (uint32_t r = 0; r < d->step.counts[1]; r++) {
        const struct row row = row_of(d, r);
        const uint32_t end = row.first + row.count;
        for (uint32_t from = row.first; from < end;) {
            const struct gpuk_left_at left = gpuk_left_after(&d->left, row.line, from, end);
            for (uint32_t h = 0; h < d->value_heads; h++) head(math, d, &row, from, left.at - from, h);
            if (left.to) {
                keep_columns(d, &row, left.at - row.first, left.to);
                memcpy(left.to + d->matrices_at, row.record + d->matrices_at,
                       (size_t)d->value_heads * d->key_dim * d->value_dim * sizeof(float));
            }
            from = left.at;
        }
        keep_columns(d, &row, row.count, row.record);
    }
}

void emulated_run_convolve(struct emulated_math *math, const struct op *op)
{
    emulated_convolve(math, &op->as.delta);
}

void emulated_run_delta(struct emulated_math *math, const struct op *op)
{
    emulated_delta_rule(math, &op->as.delta);
}
