/* FP8 with AVX2, FMA and F16C: one token's products, rows decoded to fp32. Called through the table of
 * linear.c after the CPU check. E4M3's bits are those of an fp16 number 256 times smaller. */
#include "common/cpu/kernels/lanes256.h"

INLINE vec run_numbers(const void *at)
{
    const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(at));
    return _mm256_cvtph_ps(_mm_or_si128(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(0x3f80)),
                                        _mm_and_si128(words, _mm_set1_epi16((short)0x8000))));
}

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define GEMV     fp8_avx2_gemv
#define DECODE   fp8_avx2_decode
#include "common/cpu/kernels/fp8_simd.h"
