/* Linear layers by OpenBLAS: sgemm on each thread's share of rows, weights converted to fp32 block by block.
 * It stands in the table to be measured against, and is chosen only by name (the numbers are in
 * linear.c).
 *
 * Parallelism is the caller's: OpenBLAS itself runs one thread. */
#include <cblas.h>

#include "common/cpu/kernels/variants.h"

#define BLOCK_ROWS 128

static inline void gemm(float *y, size_t ldy, const char *w, enum dtype dtype, const float *x, size_t rows,
                        size_t cols, size_t tokens, bool accumulate, float *scratch)
{
    for (size_t r0 = 0; r0 < rows; r0 += BLOCK_ROWS) {
        size_t count = rows - r0 < BLOCK_ROWS ? rows - r0 : BLOCK_ROWS;
        /* fp32 goes through scratch too: the caller promises no more than element alignment, as BLAS wants,
         * but a weight mapped from a file need not even be aligned to that. */
        vector_avx2.load(scratch, w + r0 * cols * (dtype == DTYPE_F32 ? 4 : 2), dtype, count * cols);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tokens, (int)count, (int)cols, 1.0f, x,
                    (int)cols, scratch, (int)cols, accumulate ? 1.0f : 0.0f, y + r0, (int)ldy);
    }
}

static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)tokens;
    return BLOCK_ROWS * cols * sizeof(float);
}

/* Every thread sets the same value; OpenBLAS keeps it for the process. */
static void thread_begin(void)
{
    openblas_set_num_threads(1);
}

#define FOR_DTYPE(suffix, dtype)                                                                             \
    static void gemm_##suffix(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,           \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        gemm(y, ldy, w, dtype, tiled, rows, cols, tokens, accumulate, scratch);                              \
    }
FOR_DTYPE(bf16, DTYPE_BF16)
FOR_DTYPE(f16, DTYPE_F16)
FOR_DTYPE(f32, DTYPE_F32)

#define ENTRY(suffix, id)                                                                                    \
    [id] = {.name = "openblas",                                                                              \
            .features = CPU_AVX2,                                                                            \
            .format = id,                                                                                    \
            .schedule = LINEAR_TOKENS,                                                                       \
            .exact_input = true,                                                                             \
            .unsteady = true,                                                                                \
            .tile_tokens = 1,                                                                                \
            .tile_cols = 1,                                                                                  \
            .row_granule = 16,                                                                               \
            .tiled_bytes = linear_ref_tiled_bytes,                                                           \
            .tile = linear_ref_tile,                                                                         \
            .gemm = gemm_##suffix,                                                                           \
            .scratch_bytes = scratch_bytes,                                                                  \
            .thread_begin = thread_begin}
const struct linear_kernel linear_openblas_gemm[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16),
                                                                 ENTRY(f16, FORMAT_F16),
                                                                 ENTRY(f32, FORMAT_F32)};
