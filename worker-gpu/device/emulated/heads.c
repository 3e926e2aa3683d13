/* The emulated device's product of each head. See emulated.h, and worker-gpu/kernels/linear/heads.h for its
 * meaning. */
#include "worker-gpu/device/emulated/emulated.h"

/* Rows first .. last of the matrix, all of one head, by all tokens. */
static void multiply_head(struct emulated_math *math, const struct gpuk_heads *a, uint32_t first,
                          uint32_t last, uint32_t tokens)
{
    const uint32_t head = first / a->rows, row = first % a->rows, rows = last - first,
                   beyond = last % a->rows ? 0 : a->head_out - a->rows;
    float *w = emulated_scratch(math, SCRATCH_PLAIN, (size_t)rows * a->cols * sizeof *w),
          *x = emulated_scratch(math, SCRATCH_X, a->head_in * sizeof *x),
          *y = emulated_scratch(math, SCRATCH_Y, (size_t)(rows + beyond) * sizeof *y);
    const struct tensor_matrix matrix = {.format = a->format,
                                         .data = a->weight,
                                         .bytes = tensor_format_bytes(a->format, a->count, a->cols),
                                         .rows = a->count,
                                         .cols = a->cols};
    struct helm_err err;
    for (uint32_t r = 0; r < rows && w && x && y; r++)
        if (tensor_format_read_row(&matrix, first - a->first + r, w + (size_t)r * a->cols, &err))
            math->broken = "weights that are none of their format";
    for (uint32_t t = 0; t < tokens && w && x && y; t++) {
        const size_t at = (size_t)t * a->x_stride + (size_t)head * a->head_in;
        math->vector->load(x, (const char *)a->x + at * dtype_bytes(a->x_dtype), a->x_dtype,
                           a->cols + beyond);
        math->gemv[FORMAT_F32]->gemv(y, w, x, rows, a->cols, NULL);
        for (uint32_t d = 0; d < beyond; d++) y[rows + d] = x[a->cols + d];
        emulated_store(math, a->out, (size_t)t * a->out_stride + (size_t)head * a->head_out + row,
                       a->out_dtype, y, rows + beyond);
    }
}

void emulated_run_heads(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_heads *a = &op->as.heads;
    const uint32_t tokens = emulated_count(op->count, op->tokens), end = a->first + a->count;
    for (uint32_t first = a->first, last; first < end; first = last) {
        last = (first / a->rows + 1) * a->rows;
        if (last > end) last = end;
        multiply_head(math, a, first, last, tokens);
    }
}
