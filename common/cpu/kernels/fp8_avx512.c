/* FP8 with AVX-512 and F16C: one token's products, rows decoded to fp32. Called through the table of linear.c
 * after the CPU check. E4M3's bits are those of an fp16 number 256 times smaller. */
#include "common/cpu/kernels/lanes512.h"

INLINE vec run_numbers(const void *at)
{
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(at));
    return _mm512_cvtph_ps(
        _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(0x3f80)),
                        _mm256_and_si256(words, _mm256_set1_epi16((short)0x8000))));
}

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define GEMV     fp8_avx512_gemv
#define DECODE   fp8_avx512_decode
#include "common/cpu/kernels/fp8_simd.h"
