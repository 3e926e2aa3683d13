/* Linear layers for 2 to 16 tokens at the speed of memory (9.0 and later; bf16, f16 and blocks).
 *
 * Columns are cut into slices, rows into groups of 8 pairs (linear.cuh). Each block, one a multiprocessor,
 * has one slice, and the blocks of a slice take its groups in turn. A block's warps have roles:
 *   producers  bring the slice's part of a group's 16 rows into a slot of the ring, a row a bulk copy. They
 *              begin before the kernel in front has finished and wait for nothing but free slots.
 *   consumers  share the slice's columns, 128 at most each. The tokens' x of these columns stays in their
 *              registers for all groups: normalised but for the factor of the mean square, as a high and a
 *              low 16-bit part, for the tensor cores.
 *   reducers   take turns with groups, with a buffer each that the consumers fill: add the consumers' sums in
 *              order, put them with the other slices'. A fence and a count take microseconds while copies are
 *              in flight, so some groups share one; of the slices the last to count, whichever it is, adds
 *              all in order of slices, applies the norm's factor and stores. So the same input gives the same
 *              bits.
 * Consumers are in gemm_stream_consume.cuh; reducers, and what a block has of the work and of shared memory,
 * in gemm_stream_reduce.cuh; launchers below. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/linear/gemm_stream_consume.cuh"

/* ---- producers ---------------------------------------------------------------------------------- */

/* The slice's part of a row of the block's group i; NULL where there is none. */
template <typename D>
__device__ __forceinline__ const unsigned char *part_of(const stream_params &q, const stream_share &s,
                                                        uint32_t i, uint32_t row)
{
    const linear_params &p = q.linear;
    const uint32_t pair = (q.first_group + s.first_group + i * s.step) * PAIRS + row % PAIRS;
    if (row >= ROWS || pair >= p.pairs) return nullptr;
    const linear_pair rows = linear_locate(p, pair);
    const unsigned char *from = row < PAIRS ? rows.a : rows.b;
    return from ? from + (uint64_t)s.first_line * stream_line<D>::BYTES : nullptr;
}

template <typename D>
__device__ __forceinline__ void produce(const stream_params &q, const stream_share &s, const stream_memory &m,
                                        uint32_t producer, bool starts_next)
{
    const uint32_t row = (threadIdx.x & 31) * q.producers + producer; /* of a group; lanes beyond are idle */
    const uint32_t to = shared_address(m.ring) + row * q.pitch;
    const bool loose = stream_line<D>::LOOSE;
    uint32_t slot = 0, parity = 1;
    for (uint32_t i = 0; i < s.groups; i++) {
        const unsigned char *from = part_of<D>(q, s, i, row);
        if (i == q.slots)
            for (uint32_t j = i; j < s.groups && j < i + q.ahead; j++) {
                const unsigned char *later = part_of<D>(q, s, j, row);
                if (!later) continue;
                const tile_window ask = tile_window_of(later, s.bytes);
                bulk_ask_l2(ask.from, ask.bytes);
            }
        const tile_window copy = tile_window_of(from, from ? s.bytes : 0);
        /* sums of rows that are not there are not stored */
        const uint32_t bytes = (uint32_t)warp_sum((float)copy.bytes);
        if (i >= q.slots) bulk_wait(m.empty + 8 * slot, parity);
        /* not before x has been read, which copies of two blocks would delay */
        if (starts_next && i == q.slots) let_next_start();
        if (loose && row < ROWS) { /* each says what it knows of its row */
            m.begins[slot * ROWS + row] = (uint32_t)((size_t)from & 15);
            bulk_expect(m.full + 8 * slot, copy.bytes);
        }
        if (!loose && (threadIdx.x & 31) == 0) bulk_expect(m.full + 8 * slot, bytes);
        __syncwarp();
        if (from) bulk_copy(to + slot * ROWS * q.pitch, copy.from, copy.bytes, m.full + 8 * slot);
        __syncwarp();
        if (++slot == q.slots) slot = 0, parity ^= 1;
    }
    if (starts_next && s.groups <= q.slots) let_next_start();
}

/* ---- the kernel --------------------------------------------------------------------------------- */

/* N times 8 tokens; where two blocks are FITTING a multiprocessor, one is the next launch's, whose ring fills
 * meanwhile. */
template <typename D, int N, int FITTING>
__global__ void __launch_bounds__(FITTING == 1 ? THREADS_MAX : THREADS_SHARED, FITTING)
    gemm_stream(const __grid_constant__ stream_params q)
{
    SHARED_DYNAMIC(unsigned char, shared);
    typedef stream_line<D> L;
    const uint32_t warp = threadIdx.x >> 5;
    const stream_share s = share_of<D>(q);
    const stream_memory m = memory_of<N>(q, shared);
    if (FITTING == 1) let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < q.slots; i++) {
            barrier_open(m.full + 8 * i, L::LOOSE ? ROWS : q.producers);
            barrier_open(m.empty + 8 * i, s.consumers * WARP_ARRIVALS);
        }
        for (uint32_t i = 0; i < q.reducers; i++) {
            barrier_open(m.sums_full + 8 * i, s.consumers * WARP_ARRIVALS);
            barrier_open(m.sums_free + 8 * i, WARP_ARRIVALS);
        }
        barriers_opened();
    }
    if constexpr (!D::SCALED) {
        /* bytes after the end of a row in its last line meet zeros of x and must be numbers */
        const uint32_t rest = (s.lines * L::BYTES - s.bytes) / 16;
        for (uint32_t i = threadIdx.x; i < q.slots * ROWS * rest; i += blockDim.x)
            *reinterpret_cast<uint4 *>(m.ring + i / rest * q.pitch + s.bytes + i % rest * 16) =
                make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    if (warp < CONSUMERS) {
        if (warp < s.consumers) consume<D, N>(q, s, m, warp);
    } else if (warp < CONSUMERS + q.reducers) {
        reduce<N>(q, s, m, warp - CONSUMERS);
    } else {
        produce<D>(q, s, m, warp - CONSUMERS - q.reducers, FITTING > 1);
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

struct stream_shape {
    uint32_t lines, groups, slices, shares, slots, reducers, blocks, pitch;
};

/* Deeper queues of copies bring nothing more and let every other access of memory wait. */
static const uint32_t RING_BYTES = 96 << 10;

static uint32_t chosen(int choice, uint32_t otherwise, uint32_t least, uint32_t most)
{
    const uint32_t n = choice > 0 ? (uint32_t)choice : otherwise;
    return n < least ? least : n < most ? n : most;
}

/* As few slices as the consumers' registers allow: more mean more sums through the L2. They follow from the
 * columns alone, so that a slice of rows that passes through a ring of streamed weights is added up in the
 * same order as the whole matrix, and gives the same bits. */
template <typename D>
static struct stream_shape shape_of(const struct gpuk_device *device, const struct linear_params *params,
                                    uint32_t tiles)
{
    typedef stream_line<D> L;
    struct stream_shape s = {};
    s.lines = div_up(params->cols, L::COLUMNS), s.groups = div_up(params->pairs, PAIRS);
    const uint32_t sms = (uint32_t)device->sm_count, least = div_up(s.lines, L::MOST);
    s.slices = least;
    if (device->gemm_slices > 0) {
        s.slices = (uint32_t)device->gemm_slices < least ? least : (uint32_t)device->gemm_slices;
        if (s.slices > s.lines) s.slices = s.lines;
    }
    s.shares = sms / s.slices ? sms / s.slices : 1;
    if (s.shares > s.groups) s.shares = s.groups;
    s.pitch = L::pitch(div_up(s.lines, s.slices));
    const uint64_t slot = (uint64_t)s.pitch * ROWS;
    const uint32_t wanted = chosen(device->gemm_slots, (uint32_t)(RING_BYTES / slot), 1, SLOTS_MAX);
    s.reducers =
        chosen(device->gemm_reducers, D::SCALED ? REDUCERS_SCALED : REDUCERS, REDUCERS_MIN, REDUCERS_MAX);
    /* two blocks of more tokens have not enough registers, nor of more warps */
    s.blocks = tiles == 1 && !D::SCALED && s.reducers <= REDUCERS_SHARED
                   ? chosen(device->gemm_blocks, BLOCKS, 1, 2)
                   : 1;
    const uint64_t own = 1024 /* of each block, the system's */,
                   limit = ((uint64_t)device->shared_bytes_max + own) / s.blocks - own,
                   fixed = fixed_bytes(tiles, SLOTS_MAX, s.reducers);
    s.slots = limit > fixed ? (uint32_t)((limit - fixed) / slot) : 0;
    if (s.slots > wanted) s.slots = wanted;
    return s;
}

/* Groups whose sums have room at once. */
static size_t fitting(uint32_t tokens, const struct linear_params *params, uint32_t slices)
{
    return gpuk_linear_sums_bytes(tokens, params->cols) /
           (slices * unit_floats(tokens > 8 ? 2 : 1) * sizeof(float));
}

template <typename D> static bool stream_takes(const struct linear_call &call)
{
    const struct gpuk_linear_args *args = call.args;
    if (!call.device->bulk_copy || !call.device->tensor_cores || !D::takes_pieces(args)) return false;
    if (!stream_line<D>::LOOSE && !gpuk_linear_aligned(args)) return false;
    if (((size_t)args->x | (size_t)args->norm) % 16 != 0 || args->x_stride % 4 != 0) return false;
    const struct stream_shape s = shape_of<D>(call.device, &call.params, call.tokens > 8 ? 2 : 1);
    return s.slots > 0 && (uint64_t)s.lines * s.slices <= UINT32_MAX &&
           fitting(call.tokens, &call.params, s.slices) > 0;
}

/* [8 tokens, 16 tokens, 8 tokens of which two blocks fit] */
template <typename D>
static void (*const stream_kernel[3])(stream_params) = {gemm_stream<D, 1, 1>, gemm_stream<D, 2, 1>,
                                                        gemm_stream<D, 1, D::SCALED ? 1 : 2>};

template <typename D> static int stream_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct gpuk_device *device = call.device;
    const uint32_t tiles = call.tokens > 8 ? 2 : 1;
    const struct stream_shape s = shape_of<D>(device, &call.params, tiles);
    struct stream_params q = {};
    q.linear = call.params;
    q.count = call.count;
    q.counters = (uint32_t *)call.workspace;
    q.sums = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES);
    q.lines = s.lines, q.slices = s.slices, q.slots = s.slots;
    q.reducers = s.reducers, q.pitch = s.pitch;
    const uint32_t left = OTHERS_MAX - s.reducers, most = left < PRODUCERS_MAX ? left : PRODUCERS_MAX;
    q.producers =
        chosen(device->gemm_producers, D::SCALED ? PRODUCERS_SCALED : 1, 1, s.blocks > 1 ? 1 : most);
    q.batch = chosen(device->gemm_batch, BATCH, 1, UINT32_MAX);
    q.ahead = device->gemm_ahead > 0 ? (uint32_t)device->gemm_ahead : 0;
    const uint32_t threads = 32 * (CONSUMERS + q.reducers + q.producers);
    const size_t shared = (size_t)s.slots * ROWS * s.pitch + fixed_bytes(tiles, s.slots, s.reducers);
    uint32_t parts = 1, flags = call.flags;
    if (s.slices > 1) {
        const size_t fit = fitting(call.tokens, &call.params, s.slices);
        parts = div_up(s.groups, fit < COUNTERS ? (uint32_t)fit : COUNTERS);
    }
    for (uint32_t part = 0; part < parts; part++) {
        q.first_group = (uint32_t)((uint64_t)s.groups * part / parts);
        q.groups = (uint32_t)((uint64_t)s.groups * (part + 1) / parts) - q.first_group;
        const uint32_t shares = s.shares < q.groups ? s.shares : q.groups;
        int rc = gpuk_launch("gemm", stream_kernel<D>[s.blocks > 1 ? 2 : tiles - 1], dim3(shares * s.slices),
                             dim3(threads), shared, flags, call.stream, err, q);
        if (rc) return rc;
        if (device->early_launch) flags |= GPUK_EARLY; /* the part before is in front */
    }
    return HELM_OK;
}

template <typename D> static int stream_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy || !device->tensor_cores) return HELM_OK;
    int rc = HELM_OK;
    for (int i = 0; i < 3 && !rc; i++)
        rc = gpuk_prepare("gemm", stream_kernel<D>[i], (size_t)device -> shared_bytes_max, err);
    for (int i = 0; i < 3 && !rc; i++) rc = gpuk_prefer_shared("gemm", stream_kernel<D>[i], err);
    return rc;
}

template <typename D> static constexpr struct linear_kernel stream_of()
{
    if constexpr (sizeof(typename D::value) == 2)
        return {"stream", stream_takes<D>, stream_launch<D>, stream_prepare<D>};
    return {};
}
#define STREAM(D) stream_of<D>()
linear_kernels gemm_stream_kernels = BY_FORMAT(STREAM, {});
