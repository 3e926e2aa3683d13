/* Vector primitives of 16 floats for attention_simd.h, from AVX-512 F, BW, VL, DQ. Included by
 * attention_avx512.c and attention_avx512bf16.c only. */
#ifndef HELM_COMMON_CPU_KERNELS_ATTENTION_VEC512_H
#define HELM_COMMON_CPU_KERNELS_ATTENTION_VEC512_H

#include <immintrin.h>

#include "common/cpu/kernels/attention_kernels.h"

#define VEC_LANES 16
#define TILE_VECS 4 /* 6 x 4 accumulators, 4 keys' vectors and a broadcast: 29 of 32 registers */
#define FEW_ROWS  4 /* 4 x 4 accumulators in the few-rows kernels */
typedef __m512 vec;

static inline vec vec_load(const float *x)
{
    return _mm512_loadu_ps(x);
}
static inline void vec_store(float *y, vec x)
{
    _mm512_storeu_ps(y, x);
}
static inline vec vec_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
} /* b if either is NaN */
static inline vec vec_fmadd(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vec vec_fnmadd(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
static inline vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vec vec_scale2(vec x, vec n)
{
    return _mm512_scalef_ps(x, n);
} /* x * 2^n, n whole */
static inline vec vec_zero_below(vec y, vec x, vec limit)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), y, _mm512_setzero_ps());
}
static inline float vec_reduce_max(vec x)
{
    return _mm512_reduce_max_ps(x);
}
static inline float vec_reduce_add(vec x)
{
    return _mm512_reduce_add_ps(x);
}

/* Lanes [lo, hi) of x, `other` elsewhere; lo and hi may lie outside 0..16. */
static inline vec vec_keep(vec x, int lo, int hi, vec other)
{
    uint32_t below_hi = hi <= 0 ? 0 : hi >= VEC_LANES ? 0xffffu : (1u << hi) - 1;
    uint32_t below_lo = lo <= 0 ? 0 : lo >= VEC_LANES ? 0xffffu : (1u << lo) - 1;
    return _mm512_mask_blend_ps((__mmask16)(below_hi & ~below_lo), other, x);
}

/* The sums of a, b, c and d. */
static inline __m128 vec_reduce_add4(vec a, vec b, vec c, vec d)
{
    __m256 a8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m256 b8 = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));
    __m256 c8 = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    __m256 d8 = _mm256_add_ps(_mm512_castps512_ps256(d), _mm512_extractf32x8_ps(d, 1));
    __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a8, b8), _mm256_hadd_ps(c8, d8));
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

/* Elements [d, d + 16) of a K or V row as floats; with left < 16 only `left` are read and the rest are 0. */
static inline __attribute__((always_inline)) vec kv_load(const char *row, size_t d, size_t left,
                                                         const enum dtype dtype)
{
    __mmask16 mask = left >= VEC_LANES ? 0xffff : (__mmask16)((1u << left) - 1);
    if (dtype == DTYPE_F32) return _mm512_maskz_loadu_ps(mask, (const float *)(const void *)row + d);
    __m256i half;
    if (left >= VEC_LANES)
        half = _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * d));
    else
        half = _mm256_maskz_loadu_epi16(mask, row + 2 * d);
    if (dtype == DTYPE_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* x[i][j] <-> x[j][i]: pairs, quads, then 128-bit quarters. */
static inline __attribute__((always_inline)) void vec_transpose(vec x[16])
{
    vec t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        x[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        x[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        x[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        x[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    /* x[4g + c] now holds, in quarter j, column 4j + c of rows 4g .. 4g + 3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vec even01 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x88),
            odd01 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xdd);
        vec even23 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x88);
        vec odd23 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xdd);
        t[c] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
        t[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        t[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) x[i] = t[i];
}

#endif
