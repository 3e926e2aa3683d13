/* One token's products with single numbers, and a few tokens' with the same bits. Included once by
 * gemv_avx2.c and gemv_avx512.c after their vectors, which define NAME, FEATURES and ENTRIES, the table that
 * linear.c knows. */
#include "common/cpu/kernels/decode_plain.h"
#include "common/cpu/kernels/gemv_simd.h"

#include "common/cpu/kernels/gemv_few.h"

#define FOR_FORMAT(suffix, format)                                                                           \
    static void gemv_##suffix(float *y, const void *w, const float *x, size_t rows, size_t cols,             \
                              const struct gemv_reads *reads)                                                \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, format);                                                            \
    }                                                                                                        \
    static void few_##suffix(float *y, size_t ldy, const void *w, const float *x, size_t ldx, size_t rows,   \
                             size_t cols, size_t tokens)                                                     \
    {                                                                                                        \
        gemv_few(y, ldy, w, x, ldx, rows, cols, tokens, format);                                             \
    }
FOR_FORMAT(bf16, FORMAT_BF16)
FOR_FORMAT(f16, FORMAT_F16)
FOR_FORMAT(f32, FORMAT_F32)

#define ENTRY(suffix, id)                                                                                    \
    [id] = {.name = NAME,                                                                                    \
            .features = FEATURES,                                                                            \
            .format = id,                                                                                    \
            .schedule = LINEAR_ONE_TOKEN,                                                                    \
            .gemv = gemv_##suffix,                                                                           \
            .few = few_##suffix,                                                                             \
            .streams = GEMV_STREAMS}
const struct linear_kernel ENTRIES[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16), ENTRY(f16, FORMAT_F16),
                                                    ENTRY(f32, FORMAT_F32)};
