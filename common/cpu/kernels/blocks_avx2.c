/* GGUF's blocks with AVX2, FMA and F16C. Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

INLINE vec block_numbers(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define KERNELS  blocks_avx2
#include "common/cpu/kernels/blocks_simd.h"
