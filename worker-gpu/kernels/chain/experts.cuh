/* x of a chain's operations in shared memory, and what a sparse MLP in a chain has of its own: the router's product, the
 * choice that every block makes for itself, what becomes of the sums of experts' rows.
 *
 * Included by chain/kernel.cuh. The warps that ask for weights wait for the choice behind the router (chain.cuh); the rows
 * themselves are those of any linear operation. */
#pragma once

#include "worker-gpu/kernels/chain/chain.cuh"

/* Sums of tiles [2][CHAIN_SUMS] and of x's squares [32], in shared memory. */
struct chain_sums {
    float *partial, *squares;
};
/* Whether weights of an operation of this kind are read past the ring; whether it takes x with the weights of a norm. */
__device__ __forceinline__ bool chain_passes_ring(uint32_t kind)
{
    return kind == GPUK_CHAIN_ROUTER || kind == GPUK_CHAIN_ROWS;
}
__device__ __forceinline__ bool chain_takes_x(uint32_t kind)
{
    return kind == GPUK_CHAIN_LINEAR || chain_passes_ring(kind);
}

/* Four numbers to their place among x. */
template <typename D>
__device__ __forceinline__ void put_quad(float4 *x4, uint32_t f, bool there, const float4 &v)
{
    if constexpr (D::SCALED)
        blocks_x::put(x4, f, there, v);
    else if (there)
        x4[x_place<D>(f)] = v;
}
/* Where an operation's x comes from: memory that all have stored to before they met, or (words not NULL) words of this
 * tag. */
struct chain_source {
    const float *x;
    const uint64_t *words;
    uint32_t tag;
};
__device__ __forceinline__ bool words_came(const uint64_t word[4], uint32_t tag)
{
    bool all = true;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) all = all && (uint32_t)(word[i] >> 32) == tag;
    return all;
}
/* Words of this tag at four neighbours' place, which may still be on their way. */
__device__ __forceinline__ float4 words_await(const uint64_t *from, uint64_t word[4], uint32_t tag)
{
    while (!words_came(word, tag)) {
        word_late();
        words_get(from, word), words_get(from + 2, word + 2);
    }
    return make_float4(__uint_as_float((uint32_t)word[0]), __uint_as_float((uint32_t)word[1]),
                       __uint_as_float((uint32_t)word[2]), __uint_as_float((uint32_t)word[3]));
}
/* x into shared memory, times the norm's weights, which are there, or without a norm times the number at `times`; the sum of
 * squares stays in parts. */
template <typename S, typename D>
__device__ __forceinline__ void take_x(const linear_params &p, const float4 *norm, const float *times,
                                       float *x, float *squares)
{
    const uint32_t quads = p.cols / 4, batch = 4096 / S::THREADS; /* loads that are on their way together */
    float4 *x4 = reinterpret_cast<float4 *>(x), v[batch];
    const float4 *from = reinterpret_cast<const float4 *>(p.x);
    const float by = times ? __ldcg(times) : 1.0f;
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
            } else if (times) {
                v[j] = make_float4(v[j].x * by, v[j].y * by, v[j].z * by, v[j].w * by);
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

/* ---- the router, and others of few rows */

/* Row `row` of the product, of matrix `matrix`; behind a router's experts' that of a shared expert's weight; weight NULL: there
 * is none. */
struct router_place {
    const unsigned char *weight;
    uint32_t matrix, row;
};
__device__ __forceinline__ router_place router_row(const chain_item &item, uint32_t row)
{
    const linear_params &p = item.linear;
    uint32_t s = 0;
    while (s + 1 < p.segments && row >= p.segment[s].rows) row -= p.segment[s++].rows;
    if (row < p.segment[s].rows) return {p.segment[s].weight + row * p.row_bytes, s, row};
    return {row == p.segment[s].rows ? reinterpret_cast<const unsigned char *>(item.share_weight) : nullptr,
            s, row};
}
/* Asks for the rows that the block will multiply. */
__device__ __forceinline__ void chain_router_ask(const chain_item &item)
{
    for (uint32_t row = blockIdx.x;; row += gridDim.x) {
        const unsigned char *from = router_row(item, row).weight;
        if (!from) return;
        if (threadIdx.x * 128 < item.linear.row_bytes) ask_l2(from + threadIdx.x * 128);
    }
}
/* Four neighbours of a row of plain numbers. */
__device__ __forceinline__ float4 router_quad(const unsigned char *row, uint32_t format, uint32_t f)
{
    if (format == FORMAT_F32) return __ldg(reinterpret_cast<const float4 *>(row) + f);
    const uint2 two = __ldg(reinterpret_cast<const uint2 *>(row) + f);
    float4 v;
    if (format == FORMAT_F16)
        element<__half>::unpack(two.x, v.x, v.y), element<__half>::unpack(two.y, v.z, v.w);
    else
        element<__nv_bfloat16>::unpack(two.x, v.x, v.y), element<__nv_bfloat16>::unpack(two.y, v.z, v.w);
    return v;
}
/* The thread's parts of the products of x, with the norm's weights, with a row of weights in device memory (NULL: none), and
 * of x's squares; and x (NULL: not) into shared memory. All that is loaded at once is on its way together. */
struct chain_dot {
    float dot, squares;
};
template <typename S, typename D>
__device__ __forceinline__ chain_dot chain_row(const linear_params &p, const chain_source &from,
                                               const float4 *norm, const unsigned char *weight,
                                               uint32_t format, float4 *x4)
{
    const uint32_t quads = p.cols / 4, batch = 2;
    chain_dot sum = {0, 0};
    for (uint32_t f0 = threadIdx.x; (f0 & ~31u) < quads; f0 += batch * S::THREADS) {
        float4 v[batch], w[batch];
        uint64_t word[batch][4];
#pragma unroll
        for (uint32_t j = 0; j < batch; j++) {
            const uint32_t f = f0 + j * S::THREADS < quads ? f0 + j * S::THREADS : 0;
            if (weight) w[j] = router_quad(weight, format, f);
            if (from.words)
                words_get(from.words + 4 * f, word[j]), words_get(from.words + 4 * f + 2, word[j] + 2);
            else
                v[j] = __ldcg(reinterpret_cast<const float4 *>(from.x) + f);
        }
#pragma unroll
        for (uint32_t j = 0; j < batch; j++) {
            const uint32_t f = f0 + j * S::THREADS;
            if ((f & ~31u) >= quads) break; /* by whole warps */
            if (from.words) {
                const uint32_t at = f < quads ? f : 0;
                v[j] = words_await(from.words + 4 * at, word[j], from.tag);
            }
            if (p.norm && f < quads) {
                const float4 n = norm[f];
                sum.squares = add_squares(sum.squares, v[j]);
                v[j] = make_float4(v[j].x * n.x, v[j].y * n.y, v[j].z * n.z, v[j].w * n.w);
            }
            if (weight && f < quads)
                sum.dot += v[j].x * w[j].x + v[j].y * w[j].y + v[j].z * w[j].z + v[j].w * w[j].w;
            if (x4) put_quad<D>(x4, f, f < quads, v[j]);
        }
    }
    return {warp_sum(sum.dot), warp_sum(sum.squares)};
}
/* x that comes as words. */
template <typename S, typename D>
__device__ __forceinline__ void take_words(const linear_params &p, const chain_source &from,
                                           const float4 *norm, float *x, float *squares)
{
    const chain_dot sum = chain_row<S, D>(p, from, norm, nullptr, FORMAT_F32, reinterpret_cast<float4 *>(x));
    if ((threadIdx.x & 31) == 0) squares[threadIdx.x >> 5] = sum.squares;
}
/* x into shared memory, where the gates and ups find it, or the next product, and the block's rows of the product: the whole
 * block a row. Logits go as words with this tag, too, where the item has words. */
template <typename S, typename D>
__device__ __forceinline__ void chain_router(const chain_item &item, const chain_source &from,
                                             const float4 *norm, float *x, const chain_sums &sums,
                                             uint32_t tag)
{
    const linear_params &p = item.linear;
    const uint32_t warp = threadIdx.x >> 5;
    bool first = true;
    for (uint32_t n = blockIdx.x;; n += gridDim.x, first = false) {
        const auto [weight, matrix, row] = router_row(item, n);
        if (!first && !weight) break;
        const chain_dot part = chain_row<S, D>(p, from, norm, weight, item.where.format,
                                               first ? reinterpret_cast<float4 *>(x) : nullptr);
        if (!first) S::meet(); /* the row in front has been stored */
        if ((threadIdx.x & 31) == 0) {
            sums.partial[warp] = part.dot;
            if (first) sums.squares[warp] = part.squares;
        }
        S::meet();
        if (threadIdx.x != 0 || !weight) continue;
        float sum = 0;
#pragma unroll
        for (uint32_t w = 0; w < S::WARPS; w++) sum += sums.partial[w];
        const linear_segment &to = p.segment[matrix];
        const float *bias = row < to.rows ? to.bias : nullptr;
        const float logit = sum * x_scale<S>(p, sums.squares) + (bias ? bias[row] : 0.0f);
        if (row == to.rows) {
            *item.share = 1.0f / (1.0f + expf(-logit));
            continue;
        }
        to.out[row] = logit;
        if (item.words_out) word_put(item.words_out + row, logit, tag);
    }
}

/* ---- the choice */

/* Logits as words of this tag, or as the blocks stored them before they met. */
struct chain_logits {
    chain_source from;
    __device__ __forceinline__ float operator()(uint32_t i) const
    {
        if (!from.words) return __ldcg(from.x + i);
        uint64_t word = word_get(from.words + i);
        while ((uint32_t)(word >> 32) != from.tag) {
            word_late();
            word = word_get(from.words + i);
        }
        return __uint_as_float((uint32_t)word);
    }
};
/* What the token chose, for the block; number: how many choices were before. scratch: CHAIN_SUMS floats that are not used
 * until all threads have met twice more.
 *
 * The asking warps' copy of it is warp 0's, as soon as all of them have taken the one before. */
template <typename S>
__device__ __forceinline__ void chain_choose(const chain_experts &e, const chain_source &logits,
                                             chain_token &token, float *scratch, const chain_ring &ring,
                                             uint32_t number)
{
    static_assert(2 * EXPERTS_RANKED_MAX <= CHAIN_SUMS, "scores and their order");
    experts_order_all(e.router, chain_logits{logits}, e.choice_bias, scratch, S::THREADS);
    S::meet();
    experts_places(e.router, scratch, token.expert, S::THREADS);
    S::meet();
    if (threadIdx.x < 32) {
        if (number > 0) bulk_wait(ring.taken, (number - 1) & 1); /* over long ago */
        token.asked[threadIdx.x] = threadIdx.x < e.router.chosen ? token.expert[threadIdx.x] : 0;
        barrier_arrive(ring.chosen);
    }
}
/* And how much of each, by a warp, whose others see it behind the next meeting. */
__device__ __forceinline__ void chain_weigh(const chain_experts &e, chain_token &token, const float *scratch)
{
    const uint32_t lane = threadIdx.x & 31;
    experts_weigh_ranked(e.router, scratch, token.expert, token.expert_weight);
    __syncwarp();
    if (blockIdx.x != 0 || lane >= e.router.chosen) return;
    e.choice.id[lane] = token.expert[lane];
    e.choice.weight[lane] = token.expert_weight[lane];
}

/* ---- downs: x is the activations of all chosen experts, each from a line's begin on */

template <typename S, typename D> __device__ __forceinline__ void take_act(const chain_item &item, float *x)
{
    const chain_divisor each = item.experts.quads;
    const uint32_t quads = item.linear.cols / 4, all = each.by * item.where.chosen, batch = 8;
    const float4 *from = reinterpret_cast<const float4 *>(item.linear.x);
    for (uint32_t f0 = threadIdx.x; (f0 & ~31u) < all; f0 += batch * S::THREADS) {
        float4 v[batch];
        uint32_t there = 0;
#pragma unroll
        for (uint32_t j = 0; j < batch; j++) {
            const uint32_t f = f0 + j * S::THREADS, e = each.into(f), i = f - e * each.by;
            const bool is = f < all && i < quads;
            v[j] = is ? __ldcg(from + e * quads + i) : make_float4(0, 0, 0, 0);
            there |= (uint32_t)is << j;
        }
#pragma unroll
        for (uint32_t j = 0; j < batch; j++) {
            const uint32_t f = f0 + j * S::THREADS;
            if ((f & ~31u) >= all) break;
            put_quad<D>(reinterpret_cast<float4 *>(x), f, there >> j & 1, v[j]);
        }
    }
}

/* ---- what becomes of rows' sums */

__device__ __forceinline__ float2 experts_addends(const chain_item &item, const chain_token &token,
                                                  uint32_t pair)
{
    const chain_experts &e = item.experts;
    float2 add = make_float2(0, 0);
    if (item.kind == GPUK_CHAIN_EXPERTS_GLU) {
        const uint32_t j = item.where.each.into(pair), row = pair - j * e.rows;
        const uint64_t at = (uint64_t)token.expert[j] * e.rows + row;
        if (e.bias[0]) add.x = e.bias[0][at];
        if (e.bias[1]) add.y = e.bias[1][at];
        return add;
    }
    add = linear_addends(item.linear, pair, 0);
    const bool two = 2 * pair + 1 < e.rows;
    for (uint32_t j = 0; e.bias[0] && j < item.where.chosen; j++) {
        const float *bias = e.bias[0] + (uint64_t)token.expert[j] * e.rows + 2 * pair;
        const float weight = token.expert_weight[j];
        add.x += weight * bias[0];
        if (two) add.y += weight * bias[1];
    }
    return add;
}
/* Added to the two sums of a pair: biases, and the residual. */
template <bool SPARSE>
__device__ __forceinline__ float2 chain_addends(const chain_item &item, const chain_token &token,
                                                uint32_t pair)
{
    if (!SPARSE || item.kind == GPUK_CHAIN_LINEAR) return linear_addends(item.linear, pair, 0);
    return experts_addends(item, token, pair);
}
/* Gates' and ups' as the weighted activation, so that downs only add; and what goes on as words of this tag: of one matrix,
 * whose rows are even. */
__device__ __forceinline__ void experts_store(const chain_item &item, const chain_token &token, uint32_t pair,
                                              float a, float b, uint32_t tag)
{
    if (item.kind == GPUK_CHAIN_EXPERTS_GLU) {
        const chain_experts &e = item.experts;
        const float act = token.expert_weight[item.where.each.into(pair)] * glu_value(e.glu, a, b);
        item.linear.segment[0].out[pair] = act;
        return;
    }
    linear_store(item.linear, pair, 0, a, b);
    if (!item.words_out) return;
    word_put(item.words_out + 2 * pair, a, tag);
    word_put(item.words_out + 2 * pair + 1, b, tag);
}
/* Where the two sums go. */
template <bool SPARSE>
__device__ __forceinline__ void chain_store(const chain_item &item, const chain_token &token, uint32_t pair,
                                            float a, float b, uint32_t tag)
{
    if (SPARSE)
        experts_store(item, token, pair, a, b, tag);
    else
        linear_store(item.linear, pair, 0, a, b);
}
