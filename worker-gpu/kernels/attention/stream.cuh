/* One unit of decode attention over a long context: up to 8 query heads of one kv head, a piece of the
 * positions, by 8 warps. Reading is what takes the time, so everything else is arranged around tiles on their
 * way (kv_stream.cuh).
 *
 * Included by attention/decode_tensor.cu, which is a kernel of it, and chain/attention.cuh. Warp w takes the
 * tiles w, w + 8, ... of the piece, each with streaming softmax of its own; then the block adds its warps up.
 * The token's own key and value, where the unit norms and rotates them (fused), are taken from shared memory:
 * another block may be writing them to the cache. So they are where a token is computed as if alone: with the
 * same sums. */
#pragma once

#include "worker-gpu/kernels/attention/decode.cuh"
#include "worker-gpu/kernels/attention/kv_stream.cuh"

/* Where a unit's numbers lie in shared memory, bytes: fp32 queries [8][HEAD], the token's own key and value,
 * scratch and then queries in parts, maxima and sums [8 warps][8], queries' scales [8], each warp's values.
 * Outputs [8 warps][8][HEAD] take the place of these last; the merge's weights that of the queries. */
template <typename C, int HEAD> struct stream_memory {
    typedef stream_shape<C, HEAD> S;
    static const uint32_t CURRENT = STREAM_HEADS * HEAD * 4, PARTS = CURRENT + 2 * HEAD * 4,
                          PARTS_BYTES = 2 * STREAM_HEADS * S::QUERY_PITCH,
                          SCRATCH_BYTES = STREAM_WARPS * HEAD * 4,
                          MAXIMA = PARTS + (PARTS_BYTES > SCRATCH_BYTES ? PARTS_BYTES : SCRATCH_BYTES),
                          SUMS = MAXIMA + STREAM_WARPS * STREAM_HEADS * 4,
                          UP = SUMS + STREAM_WARPS * STREAM_HEADS * 4,
                          VALUES = (UP + STREAM_HEADS * 4 + 127) / 128 * 128, /* whole lines */
        OUTPUT_BYTES = STREAM_WARPS * STREAM_HEADS * HEAD * 4, VALUES_BYTES = STREAM_WARPS * S::VALUES_BYTES,
                          BYTES = VALUES + (VALUES_BYTES > OUTPUT_BYTES ? VALUES_BYTES : OUTPUT_BYTES);
    static_assert(VALUES % 16 == 0 && PARTS % 16 == 0, "copied 16 bytes at a time");
};

/* Whether a type streams: not f32, whose products tensor cores round. */
template <typename C> struct stream_takes {
    static const bool value = C::SCALED || C::NUMBER_BYTES == 2;
};
/* head_dim, of those there is code for; -1: none. */
static const uint32_t STREAM_DIMS = 5;
static inline int stream_head_dim(uint32_t head_dim)
{
    const uint32_t dims[STREAM_DIMS] = {64, 96, 128, 256, 512};
    for (int i = 0; i < (int)STREAM_DIMS; i++)
        if (dims[i] == head_dim) return i;
    return -1;
}
/* Shared memory of a unit; 0: this cache does not stream. */
uint32_t stream_bytes(const struct gpuk_kv *kv);

struct stream_unit {
    uint32_t kv_head, head0, heads; /* query heads head0 .. head0 + heads */
    uint32_t first;                 /* position that is seen */
    uint32_t begin, end;            /* positions in the cache; begin is of whole groups */
    uint32_t piece, pieces;
    bool owner, appends; /* the token's own position is this piece's; it is put into the cache */
};
/* The token, and where the unit works. */
struct stream_place {
    uint32_t token, position;
    const uint32_t *pages; /* its sequence's line of the page table */
    uint32_t page;         /* of the position */
    uint32_t *counter;     /* of the unit's heads, all pieces */
    unsigned char *memory; /* stream_memory::BYTES, shared */
};

/* Queries as the tensor cores take them, from fp32 ones; f16 first by a power of two that makes the largest
 * about 1, so that none is too large or loses its low part. up[h]: what scores are to be multiplied by. */
template <typename C, int HEAD>
__device__ __forceinline__ void stream_queries(const float *qs, uint32_t heads, unsigned char *parts,
                                               float *up)
{
    typedef stream_shape<C, HEAD> S;
    typedef typename stream_keys<C, HEAD>::unit unit;
    const uint32_t h = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (h >= STREAM_HEADS) return;
    float2 q[(HEAD + 63) / 64];
    float most = 0;
#pragma unroll
    for (int j = 0; j < (HEAD + 63) / 64; j++) {
        const uint32_t d = 64 * j + 2 * lane;
        q[j] =
            h < heads && d < HEAD ? *reinterpret_cast<const float2 *>(qs + h * HEAD + d) : make_float2(0, 0);
        most = fmaxf(most, fmaxf(fabsf(q[j].x), fabsf(q[j].y)));
    }
    float down = 1;
    if (element<unit>::largest() < 1e6f) {
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
        const uint32_t exponent = __float_as_uint(most) >> 23;
        if (exponent > 20 && exponent < 234) down = __uint_as_float((254 - exponent) << 23);
    }
    if (lane == 0) up[h] = 1 / down;
#pragma unroll
    for (int j = 0; j < (HEAD + 63) / 64; j++) {
        const uint32_t d = 64 * j + 2 * lane;
        uint32_t high, low;
        split_pair<unit>(q[j].x * down, q[j].y * down, high, low);
        if (d >= HEAD) continue;
        *reinterpret_cast<uint32_t *>(parts + h * S::QUERY_PITCH + d * 2) = high;
        *reinterpret_cast<uint32_t *>(parts + (STREAM_HEADS + h) * S::QUERY_PITCH + d * 2) = low;
    }
}

/* A warp's share of the piece: o, maxima m and sums s of heads 2 c and 2 c + 1. */
template <typename C, int HEAD> struct stream_warp {
    typedef stream_shape<C, HEAD> S;
    stream_keys<C, HEAD> keys;
    const unsigned char *rows[S::GROUPS]; /* of the page of the tile's groups; its keys */
    uint32_t page[S::GROUPS];             /* of the tile after it */
    uint32_t seen;                        /* a bit for each group that has a page */
    float o[HEAD / 16][4], m[2], s[2];

    __device__ __forceinline__ void look_up(const stream_place &t, const stream_unit &u, uint32_t page_shift,
                                            uint32_t base)
    {
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) {
            const uint32_t at = base + r * STREAM_GROUP;
            page[r] =
                at < u.end && at + STREAM_GROUP > u.first ? t.pages[at >> page_shift] : GPUK_PAGE_ABSENT;
        }
    }
    __device__ __forceinline__ void load_keys(const gpuk_kv &kv, const kv_steps<C> &steps, uint32_t kv_head,
                                              uint32_t base)
    {
        seen = 0;
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) {
            if (page[r] == GPUK_PAGE_ABSENT) continue;
            seen |= 1u << r;
            rows[r] = kv_rows(kv, page[r], 0, kv_head);
            keys.load(r, rows[r], steps, (base + r * STREAM_GROUP) & (kv.layout.page_tokens - 1), 0);
        }
    }
    /* Loads another part of the keys of groups whose first part was loaded. */
    __device__ __forceinline__ void load_part(const gpuk_kv &kv, const kv_steps<C> &steps, uint32_t base,
                                              int part)
    {
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++)
            if (seen >> r & 1)
                keys.load(r, rows[r], steps, (base + r * STREAM_GROUP) & (kv.layout.page_tokens - 1), part);
    }
    __device__ __forceinline__ void fetch_values(const gpuk_kv &kv, const kv_steps<C> &steps,
                                                 const stream_unit &u, uint32_t base, uint32_t to) const
    {
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) {
            const uint32_t at = base + r * STREAM_GROUP;
            const uint32_t low = u.first > at ? u.first - at : 0, high = !(seen >> r & 1) ? 0
                                                                         : u.end - at < STREAM_GROUP
                                                                             ? u.end - at
                                                                             : STREAM_GROUP;
            const unsigned char *from = high ? rows[r] + steps.to_values : nullptr;
            stream_values<C, HEAD>::fetch(to, r, from, steps, at & (kv.layout.page_tokens - 1), low, high);
        }
    }
    /* Scores to weights; o and s to the new maxima. */
    __device__ __forceinline__ void weigh(float x[S::GROUPS][4], const stream_unit &u, uint32_t base,
                                          uint32_t groups)
    {
        const uint32_t g = (threadIdx.x & 31) >> 2;
        float most[2] = {m[0], m[1]}, from[2], keep[2];
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t at = base + r * STREAM_GROUP + g + 8 * (e >> 1);
                if (at < u.first || at >= u.end || !(groups >> r & 1)) x[r][e] = -INFINITY;
                most[e & 1] = fmaxf(most[e & 1], x[r][e]);
            }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int mask = 4; mask < 32; mask <<= 1)
                most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], mask));
            from[i] = most[i] == -INFINITY ? 0.0f : most[i];
            keep[i] = exp2_of(m[i] - from[i]);
            m[i] = most[i], s[i] *= keep[i];
        }
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[r][e] = exp2_of(x[r][e] - from[e & 1]), s[e & 1] += x[r][e];
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[j][e] *= keep[e & 1];
    }
};

/* The unit, by all threads of team B (8 warps). */
template <typename C, int HEAD, typename B>
__device__ __forceinline__ void stream_attend(const decode_params &p, const stream_unit &u,
                                              const stream_place &t)
{
    typedef stream_memory<C, HEAD> M;
    typedef stream_shape<C, HEAD> S;
    const gpuk_kv &kv = p.a.kv;
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, c = lane & 3;
    float *qs = reinterpret_cast<float *>(t.memory),
          *current = reinterpret_cast<float *>(t.memory + M::CURRENT),
          *ms = reinterpret_cast<float *>(t.memory + M::MAXIMA),
          *ss = reinterpret_cast<float *>(t.memory + M::SUMS),
          *up = reinterpret_cast<float *>(t.memory + M::UP),
          *os = reinterpret_cast<float *>(t.memory + M::VALUES);
    const unsigned char *parts = t.memory + M::PARTS, *values = t.memory + M::VALUES + warp * S::VALUES_BYTES;
    const uint32_t to = shared_address(values), step = STREAM_WARPS * S::TILE;
    const uint32_t page_shift = 31 - __clz((int)kv.layout.page_tokens);
    const kv_steps<C> steps(kv.layout);
    const bool own = gpuk_own_cells(&p.a, p.fused) && u.owner; /* the token's own position is not read */

    stream_warp<C, HEAD> w;
    uint32_t base = u.begin + warp * S::TILE;
    w.look_up(t, u, page_shift, base);
    w.load_keys(kv, steps, u.kv_head, base);
    w.fetch_values(kv, steps, u, base, to);
    copies_commit();
    w.look_up(t, u, page_shift, base + step);
    take_query<C, (uint32_t)(HEAD > HEAD_DIM_USUAL ? HEAD_STEPS_WIDE : HEAD_STEPS), B>(
        p, t.token, u.kv_head, u.head0, u.heads, t.position, t.pages, own, qs,
        reinterpret_cast<float *>(t.memory + M::PARTS), current, u.appends, &t.page);
    B::meet();
    stream_queries<C, HEAD>(qs, u.heads, t.memory + M::PARTS, up);
    B::meet();

    const float up0 = up[2 * c], up1 = up[2 * c + 1];
    w.m[0] = w.m[1] = -INFINITY, w.s[0] = w.s[1] = 0;
#pragma unroll
    for (int j = 0; j < HEAD / 16; j++) w.o[j][0] = w.o[j][1] = w.o[j][2] = w.o[j][3] = 0;
#pragma unroll 1
    for (; base < u.end; base += step) {
        float x[S::GROUPS][4];
        w.keys.scores(x, parts, 0);
#pragma unroll
        for (int part = 1; part < S::PARTS; part++) {
            w.load_part(kv, steps, base, part);
            w.keys.scores(x, parts, part);
        }
        const uint32_t groups = w.seen;
        w.load_keys(kv, steps, u.kv_head, base + step);
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) x[r][0] *= up0, x[r][1] *= up1, x[r][2] *= up0, x[r][3] *= up1;
        w.weigh(x, u, base, groups);
        copies_wait<0>();
        __syncwarp();
        stream_values<C, HEAD>::add(w.o, x, values);
        __syncwarp(); /* all lanes have read them */
        w.fetch_values(kv, steps, u, base + step, to);
        copies_commit();
        w.look_up(t, u, page_shift, base + 2 * step);
    }
    copies_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int mask = 4; mask < 32; mask <<= 1) w.s[i] += __shfl_xor_sync(0xffffffffu, w.s[i], mask);
    B::meet(); /* outputs take the place of values */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t h = 2 * c + i;
        if (h >= u.heads) continue;
        float *out = os + (warp * STREAM_HEADS + h) * HEAD;
#pragma unroll
        for (int j = 0; j < HEAD / 16; j++) {
            out[stream_values<C, HEAD>::dimension(j, i)] = w.o[j][i];
            out[stream_values<C, HEAD>::dimension(j, 2 + i)] = w.o[j][2 + i];
        }
        if (lane < 4) ms[warp * STREAM_HEADS + h] = w.m[i], ss[warp * STREAM_HEADS + h] = w.s[i];
    }
    B::meet();
    if (own) { /* each warp takes one head's, as part of warp 0's share */
        if (warp < u.heads && t.page != GPUK_PAGE_ABSENT) {
            float score = 0;
            for (uint32_t d = lane; d < HEAD; d += 32) score += qs[warp * HEAD + d] * current[d];
            score = warp_sum(score);
            const float before = ms[warp], now = fmaxf(before, score);
            const float theirs = rescale(before, now), mine = exp2_of(score - now);
            for (uint32_t d = lane; d < HEAD; d += 32)
                os[warp * HEAD + d] = os[warp * HEAD + d] * theirs + mine * current[HEAD + d];
            __syncwarp(); /* the maximum has been read */
            if (lane == 0) ms[warp] = now, ss[warp] = ss[warp] * theirs + mine;
        }
        B::meet();
    }
    finish_block<STREAM_HEADS, STREAM_WARPS, B>(p, t.token, u.head0, u.heads, u.piece, u.pieces, t.counter,
                                                os, ms, ss, qs);
}
