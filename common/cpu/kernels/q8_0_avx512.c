/* Q8_0 with AVX-512 and F16C: one token's products, rows decoded to fp32. Called through the table of linear.c after
 * the CPU check. */
#include "common/cpu/kernels/lanes512.h"

INLINE vec q8_0_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define GEMV     q8_0_avx512_gemv
#define DECODE   q8_0_avx512_decode
#include "common/cpu/kernels/q8_0_simd.h"
