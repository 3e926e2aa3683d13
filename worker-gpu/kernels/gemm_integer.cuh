/* Few tokens' products with blocks by whole numbers: the work, its division among blocks, shared memory, and the warps that
 * multiply (gemm_integer.cu says how the roles meet).
 *
 * Included by gemm_integer.cu only. A token's x is the whole numbers of blocks_x.cuh, and sums of a run's products are exact
 * by whatever instruction; what is added up after that has the order of a chain's `steady` product: class c of 32, in a
 * chain lane c, has the runs c of a tile's lines; classes are added by halves, tiles one after another. */
#ifndef HELM_WORKER_GPU_KERNELS_GEMM_INTEGER_CUH
#define HELM_WORKER_GPU_KERNELS_GEMM_INTEGER_CUH

#include "worker-gpu/kernels/decode.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t PAIRS = 8, ROWS = 2 * PAIRS; /* of a group */
static const uint32_t TOKENS = 8;                  /* of a block */
static const uint32_t LINE_COLUMNS = 1024, CLASSES = 32;
/* Warps of each role. A consumer has two classes, 2 apart: of blocks of 256 these have some words in common. */
static const uint32_t CONSUMERS = 16, REDUCERS = 2, PRODUCERS = 2,
                      THREADS = 32 * (CONSUMERS + REDUCERS + PRODUCERS);
static const uint32_t TEAM = 256; /* threads that put a token's x, as many as a chain has */
static const uint32_t SLOTS_MIN = 2, SLOTS_MAX = 16;
static const uint32_t BATCH = 4;           /* groups of a reducer that are counted together, at most */
static const uint32_t SLICE_LINES = 4,     /* of a slice at most, or a tile's */
    ALONE_LINES = 5;                       /* of a row that is not cut */
static const uint32_t UNIT = ROWS * TOKENS; /* floats: sums of a tile's 16 rows, as the lanes hold them */
static const uint32_t COUNTERS = GPUK_LINEAR_COUNTER_BYTES / sizeof(uint32_t);

struct integer_params {
    linear_params linear;
    const uint32_t *count;
    uint32_t *counters; /* [first group of a batch][half of the tokens] slices whose sums have come */
    float *sums;        /* [group][half][tile] units */
    uint32_t groups, lines, tile_lines, tiles, slices;
    uint32_t slots, pitch; /* of the ring; of a row in it */
    uint32_t halves;       /* of 8 tokens, for which there is room */
};

/* What comes in one slot: a part of a tile's lines, about as many bytes as copies are fast with. */
template <typename D> struct integer_part {
    static const uint32_t BYTES = D::LINE_BYTES, LINES = 1200 / BYTES > 1 ? 1200 / BYTES : 1;
    /* Rows begin 16 bytes and a multiple of 32 apart, so that 8 rows' words lie in banks of their own. */
    static constexpr uint32_t pitch()
    {
        return (LINES * BYTES + (D::LOOSE ? TILE_SLACK : 0) + 15) / 16 * 16 / 32 * 32 + 16;
    }
    static constexpr uint32_t lines_of(uint32_t row_lines)
    {
        return steady_lines(row_lines, BYTES, D::LOOSE);
    }
};

/* x in shared memory: of each run and digit the 8 tokens' 32 bytes as fragments of B, then of each run and token its scale
 * and sum (where there are two leasts: sums). Runs are DIGIT_BYTES apart, so that four of a token are stored at once. */
template <typename D> struct integer_x {
    typedef typename D::format F;
    static const uint32_t DIGIT_BYTES = TOKENS * 32, RUN_BYTES = blocks_x::DIGITS * DIGIT_BYTES + 32;
    static const uint32_t FLOATS = F::LEAST && F::GROUPS == 2 ? 4 : 2; /* of a run and token */
    static const uint32_t LINE_BYTES = CLASSES * (RUN_BYTES + TOKENS * FLOATS * 4);
    unsigned char *digits; /* [run of the slice][RUN_BYTES] */
    float *of_runs;        /* [run][token][FLOATS] */
    float *squares;        /* [token][TEAM / 32] */

    /* Four neighbours of a token's x, quad i of a run of the slice. */
    __device__ __forceinline__ void put(uint32_t run, uint32_t token, uint32_t i, const float4 &v) const
    {
        const blocks_x::four of = blocks_x::four_of(v);
        uint32_t *to = reinterpret_cast<uint32_t *>(digits + run * RUN_BYTES + (token * 4 + i % 4) * 8) + i / 4;
#pragma unroll
        for (uint32_t k = 0; k < blocks_x::DIGITS; k++) to[k * DIGIT_BYTES / 4] = of.digit[k];
        if (i != 0) return;
        float *as = of_runs + (run * TOKENS + token) * FLOATS;
        if (FLOATS == 4)
            *reinterpret_cast<float4 *>(as) = make_float4(of.scale, of.sum, of.last, 0);
        else
            *reinterpret_cast<float2 *>(as) = make_float2(of.scale, __fadd_rn(of.sum, of.last));
    }
};

/* What a block has of the work. */
struct integer_share {
    uint32_t slice, first_tile, tiles;
    uint32_t first_line, lines, bytes; /* of a row */
    uint32_t first_group, step, groups;
    uint32_t half, tokens; /* of the step's tokens the 8 from 8 * half on, of which there are `tokens` */
};
template <typename D> __device__ __forceinline__ integer_share share_of(const integer_params &q)
{
    integer_share s;
    const uint32_t count = *q.count, halves = count > TOKENS && q.halves > 1 ? 2 : 1;
    uint32_t share = blockIdx.x / q.slices;
    const uint32_t shares = gridDim.x / q.slices;
    s.slice = blockIdx.x % q.slices;
    s.half = share % halves, share /= halves;
    s.step = shares / halves + (s.half < shares % halves ? 1 : 0);
    const uint32_t left = count - s.half * TOKENS;
    s.tokens = count < s.half * TOKENS ? 0 : left < TOKENS ? left : TOKENS;
    s.first_tile = q.tiles * s.slice / q.slices;
    s.tiles = q.tiles * (s.slice + 1) / q.slices - s.first_tile;
    s.first_line = s.first_tile * q.tile_lines;
    const uint32_t lines = s.tiles * q.tile_lines, there = q.lines - s.first_line;
    s.lines = lines < there ? lines : there;
    const uint64_t left_bytes = q.linear.row_bytes - (uint64_t)s.first_line * D::LINE_BYTES;
    s.bytes = left_bytes < s.lines * D::LINE_BYTES ? (uint32_t)left_bytes : s.lines * D::LINE_BYTES;
    s.first_group = share;
    s.groups = share < q.groups ? div_up(q.groups - share, s.step) : 0;
    return s;
}

/* Shared memory; addresses of barriers as instructions take them. */
template <typename D> struct integer_memory {
    unsigned char *ring; /* [slots][ROWS][pitch] */
    integer_x<D> x;
    float4 *sums;                                                   /* [REDUCERS][CONSUMERS][32] */
    uint32_t full, empty /* [slots] */, sums_full, sums_free /* [REDUCERS] */;
    uint32_t *begins; /* [slots][ROWS] where rows are LOOSE: bytes in front of a row */

    static __host__ __device__ uint32_t fixed_bytes(uint32_t lines, uint32_t slots)
    {
        return lines * integer_x<D>::LINE_BYTES + TOKENS * TEAM / 32 * 4 + REDUCERS * CONSUMERS * 512 +
               2 * (slots + REDUCERS) * 8 + slots * ROWS * 4;
    }
    __device__ __forceinline__ integer_memory(const integer_params &q, const integer_share &s,
                                              unsigned char *shared)
    {
        ring = shared;
        x.digits = shared + (size_t)q.slots * ROWS * q.pitch;
        x.of_runs =
            reinterpret_cast<float *>(x.digits + (size_t)s.lines * CLASSES * integer_x<D>::RUN_BYTES);
        sums = reinterpret_cast<float4 *>(x.of_runs + (size_t)s.lines * CLASSES * TOKENS * integer_x<D>::FLOATS);
        x.squares = reinterpret_cast<float *>(sums + REDUCERS * CONSUMERS * 32);
        uint64_t *barriers = reinterpret_cast<uint64_t *>(x.squares + TOKENS * TEAM / 32);
        full = shared_address(barriers);
        empty = full + 8 * q.slots;
        sums_full = empty + 8 * q.slots;
        sums_free = sums_full + 8 * REDUCERS;
        begins = reinterpret_cast<uint32_t *>(barriers + 2 * (q.slots + REDUCERS));
    }
};

__device__ __forceinline__ uint32_t class_of(uint32_t warp, uint32_t k)
{
    return warp / 2 * 4 + warp % 2 + 2 * k;
}

/* A warp that is done with a buffer says so by one lane. */
__device__ __forceinline__ void warp_arrive(uint32_t barrier)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(barrier);
}

/* A place in a ring. */
struct ring_place {
    uint32_t at, parity;
    __device__ __forceinline__ void next(uint32_t count)
    {
        if (++at == count) at = 0, parity ^= 1;
    }
};

/* ---- consumers: x ---------------------------------------------------------------------------------- */

/* The block's tokens of the slice's columns, by teams of TEAM threads, and parts of all columns' squares as the threads of a
 * chain have them. */
template <typename D>
__device__ __forceinline__ void take_x(const integer_params &q, const integer_share &s, const integer_x<D> &x)
{
    const linear_params &p = q.linear;
    const uint32_t team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM, teams = CONSUMERS * 32 / TEAM,
                   quads = p.cols / 4, end = s.first_line + s.lines;
    const uint32_t from = p.norm ? 0 : s.first_line, to = p.norm ? q.lines : end, TOGETHER = 4;
    float4 next[TOGETHER];
    const auto load = [&](uint32_t token, uint32_t line) {
        const float4 *of = reinterpret_cast<const float4 *>(p.x + (uint64_t)(s.half * TOKENS + token) * p.x_stride);
#pragma unroll
        for (uint32_t j = 0; j < TOGETHER; j++) {
            const uint32_t f = (line + j) * TEAM + thread;
            next[j] = token < s.tokens && line + j < to && f < quads ? __ldcg(of + f) : make_float4(0, 0, 0, 0);
        }
    };
    wait_for_previous();
    load(team, from);
    for (uint32_t token = team; token < s.tokens; token += teams) {
        float squares = 0;
        for (uint32_t line = from; line < to; line += TOGETHER) {
            float4 v[TOGETHER];
#pragma unroll
            for (uint32_t j = 0; j < TOGETHER; j++) v[j] = next[j];
            if (line + TOGETHER < to)
                load(token, line + TOGETHER);
            else
                load(token + teams, from);
#pragma unroll
            for (uint32_t j = 0; j < TOGETHER; j++) {
                const uint32_t l = line + j, f = l * TEAM + thread;
                if (l >= to || (f & ~31u) >= quads) break; /* whole warps have what there is */
                if (p.norm && f < quads) {
                    const float4 n = __ldg(reinterpret_cast<const float4 *>(p.norm) + f);
                    squares = add_quad_squares(squares, v[j]);
                    v[j] = make_float4(v[j].x * n.x, v[j].y * n.y, v[j].z * n.z, v[j].w * n.w);
                }
                if (l >= s.first_line && l < end)
                    x.put((l - s.first_line) * CLASSES + thread / 8, token, thread % 8, v[j]);
            }
        }
        if (!p.norm) continue;
        squares = warp_sum(squares);
        if ((thread & 31) == 0) x.squares[token * (TEAM / 32) + thread / 32] = squares;
    }
}
/* What the norm leaves of a token's sums. */
__device__ __forceinline__ float x_scale(const linear_params &p, const float *squares, uint32_t token)
{
    if (!p.norm) return 1.0f;
    float sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < TEAM / 32; w++) sum += squares[token * (TEAM / 32) + w];
    return rsqrtf(sum / (float)p.cols + p.eps);
}

/* ---- consumers: products ----------------------------------------------------------------------------- */

template <typename D> struct integer_products {
    typedef typename D::format F;
    typedef typename D::shared_words words;
    static const uint32_t GROUPS = F::GROUPS, DIGITS = blocks_x::DIGITS, RUNS = D::RUNS;
    /* Of scales of a run's two rows, a lane's own. */
    struct own_scales {
        float scale[2][GROUPS], least[2][GROUPS];
    };

    static __device__ __forceinline__ uint32_t offset_of(uint32_t line, uint32_t of)
    {
        return line * D::LINE_BYTES + of / RUNS * F::BYTES;
    }
    /* Lane l has those of rows l % 8 and 8 more, class l / 8 % 2 of the warp's, line l / 16. */
    static __device__ __forceinline__ own_scales scales_of(const unsigned char *slot, uint32_t pitch,
                                                           const uint32_t *begins, uint32_t bytes,
                                                           uint32_t warp)
    {
        const uint32_t lane = threadIdx.x & 31, row = lane & 7, of = class_of(warp, lane >> 3 & 1),
                       offset = offset_of(lane / 16, of), at = offset < bytes ? offset : 0;
        const unsigned char *a = slot + row * pitch + at, *b = a + PAIRS * pitch;
        if (D::LOOSE) a += begins[row], b += begins[row + PAIRS];
        const uint32_t run = of % RUNS;
        block_scales scales[2];
        F::scales_two(words(a + F::ORIGIN), words(b + F::ORIGIN), run, scales[0], scales[1]);
        own_scales own;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                own.scale[r][g] = scales[r].scale[g] * F::whole_times(run);
                own.least[r][g] = F::LEAST ? -D::run_least(scales[r], g, run) : 0;
            }
        return own;
    }
    static __device__ __forceinline__ float total(const int of[DIGITS][4], uint32_t i)
    {
        blocks_x::sums sums;
#pragma unroll
        for (uint32_t k = 0; k < DIGITS; k++) sums.of[k] = of[k][i];
        return sums.total();
    }
    /* A run's numbers as the lane's fragments. */
    struct fragments {
        uint32_t a[4];
    };
    static __device__ __forceinline__ fragments fragments_of(const words &a, const words &b, uint32_t run)
    {
        const uint32_t c = threadIdx.x & 3;
        return {{F::whole_four(a, run, c), F::whole_four(b, run, c), F::whole_four(a, run, c + 4),
                 F::whole_four(b, run, c + 4)}};
    }
    /* Adds what a run of the slot's 16 rows gives for 8 tokens; the scales of its first row's lanes begin at `from`. */
    static __device__ __forceinline__ void add_run(const fragments &f, const own_scales &own, uint32_t from,
                                                   const integer_x<D> &x, uint32_t x_run, float sum[4])
    {
        const uint32_t lane = threadIdx.x & 31, c = lane & 3, FLOATS = integer_x<D>::FLOATS;
        const unsigned char *digits = x.digits + x_run * integer_x<D>::RUN_BYTES + lane * 8;
        int of[GROUPS][DIGITS][4];
#pragma unroll
        for (uint32_t k = 0; k < DIGITS; k++) {
            const uint2 b01 = *reinterpret_cast<const uint2 *>(digits + k * integer_x<D>::DIGIT_BYTES);
            if constexpr (GROUPS == 1) {
                bytes_product(of[0][k], f.a[0], f.a[1], f.a[2], f.a[3], b01.x, b01.y);
            } else {
                bytes_product16(of[0][k], f.a[0], f.a[1], b01.x);
                bytes_product16(of[1][k], f.a[2], f.a[3], b01.y);
            }
        }
        float scale[2][GROUPS], least[2][GROUPS];
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                const int lane_of = (int)(from + lane / 4);
                scale[r][g] = __shfl_sync(0xffffffffu, own.scale[r][g], lane_of);
                if (F::LEAST) least[r][g] = __shfl_sync(0xffffffffu, own.least[r][g], lane_of);
            }
        const float *of_run = x.of_runs + (x_run * TOKENS + 2 * c) * FLOATS;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            float x_scale, x_sum[2];
            if constexpr (FLOATS == 4) {
                const float4 v = *reinterpret_cast<const float4 *>(of_run + t * 4);
                x_scale = v.x, x_sum[0] = v.y, x_sum[1] = v.z;
            } else {
                const float4 both = *reinterpret_cast<const float4 *>(of_run);
                x_scale = t ? both.z : both.x, x_sum[0] = x_sum[1] = t ? both.w : both.y;
            }
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const uint32_t i = 2 * r + t;
                float products = __fmul_rn(scale[r][0], total(of[0], i));
                if (GROUPS == 2) products = __fmaf_rn(scale[r][GROUPS - 1], total(of[GROUPS - 1], i), products);
                sum[i] = __fmaf_rn(products, x_scale, sum[i]);
                if constexpr (F::LEAST) {
                    sum[i] = __fmaf_rn(least[r][0], x_sum[0], sum[i]);
                    if (GROUPS == 2) sum[i] = __fmaf_rn(least[r][GROUPS - 1], x_sum[1], sum[i]);
                }
            }
        }
    }
    /* Two lines of a slot, `bytes` of each row; `line` is the first one's number in the slice. WHOLE: every byte of them is
     * there. */
    template <bool WHOLE>
    static __device__ __forceinline__ void add_lines(const unsigned char *slot, uint32_t pitch,
                                                     const uint32_t *begins, uint32_t bytes,
                                                     const integer_x<D> &x, uint32_t line, uint32_t warp,
                                                     float sum[2][4])
    {
        const uint32_t lane = threadIdx.x & 31, row = lane >> 2;
        const unsigned char *row_a = slot + row * pitch, *row_b = row_a + PAIRS * pitch;
        if (D::LOOSE) row_a += begins[row], row_b += begins[row + PAIRS];
        const own_scales own = scales_of(slot, pitch, begins, bytes, warp);
#pragma unroll
        for (uint32_t l = 0; l < 2; l++) {
            fragments f[2];
            bool there[2];
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t of = class_of(warp, k), offset = offset_of(l, of);
                there[k] = WHOLE || offset < bytes;
                if (there[k])
                    f[k] = fragments_of(words(row_a + offset + F::ORIGIN), words(row_b + offset + F::ORIGIN),
                                        of % RUNS);
            }
#pragma unroll
            for (uint32_t k = 0; k < 2; k++)
                if (there[k])
                    add_run(f[k], own, l * 16 + k * 8, x, (line + l) * CLASSES + class_of(warp, k), sum[k]);
        }
    }
    static __device__ __forceinline__ void add_part(const unsigned char *slot, uint32_t pitch,
                                                    const uint32_t *begins, uint32_t bytes,
                                                    const integer_x<D> &x, uint32_t line, uint32_t warp,
                                                    float sum[2][4])
    {
        const uint32_t TWO = 2 * D::LINE_BYTES;
        for (uint32_t at = 0; at < bytes; at += TWO, line += 2)
            if (bytes - at >= TWO)
                add_lines<true>(slot + at, pitch, begins, TWO, x, line, warp, sum);
            else
                add_lines<false>(slot + at, pitch, begins, bytes - at, x, line, warp, sum);
    }
};

template <typename D>
__device__ __forceinline__ void consume(const integer_params &q, const integer_share &s,
                                        const integer_memory<D> &m, uint32_t warp)
{
    const uint32_t lane = threadIdx.x & 31, part = integer_part<D>::LINES;
    take_x<D>(q, s, m.x);
    threads_meet(1, CONSUMERS * 32);
    ring_place slot = {0, 0};
    for (uint32_t i = 0; i < s.groups; i++) {
        const uint32_t buffer = i % REDUCERS, used = i / REDUCERS * s.tiles;
        for (uint32_t tile = 0; tile < s.lines; tile += q.tile_lines) {
            const uint32_t end = tile + q.tile_lines < s.lines ? tile + q.tile_lines : s.lines;
            float sum[2][4] = {};
            for (uint32_t line = tile; line < end; line += part) {
                const uint32_t lines = end - line < part ? end - line : part,
                               left = s.bytes - line * D::LINE_BYTES,
                               bytes = left < lines * D::LINE_BYTES ? left : lines * D::LINE_BYTES;
                bulk_wait(m.full + 8 * slot.at, slot.parity);
                integer_products<D>::add_part(m.ring + slot.at * ROWS * q.pitch, q.pitch,
                                              m.begins + slot.at * ROWS, bytes, m.x, line, warp, sum);
                warp_arrive(m.empty + 8 * slot.at);
                slot.next(q.slots);
            }
            bulk_wait(m.sums_free + 8 * buffer, (used + tile / q.tile_lines + 1) & 1);
            m.sums[(buffer * CONSUMERS + warp) * 32 + lane] =
                make_float4(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1], sum[0][2] + sum[1][2],
                            sum[0][3] + sum[1][3]);
            warp_arrive(m.sums_full + 8 * buffer);
        }
    }
}

#endif
