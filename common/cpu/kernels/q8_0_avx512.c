/* Q8_0 with AVX-512 and F16C: its decoder and one token's products by the common schedule. Called through the table
 * of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"
#include "common/formats/q8_0.h"
#include "common/formats/tensor_format.h"

INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    (void)format;
    return values / Q8_0_VALUES * Q8_0_BYTES;
}

INLINE __m512 decode_values(const char *row, size_t i, const enum tensor_format format)
{
    const char *block = row + decode_bytes(i, format);
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    const __m128i number = _mm_loadu_si128((const void *)(block + sizeof scale + i % Q8_0_VALUES));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(number)), _mm512_set1_ps(_cvtsh_ss(scale)));
}

/* Never asked for: rows are whole blocks. */
INLINE __m512 decode_tail(const char *row, size_t i, __mmask16 mask, const enum tensor_format format)
{
    return _mm512_maskz_mov_ps(mask, decode_values(row, i, format));
}
#include "common/cpu/kernels/gemv_avx512.h"

static void q8_0_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,
                      const struct gemv_reads *reads)
{
    gemv(y, w, x, rows, cols, reads, FORMAT_Q8_0);
}

const struct linear_kernel q8_0_avx512_gemv = {.name = "avx512",
                                               .features = CPU_AVX2 | CPU_AVX512,
                                               .format = FORMAT_Q8_0,
                                               .schedule = LINEAR_ONE_TOKEN,
                                               .gemv = q8_0_gemv,
                                               .streams = GEMV_STREAMS};
