/* A product of each head: a part of kernels.h, whose rules hold.
 *
 * Called by the CUDA device and tests/gpu; the emulated device does the same. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/tensor_format.h"

/* Rows first .. first + count of a matrix [heads * rows][cols]: row r of head h times the first cols of the
 * head's numbers, of token t, x[t * x_stride + h * head_in ..], is out[t * out_stride + h * head_out + r].
 * After a head's last row its numbers beyond the first cols follow the products, as many as the output has
 * room for: head_out - rows. */
struct gpuk_heads {
    enum tensor_format format; /* whose rows are all of one size */
    const void *weight;        /* row `first` */
    uint32_t first, count;
    uint32_t rows, cols, head_in, head_out;
    const void *x;
    void *out;
    enum dtype x_dtype, out_dtype;
    uint32_t x_stride, out_stride; /* in numbers */
};

#ifdef __cplusplus
extern "C" {
#endif
/* A token has the same bits among any number of them: sums are in the order of columns. */
HELM_MUST_CHECK int gpuk_heads(const struct gpuk_heads *args, uint32_t tokens, const uint32_t *count,
                               uint32_t flags, void *stream, struct helm_err *err);
#ifdef __cplusplus
}
#endif
