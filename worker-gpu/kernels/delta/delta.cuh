/* Shared by the kernels of gated delta nets: a row's place, a token's gates, the norm of a head's output.
 *
 * Included by the files beside it and by chain/delta.cuh. Roundings are written out where a chain has the
 * same bits. */
#pragma once

#include "worker-gpu/kernels/delta/delta.h"
#include "worker-gpu/kernels/device.cuh"

/* Checks the shapes. */
int gpuk_delta_check(const char *what, const struct gpuk_delta *args, uint32_t tokens, struct helm_err *err);

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

/* The first place after token `from` and up to `end` where this row leaves its record. */
__device__ __forceinline__ gpuk_left_at delta_left_after(const gpuk_delta &d, uint32_t row, uint32_t from,
                                                         uint32_t end)
{
    return gpuk_left_after(&d.left, d.step.row_slot[row], from, end);
}

/* ln of a token's decay, and how much of it the state takes. */
struct delta_gates {
    float log_decay, rate;
};
__device__ __forceinline__ delta_gates delta_gates_of(const gpuk_delta &d, uint32_t token, uint32_t head)
{
    const size_t at = (size_t)token * d.in_stride + head;
    const float alpha = __fadd_rn(__ldcg(d.alpha + at), d.time_bias[head]), beta = __ldcg(d.beta + at),
                softplus = alpha > 20 ? alpha : log1pf(expf(alpha));
    return {__fmul_rn(d.decay[head], softplus), 1.0f / (1.0f + expf(-beta))};
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
    const float scale = rsqrtf(__fadd_rn(squares / (float)d.value_dim, d.eps)),
                z = __ldcg(d.z + (size_t)token * d.in_stride + at);
    delta_store(d, (size_t)token * d.out_stride + at,
                __fmul_rn(__fmul_rn(__fmul_rn(o, scale), d.norm[j]), silu(z)));
}

/* ---- convolution: a warp has a head's channels, lane, lane + 32, ... ---- */

/* A head of q, of k or of v: where its channels are, and their weights. */
template <uint32_t STEPS> struct conv_head {
    uint32_t at, dim;
    bool is_key;  /* or q: of length 1, */
    float length; /* or this */
    float weight[GPUK_DELTA_COLUMNS + 1][STEPS];
    __device__ __forceinline__ conv_head(const delta_params &p, uint32_t head)
    {
        const gpuk_delta &d = p.d;
        const uint32_t lane = threadIdx.x & 31;
        is_key = head < 2 * d.key_heads;
        dim = is_key ? d.key_dim : d.value_dim;
        at = is_key ? head * d.key_dim : 2 * p.keys + (head - 2 * d.key_heads) * d.value_dim;
        length = head < d.key_heads ? rsqrtf((float)d.key_dim) : 1.0f;
#pragma unroll
        for (uint32_t w = 0; w <= GPUK_DELTA_COLUMNS; w++)
#pragma unroll
            for (uint32_t j = 0; j < STEPS; j++)
                weight[w][j] = lane + 32 * j < dim ? d.conv[w * p.channels + at + lane + 32 * j] : 0.0f;
    }
};
template <uint32_t STEPS> struct conv_columns {
    float x[GPUK_DELTA_COLUMNS][STEPS];
};
/* The inputs in front of token t. */
template <uint32_t STEPS>
__device__ __forceinline__ void conv_before(const delta_params &p, uint32_t t, uint32_t row,
                                            const conv_head<STEPS> &head, conv_columns<STEPS> &c)
{
    const uint32_t lane = threadIdx.x & 31, there = t - p.d.step.row_first[row];
    const float *columns = reinterpret_cast<const float *>(delta_record(p.d, row));
#pragma unroll
    for (uint32_t w = 0; w < GPUK_DELTA_COLUMNS; w++) {
        const uint32_t back = GPUK_DELTA_COLUMNS - w;
        const float *from = back <= there ? p.d.in + (size_t)(t - back) * p.d.in_stride
                                          : columns + (size_t)(w + there) * p.channels;
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++)
            c.x[w][j] = lane + 32 * j < head.dim ? __ldcg(from + head.at + lane + 32 * j) : 0.0f;
    }
}
/* Token t, whose input the columns take in. */
template <uint32_t STEPS>
__device__ __forceinline__ void conv_token(const delta_params &p, uint32_t t, const conv_head<STEPS> &head,
                                           conv_columns<STEPS> &c)
{
    const uint32_t lane = threadIdx.x & 31;
    const float *in = p.d.in + (size_t)t * p.d.in_stride + head.at;
    float *to = p.d.mixed + (size_t)t * p.channels + head.at, out[STEPS], squares = 0;
#pragma unroll
    for (uint32_t j = 0; j < STEPS; j++) {
        const float now = lane + 32 * j < head.dim ? __ldcg(in + lane + 32 * j) : 0.0f;
        float sum = __fmul_rn(head.weight[0][j], c.x[0][j]);
#pragma unroll
        for (uint32_t w = 1; w < GPUK_DELTA_COLUMNS; w++) sum = __fmaf_rn(head.weight[w][j], c.x[w][j], sum);
        sum = __fmaf_rn(head.weight[GPUK_DELTA_COLUMNS][j], now, sum);
        out[j] = silu(sum);
        squares = __fmaf_rn(out[j], out[j], squares);
        c.x[0][j] = c.x[1][j], c.x[1][j] = c.x[2][j], c.x[2][j] = now;
    }
    const float scale =
        head.is_key ? __fmul_rn(rsqrtf(__fadd_rn(warp_sum(squares), DELTA_LENGTH_EPS)), head.length) : 1.0f;
#pragma unroll
    for (uint32_t j = 0; j < STEPS; j++)
        if (lane + 32 * j < head.dim) to[lane + 32 * j] = __fmul_rn(out[j], scale);
}

/* ---- the rule, token by token ----
 *
 * A warp has 16 columns of a head's state in registers, through all tokens: the state is read and written
 * once. A lane has four columns of every eighth row, so sums over rows take three exchanges, and warps meet
 * once for some tokens, for the norm of the head's output. A token is computed by the same operations however
 * many there are. */

static const uint32_t RULE_COLUMNS = 16; /* of a warp */
static const uint32_t RULE_GROUPS = 8;   /* of rows, one for four lanes */

/* The columns of record `to` become the last inputs of a row's first `count` tokens: channels `thread`,
 * `thread` + `threads`, ... */
__device__ __forceinline__ void keep_columns(const delta_params &p, const char *record, char *to,
                                             uint32_t first, uint32_t count, uint32_t thread,
                                             uint32_t threads)
{
    const float *columns = reinterpret_cast<const float *>(record);
    float *kept = reinterpret_cast<float *>(to);
    for (uint32_t c = thread; c < p.channels; c += threads) {
        float now[GPUK_DELTA_COLUMNS];
#pragma unroll
        for (uint32_t w = 0; w < GPUK_DELTA_COLUMNS; w++) {
            const uint32_t at = w + count; /* of the columns and the tokens after them */
            now[w] = at < GPUK_DELTA_COLUMNS
                         ? __ldcg(columns + (size_t)at * p.channels + c)
                         : __ldcg(p.d.in + (size_t)(first + at - GPUK_DELTA_COLUMNS) * p.d.in_stride + c);
        }
#pragma unroll
        for (uint32_t w = 0; w < GPUK_DELTA_COLUMNS; w++) kept[(size_t)w * p.channels + c] = now[w];
    }
}

/* A block's shared memory for TOGETHER tokens: q and k [token][key rows, zeros after key_dim], v and o
 * [token][value], decay and rate [token], squares [token][warp]. */
template <uint32_t ROWS, uint32_t TOGETHER> struct rule_shared {
    static const uint32_t KEY = ROWS * RULE_GROUPS;
    float *q, *k, *v, *o, *decay, *rate, *squares;
    __device__ __forceinline__ rule_shared(float *memory, uint32_t value)
    {
        q = memory, k = q + TOGETHER * KEY, v = k + TOGETHER * KEY, o = v + TOGETHER * value;
        decay = o + TOGETHER * value, rate = decay + TOGETHER, squares = rate + TOGETHER;
    }
    static size_t bytes(uint32_t value)
    {
        return TOGETHER * (2 * KEY + 2 * value + 2 + value / RULE_COLUMNS) * sizeof(float);
    }
};

template <typename B, uint32_t ROWS, uint32_t TOGETHER>
__device__ __forceinline__ void rule_fetch(const delta_params &p, const rule_shared<ROWS, TOGETHER> &s,
                                           uint32_t head, uint32_t first, uint32_t count)
{
    const gpuk_delta &d = p.d;
    const uint32_t KEY = rule_shared<ROWS, TOGETHER>::KEY, key = delta_key_of(d, head) * d.key_dim;
    for (uint32_t i = threadIdx.x; i < count * KEY; i += B::threads()) {
        const uint32_t t = i / KEY, c = i % KEY;
        const float *from = d.mixed + (size_t)(first + t) * p.channels + key + c;
        s.q[i] = c < d.key_dim ? __ldcg(from) : 0.0f;
        s.k[i] = c < d.key_dim ? __ldcg(from + p.keys) : 0.0f;
    }
    for (uint32_t i = threadIdx.x; i < count * d.value_dim; i += B::threads()) {
        const uint32_t t = i / d.value_dim, c = i - t * d.value_dim;
        s.v[i] = __ldcg(d.mixed + (size_t)(first + t) * p.channels + 2 * p.keys + head * d.value_dim + c);
    }
    if (threadIdx.x < count) {
        const delta_gates g = delta_gates_of(d, first + threadIdx.x, head);
        s.decay[threadIdx.x] = expf(g.log_decay), s.rate[threadIdx.x] = g.rate;
    }
}

/* Over the warp's eight groups of rows. */
__device__ __forceinline__ float rule_sum(float v)
{
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, mask));
    return v;
}

/* A token over a lane's part of the state. */
template <uint32_t ROWS>
__device__ __forceinline__ void rule_token(float (&state)[ROWS][4], const float *q, const float *k,
                                           const float v[4], float decay, float rate, float o[4])
{
    const uint32_t group = (threadIdx.x & 31) / 4;
    float known[4] = {0, 0, 0, 0}, delta[4];
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const float by = k[group + RULE_GROUPS * m];
#pragma unroll
        for (int j = 0; j < 4; j++) known[j] = __fmaf_rn(by, state[m][j], known[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        delta[j] = __fmul_rn(rate, __fmaf_rn(-decay, rule_sum(known[j]), v[j]));
        o[j] = 0;
    }
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const float by_k = k[group + RULE_GROUPS * m], by_q = q[group + RULE_GROUPS * m];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            state[m][j] = __fmaf_rn(by_k, delta[j], __fmul_rn(decay, state[m][j]));
            o[j] = __fmaf_rn(by_q, state[m][j], o[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) o[j] = rule_sum(o[j]);
}

/* A head's state on its way, while what stands in front is computed. */
__device__ __forceinline__ void rule_ask(const gpuk_delta &d, const float *matrix, uint32_t threads)
{
    for (uint32_t i = threadIdx.x * 32; i < d.key_dim * d.value_dim; i += threads * 32) ask_l2(matrix + i);
}

/* Tokens first .. end of a row over a v head, by the threads of team B: value_dim / RULE_COLUMNS warps
 * compute. */
template <typename B, uint32_t ROWS, uint32_t TOGETHER>
__device__ __forceinline__ void rule_row(const delta_params &p, const rule_shared<ROWS, TOGETHER> &s,
                                         float *matrix, uint32_t head, uint32_t first, uint32_t end)
{
    const gpuk_delta &d = p.d;
    const uint32_t KEY = rule_shared<ROWS, TOGETHER>::KEY, warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
                   warps = d.value_dim / RULE_COLUMNS, column = warp * RULE_COLUMNS + (lane & 3) * 4,
                   group = lane / 4;
    const bool computes = warp < warps;
    float state[ROWS][4];
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const uint32_t i = group + RULE_GROUPS * m;
        put4(state[m],
             computes && i < d.key_dim
                 ? __ldcg(reinterpret_cast<const float4 *>(matrix + (size_t)i * d.value_dim + column))
                 : make_float4(0, 0, 0, 0));
    }
    for (uint32_t from = first; from < end; from += TOGETHER) {
        const uint32_t count = end - from < TOGETHER ? end - from : TOGETHER;
        rule_fetch<B>(p, s, head, from, count);
        B::meet();
        for (uint32_t t = 0; t < count && computes; t++) {
            float v[4], o[4];
            put4(v, *reinterpret_cast<const float4 *>(s.v + t * d.value_dim + column));
            rule_token<ROWS>(state, s.q + t * KEY, s.k + t * KEY, v, s.decay[t], s.rate[t], o);
            float squares = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) squares = __fmaf_rn(o[j], o[j], squares);
            squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffffu, squares, 1));
            squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffffu, squares, 2));
            if (lane == 0) s.squares[t * warps + warp] = squares;
            if (group == 0)
                *reinterpret_cast<float4 *>(s.o + t * d.value_dim + column) =
                    make_float4(o[0], o[1], o[2], o[3]);
        }
        B::meet();
        for (uint32_t i = threadIdx.x; i < count * d.value_dim; i += B::threads()) {
            const uint32_t t = i / d.value_dim, j = i - t * d.value_dim;
            float squares = 0;
            for (uint32_t w = 0; w < warps; w++) squares = __fadd_rn(squares, s.squares[t * warps + w]);
            delta_finish(d, from + t, head, j, s.o[i], squares);
        }
        B::meet(); /* their inputs may be written again */
    }
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const uint32_t i = group + RULE_GROUPS * m;
        if (computes && i < d.key_dim)
            *reinterpret_cast<float4 *>(matrix + (size_t)i * d.value_dim + column) =
                make_float4(state[m][0], state[m][1], state[m][2], state[m][3]);
    }
}

/* ---- prompts (chunk.cu) ---- */

/* Rows of fewer tokens are computed token by token: a chunk is no faster. */
static const uint32_t DELTA_CHUNKED_FROM = 32;
static_assert(GPU_DELTA_CHUNK_BYTES * DELTA_CHUNKED_FROM ==
                  2 * GPUK_DELTA_CHUNK * GPUK_DELTA_CHUNK * sizeof(float),
              "two matrices of each chunk, which has a place for every 32 tokens");
__device__ __forceinline__ bool delta_is_chunked(uint32_t tokens, bool chunks)
{
    return chunks && tokens >= DELTA_CHUNKED_FROM;
}

/* chunk.cu: rows of many tokens, after the convolution; not their columns. Heads whose keys the device's
 * shared memory has no room for (256 numbers in 99 KiB) are computed token by token. */
bool delta_chunks_fit(const struct gpuk_device *device, uint32_t key_dim);
int delta_chunks_launch(const struct gpuk_device *device, const struct gpuk_delta *args, uint32_t tokens,
                        uint32_t flags, void *stream, struct helm_err *err);
int delta_chunks_prepare(const struct gpuk_device *device, struct helm_err *err);
