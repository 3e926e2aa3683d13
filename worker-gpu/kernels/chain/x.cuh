/* x of a chain's operations in shared memory. Included by chain/kernel.cuh. */
#pragma once

#include "worker-gpu/kernels/chain/chain.cuh"

/* Sums of tiles [2][CHAIN_SUMS] and of x's squares [32], in shared memory. */
struct chain_sums {
    float *partial, *squares;
};
/* Four numbers to their place among x. */
template <typename D>
__device__ __forceinline__ void put_quad(float4 *x4, uint32_t f, bool there, const float4 &v)
{
    if constexpr (D::SCALED)
        blocks_x::put(x4, f, there, v);
    else if (there)
        x4[x_place<D>(f)] = v;
}
/* x into shared memory, times the norm's weights, which are there; the sum of squares stays in parts. */
template <typename S, typename D>
__device__ __forceinline__ void take_x(const linear_params &p, const float4 *norm, float *x, float *squares)
{
    const uint32_t quads = p.cols / 4, batch = 4096 / S::THREADS; /* loads that are on their way together */
    float4 *x4 = reinterpret_cast<float4 *>(x), v[batch];
    const float4 *from = reinterpret_cast<const float4 *>(p.x);
    float sum = 0;
    for (uint32_t f0 = threadIdx.x; (D::SCALED ? f0 & ~31u : f0) < quads; f0 += batch * S::THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < batch; j++)
            v[j] = f0 + j * S::THREADS < quads ? __ldcg(from + f0 + j * S::THREADS) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t j = 0; j < batch; j++) {
            const uint32_t f = f0 + j * S::THREADS;
            if ((D::SCALED ? f & ~31u : f) >= quads) break; /* x for blocks is put by whole warps */
            if (p.norm && f < quads) {
                const float4 n = norm[f];
                sum = add_quad_squares(sum, v[j]);
                v[j] = make_float4(v[j].x * n.x, v[j].y * n.y, v[j].z * n.z, v[j].w * n.w);
            }
            put_quad<D>(x4, f, f < quads, v[j]);
        }
    }
    if (p.norm) {
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) squares[threadIdx.x >> 5] = sum;
    }
}
template <typename S> __device__ __forceinline__ float x_scale(const linear_params &p, const float *squares)
{
    if (!p.norm) return 1.0f;
    float sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < S::WARPS; w++) sum += squares[w];
    return rsqrtf(sum / (float)p.cols + p.eps);
}
