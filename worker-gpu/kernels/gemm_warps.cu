/* Linear layers for 2 to 16 tokens (9.0 and later; bf16, f16 and most blocks).
 *
 * Rows are cut into groups of 8 pairs (linear.cuh), columns into slices of up to 4,096, by the columns alone, and a slice
 * into 256 columns a warp. One block a multiprocessor has one slice; of a narrow slice its warps are several *sets*. The
 * sets of a slice take its groups in turn. A warp
 *   - copies its part of a group's 16 rows into tiles of its own, two or three groups ahead, and begins before the kernel in
 *     front has finished;
 *   - keeps its columns of the tokens' x in registers for all groups (gemm_warps.cuh), normalised but for the factor of the
 *     mean square;
 *   - leaves its sums of a group in one of some buffers and goes on.
 * In turn, a warp of the set waits for the others' sums of a group, adds all in order of columns and stores; of several
 * slices the last to count a group, whichever it is, adds theirs in order. So the same input gives the same bits, and a
 * token's bits do not depend on the number of tokens: of more than 8 half the blocks have the first 8, the others the rest,
 * and weights come from the L2 the second time. */
#include "worker-gpu/kernels/gemm_warps.cuh"

static const uint32_t WARPS_THREADS = WARPS * 32;

static const uint32_t TOKENS = 8, HALVES = 2; /* of a block; blocks with other tokens */

struct warps_params {
    stream_params q[HALVES]; /* of each: linear, count, counters, sums; first_group, groups, lines, slices */
    uint32_t halves, lines_most, sets; /* lines of 256 columns, of a slice; sets of as many warps */
};

/* Shared memory; addresses of barriers as instructions take them. */
template <typename D> struct warps_memory {
    typedef warps_ring<D> tile;
    static const uint32_t BUFFERS = D::SCALED ? 4 : 2;
    unsigned char *ring; /* [warp][slot][tile] */
    float4 *sums;        /* [warp][buffer][lane] */
    float *squares;      /* [warp][token] */
    uint32_t *begins;    /* [warp][slot][row] */
    uint32_t barriers;   /* [set][buffer]{full, free} */

    static const uint32_t RING = WARPS * tile::SLOTS * tile::SIZE, SUMS = WARPS * BUFFERS * 32 * 16,
                          SQUARES = WARPS * 8 * 4, BEGINS = WARPS * tile::SLOTS * ROWS * 4,
                          BARRIERS = WARPS * BUFFERS * 2 * 8,
                          SIZE = RING + SUMS + SQUARES + BEGINS + BARRIERS;
    __device__ __forceinline__ explicit warps_memory(unsigned char *shared)
        : ring(shared), sums(reinterpret_cast<float4 *>(shared + RING)),
          squares(reinterpret_cast<float *>(shared + RING + SUMS)),
          begins(reinterpret_cast<uint32_t *>(shared + RING + SUMS + SQUARES)),
          barriers(shared_address(shared + RING + SUMS + SQUARES + BEGINS))
    {
    }
    __device__ __forceinline__ uint32_t full(uint32_t set, uint32_t buffer) const
    {
        return barriers + (set * BUFFERS + buffer) * 16;
    }
    __device__ __forceinline__ uint32_t free(uint32_t set, uint32_t buffer) const
    {
        return full(set, buffer) + 8;
    }
};

/* A warp's part of the work. */
struct warps_share {
    uint32_t half, slice;
    uint32_t lines, line;               /* of the slice; the warp's */
    uint32_t set, place;                /* the set's, and the warp's in it */
    uint32_t first_group, step, groups; /* of the launch's */
};
__device__ __forceinline__ warps_share warps_share_of(const warps_params &w)
{
    const stream_params &q = w.q[0];
    const uint32_t warp = threadIdx.x >> 5, parts = w.halves * q.slices, share = blockIdx.x / parts,
                   shares = gridDim.x / parts;
    warps_share s;
    s.half = blockIdx.x % w.halves, s.slice = blockIdx.x % parts / w.halves;
    const uint32_t first = q.lines * s.slice / q.slices;
    s.lines = q.lines * (s.slice + 1) / q.slices - first;
    s.set = warp / w.lines_most, s.place = warp % w.lines_most, s.line = first + s.place;
    s.first_group = s.set * shares + share, s.step = shares * w.sets;
    s.groups = s.first_group < q.groups ? div_up(q.groups - s.first_group, s.step) : 0;
    if (s.set >= w.sets || s.place >= s.lines) s.groups = 0; /* a warp too many */
    return s;
}

/* The warp's tile number n, of its groups one after the other, into a slot; an empty copy behind the last. */
template <typename D>
__device__ __forceinline__ void bring(const warps_params &w, const warps_share &s, const warps_memory<D> &m,
                                      uint32_t n, uint32_t slot)
{
    typedef warps_ring<D> tile;
    const linear_params &p = w.q[0].linear;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = n / tile::TILES;
    if (i < s.groups) {
        /* of rows that are not there any others: their sums are not stored */
        const uint32_t group = w.q[0].first_group + s.first_group + i * s.step, last = p.pairs - 1,
                       pair = group * PAIRS + lane % PAIRS < last ? group * PAIRS + lane % PAIRS : last;
        const linear_pair rows = linear_locate(p, pair);
        const uint64_t before = (uint64_t)(s.line * tile::TILES + n % tile::TILES) * tile::BYTES,
                       left = before < p.row_bytes ? p.row_bytes - before : 0,
                       row = (uint64_t)(size_t)(lane & PAIRS && rows.b ? rows.b : rows.a) + before,
                       first = __shfl_sync(0xffffffffu, row, 0) / 16;
        const uint32_t bytes = left < tile::BYTES ? (uint32_t)left : tile::BYTES, begin = (uint32_t)row & 15,
                       least = (bytes + 15) / 16 /* quads of a row, or one more */,
                       more = tile::LOOSE ? __ballot_sync(0xffffffffu, (begin + bytes + 15) / 16 > least) : 0,
                       to = shared_address(m.ring) + (warp * tile::SLOTS + slot) * tile::SIZE;
        const int32_t beside = (int32_t)(row / 16 - first); /* in quads, from the first row on */
        if (tile::LOOSE && lane < ROWS) m.begins[(warp * tile::SLOTS + slot) * ROWS + lane] = begin;
#pragma unroll
        for (uint32_t k = 0; k < div_up(ROWS * tile::COPIES, 32); k++) {
            const uint32_t at = k * 32 + lane, of = at / tile::COPIES, quad = at % tile::COPIES;
            const int32_t from = __shfl_sync(0xffffffffu, beside, (int)(of % ROWS)) + (int32_t)quad;
            /* plain numbers behind a row's end meet zeros of x and must be numbers */
            const bool there = quad < least + (more >> of % ROWS & 1);
            if (of < ROWS && (there || !D::SCALED))
                copy16_async(to + of * tile::PITCH + quad * 16,
                             (const unsigned char *)(size_t)((first + (uint64_t)(int64_t)from) * 16), there);
        }
    }
    copies_commit();
}

/* What is added to a group's sums, and where they go: by one warp, whose buffer has the sums of all of the set's. */
template <typename D>
__device__ __forceinline__ void finish_group(const warps_params &w, const warps_share &s,
                                             const warps_memory<D> &m, uint32_t i, uint32_t tokens)
{
    const stream_params &q = w.q[s.half];
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, place = lane & 3, unit = unit_floats(1), BUFFERS = m.BUFFERS,
                   buffer = i % BUFFERS, group = s.first_group + i * s.step, first = s.set * w.lines_most;
    stream_addends<1> add;
    if (q.slices == 1) load_addends<1>(p, q.first_group + group, tokens, add);
    bulk_wait(m.full(s.set, buffer), i / BUFFERS & 1);
    const float4 *from = m.sums + (first * BUFFERS + buffer) * 32 + lane;
    float4 total = from[0];
#pragma unroll 4
    for (uint32_t of = 1; of < s.lines; of++) add4(total, from[of * BUFFERS * 32]);
    warp_arrive(m.free(s.set, buffer));
    float2 squares = make_float2(0, 0);
    if (p.norm)
        for (uint32_t of = 0; of < s.lines; of++) {
            const float *theirs = m.squares + (first + of) * 8 + 2 * place;
            squares.x += theirs[0], squares.y += theirs[1];
        }
    if (q.slices == 1) {
        float scale[2];
        norm_factors<1>(p, &squares, scale);
        finish<1>(p, q.first_group + group, tokens, &total, scale, add);
        return;
    }
    float *mine = q.sums + ((size_t)group * q.slices + s.slice) * unit;
    __stcg(reinterpret_cast<float4 *>(mine) + lane, total);
    if (p.norm && lane < 4) __stcg(reinterpret_cast<float2 *>(mine + ROWS * 8) + lane, squares);
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) before = count_arrival(q.counters + group);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before + 1 != q.slices) return;
    __syncwarp();                                  /* what lane 0 may see now, all may */
    if (lane == 0) __stcg(q.counters + group, 0u); /* as it was found */
    finish_batch<1>(q, group, 0, 1, tokens);
}

template <typename D>
__global__ void __launch_bounds__(WARPS_THREADS, 1) gemm_warps(const __grid_constant__ warps_params w)
{
    typedef warps_ring<D> tile;
    const uint32_t BUFFERS = warps_memory<D>::BUFFERS;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const warps_memory<D> m(shared);
    const warps_share s = warps_share_of(w);
    const stream_params &q = w.q[s.half];
    const linear_params &p = q.linear;
    let_next_start();
#pragma unroll
    for (uint32_t i = 0; i < tile::SLOTS; i++) bring<D>(w, s, m, i, i);
    const uint32_t count = *q.count, before = s.half * TOKENS, left = count > before ? count - before : 0,
                   tokens = left < TOKENS ? left : TOKENS;
    if (threadIdx.x < w.sets) {
        for (uint32_t i = 0; i < BUFFERS; i++) {
            barrier_open(m.full(threadIdx.x, i), s.lines * WARP_ARRIVALS);
            barrier_open(m.free(threadIdx.x, i), WARP_ARRIVALS);
        }
        barriers_opened();
    }
    const uint32_t first = s.line * WARP_COLUMNS;
    if (s.groups && p.norm)
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t c = first + i * 128 + (lane & 3) * 32;
            if (lane < 4 && c < p.cols) ask_l2(p.norm + c);
        }
    __syncthreads();
    wait_for_previous();
    if (s.groups == 0 || tokens == 0) { /* not before what was asked for is there */
        copies_wait<0>();
        return;
    }
    warps_x<D> x;
    const float squares = x.take(p, first, tokens);
    if ((lane & 3) == 0) m.squares[warp * 8 + (lane >> 2)] = squares;
    const uint32_t all = (p.cols - first) / 32, runs = all < WARP_RUNS ? all : WARP_RUNS; /* of blocks */

    uint32_t slot = 0, turn = s.place; /* the next group that this warp finishes */
    for (uint32_t i = 0; i < s.groups; i++) {
        float sum[2][4] = {};
#pragma unroll
        for (uint32_t number = 0; number < tile::TILES; number++) {
            const uint32_t at = warp * tile::SLOTS + slot;
            copies_wait<(int)tile::SLOTS - 1>();
            __syncwarp(); /* all lanes' copies have come */
            warps_products<D>::take(m.ring + at * tile::SIZE, m.begins + at * ROWS, runs, number, x, sum);
            __syncwarp(); /* all have read what lay there */
            bring<D>(w, s, m, i * tile::TILES + number + tile::SLOTS, slot);
            if (++slot == tile::SLOTS) slot = 0;
        }

        const uint32_t buffer = i % BUFFERS;
        if (i >= BUFFERS) bulk_wait(m.free(s.set, buffer), (i / BUFFERS - 1) & 1);
        m.sums[(warp * BUFFERS + buffer) * 32 + lane] =
            make_float4((sum[0][0] + sum[1][0]) * x.back[0], (sum[0][1] + sum[1][1]) * x.back[1],
                        (sum[0][2] + sum[1][2]) * x.back[0], (sum[0][3] + sum[1][3]) * x.back[1]);
        warp_arrive(m.full(s.set, buffer));
        if (i == turn) {
            finish_group<D>(w, s, m, i, tokens);
            turn += s.lines;
        }
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

/* Whether distances between rows in quads of 16 bytes fit 32 bits. */
static bool near_each_other(const struct gpuk_linear_args *args)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < args->segments; i++) {
        const struct gpuk_linear *of = &args->segment[i];
        const uint64_t at = (uint64_t)(size_t)of->weight,
                       end = at + of->rows * (uint64_t)tensor_format_row_bytes(args->format, args->cols);
        least = at < least ? at : least, most = end > most ? end : most;
    }
    return (most - least) / 16 < INT32_MAX;
}
static uint32_t halves_of(uint32_t tokens)
{
    return tokens > TOKENS ? HALVES : 1;
}
/* Groups whose sums and counters have room at once, of each half. */
static uint32_t groups_fitting(const struct linear_call &call, uint32_t slices)
{
    const uint32_t halves = halves_of(call.tokens), counters = COUNTERS / halves;
    const size_t fit = gpuk_linear_sums_bytes(call.tokens, call.params.cols) /
                       (halves * slices * unit_floats(1) * sizeof(float));
    if (slices == 1) return div_up(call.params.pairs, PAIRS);
    return fit < counters ? (uint32_t)fit : counters;
}

template <typename D> static bool warps_takes(const struct linear_call &call)
{
    const struct gpuk_device *device = call.device;
    const struct gpuk_linear_args *args = call.args;
    return device->gemm_warps >= 0 && device->bulk_copy && device->tensor_cores && D::takes_pieces(args) &&
           (warps_tile<D>::LOOSE || gpuk_linear_aligned(args)) &&
           ((size_t)args->x | (size_t)args->norm) % 16 == 0 && args->x_stride % 4 == 0 &&
           warps_memory<D>::SIZE <= (uint32_t)device->shared_bytes_max && args->cols < UINT32_MAX / WARPS &&
           near_each_other(args) && groups_fitting(call, div_up(args->cols, WARPS * WARP_COLUMNS)) > 0;
}

template <typename D> static int warps_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct gpuk_linear_args *args = call.args;
    const uint32_t groups = div_up(call.params.pairs, PAIRS), sms = (uint32_t)call.device->sm_count,
                   lines = div_up(args->cols, WARP_COLUMNS), slices = div_up(lines, WARPS),
                   fit = groups_fitting(call, slices), parts = div_up(groups, fit);
    struct warps_params w = {};
    w.halves = halves_of(call.tokens), w.lines_most = div_up(lines, slices), w.sets = WARPS / w.lines_most;
    for (uint32_t half = 0; half < w.halves; half++) {
        struct stream_params *q = &w.q[half];
        const uint32_t token = half * TOKENS;
        q->linear = call.params;
        q->linear.x += (size_t)token * args->x_stride;
        if (args->residual) q->linear.residual += (size_t)token * args->out_stride;
        for (uint32_t i = 0; i < args->segments; i++)
            if (q->linear.segment[i].out) q->linear.segment[i].out += (size_t)token * args->out_stride;
        q->count = call.count, q->lines = lines, q->slices = slices;
        q->counters = (uint32_t *)call.workspace + half * (COUNTERS / HALVES);
        q->sums = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES) +
                  (size_t)half * fit * slices * unit_floats(1);
    }
    uint32_t flags = call.flags;
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = (uint32_t)((uint64_t)groups * part / parts),
                       many = (uint32_t)((uint64_t)groups * (part + 1) / parts) - first,
                       most = sms / (w.halves * slices), need = div_up(many, w.sets),
                       blocks = most == 0     ? 1
                                : most < need ? most
                                              : need;
        for (uint32_t half = 0; half < w.halves; half++)
            w.q[half].first_group = first, w.q[half].groups = many;
        int rc = gpuk_launch("gemm", gemm_warps<D>, dim3(blocks * w.halves * slices), dim3(WARPS_THREADS),
                             warps_memory<D>::SIZE, flags, call.stream, err, w);
        if (rc) return rc;
        if (call.device->early_launch) flags |= GPUK_EARLY; /* the part before is in front */
    }
    return HELM_OK;
}

template <typename D> static int warps_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy || warps_memory<D>::SIZE > (uint32_t)device->shared_bytes_max) return HELM_OK;
    int rc = gpuk_prepare("gemm", gemm_warps<D>, warps_memory<D>::SIZE, err);
    return rc ? rc : gpuk_prefer_shared("gemm", gemm_warps<D>, err);
}

template <typename D> static constexpr struct linear_kernel warps_of()
{
    if constexpr (warps_way_of<D>() != WARPS_NONE)
        return {"warps", warps_takes<D>, warps_launch<D>, warps_prepare<D>};
    return {};
}
#define WARPS_OF(D) warps_of<D>()
linear_kernels gemm_warps_kernels = BY_FORMAT(WARPS_OF, {});
