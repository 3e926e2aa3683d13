/* Common to several kernels over the vectors of lanes256.h or lanes512.h, one of which includes this at its
 * end. */
#pragma once

#include <stdbool.h>

INLINE size_t lanes_round_up(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* Numbers i .. i + LANES - 1 of a row as floats, `left` of them that count. */
INLINE vec lanes_widen(const char *row, size_t i, size_t left, const enum dtype dtype)
{
    return vec_widen_part(row + i * (dtype == DTYPE_F32 ? 4 : 2), left, dtype);
}

/* y[t * ldy + r] (+)= c[r * LANES + t] for r < rows <= LANES, t < tokens <= LANES. */
static inline void lanes_store_transposed(float *y, size_t ldy, const float *c, size_t rows, size_t tokens,
                                          bool accumulate)
{
    vec m[LANES];
    UNROLL for (size_t i = 0; i < LANES; i++) m[i] = vec_load(c + i * LANES);
    vec_transpose(m);
    UNROLL for (size_t t = 0; t < LANES; t++)
    {
        if (t >= tokens) return;
        float *out = y + t * ldy;
        vec_store_part(out, rows, accumulate ? vec_add(m[t], vec_load_part(out, rows)) : m[t]);
    }
}
