/* Q8_0 with AVX2, FMA and F16C: one token's products, rows decoded to fp32. Called through the table of linear.c after
 * the CPU check. */
#include "common/cpu/kernels/lanes256.h"

INLINE vec q8_0_numbers(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define GEMV     q8_0_avx2_gemv
#include "common/cpu/kernels/q8_0_simd.h"

static void q8_0_decode(void *values, const void *w, size_t rows, size_t cols)
{
    float *to = values;
    for (size_t i = 0; i < rows * cols; i += Q8_0_VALUES) {
        if (i % (2 * Q8_0_VALUES) == 0)
            _mm_prefetch((const char *)w + decode_bytes(i, FORMAT_Q8_0) + GEMV_NEAR, _MM_HINT_T0);
        UNROLL for (size_t k = 0; k < Q8_0_VALUES; k += LANES)
            vec_store(to + i + k, decode_part(w, i + k, LANES, FORMAT_Q8_0));
    }
}

const struct linear_kernel q8_0_avx2_decode = {.name = "avx2",
                                               .features = CPU_AVX2,
                                               .format = FORMAT_Q8_0,
                                               .schedule = LINEAR_DECODE,
                                               .decode = q8_0_decode};
