/* Attention for AMX: prefill's products on tiles. A cache of f16 is as exact as sums of fp32 need: one of its
 * numbers is the sum of two of bf16, and of queries and weights the two upper parts of bf16 are taken, 16
 * bits; the product of the lower parts is left out. With bf16 and q8_0 one part is taken of everything, as by
 * attention_bf16.h. Each row is normalised by the sum of its weights as they are taken. One token's attention
 * is that of the other files.
 *
 *   queries  [tile of TILE_ROWS][part][32 dimensions][TILE_ROWS][32]   scaled
 *   keys     [part][pair of dimensions][KEYS_BLOCK]                    a pair is 32 bits
 *   weights  [row][TILE_WEIGHTS]: scores, and after them [part][key] of bf16
 *   values   [part][pair of keys][stride]
 *
 * Five tile registers are in use, not eight (amx_blocks.h says why). Included by attention_amxvbmi2.c and
 * attention_parts_amxvbmi2.c, which say how many PARTS there are and name what it defines (VARIANT). */
#pragma once

#define TILE_ROWS     16
#define TILE_ROWS_MAX 256 /* a task of 32 tokens with eight queries each takes keys and values apart once */
#include "common/cpu/kernels/amx_tiles.h"
#include "common/cpu/kernels/attention_kernels.h"
#include "common/cpu/kernels/lanes512.h"

#define CELL_BYTES 64
#include "common/cpu/kernels/attention_cells.h"

#define TERMS (2 * PARTS - 1)
static const struct {
    uint8_t a, b; /* parts of queries or weights, of keys or values */
} term[3] = {{0, 0}, {1, 0}, {0, 1}};

#define TILE_DIMS          32
#define TILE_QUERY(stride) ((stride)*PARTS / 2)
#define TILE_WEIGHTS       (KEYS_BLOCK + PARTS * KEYS_BLOCK / 2)
#define tile_begin         tiles_begin
#define tile_end           tiles_end

/* 32 numbers of bf16 as two vectors of floats. */
INLINE vec low_floats(__m512i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves)), 16));
}
INLINE vec high_floats(__m512i halves)
{
    return low_floats(_mm512_castsi256_si512(_mm512_extracti64x4_epi64(halves, 1)));
}

/* The next part of 32 numbers, which are reduced by it. */
INLINE __m512i next_part(vec *low, vec *high)
{
    const __m512i part = (__m512i)_mm512_cvtne2ps_pbh(*high, *low);
    *low = vec_sub(*low, low_floats(part));
    *high = vec_sub(*high, high_floats(part));
    return part;
}

static vec tile_put(float *p, size_t at, vec w)
{
    uint16_t *to = (uint16_t *)(void *)(p + KEYS_BLOCK) + at;
    vec left = w;
    UNROLL for (size_t part = 0; part < PARTS; part++, to += KEYS_BLOCK)
    {
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(left);
        _mm256_storeu_si256((__m256i *)(void *)to, rounded);
        left = vec_sub(left, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
    }
    return vec_sub(w, left);
}

static void tile_pack_queries(float *packed, const struct attention_task *task, size_t first, size_t rows,
                              size_t stride)
{
    const size_t head_dim = task->kv->head_dim, part_bytes = stride * TILE_ROWS * 2;
    const vec scale = vec_set1(task->scale);
    for (size_t r = 0; r < rows || r % TILE_ROWS != 0; r++) {
        char *to = (char *)(packed + r / TILE_ROWS * TILE_ROWS * TILE_QUERY(stride)) + r % TILE_ROWS * 64;
        const size_t row = first + r;
        const float *from = task->q + row / task->group * task->q_stride + row % task->group * head_dim;
        for (size_t d = 0; d < stride; d += 32, to += 1024) {
            vec low = vec_set1(0), high = vec_set1(0);
            if (r < rows && d < head_dim) low = vec_mul(vec_load_part(from + d, head_dim - d), scale);
            if (r < rows && d + LANES < head_dim)
                high = vec_mul(vec_load_part(from + d + LANES, head_dim - d - LANES), scale);
            UNROLL for (size_t part = 0; part < PARTS; part++)
                _mm512_store_si512(to + part * part_bytes, next_part(&low, &high));
        }
    }
}

INLINE void pack_keys_as(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                         const enum kv_dtype dtype)
{
    for (size_t k = 0; k < KEYS_BLOCK; k += LANES)
        for (size_t d = 0; d < stride; d += 32) {
            vec part[PARTS][LANES];
            UNROLL for (size_t i = 0; i < LANES; i++)
            {
                const float *scales = cells->key_scales + (k + i) * cells->scales;
                vec low = cell_widen(cells->keys[k + i], scales, d, head_dim - d, dtype), high = vec_set1(0);
                if (d + LANES < head_dim)
                    high = cell_widen(cells->keys[k + i], scales, d + LANES, head_dim - d - LANES, dtype);
                UNROLL for (size_t b = 0; b < PARTS; b++) part[b][i] =
                    _mm512_castsi512_ps(next_part(&low, &high));
            }
            for (size_t b = 0; b < PARTS; b++) {
                float *to = packed + b * (KEYS_BLOCK / 2) * stride + d / 2 * KEYS_BLOCK + k;
                vec_transpose(part[b]);
                UNROLL for (size_t i = 0; i < LANES; i++) vec_store(to + i * KEYS_BLOCK, part[b][i]);
            }
        }
}

/* Positions past the last are 0, up to the 32 that are multiplied together. */
INLINE void pack_values_as(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                           const enum kv_dtype dtype)
{
    for (size_t k = 0; k < cells->count || k % 32 != 0; k += 2)
        for (size_t d = 0; d < stride; d += LANES) {
            vec x[2] = {vec_set1(0), vec_set1(0)};
            for (size_t i = 0; i < 2 && k + i < cells->count && d < head_dim; i++)
                x[i] = cell_widen(cells->keys[k + i] + cells->distance,
                                  cells->value_scales + (k + i) * cells->scales, d, head_dim - d, dtype);
            for (size_t b = 0; b < PARTS; b++) {
                const __m512i even = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x[0])),
                              odd =
                                  _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x[1])),
                                                    16);
                x[0] = vec_sub(x[0], _mm512_castsi512_ps(_mm512_slli_epi32(even, 16)));
                x[1] = vec_sub(x[1], _mm512_castsi512_ps(odd));
                vec_store(packed + (b * (KEYS_BLOCK / 2) + k / 2) * stride + d,
                          _mm512_castsi512_ps(_mm512_or_si512(even, odd)));
            }
        }
}

#define PACK(what)                                                                                           \
    static void tile_pack_##what(float *packed, const struct cells *cells, size_t head_dim, size_t stride,   \
                                 enum kv_dtype dtype)                                                        \
    {                                                                                                        \
        if (PARTS == 2)                                                                                      \
            pack_##what##_as(packed, cells, head_dim, stride, KV_F16);                                       \
        else if (dtype == KV_Q8_0)                                                                           \
            pack_##what##_as(packed, cells, head_dim, stride, KV_Q8_0);                                      \
        else                                                                                                 \
            pack_##what##_as(packed, cells, head_dim, stride, KV_BF16);                                      \
    }
PACK(keys)
PACK(values)

/* One to three tiles of sums side by side: products of `steps` tiles of a, a_step bytes apart, and as many of
 * b. */
struct products {
    const char *a, *b;
    size_t a_part, a_step, a_stride, b_part, b_step, b_stride, steps;
};
INLINE void multiply(const struct products *p, const size_t tiles)
{
    for (size_t t = 0; t < TERMS; t++) {
        const char *a = p->a + term[t].a * p->a_part, *b = p->b + term[t].b * p->b_part;
        for (size_t s = 0; s < p->steps; s++, a += p->a_step, b += p->b_step) {
            TILE_LOAD(4, a, p->a_stride);
            TILE_LOAD(6, b, p->b_stride);
            TILE_DP(0, 4, 6);
            if (tiles > 1) {
                TILE_LOAD(6, b + 64, p->b_stride);
                TILE_DP(1, 4, 6);
            }
            if (tiles > 2) {
                TILE_LOAD(6, b + 128, p->b_stride);
                TILE_DP(2, 4, 6);
            }
        }
    }
}

/* How many of `left` tiles are taken together: no single one is left over. */
static inline size_t together(size_t left)
{
    return left > 4 || left == 3 ? 3 : left > 1 ? 2 : 1;
}

INLINE void scores_of(float *p, const struct products *of, const size_t tiles)
{
    TILE_ZERO(0);
    if (tiles > 1) TILE_ZERO(1);
    if (tiles > 2) TILE_ZERO(2);
    multiply(of, tiles);
    TILE_STORE(0, p, TILE_WEIGHTS * sizeof(float));
    if (tiles > 1) TILE_STORE(1, p + 16, TILE_WEIGHTS * sizeof(float));
    if (tiles > 2) TILE_STORE(2, p + 32, TILE_WEIGHTS * sizeof(float));
}

/* p[row][key] for the keys [lo, hi) of the block, and those that share a tile with them. */
static void tile_scores(float *p, const float *q, const float *keys, size_t head_dim, size_t stride,
                        uint32_t lo, uint32_t hi)
{
    const size_t end = (hi + 15) / 16;
    size_t tile = lo / 16;
    struct products of = {.a = (const char *)q,
                          .a_part = stride * TILE_ROWS * 2,
                          .a_step = 1024,
                          .a_stride = 64,
                          .b = (const char *)(keys + tile * 16),
                          .b_part = KEYS_BLOCK / 2 * stride * sizeof(float),
                          .b_step = 16 * KEYS_BLOCK * sizeof(float),
                          .b_stride = KEYS_BLOCK * sizeof(float),
                          .steps = stride / 32};
    (void)head_dim;
    TILE_FENCE();
    while (tile < end) {
        const size_t tiles = together(end - tile);
        float *to = p + tile * 16;
        if (tiles == 3)
            scores_of(to, &of, 3);
        else if (tiles == 2)
            scores_of(to, &of, 2);
        else
            scores_of(to, &of, 1);
        tile += tiles;
        of.b += tiles * 64;
    }
    TILE_FENCE();
}

INLINE void values_of(float *o, size_t stride, const struct products *of, const size_t tiles)
{
    TILE_LOAD(0, o, stride * sizeof(float));
    TILE_LOAD(1, o + 16, stride * sizeof(float));
    if (tiles > 2) TILE_LOAD(2, o + 32, stride * sizeof(float));
    multiply(of, tiles);
    TILE_STORE(0, o, stride * sizeof(float));
    TILE_STORE(1, o + 16, stride * sizeof(float));
    if (tiles > 2) TILE_STORE(2, o + 32, stride * sizeof(float));
}

/* o[row] = o[row] * fix[row] + sum over keys [lo, hi) of p[row][key] * value; the weights of other keys that
 * are taken together with those are 0. */
static void tile_values(float *o, size_t stride, const float *p, const float *fix, const float *values,
                        uint32_t lo, uint32_t hi)
{
    for (size_t r = 0; r < TILE_ROWS; r++)
        for (size_t d = 0; fix[r] != 1 && d < stride; d += LANES)
            vec_store(o + r * stride + d, vec_mul(vec_load(o + r * stride + d), vec_set1(fix[r])));
    const size_t first = lo / 32;
    struct products of = {.a = (const char *)(p + KEYS_BLOCK) + first * 64,
                          .a_part = KEYS_BLOCK * 2,
                          .a_step = 64,
                          .a_stride = TILE_WEIGHTS * sizeof(float),
                          .b = (const char *)(values + first * 16 * stride),
                          .b_part = KEYS_BLOCK / 2 * stride * sizeof(float),
                          .b_step = 16 * stride * sizeof(float),
                          .b_stride = stride * sizeof(float),
                          .steps = (hi + 31) / 32 - first};
    TILE_FENCE();
    for (size_t d = 0; d < stride;) { /* an even number of tiles: never a single one */
        const size_t tiles = together((stride - d) / 16);
        if (tiles == 3)
            values_of(o + d, stride, &of, 3);
        else
            values_of(o + d, stride, &of, 2);
        d += tiles * 16;
        of.b += tiles * 64;
    }
    TILE_FENCE();
}

#include "common/cpu/kernels/attention_simd.h"
