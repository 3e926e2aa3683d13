/* The emulated device's matrices by columns: put so by its copy queue, put back when they are multiplied by,
 * and small batches as pairs of 16-bit parts. See emulated.h and, for what split and join are, kernels.h. */
#include "worker-gpu/emulated.h"

#include <emmintrin.h>
#include <math.h>

/* 8 x 8 numbers: words of two, of four, of eight rows' numbers of a column. */
static void transpose_8x8(const uint16_t *from, size_t from_step, uint16_t *to, size_t to_step)
{
    __m128i row[8], two[8], four[8];
    for (int i = 0; i < 8; i++)
        row[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * from_step));
    for (int i = 0; i < 8; i += 2) {
        two[i] = _mm_unpacklo_epi16(row[i], row[i + 1]);     /* columns 0 to 3 */
        two[i + 1] = _mm_unpackhi_epi16(row[i], row[i + 1]); /* 4 to 7 */
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; h++) {
            four[i + 2 * h] = _mm_unpacklo_epi32(two[i + h], two[i + 2 + h]);
            four[i + 2 * h + 1] = _mm_unpackhi_epi32(two[i + h], two[i + 2 + h]);
        }
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * i * to_step), _mm_unpacklo_epi64(four[i], four[4 + i]));
        _mm_storeu_si128((__m128i *)(void *)(to + (2 * i + 1) * to_step),
                         _mm_unpackhi_epi64(four[i], four[4 + i]));
    }
}

void emulated_transpose(const uint16_t *from, uint32_t rows, uint32_t cols, uint16_t *to, uint32_t to_rows)
{
    for (uint32_t r = 0; r < rows; r += 8)
        for (uint32_t c = 0; c < cols; c += 8) {
            const uint32_t r_end = rows - r < 8 ? rows : r + 8, c_end = cols - c < 8 ? cols : c + 8;
            if (r_end - r == 8 && c_end - c == 8) {
                transpose_8x8(from + (size_t)r * cols + c, cols, to + (size_t)c * to_rows + r, to_rows);
                continue;
            }
            for (uint32_t i = c; i < c_end; i++)
                for (uint32_t j = r; j < r_end; j++) to[(size_t)i * to_rows + j] = from[(size_t)j * cols + i];
        }
}

const void *emulated_rows(struct emulated_math *math, const void *columns, uint32_t rows, uint32_t cols)
{
    uint16_t *w = emulated_scratch(math, SCRATCH_ROWS, (size_t)rows * cols * sizeof *w);
    if (w) emulated_transpose(columns, cols, rows, w, cols);
    return w;
}

bool emulated_chain_columns(struct device *d, enum dtype dtype, uint32_t rows, uint32_t cols)
{
    (void)d, (void)cols;
    return dtype != DTYPE_F32 && rows % 8 == 0; /* what bulk copies begin and end at */
}

/* ---- small batches ---- */

struct parts_call {
    struct gpuk_linear_args args;
    struct gpuk_parts parts;
    uint32_t tokens;
    const uint32_t *count;
};

/* The power of two that brings the largest of a row into [2^14, 2^15): f16 has not every exponent. */
static float factor_of(enum dtype dtype, const float *x, uint32_t n)
{
    float most = 0;
    int power;
    if (dtype != DTYPE_F16) return 1;
    for (uint32_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    if (!isfinite(most)) return ldexpf(1, -114);
    (void)frexpf(most, &power); /* most < 2^power */
    return ldexpf(1, most > 0 && power > 15 - 126 ? 15 - power : 126);
}

static void run_split(struct emulated_math *math, const void *data)
{
    const struct parts_call *c = data;
    const enum dtype dtype = c->args.dtype;
    const uint32_t n = c->args.cols, count = emulated_count(c->count, c->tokens);
    float *x = emulated_scratch(math, SCRATCH_X, n * sizeof(float));
    float *high = emulated_scratch(math, SCRATCH_Y, n * sizeof(float));
    if (!x || !high) return;
    const float largest = dtype == DTYPE_F16 ? 65504.0f : 3.3895313892515355e38f;
    for (uint32_t t = 0; t < c->tokens; t++) {
        const float *from = c->args.x + (size_t)t * c->args.x_stride;
        const float factor = t < count ? factor_of(dtype, from, n) : 1;
        const size_t at = (size_t)t * n, low_at = (size_t)(c->tokens + t) * n;
        for (uint32_t i = 0; i < n; i++) { /* what is too large has no low part */
            x[i] = t < count ? from[i] * factor : 0;
            if (fabsf(x[i]) > largest) x[i] = copysignf(largest, x[i]);
        }
        emulated_store(math, c->parts.x, at, dtype, x, n);
        math->vector->load(high, (const char *)c->parts.x + at * dtype_bytes(dtype), dtype, n);
        for (uint32_t i = 0; i < n; i++) x[i] -= high[i];
        emulated_store(math, c->parts.x, low_at, dtype, x, n);
        c->parts.factors[t] = 1 / factor;
    }
}

static void run_join(struct emulated_math *math, const void *data)
{
    (void)math;
    const struct parts_call *c = data;
    const struct gpuk_linear *to = &c->args.segment[0];
    const uint32_t n = to->rows, count = emulated_count(c->count, c->tokens);
    for (uint32_t t = 0; t < count; t++) {
        const float *high = c->parts.sums + (size_t)t * n, *low = c->parts.sums + (size_t)(c->tokens + t) * n;
        const size_t at = (size_t)t * c->args.out_stride;
        for (uint32_t i = 0; i < n; i++) {
            float add = to->bias ? to->bias[i] : 0;
            if (c->args.residual) add += c->args.residual[at + i];
            to->out[at + i] = (high[i] + low[i]) * c->parts.factors[t] + add;
        }
    }
}

static int enqueue_parts(struct device *d, emulated_run_fn *run, const struct gpuk_linear_args *args,
                         uint32_t tokens, const uint32_t *count, const struct gpuk_parts *parts,
                         struct helm_err *err)
{
    const struct parts_call call = {.args = *args, .parts = *parts, .tokens = tokens, .count = count};
    if (!args->columns || args->segments != 1 || args->norm || args->swiglu || args->dtype == DTYPE_F32)
        return helm_fail(err, HELM_E_UNSUPPORTED, "parts: not one matrix by columns, alone");
    if (tokens > GPUK_BATCH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "parts: %u tokens, at most %d", tokens, GPUK_BATCH_MAX);
    return emulated_enqueue(d, run, &call, sizeof call, err);
}

int emulated_split(struct device *d, const struct gpuk_linear_args *args, uint32_t tokens,
                   const uint32_t *count, const struct gpuk_parts *parts, uint32_t flags,
                   struct helm_err *err)
{
    (void)flags;
    return enqueue_parts(d, run_split, args, tokens, count, parts, err);
}

int emulated_join(struct device *d, const struct gpuk_linear_args *args, uint32_t tokens,
                  const uint32_t *count, const struct gpuk_parts *parts, uint32_t flags, struct helm_err *err)
{
    (void)flags;
    return enqueue_parts(d, run_join, args, tokens, count, parts, err);
}
