/* One token's products of blocks with activations of 8 bits, with AVX512-VNNI: int8_ref.c defines the
 * arithmetic.
 *
 * 64 weights are the 64 bytes of a vector, whole numbers without sign. A chunk is 256 columns, four such
 * vectors, in an order in which a lane has four of sixteen neighbouring columns, in all four vectors the same
 * sixteen. vpdpbusd multiplies them with numbers of x in that order and adds them up, one vector after
 * another, so lanes become exact sums of sixteen columns, which are scaled once. The surplus of numbers over
 * weights is taken off before, as a multiple of x's sums.
 *
 * Included after lanes512.h and blocks_sizes.h by files that define NAME, FEATURES beside FEATURES_VNNI,
 * KERNELS and FORMATS (int8_gemv.h) and
 *   take_rows(number, scales, w, stride, blocks, S, format)   declared here: the numbers and scales of a
 *                                                             chunk of S rows; columns after `blocks` blocks
 *                                                             of 32 give 0 */
#pragma once

#define GEMV_STREAMS 4
#define FEW_ROWS     2
#define FEW_TOKENS   8
#include "common/cpu/kernels/gemv_streams.h"

#define CHUNK(format) 256

/* How scales of a chunk lie in a vector, and x's with them. */
enum layout {
    EIGHT,   /* of 32 each, in the first eight lanes */
    SIXTEEN, /* of 16 each */
    PAIRS,   /* of 32 each, then its smallest value */
};
INLINE enum layout layout_of(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q4_K:
    case FORMAT_Q5_K:
    case FORMAT_Q4_1:
    case FORMAT_Q5_1:
        return PAIRS;
    case FORMAT_Q2_K:
    case FORMAT_Q3_K:
    case FORMAT_Q6_K:
    case FORMAT_NVFP4:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
    case FORMAT_IQ1_M:
        return SIXTEEN;
    default:
        return EIGHT;
    }
}

/* ---- x ---- */

/* The order of a chunk: dword `d` of the four in quarter `i` of vector `k` to lane 4 i + k of vector d. Lanes
 * are sixteens of columns: number 4 k + i of the chunk. */
INLINE void to_sixteens(__m512i v[4])
{
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]),
                  c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}
/* Numbers of grids are transposed in each sixteen instead (grids512.h), whose lanes are in order. */
INLINE void order_numbers(__m512i v[4], const enum tensor_format format)
{
    const __m512i bytes = format == FORMAT_IQ3_XXS || format == FORMAT_IQ3_S
                              ? _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400)
                              : _mm512_set4_epi32(0x0f0d0b09, 0x0e0c0a08, 0x07050301, 0x06040200),
                  lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    if (!is_grid(format)) {
        to_sixteens(v);
        return;
    }
    UNROLL for (int k = 0; k < 4; k++) v[k] = _mm512_shuffle_epi8(v[k], bytes);
    to_sixteens(v);
    UNROLL for (int k = 0; k < 4; k++) v[k] = _mm512_permutexvar_epi32(lanes, v[k]);
}
/* Where in a layout the scale of each lane stands. */
INLINE __m512i lane_scales(const enum tensor_format format)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                  once = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (is_grid(format)) return layout_of(format) == EIGHT ? twice : once;
    switch (layout_of(format)) {
    case EIGHT:
        return _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    case PAIRS:
        return _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 2, 6, 10, 14, 2, 6, 10, 14);
    default: /* SIXTEEN */
        return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    }
}

/* A chunk of x: its numbers, in order; scales by lanes; where smallest values are in the layout, or with Q2_K
 * by sixteens, what they are multiplied with, else 0; by lanes what is taken off. */
#define AT_SCALES 256
#define AT_LEAST  (AT_SCALES + 64)
#define AT_LESS   (AT_LEAST + 64)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    return AT_LESS + (number_less(format) ? 64 : 0);
}

/* Sums of a block's numbers: of its first 16, of its second. */
struct block_sums {
    float scale;
    int first, second;
};

/* 32 columns, `left` of them there. */
INLINE struct block_sums round_block(int8_t *to, const float *x, size_t left)
{
    const vec low = vec_load_part(x, left),
              high = left > LANES ? vec_load_part(x + LANES, left - LANES) : vec_zero();
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const int most =
        _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                                 _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
    const float largest = convert_bits_f32((uint32_t)most);
    const bool finite = most < 0x7f800000, none = !finite || largest < INT8_LEAST;
    const vec by = vec_set1(none ? 0 : 127 / largest);
    const __mmask16 kept = none ? 0 : 0xffff;
    const __m512i a = _mm512_maskz_cvtps_epi32(kept, vec_mul(low, by)),
                  b = _mm512_maskz_cvtps_epi32(kept, vec_mul(high, by));
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((void *)(to + 16), _mm512_cvtepi32_epi8(b));
    return (struct block_sums){.scale = finite ? (none ? 0 : largest / 127) : convert_bits_f32(0x7fc00000),
                               .first = _mm512_reduce_add_epi32(a),
                               .second = _mm512_reduce_add_epi32(b)};
}

INLINE void order_as(float *to, const float *x, size_t cols, const enum tensor_format format)
{
    char *at = (char *)to;
    for (size_t c = 0; c < cols; c += 256, at += chunk_x_bytes(format)) {
        _Alignas(64) int8_t number[256] = {0};
        float scales[LANES] = {0}, least[LANES] = {0};
        for (size_t b = 0; b < 256 / INT8_BLOCK && c + b * INT8_BLOCK < cols; b++) {
            const size_t i = c + b * INT8_BLOCK;
            const struct block_sums sums = round_block(number + b * INT8_BLOCK, x + i, cols - i);
            const float all = -sums.scale * (float)(sums.first + sums.second);
            switch (layout_of(format)) {
            case EIGHT:
                scales[b] = sums.scale;
                break;
            case SIXTEEN:
                scales[2 * b] = scales[2 * b + 1] = sums.scale;
                least[2 * b] = -sums.scale * (float)sums.first;
                least[2 * b + 1] = -sums.scale * (float)sums.second;
                break;
            case PAIRS: /* of Q4_K every second 32 numbers are the upper halves of bytes */
                scales[2 * b] = format == FORMAT_Q4_K && b % 2 ? sums.scale * (1.0f / 16) : sums.scale;
                least[2 * b + 1] =
                    block_values(format) == 256 ? all : -all; /* blocks of 32 add smallest values */
                break;
            }
        }
        __m512i v[4], sums = _mm512_setzero_si512();
        UNROLL for (int k = 0; k < 4; k++) v[k] = _mm512_load_si512(number + 64 * k);
        order_numbers(v, format);
        UNROLL for (int k = 0; k < 4; k++)
        {
            _mm512_storeu_si512(at + 64 * k, v[k]);
            sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), v[k]);
        }
        vec_store(at + AT_SCALES, _mm512_permutexvar_ps(lane_scales(format), vec_load(scales)));
        vec_store(at + AT_LEAST, vec_load(least));
        if (number_less(format))
            _mm512_storeu_si512(at + AT_LESS,
                                _mm512_mullo_epi32(sums, _mm512_set1_epi32(-number_less(format))));
    }
}

/* ---- rows ---- */

/* A row's scales, by lanes, and smallest values, as they lie in the layout or by sixteens. */
struct row_scales {
    vec scale, least;
};
INLINE void take_rows(__m512i number[][4], struct row_scales *scales, const uint8_t *w, size_t stride,
                      const size_t blocks, const size_t S, const enum tensor_format format);

INLINE void add_chunk(vec *total, vec *least, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    struct row_scales scales[GEMV_STREAMS];
    __m512i number[GEMV_STREAMS][4];
    take_rows(number, scales, w, stride, cols / INT8_BLOCK, S, format);
    UNROLL for (size_t t = 0; t < T; t++)
    {
        const char *xt = x + t * ldx;
        const vec by = vec_load(xt + AT_SCALES);
        __m512i sum[GEMV_STREAMS];
        UNROLL for (size_t s = 0; s < S; s++) sum[s] =
            number_less(format) ? _mm512_loadu_si512(xt + AT_LESS) : _mm512_setzero_si512();
        UNROLL for (int k = 0; k < 4; k++)
        {
            const __m512i numbers = _mm512_loadu_si512(xt + 64 * k);
            UNROLL for (size_t s = 0; s < S; s++) sum[s] = _mm512_dpbusd_epi32(sum[s], number[s][k], numbers);
        }
        UNROLL for (size_t s = 0; s < S; s++)
        {
            vec *to = &total[t * S + s], *low = &least[t * S + s];
            *to = vec_fmadd(_mm512_cvtepi32_ps(sum[s]), vec_mul(scales[s].scale, by), *to);
            if (has_least(format)) *low = vec_fmadd(scales[s].least, vec_load(xt + AT_LEAST), *low);
        }
    }
}

#define FEATURES_VNNI (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI)
#define APART         8
#include "common/cpu/kernels/int8_gemv.h"
