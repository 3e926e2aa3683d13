/* Eight floats at once, with AVX2, FMA and F16C. lanes512.h has the same names for sixteen; what is written
 * in them alone stands once for both: lanes.h, gemv_simd.h, gemm_plain.h, attention_simd.h, vector_simd.h.
 *
 * Included only by files compiled with AVX2; static inline so that no object shares code with another ISA's.
 * `left`: how many lanes count; LANES and more are all. Lanes that do not count are read as 0 and not
 * written. */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/formats/dtype.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define LANES  8
typedef __m256 vec;

#define vec_zero   _mm256_setzero_ps
#define vec_set1   _mm256_set1_ps
#define vec_add    _mm256_add_ps
#define vec_sub    _mm256_sub_ps
#define vec_mul    _mm256_mul_ps
#define vec_div    _mm256_div_ps
#define vec_min    _mm256_min_ps
#define vec_max    _mm256_max_ps /* the second if either is NaN */
#define vec_fmadd  _mm256_fmadd_ps
#define vec_fmsub  _mm256_fmsub_ps
#define vec_fnmadd _mm256_fnmadd_ps

INLINE vec vec_load(const void *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vec_store(void *p, vec v)
{
    _mm256_storeu_ps(p, v);
}
INLINE __m256i lanes_mask(size_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vec vec_load_part(const void *p, size_t left)
{
    return left >= LANES ? vec_load(p) : _mm256_maskload_ps(p, lanes_mask(left));
}
INLINE void vec_store_part(void *p, size_t left, vec v)
{
    if (left >= LANES)
        vec_store(p, v);
    else
        _mm256_maskstore_ps(p, lanes_mask(left), v);
}
INLINE vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^n, n whole and in [-126, 127]; NaN x stays NaN. */
INLINE vec vec_scale2(vec x, vec n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
/* The same for n in [-252, 254]: in two steps. */
INLINE vec vec_scale2_far(vec x, vec n)
{
    vec first = _mm256_round_ps(vec_mul(n, vec_set1(0.5f)), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return vec_scale2(vec_scale2(x, first), vec_sub(n, first));
}
INLINE vec vec_zero_below(vec y, vec x, vec limit)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y);
}
INLINE float vec_reduce_max(vec x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
/* Lane order of the sum is fixed: halves, then pairs. */
INLINE float vec_reduce_add(vec x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
/* Lane i: the sum of a[i]'s lanes. */
INLINE vec vec_reduce_lanes(const vec a[LANES])
{
    vec half[4], pair[2];
    UNROLL for (int i = 0; i < 4; i++) half[i] =
        vec_add(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    UNROLL for (int i = 0; i < 2; i++) pair[i] = vec_add(_mm256_unpacklo_ps(half[2 * i], half[2 * i + 1]),
                                                         _mm256_unpackhi_ps(half[2 * i], half[2 * i + 1]));
    return vec_add(_mm256_shuffle_ps(pair[0], pair[1], 0x44), _mm256_shuffle_ps(pair[0], pair[1], 0xee));
}
/* Each lane takes the one whose number differs in bit n, a power of two. */
INLINE vec vec_swap(vec x, const size_t n)
{
    if (n == 1) return _mm256_permute_ps(x, 0xb1);
    if (n == 2) return _mm256_permute_ps(x, 0x4e);
    return _mm256_permute2f128_ps(x, x, 1);
}
/* x in the lanes where lo <= at < hi, `other` elsewhere. */
INLINE vec vec_between(vec x, vec at, vec lo, vec hi, vec other)
{
    const vec kept = _mm256_and_ps(_mm256_cmp_ps(at, lo, _CMP_GE_OQ), _mm256_cmp_ps(at, hi, _CMP_LT_OQ));
    return _mm256_blendv_ps(other, x, kept);
}
/* Lanes [lo, hi) of x, `other` elsewhere; lo and hi may lie outside 0..LANES. */
INLINE vec vec_keep(vec x, int lo, int hi, vec other)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i below_lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane);
    __m256i below_hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(below_lo, below_hi)));
}
/* A bit a lane: where the two are equal. */
INLINE unsigned vec_equal(vec a, vec b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

/* Numbers of a type as floats. There is no masked load of 16-bit elements. */
INLINE vec vec_widen_part(const void *p, size_t left, const enum dtype dtype)
{
    uint16_t copy[LANES];
    if (dtype == DTYPE_F32) return vec_load_part(p, left);
    if (left < LANES) {
        memset(copy, 0, sizeof copy);
        p = memcpy(copy, p, left * 2);
    }
    __m128i half = _mm_loadu_si128(p);
    if (dtype == DTYPE_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* LANES whole numbers of 8 bits as floats. */
INLINE vec vec_widen_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}

/* As convert_f32_bf16: nearest even by adding 0x7fff and the last kept bit; NaN keeps its top bits, made
 * quiet. */
INLINE __m128i vec_to_bf16(vec v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
    rounded = _mm256_srli_epi32(rounded, 16);
    __m256i packed = _mm256_packus_epi32(rounded, rounded);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

/* Floats as numbers of a type. */
INLINE void vec_narrow_part(void *p, size_t left, vec v, const enum dtype dtype)
{
    if (dtype == DTYPE_F32) {
        vec_store_part(p, left, v);
        return;
    }
    __m128i half = dtype == DTYPE_BF16 ? vec_to_bf16(v) : _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    if (left >= LANES)
        _mm_storeu_si128(p, half);
    else
        memcpy(p, &half, left * 2);
}

/* m[i][j] becomes m[j][i]: pairs, quads, then 128-bit halves. */
INLINE void vec_transpose(vec m[LANES])
{
    vec t[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        m[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        m[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        m[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        m[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        vec low = m[i], high = m[i + 4];
        m[i] = _mm256_permute2f128_ps(low, high, 0x20);
        m[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

#include "common/cpu/kernels/lanes.h"
