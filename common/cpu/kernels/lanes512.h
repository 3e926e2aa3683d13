/* AVX-512 pieces that several linear kernels share: masks, a 16 x 16 transpose and the stores around it.
 *
 * Included only by files compiled with AVX-512; static inline so that no object shares code with another
 * ISA's. */
#ifndef HELM_COMMON_CPU_KERNELS_LANES512_H
#define HELM_COMMON_CPU_KERNELS_LANES512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

static inline __mmask16 lanes_mask(size_t left)
{
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* m[i][j] becomes m[j][i]: 32-bit pairs, 64-bit pairs, then 128-bit quarters twice. */
INLINE void lanes_transpose(__m512i m[16])
{
    __m512i t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(m[i], m[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(m[i], m[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        m[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        m[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        m[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        m[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(m[i], m[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(m[i], m[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(m[i + 8], m[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(m[i + 8], m[i + 12], 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        m[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        m[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        m[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        m[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* y[t * ldy + r] (+)= c[r * 16 + t] for r < rows <= 16, t < tokens <= 16; c is 64-byte aligned. */
static inline void lanes_store_transposed(float *y, size_t ldy, const float *c, size_t rows, size_t tokens,
                                          bool accumulate)
{
    __m512i m[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) m[i] = _mm512_load_si512(c + i * 16);
    lanes_transpose(m);
    __mmask16 mask = lanes_mask(rows);
#pragma GCC unroll 16
    for (size_t t = 0; t < 16; t++) {
        if (t >= tokens) return;
        __m512 v = _mm512_castsi512_ps(m[t]);
        if (accumulate) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, y + t * ldy));
        _mm512_mask_storeu_ps(y + t * ldy, mask, v);
    }
}

#endif
