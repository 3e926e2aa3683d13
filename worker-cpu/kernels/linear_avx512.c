/* Linear layers with AVX-512 and F16C, activations and sums in fp32.
 *
 * Three forms. GEMV reads weights as several long streams, because one core draws the memory's full bandwidth
 * only with enough lines in flight. Up to DOT_TOKENS tokens the same dot products run over several tokens at
 * once. More tokens become vector lanes (outer.h). Called through the table of worker-cpu/kernels.c after the
 * CPU check. */
#include <immintrin.h>
#include <string.h>

#include "worker-cpu/kernels/lanes512.h"
#include "worker-cpu/kernels/variants.h"

#define INLINE          static inline __attribute__((always_inline))
#define UNROLL          _Pragma("GCC unroll 32")
#define DOT_TOKENS      16
#define DOT_BLOCK_BYTES ((size_t)192 << 10)

/* ---- weights to fp32 ---- */

INLINE size_t element_bytes(const enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

INLINE __m512 weights_load(const char *w, size_t i, const enum dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm512_loadu_ps(w + i * 4);
    __m256i half = _mm256_loadu_si256((const void *)(w + i * 2));
    if (dtype == DTYPE_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __m512 weights_load_tail(const char *w, size_t i, __mmask16 mask, const enum dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm512_maskz_loadu_ps(mask, w + i * 4);
    __m256i half = _mm256_maskz_loadu_epi16(mask, w + i * 2);
    if (dtype == DTYPE_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* ---- one token ---- */

/* Measured on one Zen 5 core, which reads 45 GB/s with plain loads, bf16 at 12288 / 4096 columns: 3 streams 2
 * KiB ahead 41.8 / 42.6 GB/s, 2 streams 39.4 / 41.4, 4 streams 38.2 / 39.9, 1 stream 31 / 40; two cores
 * together are limited by memory (50 GB/s) long before that. 128 columns an iteration beat 32 by 4 %. */
#define GEMV_STREAMS 3
#define GEMV_BLOCK   128
#define GEMV_AHEAD   2048 /* a few tokens: bytes ahead of each stream's position */
#define GEMV_HINT    _MM_HINT_T0

/* Where streams fetch: `near` and `far` bytes ahead, and past their ends, which are `left` bytes from the
 * row's beginning, `jump` bytes further and next_stride bytes from each other: what this thread reads next.
 */
struct gemv_path {
    uintptr_t near, far, left, jump, next_stride;
};

/* `S` rows, `row_stride` rows apart; every row is summed in the same order whatever S is. */
INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum dtype dtype)
{
    const size_t size = element_bytes(dtype), stride = row_stride * cols * size;
    const uintptr_t begin = (uintptr_t)w;
    __m512 even[8], odd[8];
    UNROLL for (size_t s = 0; s < S; s++) even[s] = odd[s] = _mm512_setzero_ps();
    size_t c = 0;
    for (; c + GEMV_BLOCK <= cols; c += GEMV_BLOCK) {
        const bool near_on = c * size + path->near < path->left, far_on = c * size + path->far < path->left;
        const uintptr_t near_at = begin + c * size + path->near + (near_on ? 0 : path->jump),
                        near_stride = near_on ? stride : path->next_stride,
                        far_at = begin + c * size + path->far + (far_on ? 0 : path->jump),
                        far_stride = far_on ? stride : path->next_stride;
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *at = w + s * stride + c * size;
            UNROLL for (size_t i = 0; i < GEMV_BLOCK * size; i += 64)
            {
                if (two_levels) _mm_prefetch((const char *)(far_at + s * far_stride + i), _MM_HINT_T1);
                _mm_prefetch((const char *)(near_at + s * near_stride + i), GEMV_HINT);
            }
            UNROLL for (size_t i = 0; i < GEMV_BLOCK; i += 32)
            {
                even[s] = _mm512_fmadd_ps(weights_load(at, i, dtype), _mm512_loadu_ps(x + c + i), even[s]);
                odd[s] =
                    _mm512_fmadd_ps(weights_load(at, i + 16, dtype), _mm512_loadu_ps(x + c + i + 16), odd[s]);
            }
        }
    }
    for (; c + 32 <= cols; c += 32) {
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *at = w + s * stride + c * size;
            even[s] = _mm512_fmadd_ps(weights_load(at, 0, dtype), _mm512_loadu_ps(x + c), even[s]);
            odd[s] = _mm512_fmadd_ps(weights_load(at, 16, dtype), _mm512_loadu_ps(x + c + 16), odd[s]);
        }
    }
    for (; c < cols; c += 16) {
        __mmask16 mask = lanes_mask(cols - c);
        __m512 xs = _mm512_maskz_loadu_ps(mask, x + c);
        UNROLL for (size_t s = 0; s < S; s++) even[s] =
            _mm512_fmadd_ps(weights_load_tail(w + s * stride, c, mask, dtype), xs, even[s]);
    }
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] =
        _mm512_reduce_add_ps(_mm512_add_ps(even[s], odd[s]));
}

INLINE void gemv_streams(float *y, const char *w, const float *x, size_t rows, size_t cols,
                         const struct gemv_reads *reads, const bool two_levels, const enum dtype dtype)
{
    const size_t row_bytes = cols * element_bytes(dtype), each = rows / GEMV_STREAMS, run = each * row_bytes;
    const char *rest = w + run * GEMV_STREAMS, *end = w + rows * row_bytes;
    struct gemv_path path = {.near = reads->near, .far = reads->far, .left = run, .next_stride = run};
    if (reads->next) {
        path.jump = (uintptr_t)reads->next - (uintptr_t)(w + run);
        path.next_stride = reads->next_stride;
    }
    for (size_t r = 0; r < each; r++, path.left -= row_bytes)
        gemv_rows(y + r, each, w + r * row_bytes, x, cols, &path, GEMV_STREAMS, two_levels, dtype);
    if (reads->next) path.jump = (uintptr_t)reads->next - (uintptr_t)end;
    path.left = (size_t)(end - rest);
    for (size_t r = each * GEMV_STREAMS; r < rows; r++, path.left -= row_bytes)
        gemv_rows(y + r, 1, w + r * row_bytes, x, cols, &path, 1, two_levels, dtype);
}

INLINE void gemv(float *y, const char *w, const float *x, size_t rows, size_t cols,
                 const struct gemv_reads *reads, const enum dtype dtype)
{
    static const struct gemv_reads plain = {.near = GEMV_AHEAD};
    if (!reads) reads = &plain;
    if (reads->far)
        gemv_streams(y, w, x, rows, cols, reads, true, dtype);
    else
        gemv_streams(y, w, x, rows, cols, reads, false, dtype);
}

/* ---- a few tokens: dot products; packed is [token][cols] fp32 ---- */

INLINE void dot_rows(float *y, size_t ldy, size_t row_stride, const char *w, const float *x, size_t cols,
                     bool accumulate, const size_t S, const size_t T, const enum dtype dtype)
{
    const size_t size = element_bytes(dtype), stride = row_stride * cols * size;
    __m512 acc[24];
    UNROLL for (size_t i = 0; i < S * T; i++) acc[i] = _mm512_setzero_ps();
    size_t c = 0;
    for (; c + 16 <= cols; c += 16) {
        __m512 ws[8];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            _mm_prefetch(w + s * stride + c * size + GEMV_AHEAD, GEMV_HINT);
            ws[s] = weights_load(w + s * stride, c, dtype);
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
            __m512 ws = weights_load_tail(w + s * stride, c, mask, dtype);
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
                     bool accumulate, const size_t S, const size_t T, const enum dtype dtype)
{
    const size_t row_bytes = cols * element_bytes(dtype), each = rows / S;
    for (size_t r = 0; r < each; r++)
        dot_rows(y + r, ldy, each, w + r * row_bytes, x, cols, accumulate, S, T, dtype);
    for (size_t r = each * S; r < rows; r++)
        dot_rows(y + r, ldy, 1, w + r * row_bytes, x, cols, accumulate, 1, T, dtype);
}

/* At most DOT_TOKENS / 2 tokens. */
INLINE void dot_tokens(float *y, size_t ldy, const char *w, const float *x, size_t rows, size_t cols,
                       size_t tokens, bool accumulate, const enum dtype dtype)
{
    switch (tokens) {
    case 1:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 1, dtype);
        return;
    case 2:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 2, dtype);
        return;
    case 3:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 3, dtype);
        return;
    case 4:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 4, dtype);
        return;
    case 5:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 5, dtype);
        return;
    case 6:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 4, 6, dtype);
        return;
    case 7:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 3, 7, dtype);
        return;
    default:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 3, 8, dtype);
        return;
    }
}

/* More than half of DOT_TOKENS take two passes over blocks of rows that stay in L2 meanwhile. */
INLINE void dot_passes(float *y, size_t ldy, const char *w, const float *x, size_t rows, size_t cols,
                       size_t tokens, bool accumulate, const enum dtype dtype)
{
    const size_t first = tokens > DOT_TOKENS / 2 ? (tokens + 1) / 2 : tokens,
                 row_bytes = cols * element_bytes(dtype);
    const size_t block = tokens == first ? rows : DOT_BLOCK_BYTES / row_bytes / 12 * 12 + 12;
    for (size_t r = 0; r < rows; r += block) {
        size_t count = rows - r < block ? rows - r : block;
        for (size_t t = 0; t < tokens; t += first) /* one call: what it inlines is long to compile */
            dot_tokens(y + r + t * ldy, ldy, w + r * row_bytes, x + t * cols, count, cols,
                       tokens - t < first ? tokens - t : first, accumulate, dtype);
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
#include "worker-cpu/kernels/outer.h"

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
                    const enum dtype dtype)
{
    for (size_t r = 0; r < rows; r++) {
        const char *row = w + r * row_bytes + first * element_bytes(dtype);
        float *to = out + r * OUTER_STRIDE;
        size_t i = 0;
        for (; i + 16 <= count; i += 16) {
            _mm_prefetch(row + i * element_bytes(dtype) + GEMV_AHEAD, _MM_HINT_T0);
            _mm512_store_ps(to + i, weights_load(row, i, dtype));
        }
        if (i < count) _mm512_store_ps(to + i, weights_load_tail(row, i, lanes_mask(count - i), dtype));
    }
}

static void convert_bf16(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count)
{
    convert(out, w, row_bytes, rows, first, count, DTYPE_BF16);
}

static void convert_f16(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count)
{
    convert(out, w, row_bytes, rows, first, count, DTYPE_F16);
}

static size_t padded_tokens(size_t tokens)
{
    return (tokens + LANES - 1) / LANES * LANES;
}

static size_t packed_bytes(size_t tokens, size_t cols)
{
    return (tokens <= DOT_TOKENS ? tokens : padded_tokens(tokens)) * cols * sizeof(float);
}

static void pack(void *packed, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                 size_t last)
{
    if (tokens <= DOT_TOKENS) {
        for (size_t t = first; t < last; t++)
            memcpy((float *)packed + t * cols, x + t * ldx, cols * sizeof(float));
        return;
    }
    for (size_t t0 = first; t0 < last; t0 += LANES) {
        float *panel = (float *)packed + t0 * cols;
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

INLINE void gemm(float *y, size_t ldy, const char *w, const void *packed, size_t rows, size_t cols,
                 size_t tokens, bool accumulate, void *scratch, const enum dtype dtype)
{
    if (tokens <= DOT_TOKENS) {
        dot_passes(y, ldy, w, packed, rows, cols, tokens, accumulate, dtype);
        return;
    }
    struct outer_gemm g = {.w = w,
                           .row_bytes = cols * element_bytes(dtype),
                           .steps = cols,
                           .panel_bytes = cols * LANES * sizeof(float),
                           .convert = dtype == DTYPE_F32   ? NULL
                                      : dtype == DTYPE_F16 ? convert_f16
                                                           : convert_bf16};
    outer_multiply(&g, y, ldy, packed, rows, tokens, accumulate, scratch);
}

static size_t scratch_bytes(size_t cols, size_t tokens)
{
    (void)cols;
    return outer_scratch_bytes(tokens, true);
}

#define FOR_DTYPE(suffix, dtype, linkage)                                                                    \
    linkage void linear_avx512_gemv_##suffix(float *y, const void *w, const float *x, size_t rows,           \
                                             size_t cols, const struct gemv_reads *reads)                    \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, dtype);                                                             \
    }                                                                                                        \
    static void gemm_##suffix(float *y, size_t ldy, const void *w, const void *packed, size_t rows,          \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        gemm(y, ldy, w, packed, rows, cols, tokens, accumulate, scratch, dtype);                             \
    }
FOR_DTYPE(bf16, DTYPE_BF16, )
FOR_DTYPE(f16, DTYPE_F16, static)
FOR_DTYPE(f32, DTYPE_F32, static)

#define ENTRY(suffix, id)                                                                                    \
    [id] = {.name = "avx512",                                                                                \
            .features = CPU_AVX2 | CPU_AVX512,                                                               \
            .dtype = id,                                                                                     \
            .exact_input = true,                                                                             \
            .gemv = linear_avx512_gemv_##suffix,                                                             \
            .gemv_streams = 3,                                                                               \
            .pack_tokens = LANES,                                                                            \
            .row_granule = OUTER_ROWS,                                                                       \
            .packed_bytes = packed_bytes,                                                                    \
            .pack = pack,                                                                                    \
            .gemm = gemm_##suffix,                                                                           \
            .scratch_bytes = scratch_bytes}
const struct linear_variant linear_avx512[DTYPE_COUNT] = {ENTRY(bf16, DTYPE_BF16), ENTRY(f16, DTYPE_F16),
                                                          ENTRY(f32, DTYPE_F32)};
