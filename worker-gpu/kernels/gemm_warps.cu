/* Few tokens' products with blocks whose rows are long (9.0 and later): gemm_stream with slices so wide that up to 4,096
 * columns are one, so that copies are long, and nothing waits for other slices.
 *
 * Rows are cut into groups of 8 pairs (linear.cuh), columns into slices of up to 16 lines of 256, by the columns alone.
 * One block a multiprocessor has one slice; the blocks of a slice take its groups in turn. A block's warps:
 *   consumers  16, of which each has a line: it keeps the tokens' x of its columns in registers for all groups, normalised
 *              but for the factor of the mean square, and leaves its sums of a group in one of some buffers (gemm_warps.cuh).
 *   a producer brings rows into a ring of groups, a row a bulk copy; it begins before the kernel in front has finished.
 *   a reducer  adds the consumers' sums in order of columns and stores; of several slices the last to count some groups,
 *              whichever it is, adds theirs in order.
 * Of one slice consumers do both in turn, a group each, and have more registers.
 * So the same input gives the same bits, and a token's bits do not depend on the number of tokens: of more than 8 half the
 * blocks have the first 8, the others the rest, and weights come from the L2 the second time. */
#include "worker-gpu/kernels/gemm_warps.cuh"

static const uint32_t BUFFERS = 4, WARPS_SLOTS = 3, TOKENS = 8 /* of a block */,
                      HALVES = 2 /* blocks with other tokens */,
                      LINES_LEAST = WARPS / 2 + 1 /* of a slice: fewer are left to gemm_stream */;

template <bool APART> __host__ __device__ constexpr uint32_t warps_threads()
{
    return (WARPS + (APART ? 2 : 0)) * 32;
}

struct warps_params {
    stream_params q[HALVES]; /* of each: linear, count, counters, sums, groups, lines, slices, slots, pitch,
                                batch, arrivals */
    uint32_t halves;
};

/* Shared memory; addresses of barriers as instructions take them. */
struct warps_memory {
    unsigned char *ring; /* [slot][row of pitch bytes] */
    float4 *sums;        /* [buffer][warp][lane] */
    float *squares;      /* [warp][token] */
    uint32_t *begins;    /* [slot][row] where blocks are LOOSE: bytes in front of a row */
    uint32_t full, empty, sums_full, sums_free;

    static const uint32_t SUMS = BUFFERS * WARPS * 32 * 16, SQUARES = WARPS * 8 * 4,
                          BEGINS = WARPS_SLOTS * ROWS * 4, BARRIERS = 2 * (WARPS_SLOTS + BUFFERS) * 8,
                          FIXED = SUMS + SQUARES + BEGINS + BARRIERS;
    __device__ __forceinline__ explicit warps_memory(unsigned char *shared)
        : ring(shared + FIXED), sums(reinterpret_cast<float4 *>(shared)),
          squares(reinterpret_cast<float *>(shared + SUMS)),
          begins(reinterpret_cast<uint32_t *>(shared + SUMS + SQUARES)),
          full(shared_address(shared + SUMS + SQUARES + BEGINS)), empty(full + 8 * WARPS_SLOTS),
          sums_full(empty + 8 * WARPS_SLOTS), sums_free(sums_full + 8 * BUFFERS)
    {
    }
};
static_assert(warps_memory::FIXED % 16 == 0, "");

struct warps_share {
    uint32_t half, slice, lines, first_line; /* of the slice */
    uint32_t first_group, step, groups;      /* of the launch's */
};
__device__ __forceinline__ warps_share warps_share_of(const warps_params &w)
{
    const stream_params &q = w.q[0];
    const uint32_t parts = w.halves * q.slices, share = blockIdx.x / parts;
    warps_share s;
    s.half = blockIdx.x % w.halves, s.slice = blockIdx.x % parts / w.halves;
    s.first_line = q.lines * s.slice / q.slices;
    s.lines = q.lines * (s.slice + 1) / q.slices - s.first_line;
    s.first_group = share, s.step = gridDim.x / parts;
    s.groups = div_up(q.groups - share, s.step);
    return s;
}

/* ---- copies: lanes have a row each ---- */

template <typename D>
__device__ __forceinline__ void warps_bring(const stream_params &q, const warps_share &s,
                                            const warps_memory &m, uint32_t i, uint32_t slot)
{
    const linear_params &p = q.linear;
    const uint32_t row = threadIdx.x & 31;
    if (row >= ROWS) return;
    const uint64_t before = (uint64_t)s.first_line * warps_line<D>(), left = p.row_bytes - before;
    const uint32_t all = s.lines * warps_line<D>(), bytes = left < all ? (uint32_t)left : all;
    /* of rows that are not there any others: their sums are not stored */
    const uint32_t at = (q.first_group + s.first_group + i * s.step) * PAIRS + row % PAIRS,
                   pair = at < p.pairs ? at : p.pairs - 1;
    const linear_pair rows = linear_locate(p, pair);
    const unsigned char *from = (row >= PAIRS && rows.b ? rows.b : rows.a) + before;
    const tile_window copy = tile_window_of(from, bytes);
    if (D::LOOSE) m.begins[slot * ROWS + row] = (uint32_t)((size_t)from & 15);
    bulk_expect(m.full + 8 * slot, copy.bytes);
    bulk_copy(shared_address(m.ring) + (slot * ROWS + row) * q.pitch, copy.from, copy.bytes,
              m.full + 8 * slot);
}
template <typename D>
__device__ __forceinline__ void warps_produce(const stream_params &q, const warps_share &s,
                                              const warps_memory &m)
{
    uint32_t slot = 0, parity = 1;
    for (uint32_t i = 0; i < s.groups; i++) {
        if (i >= q.slots) bulk_wait(m.empty + 8 * slot, parity);
        warps_bring<D>(q, s, m, i, slot);
        __syncwarp();
        if (++slot == q.slots) slot = 0, parity ^= 1;
    }
}

/* ---- sums of a group, by one warp ---- */

struct warps_held {
    float2 squares;  /* of the lane's tokens over the slice */
    uint32_t groups; /* whose sums wait to be counted */
};
/* The sums in a buffer, when they are there. behind: groups of this warp that follow; read: called when the buffer has been
 * read. */
template <typename READ>
__device__ __forceinline__ void warps_finish(const stream_params &q, const warps_share &s,
                                             const warps_memory &m, uint32_t tokens, uint32_t i,
                                             uint32_t batch, bool last, warps_held &held, const READ &read)
{
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, place = lane & 3, unit = unit_floats(1), buffer = i % BUFFERS,
                   group = s.first_group + i * s.step;
    stream_addends<1> add;
    if (q.slices == 1) load_addends<1>(p, q.first_group + group, tokens, add);
    bulk_wait(m.sums_full + 8 * buffer, i / BUFFERS & 1);
    read();
    const float4 *from = m.sums + buffer * WARPS * 32 + lane;
    float4 total = from[0];
#pragma unroll 4
    for (uint32_t of = 1; of < s.lines; of++) add4(total, from[of * 32]);
    warp_arrive(m.sums_free + 8 * buffer, q.arrivals);
    if (p.norm && held.groups == 0) {
        held.squares = make_float2(0, 0);
        for (uint32_t of = 0; of < s.lines; of++)
            held.squares.x += m.squares[of * 8 + 2 * place],
                held.squares.y += m.squares[of * 8 + 2 * place + 1];
    }
    if (q.slices == 1) {
        float scale[2];
        norm_factors<1>(p, &held.squares, scale);
        finish<1>(p, q.first_group + group, tokens, &total, scale, add);
        return;
    }
    float *mine = q.sums + ((size_t)group * q.slices + s.slice) * unit;
    __stcg(reinterpret_cast<float4 *>(mine) + lane, total);
    if (p.norm && held.groups == 0 && lane < 4) /* a batch's first speaks for all */
        __stcg(reinterpret_cast<float2 *>(mine + ROWS * 8) + lane, held.squares);
    if (++held.groups < batch && !last) return;
    const uint32_t first = group - (held.groups - 1) * s.step;
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) before = count_arrival(q.counters + first);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before + 1 == q.slices) {
        __syncwarp();                                  /* what lane 0 may see now, all may */
        if (lane == 0) __stcg(q.counters + first, 0u); /* as it was found */
        finish_batch<1>(q, first, s.step, held.groups, tokens);
    }
    held.groups = 0;
}
__device__ __forceinline__ void warps_reduce(const stream_params &q, const warps_share &s,
                                             const warps_memory &m, uint32_t tokens)
{
    const uint32_t batch = div_up(s.groups, div_up(s.groups, q.batch)); /* the same in all slices */
    warps_held held = {};
    wait_for_previous();
    for (uint32_t i = 0; i < s.groups; i++)
        warps_finish(q, s, m, tokens, i, batch, i + 1 == s.groups, held, [] {});
}

/* ---- consumers ---- */

/* APART: other warps copy and add; else these do so in turn. */
template <typename D, bool APART>
__device__ __forceinline__ void warps_consume(const stream_params &q, const warps_share &s,
                                              const warps_memory &m, uint32_t warp, uint32_t tokens)
{
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, first = (s.first_line + warp) * WARP_COLUMNS,
                   all = (p.cols - first) / 32, runs = all < WARP_RUNS ? all : WARP_RUNS;
    for (uint32_t i = 0; i < 2 && p.norm; i++) {
        const uint32_t c = first + i * 128 + (lane & 3) * 32;
        if (lane < 4 && c < p.cols) ask_l2(p.norm + c);
    }
    wait_for_previous();
    warps_x<D> x;
    const float squares = x.take(p, first, tokens);
    if ((lane & 3) == 0) m.squares[warp * 8 + (lane >> 2)] = squares;
    uint32_t slot = 0, parity = 0, buffer = 0, free_parity = 1, turn = warp;
    for (uint32_t i = 0; i < s.groups; i++) {
        float sum[4] = {};
        bulk_wait(m.full + 8 * slot, parity);
        warps_products<D>::take(m.ring + slot * ROWS * q.pitch + warp * warps_line<D>(), q.pitch,
                                m.begins + slot * ROWS, runs, x, sum);
        if (APART) warp_arrive(m.empty + 8 * slot, q.arrivals);
        if (i >= BUFFERS) bulk_wait(m.sums_free + 8 * buffer, free_parity);
        m.sums[(buffer * WARPS + warp) * 32 + lane] =
            make_float4(sum[0] * x.back[0], sum[1] * x.back[1], sum[2] * x.back[0], sum[3] * x.back[1]);
        warp_arrive(m.sums_full + 8 * buffer, q.arrivals);
        if (++buffer == BUFFERS) buffer = 0, free_parity ^= 1;
        if (!APART && i == turn) { /* all have read the slot when their sums are there */
            warps_held held = {};
            warps_finish(q, s, m, tokens, i, 1, true, held, [&] {
                if (i + q.slots < s.groups) warps_bring<D>(q, s, m, i + q.slots, slot);
            });
            turn += s.lines;
        }
        if (++slot == q.slots) slot = 0, parity ^= 1;
    }
}

template <typename D, bool APART>
__global__ void __launch_bounds__(warps_threads<APART>(), 1)
    gemm_warps(const __grid_constant__ warps_params w)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t warp = threadIdx.x >> 5;
    const warps_share s = warps_share_of(w);
    const stream_params &q = w.q[s.half];
    const warps_memory m(shared);
    let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < q.slots; i++) {
            barrier_open(m.full + 8 * i, ROWS);
            barrier_open(m.empty + 8 * i, s.lines * q.arrivals);
        }
        for (uint32_t i = 0; i < BUFFERS; i++) {
            barrier_open(m.sums_full + 8 * i, s.lines * q.arrivals);
            barrier_open(m.sums_free + 8 * i, q.arrivals);
        }
        barriers_opened();
    }
    __syncthreads();
    if (!APART && warp < q.slots && warp < s.groups) warps_bring<D>(q, s, m, warp, warp);
    const uint32_t count = *q.count, before = s.half * TOKENS, left = count > before ? count - before : 0,
                   tokens = left < TOKENS ? left : TOKENS;
    if (tokens == 0 && !APART && warp < q.slots && warp < s.groups) bulk_wait(m.full + 8 * warp, 0);
    if (tokens == 0) /* this launch's end is not to come before that of the one in front */
        wait_for_previous();
    else if (warp < s.lines)
        warps_consume<D, APART>(q, s, m, warp, tokens);
    else if (APART && warp == WARPS)
        warps_produce<D>(q, s, m);
    else if (APART && warp == WARPS + 1)
        warps_reduce(q, s, m, tokens);
    else
        wait_for_previous();
}

/* ---- launchers ---------------------------------------------------------------------------------- */

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

/* From row to row in the ring: 16 bytes and a multiple of 32, so that 8 rows' words lie in banks of their own. */
template <typename D> static uint32_t pitch_of(uint32_t lines)
{
    return ((lines * warps_line<D>() + (D::LOOSE ? TILE_SLACK : 0) + 15) / 16 | 1) * 16;
}
/* Groups that the ring has room for. */
static uint32_t slots_of(const struct gpuk_device *device, uint32_t pitch)
{
    const uint32_t room = (uint32_t)device->shared_bytes_max,
                   fit = room > warps_memory::FIXED ? (room - warps_memory::FIXED) / (ROWS * pitch) : 0;
    return fit < WARPS_SLOTS ? fit : WARPS_SLOTS;
}

template <typename D> static bool warps_takes(const struct linear_call &call)
{
    const struct gpuk_device *device = call.device;
    const struct gpuk_linear_args *args = call.args;
    const uint32_t lines = div_up(args->cols, WARP_COLUMNS), slices = div_up(lines, WARPS),
                   most = div_up(lines, slices);
    return device->gemm_warps >= 0 && device->bulk_copy && device->tensor_cores && D::takes_pieces(args) &&
           (D::LOOSE || gpuk_linear_aligned(args)) && ((size_t)args->x | (size_t)args->norm) % 16 == 0 &&
           args->x_stride % 4 == 0 && lines / slices >= LINES_LEAST &&
           slots_of(device, pitch_of<D>(most)) > 1 && args->cols < UINT32_MAX / WARPS &&
           groups_fitting(call, slices) > 0;
}

template <typename D> static int warps_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct gpuk_device *device = call.device;
    const struct gpuk_linear_args *args = call.args;
    const uint32_t groups = div_up(call.params.pairs, PAIRS), sms = (uint32_t)device->sm_count,
                   lines = div_up(args->cols, WARP_COLUMNS), slices = div_up(lines, WARPS),
                   fit = groups_fitting(call, slices), parts = div_up(groups, fit),
                   pitch = pitch_of<D>(div_up(lines, slices)), slots = slots_of(device, pitch);
    /* a fence for other slices takes long: not in a warp that multiplies */
    const bool apart = device->gemm_warps ? device->gemm_warps == 1 : slices > 1;
    struct warps_params w = {};
    w.halves = halves_of(call.tokens);
    for (uint32_t half = 0; half < w.halves; half++) {
        struct stream_params *q = &w.q[half];
        const uint32_t token = half * TOKENS;
        q->linear = call.params;
        q->linear.x += (size_t)token * args->x_stride;
        if (args->residual) q->linear.residual += (size_t)token * args->out_stride;
        for (uint32_t i = 0; i < args->segments; i++)
            if (q->linear.segment[i].out) q->linear.segment[i].out += (size_t)token * args->out_stride;
        q->count = call.count, q->lines = lines, q->slices = slices, q->pitch = pitch, q->slots = slots;
        q->batch = device->gemm_batch > 0 ? (uint32_t)device->gemm_batch : BATCH;
        q->arrivals = device->gemm_arrivals < 0 ? 32 : 1;
        q->counters = (uint32_t *)call.workspace + half * (COUNTERS / HALVES);
        q->sums = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES) +
                  (size_t)half * fit * slices * unit_floats(1);
    }
    uint32_t flags = call.flags;
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = (uint32_t)((uint64_t)groups * part / parts),
                       many = (uint32_t)((uint64_t)groups * (part + 1) / parts) - first,
                       most = sms / (w.halves * slices),
                       blocks = most == 0     ? 1
                                : most < many ? most
                                              : many;
        for (uint32_t half = 0; half < w.halves; half++)
            w.q[half].first_group = first, w.q[half].groups = many;
        int rc = gpuk_launch("gemm", apart ? gemm_warps<D, true> : gemm_warps<D, false>,
                             dim3(blocks * w.halves * slices),
                             dim3(apart ? warps_threads<true>() : warps_threads<false>()),
                             warps_memory::FIXED + slots * ROWS * pitch, flags, call.stream, err, w);
        if (rc) return rc;
        if (device->early_launch) flags |= GPUK_EARLY; /* the part before is in front */
    }
    return HELM_OK;
}

template <typename D> static int warps_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy) return HELM_OK;
    int rc = HELM_OK;
    for (auto kernel : {gemm_warps<D, false>, gemm_warps<D, true>}) {
        if (!rc) rc = gpuk_prepare("gemm", kernel, (size_t)device->shared_bytes_max, err);
        if (!rc) rc = gpuk_prefer_shared("gemm", kernel, err);
    }
    return rc;
}

template <typename D> static constexpr struct linear_kernel warps_of()
{
    if constexpr (warps_way_of<D>() != WARPS_NONE)
        return {"warps", warps_takes<D>, warps_launch<D>, warps_prepare<D>};
    return {};
}
#define WARPS_OF(D) warps_of<D>()
linear_kernels gemm_warps_kernels = BY_FORMAT(WARPS_OF, {});
