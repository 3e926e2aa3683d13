/* Prefill attention on tensor cores: FlashAttention-2's shape (Dao 2023).
 *
 * A block takes ROWS queries of one head, a warp 16 of them. Keys and values of a tile pass through a ring of
 * slots by asynchronous copies that follow the page table (kv_tile.cuh): K0 V0 K1 V1 .., AHEAD of them while
 * one is computed with, and the block meets once for each. Scores and weights live in registers only. A warp
 * leaves out tiles that none of its queries sees. The limit is how many fragments a warp can have under way
 * beside its outputs: heads of 256 numbers and more leave no registers for queries, which are read from
 * shared memory for each tile.
 *
 * With heads of 512 numbers two warps share 16 queries: each multiplies half of the numbers, they add their
 * scores in shared memory, and each has half of the outputs.
 *
 * A query's sums have the order of its tiles, whatever queries are beside it. Where a launch has fewer blocks
 * than there is room for, and its caller gave a workspace, positions are cut into ranges (grid.z);
 * attention_join adds these up in order. In an attention in parts a block takes up its numbers where the
 * launch before has left them, and leaves them again.
 *
 * Included by prefill.cu. */
#pragma once

#include "worker-gpu/kernels/attention/kv_tile.cuh"
#include "worker-gpu/kernels/attention/prefill.cuh"

static const float LOG2E = 1.44269504088896341f;

/* A block's share: `queries` tokens from token0 on, of one row and head, whose first position is
 * position0. */
struct prefill_work {
    uint32_t token0, queries, position0, head, end;
    part_work part;
};

/* False: there is none. Rows' last tokens come first: the longest work starts earliest. */
template <typename S>
__device__ __forceinline__ bool work_of(const prefill_params &p, prefill_work &w, uint32_t &row)
{
    const gpuk_attention &a = p.a;
    const uint32_t rows = a.step.counts[1];
    uint32_t tile = blockIdx.y, tiles = 0;
    for (row = 0; row < rows; row++) {
        tiles = (a.step.row_first[row + 1] - a.step.row_first[row] + S::ROWS - 1) / S::ROWS;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (row >= rows) return false;
    w.head = blockIdx.x;
    w.token0 = a.step.row_first[row] + (tiles - 1 - tile) * S::ROWS;
    const uint32_t left = a.step.row_first[row + 1] - w.token0;
    w.queries = left < S::ROWS ? left : S::ROWS;
    w.position0 = a.step.position[w.token0];
    const uint32_t first = a.window && w.position0 + 1 > a.window ? w.position0 + 1 - a.window : 0;
    w.part = part_of(p, row, first / GPU_PREFILL_TILE * GPU_PREFILL_TILE);
    w.end = w.position0 + w.queries < w.part.to ? w.position0 + w.queries : w.part.to;
    if (w.part.from >= w.part.to) return false;
    if (p.ranges > 1) {
        const uint32_t tiles = (w.end - w.part.from + S::KEYS - 1) / S::KEYS,
                       each = (tiles + p.ranges - 1) / p.ranges * S::KEYS;
        w.part.from += blockIdx.z * each;
        if (w.end > w.part.from + each) w.end = w.part.from + each;
    }
    return true;
}

/* A thread of a warp: of queries `query` and query + 8 numbers first_dim + 8 n + c and the next one, its
 * outputs, maxima (times log2 e) and its own shares of the sums. */
template <typename S> struct prefill_sums {
    typedef typename S::T T;
    float o[S::WIDE / 8][4], m[2], s[2];

    __device__ __forceinline__ void open()
    {
        m[0] = m[1] = -INFINITY, s[0] = s[1] = 0;
#pragma unroll
        for (int n = 0; n < S::WIDE / 8; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    }
    /* Weights of scores x, which become them; sums and outputs so far are brought to the new maxima. */
    __device__ __forceinline__ void weigh(float (&x)[S::KEYS / 8][4], float scale)
    {
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = -INFINITY;
#pragma unroll
            for (int n = 0; n < S::KEYS / 8; n++) most = fmaxf(most, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            most = fmaxf(m[r], __fmul_rn(most, scale));
            /* a row that has seen nothing yet (window) keeps exponents defined */
            const float from = most == -INFINITY ? 0.0f : most;
            keep[r] = exp2_near(m[r] - from);
            m[r] = most;
            float sum = __fmul_rn(s[r], keep[r]);
#pragma unroll
            for (int n = 0; n < S::KEYS / 8; n++) {
                x[n][2 * r] = exp2_near(__fmaf_rn(x[n][2 * r], scale, -from));
                x[n][2 * r + 1] = exp2_near(__fmaf_rn(x[n][2 * r + 1], scale, -from));
                sum = __fadd_rn(sum, __fadd_rn(x[n][2 * r], x[n][2 * r + 1]));
            }
            s[r] = sum;
        }
        if (__ballot_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1) == 0) return;
#pragma unroll
        for (int n = 0; n < S::WIDE / 8; n++) {
            o[n][0] = __fmul_rn(o[n][0], keep[0]), o[n][1] = __fmul_rn(o[n][1], keep[0]);
            o[n][2] = __fmul_rn(o[n][2], keep[1]), o[n][3] = __fmul_rn(o[n][3], keep[1]);
        }
    }
    /* Adds weights x times the values at `slot`. */
    __device__ __forceinline__ void add(const float (&x)[S::KEYS / 8][4], uint32_t slot, uint32_t first_unit)
    {
        const uint32_t lane = threadIdx.x & 31;
        const uint32_t mine = slot + tile_unit<S::HEAD>(lane & 15, first_unit + (lane >> 4));
#pragma unroll
        for (uint32_t k = 0; k < S::KEYS / 16; k++) {
            const uint32_t a0 = element<T>::pack(x[2 * k][0], x[2 * k][1]),
                           a1 = element<T>::pack(x[2 * k][2], x[2 * k][3]),
                           a2 = element<T>::pack(x[2 * k + 1][0], x[2 * k + 1][1]),
                           a3 = element<T>::pack(x[2 * k + 1][2], x[2 * k + 1][3]);
#pragma unroll
            for (uint32_t n = 0; n < S::WIDE / 16; n++) {
                uint32_t b[4]; /* dimensions n * 16 .. + 8 and + 8 .. + 16, each of two halves of positions */
                load_matrices_transposed(b, units_further(mine, n * 2) + k * 16 * S::HEAD * 2);
                matrix_unit<T>::add(o[2 * n], a0, a1, a2, a3, b[0], b[1]);
                matrix_unit<T>::add(o[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }
    /* In an attention in parts, for tokens that are among the block's. */
    __device__ __forceinline__ void load(const prefill_params &p, const prefill_work &w, uint32_t query,
                                         uint32_t first_dim, uint32_t c)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (query + r * 8 >= w.queries) continue;
            const size_t at = (size_t)(w.token0 + query + r * 8) * p.a.heads + w.head;
            m[r] = p.part.state[at * GPU_PART_FLOATS];
            s[r] = p.part.state[at * GPU_PART_FLOATS + 1 + c / 2];
#pragma unroll
            for (int n = 0; n < S::WIDE / 8; n++) {
                const float2 two = *(const float2 *)(p.part.o + at * S::HEAD + first_dim + n * 8 + c);
                o[n][2 * r] = two.x, o[n][2 * r + 1] = two.y;
            }
        }
    }
    __device__ __forceinline__ void store(const prefill_params &p, const prefill_work &w, float *to,
                                          float *state, uint32_t query, uint32_t first_dim, uint32_t c) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (query + r * 8 >= w.queries) continue;
            const size_t at = (size_t)(w.token0 + query + r * 8) * p.a.heads + w.head;
            if (c == 0 && first_dim == 0) state[at * GPU_PART_FLOATS] = m[r];
            if (first_dim == 0) state[at * GPU_PART_FLOATS + 1 + c / 2] = s[r];
#pragma unroll
            for (int n = 0; n < S::WIDE / 8; n++)
                *(float2 *)(to + at * S::HEAD + first_dim + n * 8 + c) =
                    make_float2(o[n][2 * r], o[n][2 * r + 1]);
        }
    }
    /* Divided by the sums, to the launch's output. */
    __device__ __forceinline__ void finish(const prefill_params &p, const prefill_work &w, uint32_t query,
                                           uint32_t first_dim, uint32_t c)
    {
        const gpuk_attention &a = p.a;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = s[r];
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
            if (query + r * 8 >= w.queries) continue;
            if (a.sinks && sum > 0) sum = __fadd_rn(sum, exp2_near(__fmaf_rn(a.sinks[w.head], LOG2E, -m[r])));
            const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
            const uint32_t token = w.token0 + query + r * 8, within = w.head * S::HEAD + first_dim + c;
            const size_t at = (size_t)token * a.heads * S::HEAD + within;
            const float *gate = a.gate ? a.gate + (size_t)token * a.gate_stride + within : nullptr;
#pragma unroll
            for (int n = 0; n < S::WIDE / 8; n++)
                store_out2(p, at + n * 8, gate ? gate + n * 8 : nullptr, __fmul_rn(o[n][2 * r], inverse),
                           __fmul_rn(o[n][2 * r + 1], inverse));
        }
    }
};

/* A thread's queries as the matrix instructions take them: in registers, or read again for each tile. */
template <typename S> struct prefill_queries {
    uint32_t held[S::HELD ? S::WIDE / 16 : 1][4], address;

    /* Starts copying the block's, to shared memory at `to`. */
    __device__ __forceinline__ static void fetch(const prefill_params &p, const prefill_work &w, uint32_t to)
    {
        const uint32_t units = S::HEAD / 8;
        for (uint32_t i = threadIdx.x; i < S::ROWS * units; i += S::THREADS) {
            const uint32_t r = i / units, unit = i % units;
            const typename S::T *from =
                (const typename S::T *)p.q +
                ((size_t)(w.token0 + (r < w.queries ? r : 0)) * p.a.heads + w.head) * S::HEAD + unit * 8;
            copy16_async(to + tile_unit<S::HEAD>(r, unit), from, r < w.queries);
        }
        copies_commit();
    }
    /* `at`: the thread's place, of a warp's queries in shared memory. */
    __device__ __forceinline__ void open(uint32_t at, uint32_t warp, uint32_t first_unit)
    {
        const uint32_t lane = threadIdx.x & 31;
        address = at + tile_unit<S::HEAD>(warp * 16 + (lane & 15), first_unit + (lane >> 4));
    }
    __device__ __forceinline__ void hold()
    {
#pragma unroll
        for (uint32_t k = 0; k < S::WIDE / 16; k++) load_matrices(held[k], units_further(address, k * 2));
    }
    /* x = scores of the keys at `slot`, of the thread's side. */
    __device__ __forceinline__ void score(float (&x)[S::KEYS / 8][4], uint32_t slot,
                                          uint32_t first_unit) const
    {
        typedef matrix_unit<typename S::T> unit;
        const uint32_t lane = threadIdx.x & 31;
        const uint32_t mine =
            slot + tile_unit<S::HEAD>((lane & 7) + (lane >> 4) * 8, first_unit + (lane >> 3 & 1));
#pragma unroll
        for (int n = 0; n < S::KEYS / 8; n++) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
#pragma unroll
        for (uint32_t k = 0; k < S::WIDE / 16; k++) {
            uint32_t q[4];
            if constexpr (S::HELD)
                q[0] = held[k][0], q[1] = held[k][1], q[2] = held[k][2], q[3] = held[k][3];
            else
                load_matrices(q, units_further(address, k * 2));
#pragma unroll
            for (uint32_t n = 0; n < S::KEYS / 16; n++) {
                uint32_t b[4]; /* positions n * 16 .. + 8 and + 8 .. + 16, each of two halves of k */
                load_matrices(b, units_further(mine, k * 2) + n * 16 * S::HEAD * 2);
                unit::add(x[2 * n], q[0], q[1], q[2], q[3], b[0], b[1]);
                unit::add(x[2 * n + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
            }
        }
    }
};

/* A warp's scores and those of the other one with its queries, added: x[n][i] is of the same query and
 * position in both. The two warps meet for it; `exchange` is free again when all have met. */
template <typename S>
__device__ __forceinline__ void add_scores(float (&x)[S::KEYS / 8][4], unsigned char *exchange)
{
    const uint32_t thread = threadIdx.x, mate = (thread + S::THREADS / 2) % S::THREADS;
    float4 *own = (float4 *)exchange + thread, *other = (float4 *)exchange + mate;
#pragma unroll
    for (int n = 0; n < S::KEYS / 8; n++)
        own[n * S::THREADS] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
    threads_meet(8 + thread / 32 % S::WARPS, 64);
#pragma unroll
    for (int n = 0; n < S::KEYS / 8; n++) {
        const float4 more = other[n * S::THREADS];
        x[n][0] += more.x, x[n][1] += more.y, x[n][2] += more.z, x[n][3] += more.w;
    }
}

/* -inf for positions base .. that a thread's queries, at position `mine` and 8 further, do not see. */
template <typename S>
__device__ __forceinline__ void mask(float (&x)[S::KEYS / 8][4], uint32_t base, uint32_t mine,
                                     uint32_t window)
{
#pragma unroll
    for (int n = 0; n < S::KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = base + n * 8 + (threadIdx.x & 3) * 2 + (i & 1), query = mine + (i >> 1) * 8;
            if (at > query || (window && at + window <= query)) x[n][i] = -INFINITY;
        }
    }
}

/* Slots for keys or values of a tile, and their way there. */
template <typename S> struct prefill_ring {
    prefill_cells<S> cells;
    uint32_t at, used, filled; /* address; slots that are computed with next, and filled next */
    unsigned char *memory;     /* the same place */

    __device__ __forceinline__ static uint32_t after(uint32_t slot)
    {
        return slot + 1 == S::STAGES ? 0 : slot + 1;
    }
    template <bool VALUES> __device__ __forceinline__ void fetch(const tile_source &s)
    {
        if (cells.at.base < s.end) {
            cells.template fetch<VALUES>(s, at + filled * S::SLOT, at + S::STAGES * S::SLOT);
            if (VALUES) cells.ask(s, cells.at.base + S::KEYS);
        }
        copies_commit();
        filled = after(filled);
    }
    /* The next slot, when all of it has come for the whole block; another one is filled meanwhile. */
    template <bool VALUES> __device__ __forceinline__ uint32_t next(const tile_source &s)
    {
        copies_wait<S::AHEAD - 1>();
        cells.template settle<VALUES>(memory + S::STAGES * S::SLOT, memory + used * S::SLOT);
        __syncthreads();
        fetch<(S::AHEAD % 2 == 1) != VALUES>(s);
        const uint32_t slot = at + used * S::SLOT;
        used = after(used);
        return slot;
    }
};

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_tensor(const __grid_constant__ prefill_params p)
{
    SHARED_DYNAMIC(unsigned char, memory);
    const gpuk_attention &a = p.a;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 % S::WARPS;
    const uint32_t first_dim = threadIdx.x / 32 / S::WARPS * S::WIDE, first_unit = first_dim / 8;
    const uint32_t c = (lane & 3) * 2, query = warp * 16 + (lane >> 2);
    let_next_start();
    wait_for_previous();
    prefill_work w;
    uint32_t row;
    if (!work_of<S>(p, w, row)) return;
    const tile_source source = {a.kv, pages_of(a.step, row), w.head / (a.heads / a.kv.layout.kv_heads),
                                w.end};
    prefill_ring<S> ring;
    ring.memory = memory + S::Q_BYTES;
    ring.at = shared_address(ring.memory), ring.used = ring.filled = 0;
    ring.cells.open(source);
    uint32_t base = w.part.from;
    ring.cells.ask(source, base);
    prefill_queries<S> queries;
    const uint32_t waiting = S::HELD ? ring.at : shared_address(memory);
    queries.open(waiting, warp, first_unit);
    queries.fetch(p, w, waiting);
    if constexpr (S::HELD) {
        copies_wait<0>();
        __syncthreads();
        queries.hold();
        __syncthreads();
    }
    ring.template fetch<false>(source);
    if constexpr (S::AHEAD > 1) ring.template fetch<true>(source);
    if constexpr (S::AHEAD > 2) ring.template fetch<false>(source);
    if constexpr (S::AHEAD > 3) ring.template fetch<true>(source);
    static_assert(S::AHEAD >= 1 && S::AHEAD <= 4, "as many before the first");

    prefill_sums<S> sums;
    sums.open();
    if (w.part.resumes) sums.load(p, w, query, first_dim, c);
    const float scale = a.scale * LOG2E;
    const uint32_t nearest = w.position0 + warp * 16, last = nearest + 15; /* of the warp's queries */
    for (; base < w.end; base += S::KEYS) {
        const bool seen =
            warp * 16 < w.queries && base <= last && (!a.window || base + S::KEYS - 1 + a.window > nearest);
        const uint32_t keys = ring.template next<false>(source);
        float x[S::KEYS / 8][4];
        if (seen) {
            queries.score(x, keys, first_unit);
            if constexpr (S::SIDES > 1) add_scores<S>(x, ring.memory + S::RING);
            if (base + S::KEYS > nearest + 1 || (a.window && base + a.window <= last))
                mask<S>(x, base, w.position0 + query, a.window);
            sums.weigh(x, scale);
        }
        const uint32_t values = ring.template next<true>(source);
        if (seen) sums.add(x, values, first_unit);
    }
    /* a range without positions has met for none: its queries may still be on their way */
    if constexpr (!S::HELD) copies_wait<0>();
    if (p.ranges > 1) {
        const size_t before = (size_t)blockIdx.z * a.step.counts[0] * a.heads;
        sums.store(p, w, p.o + before * S::HEAD, p.state + before * GPU_PART_FLOATS, query, first_dim, c);
    } else if (is_last(p.part)) {
        sums.finish(p, w, query, first_dim, c);
    } else {
        sums.store(p, w, p.part.o, p.part.state, query, first_dim, c);
    }
}

/* Adds the ranges of positions up, in their order: a warp takes a query of one head. */
static const uint32_t JOIN_WARPS = 4;
__global__ void __launch_bounds__(JOIN_WARPS * 32) attention_join(const __grid_constant__ prefill_params p)
{
    let_next_start();
    wait_for_previous();
    const gpuk_attention &a = p.a;
    const uint32_t lane = threadIdx.x & 31, head_dim = a.kv.layout.head_dim, tokens = a.step.counts[0];
    const uint32_t token = blockIdx.x, head = blockIdx.y * JOIN_WARPS + (threadIdx.x >> 5);
    if (token >= tokens || head >= a.heads) return;
    const size_t place = (size_t)token * a.heads + head, step = (size_t)tokens * a.heads;
    /* lane: a range's */
    const float *state = p.state + (place + step * lane) * GPU_PART_FLOATS;
    const bool there = lane < p.ranges;
    float m = there ? state[0] : -INFINITY, most = m;
    float s = there ? state[1] + state[2] + state[3] + state[4] : 0.0f;
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    const float weight = m == -INFINITY ? 0.0f : exp2_near(m - most);
    float sum = warp_sum(weight * s);
    if (a.sinks && sum > 0) sum += exp2_near(a.sinks[head] * LOG2E - most);
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    const float *gate = a.gate ? a.gate + (size_t)token * a.gate_stride + head * head_dim : nullptr;
    for (uint32_t d = 2 * lane; d < head_dim; d += 64) {
        float2 all = make_float2(0, 0);
        for (uint32_t i = 0; i < p.ranges; i++) {
            const float2 of = *(const float2 *)(p.o + (place + step * i) * head_dim + d);
            const float w = __shfl_sync(0xffffffffu, weight, (int)i);
            all.x += w * of.x, all.y += w * of.y;
        }
        store_out2(p, place * head_dim + d, gate ? gate + d : nullptr, all.x * inverse, all.y * inverse);
    }
}
