/* The streamed gemm's work, its division among blocks and their shared memory, and its reducers: the warps
 * that add the sums of consumers and of slices and store (gemm_stream.cu says how the roles meet).
 *
 * Included by gemm_stream.cu only. */
#pragma once

#include "worker-gpu/kernels/linear.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t PAIRS = 8, ROWS = 2 * PAIRS; /* of a group */
static const uint32_t CONSUMERS = 8, RUNS = 4 /* of 32 columns, of a consumer */;

/* A line: what slices are whole numbers of. A slice has up to MOST; each has PARTS that consumers can
 * share. */
template <typename D, bool BLOCKS = D::SCALED> struct stream_line {
    static const uint32_t BYTES = 128, COLUMNS = 64, PARTS = 1, MOST = 2 * CONSUMERS;
    static const bool LOOSE = false;
    /* Copies are fastest to whole lines. */
    static uint32_t pitch(uint32_t lines) { return lines * BYTES; }
};
/* The columns of one consumer, or a whole block. */
template <typename D> struct stream_line<D, true> {
    static const uint32_t COLUMNS = D::VALUES > 32 * RUNS ? D::VALUES : 32 * RUNS,
                          PARTS = COLUMNS / (32 * RUNS), BYTES = COLUMNS / D::VALUES * D::BYTES,
                          MOST = CONSUMERS / PARTS;
    static const bool LOOSE = D::LOOSE;
    /* Rows begin 16 bytes and a multiple of 32 apart, so that 8 rows' words lie in banks of their own. */
    static uint32_t pitch(uint32_t lines)
    {
        return (lines * BYTES + (LOOSE ? TILE_SLACK : 0) + 15) / 16 * 16 / 32 * 32 + 16;
    }
};
static const uint32_t SLOTS_MAX = 16, PRODUCERS_MAX = 4, REDUCERS_MIN = 2, REDUCERS_MAX = 6,
                      OTHERS_MAX = 7; /* producers and reducers */
/* Unless chosen: reducers; groups of one that are counted together; blocks that fit a multiprocessor. */
static const uint32_t REDUCERS = 6, REDUCERS_SCALED = 4 /* of blocks */, PRODUCERS_SCALED = 3, BATCH = 4,
                      BLOCKS = 1, REDUCERS_SHARED = 4 /* most, two blocks together */;
/* Threads of a block alone on its multiprocessor, and of one that leaves room for the next launch's. */
static const uint32_t THREADS_MAX = 32 * (CONSUMERS + OTHERS_MAX),
                      THREADS_SHARED = 32 * (CONSUMERS + REDUCERS_SHARED + 1);
static const uint32_t COUNTERS = GPUK_LINEAR_COUNTER_BYTES / sizeof(uint32_t);

struct stream_params {
    linear_params linear;
    const uint32_t *count;
    uint32_t *counters; /* [first group of a batch] slices whose sums have come */
    float *sums;        /* [group][slice] units of unit_floats */
    uint32_t first_group, groups;
    uint32_t lines, slices, slots, reducers, producers;
    uint32_t pitch; /* of a row in the ring */
    uint32_t batch; /* groups of a reducer that are counted together, at most */
    uint32_t ahead; /* groups asked into the L2 beyond the first ring */
};
/* A slice's sums of a group, as the lanes hold them, and the tokens' sums of squares over the slice. */
static __host__ __device__ inline uint32_t unit_floats(uint32_t tiles)
{
    return tiles * (ROWS * 8 + 8);
}

/* A block's share of the work. */
struct stream_share {
    uint32_t first_line, lines, bytes; /* of a row */
    uint32_t first_group, step, groups;
    uint32_t consumers;
};
template <typename D> __device__ __forceinline__ stream_share share_of(const stream_params &q)
{
    const uint32_t LINE = stream_line<D>::BYTES, parts = stream_line<D>::PARTS;
    const uint32_t slice = blockIdx.x % q.slices, share = blockIdx.x / q.slices;
    stream_share s;
    /* the launcher has seen that lines * slices fit 32 bits: a longer division would keep the first copy
     * waiting */
    s.first_line = q.lines * slice / q.slices;
    s.lines = q.lines * (slice + 1) / q.slices - s.first_line;
    const uint64_t left = q.linear.row_bytes - (uint64_t)s.first_line * LINE;
    s.bytes = left < s.lines * LINE ? (uint32_t)left : s.lines * LINE;
    s.step = gridDim.x / q.slices;
    s.first_group = share;
    s.groups = div_up(q.groups - share, s.step);
    s.consumers = s.lines * parts < CONSUMERS ? s.lines * parts : CONSUMERS;
    return s;
}

/* Shared memory; addresses of barriers as instructions take them. */
struct stream_memory {
    unsigned char *ring; /* [slots][ROWS][pitch] */
    float4 *sums;        /* [reducers][CONSUMERS][N][32] */
    float *squares;      /* [CONSUMERS][8 * N] */
    float *factors;      /* [CONSUMERS][8 * N] */
    uint32_t full, empty /* [slots] */, sums_full, sums_free /* [reducers] */;
    uint32_t *begins; /* [slots][ROWS] where rows are LOOSE: bytes in front of a row */
};
static __host__ __device__ inline uint32_t fixed_bytes(uint32_t tiles, uint32_t slots, uint32_t reducers)
{
    return reducers * CONSUMERS * tiles * 512 + 2 * CONSUMERS * tiles * 8 * 4 + 2 * (slots + reducers) * 8 +
           slots * ROWS * 4;
}
template <int N>
__device__ __forceinline__ stream_memory memory_of(const stream_params &q, unsigned char *shared)
{
    stream_memory m;
    m.ring = shared;
    m.sums = reinterpret_cast<float4 *>(shared + (size_t)q.slots * ROWS * q.pitch);
    m.squares = reinterpret_cast<float *>(m.sums + q.reducers * CONSUMERS * N * 32);
    m.factors = m.squares + CONSUMERS * 8 * N;
    m.full = shared_address(m.factors + CONSUMERS * 8 * N);
    m.empty = m.full + 8 * q.slots;
    m.sums_full = m.empty + 8 * q.slots;
    m.sums_free = m.sums_full + 8 * q.reducers;
    m.begins = reinterpret_cast<uint32_t *>(m.factors + CONSUMERS * 8 * N) + 4 * (q.slots + q.reducers);
    return m;
}

/* ---- reducers ----------------------------------------------------------------------------------- */

__device__ __forceinline__ void add4(float4 &to, const float4 &v)
{
    to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w;
}

/* The lane's part of a group: rows lane / 4 of the pairs, tokens 2 * (lane % 4) and one more of each 8. */
template <int N> struct stream_addends {
    float2 of[2 * N];
};
template <int N>
__device__ __forceinline__ void load_addends(const linear_params &p, uint32_t group, uint32_t tokens,
                                             stream_addends<N> &add)
{
    const uint32_t lane = threadIdx.x & 31, pair = group * PAIRS + (lane >> 2), first = (lane & 3) * 2;
#pragma unroll
    for (uint32_t i = 0; i < 2 * N; i++) {
        const uint32_t t = i / 2 * 8 + first + i % 2;
        add.of[i] = t < tokens && pair < p.pairs ? linear_addends(p, pair, t) : make_float2(0, 0);
    }
}
/* The norm's factors for the sums of the lane's tokens. */
template <int N>
__device__ __forceinline__ void norm_factors(const linear_params &p, const float2 *squares, float *scale)
{
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        const float mean = (i % 2 ? squares[i / 2].y : squares[i / 2].x) / (float)p.cols;
        scale[i] = p.norm ? rsqrtf(mean + p.eps) : 1.0f;
    }
}
template <int N>
__device__ __forceinline__ void finish(const linear_params &p, uint32_t group, uint32_t tokens,
                                       const float4 *total, const float *scale, const stream_addends<N> &add)
{
    const uint32_t lane = threadIdx.x & 31, pair = group * PAIRS + (lane >> 2), first = (lane & 3) * 2;
    if (pair >= p.pairs) return;
#pragma unroll
    for (uint32_t i = 0; i < 2 * N; i++) {
        const uint32_t t = i / 2 * 8 + first + i % 2;
        const float4 &v = total[i / 2];
        const float a = i % 2 ? v.y : v.x, b = i % 2 ? v.w : v.z;
        if (t < tokens) linear_store(p, pair, t, a * scale[i] + add.of[i].x, b * scale[i] + add.of[i].y);
    }
}

/* A batch of which all slices' sums have come: `count` groups, `step` apart. */
template <int N>
__device__ __forceinline__ void finish_batch(const stream_params &q, uint32_t first, uint32_t step,
                                             uint32_t count, uint32_t tokens)
{
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, unit = unit_floats(N);
    const uint32_t TOGETHER = 2, AT_ONCE = 4; /* groups, slices whose sums are on their way together */
    float scale[2 * N];
    float2 squares[N];
#pragma unroll
    for (int n = 0; n < N; n++) squares[n] = make_float2(0, 0);
    if (p.norm)
#pragma unroll 4
        for (uint32_t of = 0; of < q.slices; of++) {
            const float *theirs = q.sums + ((size_t)first * q.slices + of) * unit + N * ROWS * 8;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float2 v = __ldcg(reinterpret_cast<const float2 *>(theirs + n * 8) + (lane & 3));
                squares[n].x += v.x, squares[n].y += v.y;
            }
        }
    for (uint32_t k = 0; k < count; k += TOGETHER) {
        float4 total[TOGETHER][N];
        stream_addends<N> add[TOGETHER];
        const float4 *from[TOGETHER];
#pragma unroll
        for (uint32_t j = 0; j < TOGETHER; j++) {
            const uint32_t group = first + (k + j < count ? k + j : k) * step;
            from[j] = reinterpret_cast<const float4 *>(q.sums + (size_t)group * q.slices * unit) + lane;
            load_addends<N>(p, q.first_group + group, tokens, add[j]);
#pragma unroll
            for (int n = 0; n < N; n++) total[j][n] = make_float4(0, 0, 0, 0);
        }
        for (uint32_t of = 0; of < q.slices; of += AT_ONCE) {
            float4 v[AT_ONCE][TOGETHER][N];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (uint32_t j = 0; j < TOGETHER; j++)
#pragma unroll
                    for (int n = 0; n < N; n++)
                        v[i][j][n] = of + i < q.slices ? __ldcg(from[j] + (of + i) * (unit / 4) + n * 32)
                                                       : make_float4(0, 0, 0, 0);
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (uint32_t j = 0; j < TOGETHER; j++)
#pragma unroll
                    for (int n = 0; n < N; n++) add4(total[j][n], v[i][j][n]);
        }
        if (k == 0) norm_factors<N>(p, squares, scale);
#pragma unroll
        for (uint32_t j = 0; j < TOGETHER; j++)
            if (k + j < count)
                finish<N>(p, q.first_group + first + (k + j) * step, tokens, total[j], scale, add[j]);
    }
}

template <int N>
__device__ __forceinline__ void reduce(const stream_params &q, const stream_share &s, const stream_memory &m,
                                       uint32_t reducer)
{
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, place = lane & 3;
    const uint32_t tokens = *q.count, slice = blockIdx.x % q.slices;
    const uint32_t unit = unit_floats(N);
    if (reducer >= s.groups) return;
    /* batches of about one size; the same in all slices */
    const uint32_t groups = div_up(s.groups - reducer, q.reducers);
    const uint32_t batch = div_up(groups, div_up(groups, q.batch)), step = s.step * q.reducers;
    wait_for_previous();
    float2 squares[N]; /* of the lane's tokens over the slice */
#pragma unroll
    for (int n = 0; n < N; n++) squares[n] = make_float2(0, 0);
    uint32_t parity = 0, held = 0;
    for (uint32_t k = 0; k < groups; k++, parity ^= 1) {
        const uint32_t group = s.first_group + reducer * s.step + k * step;
        stream_addends<N> add;
        if (q.slices == 1) load_addends<N>(p, q.first_group + group, tokens, add);
        bulk_wait(m.sums_full + 8 * reducer, parity);
        const float4 *from = m.sums + reducer * CONSUMERS * N * 32 + lane;
        float4 total[N];
#pragma unroll
        for (int n = 0; n < N; n++) total[n] = from[n * 32];
        for (uint32_t w = 1; w < s.consumers; w++)
#pragma unroll
            for (int n = 0; n < N; n++) add4(total[n], from[(w * N + n) * 32]);
        barrier_arrive(m.sums_free + 8 * reducer);
        if (k == 0)
#pragma unroll
            for (int n = 0; n < N; n++) {
                for (uint32_t w = 0; w < s.consumers; w++) {
                    const float *of = m.squares + (w * N + n) * 8 + 2 * place;
                    squares[n].x += of[0], squares[n].y += of[1];
                }
            }
        if (q.slices == 1) {
            float scale[2 * N];
            norm_factors<N>(p, squares, scale);
            finish<N>(p, q.first_group + group, tokens, total, scale, add);
            continue;
        }
        float *mine = q.sums + ((size_t)group * q.slices + slice) * unit;
#pragma unroll
        for (int n = 0; n < N; n++) {
            __stcg(reinterpret_cast<float4 *>(mine) + n * 32 + lane, total[n]);
            if (held == 0 && p.norm && lane < 4) /* a batch's first speaks for all */
                __stcg(reinterpret_cast<float2 *>(mine + N * ROWS * 8 + n * 8) + lane, squares[n]);
        }
        if (++held < batch && k + 1 < groups) continue;
        const uint32_t first = group - (held - 1) * step;
        __syncwarp();
        uint32_t before = 0;
        if (lane == 0) before = count_arrival(q.counters + first);
        before = __shfl_sync(0xffffffffu, before, 0);
        if (before + 1 == q.slices) {
            __syncwarp();                                  /* all may see now what lane 0 may */
            if (lane == 0) __stcg(q.counters + first, 0u); /* as it was found */
            finish_batch<N>(q, first, step, held, tokens);
        }
        held = 0;
    }
}
