/* Rows of one token with activations of 8 bits, of a few tokens with the same bits, and the table of a file's kernels of
 * them. A few tokens' rows are unpacked once for FEW_TOKENS of them. Included behind
 *   order_as, add_chunk                  of the format that is their last argument; add_chunk takes some blocks of 32
 *                                        columns of S rows, all of a chunk's or a row's last ones, of T tokens
 *   FEW_ROWS, FEW_TOKENS                 whose sums are in registers at once
 *   CHUNK, size_t chunk_x_bytes(format)  columns that x is ordered by, and their bytes
 *   NAME, FEATURES                       of the kernels
 *   KERNELS                              their table, by the formats' numbers in int8.h */
#ifndef HELM_COMMON_CPU_KERNELS_INT8_GEMV_H
#define HELM_COMMON_CPU_KERNELS_INT8_GEMV_H

#include "common/cpu/kernels/variants.h"

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format), chunk_bytes = decode_bytes(CHUNK, format);
    const uint8_t *at = (const uint8_t *)w;
    const char *xs = (const char *)x;
    vec total[GEMV_STREAMS], least[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) total[s] = least[s] = vec_zero();
    size_t c = 0;
    for (; c + CHUNK <= cols; c += CHUNK, at += chunk_bytes, xs += chunk_x_bytes(format)) {
        const struct gemv_ahead ahead = gemv_ahead(path, (uintptr_t)w, decode_bytes(c, format), stride);
        UNROLL for (size_t s = 0; s < S; s++) gemv_fetch(ahead, s, chunk_bytes, two_levels);
        add_chunk(total, least, at, stride, xs, 0, 8, S, 1, format);
    }
    if (block_values(format) < CHUNK && c < cols)
        add_chunk(total, least, at, stride, xs, 0, (cols - c) / INT8_BLOCK, S, 1, format);
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] =
        vec_reduce_add(has_least(format) ? vec_add(total[s], least[s]) : total[s]);
}

/* S neighbouring rows of T tokens. */
INLINE void few_rows(float *y, size_t ldy, const char *w, const char *x, size_t ldx, size_t cols,
                     const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t stride = decode_bytes(cols, format), chunk_bytes = decode_bytes(CHUNK, format);
    const uint8_t *at = (const uint8_t *)w;
    vec total[FEW_ROWS * FEW_TOKENS], least[FEW_ROWS * FEW_TOKENS];
    UNROLL for (size_t i = 0; i < S * T; i++) total[i] = least[i] = vec_zero();
    size_t c = 0;
    for (; c + CHUNK <= cols; c += CHUNK, at += chunk_bytes, x += chunk_x_bytes(format)) {
        UNROLL for (size_t s = 0; s < S; s++) for (size_t i = 0; i < chunk_bytes; i += 64)
            _mm_prefetch((const char *)at + s * stride + GEMV_NEAR + i, _MM_HINT_T0);
        add_chunk(total, least, at, stride, x, ldx, 8, S, T, format);
    }
    if (block_values(format) < CHUNK && c < cols)
        add_chunk(total, least, at, stride, x, ldx, (cols - c) / INT8_BLOCK, S, T, format);
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t s = 0; s < S; s++)
    {
        const size_t i = t * S + s;
        y[t * ldy + s] = vec_reduce_add(has_least(format) ? vec_add(total[i], least[i]) : total[i]);
    }
}

INLINE void few_block(float *y, size_t ldy, const char *w, const char *x, size_t ldx, size_t rows,
                      size_t cols, const size_t T, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format);
    size_t r = 0;
    for (; FEW_ROWS > 1 && r + FEW_ROWS <= rows; r += FEW_ROWS)
        few_rows(y + r, ldy, w + r * row_bytes, x, ldx, cols, FEW_ROWS, T, format);
    for (; r < rows; r++) few_rows(y + r, ldy, w + r * row_bytes, x, ldx, cols, 1, T, format);
}

/* FEW_TOKENS at a time, then two, then one: each is a function of its own. */
INLINE void few(float *y, size_t ldy, const char *w, const char *x, size_t ldx, size_t rows, size_t cols,
                size_t tokens, const enum tensor_format format)
{
    size_t t = 0;
    for (; t + FEW_TOKENS <= tokens; t += FEW_TOKENS)
        few_block(y + t * ldy, ldy, w, x + t * ldx, ldx, rows, cols, FEW_TOKENS, format);
    for (; t + 2 <= tokens; t += 2) few_block(y + t * ldy, ldy, w, x + t * ldx, ldx, rows, cols, 2, format);
    if (t < tokens) few_block(y + t * ldy, ldy, w, x + t * ldx, ldx, rows, cols, 1, format);
}

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    static void format_##_order(float *to, const float *x, size_t cols)                                      \
    {                                                                                                        \
        order_as(to, x, cols, FORMAT_##FORMAT_NAME);                                                         \
    }                                                                                                        \
    static size_t format_##_ordered_bytes(size_t cols)                                                       \
    {                                                                                                        \
        return (cols + CHUNK - 1) / CHUNK * chunk_x_bytes(FORMAT_##FORMAT_NAME);                             \
    }                                                                                                        \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, FORMAT_##FORMAT_NAME);                                              \
    }                                                                                                        \
    static void format_##_few(float *y, size_t ldy, const void *w, const float *x, size_t ldx, size_t rows,  \
                              size_t cols, size_t tokens)                                                    \
    {                                                                                                        \
        few(y, ldy, w, (const char *)x, ldx * sizeof(float), rows, cols, tokens, FORMAT_##FORMAT_NAME);      \
    }
INT8_FORMATS(FUNCTIONS)

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [INT8_##FORMAT_NAME] = {.name = NAME,                                                                    \
                            .features = FEATURES,                                                            \
                            .inputs = LINEAR_INT8,                                                           \
                            .format = FORMAT_##FORMAT_NAME,                                                  \
                            .schedule = LINEAR_ONE_TOKEN,                                                    \
                            .gemv = format_##_gemv,                                                          \
                            .few = format_##_few,                                                            \
                            .streams = GEMV_STREAMS,                                                         \
                            .order = format_##_order,                                                        \
                            .ordered_bytes = format_##_ordered_bytes},
const struct linear_kernel KERNELS[INT8_FORMAT_COUNT] = {INT8_FORMATS(ROW)};

#endif
