/* Shared by the decode attention kernels: their arguments, the query on its way into shared memory, streaming
 * softmax of a lane and its warp, and the ways results leave a block.
 *
 * Included by attention/decode.cu, attention/decode_tensor.cu and chain/attention.cuh. */
#pragma once

#include "worker-gpu/kernels/attention/rope.cuh"

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

/* a * by_a + b * by_b, rounded twice. */
__device__ __forceinline__ float blend(float a, float by_a, float b, float by_b)
{
    return __fmaf_rn(a, by_a, __fmul_rn(b, by_b));
}

/* Dimensions of a head that a lane holds in sums: 8, 16 of heads of more than a warp's 256, 24 of more than
 * 512. Dimension j of a lane: those of 8 are neighbours, or every 32nd (`step` 1 or 32); the next 8 stand 256
 * further. */
static const int DIMS_USUAL = 8, DIMS_WIDE = 16, DIMS_MOST = 24;
static_assert(GPUK_HEAD_DIM_MAX <= 32 * DIMS_MOST, "a lane's share of a head");
static __host__ __device__ inline uint32_t lane_dim(uint32_t first, uint32_t step, int j)
{
    return first + (uint32_t)(j & 7) * step + (uint32_t)(j >> 3) * 256;
}
/* How many of a warp's lanes share a position. */
static __host__ __device__ inline uint32_t lanes_of(uint32_t head_dim)
{
    uint32_t lanes = 32;
    while (lanes > 1 && lanes / 2 * 8 >= head_dim) lanes /= 2;
    return lanes;
}

/* The first position that a token of `row` sees here: of the window, and not absent. */
__device__ __forceinline__ uint32_t first_of(const gpuk_attention &a, bool counts, uint32_t row,
                                             uint32_t position)
{
    const uint32_t first = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
    const uint32_t begin = counts && a.step.row_begin ? a.step.row_begin[row] : 0;
    return begin > first ? begin : first;
}

/* The threads that work on a unit of attention: the whole block, or some of it (chain.cuh). */
struct block_team {
    static __device__ __forceinline__ uint32_t threads() { return blockDim.x; }
    static __device__ __forceinline__ void meet() { __syncthreads(); }
};

/* Puts the group's q into shared memory, scaled; with `fused` norms and rotates first, and appends k and v
 * when this block's piece ends with the token's own position (`owner`). With `current`, an owner leaves k and
 * v there too ([2][head_dim] in shared memory), as the cache has them, and only one of its group appends.
 * Without `fused` q is as it is, and with `current` nothing is appended. `page`: that of the position, if
 * known. N: dimensions of a head that a lane holds. */
template <typename C, uint32_t N, typename B = block_team>
__device__ __forceinline__ void
take_query(const decode_params &p, uint32_t t, uint32_t kv_head, uint32_t head0, uint32_t heads,
           uint32_t position, const uint32_t *pages, bool owner, float *qs, float *scratch,
           float *current = nullptr, bool appends = true, const uint32_t *page = nullptr)
{
    const gpuk_attention &a = p.a;
    const uint32_t head_dim = a.kv.layout.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float scale = a.scale * LOG2E;
    if (!p.fused) {
        for (uint32_t i = threadIdx.x; i < heads * head_dim; i += B::threads())
            qs[i] = __fmul_rn(__ldcg(a.q + (size_t)t * a.q_stride + (size_t)head0 * head_dim + i), scale);
        if (!current || !owner) return;
        heads = 0, appends = false; /* its own key and value, which are in the cache already */
    }
    const uint32_t turning = gpuk_rope_dims(&a);
    const float *table = a.rope_table + (size_t)t * 2 * (turning / 2);
    float v[N], *own = scratch + warp * head_dim;
    for (uint32_t task = warp; task < heads + (owner ? 2 : 0); task += B::threads() / 32) {
        if (task < heads) {
            const float *from = a.q + (size_t)t * a.q_stride + (size_t)(head0 + task) * head_dim;
            head_load(from, query_norm(a), table, turning, head_dim, own, v);
#pragma unroll
            for (uint32_t j = 0; j < N; j++)
                if (lane + 32 * j < head_dim) qs[task * head_dim + lane + 32 * j] = __fmul_rn(v[j], scale);
        } else {
            bool is_value = task > heads;
            const float *from = (is_value ? a.v : a.k) + (size_t)t * a.kv_stride + (size_t)kv_head * head_dim;
            head_load(from, cell_norm(a, is_value), is_value ? nullptr : table, turning, head_dim, own, v);
            if (appends && page) kv_store_in<C>(a.kv, *page, position, is_value, kv_head, v);
            if (appends && !page) kv_store<C>(a.kv, pages, position, is_value, kv_head, v);
            if (!current) continue;
            C::keep(v, head_dim);
#pragma unroll
            for (uint32_t j = 0; j < N; j++)
                if (lane + 32 * j < head_dim) current[is_value * head_dim + lane + 32 * j] = v[j];
        }
    }
}

/* A lane's D dimensions of a cell, in the vector form as neighbours. scale: what each 8 of them are to be
 * multiplied by. */
template <typename C, bool VECTOR, int D>
__device__ __forceinline__ void cell_load(const unsigned char *numbers, const unsigned char *scales,
                                          uint32_t first_dim, uint32_t head_dim, float (&v)[D],
                                          float (&scale)[D / 8])
{
#pragma unroll
    for (int part = 0; part < D / 8; part++) {
        const uint32_t at = first_dim + 256 * part;
        if constexpr (VECTOR) {
            scale[part] = C::unpack(at < head_dim ? C::load(numbers, scales, at) : C::none(), v + 8 * part);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[8 * part + j] = at + 32 * j < head_dim ? C::number(numbers, scales, at + 32 * j) : 0.0f;
            scale[part] = 1;
        }
    }
}

/* A lane's share of streaming softmax: D dimensions of G heads. */
template <int G, int D = DIMS_USUAL> struct attention_sums {
    float o[G][D], m[G], s[G];
};
template <int G, int D> __device__ __forceinline__ void sums_open(attention_sums<G, D> &a)
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        a.m[g] = -INFINITY, a.s[g] = 0;
#pragma unroll
        for (int j = 0; j < D; j++) a.o[g][j] = 0;
    }
}
/* U positions' keys and values on their way into sums; each 8 of k (v) are times a scale. */
template <int U, int D = DIMS_USUAL> struct attention_cells {
    float k[U][D], v[U][D], k_scale[U][D / 8], v_scale[U][D / 8];
    bool seen[U];
};
/* Takes in U positions' keys and values for `heads` heads; `lanes` lanes share a position. query(g, q): the
 * lane's D numbers of head g. Roundings are written out here and where shares are added up: a chain and
 * chain/attention.cu have the same bits, whichever products a compiler would join with sums in one or the
 * other. */
template <int G, int U, int D, typename Q>
__device__ __forceinline__ void sums_add(attention_sums<G, D> &a, uint32_t heads, uint32_t lanes,
                                         const attention_cells<U, D> &c, const Q &query)
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        if ((uint32_t)g >= heads) break;
        float q[D], x[U], most = a.m[g];
        query(g, q);
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int part = 0; part < D / 8; part++) {
                float sum = 0;
#pragma unroll
                for (int j = 8 * part; j < 8 * part + 8; j++) sum = __fmaf_rn(q[j], c.k[u][j], sum);
                sum = __fmul_rn(sum, c.k_scale[u][part]);
                x[u] = part ? __fadd_rn(x[u], sum) : sum;
            }
            for (uint32_t mask = lanes / 2; mask > 0; mask >>= 1)
                x[u] = __fadd_rn(x[u], __shfl_xor_sync(0xffffffffu, x[u], mask));
            if (!c.seen[u]) x[u] = -INFINITY;
            most = fmaxf(most, x[u]);
        }
        if (most == -INFINITY) continue; /* nothing seen yet */
        float keep = rescale(a.m[g], most);
        a.m[g] = most;
        a.s[g] = __fmul_rn(a.s[g], keep);
#pragma unroll
        for (int j = 0; j < D; j++) a.o[g][j] = __fmul_rn(a.o[g][j], keep);
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float w = exp2_of(__fadd_rn(x[u], -most));
            a.s[g] = __fadd_rn(a.s[g], w);
#pragma unroll
            for (int part = 0; part < D / 8; part++) {
                const float by = __fmul_rn(w, c.v_scale[u][part]);
#pragma unroll
                for (int j = 8 * part; j < 8 * part + 8; j++) a.o[g][j] = __fmaf_rn(by, c.v[u][j], a.o[g][j]);
            }
        }
    }
}
/* Adds up the warp's places (a place is `lanes` lanes, that work on a position) and puts the warp's share
 * into shared memory. A lane's dimensions are lane_dim(first_dim, dim_step, ...). */
template <int G, int D>
__device__ __forceinline__ void sums_fold(attention_sums<G, D> &a, uint32_t heads, uint32_t lanes,
                                          uint32_t first_dim, uint32_t dim_step, uint32_t head_dim, float *os,
                                          float *ms, float *ss)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, place = lane / lanes;
#pragma unroll
    for (int g = 0; g < G; g++) {
        if ((uint32_t)g >= heads) break;
        for (uint32_t mask = lanes; mask < 32; mask <<= 1) {
            float other_m = __shfl_xor_sync(0xffffffffu, a.m[g], mask), most = fmaxf(a.m[g], other_m);
            float mine = rescale(a.m[g], most), theirs = rescale(other_m, most);
            /* both sides add the same two terms: lower lane's first, so that they get the same bits */
            bool low = (lane & mask) == 0;
            float other_s = __shfl_xor_sync(0xffffffffu, a.s[g], mask);
            a.s[g] = low ? blend(a.s[g], mine, other_s, theirs) : blend(other_s, theirs, a.s[g], mine);
#pragma unroll
            for (int j = 0; j < D; j++) {
                float other_o = __shfl_xor_sync(0xffffffffu, a.o[g][j], mask);
                a.o[g][j] = blend(a.o[g][j], mine, other_o, theirs);
            }
            a.m[g] = most;
        }
        if (place == 0) {
#pragma unroll
            for (int j = 0; j < D; j++) {
                uint32_t d = lane_dim(first_dim, dim_step, j);
                if (d < head_dim) os[(warp * G + g) * head_dim + d] = a.o[g][j];
            }
            if ((lane & (lanes - 1)) == 0) ms[warp * G + g] = a.m[g], ss[warp * G + g] = a.s[g];
        }
    }
}

/* Adds the head's sink to the sum s, which is relative to the maximum m; both are in powers of two. */
__device__ __forceinline__ float with_sink(const gpuk_attention &a, size_t head, float m, float s)
{
    return a.sinks && s > 0 ? __fadd_rn(s, exp2_of(__fmaf_rn(a.sinks[head % a.heads], LOG2E, -m))) : s;
}
/* Writes one head's merged result. */
__device__ __forceinline__ void put_out(const decode_params &p, size_t head, uint32_t d, float o, float m,
                                        float s)
{
    const float all = p.partial_m ? s : with_sink(p.a, head, m, s);
    const size_t at = head * p.a.kv.layout.head_dim + d;
    p.out[at] = p.partial_m ? o : (all > 0 ? o / all : 0.0f) * gate_at(p.a, at);
    if (d == 0 && p.partial_m) {
        p.partial_m[head] = m * LN2;
        p.partial_s[head] = s;
    }
}

/* Floats of shared memory that merge_pieces takes. */
static __host__ __device__ inline uint32_t merge_floats(uint32_t g)
{
    return g * (GPUK_SPLITS_MAX + 2) + 1;
}
/* The last block of a head group to get here merges the pieces. */
template <int G, typename B>
__device__ __forceinline__ void merge_pieces(const decode_params &p, size_t head0, uint32_t heads,
                                             uint32_t pieces, uint32_t *counter, float *weight)
{
    uint32_t *is_last = reinterpret_cast<uint32_t *>(weight + merge_floats(G) - 1);
    __threadfence();
    B::meet();
    if (threadIdx.x == 0) *is_last = atomicAdd(counter, 1u) == pieces - 1;
    B::meet();
    if (!*is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0; /* ready for the next step */
    const uint32_t head_dim = p.a.kv.layout.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *total = weight + G * GPUK_SPLITS_MAX, *maximum = total + G;
    for (uint32_t g = warp; g < heads; g += B::threads() / 32) {
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
            sum = __fmaf_rn(w, __ldcg(s + i), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) total[g] = sum, maximum[g] = most;
    }
    B::meet();
    for (uint32_t i = threadIdx.x; i < heads * head_dim; i += B::threads()) {
        uint32_t g = i / head_dim, d = i - g * head_dim;
        const float *o = p.piece_o + (head0 + g) * GPUK_SPLITS_MAX * head_dim + d;
        float sum = 0;
#pragma unroll 8
        for (uint32_t c = 0; c < pieces; c++)
            sum = __fmaf_rn(weight[g * GPUK_SPLITS_MAX + c], __ldcg(o + (size_t)c * head_dim), sum);
        put_out(p, head0 + g, d, sum, maximum[g], total[g]);
    }
}

/* Dimension d of what the block's W warps have together of head g (os, ms, ss as in finish_block). */
struct head_sum {
    float most, sum, value;
};
template <int G, int W>
__device__ __forceinline__ head_sum head_sum_of(uint32_t g, uint32_t d, uint32_t head_dim, const float *os,
                                                const float *ms, const float *ss)
{
    head_sum b = {-INFINITY, 0, 0};
#pragma unroll(W > 8 ? 4 : W)
    for (uint32_t w = 0; w < W; w++) b.most = fmaxf(b.most, ms[w * G + g]);
#pragma unroll(W > 8 ? 4 : W)
    for (uint32_t w = 0; w < W; w++) {
        const float factor = rescale(ms[w * G + g], b.most);
        b.sum = __fmaf_rn(factor, ss[w * G + g], b.sum);
        b.value = __fmaf_rn(factor, os[(w * G + g) * head_dim + d], b.value);
    }
    return b;
}

/* Adds up the block's warps (os [W][G][head_dim], ms and ss [W][G] in shared memory) and stores the heads'
 * results, or those of this piece (`piece` of `pieces`) and, in the last block, all pieces', which `counter`
 * counts. `memory`: shared memory for the merge; may overlap os. */
template <int G, int W, typename B = block_team>
__device__ __forceinline__ void finish_block(const decode_params &p, uint32_t t, uint32_t head0,
                                             uint32_t heads, uint32_t piece, uint32_t pieces,
                                             uint32_t *counter, const float *os, const float *ms,
                                             const float *ss, float *memory)
{
    const uint32_t head_dim = p.a.kv.layout.head_dim;
    const size_t head = (size_t)t * p.a.heads + head0;
    for (uint32_t i = threadIdx.x; i < heads * head_dim; i += B::threads()) {
        uint32_t g = i / head_dim, d = i - g * head_dim;
        const head_sum b = head_sum_of<G, W>(g, d, head_dim, os, ms, ss);
        if (pieces == 1) {
            put_out(p, head + g, d, b.value, b.most, b.sum);
        } else {
            size_t at = (head + g) * GPUK_SPLITS_MAX + piece;
            p.piece_o[at * head_dim + d] = b.value;
            if (d == 0) p.piece_m[at] = b.most, p.piece_s[at] = b.sum;
        }
    }
    if (pieces > 1) merge_pieces<G, B>(p, head, heads, pieces, counter, memory);
}

/* Whether a kernel has this token, by its position: those in a chain's order are chain/attention.cu's. */
__device__ __forceinline__ bool has_token(const gpuk_attention &a, bool chained, uint32_t position)
{
    const bool is_chained = a.order == GPUK_ORDER_CHAINED ||
                            (a.order == GPUK_ORDER_CHAINED_NEAR && position < GPU_APART_POSITION);
    return is_chained == chained;
}

/* The kernels' arguments, the workspace divided. */
struct decode_params gpuk_decode_params(const struct gpuk_attention *args, uint32_t tokens, bool fused,
                                        float *out, void *workspace);

/* The tensor kernel's launch, for shapes that decode_tensor_fits. */
bool decode_tensor_fits(const struct gpuk_device *device, const struct gpuk_attention *args);
int decode_tensor_launch(const struct gpuk_device *device, decode_params *params, uint32_t tokens,
                         uint32_t flags, void *stream, struct helm_err *err);
int decode_tensor_prepare(const struct gpuk_device *device, struct helm_err *err);

/* The launch for tokens in a chain's order (chain/attention.cu). */
int decode_chained_launch(const struct gpuk_device *device, const decode_params *params, uint32_t tokens,
                          uint32_t flags, void *stream, struct helm_err *err);
int decode_chained_prepare(const struct gpuk_device *device, struct helm_err *err);
