/* Gated delta nets on vectors of any width. Included once by vector_simd.h.
 *
 * The rule reads and writes a head's state twice a token. A few tokens of a run are taken together, and some
 * columns of the state at a time: those stay in the first cache through all of these tokens. */
#include <math.h>

#include "common/cpu/kernels/delta.h"
#include "common/cpu/kernels/swiglu_simd.h"

#define TOKENS_TOGETHER 8 /* whose q and k are kept beside the state */
#define VECTORS         4 /* columns at a time, in vectors */

/* ---- convolution ---- */

/* `left` channels from `at` on. */
INLINE void convolve_part(const struct delta_convolution *run, size_t at, size_t left)
{
    vec weight[DELTA_CONV_WIDTH], before[DELTA_COLUMNS];
    float *x = run->x + at, *state = run->state + at;
    UNROLL for (size_t w = 0; w < DELTA_CONV_WIDTH; w++) weight[w] =
        vec_load_part(run->weight + w * run->weight_stride + at, left);
    UNROLL for (size_t w = 0; w < DELTA_COLUMNS; w++) before[w] =
        vec_load_part(state + w * run->state_stride, left);
    for (uint32_t t = 0; t < run->tokens; t++, x += run->stride) {
        const vec now = vec_load_part(x, left);
        vec sum = vec_mul(weight[0], before[0]);
        UNROLL for (size_t w = 1; w < DELTA_COLUMNS; w++) sum = vec_fmadd(weight[w], before[w], sum);
        sum = vec_fmadd(weight[DELTA_COLUMNS], now, sum);
        vec_store_part(x, left, vec_swiglu(sum, vec_set1(1.0f)));
        UNROLL for (size_t w = 0; w + 1 < DELTA_COLUMNS; w++) before[w] = before[w + 1];
        before[DELTA_COLUMNS - 1] = now;
    }
    UNROLL for (size_t w = 0; w < DELTA_COLUMNS; w++)
        vec_store_part(state + w * run->state_stride, left, before[w]);
}

static void convolve(const struct delta_convolution *run)
{
    size_t at = 0;
    for (; at + LANES <= run->channels; at += LANES) convolve_part(run, at, LANES);
    if (at < run->channels) convolve_part(run, at, run->channels - at);
}

/* ---- the rule ---- */

/* q and k of one token, of length 1 and scaled; its gates. */
struct token {
    float q[DELTA_HEAD_MAX], k[DELTA_HEAD_MAX];
    struct delta_gates gates;
};

/* x, a multiple of LANES long, times `by` over its length. */
INLINE void scale_to(float *to, const float *x, uint32_t n, float by)
{
    vec sum = vec_zero();
    for (uint32_t i = 0; i < n; i += LANES) sum = vec_fmadd(vec_load(x + i), vec_load(x + i), sum);
    const vec scale = vec_set1(by / sqrtf(vec_reduce_add(sum) + DELTA_NORM_EPS));
    for (uint32_t i = 0; i < n; i += LANES) vec_store(to + i, vec_mul(vec_load(x + i), scale));
}

/* One token over `count` vectors of columns; two sums for even and odd rows. */
INLINE void columns(const struct delta_run *run, const struct token *token, uint32_t t, size_t at,
                    const size_t count)
{
    const vec decay = vec_set1(token->gates.decay), rate = vec_set1(token->gates.rate);
    float *const state = run->state + at;
    const size_t row = run->value;
    vec sum[2][VECTORS], delta[VECTORS];
    UNROLL for (size_t c = 0; c < count; c++) sum[0][c] = sum[1][c] = vec_zero();
    for (uint32_t i = 0; i < run->key; i += 2) UNROLL for (size_t r = 0; r < 2; r++)
        {
            const vec k = vec_set1(token->k[i + r]);
            UNROLL for (size_t c = 0; c < count; c++) sum[r][c] =
                vec_fmadd(k, vec_load(state + (i + r) * row + c * LANES), sum[r][c]);
        }
    UNROLL for (size_t c = 0; c < count; c++)
    {
        const vec known = vec_mul(decay, vec_add(sum[0][c], sum[1][c])),
                  v = vec_load(run->v + t * run->stride + at + c * LANES);
        delta[c] = vec_mul(rate, vec_sub(v, known));
        sum[0][c] = sum[1][c] = vec_zero();
    }
    for (uint32_t i = 0; i < run->key; i += 2) UNROLL for (size_t r = 0; r < 2; r++)
        {
            const vec k = vec_set1(token->k[i + r]), q = vec_set1(token->q[i + r]);
            UNROLL for (size_t c = 0; c < count; c++)
            {
                float *s = state + (i + r) * row + c * LANES;
                const vec now = vec_fmadd(k, delta[c], vec_mul(decay, vec_load(s)));
                vec_store(s, now);
                sum[r][c] = vec_fmadd(q, now, sum[r][c]);
            }
        }
    UNROLL for (size_t c = 0; c < count; c++)
        vec_store(run->out + t * run->out_stride + at + c * LANES, vec_add(sum[0][c], sum[1][c]));
}

/* The norm of a token's output, gated. */
INLINE void finish(const struct delta_run *run, uint32_t t)
{
    float *out = run->out + t * run->out_stride;
    const float *z = run->z + t * run->z_stride;
    vec sum = vec_zero();
    for (uint32_t j = 0; j < run->value; j += LANES)
        sum = vec_fmadd(vec_load(out + j), vec_load(out + j), sum);
    const vec scale = vec_set1(1.0f / sqrtf(vec_reduce_add(sum) / (float)run->value + run->eps));
    for (uint32_t j = 0; j < run->value; j += LANES)
        vec_store(out + j, vec_swiglu(vec_load(z + j),
                                      vec_mul(vec_mul(vec_load(out + j), scale), vec_load(run->norm + j))));
}

static void rule(const struct delta_run *run)
{
    struct token token[TOKENS_TOGETHER];
    const float by_q = 1.0f / sqrtf((float)run->key);
    for (uint32_t first = 0; first < run->tokens; first += TOKENS_TOGETHER) {
        const uint32_t left = run->tokens - first, count = left < TOKENS_TOGETHER ? left : TOKENS_TOGETHER;
        size_t at = 0;
        for (uint32_t i = 0; i < count; i++) {
            scale_to(token[i].q, run->q + (first + i) * run->stride, run->key, by_q);
            scale_to(token[i].k, run->k + (first + i) * run->stride, run->key, 1);
            token[i].gates = delta_gates_of(run, first + i);
        }
        for (; at + VECTORS * LANES <= run->value; at += VECTORS * LANES)
            for (uint32_t i = 0; i < count; i++) columns(run, &token[i], first + i, at, VECTORS);
        for (; at < run->value; at += LANES)
            for (uint32_t i = 0; i < count; i++) columns(run, &token[i], first + i, at, 1);
        for (uint32_t i = 0; i < count; i++) finish(run, first + i);
    }
}
