/* Q8_0 with AVX2, FMA and F16C: one token's products, rows decoded to fp32. Called through the table of linear.c after
 * the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#include "common/formats/q8_0.h"

INLINE vec run_numbers(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

INLINE float run_scale(const void *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return _cvtsh_ss(half);
}

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define GEMV     q8_0_avx2_gemv
#define DECODE   q8_0_avx2_decode
#define FORMAT   Q8_0
#define VALUES   Q8_0_VALUES
#define BYTES    Q8_0_BYTES
#define NUMBERS  2
#define TIMES    1.0f
#include "common/cpu/kernels/bytes_simd.h"
