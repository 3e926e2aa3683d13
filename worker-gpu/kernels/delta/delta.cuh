/* What the kernels of gated delta nets share: a row's place, a token's gates, the norm of a head's output.
 *
 * Included by the files beside it and by chain/delta.cuh. */
#ifndef HELM_WORKER_GPU_KERNELS_DELTA_DELTA_CUH
#define HELM_WORKER_GPU_KERNELS_DELTA_DELTA_CUH

#include "worker-gpu/kernels/delta/delta.h"
#include "worker-gpu/kernels/device.cuh"

static const float DELTA_LENGTH_EPS = 1e-6f; /* of the lengths of q and k */

/* Where things are, with the sizes that follow from others. */
struct delta_params {
    gpuk_delta d;
    uint32_t channels, keys; /* keys: numbers of q of all k heads, and of k */
};
static inline delta_params delta_params_of(const gpuk_delta *d)
{
    return {*d, gpuk_delta_channels(d), d->key_heads * d->key_dim};
}

__device__ __forceinline__ uint32_t delta_key_of(const gpuk_delta &d, uint32_t head)
{
    return d.in_turn ? head % d.key_heads : head / (d.value_heads / d.key_heads);
}
__device__ __forceinline__ char *delta_record(const gpuk_delta &d, uint32_t row)
{
    return d.state + d.row_state[d.step.row_slot[row]] * d.slot_bytes;
}
/* A v head's matrix [key_dim][value_dim]. */
__device__ __forceinline__ float *delta_matrix(const gpuk_delta &d, char *record, uint32_t head)
{
    return reinterpret_cast<float *>(record + d.matrices_at) + (size_t)head * d.key_dim * d.value_dim;
}

/* ln of a token's decay, and how much of it the state takes. */
struct delta_gates {
    float log_decay, rate;
};
__device__ __forceinline__ delta_gates delta_gates_of(const gpuk_delta &d, uint32_t token, uint32_t head)
{
    const size_t at = (size_t)token * d.in_stride + head;
    const float alpha = __ldcg(d.alpha + at) + d.time_bias[head], beta = __ldcg(d.beta + at),
                softplus = alpha > 20 ? alpha : log1pf(expf(alpha));
    return {d.decay[head] * softplus, 1.0f / (1.0f + expf(-beta))};
}

__device__ __forceinline__ void delta_store(const gpuk_delta &d, size_t at, float v)
{
    if (d.out_dtype == DTYPE_BF16)
        ((__nv_bfloat16 *)d.out)[at] = __float2bfloat16_rn(v);
    else if (d.out_dtype == DTYPE_F16)
        ((__half *)d.out)[at] = __float2half_rn(v);
    else
        ((float *)d.out)[at] = v;
}
/* Number j of a head's output of a token, normed and gated. squares: the sum of all of the head's. */
__device__ __forceinline__ void delta_finish(const gpuk_delta &d, uint32_t token, uint32_t head, uint32_t j,
                                             float o, float squares)
{
    const uint32_t at = head * d.value_dim + j;
    const float scale = rsqrtf(squares / (float)d.value_dim + d.eps),
                z = __ldcg(d.z + (size_t)token * d.in_stride + at);
    delta_store(d, (size_t)token * d.out_stride + at, o * scale * d.norm[j] * silu(z));
}

/* Rows of fewer tokens are computed token by token: a chunk is no faster. */
static const uint32_t DELTA_CHUNKED_FROM = 32;
static_assert(GPU_DELTA_CHUNK_BYTES * DELTA_CHUNKED_FROM == 2 * GPUK_DELTA_CHUNK * GPUK_DELTA_CHUNK * sizeof(float),
              "two matrices of each chunk, which has a place for every 32 tokens");
__device__ __forceinline__ bool delta_is_chunked(uint32_t tokens, bool chunks)
{
    return chunks && tokens >= DELTA_CHUNKED_FROM;
}

/* chunk.cu: rows of many tokens, after the convolution; not their columns. */
int delta_chunks_launch(const struct gpuk_delta *args, uint32_t tokens, uint32_t flags, void *stream,
                        struct helm_err *err);
int delta_chunks_prepare(const struct gpuk_device *device, struct helm_err *err);

#endif
