/* Linear layers with AVX2, FMA and F16C, activations and sums in fp32: the forms of linear_avx512.c at half
 * the width, with half the registers. Called through the table of worker-cpu/kernels.c after the CPU check.
 */
#include <immintrin.h>
#include <string.h>

#include "worker-cpu/kernels/convert.h"
#include "worker-cpu/kernels/variants.h"

#define INLINE          static inline __attribute__((always_inline))
#define UNROLL          _Pragma("GCC unroll 16")
#define DOT_TOKENS      8
#define DOT_BLOCK_BYTES ((size_t)192 << 10)
#define GEMV_BLOCK      64   /* columns an iteration */
#define AHEAD           2048 /* bytes ahead of each stream's position; as tuned for AVX-512 */
#define STREAMS         3

INLINE size_t element_bytes(const enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

INLINE __m256 weights_load(const char *w, size_t i, const enum dtype dtype)
{
    if (dtype == DTYPE_F32) return _mm256_loadu_ps((const float *)(const void *)(w + i * 4));
    __m128i half = _mm_loadu_si128((const void *)(w + i * 2));
    if (dtype == DTYPE_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Lane order of the sum is fixed: halves, then pairs. */
INLINE float sum_lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* ---- one token ---- */

/* As in linear_avx512.c. */
struct gemv_path {
    uintptr_t near, far, left, jump, next_stride;
};

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum dtype dtype)
{
    const size_t size = element_bytes(dtype), stride = row_stride * cols * size;
    const uintptr_t begin = (uintptr_t)w;
    __m256 even[STREAMS], odd[STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) even[s] = odd[s] = _mm256_setzero_ps();
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
                _mm_prefetch((const char *)(near_at + s * near_stride + i), _MM_HINT_T0);
            }
            UNROLL for (size_t i = 0; i < GEMV_BLOCK; i += 16)
            {
                even[s] = _mm256_fmadd_ps(weights_load(at, i, dtype), _mm256_loadu_ps(x + c + i), even[s]);
                odd[s] =
                    _mm256_fmadd_ps(weights_load(at, i + 8, dtype), _mm256_loadu_ps(x + c + i + 8), odd[s]);
            }
        }
    }
    for (; c + 16 <= cols; c += 16) {
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *at = w + s * stride + c * size;
            even[s] = _mm256_fmadd_ps(weights_load(at, 0, dtype), _mm256_loadu_ps(x + c), even[s]);
            odd[s] = _mm256_fmadd_ps(weights_load(at, 8, dtype), _mm256_loadu_ps(x + c + 8), odd[s]);
        }
    }
    UNROLL for (size_t s = 0; s < S; s++)
    {
        float sum = sum_lanes(_mm256_add_ps(even[s], odd[s]));
        for (size_t i = c; i < cols; i++) sum += convert_load(w + s * stride, dtype, i) * x[i];
        y[s * row_stride] = sum;
    }
}

INLINE void gemv_streams(float *y, const char *w, const float *x, size_t rows, size_t cols,
                         const struct gemv_reads *reads, const bool two_levels, const enum dtype dtype)
{
    const size_t row_bytes = cols * element_bytes(dtype), each = rows / STREAMS, run = each * row_bytes;
    const char *rest = w + run * STREAMS, *end = w + rows * row_bytes;
    struct gemv_path path = {.near = reads->near, .far = reads->far, .left = run, .next_stride = run};
    if (reads->next) {
        path.jump = (uintptr_t)reads->next - (uintptr_t)(w + run);
        path.next_stride = reads->next_stride;
    }
    for (size_t r = 0; r < each; r++, path.left -= row_bytes)
        gemv_rows(y + r, each, w + r * row_bytes, x, cols, &path, STREAMS, two_levels, dtype);
    if (reads->next) path.jump = (uintptr_t)reads->next - (uintptr_t)end;
    path.left = (size_t)(end - rest);
    for (size_t r = each * STREAMS; r < rows; r++, path.left -= row_bytes)
        gemv_rows(y + r, 1, w + r * row_bytes, x, cols, &path, 1, two_levels, dtype);
}

INLINE void gemv(float *y, const char *w, const float *x, size_t rows, size_t cols,
                 const struct gemv_reads *reads, const enum dtype dtype)
{
    static const struct gemv_reads plain = {.near = AHEAD};
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
    __m256 acc[12];
    UNROLL for (size_t i = 0; i < S * T; i++) acc[i] = _mm256_setzero_ps();
    size_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        __m256 ws[4];
        UNROLL for (size_t s = 0; s < S; s++)
        {
            if (c * size % 64 == 0) _mm_prefetch(w + s * stride + c * size + AHEAD, _MM_HINT_T0);
            ws[s] = weights_load(w + s * stride, c, dtype);
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
        for (size_t i = c; i < cols; i++) sum += convert_load(w + s * stride, dtype, i) * x[t * cols + i];
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
    default:
        dot_gemm(y, ldy, w, x, rows, cols, accumulate, 3, 4, dtype);
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
#include "worker-cpu/kernels/outer.h"

static void outer_tile(const struct outer_block *b, size_t rows, size_t panels)
{
    if (panels == 1)
        outer_rows(b, rows, 12, 1);
    else
        outer_rows(b, rows, 6, 2);
}

INLINE void convert(float *out, const char *w, size_t row_bytes, size_t rows, size_t first, size_t count,
                    const enum dtype dtype)
{
    const size_t size = element_bytes(dtype);
    for (size_t r = 0; r < rows; r++) {
        const char *row = w + r * row_bytes + first * size;
        float *to = out + r * OUTER_STRIDE;
        size_t i = 0;
        for (; i + 8 <= count; i += 8) {
            if (i % 32 == 0) _mm_prefetch(row + i * size + AHEAD, _MM_HINT_T0);
            _mm256_storeu_ps(to + i, weights_load(row, i, dtype));
        }
        for (; i < count; i++) to[i] = convert_load(row, dtype, i);
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

static size_t packed_bytes(size_t tokens, size_t cols)
{
    return (tokens <= DOT_TOKENS ? tokens : (tokens + LANES - 1) / LANES * LANES) * cols * sizeof(float);
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

#define FOR_DTYPE(suffix, dtype)                                                                             \
    void linear_avx2_gemv_##suffix(float *y, const void *w, const float *x, size_t rows, size_t cols,        \
                                   const struct gemv_reads *reads)                                           \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, dtype);                                                             \
    }                                                                                                        \
    static void gemm_##suffix(float *y, size_t ldy, const void *w, const void *packed, size_t rows,          \
                              size_t cols, size_t tokens, bool accumulate, void *scratch)                    \
    {                                                                                                        \
        gemm(y, ldy, w, packed, rows, cols, tokens, accumulate, scratch, dtype);                             \
    }
FOR_DTYPE(bf16, DTYPE_BF16)
FOR_DTYPE(f16, DTYPE_F16)
FOR_DTYPE(f32, DTYPE_F32)

#define ENTRY(suffix, id)                                                                                    \
    [id] = {.name = "avx2",                                                                                  \
            .features = CPU_AVX2,                                                                            \
            .dtype = id,                                                                                     \
            .exact_input = true,                                                                             \
            .gemv = linear_avx2_gemv_##suffix,                                                               \
            .gemv_streams = 3,                                                                               \
            .pack_tokens = LANES,                                                                            \
            .row_granule = OUTER_ROWS,                                                                       \
            .packed_bytes = packed_bytes,                                                                    \
            .pack = pack,                                                                                    \
            .gemm = gemm_##suffix,                                                                           \
            .scratch_bytes = scratch_bytes}
const struct linear_variant linear_avx2[DTYPE_COUNT] = {ENTRY(bf16, DTYPE_BF16), ENTRY(f16, DTYPE_F16),
                                                        ENTRY(f32, DTYPE_F32)};
