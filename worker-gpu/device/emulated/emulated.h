/* Inside the emulated device: its kernels, run by its compute thread.
 *
 * Shared by emulated/device.c (queues, memory, graphs), emulated/kernels.c, emulated/attention.c and
 * emulated/chain.c (arithmetic) only. "Device memory" is host memory here, so kernels read and write
 * addresses as they are. */
#pragma once

#include "common/cpu/kernels/kernel_set.h"
#include "worker-gpu/device/device.h"

#define EMULATED_QUERIES 32 /* query positions of one attention call */

/* The arithmetic's own state: the CPU's kernels that keep activations in fp32, and scratch that grows. */
struct emulated_math {
    const struct linear_kernel *gemv[FORMAT_COUNT], *gemm[FORMAT_COUNT];
    const struct linear_kernel *decode[FORMAT_COUNT]; /* blocks to fp32; NULL of a format that has none */
    const struct vector_variant *vector;
    const struct attention_variant *attention[KV_DTYPE_COUNT];
    struct {
        void *memory;
        size_t bytes;
    } scratch[11];
    const char *broken; /* why the device has failed: no memory, or a caller that broke a kernel's rules */
};
HELM_MUST_CHECK int emulated_math_open(struct emulated_math *math, struct helm_err *err);
void emulated_math_close(struct emulated_math *math);

/* Computes an operation, on the device's thread. */
typedef void emulated_run_fn(struct emulated_math *math, const struct op *op);
/* Puts run(op) into the compute queue (or into the graph being captured); the operation is copied. */
int emulated_enqueue(struct device *d, emulated_run_fn *run, const struct op *op, struct helm_err *err);

/* emulated/kernels.c */
int emulated_run(struct device *d, const struct op *op, struct helm_err *err);
extern const struct device_asked emulated_asked;

/* ---- between the kernel files ---- */

enum scratch_use {
    SCRATCH_X,
    SCRATCH_Y,
    SCRATCH_Y2,
    SCRATCH_TILED,
    SCRATCH_GEMM,
    SCRATCH_ATTEND,
    SCRATCH_PLAIN,
    SCRATCH_PARTS, /* of attention over both pools */
    SCRATCH_PAGES,
    SCRATCH_EXPERTS, /* of experts: sums; inputs */
    SCRATCH_EXPERTS_X
};
/* At least `bytes` of scratch, kept for the next call; NULL (and broken) when there is none. */
void *emulated_scratch(struct emulated_math *math, enum scratch_use use, size_t bytes);
/* n values into out[at ...] of `dtype`. */
static inline void emulated_store(const struct emulated_math *math, void *out, size_t at, enum dtype dtype,
                                  const float *x, size_t n)
{
    math->vector->store((char *)out + at * dtype_bytes(dtype), x, dtype, n);
}
/* How many of `tokens` are there. */
static inline uint32_t emulated_count(const uint32_t *count, uint32_t tokens)
{
    return *count < tokens ? *count : tokens;
}

emulated_run_fn emulated_run_route, emulated_run_experts_ask, emulated_run_experts_add,
    emulated_run_experts_group, emulated_run_experts_glu, emulated_run_experts_down, emulated_run_experts_sum;
/* Few tokens' products: for chains. */
void emulated_experts_glu(struct emulated_math *math, const struct gpuk_experts_glu *c, uint32_t tokens);
void emulated_experts_down(struct emulated_math *math, const struct gpuk_experts_down *c, uint32_t tokens);
size_t emulated_experts_workspace(uint32_t tokens, uint32_t chosen, uint32_t cols);
/* A linear of any number of tokens: for experts and chains. */
void emulated_linear(struct emulated_math *math, const struct gpuk_linear_args *args, uint32_t tokens,
                     uint32_t x_stride, uint32_t out_stride);
emulated_run_fn emulated_run_heads, emulated_run_convolve, emulated_run_delta;
emulated_run_fn emulated_run_rope_append, emulated_run_attend_decode, emulated_run_attend_prefill,
    emulated_run_attend_merge, emulated_run_argmax, emulated_run_few, emulated_run_chain;
/* One token's operations, at once: for chains. */
void emulated_run_fused(struct emulated_math *math, const struct gpuk_attention *args, float *out,
                        void *workspace);
void emulated_convolve(struct emulated_math *math, const struct gpuk_delta *args);
void emulated_weigh(struct emulated_math *math, const struct gpuk_weigh *args, uint32_t tokens);
void emulated_delta_rule(struct emulated_math *math, const struct gpuk_delta *args);
size_t emulated_attention_counters(uint32_t tokens, uint32_t heads);
size_t emulated_attention_workspace(uint32_t tokens, uint32_t heads, uint32_t head_dim);
size_t emulated_argmax_workspace(uint32_t rows);
size_t emulated_few_workspace(uint32_t rows, uint32_t vocab);

bool emulated_chain_takes(struct device *d, const struct gpuk_chain_op *op);
size_t emulated_chain_bytes(const struct gpuk_chain_op *op, uint32_t count);
int emulated_chain_write(struct device *d, const struct gpuk_chain_op *op, uint32_t count, void *memory,
                         void *attention_workspace, struct gpuk_chain *chain, struct helm_err *err);
