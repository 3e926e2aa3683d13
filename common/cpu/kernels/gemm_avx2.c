/* Several tokens with AVX2, FMA and F16C, activations and sums in fp32: the forms of gemm_avx512.c at half the
 * width, with half the registers. Called through the table of linear.c after the CPU check. */
#include <string.h>

#include "common/cpu/kernels/decode_avx2.h"
#include "common/cpu/kernels/variants.h"

#define DOT_TOKENS      8
#define DOT_BLOCK_BYTES ((size_t)192 << 10)

/* ---- a few tokens: dot products; tiled is [token][cols] fp32 ---- */

INLINE void dot_rows(float *y, size_t ldy, size_t row_stride, const char *w, const float *x, size_t cols,
                     bool accumulate, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t size = decode_bytes(1, format), stride = row_stride * cols * size;
    __m256 acc[12];
    UNROLL for (size_t i = 0; i < S * T; i++) acc[i] = _mm256_setzero_ps();
    size_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        __m256 ws[4];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            if (c * size % 64 == 0) _mm_prefetch(w + s * stride + c * size + GEMV_NEAR, _MM_HINT_T0);
            ws[s] = decode_values(w + s * stride, c, format);
        }
        UNROLL for (size_t t = 0; t < T; t++)
        {
            __m256 xs = _mm256_loadu_ps(x + t * cols + c);
            UNROLL for (size_t s = 0; s < S; s++) acc[t * S + s] = _mm256_fmadd_ps(ws[s], xs, acc[t * S + s]);
        }
    }
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t s = 0; s < S; s++)
    {
        float *out = y + t * ldy + s * row_stride, sum = sum_lanes(acc[t * S + s]);
        for (size_t i = c; i < cols; i++) sum += decode_value(w + s * stride, i, format) * x[t * cols + i];
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
    default:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 3, 4, format);
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

#define LANES        8
#define OUTER_ROWS   48
#define OUTER_STEPS  1024
#define OUTER_PANELS 2
typedef __m256 vec;
INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vec vec_load(const void *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vec_store(void *p, vec v)
{
    _mm256_storeu_ps(p, v);
}
INLINE vec vec_step(vec acc, vec x, const void *w)
{
    float value;
    memcpy(&value, w, sizeof value);
    return _mm256_fmadd_ps(x, _mm256_set1_ps(value), acc);
}
INLINE vec vec_half_step(vec acc, vec x, const void *w)
{
    return vec_step(acc, x, w);
}

/* m[i][j] becomes m[j][i]. */
INLINE void lanes_transpose(__m256 m[8])
{
    __m256 t[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        m[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        m[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        m[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        m[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        __m256 low = m[i], high = m[i + 4];
        m[i] = _mm256_permute2f128_ps(low, high, 0x20);
        m[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

static inline void vec_transpose(float *y, size_t ldy, const float *c, size_t rows, size_t tokens,
                                 bool accumulate)
{
    __m256 m[8];
    UNROLL for (int i = 0; i < 8; i++) m[i] = _mm256_loadu_ps(c + i * 8);
    lanes_transpose(m);
    __m256i mask =
        _mm256_cmpgt_epi32(_mm256_set1_epi32((int)rows), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    UNROLL for (size_t t = 0; t < 8; t++)
    {
        if (t >= tokens) return;
        float *out = y + t * ldy;
        _mm256_maskstore_ps(out, mask,
                            accumulate ? _mm256_add_ps(m[t], _mm256_maskload_ps(out, mask)) : m[t]);
    }
}
#include "common/cpu/kernels/outer.h"

static void outer_tile(const struct outer_block *b, size_t rows, size_t panels)
{
    if (panels == 1)
        outer_rows(b, rows, 12, 1);
    else
        outer_rows(b, rows, 6, 2);
}

INLINE void convert(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count,
                    const enum tensor_format format)
{
    const size_t size = decode_bytes(1, format);
    for (size_t r = 0; r < rows; r++) {
        const char *row = w + r * row_bytes + first * size;
        float *to = out + r * OUTER_STRIDE;
        size_t i = 0;
        for (; i + 8 <= count; i += 8) {
            if (i % 32 == 0) _mm_prefetch(row + i * size + GEMV_NEAR, _MM_HINT_T0);
            _mm256_storeu_ps(to + i, decode_values(row, i, format));
        }
        for (; i < count; i++) to[i] = decode_value(row, i, format);
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

static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return (tokens <= DOT_TOKENS ? tokens : (tokens + LANES - 1) / LANES * LANES) * cols * sizeof(float);
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
        size_t c = 0;
        for (; c + 8 <= cols; c += 8) {
            __m256 m[8];
            UNROLL for (size_t t = 0; t < 8; t++) m[t] =
                t0 + t < last ? _mm256_loadu_ps(x + (t0 + t) * ldx + c) : _mm256_setzero_ps();
            lanes_transpose(m);
            UNROLL for (size_t i = 0; i < 8; i++) _mm256_storeu_ps(panel + (c + i) * LANES, m[i]);
        }
        for (; c < cols; c++)
            for (size_t t = 0; t < LANES; t++)
                panel[c * LANES + t] = t0 + t < last ? x[(t0 + t) * ldx + c] : 0;
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
    [id] = {.name = "avx2",                                                                                  \
            .features = CPU_AVX2,                                                                            \
            .format = id,                                                                                    \
            .schedule = LINEAR_TOKENS,                                                                       \
            .exact_input = true,                                                                             \
            .tile_tokens = LANES,                                                                            \
            .row_granule = OUTER_ROWS,                                                                       \
            .tiled_bytes = tiled_bytes,                                                                      \
            .tile = tile,                                                                                    \
            .gemm = gemm_##suffix,                                                                           \
            .scratch_bytes = scratch_bytes}
const struct linear_kernel linear_avx2_gemm[LINEAR_PLAIN] = {ENTRY(bf16, FORMAT_BF16), ENTRY(f16, FORMAT_F16),
                                                             ENTRY(f32, FORMAT_F32)};
