/* A gated delta net of one token as two links of a chain: the convolution, a head's channels a warp, and the
 * rule, a v head a block. The blocks meet between them: v heads that share a k head read what one warp has
 * made of it.
 *
 * Included by chain/kernel.cuh. Both are functions of their own, so that the chain's other operations keep
 * their registers. */
#pragma once

#include "worker-gpu/kernels/chain/chain.cuh"

static const uint32_t CHAIN_DELTA_ROWS = 16; /* of a lane (delta.cuh): heads of up to 128 numbers */
static const uint32_t CHAIN_DELTA_DIM = CHAIN_DELTA_ROWS * RULE_GROUPS;
static_assert(CHAIN_DELTA_DIM / RULE_COLUMNS <= chain_shaped::WARPS, "a warp has columns of its own");

__device__ __forceinline__ bool chain_is_delta(uint32_t kind)
{
    return kind == GPUK_CHAIN_CONVOLVE || kind == GPUK_CHAIN_DELTA;
}
/* Before the convolution's meeting: what does not depend on the operation in front, as far as the L2. */
template <typename S> __device__ __forceinline__ void chain_delta_ask(const delta_params &p)
{
    const gpuk_delta &d = p.d;
    if (d.step.counts[1] == 0) return;
    const uint32_t task = blockIdx.x + gridDim.x * (threadIdx.x >> 5), keys = 2 * d.key_heads;
    const uint32_t at = task < keys ? task * d.key_dim : 2 * p.keys + (task - keys) * d.value_dim;
    if (task < keys + d.value_heads && (threadIdx.x & 31) <= GPUK_DELTA_COLUMNS)
        for (uint32_t i = 0; i < (task < keys ? d.key_dim : d.value_dim); i += 32)
            ask_l2(d.conv + (threadIdx.x & 31) * p.channels + at + i);
    if (blockIdx.x < d.value_heads) rule_ask(d, delta_matrix(d, delta_record(d, 0), blockIdx.x), S::THREADS);
}
template <typename S> __device__ __noinline__ void chain_convolve(const delta_params &p)
{
    const gpuk_delta &d = p.d;
    const uint32_t heads = 2 * d.key_heads + d.value_heads;
    if (d.step.counts[1] == 0) return;
    for (uint32_t head = blockIdx.x + gridDim.x * (threadIdx.x >> 5); head < heads;
         head += gridDim.x * S::WARPS) {
        const conv_head<CHAIN_DELTA_DIM / 32> own(p, head);
        conv_columns<CHAIN_DELTA_DIM / 32> columns;
        conv_before(p, 0, 0, own, columns);
        conv_token(p, 0, own, columns);
    }
}
template <typename S> __device__ __noinline__ void chain_rule(const delta_params &p, float *memory)
{
    const gpuk_delta &d = p.d;
    if (d.step.counts[1] == 0) return;
    char *record = delta_record(d, 0);
    keep_columns(p, record, record, 0, 1, blockIdx.x * S::THREADS + threadIdx.x, gridDim.x * S::THREADS);
    for (uint32_t head = blockIdx.x; head < d.value_heads; head += gridDim.x)
        rule_row<S>(p, rule_shared<CHAIN_DELTA_ROWS, 1>(memory, d.value_dim), delta_matrix(d, record, head),
                    head, 0, 1);
}
