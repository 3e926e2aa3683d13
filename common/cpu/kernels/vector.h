/* Elementwise operations over fp32 vectors: one table of variants, slowest first, chosen at run time.
 *
 * Called by code that computes on the CPU, by tests/kernels, which walk the table, and by loaders. Kernels
 * are pure. Definitions: vector_ref.c. */
#pragma once

#include <stddef.h>

#include "common/base/cpu.h"
#include "common/base/err.h"
#include "common/cpu/kernels/delta.h"
#include "common/formats/dtype.h"

struct vector_variant {
    const char *name;
    unsigned features;
    /* y[i] = x[i] * w[i] / sqrt(mean(x^2) + eps); y may be x */
    void (*rmsnorm)(float *y, const float *x, const float *w, size_t n, float eps);
    /* y[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * w[i] + b[i]; y may be x, b may be NULL: 0 */
    void (*layernorm)(float *y, const float *x, const float *w, const float *b, size_t n, float eps);
    /* halves layout: (x[i], x[i + n/2]) rotated by (cos[i], sin[i]), i < n/2, in place */
    void (*rope)(float *x, const float *cos, const float *sin, size_t n);
    /* y[i] = g[i] / (1 + exp(-g[i])) * u[i]; y may be g */
    void (*swiglu)(float *y, const float *g, const float *u, size_t n);
    /* the same of g up to 7 and u within 7: y[i] = g[i] / (1 + exp(-1.702 * g[i])) * (u[i] + 1) (router.h,
     * GLU_CLAMPED) */
    void (*swiglu_clamped)(float *y, const float *g, const float *u, size_t n);
    /* y[i] = u[i] / (1 + exp(-g[i])); y may be g or u */
    void (*sigmoid)(float *y, const float *g, const float *u, size_t n);
    /* Activations with u, or with u NULL alone (as if all of u were 1); y may be g. gelu: by tanh; relu:
     * max(g, 0); its square */
    void (*gelu)(float *y, const float *g, const float *u, size_t n);
    void (*relu)(float *y, const float *g, const float *u, size_t n);
    void (*relu_squared)(float *y, const float *g, const float *u, size_t n);
    void (*add)(float *y, const float *x, size_t n); /* y += x */
    /* n values of `dtype` to fp32, and fp32 to bf16 / f16 (round to nearest even) */
    void (*load)(float *y, const void *x, enum dtype dtype, size_t n);
    void (*store)(void *y, const float *x, enum dtype dtype, size_t n);
    /* index of the largest element, lowest index on a tie; NaN never wins; n if all are NaN */
    size_t (*argmax)(const float *x, size_t n);
    const struct delta_kernels *delta;
};
const struct vector_variant *const *vector_variants(size_t *count);
HELM_MUST_CHECK int vector_choose(unsigned features, const char *name, const struct vector_variant **variant,
                                  struct helm_err *err);
