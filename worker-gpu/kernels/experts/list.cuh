/* The list of a few tokens' pairs (token, chosen) in order of experts, as a block makes it in shared memory:
 * the choice itself where it is not made yet, and what is asked into the L2 for the next kernel.
 *
 * Included by experts/bulk.cu and experts/digits.cu, whose blocks have as many threads as pairs at least. */
#pragma once

#include "worker-gpu/kernels/experts/experts.cuh"

struct experts_list {
    float *weight;    /* [pairs] of the choice */
    uint32_t *id;     /* [pairs, up to a whole quad] chosen; GPUK_SLOT_ABSENT: absent */
    uint32_t *key;    /* [the same] the same where no pair in front has it, else GPUK_SLOT_ABSENT */
    uint32_t *sorted; /* [pairs] pairs in order of experts */
    uint32_t *expert; /* [pairs] experts in their order */
    uint32_t *slot;   /* [pairs] their slots */
    uint32_t *begin;  /* [pairs + 1] where an expert's pairs begin in `sorted` */
    uint32_t *count;  /* how many experts */

    /* Lays the list from `at` on, a multiple of 16 bytes; returns its end. */
    __host__ __device__ unsigned char *lay(unsigned char *at, uint32_t pairs)
    {
        const auto take = [&](size_t words) {
            unsigned char *part = at;
            at += (words * 4 + 15) / 16 * 16;
            return part;
        };
        weight = reinterpret_cast<float *>(take(pairs));
        id = reinterpret_cast<uint32_t *>(take(pairs));
        key = reinterpret_cast<uint32_t *>(take(pairs));
        sorted = reinterpret_cast<uint32_t *>(take(pairs));
        expert = reinterpret_cast<uint32_t *>(take(pairs));
        slot = reinterpret_cast<uint32_t *>(take(pairs));
        begin = reinterpret_cast<uint32_t *>(take(pairs + 1));
        count = reinterpret_cast<uint32_t *>(take(1));
        return at;
    }

    /* The choice, as gpuk_route makes it; the first block stores it. A warp a token, or all for one. scratch:
     * experts_scratch floats of each token. */
    __device__ __forceinline__ void route(const experts_params &p, uint32_t tokens, float *scratch) const
    {
        const uint32_t chosen = p.choice.chosen, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        uint32_t *ids = id + warp * chosen;
        float *weights = weight + warp * chosen;
        const bool stores = blockIdx.x == 0;
        if (tokens == 1 && experts_ranks(p.router))
            experts_rank(p.router, p.logits, p.choice_bias, scratch, id, weight, blockDim.x, stores);
        else if (warp < tokens)
            experts_choose(p.router, p.logits + (size_t)warp * p.experts, p.choice_bias,
                           scratch + (size_t)warp * experts_scratch(p.router), ids, weights);
        __syncwarp();
        if (stores && warp < tokens && lane < chosen) {
            p.choice.id[warp * chosen + lane] = ids[lane];
            p.choice.weight[warp * chosen + lane] = weights[lane];
        }
        __syncthreads();
    }

    /* How many of the four numbers of quad q are less than `than`. */
    static __device__ __forceinline__ uint32_t less_of(const uint32_t *from, uint32_t q, uint32_t than)
    {
        const uint4 v = reinterpret_cast<const uint4 *>(from)[q];
        return (v.x < than) + (v.y < than) + (v.z < than) + (v.w < than);
    }
    __device__ __forceinline__ void make(const experts_params &p, uint32_t pairs) const
    {
        const uint32_t i = threadIdx.x, quads = div_up(pairs, 4), lane = i & 31;
        uint32_t mine = GPUK_SLOT_ABSENT, at_slot = GPUK_SLOT_ABSENT;
        if (i < pairs) {
            mine = p.routes ? id[i] : __ldcg(p.choice.id + i);
            if (!p.routes && p.down) weight[i] = __ldcg(p.choice.weight + i);
            at_slot = experts_slot(p.slot, p.experts, mine);
            if (at_slot == GPUK_SLOT_ABSENT) mine = GPUK_SLOT_ABSENT;
        }
        if (i < 4 * quads) id[i] = mine;
        __syncthreads();
        uint32_t less = 0, same = 0;
        if (i < 4 * quads) {
            for (uint32_t q = 0; q < quads; q++) {
                const uint4 v = reinterpret_cast<const uint4 *>(id)[q];
                less += (v.x < mine) + (v.y < mine) + (v.z < mine) + (v.w < mine);
                same += (v.x == mine && 4 * q < i) + (v.y == mine && 4 * q + 1 < i) +
                        (v.z == mine && 4 * q + 2 < i) + (v.w == mine && 4 * q + 3 < i);
            }
            key[i] = same == 0 ? mine : GPUK_SLOT_ABSENT;
            if (mine != GPUK_SLOT_ABSENT) sorted[less + same] = i;
        }
        __syncthreads();
        if (i < pairs && same == 0 && mine != GPUK_SLOT_ABSENT) {
            uint32_t at = 0;
            for (uint32_t q = 0; q < quads; q++) at += less_of(key, q, mine);
            expert[at] = mine, slot[at] = at_slot, begin[at] = less;
        }
        if (i >= blockDim.x - 32) {
            float experts = 0, there = 0; /* exact */
            for (uint32_t k = lane; k < pairs; k += 32) {
                experts += key[k] != GPUK_SLOT_ABSENT ? 1.0f : 0.0f;
                there += id[k] != GPUK_SLOT_ABSENT ? 1.0f : 0.0f;
            }
            experts = warp_sum(experts), there = warp_sum(there);
            if (lane == 0) begin[(uint32_t)experts] = (uint32_t)there, *count = (uint32_t)experts;
        }
        __syncthreads();
    }

    /* Asks for the block's share of the matrices that are read next, pieces go round the blocks: as much as
     * stays in the L2 until it is read. By `threads` threads of each block, this one is number `thread`. */
    __device__ __forceinline__ void ask_ahead(const experts_params &p, uint32_t thread,
                                              uint32_t threads) const
    {
        const uint32_t piece = 4 << 10, most = (16 << 20) / piece,
                       each = div_up((uint32_t)(p.ahead_bytes / 16), piece / 16), wanted = *count * each,
                       all = wanted < most ? wanted : most;
        for (uint32_t i = thread * gridDim.x + blockIdx.x; i < all; i += threads * gridDim.x) {
            if (slot[i / each] & GPUK_SLOT_HOST) continue; /* the L2 does not keep host memory */
            const uint64_t at = (uint64_t)(i % each) * piece, left = (p.ahead_bytes & ~15ull) - at;
            bulk_ask_l2(p.ahead.weight + slot[i / each] * p.ahead.stride + at,
                        left < piece ? (uint32_t)left : piece);
        }
    }
};
