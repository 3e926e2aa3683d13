/* Sixteen floats at once, with AVX-512 F, BW, VL, DQ and F16C: the names of lanes256.h, which explains them.
 *
 * Included only by files compiled with AVX-512; static inline so that no object shares code with another
 * ISA's. */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/formats/dtype.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define LANES  16
typedef __m512 vec;

#define vec_zero       _mm512_setzero_ps
#define vec_set1       _mm512_set1_ps
#define vec_add        _mm512_add_ps
#define vec_sub        _mm512_sub_ps
#define vec_mul        _mm512_mul_ps
#define vec_div        _mm512_div_ps
#define vec_min        _mm512_min_ps
#define vec_max        _mm512_max_ps /* the second if either is NaN */
#define vec_fmadd      _mm512_fmadd_ps
#define vec_fmsub      _mm512_fmsub_ps
#define vec_fnmadd     _mm512_fnmadd_ps
#define vec_scale2     _mm512_scalef_ps
#define vec_scale2_far _mm512_scalef_ps
#define vec_reduce_max _mm512_reduce_max_ps
#define vec_reduce_add _mm512_reduce_add_ps

INLINE vec vec_load(const void *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vec_store(void *p, vec v)
{
    _mm512_storeu_ps(p, v);
}
INLINE __mmask16 lanes_mask(size_t left)
{
    return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
}
INLINE vec vec_load_part(const void *p, size_t left)
{
    return _mm512_maskz_loadu_ps(lanes_mask(left), p);
}
INLINE void vec_store_part(void *p, size_t left, vec v)
{
    _mm512_mask_storeu_ps(p, lanes_mask(left), v);
}
INLINE vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vec vec_zero_below(vec y, vec x, vec limit)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), y, vec_zero());
}
/* 128-bit quarters of two sources side by side, then two and two lanes. */
INLINE vec vec_reduce_lanes(const vec a[LANES])
{
    vec half[8], quarter[4], pair[2];
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 2; j++)
    {
        const vec x = a[i + 8 * j], y = a[i + 4 + 8 * j];
        half[i + 4 * j] = vec_add(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    UNROLL for (int i = 0; i < 4; i++) quarter[i] = vec_add(_mm512_shuffle_f32x4(half[i], half[i + 4], 0x88),
                                                            _mm512_shuffle_f32x4(half[i], half[i + 4], 0xdd));
    UNROLL for (int i = 0; i < 2; i++) pair[i] =
        vec_add(_mm512_unpacklo_ps(quarter[2 * i], quarter[2 * i + 1]),
                _mm512_unpackhi_ps(quarter[2 * i], quarter[2 * i + 1]));
    return vec_add(_mm512_shuffle_ps(pair[0], pair[1], 0x44), _mm512_shuffle_ps(pair[0], pair[1], 0xee));
}
INLINE vec vec_swap(vec x, const size_t n)
{
    if (n == 1) return _mm512_permute_ps(x, 0xb1);
    if (n == 2) return _mm512_permute_ps(x, 0x4e);
    if (n == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
    return _mm512_shuffle_f32x4(x, x, 0x4e);
}
INLINE vec vec_between(vec x, vec at, vec lo, vec hi, vec other)
{
    const __mmask16 kept = _mm512_cmp_ps_mask(at, lo, _CMP_GE_OQ) & _mm512_cmp_ps_mask(at, hi, _CMP_LT_OQ);
    return _mm512_mask_blend_ps(kept, other, x);
}
INLINE vec vec_keep(vec x, int lo, int hi, vec other)
{
    unsigned below_hi = lanes_mask(hi > 0 ? (size_t)hi : 0), below_lo = lanes_mask(lo > 0 ? (size_t)lo : 0);
    return _mm512_mask_blend_ps((__mmask16)(below_hi & ~below_lo), other, x);
}
INLINE unsigned vec_equal(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

INLINE vec vec_widen_part(const void *p, size_t left, const enum dtype dtype)
{
    if (dtype == DTYPE_F32) return vec_load_part(p, left);
    __m256i half = left >= LANES ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(lanes_mask(left), p);
    if (dtype == DTYPE_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE vec vec_widen_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

INLINE __m256i vec_to_bf16(vec v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

INLINE void vec_narrow_part(void *p, size_t left, vec v, const enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        vec_store_part(p, left, v);
    else
        _mm256_mask_storeu_epi16(p, lanes_mask(left),
                                 dtype == DTYPE_BF16 ? vec_to_bf16(v)
                                                     : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* m[i][j] becomes m[j][i]: 32-bit pairs, 64-bit pairs, then 128-bit quarters twice. */
INLINE void vec_transpose(vec m[LANES])
{
    vec t[16];
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        m[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        m[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        m[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        m[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_f32x4(m[i], m[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(m[i], m[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        m[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        m[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        m[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        m[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#include "common/cpu/kernels/lanes.h"
