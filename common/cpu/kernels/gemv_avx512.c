/* One token's products with single numbers, with AVX-512 and F16C. Called through the table of linear.c
 * after the CPU check. */
#include "common/cpu/kernels/decode_avx512.h"
#include "common/cpu/kernels/gemv_avx512.h"

#define FOR_FORMAT(suffix, format)                                                                           \
    static void gemv_##suffix(float *y, const void *w, const float *x, size_t rows, size_t cols,             \
                              const struct gemv_reads *reads)                                                \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, format);                                                            \
    }
FOR_FORMAT(bf16, FORMAT_BF16)
FOR_FORMAT(f16, FORMAT_F16)
FOR_FORMAT(f32, FORMAT_F32)

#define ENTRY(suffix, id)                                                                                    \
    [id] = {.name = "avx512",                                                                                \
            .features = CPU_AVX2 | CPU_AVX512,                                                               \
            .format = id,                                                                                    \
            .schedule = LINEAR_ONE_TOKEN,                                                                    \
            .gemv = gemv_##suffix,                                                                           \
            .streams = GEMV_STREAMS}
const struct linear_kernel linear_avx512_gemv[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16),
                                                               ENTRY(f16, FORMAT_F16),
                                                               ENTRY(f32, FORMAT_F32)};
