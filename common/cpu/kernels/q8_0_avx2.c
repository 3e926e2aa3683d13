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
#define DECODE   q8_0_avx2_decode
#include "common/cpu/kernels/q8_0_simd.h"
