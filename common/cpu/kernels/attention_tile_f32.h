/* The tile kernels of attention in fp32: a block's keys and values are converted once, then multiplied as
 * fp32. Included by attention_avx2.c and attention_avx512.c between their vectors and
 * attention_simd.h.
 *
 * - queries: [tile][dimension][TILE_ROWS], scaled; a column is TILE_ROWS broadcasts in a row
 * - keys: [chunk of CHUNK keys][dimension][CHUNK], so that lanes are keys and no sum crosses lanes
 * - values: [key][stride], lanes are dimensions
 *
 * TILE_ROWS x TILE_VECS accumulators stay in registers over the whole inner loop. */
#ifndef HELM_COMMON_CPU_KERNELS_ATTENTION_TILE_F32_H
#define HELM_COMMON_CPU_KERNELS_ATTENTION_TILE_F32_H

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

INLINE void pack_keys_as(float *packed, const char *const *keys, size_t head_dim, size_t stride,
                         const enum dtype dtype)
{
    for (size_t k = 0; k < KEYS_BLOCK; k += LANES) {
        float *to = packed + k / CHUNK * CHUNK * stride + k % CHUNK;
        for (size_t d = 0; d < head_dim; d += LANES) {
            vec x[LANES];
            UNROLL for (size_t i = 0; i < LANES; i++) x[i] = lanes_widen(keys[k + i], d, head_dim - d, dtype);
            vec_transpose(x);
            /* Rows of the padding (d >= head_dim) are written too: the chunk has `stride` rows. */
            UNROLL for (size_t i = 0; i < LANES; i++) vec_store(to + (d + i) * CHUNK, x[i]);
        }
    }
}

static void tile_pack_keys(float *packed, const char *const *keys, size_t head_dim, size_t stride,
                           enum dtype dtype)
{
    if (dtype == DTYPE_BF16)
        pack_keys_as(packed, keys, head_dim, stride, DTYPE_BF16);
    else if (dtype == DTYPE_F16)
        pack_keys_as(packed, keys, head_dim, stride, DTYPE_F16);
    else
        pack_keys_as(packed, keys, head_dim, stride, DTYPE_F32);
}

INLINE void pack_values_as(float *packed, const char *const *keys, size_t distance, size_t count,
                           size_t head_dim, size_t stride, const enum dtype dtype)
{
    for (size_t k = 0; k < count; k++)
        for (size_t d = 0; d < head_dim; d += LANES)
            vec_store(packed + k * stride + d, lanes_widen(keys[k] + distance, d, head_dim - d, dtype));
}

static void tile_pack_values(float *packed, const char *const *keys, size_t distance, size_t count,
                             size_t head_dim, size_t stride, enum dtype dtype)
{
    if (dtype == DTYPE_BF16)
        pack_values_as(packed, keys, distance, count, head_dim, stride, DTYPE_BF16);
    else if (dtype == DTYPE_F16)
        pack_values_as(packed, keys, distance, count, head_dim, stride, DTYPE_F16);
    else
        pack_values_as(packed, keys, distance, count, head_dim, stride, DTYPE_F32);
}

INLINE void scores_of(float *p, const float *q, const float *keys, size_t head_dim, const size_t vecs)
{
    vec acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] =
        vec_set1(0);
    for (size_t d = 0; d < head_dim; d++) {
        vec k[TILE_VECS];
        UNROLL for (size_t v = 0; v < vecs; v++) k[v] = vec_load(keys + d * CHUNK + v * LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        {
            vec x = vec_set1(q[d * TILE_ROWS + r]);
            UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] = vec_fmadd(x, k[v], acc[r][v]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++)
        vec_store(p + r * KEYS_BLOCK + v * LANES, acc[r][v]);
}

/* p[row][key] for the keys [lo, hi) of the block (and those that share a vector with them). */
static void tile_scores(float *p, const float *q, const float *keys, size_t head_dim, size_t stride,
                        uint32_t lo, uint32_t hi)
{
    for (size_t k = lo / CHUNK * CHUNK; k < hi; k += CHUNK) {
        size_t vecs = (hi - k + LANES - 1) / LANES;
        const float *chunk = keys + k * stride;
        if (vecs >= TILE_VECS)
            scores_of(p + k, q, chunk, head_dim, TILE_VECS);
        else if (vecs == 3)
            scores_of(p + k, q, chunk, head_dim, TILE_VECS < 3 ? TILE_VECS : 3);
        else if (vecs == 2)
            scores_of(p + k, q, chunk, head_dim, 2);
        else
            scores_of(p + k, q, chunk, head_dim, 1);
    }
}

INLINE void values_of(float *o, size_t stride, const float *p, const float *fix, const float *values,
                      uint32_t lo, uint32_t hi, const size_t vecs)
{
    vec acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] =
        vec_mul(vec_load(o + r * stride + v * LANES), vec_set1(fix[r]));
    for (size_t k = lo; k < hi; k++) {
        vec x[TILE_VECS];
        UNROLL for (size_t v = 0; v < vecs; v++) x[v] = vec_load(values + k * stride + v * LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        {
            vec w = vec_set1(p[r * KEYS_BLOCK + k]);
            UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] = vec_fmadd(w, x[v], acc[r][v]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++)
        vec_store(o + r * stride + v * LANES, acc[r][v]);
}

/* o[row] = o[row] * fix[row] + sum over keys [lo, hi) of p[row][key] * value. */
static void tile_values(float *o, size_t stride, const float *p, const float *fix, const float *values,
                        uint32_t lo, uint32_t hi)
{
    size_t d = 0;
    for (; d + CHUNK <= stride; d += CHUNK) values_of(o + d, stride, p, fix, values + d, lo, hi, TILE_VECS);
    switch ((stride - d) / LANES) {
    case 3:
        values_of(o + d, stride, p, fix, values + d, lo, hi, TILE_VECS < 3 ? TILE_VECS : 3);
        break;
    case 2:
        values_of(o + d, stride, p, fix, values + d, lo, hi, 2);
        break;
    case 1:
        values_of(o + d, stride, p, fix, values + d, lo, hi, 1);
        break;
    default:
        break;
    }
}

#endif
