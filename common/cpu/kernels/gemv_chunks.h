/* One token's products of blocks, chunk of columns by chunk, and a few tokens' with the same bits: a chunk of
 * a few tokens' rows is unpacked once for all of them.
 *
 * Included after lanes256.h or lanes512.h, and gemv_streams.h, by files that define, of their format (a
 * constant wherever it is inlined):
 *   CHUNK(format), size_t chunk_x_bytes(format)   columns of a chunk: of all but a row's last one, and of
 *                                                 what order makes of a token's x
 *   add_chunk(total, least, w, stride, x, ldx, cols, S, T, format)
 *                                                 adds `cols` columns, CHUNK or a row's last ones, of S rows,
 *                                                   `stride` bytes apart, and
 *                                                 T tokens, ldx bytes apart, to their sums, [token][row]:
 *                                                   each the same way whatever
 *                                                 S and T are
 *   vec row_sum(total, least, format)             whose lanes are added in the end
 *   bool has_two_sums(format)                     whether it takes both
 *   FEW_ROWS, FEW_TOKENS                          whose sums are in registers at once; tokens: 4 or 8 */
#pragma once

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format), chunk = CHUNK(format),
                 chunk_bytes = decode_bytes(chunk, format);
    const uint8_t *at = (const uint8_t *)w;
    const char *xs = (const char *)x;
    vec total[GEMV_STREAMS], least[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) total[s] = least[s] = vec_zero();
    size_t c = 0;
    for (; c + chunk <= cols; c += chunk, at += chunk_bytes, xs += chunk_x_bytes(format)) {
        const struct gemv_ahead ahead = gemv_ahead(path, (uintptr_t)w, decode_bytes(c, format), stride);
        UNROLL for (size_t s = 0; s < S; s++) gemv_fetch(ahead, s, chunk_bytes, two_levels);
        add_chunk(total, least, at, stride, xs, 0, chunk, S, 1, format);
    }
    if (block_values(format) < chunk && c < cols)
        add_chunk(total, least, at, stride, xs, 0, cols - c, S, 1, format);
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] =
        vec_reduce_add(row_sum(total[s], least[s], format));
}

/* A few tokens: FEW_GROUP rows are multiplied with as many columns as stay in L1 of all T tokens, before the
 * next columns: an x in L2 could not be read as fast as it is multiplied. In between sums stand in memory. */
#define FEW_GROUP   8
#define FEW_X_BYTES 20480

struct few_sums {
    vec total[FEW_ROWS * FEW_TOKENS], least[FEW_ROWS * FEW_TOKENS];
};

/* Columns [from, to) of S neighbouring rows of T tokens; at the end of the row their sums to y. The same
 * columns of the next group are fetched. */
INLINE void few_rows(float *y, size_t ldy, struct few_sums *sums, const char *w, const char *x, size_t ldx,
                     size_t cols, size_t from, size_t to, const size_t S, const size_t T,
                     const enum tensor_format format)
{
    const size_t stride = decode_bytes(cols, format), chunk = CHUNK(format),
                 chunk_bytes = decode_bytes(chunk, format);
    const uint8_t *at = (const uint8_t *)w + decode_bytes(from, format);
    vec total[FEW_ROWS * FEW_TOKENS], least[FEW_ROWS * FEW_TOKENS];
    UNROLL for (size_t i = 0; i < S * T; i++)
    {
        total[i] = from ? sums->total[i] : vec_zero();
        if (has_two_sums(format)) least[i] = from ? sums->least[i] : vec_zero();
    }
    x += from / chunk * chunk_x_bytes(format);
    size_t c = from;
    for (; c + chunk <= to; c += chunk, at += chunk_bytes, x += chunk_x_bytes(format)) {
        UNROLL for (size_t s = 0; s < S; s++) for (size_t i = 0; i < chunk_bytes; i += 64)
            _mm_prefetch((const char *)((uintptr_t)at + (FEW_GROUP + s) * stride + i), _MM_HINT_T1);
        add_chunk(total, least, at, stride, x, ldx, chunk, S, T, format);
    }
    const bool rest = block_values(format) < chunk && c < to;
    if (to < cols || rest) UNROLL for (size_t i = 0; i < S * T; i++)
        {
            sums->total[i] = total[i];
            if (has_two_sums(format)) sums->least[i] = least[i];
        }
    if (rest) { /* one by one, or it would be half of the code */
        for (size_t i = 0; i < S * T; i++) {
            add_chunk(&sums->total[i], &sums->least[i], at + i % S * stride, stride, x + i / S * ldx, ldx,
                      to - c, 1, 1, format);
            y[i / S * ldy + i % S] = vec_reduce_add(row_sum(sums->total[i], sums->least[i], format));
        }
    } else if (to == cols) {
        UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t s = 0; s < S; s++) y[t * ldy + s] =
            vec_reduce_add(row_sum(total[t * S + s], least[t * S + s], format));
    }
}

/* T tokens; rows in whole FEW_ROWS. */
INLINE void few_block(float *y, size_t ldy, const char *w, const char *x, size_t ldx, size_t rows,
                      size_t cols, const size_t T, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format), x_bytes = T * chunk_x_bytes(format),
                 tile = (x_bytes < FEW_X_BYTES ? FEW_X_BYTES / x_bytes : 1) * CHUNK(format);
    struct few_sums sums[FEW_GROUP / FEW_ROWS];
    size_t r = 0;
    for (size_t here; r + FEW_ROWS <= rows; r += here) {
        here = rows - r < FEW_GROUP ? (rows - r) / FEW_ROWS * FEW_ROWS : FEW_GROUP;
        for (size_t from = 0, to; from < cols; from = to) {
            to = cols - from < tile ? cols : from + tile;
            for (size_t i = 0; i < here; i += FEW_ROWS)
                few_rows(y + r + i, ldy, &sums[i / FEW_ROWS], w + (r + i) * row_bytes, x, ldx, cols, from, to,
                         FEW_ROWS, T, format);
        }
    }
}

/* All but an odd last token; rows in whole FEW_ROWS. Returns how many tokens. */
INLINE size_t few(float *y, size_t ldy, const char *w, const char *x, size_t ldx, size_t rows, size_t cols,
                  size_t tokens, const enum tensor_format format)
{
    size_t t = 0;
    for (; t + FEW_TOKENS <= tokens; t += FEW_TOKENS)
        few_block(y + t * ldy, ldy, w, x + t * ldx, ldx, rows, cols, FEW_TOKENS, format);
    if (FEW_TOKENS > 4 && t + 4 <= tokens) {
        few_block(y + t * ldy, ldy, w, x + t * ldx, ldx, rows, cols, 4, format);
        t += 4;
    }
    if (t + 2 <= tokens) {
        few_block(y + t * ldy, ldy, w, x + t * ldx, ldx, rows, cols, 2, format);
        t += 2;
    }
    return t;
}

/* Functions of a format: what the tables of linear.c know. */
#define GEMV_FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                           \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, FORMAT_##FORMAT_NAME);                                              \
    }                                                                                                        \
    static void format_##_few(float *y, size_t ldy, const void *w, const float *x, size_t ldx, size_t rows,  \
                              size_t cols, size_t tokens)                                                    \
    {                                                                                                        \
        const size_t whole = rows / FEW_ROWS * FEW_ROWS,                                                     \
                     done = few(y, ldy, w, (const char *)x, ldx * sizeof(float), whole, cols, tokens,        \
                                FORMAT_##FORMAT_NAME);                                                       \
        const char *last = (const char *)w + whole * decode_bytes(cols, FORMAT_##FORMAT_NAME);               \
        if (done < tokens) format_##_gemv(y + done * ldy, w, x + done * ldx, whole, cols, NULL);             \
        for (size_t t = 0; t < tokens && whole < rows; t++)                                                  \
            format_##_gemv(y + t * ldy + whole, last, x + t * ldx, rows - whole, cols, NULL);                \
    }
