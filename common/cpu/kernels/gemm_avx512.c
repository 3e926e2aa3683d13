/* Several tokens with AVX-512 and F16C, activations and sums in fp32. Up to DOT_TOKENS tokens run as dot products
 * over several tokens at once; more tokens become vector lanes (outer.h). Called through the table of linear.c
 * after the CPU check. */
#include <string.h>

#include "common/cpu/kernels/decode_avx512.h"
#include "common/cpu/kernels/variants.h"

#define DOT_TOKENS      16
#define DOT_BLOCK_BYTES ((size_t)192 << 10)

/* ---- a few tokens: dot products; tiled is [token][cols] fp32 ---- */

INLINE void dot_rows(float *y, size_t ldy, size_t row_stride, const char *w, const float *x, size_t cols,
                     bool accumulate, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t size = decode_bytes(1, format), stride = row_stride * cols * size;
    __m512 acc[24];
    UNROLL for (size_t i = 0; i < S * T; i++) acc[i] = _mm512_setzero_ps();
    size_t c = 0;
    for (; c + 16 <= cols; c += 16) {
        __m512 ws[8];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            _mm_prefetch(w + s * stride + c * size + GEMV_NEAR, _MM_HINT_T0);
            ws[s] = decode_values(w + s * stride, c, format);
        }
        UNROLL for (size_t t = 0; t < T; t++)
        {
            __m512 xs = _mm512_loadu_ps(x + t * cols + c);
            UNROLL for (size_t s = 0; s < S; s++) acc[t * S + s] = _mm512_fmadd_ps(ws[s], xs, acc[t * S + s]);
        }
    }
    if (c < cols) {
        __mmask16 mask = lanes_mask(cols - c);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            __m512 ws = decode_tail(w + s * stride, c, mask, format);
            UNROLL for (size_t t = 0; t < T; t++) acc[t * S + s] =
                _mm512_fmadd_ps(ws, _mm512_maskz_loadu_ps(mask, x + t * cols + c), acc[t * S + s]);
        }
    }
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t s = 0; s < S; s++)
    {
        float *out = y + t * ldy + s * row_stride, sum = _mm512_reduce_add_ps(acc[t * S + s]);
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
    switch (tokens) {
    case 1:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 1, format);
        return;
    case 2:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 2, format);
        return;
    case 3:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 3, format);
        return;
    case 4:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 4, format);
        return;
    case 5:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 5, format);
        return;
    case 6:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 6, format);
        return;
    case 7:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 3, 7, format);
        return;
    default:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 3, 8, format);
        return;
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

#define LANES        16
#define OUTER_ROWS   48
#define OUTER_STEPS  1024
#define OUTER_PANELS 4
typedef __m512 vec;
INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vec vec_load(const void *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vec_store(void *p, vec v)
{
    _mm512_storeu_ps(p, v);
}
INLINE vec vec_step(vec acc, vec x, const void *w)
{
    float value;
    memcpy(&value, w, sizeof value);
    return _mm512_fmadd_ps(x, _mm512_set1_ps(value), acc);
}
INLINE vec vec_half_step(vec acc, vec x, const void *w)
{
    return vec_step(acc, x, w);
}
#define vec_transpose lanes_store_transposed
#include "common/cpu/kernels/outer.h"

static void outer_tile(const struct outer_block *b, size_t rows, size_t panels)
{
    switch (panels) {
    case 1:
        outer_rows(b, rows, 8, 1);
        return;
    case 2:
        outer_rows(b, rows, 12, 2);
        return;
    case 3:
        outer_rows(b, rows, 8, 3);
        return;
    default:
        outer_rows(b, rows, 6, 4);
        return;
    }
}

INLINE void convert(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count,
                    const enum tensor_format format)
{
    for (size_t r = 0; r < rows; r++) {
        const char *row = w + r * row_bytes + decode_bytes(first, format);
        float *to = out + r * OUTER_STRIDE;
        size_t i = 0;
        for (; i + 16 <= count; i += 16) {
            _mm_prefetch(row + decode_bytes(i, format) + GEMV_NEAR, _MM_HINT_T0);
            _mm512_store_ps(to + i, decode_values(row, i, format));
        }
        if (i < count) _mm512_store_ps(to + i, decode_tail(row, i, lanes_mask(count - i), format));
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

static size_t padded_tokens(size_t tokens)
{
    return (tokens + LANES - 1) / LANES * LANES;
}

static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return (tokens <= DOT_TOKENS ? tokens : padded_tokens(tokens)) * cols * sizeof(float);
}

static void tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                 size_t last)
{
    if (tokens <= DOT_TOKENS) {
        for (size_t t = first; t < last; t++)
            memcpy((float *)tiled + t * cols, x + t * ldx, cols * sizeof(float));
        return;
    }
    for (size_t t0 = first; t0 < last; t0 += LANES) {
        float *panel = (float *)tiled + t0 * cols;
        for (size_t c = 0; c < cols; c += 16) {
            __mmask16 mask = lanes_mask(cols - c);
            __m512i m[16];
            UNROLL for (size_t t = 0; t < 16; t++) m[t] =
                t0 + t < last ? _mm512_maskz_loadu_epi32(mask, x + (t0 + t) * ldx + c)
                              : _mm512_setzero_si512();
            lanes_transpose(m);
            UNROLL for (size_t i = 0; i < 16; i++) if (c + i < cols)
                _mm512_storeu_si512(panel + (c + i) * LANES, m[i]);
        }
    }
}

INLINE void gemm(float *y, size_t ldy, const char *w, const void *tiled, size_t rows, size_t cols,
                 size_t tokens, bool accumulate, void *scratch, const enum tensor_format format)
{
    if (tokens <= DOT_TOKENS) {
        dot_passes(y, ldy, w, tiled, rows, cols, tokens, accumulate, format);
        return;
    }
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
    static void gemm_##suffix(float *y, size_t ldy, const void *w, const void *tiled, size_t rows,           \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        gemm(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch, format);                             \
    }
FOR_FORMAT(bf16, FORMAT_BF16)
FOR_FORMAT(f16, FORMAT_F16)
FOR_FORMAT(f32, FORMAT_F32)

#define ENTRY(suffix, id)                                                                                    \
    [id] = {.name = "avx512",                                                                                \
            .features = CPU_AVX2 | CPU_AVX512,                                                               \
            .format = id,                                                                                    \
            .schedule = LINEAR_TOKENS,                                                                       \
            .exact_input = true,                                                                             \
            .tile_tokens = LANES,                                                                            \
            .row_granule = OUTER_ROWS,                                                                       \
            .tiled_bytes = tiled_bytes,                                                                      \
            .tile = tile,                                                                                    \
            .gemm = gemm_##suffix,                                                                           \
            .scratch_bytes = scratch_bytes}
const struct linear_kernel linear_avx512_gemm[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16),
                                                               ENTRY(f16, FORMAT_F16),
                                                               ENTRY(f32, FORMAT_F32)};
