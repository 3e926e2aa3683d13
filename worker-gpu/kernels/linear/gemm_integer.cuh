/* Few tokens' products with blocks by whole numbers: the work, its division among blocks, shared memory, and
 * the warps that multiply (gemm_integer.cu says how the roles meet).
 *
 * Included by gemm_integer.cu only. A token's x is the whole numbers of blocks_x.cuh, and sums of a run's
 * products are exact by whatever instruction; what is added up after that has the order of a chain's `steady`
 * product: class c of 32, in a chain lane c, has the runs c of a tile's lines; classes are added by halves,
 * tiles one after another. */
#pragma once

#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t PAIRS = 8,
                      ROWS = 2 * PAIRS; /* of a set, what fragments A are of; a group is SETS of these */
static const uint32_t TOKENS = 8;       /* of a block */
static const uint32_t LINE_COLUMNS = 1024, CLASSES = 32;
/* Warps of each role. A consumer has two classes, 2 apart: of blocks of 256 these have some words in
 * common. */
static const uint32_t CONSUMERS = 16, REDUCERS = 2, PRODUCERS = 2,
                      THREADS = 32 * (CONSUMERS + REDUCERS + PRODUCERS);
static const uint32_t TEAM = 256; /* threads that put a token's x, as many as a chain has */
static const uint32_t SLOTS_MIN = 2, SLOTS_MAX = 16;
static const uint32_t BATCH = 4;            /* groups that are counted together, at most */
static const uint32_t SLICE_LINES = 4,      /* of a slice at most, or a tile's */
    ALONE_LINES = 5;                        /* of a row that is not cut */
static const uint32_t UNIT = ROWS * TOKENS; /* floats: sums of a tile of a set, as the lanes hold them */
static const uint32_t COUNTERS = GPUK_LINEAR_COUNTER_BYTES / sizeof(uint32_t);

struct integer_params {
    linear_params linear;
    const uint32_t *count;
    uint32_t *counters; /* [first set of a batch][half of the tokens] slices whose sums have come */
    float *sums;        /* [set][half][tile] units */
    uint32_t groups, lines, tile_lines, tiles, slices;
    uint32_t slots, pitch; /* of the ring; of a row in it */
    uint32_t halves;       /* of 8 tokens, for which there is room */
};

/* The part in one slot: a line of a group's rows. */
template <typename D> struct integer_part {
    static const uint32_t BYTES = D::LINE_BYTES;
    /* Rows begin 16 bytes and a multiple of 32 apart, so that 8 rows' words lie in banks of their own; where
     * words are read by twos 32 and a multiple of 64, so that those of 4 rows do. */
    static constexpr uint32_t pitch()
    {
        const uint32_t apart = D::format::ALONG ? 32 : 16,
                       bytes = (BYTES + (D::LOOSE ? TILE_SLACK : 0) + 15) / 16 * 16;
        return (bytes + apart) / (2 * apart) * (2 * apart) + apart;
    }
};

/* x in shared memory: of each run and digit the 8 tokens' 32 bytes as fragments of B (which of a run's words
 * a lane has is as in A: where words of weights are read by twos neighbours, else one of each half), then of
 * each run and token its scale and sum (where there are two leasts: sums). Runs are DIGIT_BYTES apart, so
 * that four of a token are stored at once. */
template <typename D> struct integer_x {
    typedef typename D::format F;
    static const uint32_t DIGIT_BYTES = TOKENS * 32, RUN_BYTES = blocks_x::DIGITS * DIGIT_BYTES + 32;
    static const uint32_t FLOATS = F::LEAST && F::GROUPS == 2 ? 4 : 2; /* of a run and token */
    static const uint32_t LINE_BYTES = CLASSES * (RUN_BYTES + TOKENS * FLOATS * 4);
    unsigned char *digits; /* [run of the slice][RUN_BYTES] */
    float *of_runs;        /* [run][token][FLOATS] */
    float *squares;        /* [token][TEAM / 32] */

    /* Four neighbours of a token's x, quad i of a run of the slice. */
    __device__ __forceinline__ void put(uint32_t run, uint32_t token, uint32_t i,
                                        const blocks_x::four &of) const
    {
        const uint32_t place = F::ALONG ? i : i % 4 * 2 + i / 4;
        uint32_t *to = reinterpret_cast<uint32_t *>(digits + run * RUN_BYTES + token * 32) + place;
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

/* Scales of a run of two rows, 8 apart: each row's and group's scale and, where values have one, the addend
 * for each of x, in sequence. */
template <typename F> struct alignas(F::GROUPS == 1 && !F::LEAST ? 8 : 16) integer_scales {
    static const uint32_t EACH = F::LEAST ? 2 : 1;
    float of[2][F::GROUPS][EACH];
};

/* A block's share of the work. */
struct integer_share {
    uint32_t slice, first_tile, tiles;
    uint32_t first_line, lines, bytes; /* of a row */
    uint32_t first_group, step, groups;
    uint32_t half; /* of the step's tokens the 8 from 8 * half on */
};
template <typename D> __device__ __forceinline__ integer_share share_of(const integer_params &q)
{
    integer_share s;
    uint32_t share = blockIdx.x / q.slices;
    const uint32_t shares = gridDim.x / q.slices;
    s.slice = blockIdx.x % q.slices;
    s.half = share % q.halves, share /= q.halves;
    s.step = shares / q.halves + (s.half < shares % q.halves ? 1 : 0);
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

/* How many of a block's 8 tokens there are: asked after the kernel in front, which may bring the step's
 * counts. */
__device__ __forceinline__ uint32_t tokens_of(const integer_params &q, const integer_share &s)
{
    const uint32_t count = __ldcg(q.count), first = s.half * TOKENS;
    return count <= first ? 0 : count - first < TOKENS ? count - first : TOKENS;
}

/* Shared memory; addresses of barriers as instructions take them. */
template <typename D, uint32_t SETS> struct integer_memory {
    unsigned char *ring; /* [slots][SETS * ROWS][pitch] */
    integer_x<D> x;
    typedef integer_scales<typename D::format> scales_of_run;
    scales_of_run *scales; /* [CONSUMERS][32]: [set][class][pair] */
    float4 *sums;          /* [set][CONSUMERS][32] */
    uint32_t full, empty /* [slots] */, sums_full, sums_free /* [set] */;
    uint32_t *begins; /* [slots][SETS * ROWS] where rows are LOOSE: bytes in front of a row */

    static __host__ __device__ uint32_t fixed_bytes(uint32_t lines, uint32_t slots)
    {
        return lines * integer_x<D>::LINE_BYTES + TOKENS * TEAM / 32 * 4 + SETS * CONSUMERS * 512 +
               CONSUMERS * 32 * (uint32_t)sizeof(scales_of_run) + 2 * (slots + SETS) * 8 +
               slots * SETS * ROWS * 4;
    }
    __device__ __forceinline__ integer_memory(const integer_params &q, const integer_share &s,
                                              unsigned char *shared)
    {
        ring = shared;
        x.digits = shared + (size_t)q.slots * SETS * ROWS * q.pitch;
        x.of_runs = reinterpret_cast<float *>(x.digits + (size_t)s.lines * CLASSES * integer_x<D>::RUN_BYTES);
        sums =
            reinterpret_cast<float4 *>(x.of_runs + (size_t)s.lines * CLASSES * TOKENS * integer_x<D>::FLOATS);
        scales = reinterpret_cast<scales_of_run *>(sums + SETS * CONSUMERS * 32);
        x.squares = reinterpret_cast<float *>(scales + CONSUMERS * 32);
        uint64_t *barriers = reinterpret_cast<uint64_t *>(x.squares + TOKENS * TEAM / 32);
        full = shared_address(barriers);
        empty = full + 8 * q.slots;
        sums_full = empty + 8 * q.slots;
        sums_free = sums_full + 8 * SETS;
        begins = reinterpret_cast<uint32_t *>(barriers + 2 * (q.slots + SETS));
    }
};

__device__ __forceinline__ uint32_t class_of(uint32_t warp, uint32_t k)
{
    return warp / 2 * 4 + warp % 2 + 2 * k;
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

/* The block's tokens of the slice's columns, by teams of TEAM threads, and parts of all columns' squares as
 * the threads of a chain have them. */
template <typename D>
__device__ __forceinline__ void take_x(const integer_params &q, const integer_share &s, const integer_x<D> &x)
{
    const linear_params &p = q.linear;
    const uint32_t team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM, teams = CONSUMERS * 32 / TEAM,
                   quads = p.cols / 4, end = s.first_line + s.lines;
    const uint32_t from = p.norm ? 0 : s.first_line, to = p.norm ? q.lines : end, TOGETHER = 4;
    float4 next[TOGETHER];
    wait_for_previous();
    const uint32_t tokens = tokens_of(q, s);
    const auto load = [&](uint32_t token, uint32_t line) {
        const float4 *of =
            reinterpret_cast<const float4 *>(p.x + (uint64_t)(s.half * TOKENS + token) * p.x_stride);
#pragma unroll
        for (uint32_t j = 0; j < TOGETHER; j++) {
            const uint32_t f = (line + j) * TEAM + thread;
            next[j] = token < tokens && line + j < to && f < quads ? __ldcg(of + f) : make_float4(0, 0, 0, 0);
        }
    };
    load(team, from);
    for (uint32_t token = team; token < tokens; token += teams) {
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
                const uint32_t f = (line + j) * TEAM + thread;
                if (p.norm && line + j < to && f < quads) {
                    const float4 n = __ldg(reinterpret_cast<const float4 *>(p.norm) + f);
                    squares = add_quad_squares(squares, v[j]);
                    v[j] = make_float4(v[j].x * n.x, v[j].y * n.y, v[j].z * n.z, v[j].w * n.w);
                }
            }
            /* of all at once, also those that are not there: each is a long chain of instructions */
            blocks_x::four of[TOGETHER];
#pragma unroll
            for (uint32_t j = 0; j < TOGETHER; j++) of[j] = blocks_x::four_of(v[j]);
#pragma unroll
            for (uint32_t j = 0; j < TOGETHER; j++) {
                const uint32_t l = line + j;
                if (l >= s.first_line && l < end && l * TEAM + thread < quads)
                    x.put((l - s.first_line) * CLASSES + thread / 8, token, thread % 8, of[j]);
            }
        }
        if (!p.norm) continue;
        squares = warp_sum(squares);
        if ((thread & 31) == 0) x.squares[token * (TEAM / 32) + thread / 32] = squares;
    }
}
/* The norm's factor for a token's sums. */
__device__ __forceinline__ float x_scale(const linear_params &p, const float *squares, uint32_t token)
{
    if (!p.norm) return 1.0f;
    float sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < TEAM / 32; w++) sum += squares[token * (TEAM / 32) + w];
    return rsqrtf(sum / (float)p.cols + p.eps);
}

/* ---- consumers: products ----------------------------------------------------------------------------- */

template <typename D, uint32_t SETS> struct integer_products {
    typedef typename D::format F;
    typedef typename D::shared_words words;
    static const uint32_t GROUPS = F::GROUPS, DIGITS = blocks_x::DIGITS, RUNS = D::RUNS;
    typedef integer_scales<F> run_scales;
    /* A line of a group in a slot, `bytes` of each row. */
    struct line_place {
        const unsigned char *slot;
        const uint32_t *begins;
        uint32_t pitch, bytes;

        __device__ __forceinline__ const unsigned char *row(uint32_t r) const
        {
            return slot + r * pitch + (D::LOOSE ? begins[r] : 0);
        }
    };

    static __device__ __forceinline__ uint32_t offset_of(uint32_t of) { return of / RUNS * F::BYTES; }
    /* Lane l has those of pair l % 8 of set l / 16, class l / 8 % 2 of the warp's. */
    static __device__ __forceinline__ run_scales scales_of(const line_place &at, uint32_t warp)
    {
        const uint32_t lane = threadIdx.x & 31, set = SETS == 1 ? 0 : lane / 16,
                       row = set * ROWS + (lane & 7), of = class_of(warp, lane >> 3 & 1),
                       offset = offset_of(of), from = offset < at.bytes ? offset : 0, run = of % RUNS;
        block_scales scales[2];
        F::scales_two(words(at.row(row) + from + F::ORIGIN), words(at.row(row + PAIRS) + from + F::ORIGIN),
                      run, scales[0], scales[1]);
        run_scales own;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                own.of[r][g][0] = scales[r].scale[g] * F::whole_times(run);
                if (F::LEAST) own.of[r][g][run_scales::EACH - 1] = -D::run_least(scales[r], g, run);
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
        if constexpr (F::ALONG) {
            const uint2 of_a = F::whole_two(a, run, c), of_b = F::whole_two(b, run, c);
            return {{of_a.x, of_b.x, of_a.y, of_b.y}};
        } else {
            return {{F::whole_four(a, run, c), F::whole_four(b, run, c), F::whole_four(a, run, c + 4),
                     F::whole_four(b, run, c + 4)}};
        }
    }
    /* A run of x: its digits as the lane's fragments, and scales and sums of the lane's two tokens. */
    struct x_run {
        uint2 digit[DIGITS];
        float scale[2], sum[2][GROUPS];
    };
    static __device__ __forceinline__ x_run x_of(const integer_x<D> &x, uint32_t run)
    {
        const uint32_t lane = threadIdx.x & 31, FLOATS = integer_x<D>::FLOATS;
        const unsigned char *digits = x.digits + run * integer_x<D>::RUN_BYTES + lane * 8;
        const float *of = x.of_runs + (run * TOKENS + lane % 4 * 2) * FLOATS;
        x_run r;
#pragma unroll
        for (uint32_t k = 0; k < DIGITS; k++)
            r.digit[k] = *reinterpret_cast<const uint2 *>(digits + k * integer_x<D>::DIGIT_BYTES);
        if constexpr (FLOATS == 4) {
#pragma unroll
            for (uint32_t t = 0; t < 2; t++) {
                const float4 v = *reinterpret_cast<const float4 *>(of + 4 * t);
                r.scale[t] = v.x, r.sum[t][0] = v.y, r.sum[t][GROUPS - 1] = v.z;
            }
        } else {
            const float4 v = *reinterpret_cast<const float4 *>(of);
            r.scale[0] = v.x, r.sum[0][0] = v.y, r.scale[1] = v.z, r.sum[1][0] = v.w;
        }
        return r;
    }
    /* Adds what a run of a set's 16 rows gives for 8 tokens. */
    static __device__ __forceinline__ void add_run(const fragments &f, const x_run &x, const run_scales &own,
                                                   float sum[4])
    {
        int of[GROUPS][DIGITS][4];
#pragma unroll
        for (uint32_t k = 0; k < DIGITS; k++) {
            if constexpr (GROUPS == 1) {
                bytes_unit<false>::add32(of[0][k], f.a, x.digit[k].x, x.digit[k].y, 0);
            } else {
                bytes_unit<false>::add16(of[0][k], f.a[0], f.a[1], x.digit[k].x, 0);
                bytes_unit<false>::add16(of[1][k], f.a[2], f.a[3], x.digit[k].y, 0);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t r = i / 2, t = i % 2;
            float products = __fmul_rn(own.of[r][0][0], total(of[0], i));
            if (GROUPS == 2)
                products = __fmaf_rn(own.of[r][GROUPS - 1][0], total(of[GROUPS - 1], i), products);
            sum[i] = __fmaf_rn(products, x.scale[t], sum[i]);
            if constexpr (F::LEAST) {
                sum[i] = __fmaf_rn(own.of[r][0][1], x.sum[t][0], sum[i]);
                if (GROUPS == 2) sum[i] = __fmaf_rn(own.of[r][GROUPS - 1][1], x.sum[t][GROUPS - 1], sum[i]);
            }
        }
    }
    /* A line; `line` is its number in the slice. WHOLE: every byte of it is there. */
    template <bool WHOLE>
    static __device__ __forceinline__ void add_line(const line_place &at, const integer_x<D> &x,
                                                    uint32_t line, uint32_t warp, run_scales *scales,
                                                    float sum[2][SETS][4])
    {
        const uint32_t lane = threadIdx.x & 31;
        const run_scales mine = scales_of(at, warp);
        __syncwarp(); /* all lanes have read the last ones */
        scales[lane] = mine;
        __syncwarp();
        fragments f[2][SETS];
#pragma unroll
        for (uint32_t set = 0; set < SETS; set++) {
            const unsigned char *a = at.row(set * ROWS + lane / 4) + F::ORIGIN,
                                *b = at.row(set * ROWS + PAIRS + lane / 4) + F::ORIGIN;
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t of = class_of(warp, k), offset = offset_of(of);
                if (WHOLE || offset < at.bytes)
                    f[k][set] = fragments_of(words(a + offset), words(b + offset), of % RUNS);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t of = class_of(warp, k);
            if (!WHOLE && offset_of(of) >= at.bytes) continue;
            const x_run of_x = x_of(x, line * CLASSES + of);
#pragma unroll
            for (uint32_t set = 0; set < SETS; set++)
                add_run(f[k][set], of_x, scales[set * 16 + k * 8 + lane / 4], sum[k][set]);
        }
    }
};

template <typename D, uint32_t SETS>
__device__ __forceinline__ void consume(const integer_params &q, const integer_share &s,
                                        const integer_memory<D, SETS> &m, uint32_t warp)
{
    typedef integer_products<D, SETS> products;
    const uint32_t lane = threadIdx.x & 31;
    take_x<D>(q, s, m.x);
    threads_meet(1, CONSUMERS * 32);
    ring_place slot = {0, 0};
    uint32_t free_parity = 1;
    for (uint32_t i = 0; i < s.groups; i++)
        for (uint32_t tile = 0; tile < s.lines; tile += q.tile_lines, free_parity ^= 1) {
            const uint32_t end = tile + q.tile_lines < s.lines ? tile + q.tile_lines : s.lines;
            float sum[2][SETS][4] = {};
            for (uint32_t line = tile; line < end; line++) {
                const uint32_t left = s.bytes - line * D::LINE_BYTES;
                const typename products::line_place at = {m.ring + slot.at * SETS * ROWS * q.pitch,
                                                          m.begins + slot.at * SETS * ROWS, q.pitch, left};
                bulk_wait(m.full + 8 * slot.at, slot.parity);
                if (left >= D::LINE_BYTES)
                    products::template add_line<true>(at, m.x, line, warp, m.scales + warp * 32, sum);
                else
                    products::template add_line<false>(at, m.x, line, warp, m.scales + warp * 32, sum);
                barrier_arrive(m.empty + 8 * slot.at);
                slot.next(q.slots);
            }
#pragma unroll
            for (uint32_t set = 0; set < SETS; set++) {
                bulk_wait(m.sums_free + 8 * set, free_parity);
                m.sums[(set * CONSUMERS + warp) * 32 + lane] =
                    make_float4(sum[0][set][0] + sum[1][set][0], sum[0][set][1] + sum[1][set][1],
                                sum[0][set][2] + sum[1][set][2], sum[0][set][3] + sum[1][set][3]);
                barrier_arrive(m.sums_full + 8 * set);
            }
        }
}
