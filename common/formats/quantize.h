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

/* Values to blocks whose numbers are places in grids (blocks_grid.h): IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, for
 * helm-quantize.
 *
 * The sum of squared errors, weighted by importance, is made small. Scales for a group of values are tried
 * around the one that the largest asks for; at each, every 8 or 4 values look for the best of the grid's
 * entries that are nearest to where they are, which a table lists; the best scale for these entries is that
 * of least squares. A block's scale of scales is searched in the same way. */

/* Whether there is a quantizer of the format; whether it is only good with importance, as the field has
 * it. */
bool quantize_grid_writes(enum tensor_format format);
bool quantize_grid_needs_importance(enum tensor_format format);

/* The table of a format's grid, for any number of threads. NULL: no memory. */
struct quantize_grid *quantize_grid_make(enum tensor_format format);
void quantize_grid_free(struct quantize_grid *grid);
/* Rows of single numbers to the grid's format. `importance`: [cols], none negative; NULL: all alike.
 * HELM_E_FORMAT names the row that has what cannot be coded. */
HELM_MUST_CHECK int quantize_grid_rows(const struct quantize_grid *grid, const struct tensor_rows *rows,
                                       const float *importance, void *out, struct helm_err *err);
