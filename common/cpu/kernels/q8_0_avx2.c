/* Q8_0 with AVX2, FMA and F16C: its decoder, one token's products by the common schedule, rows decoded to fp32.
 * Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes256.h"
#include "common/formats/q8_0.h"
#include "common/formats/tensor_format.h"

INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    (void)format;
    return values / Q8_0_VALUES * Q8_0_BYTES;
}

INLINE __m256 decode_values(const char *row, size_t i, const enum tensor_format format)
{
    const char *block = row + decode_bytes(i, format);
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    const __m128i number = _mm_loadl_epi64((const void *)(block + sizeof scale + i % Q8_0_VALUES));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(number)), _mm256_set1_ps(_cvtsh_ss(scale)));
}

INLINE float decode_value(const char *row, size_t i, const enum tensor_format format)
{
    (void)format;
    return q8_0_value(row, i);
}
#include "common/cpu/kernels/gemv_avx2.h"

static void q8_0_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,
                      const struct gemv_reads *reads)
{
    gemv(y, w, x, rows, cols, reads, FORMAT_Q8_0);
}

static void q8_0_decode(void *values, const void *w, size_t rows, size_t cols)
{
    float *to = values;
    for (size_t i = 0; i < rows * cols; i += Q8_0_VALUES) {
        if (i % (2 * Q8_0_VALUES) == 0)
            _mm_prefetch((const char *)w + decode_bytes(i, FORMAT_Q8_0) + GEMV_NEAR, _MM_HINT_T0);
        UNROLL for (size_t k = 0; k < Q8_0_VALUES; k += 8)
            _mm256_storeu_ps(to + i + k, decode_values(w, i + k, FORMAT_Q8_0));
    }
}

const struct linear_kernel q8_0_avx2_gemv = {.name = "avx2",
                                             .features = CPU_AVX2,
                                             .format = FORMAT_Q8_0,
                                             .schedule = LINEAR_ONE_TOKEN,
                                             .gemv = q8_0_gemv,
                                             .streams = GEMV_STREAMS};
const struct linear_kernel q8_0_avx2_decode = {.name = "avx2",
                                               .features = CPU_AVX2,
                                               .format = FORMAT_Q8_0,
                                               .schedule = LINEAR_DECODE,
                                               .decode = q8_0_decode};
