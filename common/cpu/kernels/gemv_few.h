/* A few tokens' products with single numbers, each token's bits those of one token's kernel (gemv_simd.h):
 * the same sums of even and odd vectors, for FEW_ROWS rows and up to FEW_TOKENS tokens in registers. Rows
 * that stay in L2 are used by all tokens before the next ones are read, so that weights cross memory once.
 *
 * Included by gemv_plain.h after gemv_simd.h and a decoder. */
#pragma once

/* Sums, weights and an x at once: 24 + 3 + 1 of 32 registers, 12 + 2 + 1 of 16. */
#define FEW_ROWS   (LANES == 16 ? 3 : 2)
#define FEW_TOKENS (LANES == 16 ? 4 : 3)
#define FEW_BYTES  ((size_t)96 << 10)

struct few_sums {
    vec even[4][3], odd[4][3]; /* [token][row] */
};

/* One vector of columns of R rows and T tokens into `sums`. */
INLINE void few_step(vec sums[4][3], const char *w, size_t row_bytes, const float *x, size_t ldx, size_t c,
                     size_t left, const size_t R, const size_t T, const enum tensor_format format)
{
    vec ws[3];
    UNROLL for (size_t r = 0; r < R; r++) ws[r] = decode_part(w + r * row_bytes, c, left, format);
    UNROLL for (size_t t = 0; t < T; t++)
    {
        const vec xs = left < LANES ? vec_load_part(x + t * ldx + c, left) : vec_load(x + t * ldx + c);
        UNROLL for (size_t r = 0; r < R; r++) sums[t][r] = vec_fmadd(ws[r], xs, sums[t][r]);
    }
}

/* The same columns of the next FEW_ROWS rows are fetched. */
INLINE void few_rows(float *y, size_t ldy, const char *w, const float *x, size_t ldx, size_t cols,
                     const bool fresh, const size_t R, const size_t T, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format);
    struct few_sums sums;
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t r = 0; r < R; r++) sums.even[t][r] =
        sums.odd[t][r] = vec_zero();
    size_t c = 0;
    for (; c + 2 * LANES <= cols; c += 2 * LANES) {
        if (fresh)
            UNROLL for (size_t r = 0; r < R; r++)
                _mm_prefetch((const char *)((uintptr_t)w + (FEW_ROWS + r) * row_bytes +
                                            decode_bytes(c, format)),
                             _MM_HINT_T1);
        few_step(sums.even, w, row_bytes, x, ldx, c, LANES, R, T, format);
        few_step(sums.odd, w, row_bytes, x, ldx, c + LANES, LANES, R, T, format);
    }
    for (; c < cols; c += LANES) few_step(sums.even, w, row_bytes, x, ldx, c, cols - c, R, T, format);
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t r = 0; r < R; r++) y[t * ldy + r] =
        vec_reduce_add(vec_add(sums.even[t][r], sums.odd[t][r]));
}

/* `rows` rows that stay in the cache, T tokens. */
INLINE void few_block(float *y, size_t ldy, const char *w, const float *x, size_t ldx, size_t rows,
                      size_t cols, const bool fresh, const size_t T, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format);
    size_t r = 0;
    for (; r + FEW_ROWS <= rows; r += FEW_ROWS)
        few_rows(y + r, ldy, w + r * row_bytes, x, ldx, cols, fresh, FEW_ROWS, T, format);
    for (; r < rows; r++) few_rows(y + r, ldy, w + r * row_bytes, x, ldx, cols, fresh, 1, T, format);
}

INLINE void few_tokens(float *y, size_t ldy, const char *w, const float *x, size_t ldx, size_t rows,
                       size_t cols, size_t tokens, const bool fresh, const enum tensor_format format)
{
    switch (tokens) {
    case 1:
        few_block(y, ldy, w, x, ldx, rows, cols, fresh, 1, format);
        return;
    case 2:
        few_block(y, ldy, w, x, ldx, rows, cols, fresh, 2, format);
        return;
#if LANES == 16
    case 3:
        few_block(y, ldy, w, x, ldx, rows, cols, fresh, 3, format);
        return;
#endif
    default:
        few_block(y, ldy, w, x, ldx, rows, cols, fresh, FEW_TOKENS, format);
    }
}

INLINE void gemv_few(float *y, size_t ldy, const char *w, const float *x, size_t ldx, size_t rows,
                     size_t cols, size_t tokens, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format),
                 block = FEW_BYTES / row_bytes / FEW_ROWS * FEW_ROWS + FEW_ROWS;
    for (size_t r = 0; r < rows; r += block) {
        const size_t count = rows - r < block ? rows - r : block;
        for (size_t t = 0; t < tokens; t += FEW_TOKENS) {
            const size_t here = tokens - t < FEW_TOKENS ? tokens - t : FEW_TOKENS;
            if (t)
                few_tokens(y + t * ldy + r, ldy, w + r * row_bytes, x + t * ldx, ldx, count, cols, here,
                           false, format);
            else
                few_tokens(y + r, ldy, w + r * row_bytes, x, ldx, count, cols, here, true, format);
        }
    }
}
