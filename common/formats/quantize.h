/* Values to blocks of few bits (blocks.h): as small an error as the format allows in reasonable time.
 *
 * Without importance the sum of squared errors is made small, else the sum of them weighted by column: with
 * the mean square of what a model multiplies the column by, that is the error of its products. The same
 * values become the same bytes on every processor. Pure functions; callers cut a matrix into rows for
 * threads. */
#pragma once

#include "common/formats/blocks.h"
#include "common/formats/tensor_format.h"

/* The largest magnitude that is taken, fp16's. */
#define QUANTIZE_MOST 65504.0f

struct quantize_values {
    const void *data;
    enum dtype dtype;
    uint64_t count; /* whole blocks */
    uint32_t cols;
    const float *importance; /* [cols], none negative; NULL: all alike */
};

/* Whole blocks of BLOCK_WRITTEN_FORMATS to `out`. The number of values written; fewer than there are: one of
 * the next 16 * 32 is not finite or too large. */
typedef uint64_t quantize_blocks(enum tensor_format format, const struct quantize_values *values,
                                 uint8_t *out);
quantize_blocks quantize_ref, quantize_avx2, quantize_avx512;

/* Rows of single numbers to a format of blocks, with importance; without, tensor_format_convert does it.
 * HELM_E_FORMAT names the row that has what cannot be coded. */
HELM_MUST_CHECK int quantize_rows(const struct tensor_rows *rows, const float *importance, void *out,
                                  struct helm_err *err);
