/* The CUDA device's operations: the launchers of kernels.h on its compute stream. See cuda.h. */
#include "worker-gpu/cuda.h"

#define STREAM(d) ((void *)cuda_of(d)->stream[DEVICE_COMPUTE])

static int cuda_gemv(struct device *d, const struct gpuk_linear_args *args, void *workspace, uint32_t flags,
                     struct helm_err *err)
{
    return gpuk_gemv(&cuda_of(d)->caps, args, workspace, flags, STREAM(d), err);
}

static int cuda_gemm_small(struct device *d, const struct gpuk_linear_args *args, uint32_t tokens,
                           const uint32_t *count, void *workspace, uint32_t flags, struct helm_err *err)
{
    return gpuk_gemm_small(&cuda_of(d)->caps, args, tokens, count, workspace, flags, STREAM(d), err);
}

static int cuda_embed(struct device *d, const struct gpuk_step *step, uint32_t tokens, const void *table,
                      enum dtype dtype, uint32_t vocab, uint32_t hidden, float *x, uint32_t flags,
                      struct helm_err *err)
{
    return gpuk_embed(step, tokens, table, dtype, vocab, hidden, x, flags, STREAM(d), err);
}

static int cuda_rmsnorm(struct device *d, const uint32_t *count, uint32_t tokens, const float *x,
                        const float *norm, float eps, uint32_t hidden, void *out, enum dtype out_dtype,
                        uint32_t flags, struct helm_err *err)
{
    return gpuk_rmsnorm(count, tokens, x, norm, eps, hidden, out, out_dtype, flags, STREAM(d), err);
}

static int cuda_gather(struct device *d, const struct gpuk_step *step, uint32_t samples, const float *x,
                       uint32_t hidden, float *out, uint32_t flags, struct helm_err *err)
{
    return gpuk_gather(step, samples, x, hidden, out, flags, STREAM(d), err);
}

static int cuda_lane_copy(struct device *d, const uint32_t *count, uint32_t tokens, const float *x,
                          uint32_t hidden, float *out, uint32_t flags, struct helm_err *err)
{
    return gpuk_lane_copy(count, tokens, x, hidden, out, flags, STREAM(d), err);
}

static int cuda_swiglu(struct device *d, const uint32_t *count, uint32_t tokens, const void *in,
                       enum dtype in_dtype, uint32_t stride, uint32_t up_at, uint32_t n, void *out,
                       enum dtype out_dtype, uint32_t out_stride, uint32_t flags, struct helm_err *err)
{
    return gpuk_swiglu(count, tokens, in, in_dtype, stride, up_at, n, out, out_dtype, out_stride, flags,
                       STREAM(d), err);
}

static int cuda_expand(struct device *d, const struct gpuk_expand_part *part, uint32_t parts,
                       struct helm_err *err)
{
    return gpuk_expand(&cuda_of(d)->caps, part, parts, 0, STREAM(d), err);
}

static bool cuda_gemv_packed_takes(struct device *d, const struct gpuk_linear_args *args)
{
    return gpuk_gemv_packed_takes(&cuda_of(d)->caps, args);
}

static int cuda_gemv_packed(struct device *d, const struct gpuk_linear_args *args,
                            const uint32_t *const *offset, uint32_t flags, struct helm_err *err)
{
    return gpuk_gemv_packed(&cuda_of(d)->caps, args, offset, flags, STREAM(d), err);
}

static int cuda_rope_table(struct device *d, const struct gpuk_step *step, uint32_t tokens,
                           const float *inv_freq, uint32_t head_dim, float scale, float *table,
                           uint32_t flags, struct helm_err *err)
{
    return gpuk_rope_table(step, tokens, inv_freq, head_dim, scale, table, flags, STREAM(d), err);
}

static int cuda_rope_append(struct device *d, const struct gpuk_attention *args, uint32_t tokens, void *q_out,
                            enum dtype q_dtype, uint32_t flags, struct helm_err *err)
{
    return gpuk_rope_append(args, tokens, q_out, q_dtype, flags, STREAM(d), err);
}

static int cuda_attention_decode(struct device *d, const struct gpuk_attention *args, uint32_t tokens,
                                 bool fused, float *out, void *workspace, uint32_t flags,
                                 struct helm_err *err)
{
    return gpuk_attention_decode(&cuda_of(d)->caps, args, tokens, fused, out, NULL, NULL, workspace, flags,
                                 STREAM(d), err);
}

static int cuda_attention_prefill(struct device *d, const struct gpuk_attention *args, const void *q,
                                  uint32_t tokens, uint32_t rows, void *out, enum dtype out_dtype,
                                  uint32_t flags, struct helm_err *err)
{
    return gpuk_attention_prefill(&cuda_of(d)->caps, args, q, tokens, rows, out, out_dtype, flags, STREAM(d),
                                  err);
}

static int cuda_few(struct device *d, const struct gpuk_few *few, uint32_t count, const float *logits,
                    uint32_t vocab, struct gpuk_few_room *room, void *workspace, struct helm_err *err)
{
    return gpuk_few(few, count, logits, vocab, room, workspace, STREAM(d), err);
}

static int cuda_argmax(struct device *d, const uint32_t *count, uint32_t rows, const float *logits,
                       uint32_t vocab, struct gpuk_token *result, const struct gpuk_next *next,
                       void *workspace, uint32_t flags, struct helm_err *err)
{
    return gpuk_argmax(count, rows, logits, vocab, result, next, workspace, flags, STREAM(d), err);
}

static int cuda_matmul(struct device *d, enum dtype dtype, enum dtype out_dtype, uint32_t tokens,
                       uint32_t rows, uint32_t cols, uint32_t out_stride, bool accumulate, const void *w,
                       const void *x, void *out, void *workspace, struct helm_err *err)
{
    const struct gpuk_matmul_plan *plan = NULL;
    int rc = gpuk_matmul_plan(cuda_of(d)->matmul, dtype, out_dtype, tokens, rows, cols, out_stride,
                              accumulate, &plan, err);
    return rc ? rc : gpuk_matmul_run(plan, w, x, out, workspace, STREAM(d), err);
}

static int cuda_add_bias(struct device *d, const uint32_t *count, uint32_t tokens, void *out,
                         enum dtype dtype, uint32_t stride, uint32_t rows, const float *bias, uint32_t flags,
                         struct helm_err *err)
{
    return gpuk_add_bias(count, tokens, out, dtype, stride, rows, bias, flags, STREAM(d), err);
}

static bool cuda_chain_takes(struct device *d, const struct gpuk_chain_op *op)
{
    return gpuk_chain_takes(&cuda_of(d)->caps, op);
}

static int cuda_chain_write(struct device *d, const struct gpuk_chain_op *op, uint32_t count, void *memory,
                            void *attention_workspace, struct gpuk_chain *chain, struct helm_err *err)
{
    if (cuda_of(d)->capture.on) return helm_fail(err, HELM_E_STATE, "a chain is written inside a capture");
    return gpuk_chain_write(&cuda_of(d)->caps, op, count, memory, attention_workspace, STREAM(d), chain, err);
}

static int cuda_chain_run(struct device *d, const struct gpuk_chain *chain, struct helm_err *err)
{
    return gpuk_chain_run(chain, STREAM(d), err);
}

const struct device_kernels cuda_kernels = {
    .gemv = cuda_gemv,
    .gemm_small = cuda_gemm_small,
    .embed = cuda_embed,
    .rmsnorm = cuda_rmsnorm,
    .gather = cuda_gather,
    .lane_copy = cuda_lane_copy,
    .swiglu = cuda_swiglu,
    .rope_table = cuda_rope_table,
    .rope_append = cuda_rope_append,
    .attention_decode = cuda_attention_decode,
    .attention_prefill = cuda_attention_prefill,
    .argmax = cuda_argmax,
    .few = cuda_few,
    .matmul = cuda_matmul,
    .expand = cuda_expand,
    .gemv_packed_takes = cuda_gemv_packed_takes,
    .gemv_packed = cuda_gemv_packed,
    .add_bias = cuda_add_bias,
    .chain_takes = cuda_chain_takes,
    .chain_bytes = gpuk_chain_bytes,
    .chain_write = cuda_chain_write,
    .chain_run = cuda_chain_run,
    .gemv_workspace = gpuk_gemv_workspace_bytes,
    .gemm_small_workspace = gpuk_gemm_small_workspace_bytes,
    .attention_counters = gpuk_attention_counter_bytes,
    .attention_workspace = gpuk_attention_workspace_bytes,
    .argmax_workspace = gpuk_argmax_workspace_bytes,
    .few_workspace = gpuk_few_workspace_bytes,
    .matmul_workspace = GPUK_MATMUL_WORKSPACE,
};
