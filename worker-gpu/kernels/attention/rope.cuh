/* Norm, rotation and cache rows of one head: shared by the append kernel and by decode attention, which does
 * the same for one token on the fly.
 *
 * Roundings are written out: one token's numbers are those of several, whichever kernel makes them.
 *
 * Included by rope.cu and attention/decode.cuh. */
#pragma once

#include "worker-gpu/kernels/attention/kv_cell.cuh"

/* A head's norm: none, or one with weights [head_dim], or one without (weight NULL). */
struct head_norm {
    bool normed;
    const float *weight;
    float eps;
};
/* Those of queries, of keys (k, or else) and of values. */
__device__ __forceinline__ head_norm query_norm(const gpuk_attention &a)
{
    return head_norm{a.q_norm != nullptr, a.q_norm, a.eps};
}
__device__ __forceinline__ head_norm cell_norm(const gpuk_attention &a, bool is_value)
{
    return is_value ? head_norm{a.v_normed, nullptr, a.eps} : head_norm{a.k_norm != nullptr, a.k_norm, a.eps};
}

/* Loads a head's x (dimension lane + 32 j), applies the norm (if any) and the rotation (if table) of the
 * first `turning` dimensions. `shared` holds head_dim floats of this warp's own. The result is in v and, with
 * a rotation, was exchanged there. latent not 0: the norm is of so many dimensions, and those from there on
 * turn. */
template <uint32_t N>
__device__ __forceinline__ void head_load(const float *x, const head_norm &norm, const float *table,
                                          uint32_t turning, uint32_t head_dim, float *shared, float (&v)[N],
                                          uint32_t latent = 0)
{
    const uint32_t lane = threadIdx.x & 31, half = turning / 2, normed = latent ? latent : head_dim;
    float squares = 0, weight[N], c[N], s[N];
    /* everything is on its way before the first is used */
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t d = lane + 32 * j;
        v[j] = d < head_dim ? __ldcg(x + d) : 0.0f;
        weight[j] = norm.weight && d < normed ? norm.weight[d] : 1.0f;
        const bool turns = table && d - latent < 2 * half; /* nor the last one of an odd number */
        const uint32_t i = d - latent < half ? d - latent : d - latent - half;
        c[j] = turns ? __ldcg(table + i) : 1.0f;
        s[j] = turns ? __ldcg(table + half + i) : 0.0f;
    }
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        if (!latent || lane + 32 * j < normed) squares = __fmaf_rn(v[j], v[j], squares);
    if (norm.normed) {
        float scale = rsqrtf(__fadd_rn(warp_sum(squares) / (float)normed, norm.eps));
#pragma unroll
        for (uint32_t j = 0; j < N; j++)
            if (!latent || lane + 32 * j < normed) v[j] = __fmul_rn(__fmul_rn(v[j], scale), weight[j]);
    }
    if (!table) return;
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        if (lane + 32 * j < head_dim) shared[lane + 32 * j] = v[j];
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t d = lane + 32 * j, in_turn = d - latent; /* below: more than any */
        if (in_turn >= 2 * half) continue;
        const float other = in_turn < half ? -shared[d + half] : shared[d - half];
        v[j] = __fmaf_rn(v[j], c[j], __fmul_rn(other, s[j]));
    }
    __syncwarp();
}

/* The factor of number `at` of a dense output. */
__device__ __forceinline__ float gate_of(const float *gate, uint32_t stride, uint32_t width, size_t at)
{
    if (!gate) return 1;
    const size_t token = at / width;
    return 1.0f / (1.0f + expf(-__ldcg(gate + token * stride + (at - token * width))));
}
__device__ __forceinline__ float gate_at(const gpuk_attention &a, size_t at)
{
    return gate_of(a.gate, a.gate_stride, a.heads * a.kv.layout.head_dim, at);
}

/* Puts down a head's key or value, by a warp. `page`: that of the position. */
template <typename C, uint32_t N>
__device__ __forceinline__ void kv_store_in(const gpuk_kv &kv, uint32_t page, uint32_t position,
                                            uint32_t is_value, uint32_t kv_head, const float (&v)[N])
{
    const uint32_t token = position % kv.layout.page_tokens;
    if (page == GPUK_PAGE_ABSENT) return;
    const kv_steps<C> steps(kv.layout);
    unsigned char *rows = kv_rows(kv, page, is_value, kv_head);
    C::store(v, rows + (size_t)token * steps.number, rows + steps.scales_at + (size_t)token * steps.scale,
             kv.layout.head_dim);
}

template <typename C, uint32_t N>
__device__ __forceinline__ void kv_store(const gpuk_kv &kv, const uint32_t *pages, uint32_t position,
                                         uint32_t is_value, uint32_t kv_head, const float (&v)[N])
{
    kv_store_in<C>(kv, pages[position / kv.layout.page_tokens], position, is_value, kv_head, v);
}

/* Checks the shapes of attention; used by every launcher that takes struct gpuk_attention. */
int gpuk_attention_check(const char *what, const struct gpuk_attention *args, uint32_t tokens,
                         struct helm_err *err);
