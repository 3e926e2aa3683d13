/* AVX2 pieces that several linear kernels share. Included only by files compiled with AVX2; static inline so that
 * no object shares code with another ISA's. */
#ifndef HELM_COMMON_CPU_KERNELS_LANES256_H
#define HELM_COMMON_CPU_KERNELS_LANES256_H

#include <immintrin.h>
#include <stddef.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Lane order of the sum is fixed: halves, then pairs. */
INLINE float sum_lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
