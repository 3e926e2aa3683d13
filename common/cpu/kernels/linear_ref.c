/* Linear layers, the definition: plain loops, sums in double. Slow on purpose; every faster variant is
 * compared with it. Chosen only by name or where the processor lacks AVX2. Owns nothing. */
#include "common/formats/convert.h"
#include "common/cpu/kernels/variants.h"

static double dot_product(const char *w, enum dtype dtype, const float *x, size_t cols)
{
    double sum = 0;
    for (size_t c = 0; c < cols; c++) sum += (double)convert_load(w, dtype, c) * (double)x[c];
    return sum;
}

static inline void gemv(float *y, const void *w, enum dtype dtype, const float *x, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        y[r] = (float)dot_product((const char *)w + r * cols * dtype_bytes(dtype), dtype, x, cols);
}

size_t linear_ref_tiled_bytes(size_t tokens, size_t cols)
{
    return tokens * cols * sizeof(float);
}

void linear_ref_tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                     size_t last, size_t col_first, size_t col_last)
{
    (void)tokens;
    for (size_t t = first; t < last; t++)
        memcpy((float *)tiled + t * cols + col_first, x + (t - first) * ldx,
               (col_last - col_first) * sizeof(float));
}

static inline void gemm(float *y, size_t ldy, const void *w, enum dtype dtype, const float *x, size_t rows,
                        size_t cols, size_t tokens, bool accumulate)
{
    for (size_t t = 0; t < tokens; t++) {
        for (size_t r = 0; r < rows; r++) {
            const char *row = (const char *)w + r * cols * dtype_bytes(dtype);
            double sum = dot_product(row, dtype, x + t * cols, cols);
            float *out = &y[t * ldy + r];
            *out = (float)(accumulate ? (double)*out + sum : sum);
        }
    }
}

static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)cols, (void)tokens;
    return 0;
}

#define FOR_DTYPE(suffix, dtype)                                                                             \
    static void gemv_##suffix(float *y, const void *w, const float *x, size_t rows, size_t cols,             \
                              const struct gemv_reads *reads)                                                \
    {                                                                                                        \
        (void)reads;                                                                                         \
        gemv(y, w, dtype, x, rows, cols);                                                                    \
    }                                                                                                        \
    static void gemm_##suffix(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,           \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        (void)scratch;                                                                                       \
        gemm(y, ldy, w, dtype, tiled, rows, cols, tokens, accumulate);                                       \
    }
FOR_DTYPE(bf16, DTYPE_BF16)
FOR_DTYPE(f16, DTYPE_F16)
FOR_DTYPE(f32, DTYPE_F32)

#define GEMV(suffix, id)                                                                                     \
    [id] = {.name = "ref", .format = id, .schedule = LINEAR_ONE_TOKEN, .gemv = gemv_##suffix, .streams = 1}
const struct linear_kernel linear_ref_gemv[LINEAR_PLAIN] = {GEMV(bf16, FORMAT_BF16), GEMV(f16, FORMAT_F16),
                                                            GEMV(f32, FORMAT_F32)};
#define GEMM(suffix, id)                                                                                     \
    [id] = {.name = "ref",                                                                                   \
            .format = id,                                                                                    \
            .schedule = LINEAR_TOKENS,                                                                       \
            .exact_input = true,                                                                             \
            .tile_tokens = 1,                                                                                \
            .tile_cols = 1,                                                                                  \
            .row_granule = 1,                                                                                \
            .tiled_bytes = linear_ref_tiled_bytes,                                                           \
            .tile = linear_ref_tile,                                                                         \
            .gemm = gemm_##suffix,                                                                           \
            .scratch_bytes = scratch_bytes}
const struct linear_kernel linear_ref_gemm[LINEAR_PLAIN] = {GEMM(bf16, FORMAT_BF16), GEMM(f16, FORMAT_F16),
                                                            GEMM(f32, FORMAT_F32)};
