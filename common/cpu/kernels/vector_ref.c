/* Elementwise operations, the definitions: plain loops, sums and functions in double. Every faster variant is
 * compared with these. Owns nothing. */
#include <math.h>

#include "common/formats/convert.h"
#include "common/cpu/kernels/variants.h"
#include "common/model/router.h"

static void rmsnorm(float *y, const float *x, const float *w, size_t n, float eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    double scale = 1.0 / sqrt(sum / (double)n + (double)eps);
    for (size_t i = 0; i < n; i++) y[i] = (float)((double)x[i] * scale * (double)w[i]);
}

static void layernorm(float *y, const float *x, const float *w, const float *b, size_t n, float eps)
{
    double mean = 0, sum = 0;
    for (size_t i = 0; i < n; i++) mean += (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1.0 / sqrt(sum / (double)n + (double)eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(((double)x[i] - mean) * scale * (double)w[i] + (b ? (double)b[i] : 0));
}

static void rope(float *x, const float *cosine, const float *sine, size_t n)
{
    size_t half = n / 2;
    for (size_t i = 0; i < half; i++) {
        double a = x[i], b = x[i + half], c = cosine[i], s = sine[i];
        x[i] = (float)(a * c - b * s);
        x[i + half] = (float)(b * c + a * s);
    }
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = (float)((double)g[i] / (1.0 + exp(-(double)g[i])) * (double)u[i]);
}

static void sigmoid(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = (float)((double)u[i] / (1.0 + exp(-(double)g[i])));
}

static void swiglu_clamped(float *y, const float *g, const float *u, size_t n)
{
    const double limit = (double)GLU_CLAMP;
    for (size_t i = 0; i < n; i++) {
        const double gate = (double)g[i] > limit ? limit : (double)g[i], up = (double)u[i] > limit ? limit
                                                                              : (double)u[i] < -limit
                                                                                  ? -limit
                                                                                  : (double)u[i];
        y[i] = (float)(gate / (1.0 + exp(-(double)GLU_ALPHA * gate)) * (up + 1.0));
    }
}

#define GELU_INNER 0.79788456080286535588 /* sqrt(2 / pi) */
static void gelu(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = (double)g[i];
        const double t = GELU_INNER * (x + 0.044715 * x * x * x); /* (1 + tanh(t)) / 2 is sigmoid(2 t) */
        y[i] = (float)(x / (1.0 + exp(-2 * t)) * (u ? (double)u[i] : 1));
    }
}

static void relu(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = (g[i] <= 0 ? 0.0f : g[i]) * (u ? u[i] : 1.0f);
}

static void relu_squared(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = (g[i] <= 0 ? 0.0f : g[i] * g[i]) * (u ? u[i] : 1.0f);
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void load(float *y, const void *x, enum dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = convert_load(x, dtype, i);
}

static void store(void *y, const float *x, enum dtype dtype, size_t n)
{
    if (dtype == DTYPE_F32) {
        memcpy(y, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half = dtype == DTYPE_BF16 ? convert_f32_bf16(x[i]) : convert_f32_f16(x[i]);
        memcpy((char *)y + i * 2, &half, 2);
    }
}

static size_t argmax(const float *x, size_t n)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (!isnan(x[i]) && (best == n || x[i] > x[best])) best = i;
    return best;
}

const struct vector_variant vector_ref = {.name = "ref",
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
                                          .delta = &delta_ref};
