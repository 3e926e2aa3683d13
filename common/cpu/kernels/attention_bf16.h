/* Attention for AVX512-BF16 over a cache of bf16 or q8_0: prefill's products run as bf16 dot products (two
 * multiplications a lane and instruction), with queries and softmax weights rounded to bf16; sums, maxima and
 * the softmax stay fp32, and each row is normalised by the sum of its rounded weights. Decode is bound by
 * memory and stays as exact as attention_avx512.c.
 *
 *   queries  [tile][pair of dimensions][TILE_ROWS]  scaled, rounded; a pair is one 32-bit broadcast
 *   keys     [pair of dimensions][KEYS_BLOCK]       the cache's own bits, or quantised ones rounded to bf16,
 *                                                   transposed as 32-bit pairs
 *   weights  [row][key]                             bf16, over the row's scores: keys 2i, 2i + 1 are one pair
 *   values   [pair of keys][stride]                 the two keys' bits interleaved
 *
 * Included by attention_avx512bf16.c and attention_avx512bf16vbmi2.c, which name what it defines (VARIANT).
 * Pure; works in the task's scratch. */
#pragma once

#include <string.h>

#include "common/cpu/kernels/attention_kernels.h"
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/attention_cells.h"

#define TILE_VECS 4 /* 6 x 4 accumulators, 4 keys' vectors and a broadcast: 29 of 32 registers */

static inline __m512bh pairs_of(__m512 x)
{
    return (__m512bh)_mm512_castps_si512(x);
}
static inline __m512bh broadcast_pair(const void *pair)
{
    uint32_t bits;
    memcpy(&bits, pair, sizeof(bits));
    return (__m512bh)_mm512_set1_epi32((int)bits);
}

/* Rounds 16 weights to bf16 in place of the scores [at, at + 16): the first half of their bytes, read
 * already. */
static inline vec tile_put(float *p, size_t at, vec w)
{
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(w);
    _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)(void *)p + at), rounded);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
}

static void tile_pack_queries(float *packed, const struct attention_task *task, size_t first, size_t rows,
                              size_t stride)
{
    size_t head_dim = task->kv->head_dim, pairs = stride / 2;
    for (size_t r = 0; r < rows || r % TILE_ROWS != 0; r++) {
        uint16_t *to =
            (uint16_t *)(void *)(packed + r / TILE_ROWS * TILE_ROWS * stride) + 2 * (r % TILE_ROWS);
        size_t row = first + r;
        const float *from = task->q + row / task->group * task->q_stride + row % task->group * head_dim;
        for (size_t d = 0; d < pairs * 2; d += LANES) {
            size_t left = r >= rows || d >= head_dim ? 0 : head_dim - d;
            vec x = left > 0 ? vec_load_part(from + d, left) : vec_set1(0);
            uint16_t sixteen[LANES];
            _mm256_storeu_si256((__m256i *)(void *)sixteen,
                                (__m256i)_mm512_cvtneps_pbh(vec_mul(x, vec_set1(task->scale))));
            for (size_t i = 0; i < LANES; i++) to[(d + i) / 2 * 2 * TILE_ROWS + i % 2] = sixteen[i];
        }
    }
}

/* Numbers [d, d + 32) of a cell as 16 pairs; past `left` they are 0. */
INLINE vec load_pairs(const char *row, const float *scales, size_t d, size_t left, const enum kv_dtype dtype)
{
    if (dtype == KV_Q8_0)
        return _mm512_castsi512_ps(
            (__m512i)_mm512_cvtne2ps_pbh(cell_widen(row, scales, d + LANES, left, dtype),
                                         cell_widen(row, scales, d, left, dtype)));
    if (left >= 2 * LANES) return _mm512_loadu_ps((const void *)(row + 2 * d));
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((__mmask32)((1ull << left) - 1), row + 2 * d));
}

/* Writes round_up(head_dim, 32) / 2 rows of pairs: at most stride / 2 + 8, which the fp32-sized room holds.
 */
INLINE void pack_keys_as(float *packed, const struct cells *cells, size_t head_dim, const enum kv_dtype dtype)
{
    for (size_t k = 0; k < KEYS_BLOCK; k += LANES)
        for (size_t d = 0; d < head_dim; d += 2 * LANES) {
            vec x[LANES];
            UNROLL for (size_t i = 0; i < LANES; i++) x[i] =
                load_pairs(cells->keys[k + i], cells->key_scales + (k + i) * cells->scales, d, head_dim - d,
                           dtype);
            vec_transpose(x);
            UNROLL for (size_t i = 0; i < LANES; i++) vec_store(packed + (d / 2 + i) * KEYS_BLOCK + k, x[i]);
        }
}

static void tile_pack_keys(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                           enum kv_dtype dtype)
{
    (void)stride;
    if (dtype == KV_Q8_0)
        pack_keys_as(packed, cells, head_dim, KV_Q8_0);
    else
        pack_keys_as(packed, cells, head_dim, KV_BF16);
}

/* Numbers d .. d + 15 of value k as bf16; past the last value and past `left`: zero, whatever their
 * weights. */
INLINE __m512i load_value(const struct cells *cells, size_t k, size_t d, size_t left,
                          const enum kv_dtype dtype)
{
    if (k >= cells->count) return _mm512_setzero_si512();
    const char *row = cells->keys[k] + cells->distance;
    if (dtype == KV_Q8_0)
        return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(
            cell_widen(row, cells->value_scales + k * cells->scales, d, left, dtype)));
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes_mask(left), row + 2 * d));
}

INLINE void pack_values_as(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                           const enum kv_dtype dtype)
{
    for (size_t k = 0; k < cells->count; k += 2)
        for (size_t d = 0; d < head_dim; d += LANES) {
            __m512i even = load_value(cells, k, d, head_dim - d, dtype);
            __m512i odd = load_value(cells, k + 1, d, head_dim - d, dtype);
            vec_store(packed + k / 2 * stride + d,
                      _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16))));
        }
}

static void tile_pack_values(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                             enum kv_dtype dtype)
{
    if (dtype == KV_Q8_0)
        pack_values_as(packed, cells, head_dim, stride, KV_Q8_0);
    else
        pack_values_as(packed, cells, head_dim, stride, KV_BF16);
}

#define CHUNK ((size_t)TILE_VECS * LANES)
_Static_assert(TILE_VECS *LANES == KEYS_BLOCK, "a block of keys is one chunk");
typedef __m512bh tile_operand;
#define tile_operand_at(p)       pairs_of(vec_load(p))
#define tile_broadcast(p)        broadcast_pair(p)
#define tile_multiply(acc, x, y) _mm512_dpbf16_ps(acc, x, y)
#define TILE_TOGETHER            2
#include "common/cpu/kernels/attention_tile.h"
#include "common/cpu/kernels/attention_simd.h"
