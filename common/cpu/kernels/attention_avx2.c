/* Attention for AVX2 + FMA + F16C: 8 lanes, fp32 arithmetic whatever the cache holds.
 *
 * Called through the table in common/cpu/kernels/attention.c. Pure; works in the task's scratch. This file holds the
 * vector primitives; the method stands in attention_simd.h, the register-blocked products in
 * attention_tile_f32.h. */
#include <immintrin.h>
#include <string.h>

#include "common/cpu/kernels/attention_kernels.h"

#define VEC_LANES 8
#define TILE_VECS 2 /* 6 x 2 accumulators, 2 keys' vectors and a broadcast: 15 of 16 registers */
#define FEW_ROWS  2 /* 2 x 4 accumulators in the few-rows kernels */
typedef __m256 vec;

static inline vec vec_load(const float *x)
{
    return _mm256_loadu_ps(x);
}
static inline void vec_store(float *y, vec x)
{
    _mm256_storeu_ps(y, x);
}
static inline vec vec_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
} /* b if either is NaN */
static inline vec vec_fmadd(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vec vec_fnmadd(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
static inline vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vec vec_scale2(vec x, vec n) /* x * 2^n, n whole and in [-126, 127]; NaN x stays NaN */
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
static inline vec vec_zero_below(vec y, vec x, vec limit)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y);
}
static inline float vec_reduce_max(vec x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
static inline float vec_reduce_add(vec x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* Lanes [lo, hi) of x, `other` elsewhere; lo and hi may lie outside 0..8. */
static inline vec vec_keep(vec x, int lo, int hi, vec other)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i below_lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane);
    __m256i below_hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(below_lo, below_hi)));
}

/* The sums of a, b, c and d. */
static inline __m128 vec_reduce_add4(vec a, vec b, vec c, vec d)
{
    vec x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

/* Elements [d, d + 8) of a K or V row as floats; with left < 8 only `left` are read and the rest are 0. */
static inline __attribute__((always_inline)) vec kv_load(const char *row, size_t d, size_t left,
                                                         const enum dtype dtype)
{
    size_t bytes = dtype == DTYPE_F32 ? 4 : 2;
    char copy[VEC_LANES * 4];
    const char *from = row + d * bytes;
    if (left < VEC_LANES) { /* there is no masked load of 16-bit elements */
        memset(copy, 0, sizeof(copy));
        memcpy(copy, from, left * bytes);
        from = copy;
    }
    if (dtype == DTYPE_F32) return _mm256_loadu_ps((const float *)(const void *)from);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
    if (dtype == DTYPE_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* x[i][j] <-> x[j][i]: pairs, quads, then 128-bit halves. */
static inline __attribute__((always_inline)) void vec_transpose(vec x[8])
{
    vec t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vec low = x[c], high = x[4 + c];
        x[c] = _mm256_permute2f128_ps(low, high, 0x20);
        x[4 + c] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

#include "common/cpu/kernels/attention_tile_f32.h"
#include "common/cpu/kernels/attention_simd.h"

void attention_attend_avx2(const struct attention_task *task)
{
    attend_any(task);
}

size_t attention_scratch_avx2(const struct kv_layout *kv, uint32_t tokens, uint32_t group)
{
    return simd_scratch_bytes(kv, tokens, group);
}
