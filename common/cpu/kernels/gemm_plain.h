/* Several tokens' products with single numbers, activations and sums in fp32. Up to DOT_TOKENS tokens run as
 * dot products over several tokens at once; more tokens become vector lanes (outer.h), of the steady kernels
 * all. Included once by gemm_avx2.c and gemm_avx512.c after their vectors, which define NAME, FEATURES,
 * ENTRIES (the table that linear.c knows), DOT_TOKENS, DOT_WIDE and OUTER_PANELS. */
#include "common/cpu/kernels/decode_plain.h"
#include "common/cpu/kernels/variants.h"

#define DOT_BLOCK_BYTES ((size_t)192 << 10)

/* ---- a few tokens: dot products; tiled is [token][cols] fp32 ---- */

INLINE void dot_rows(float *y, size_t ldy, size_t row_stride, const char *w, const float *x, size_t cols,
                     bool accumulate, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t size = decode_bytes(1, format), stride = row_stride * cols * size;
    vec acc[4 * DOT_WIDE];
    UNROLL for (size_t i = 0; i < S * T; i++) acc[i] = vec_zero();
    size_t c = 0;
    for (; c + LANES <= cols; c += LANES) {
        vec ws[4];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            if (LANES == 16 || c * size % 64 == 0)
                _mm_prefetch(w + s * stride + c * size + GEMV_NEAR, _MM_HINT_T0);
            ws[s] = decode_part(w + s * stride, c, LANES, format);
        }
        UNROLL for (size_t t = 0; t < T; t++)
        {
            const vec xs = vec_load(x + t * cols + c);
            UNROLL for (size_t s = 0; s < S; s++) acc[t * S + s] = vec_fmadd(ws[s], xs, acc[t * S + s]);
        }
    }
    if (c < cols) UNROLL for (size_t s = 0; s < S; s++)
        {
            const vec ws = decode_part(w + s * stride, c, cols - c, format);
            UNROLL for (size_t t = 0; t < T; t++) acc[t * S + s] =
                vec_fmadd(ws, vec_load_part(x + t * cols + c, cols - c), acc[t * S + s]);
        }
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t s = 0; s < S; s++)
    {
        float *out = y + t * ldy + s * row_stride, sum = vec_reduce_add(acc[t * S + s]);
        *out = accumulate ? *out + sum : sum;
    }
}

INLINE void dot_gemm(float *y, size_t ldy, const char *w, const float *x, size_t rows, size_t cols,
                     bool accumulate, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format), each = rows / S;
    for (size_t r = 0; r < each; r++)
        dot_rows(y + r, ldy, each, w + r * row_bytes, x, cols, accumulate, S, T, format);
    for (size_t r = each * S; r < rows; r++)
        dot_rows(y + r, ldy, 1, w + r * row_bytes, x, cols, accumulate, 1, T, format);
}

/* At most DOT_TOKENS / 2 tokens. */
INLINE void dot_tokens(float *y, size_t ldy, const char *w, const float *x, size_t rows, size_t cols,
                       size_t tokens, bool accumulate, const enum tensor_format format)
{
#define DOT_CASE(T)                                                                                          \
    case T:                                                                                                  \
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, T <= DOT_WIDE ? 4 : 3, T, format);                    \
        return
    switch (tokens) {
        DOT_CASE(1);
        DOT_CASE(2);
        DOT_CASE(3);
        DOT_CASE(4);
#if DOT_TOKENS > 8
        DOT_CASE(5);
        DOT_CASE(6);
        DOT_CASE(7);
        DOT_CASE(8);
#endif
    default:
        __builtin_unreachable();
    }
}

/* More than half of DOT_TOKENS take two passes over blocks of rows that stay in L2 meanwhile. */
INLINE void dot_passes(float *y, size_t ldy, const char *w, const float *x, size_t rows, size_t cols,
                       size_t tokens, bool accumulate, const enum tensor_format format)
{
    const size_t first = tokens > DOT_TOKENS / 2 ? (tokens + 1) / 2 : tokens,
                 row_bytes = decode_bytes(cols, format);
    const size_t block = tokens == first ? rows : DOT_BLOCK_BYTES / row_bytes / 12 * 12 + 12;
    for (size_t r = 0; r < rows; r += block) {
        size_t count = rows - r < block ? rows - r : block;
        for (size_t t = 0; t < tokens; t += first) /* one call: what it inlines is long to compile */
            dot_tokens(y + r + t * ldy, ldy, w + r * row_bytes, x + t * cols, count, cols,
                       tokens - t < first ? tokens - t : first, accumulate, format);
    }
}

/* ---- more tokens: lanes ---- */

INLINE vec outer_step(vec acc, vec x, const void *w)
{
    float value;
    memcpy(&value, w, sizeof value);
    return vec_fmadd(x, vec_set1(value), acc);
}
#define outer_half_step outer_step /* fp32 has none */
#include "common/cpu/kernels/outer.h"

INLINE void convert(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count,
                    const enum tensor_format format)
{
    for (size_t r = 0; r < rows; r++) {
        const char *row = w + r * row_bytes + decode_bytes(first, format);
        float *to = out + r * OUTER_STRIDE;
        size_t i = 0;
        for (; i + LANES <= count; i += LANES) {
            if (i % 32 == 0 || LANES == 16)
                _mm_prefetch(row + decode_bytes(i, format) + GEMV_NEAR, _MM_HINT_T0);
            vec_store(to + i, decode_part(row, i, LANES, format));
        }
        if (i < count) vec_store(to + i, decode_part(row, i, count - i, format));
    }
}

static void convert_bf16(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count)
{
    convert(out, w, row_bytes, rows, first, count, FORMAT_BF16);
}

static void convert_f16(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count)
{
    convert(out, w, row_bytes, rows, first, count, FORMAT_F16);
}

static size_t steady_tiled_bytes(size_t tokens, size_t cols)
{
    return lanes_round_up(tokens) * cols * sizeof(float);
}

static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return tokens <= DOT_TOKENS ? tokens * cols * sizeof(float) : steady_tiled_bytes(tokens, cols);
}

static void steady_tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                        size_t last, size_t col_first, size_t col_last)
{
    (void)tokens;
    for (size_t t0 = first; t0 < last; t0 += LANES) {
        float *panel = (float *)tiled + t0 * cols;
        const float *from = x + (t0 - first) * ldx;
        for (size_t c = col_first; c < col_last; c += LANES, from += LANES) {
            vec m[LANES];
            UNROLL for (size_t t = 0; t < LANES; t++) m[t] =
                t0 + t < last ? vec_load_part(from + t * ldx, col_last - c) : vec_zero();
            vec_transpose(m);
            UNROLL for (size_t i = 0; i < LANES; i++) if (c + i < col_last)
                vec_store(panel + (c + i) * LANES, m[i]);
        }
    }
}

static void tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                 size_t last, size_t col_first, size_t col_last)
{
    if (tokens > DOT_TOKENS)
        steady_tile(tiled, x, ldx, tokens, cols, first, last, col_first, col_last);
    else
        linear_ref_tile(tiled, x, ldx, tokens, cols, first, last, col_first, col_last);
}

INLINE void steady_gemm(float *y, size_t ldy, const char *w, const void *tiled, size_t rows, size_t cols,
                        size_t tokens, bool accumulate, void *scratch, const enum tensor_format format)
{
    struct outer_gemm g = {.w = w,
                           .row_bytes = decode_bytes(cols, format),
                           .steps = cols,
                           .panel_bytes = cols * LANES * sizeof(float),
                           .convert = format == FORMAT_F32   ? NULL
                                      : format == FORMAT_F16 ? convert_f16
                                                             : convert_bf16};
    outer_multiply(&g, y, ldy, tiled, rows, tokens, accumulate, scratch);
}

static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)cols;
    return outer_scratch_bytes(tokens, true);
}

#define FOR_FORMAT(suffix, format)                                                                           \
    static void steady_gemm_##suffix(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,    \
                                     size_t cols, size_t tokens, bool accumulate, void *scratch)             \
    {                                                                                                        \
        steady_gemm(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch, format);                      \
    }                                                                                                        \
    static void gemm_##suffix(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,           \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        if (tokens <= DOT_TOKENS)                                                                            \
            dot_passes(y, ldy, w, tiled, rows, cols, tokens, accumulate, format);                            \
        else                                                                                                 \
            steady_gemm_##suffix(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch);                 \
    }
FOR_FORMAT(bf16, FORMAT_BF16)
FOR_FORMAT(f16, FORMAT_F16)
FOR_FORMAT(f32, FORMAT_F32)

#define ENTRY(suffix, id, order, steady_one)                                                                 \
    [id] = {.name = NAME,                                                                                    \
            .features = FEATURES,                                                                            \
            .format = id,                                                                                    \
            .schedule = LINEAR_TOKENS,                                                                       \
            .exact_input = true,                                                                             \
            .tile_tokens = LANES,                                                                            \
            .tile_cols = 1,                                                                                  \
            .row_granule = OUTER_ROWS,                                                                       \
            .tiled_bytes = order##tiled_bytes,                                                               \
            .tile = order##tile,                                                                             \
            .gemm = order##gemm_##suffix,                                                                    \
            .steady = steady_one,                                                                            \
            .scratch_bytes = scratch_bytes}
static const struct linear_kernel steady[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16, steady_, NULL),
                                                          ENTRY(f16, FORMAT_F16, steady_, NULL),
                                                          ENTRY(f32, FORMAT_F32, steady_, NULL)};
const struct linear_kernel ENTRIES[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16, , &steady[FORMAT_BF16]),
                                                    ENTRY(f16, FORMAT_F16, , &steady[FORMAT_F16]),
                                                    ENTRY(f32, FORMAT_F32, , &steady[FORMAT_F32])};
