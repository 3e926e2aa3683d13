/* Decode attention as an operation of a chain: one token, norm, rotation and append included.
 *
 * Included by chain.cu. The work is cut into units (some query heads of one kv head, a piece of the context)
 * that go round the blocks; a unit has the whole block. A short context is not cut into pieces, and up to a
 * longer one each query head is a unit: merging pieces and a lane's work on several heads both take longer
 * than reading keys again from the L2. Keys and values of earlier positions are asked into the L2 while q, k
 * and v are being computed, and the first are loaded before the block waits for them; those of the token
 * itself never go through the cache, since the block that appends them may be another. */
#ifndef HELM_WORKER_GPU_KERNELS_CHAIN_ATTENTION_CUH
#define HELM_WORKER_GPU_KERNELS_CHAIN_ATTENTION_CUH

#include "worker-gpu/kernels/chain.cuh"

static const uint32_t CHAIN_GROUP = 4;       /* query heads of a unit at most */
static const uint32_t CHAIN_ONE_PIECE = 512; /* visible positions up to which nothing is cut */
static const uint32_t CHAIN_ONE_HEAD = 2048; /* and up to which each query head reads for itself */
static const uint32_t CHAIN_PIECE_MIN = 128;
static const uint32_t CHAIN_ASK = 512; /* positions of a unit asked into the L2 ahead */

/* How a token's attention is cut; the same in every block. */
struct attention_cut {
    uint32_t first, end; /* positions it sees */
    uint32_t heads;      /* of a unit at most */
    uint32_t chunks;     /* of a kv head's query heads */
    uint32_t pieces, per_piece, units;
};
__device__ __forceinline__ attention_cut cut_of(const gpuk_attention &a, uint32_t position)
{
    attention_cut c;
    c.end = position + 1;
    c.first = a.window && c.end > a.window ? c.end - a.window : 0;
    const uint32_t visible = c.end - c.first, group = a.heads / a.kv.layout.kv_heads;
    c.heads = visible <= CHAIN_ONE_HEAD || group == 1 ? 1 : CHAIN_GROUP;
    c.chunks = div_up(group, c.heads);
    const uint32_t share = a.kv.layout.kv_heads * c.chunks;
    uint32_t pieces = visible <= CHAIN_ONE_PIECE ? 1 : gridDim.x / share;
    if (pieces > div_up(visible, CHAIN_PIECE_MIN)) pieces = div_up(visible, CHAIN_PIECE_MIN);
    if (pieces > GPUK_SPLITS_MAX) pieces = GPUK_SPLITS_MAX;
    if (pieces < 1) pieces = 1;
    c.per_piece = div_up(visible, pieces);
    c.pieces = div_up(visible, c.per_piece);
    c.units = share * c.pieces;
    return c;
}

/* A unit's place. */
struct attention_unit {
    uint32_t share;          /* which heads, of all blocks' */
    uint32_t kv_head, chunk; /* of the kv head's query heads */
    uint32_t piece, begin, end;
    bool owner; /* the piece ends with the token's own position, which is not read: end is before it */
};
__device__ __forceinline__ attention_unit unit_of(const attention_cut &cut, uint32_t number)
{
    attention_unit u;
    u.share = number / cut.pieces, u.piece = number - u.share * cut.pieces;
    u.kv_head = u.share / cut.chunks, u.chunk = u.share - u.kv_head * cut.chunks;
    u.owner = u.piece == cut.pieces - 1;
    u.begin = cut.first + u.piece * cut.per_piece;
    u.end = u.owner ? cut.end - 1 : u.begin + cut.per_piece;
    return u;
}

/* While the operation in front is running: what the block's unit will read first comes as far as the L2. */
template <typename S>
__device__ __forceinline__ void chain_attention_ask(const gpuk_attention &a, const chain_token &token)
{
    const attention_cut cut = cut_of(a, token.position);
    if (blockIdx.x >= cut.units) return;
    const kv_layout &l = a.kv.layout;
    if (threadIdx.x < 2 * (GPUK_HEAD_DIM_MAX / 32)) { /* the head norms' weights, 128 bytes a thread */
        const uint32_t d = 32 * (threadIdx.x & (GPUK_HEAD_DIM_MAX / 32 - 1));
        const float *norm = threadIdx.x < GPUK_HEAD_DIM_MAX / 32 ? a.q_norm : a.k_norm;
        if (norm && d < l.head_dim) ask_l2(norm + d);
    }
    const attention_unit unit = unit_of(cut, blockIdx.x);
    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), row_bytes = l.head_dim * l.elem_bytes;
    const uint32_t lines = div_up(row_bytes, 128); /* of a key, or a value */
    const uint32_t end = unit.begin + CHAIN_ASK < unit.end ? unit.begin + CHAIN_ASK : unit.end;
    for (uint32_t i = threadIdx.x; i < (end - unit.begin) * 2 * lines; i += S::THREADS) {
        const uint32_t row = i / (2 * lines), line = i - row * 2 * lines, at = unit.begin + row;
        const uint32_t page = token.pages[at >> page_shift], is_value = line >= lines;
        if (page == GPUK_PAGE_ABSENT) continue;
        ask_l2(kv_rows(a.kv, page, is_value, unit.kv_head) + (at & (l.page_tokens - 1)) * row_bytes +
               (line - is_value * lines) * 128);
    }
}

/* Floats of shared memory of a unit of g heads. */
static inline uint32_t chain_attention_floats(uint32_t warps, uint32_t g, uint32_t head_dim)
{
    const uint32_t floats = (warps + 1) * g * head_dim + 2 * head_dim + 2 * warps * g;
    return floats > merge_floats(g) ? floats : merge_floats(g);
}

/* A lane's 8 dimensions of U keys and values on their way. */
template <typename C, int U> struct cache_rows {
    static const int UNITS = sizeof(C) / 2; /* of 16 bytes */
    uint4 k[U][UNITS], v[U][UNITS];
    bool seen[U];
};

template <typename S, typename C, int G, typename Wait>
__device__ __forceinline__ void chain_attend(const decode_params &p, const chain_token &token,
                                             const attention_cut &cut, float *memory, const Wait &wait)
{
    const int U = 2; /* positions of a lane in flight together, twice */
    const gpuk_attention &a = p.a;
    const kv_layout &l = a.kv.layout;
    const uint32_t head_dim = l.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *qs = memory, *os = qs + G * head_dim, *current = os + S::WARPS * G * head_dim;
    float *ms = current + 2 * head_dim, *ss = ms + S::WARPS * G;
    uint32_t lanes = 32; /* of a position, as in attention_decode.cu */
    while (lanes > 1 && lanes / 2 * 8 >= head_dim) lanes /= 2;
    const uint32_t at_once = 32 / lanes, place = lane / lanes, first_dim = (lane & (lanes - 1)) * 8;
    const uint32_t step = S::WARPS * at_once, group = a.heads / l.kv_heads;
    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), page_mask = l.page_tokens - 1;
    const uint32_t row_bytes = head_dim * sizeof(C);
    const uint64_t to_values = (uint64_t)l.kv_heads * l.page_tokens * row_bytes;
    const auto query = [&](int g, float *to) {
        const float4 *from = reinterpret_cast<const float4 *>(qs + g * head_dim + first_dim);
        const float4 zero = make_float4(0, 0, 0, 0);
        reinterpret_cast<float4 *>(to)[0] = first_dim < head_dim ? from[0] : zero;
        reinterpret_cast<float4 *>(to)[1] = first_dim < head_dim ? from[1] : zero;
    };

    bool waited = false;
    for (uint32_t number = blockIdx.x; number < cut.units; number += gridDim.x) {
        const attention_unit unit = unit_of(cut, number);
        const uint32_t kv_head = unit.kv_head, end = unit.end;
        const uint32_t head0 = kv_head * group + unit.chunk * G;
        const uint32_t heads = group - unit.chunk * G < (uint32_t)G ? group - unit.chunk * G : G;
        /* the lane's part of this kv head's keys, in page 0 */
        const uint64_t page_bytes = l.layers * 2 * to_values;
        const unsigned char *pool_near = kv_rows(a.kv, 0, 0, kv_head) + first_dim * sizeof(C);
        const unsigned char *pool_host = kv_rows(a.kv, GPUK_PAGE_HOST, 0, kv_head) + first_dim * sizeof(C);
        cache_rows<C, U> now;
        const auto load = [&](cache_rows<C, U> &to, uint32_t base) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                const uint32_t at = base + u * step + warp * at_once + place;
                const uint32_t page = at < end ? token.pages[at >> page_shift] : GPUK_PAGE_ABSENT;
                to.seen[u] = page != GPUK_PAGE_ABSENT;
                const bool reads = to.seen[u] && first_dim < head_dim;
                const unsigned char *pool = page & GPUK_PAGE_HOST ? pool_host : pool_near;
                const uint4 *row = reinterpret_cast<const uint4 *>(
                    pool + (page & ~GPUK_PAGE_HOST) * page_bytes + (at & page_mask) * row_bytes);
#pragma unroll
                for (int i = 0; i < cache_rows<C, U>::UNITS; i++) {
                    to.k[u][i] = reads ? __ldcg(row + i) : make_uint4(0, 0, 0, 0);
                    to.v[u][i] = reads ? __ldcg(row + to_values / 16 + i) : make_uint4(0, 0, 0, 0);
                }
            }
        };
        load(now, unit.begin);
        if (waited)
            __syncthreads(); /* the unit before is through with the shared memory */
        else
            wait();
        waited = true;
        take_query<C>(p, 0, kv_head, head0, heads, token.position, token.pages, unit.owner, qs, os, current,
                      unit.chunk == 0);
        __syncthreads();

        attention_sums<G> sums;
        sums_open(sums);
        for (uint32_t base = unit.begin; base + warp * at_once < end; base += U * step) {
            float k[U][8], v[U][8];
            bool seen[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                seen[u] = now.seen[u];
#pragma unroll
                for (int i = 0; i < cache_rows<C, U>::UNITS; i++) {
                    unpack16<C>(now.k[u][i], k[u] + i * 4);
                    unpack16<C>(now.v[u][i], v[u] + i * 4);
                }
            }
            if (base + U * step < end) load(now, base + U * step);
            sums_add<G, U>(sums, heads, lanes, k, v, seen, query);
        }
        if (unit.owner && warp == 0) {
            float k[1][8], v[1][8];
            const bool seen[1] = {place == 0 &&
                                  token.pages[token.position >> page_shift] != GPUK_PAGE_ABSENT};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                k[0][j] = first_dim < head_dim ? current[first_dim + j] : 0.0f;
                v[0][j] = first_dim < head_dim ? current[head_dim + first_dim + j] : 0.0f;
            }
            sums_add<G, 1>(sums, heads, lanes, k, v, seen, query);
        }
        sums_fold(sums, heads, lanes, first_dim, 1, head_dim, os, ms, ss);
        __syncthreads();
        finish_block<G, S::WARPS>(p, 0, head0, heads, unit.piece, cut.pieces, p.counters + unit.share, os, ms,
                                  ss, memory);
    }
    if (!waited) wait();
}

#endif
