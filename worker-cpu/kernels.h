/* The CPU's kernels: one table of variants per operation, chosen at run time from one binary.
 *
 * Called by worker-cpu/step.c (through the choice made at start), by tests/kernels (which walk the tables, so
 * that an untested variant cannot be selected) and by the kernel benchmark. Kernels are pure: they own
 * nothing, allocate nothing, and touch only their arguments. Any rows, cols >= 1 are allowed; weights are
 * row-major with a row stride of `cols` elements and need only element alignment. Accumulation is fp32.
 *
 * Variants stand slowest first: ref, avx2, avx512, avx512-bf16, amx-bf16. */
#ifndef HELM_WORKER_CPU_KERNELS_H
#define HELM_WORKER_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cpu.h"
#include "common/err.h"
#include "common/model/model.h"

/* How a gemv reads ahead. Changes no result. */
struct gemv_reads {
    const void *next; /* what this thread reads after these rows, in streams next_stride bytes apart; NULL: */
    size_t next_stride; /* not known */
    uint32_t near,
        far; /* bytes ahead of each stream's position that are fetched into L1 and into L2; far 0: not */
};
#define GEMV_NEAR 2048
#define GEMV_FAR  8192
/* What usually suits this processor; worker-cpu/read_ahead.h tries it out. */
struct gemv_reads gemv_reads_choose(void);

/* y[r] = sum_c w[r][c] * x[c], r in [0, rows). Activations fp32 throughout: a decode step rounds nothing.
 * `reads` NULL: 2 KiB near, nothing else. */
typedef void gemv_fn(float *y, const void *w, const float *x, size_t rows, size_t cols,
                     const struct gemv_reads *reads);

/* Batched: x is first packed (rounded to bf16, blocked for tiles: the variant's own layout) by every thread
 * for its share of tokens, then each thread multiplies its share of rows. pack:  tokens [first, last) of x
 * (row stride ldx floats) into `packed`; ranges are multiples of pack_tokens except the last. Zero-fills its
 * own padding. gemm:  y[t * ldy + r] (+)= sum_c w[r][c] * x[t][c] for t < tokens, r < rows. `scratch` is the
 * calling thread's own, gemm_scratch_bytes large, 64-byte aligned. */
typedef size_t gemm_packed_bytes_fn(size_t tokens, size_t cols);
typedef void gemm_pack_fn(void *packed, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                          size_t last);
typedef void gemm_fn(float *y, size_t ldy, const void *w, const void *packed, size_t rows, size_t cols,
                     size_t tokens, bool accumulate, void *scratch);

struct linear_variant {
    const char *name;  /* "avx512-bf16" */
    unsigned features; /* enum cpu_feature bits it needs */
    enum dtype dtype;  /* of the weights */
    bool exact_input;  /* activations stay fp32 in gemm (golden tolerance class "float32") */
    gemv_fn *gemv;
    /* Rows that a gemv reads side by side, each stream an equal run of its rows: those should be a multiple
     * of it */
    size_t gemv_streams;
    size_t pack_tokens; /* granule of pack ranges */
    size_t row_granule; /* rows a gemm's share should be a multiple of */
    gemm_packed_bytes_fn *packed_bytes;
    gemm_pack_fn *pack;
    gemm_fn *gemm;
    size_t (*scratch_bytes)(size_t cols, size_t tokens);
    void (*thread_begin)(
        void); /* per step and thread, before the first gemm (AMX tile configuration); may be NULL */
    void (*thread_end)(void);
};
/* All variants of all dtypes compiled in, whatever this CPU has. */
const struct linear_variant *const *linear_variants(size_t *count);
/* The fastest that `features` allows for dtype, or the one called `name` (NULL: automatic). Errors name what
 * is missing. */
HELM_MUST_CHECK int linear_choose(enum dtype dtype, unsigned features, const char *name,
                                  const struct linear_variant **variant, struct helm_err *err);

/* Elementwise operations, all over fp32 vectors. Definitions: worker-cpu/kernels/ref.c. */
struct vector_variant {
    const char *name;
    unsigned features;
    /* y[i] = x[i] * w[i] / sqrt(mean(x^2) + eps); y may be x */
    void (*rmsnorm)(float *y, const float *x, const float *w, size_t n, float eps);
    /* halves layout: (x[i], x[i + n/2]) rotated by (cos[i], sin[i]), i < n/2, in place */
    void (*rope)(float *x, const float *cos, const float *sin, size_t n);
    /* y[i] = g[i] / (1 + exp(-g[i])) * u[i]; y may be g */
    void (*swiglu)(float *y, const float *g, const float *u, size_t n);
    void (*add)(float *y, const float *x, size_t n); /* y += x */
    /* n values of `dtype` to fp32, and fp32 to bf16 / f16 (round to nearest even) */
    void (*load)(float *y, const void *x, enum dtype dtype, size_t n);
    void (*store)(void *y, const float *x, enum dtype dtype, size_t n);
    /* index of the largest element, lowest index on a tie; NaN never wins; n if all are NaN */
    size_t (*argmax)(const float *x, size_t n);
};
const struct vector_variant *const *vector_variants(size_t *count);
HELM_MUST_CHECK int vector_choose(unsigned features, const char *name, const struct vector_variant **variant,
                                  struct helm_err *err);

#endif
