/* What both decode attention kernels share: their arguments, the query on its way into shared memory, and the
 * ways results leave a block.
 *
 * Included by attention_decode.cu and attention_decode_tensor.cu. */
#ifndef HELM_WORKER_GPU_KERNELS_ATTENTION_DECODE_CUH
#define HELM_WORKER_GPU_KERNELS_ATTENTION_DECODE_CUH

#include "worker-gpu/kernels/rope.cuh"

static const float LN2 = 0.69314718055994531f, LOG2E = 1.44269504088896341f;

struct decode_params {
    gpuk_attention a;
    float *out, *partial_m, *partial_s;
    uint32_t *counters;
    float *piece_m, *piece_s, *piece_o; /* [token][head][GPUK_SPLITS_MAX] ([head_dim]) */
    uint32_t group_chunks;
    bool fused;
};

__device__ __forceinline__ float exp2_of(float x)
{
    return exp2f(x); /* exp2(-inf) = 0 */
}
/* The factor that brings sums relative to `from` to sums relative to `to` >= from. */
__device__ __forceinline__ float rescale(float from, float to)
{
    return from == -INFINITY ? 0.0f : exp2_of(from - to);
}

/* Puts the group's q into shared memory, scaled; with `fused` norms and rotates first, and appends k and v
 * when this block's piece ends with the token's own position. */
template <typename T>
__device__ __forceinline__ void take_query(const decode_params &p, uint32_t t, uint32_t kv_head,
                                           uint32_t head0, uint32_t heads, uint32_t position,
                                           const uint32_t *pages, bool owner, float *qs, float *scratch)
{
    const gpuk_attention &a = p.a;
    const uint32_t head_dim = a.kv.layout.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float scale = a.scale * LOG2E;
    if (!p.fused) {
        for (uint32_t i = threadIdx.x; i < heads * head_dim; i += blockDim.x)
            qs[i] = __ldcg(a.q + (size_t)t * a.q_stride + (size_t)head0 * head_dim + i) * scale;
        return;
    }
    const float *table = a.rope_table + (size_t)t * 2 * (head_dim / 2);
    float v[HEAD_STEPS], *own = scratch + warp * head_dim;
    for (uint32_t task = warp; task < heads + (owner ? 2 : 0); task += blockDim.x / 32) {
        if (task < heads) {
            const float *from = a.q + (size_t)t * a.q_stride + (size_t)(head0 + task) * head_dim;
            head_load(from, a.q_norm, a.eps, table, head_dim, own, v);
#pragma unroll
            for (uint32_t j = 0; j < HEAD_STEPS; j++)
                if (lane + 32 * j < head_dim) qs[task * head_dim + lane + 32 * j] = v[j] * scale;
        } else {
            bool is_value = task > heads;
            const float *from = (is_value ? a.v : a.k) + (size_t)t * a.kv_stride + (size_t)kv_head * head_dim;
            head_load(from, is_value ? nullptr : a.k_norm, a.eps, is_value ? nullptr : table, head_dim, own,
                      v);
            kv_store<T>(a.kv, pages, position, is_value, kv_head, v);
        }
    }
}

/* Writes one head's merged result. */
__device__ __forceinline__ void put_out(const decode_params &p, size_t head, uint32_t d, float o, float m,
                                        float s)
{
    p.out[head * p.a.kv.layout.head_dim + d] = p.partial_m ? o : (s > 0 ? o / s : 0.0f);
    if (d == 0 && p.partial_m) {
        p.partial_m[head] = m * LN2;
        p.partial_s[head] = s;
    }
}

/* The last block of a head group to get here merges the pieces. */
template <int G>
__device__ __forceinline__ void merge_pieces(const decode_params &p, size_t head0, uint32_t heads,
                                             uint32_t pieces, uint32_t *counter, float *weight)
{
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) == pieces - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0; /* ready for the next step */
    const uint32_t head_dim = p.a.kv.layout.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *total = weight + G * GPUK_SPLITS_MAX, *maximum = total + G;
    for (uint32_t g = warp; g < heads; g += blockDim.x / 32) {
        const float *m = p.piece_m + (head0 + g) * GPUK_SPLITS_MAX,
                    *s = p.piece_s + (head0 + g) * GPUK_SPLITS_MAX;
        float most = -INFINITY, sum = 0;
        for (uint32_t i = lane; i < pieces; i += 32) most = fmaxf(most, __ldcg(m + i));
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
        for (uint32_t i = lane; i < pieces; i += 32) {
            float w = rescale(__ldcg(m + i), most);
            weight[g * GPUK_SPLITS_MAX + i] = w;
            sum += w * __ldcg(s + i);
        }
        sum = warp_sum(sum);
        if (lane == 0) total[g] = sum, maximum[g] = most;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < heads * head_dim; i += blockDim.x) {
        uint32_t g = i / head_dim, d = i - g * head_dim;
        const float *o = p.piece_o + (head0 + g) * GPUK_SPLITS_MAX * head_dim + d;
        float sum = 0;
#pragma unroll 8
        for (uint32_t c = 0; c < pieces; c++)
            sum += weight[g * GPUK_SPLITS_MAX + c] * __ldcg(o + (size_t)c * head_dim);
        put_out(p, head0 + g, d, sum, maximum[g], total[g]);
    }
}

/* Adds up the block's warps (os [W][G][head_dim], ms and ss [W][G] in shared memory) and stores the heads'
 * results, or this piece's and, in the last block, all pieces'. `memory`: shared memory for the merge; may
 * overlap os. */
template <int G, int W>
__device__ __forceinline__ void finish_block(const decode_params &p, uint32_t t, uint32_t head0,
                                             uint32_t heads, uint32_t pieces, const float *os,
                                             const float *ms, const float *ss, float *memory)
{
    const uint32_t head_dim = p.a.kv.layout.head_dim;
    const size_t head = (size_t)t * p.a.heads + head0;
    for (uint32_t i = threadIdx.x; i < heads * head_dim; i += blockDim.x) {
        uint32_t g = i / head_dim, d = i - g * head_dim;
        float most = -INFINITY, sum = 0, value = 0;
#pragma unroll
        for (uint32_t w = 0; w < W; w++) most = fmaxf(most, ms[w * G + g]);
#pragma unroll
        for (uint32_t w = 0; w < W; w++) {
            float factor = rescale(ms[w * G + g], most);
            sum += factor * ss[w * G + g];
            value += factor * os[(w * G + g) * head_dim + d];
        }
        if (pieces == 1) {
            put_out(p, head + g, d, value, most, sum);
        } else {
            size_t at = (head + g) * GPUK_SPLITS_MAX + blockIdx.x;
            p.piece_o[at * head_dim + d] = value;
            if (d == 0) p.piece_m[at] = most, p.piece_s[at] = sum;
        }
    }
    if (pieces > 1)
        merge_pieces<G>(p, head, heads, pieces, p.counters + (size_t)t * gridDim.y + blockIdx.y, memory);
}

/* The tensor kernel's launch, for shapes that decode_tensor_fits. */
bool decode_tensor_fits(const struct gpuk_device *device, const struct gpuk_attention *args);
int decode_tensor_launch(const struct gpuk_device *device, decode_params *params, uint32_t tokens,
                         uint32_t flags, void *stream, struct helm_err *err);
int decode_tensor_prepare(struct helm_err *err);

#endif
