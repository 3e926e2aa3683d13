/* The products of attention's tiles, for operands of any type: TILE_ROWS x TILE_VECS accumulators stay in
 * registers over the whole inner loop.
 *
 * Included once by an attention_<isa>.c, which defines CHUNK (keys of a chunk) and
 *   tile_operand                          what is multiplied: a vector
 *   tile_operand_at(p), tile_broadcast(p) read from p whole, or the four bytes there in every lane
 *   tile_multiply(acc, x, y)              acc + x * y, lane by lane
 *   TILE_TOGETHER                         how many numbers four bytes of an operand hold: that many
 *                                         dimensions or keys are one step */
#pragma once

INLINE void scores_of(float *p, const float *q, const float *keys, size_t steps, const size_t vecs)
{
    vec acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] =
        vec_set1(0);
    for (size_t d = 0; d < steps; d++) {
        tile_operand k[TILE_VECS];
        UNROLL for (size_t v = 0; v < vecs; v++) k[v] = tile_operand_at(keys + d * CHUNK + v * LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        {
            tile_operand x = tile_broadcast(q + d * TILE_ROWS + r);
            UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] = tile_multiply(acc[r][v], x, k[v]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++)
        vec_store(p + r * KEYS_BLOCK + v * LANES, acc[r][v]);
}

/* p[row][key] for the keys [lo, hi) of the block (and those that share a vector with them). */
static void tile_scores(float *p, const float *q, const float *keys, size_t head_dim, size_t stride,
                        uint32_t lo, uint32_t hi)
{
    const size_t steps = (head_dim + TILE_TOGETHER - 1) / TILE_TOGETHER;
    for (size_t k = lo / CHUNK * CHUNK; k < hi; k += CHUNK) {
        size_t vecs = (hi - k + LANES - 1) / LANES;
        const float *chunk = keys + k * stride;
        if (vecs >= TILE_VECS)
            scores_of(p + k, q, chunk, steps, TILE_VECS);
        else if (vecs == 3)
            scores_of(p + k, q, chunk, steps, TILE_VECS < 3 ? TILE_VECS : 3);
        else if (vecs == 2)
            scores_of(p + k, q, chunk, steps, 2);
        else
            scores_of(p + k, q, chunk, steps, 1);
    }
}

INLINE void values_of(float *o, size_t stride, const float *p, const float *fix, const float *values,
                      uint32_t lo, uint32_t hi, const size_t vecs)
{
    vec acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] =
        vec_mul(vec_load(o + r * stride + v * LANES), vec_set1(fix[r]));
    for (size_t k = lo; k < hi; k++) {
        tile_operand x[TILE_VECS];
        UNROLL for (size_t v = 0; v < vecs; v++) x[v] = tile_operand_at(values + k * stride + v * LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        {
            tile_operand w = tile_broadcast(p + r * KEYS_BLOCK + k);
            UNROLL for (size_t v = 0; v < vecs; v++) acc[r][v] = tile_multiply(acc[r][v], w, x[v]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t v = 0; v < vecs; v++)
        vec_store(o + r * stride + v * LANES, acc[r][v]);
}

/* o[row] = o[row] * fix[row] + sum over keys [lo, hi) of p[row][key] * value; the weights of other keys that
 * are taken together with those are 0. */
static void tile_values(float *o, size_t stride, const float *p, const float *fix, const float *values,
                        uint32_t lo, uint32_t hi)
{
    size_t d = 0;
    lo = lo / TILE_TOGETHER;
    hi = (hi + TILE_TOGETHER - 1) / TILE_TOGETHER;
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
