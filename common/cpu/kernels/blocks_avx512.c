/* GGUF's blocks with AVX-512 and F16C. Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

INLINE vec block_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define KERNELS  blocks_avx512
#include "common/cpu/kernels/blocks_simd.h"
