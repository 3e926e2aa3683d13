/* Elementwise operations on vectors of any width. Included once by vector_avx2.c and vector_avx512.c after
 * their vectors. An operation is written for `left` lanes: whole vectors pass the constant LANES, the rest of
 * an array what it has, so that any length takes one path. */
#include <math.h>

#include "common/cpu/kernels/delta_simd.h"
#include "common/cpu/kernels/swiglu_simd.h"
#include "common/cpu/kernels/variants.h"
#include "common/model/router.h"

/* Does `step`, which uses i and left, for all of n. */
#define EACH(n, step)                                                                                        \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
        for (const size_t left = LANES; i + LANES <= (n); i += LANES) step;                                  \
        if (i < (n)) {                                                                                       \
            const size_t left = (n)-i;                                                                       \
            step;                                                                                            \
        }                                                                                                    \
    } while (0)

static void rmsnorm(float *y, const float *x, const float *w, size_t n, float eps)
{
    vec sum[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    size_t at = 0;
    for (; at + 4 * LANES <= n; at += 4 * LANES) UNROLL for (size_t j = 0; j < 4; j++)
        {
            const vec v = vec_load(x + at + j * LANES);
            sum[j] = vec_fmadd(v, v, sum[j]);
        }
    for (size_t j = 0; at < n; at += LANES, j++) {
        const vec v = vec_load_part(x + at, n - at);
        sum[j] = vec_fmadd(v, v, sum[j]);
    }
    float total = vec_reduce_add(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3])));
    const vec scale = vec_set1(1.0f / sqrtf(total / (float)n + eps));
    EACH(n, vec_store_part(y + i, left,
                           vec_mul(vec_mul(vec_load_part(x + i, left), scale), vec_load_part(w + i, left))));
}

/* Sums x, then the squares of its differences from the mean: two passes, since a mean may be large. */
static void layernorm(float *y, const float *x, const float *w, const float *b, size_t n, float eps)
{
    vec sum = vec_zero(), squares = vec_zero();
    EACH(n, sum = vec_add(sum, vec_load_part(x + i, left)));
    const float middle = vec_reduce_add(sum) / (float)n;
    const vec mean = vec_set1(middle);
    size_t at = 0;
    for (; at + LANES <= n; at += LANES) {
        const vec v = vec_sub(vec_load(x + at), mean);
        squares = vec_fmadd(v, v, squares);
    }
    float total = vec_reduce_add(squares);
    for (; at < n; at++) total += (x[at] - middle) * (x[at] - middle);
    const vec scale = vec_set1(1.0f / sqrtf(total / (float)n + eps));
    EACH(n,
         vec_store_part(y + i, left,
                        vec_fmadd(vec_mul(vec_sub(vec_load_part(x + i, left), mean), scale),
                                  vec_load_part(w + i, left), b ? vec_load_part(b + i, left) : vec_zero())));
}

INLINE void rope_part(float *x, float *far, const float *cosine, const float *sine, size_t left)
{
    const vec a = vec_load_part(x, left), b = vec_load_part(far, left);
    const vec c = vec_load_part(cosine, left), s = vec_load_part(sine, left);
    vec_store_part(x, left, vec_fmsub(a, c, vec_mul(b, s)));
    vec_store_part(far, left, vec_fmadd(b, c, vec_mul(a, s)));
}

static void rope(float *x, const float *cosine, const float *sine, size_t n)
{
    const size_t half = n / 2;
    EACH(half, rope_part(x + i, x + half + i, cosine + i, sine + i, left));
}

INLINE void swiglu_part(float *y, const float *g, const float *u, size_t left)
{
    vec_store_part(y, left, vec_swiglu(vec_load_part(g, left), vec_load_part(u, left)));
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    EACH(n, swiglu_part(y + i, g + i, u + i, left));
}

INLINE void sigmoid_part(float *y, const float *g, const float *u, size_t left)
{
    const vec e = vec_exp(vec_sub(vec_zero(), vec_load_part(g, left)));
    vec_store_part(y, left, vec_div(vec_load_part(u, left), vec_add(vec_set1(1.0f), e)));
}

static void sigmoid(float *y, const float *g, const float *u, size_t n)
{
    EACH(n, sigmoid_part(y + i, g + i, u + i, left));
}

/* vec_max and vec_min return their second operand where one is a NaN: it stays one. */
INLINE void swiglu_clamped_part(float *y, const float *g, const float *u, size_t left)
{
    const vec limit = vec_set1(GLU_CLAMP), gate = vec_min(limit, vec_load_part(g, left)),
              up = vec_max(vec_set1(-GLU_CLAMP), vec_min(limit, vec_load_part(u, left)));
    const vec e = vec_exp(vec_mul(vec_set1(-GLU_ALPHA), gate)), one = vec_set1(1.0f);
    vec_store_part(y, left, vec_mul(vec_div(gate, vec_add(one, e)), vec_add(up, one)));
}

static void swiglu_clamped(float *y, const float *g, const float *u, size_t n)
{
    EACH(n, swiglu_clamped_part(y + i, g + i, u + i, left));
}

/* An activation's value, with u or alone. */
INLINE void store_gated(float *y, const float *u, size_t i, size_t left, vec value)
{
    vec_store_part(y + i, left, u ? vec_mul(value, vec_load_part(u + i, left)) : value);
}

/* x * (1 + tanh(t)) / 2 is x * sigmoid(2 t). */
INLINE vec vec_gelu(vec x)
{
    const vec t = vec_mul(vec_mul(x, vec_set1(-2 * 0.7978845608f)),
                          vec_fmadd(vec_mul(x, x), vec_set1(0.044715f), vec_set1(1.0f)));
    return vec_div(x, vec_add(vec_set1(1.0f), vec_exp(t)));
}

static void gelu(float *y, const float *g, const float *u, size_t n)
{
    EACH(n, store_gated(y, u, i, left, vec_gelu(vec_load_part(g + i, left))));
}

/* vec_max returns its second operand where one is a NaN: it stays one. */
static void relu(float *y, const float *g, const float *u, size_t n)
{
    EACH(n, store_gated(y, u, i, left, vec_max(vec_zero(), vec_load_part(g + i, left))));
}

INLINE vec vec_square(vec x)
{
    return vec_mul(x, x);
}

static void relu_squared(float *y, const float *g, const float *u, size_t n)
{
    EACH(n, store_gated(y, u, i, left, vec_square(vec_max(vec_zero(), vec_load_part(g + i, left)))));
}

static void add(float *y, const float *x, size_t n)
{
    EACH(n, vec_store_part(y + i, left, vec_add(vec_load_part(y + i, left), vec_load_part(x + i, left))));
}

static void load(float *y, const void *x, enum dtype dtype, size_t n)
{
    if (dtype == DTYPE_F32)
        memcpy(y, x, n * sizeof *y);
    else if (dtype == DTYPE_BF16)
        EACH(n, vec_store_part(y + i, left, lanes_widen(x, i, left, DTYPE_BF16)));
    else
        EACH(n, vec_store_part(y + i, left, lanes_widen(x, i, left, DTYPE_F16)));
}

static void store(void *y, const float *x, enum dtype dtype, size_t n)
{
    uint16_t *to = y;
    if (dtype == DTYPE_F32)
        memcpy(y, x, n * sizeof *x);
    else if (dtype == DTYPE_BF16)
        EACH(n, vec_narrow_part(to + i, left, vec_load_part(x + i, left), DTYPE_BF16));
    else
        EACH(n, vec_narrow_part(to + i, left, vec_load_part(x + i, left), DTYPE_F16));
}

/* First the largest value (vec_max returns its second operand when one is NaN, so NaN never enters), then the
 * first place that holds it. */
static size_t argmax(const float *x, size_t n)
{
    const vec low = vec_set1(-INFINITY);
    vec max[4] = {low, low, low, low};
    size_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        UNROLL for (size_t j = 0; j < 4; j++) max[j] = vec_max(vec_load(x + i + j * LANES), max[j]);
    for (; i < n; i += LANES) {
        const int left = n - i < LANES ? (int)(n - i) : LANES;
        max[0] = vec_max(vec_keep(vec_load_part(x + i, n - i), 0, left, low), max[0]);
    }
    const vec top = vec_set1(vec_reduce_max(vec_max(vec_max(max[0], max[1]), vec_max(max[2], max[3]))));
    for (i = 0; i < n; i += LANES) {
        unsigned hit = vec_equal(vec_load_part(x + i, n - i), top);
        if (n - i < LANES) hit &= (1u << (n - i)) - 1;
        if (hit) return i + (size_t)__builtin_ctz(hit);
    }
    return n;
}

const struct vector_variant VARIANT = {.name = NAME,
                                       .features = FEATURES,
                                       .rmsnorm = rmsnorm,
                                       .layernorm = layernorm,
                                       .rope = rope,
                                       .swiglu = swiglu,
                                       .swiglu_clamped = swiglu_clamped,
                                       .sigmoid = sigmoid,
                                       .gelu = gelu,
                                       .relu = relu,
                                       .relu_squared = relu_squared,
                                       .add = add,
                                       .load = load,
                                       .store = store,
                                       .argmax = argmax,
                                       .delta = &(const struct delta_kernels){convolve, rule}};
