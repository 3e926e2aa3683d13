/* The tile kernels of attention in fp32: a block's keys and values are converted once, then multiplied as
 * fp32. Included by attention_avx2.c and attention_avx512.c between their vectors and
 * attention_simd.h.
 *
 * - queries: [tile][dimension][TILE_ROWS], scaled; a column is TILE_ROWS broadcasts in a row
 * - keys: [chunk of CHUNK keys][dimension][CHUNK], so that lanes are keys and no sum crosses lanes
 * - values: [key][stride], lanes are dimensions
 *
 * The products are in attention_tile.h. */
#pragma once

#include "common/cpu/kernels/attention_cells.h"

#define CHUNK ((size_t)TILE_VECS * LANES)

static inline vec tile_put(float *p, size_t at, vec w)
{
    vec_store(p + at, w);
    return w;
}

static void tile_pack_queries(float *packed, const struct attention_task *task, size_t first, size_t rows,
                              size_t stride)
{
    size_t head_dim = task->kv->head_dim;
    for (size_t r = 0; r < rows || r % TILE_ROWS != 0; r++) {
        float *to = packed + r / TILE_ROWS * TILE_ROWS * stride + r % TILE_ROWS;
        if (r >= rows) {
            for (size_t d = 0; d < head_dim; d++) to[d * TILE_ROWS] = 0;
            continue;
        }
        size_t row = first + r;
        const float *from = task->q + row / task->group * task->q_stride + row % task->group * head_dim;
        for (size_t d = 0; d < head_dim; d++) to[d * TILE_ROWS] = from[d] * task->scale;
    }
}

INLINE void pack_keys_as(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                         const enum kv_dtype dtype)
{
    for (size_t k = 0; k < KEYS_BLOCK; k += LANES) {
        float *to = packed + k / CHUNK * CHUNK * stride + k % CHUNK;
        for (size_t d = 0; d < head_dim; d += LANES) {
            vec x[LANES];
            UNROLL for (size_t i = 0; i < LANES; i++) x[i] =
                cell_widen(cells->keys[k + i], cells->key_scales + (k + i) * cells->scales, d, head_dim - d,
                           dtype);
            vec_transpose(x);
            /* Rows of the padding (d >= head_dim) are written too: the chunk has `stride` rows. */
            UNROLL for (size_t i = 0; i < LANES; i++) vec_store(to + (d + i) * CHUNK, x[i]);
        }
    }
}

static void tile_pack_keys(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                           enum kv_dtype dtype)
{
    if (dtype == KV_BF16)
        pack_keys_as(packed, cells, head_dim, stride, KV_BF16);
    else if (dtype == KV_F16)
        pack_keys_as(packed, cells, head_dim, stride, KV_F16);
    else if (dtype == KV_Q8_0)
        pack_keys_as(packed, cells, head_dim, stride, KV_Q8_0);
    else
        pack_keys_as(packed, cells, head_dim, stride, KV_F32);
}

INLINE void pack_values_as(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                           const enum kv_dtype dtype)
{
    for (size_t k = 0; k < cells->count; k++)
        for (size_t d = 0; d < head_dim; d += LANES)
            vec_store(packed + k * stride + d,
                      cell_widen(cells->keys[k] + cells->distance, cells->value_scales + k * cells->scales, d,
                                 head_dim - d, dtype));
}

static void tile_pack_values(float *packed, const struct cells *cells, size_t head_dim, size_t stride,
                             enum kv_dtype dtype)
{
    if (dtype == KV_BF16)
        pack_values_as(packed, cells, head_dim, stride, KV_BF16);
    else if (dtype == KV_F16)
        pack_values_as(packed, cells, head_dim, stride, KV_F16);
    else if (dtype == KV_Q8_0)
        pack_values_as(packed, cells, head_dim, stride, KV_Q8_0);
    else
        pack_values_as(packed, cells, head_dim, stride, KV_F32);
}

typedef vec tile_operand;
#define tile_operand_at          vec_load
#define tile_broadcast(p)        vec_set1(*(p))
#define tile_multiply(acc, x, y) vec_fmadd(x, y, acc)
#define TILE_TOGETHER            1
#include "common/cpu/kernels/attention_tile.h"
