/* GEMM for bf16 weights with vdpbf16ps: activations rounded to bf16, products summed in fp32, 64 operations
 * an instruction where fp32 has 32. Decode (GEMV) rounds nothing and stays with the AVX-512 kernel.
 *
 * Up to DOT_TOKENS tokens run as dot products at the speed weights arrive; more become vector lanes
 * (outer.h). Called through the table of linear.c after the CPU check. */
#include <immintrin.h>
#include <string.h>

#include "common/cpu/kernels/lanes512.h"
#include "common/cpu/kernels/amx_panels.h"
#include "common/cpu/kernels/variants.h"

#define DOT_TOKENS 8

static size_t padded_cols(size_t cols)
{
    return (cols + 31) / 32 * 32;
}

/* 32 numbers, of which `left` are there, rounded; the others are zero. */
INLINE __m512i round_columns(const float *x, size_t left)
{
    vec low = vec_load_part(x, left);
    vec high = left > 16 ? vec_load_part(x + 16, left - 16) : vec_zero();
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* ---- a few tokens: dot products; tiled is [token][padded cols] bf16 ---- */

#define DOT_AHEAD 4096 /* bytes ahead of each stream's position */

INLINE void dot_rows(float *y, size_t ldy, size_t row_stride, const char *w, const char *x, size_t cols,
                     bool accumulate, const size_t S, const size_t T)
{
    const size_t stride = row_stride * cols * 2, x_stride = padded_cols(cols) * 2;
    __m512 acc[24];
    UNROLL for (size_t i = 0; i < S * T; i++) acc[i] = _mm512_setzero_ps();
    size_t c = 0;
    for (; c + 32 <= cols; c += 32) {
        __m512i ws[8];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            _mm_prefetch(w + s * stride + c * 2 + DOT_AHEAD, _MM_HINT_T0);
            ws[s] = _mm512_loadu_si512(w + s * stride + c * 2);
        }
        UNROLL for (size_t t = 0; t < T; t++)
        {
            __m512bh xs = (__m512bh)_mm512_loadu_si512(x + t * x_stride + c * 2);
            UNROLL for (size_t s = 0; s < S; s++) acc[t * S + s] =
                _mm512_dpbf16_ps(acc[t * S + s], (__m512bh)ws[s], xs);
        }
    }
    if (c < cols) {
        __mmask32 mask = (__mmask32)((1u << (cols - c)) - 1);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            __m512bh ws = (__m512bh)_mm512_maskz_loadu_epi16(mask, w + s * stride + c * 2);
            UNROLL for (size_t t = 0; t < T; t++) acc[t * S + s] =
                _mm512_dpbf16_ps(acc[t * S + s], ws, (__m512bh)_mm512_loadu_si512(x + t * x_stride + c * 2));
        }
    }
    UNROLL for (size_t t = 0; t < T; t++) UNROLL for (size_t s = 0; s < S; s++)
    {
        float *out = y + t * ldy + s * row_stride, sum = _mm512_reduce_add_ps(acc[t * S + s]);
        *out = accumulate ? *out + sum : sum;
    }
}

INLINE void dot_gemm(float *y, size_t ldy, const char *w, const void *x, size_t rows, size_t cols,
                     bool accumulate, const size_t S, const size_t T)
{
    const size_t each = rows / S;
    for (size_t r = 0; r < each; r++) dot_rows(y + r, ldy, each, w + r * cols * 2, x, cols, accumulate, S, T);
    for (size_t r = each * S; r < rows; r++)
        dot_rows(y + r, ldy, 1, w + r * cols * 2, x, cols, accumulate, 1, T);
}

/* ---- more tokens: lanes; a step is a pair of columns ---- */

#define OUTER_PANELS 4
INLINE vec outer_step(vec acc, vec x, const void *w)
{
    int pair;
    memcpy(&pair, w, sizeof pair);
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_set1_epi32(pair));
}
/* The pair's second half lies past the row's end: only the first is read, the other is zero. */
INLINE vec outer_half_step(vec acc, vec x, const void *w)
{
    uint16_t low;
    memcpy(&low, w, sizeof low);
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_set1_epi32(low));
}
#include "common/cpu/kernels/outer.h"

static size_t steady_tiled_bytes(size_t tokens, size_t cols)
{
    return lanes_round_up(tokens) * padded_cols(cols) * 2;
}

static size_t tiled_bytes(size_t tokens, size_t cols)
{
    return tokens <= DOT_TOKENS ? tokens * padded_cols(cols) * 2 : steady_tiled_bytes(tokens, cols);
}

/* 32 columns, of which `left` are there, of 16 tokens, of which `tokens` are. */
INLINE void tile_step(void *to, const float *x, size_t ldx, size_t tokens, size_t left)
{
    vec m[LANES];
    UNROLL for (size_t t = 0; t < LANES; t++) m[t] =
        t < tokens ? _mm512_castsi512_ps(round_columns(x + t * ldx, left)) : vec_zero();
    vec_transpose(m);
    UNROLL for (size_t i = 0; i < LANES; i++) vec_store((char *)to + i * LANES * 4, m[i]);
}

void linear_avx512bf16_tile_panels(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols,
                                   size_t first, size_t last, size_t col_first, size_t col_last)
{
    (void)tokens;
    for (size_t t0 = first; t0 < last; t0 += LANES)
        for (size_t c = col_first; c < col_last; c += 32)
            tile_step((char *)tiled + t0 * padded_cols(cols) * 2 + c / 32 * AMX_TILE,
                      x + (t0 - first) * ldx + (c - col_first), ldx, last - t0, col_last - c);
}

void linear_avx512bf16_tile_blocks(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols,
                                   size_t first, size_t last, size_t col_first, size_t col_last)
{
    const size_t panels = amx_panels(tokens), width = AMX_STEPS * 32;
    for (size_t t0 = first; t0 < last; t0 += LANES)
        for (size_t c = col_first; c < col_last; c += 32)
            tile_step((char *)tiled + amx_panel_at(cols, panels, c / width, t0 / 16) +
                          c % width / 32 * AMX_TILE,
                      x + (t0 - first) * ldx + (c - col_first), ldx, last - t0, col_last - c);
}

static void tile(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                 size_t last, size_t col_first, size_t col_last)
{
    if (tokens > DOT_TOKENS) {
        linear_avx512bf16_tile_panels(tiled, x, ldx, tokens, cols, first, last, col_first, col_last);
        return;
    }
    for (size_t t = first; t < last; t++)
        for (size_t c = col_first; c < col_last; c += 32)
            _mm512_storeu_si512((char *)tiled + (t * padded_cols(cols) + c) * 2,
                                round_columns(x + (t - first) * ldx + (c - col_first), col_last - c));
}

static void steady_gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows, size_t cols,
                        size_t tokens, bool accumulate, void *scratch)
{
    struct outer_gemm g = {.w = w,
                           .row_bytes = cols * 2,
                           .steps = cols / 2,
                           .half = cols % 2,
                           .panel_bytes = padded_cols(cols) * LANES * 2};
    outer_multiply(&g, y, ldy, tiled, rows, tokens, accumulate, scratch);
}

static void gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows, size_t cols,
                 size_t tokens, bool accumulate, void *scratch)
{
#define DOT_CASE(T)                                                                                          \
    case T:                                                                                                  \
        dot_gemm(y, ldy, w, tiled, rows, cols, accumulate, T <= 6 ? 4 : 3, T);                               \
        return
    switch (tokens) {
        DOT_CASE(1);
        DOT_CASE(2);
        DOT_CASE(3);
        DOT_CASE(4);
        DOT_CASE(5);
        DOT_CASE(6);
        DOT_CASE(7);
        DOT_CASE(8);
    default:
        steady_gemm(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch);
    }
}

static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)cols;
    return outer_scratch_bytes(tokens, false);
}

#define ENTRY(order, tile_, steady_one)                                                                      \
    {                                                                                                        \
        .name = "avx512-bf16", .features = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, .format = FORMAT_BF16,   \
        .schedule = LINEAR_TOKENS, .exact_input = false, .tile_tokens = LANES, .tile_cols = 32,              \
        .row_granule = OUTER_ROWS, .tiled_bytes = order##tiled_bytes, .tile = tile_, .gemm = order##gemm,    \
        .steady = steady_one, .scratch_bytes = scratch_bytes                                                 \
    }
static const struct linear_kernel steady = ENTRY(steady_, linear_avx512bf16_tile_panels, NULL);
const struct linear_kernel linear_avx512bf16_gemm = ENTRY(, tile, &steady);
