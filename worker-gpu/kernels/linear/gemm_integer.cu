/* Linear layers with blocks for 2 to 16 tokens, with the bits that each token has alone in a chain (9.0 and
 * later).
 *
 * Tensor cores multiply a run's numbers, which are bytes, by the digits of x (blocks_x.cuh): exact sums,
 * whatever adds them up. Rows are cut into groups of 8 pairs (linear.cuh), columns, where x of 8 tokens has
 * no room in shared memory, into slices of whole tiles. Each block, one a multiprocessor, has one slice, and
 * the blocks of a slice take its groups in turn; of more than 8 tokens each half of the blocks has half. A
 * block's warps have roles:
 *   producers  bring a group's rows part by part into a ring, a row a bulk copy. They begin before the kernel
 *              in front has finished and wait for nothing but free slots.
 *   consumers  share the classes of runs. They put x first, then multiply: decoded bytes are fragments A,
 *              digits B.
 *   reducers   take turns with groups: add consumers' sums of a tile in a chain's order, and tiles one after
 *              another, or leave them for the other slices: of these the last to count, whichever it is, adds
 *              all tiles in order.
 * The work and the consumers are in gemm_integer.cuh. */
#include "worker-gpu/kernels/linear/gemm_integer.cuh"

/* ---- producers ------------------------------------------------------------------------------------- */

template <typename D, uint32_t SETS>
__device__ __forceinline__ void produce(const integer_params &q, const integer_share &s,
                                        const integer_memory<D, SETS> &m, uint32_t producer)
{
    const linear_params &p = q.linear;
    const uint32_t row = (threadIdx.x & 31) * PRODUCERS + producer; /* of a group; lanes beyond are idle */
    const uint32_t to = shared_address(m.ring) + row * q.pitch;
    ring_place slot = {0, 1};
    for (uint32_t i = 0; i < s.groups; i++) {
        const uint32_t pair = ((s.first_group + i * s.step) * SETS + row / ROWS) * PAIRS + row % PAIRS;
        const unsigned char *from = nullptr;
        if (row < SETS * ROWS && pair < p.pairs) {
            const linear_pair rows = linear_locate(p, pair);
            from = row % ROWS < PAIRS ? rows.a : rows.b;
            if (from) from += (uint64_t)s.first_line * D::LINE_BYTES;
        }
        const uint32_t there = __popc(__ballot_sync(0xffffffffu, from != nullptr));
        for (uint32_t at = 0; at < s.bytes; at += D::LINE_BYTES) {
            const uint32_t bytes = s.bytes - at < D::LINE_BYTES ? s.bytes - at : D::LINE_BYTES,
                           full = m.full + 8 * slot.at;
            tile_window copy = {from ? from + at : nullptr, from ? bytes : 0};
            if (D::LOOSE && from) copy = tile_window_of(from + at, bytes);
            bulk_wait(m.empty + 8 * slot.at, slot.parity);
            /* sums of rows that are not there are not stored */
            if (D::LOOSE && row < SETS * ROWS) { /* each says what it knows of its row */
                m.begins[slot.at * SETS * ROWS + row] = from ? (uint32_t)((size_t)(from + at) & 15) : 0;
                bulk_expect(full, copy.bytes);
            }
            if (!D::LOOSE && (threadIdx.x & 31) == 0) bulk_expect(full, there * bytes);
            __syncwarp();
            if (from) bulk_copy(to + slot.at * SETS * ROWS * q.pitch, copy.from, copy.bytes, full);
            __syncwarp();
            slot.next(q.slots);
        }
    }
}

/* ---- reducers -------------------------------------------------------------------------------------- */

__device__ __forceinline__ float4 add4(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* The lane's part of a set: rows lane / 4 of the pairs, tokens 2 * (lane % 4) and one more. */
struct integer_addends {
    float2 of[2];
};
__device__ __forceinline__ integer_addends load_addends(const integer_params &q, const integer_share &s,
                                                        uint32_t tokens, uint32_t set)
{
    const uint32_t lane = threadIdx.x & 31, pair = set * PAIRS + lane / 4, first = lane % 4 * 2;
    integer_addends add;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        add.of[i] = first + i < tokens && pair < q.linear.pairs
                        ? linear_addends(q.linear, pair, s.half * TOKENS + first + i)
                        : make_float2(0, 0);
    return add;
}
__device__ __forceinline__ void store(const integer_params &q, const integer_share &s, uint32_t tokens,
                                      uint32_t set, const float4 &sum, const float scale[2],
                                      const integer_addends &add)
{
    const uint32_t lane = threadIdx.x & 31, pair = set * PAIRS + lane / 4, first = lane % 4 * 2;
    if (pair >= q.linear.pairs) return;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        if (first + i < tokens)
            linear_store(q.linear, pair, s.half * TOKENS + first + i,
                         __fmaf_rn(i ? sum.y : sum.x, scale[i], add.of[i].x),
                         __fmaf_rn(i ? sum.w : sum.z, scale[i], add.of[i].y));
}

/* Where a set's tiles wait for each other. */
__device__ __forceinline__ float4 *sums_of(const integer_params &q, const integer_share &s, uint32_t set)
{
    return reinterpret_cast<float4 *>(q.sums + ((size_t)set * 2 + s.half) * q.tiles * UNIT) +
           (threadIdx.x & 31);
}
/* Sets of which all slices' sums have come: `count`, `step` apart. */
__device__ __forceinline__ void finish_batch(const integer_params &q, const integer_share &s, uint32_t tokens,
                                             uint32_t first, uint32_t step, uint32_t count,
                                             const float scale[2])
{
    const uint32_t AT_ONCE = 4; /* tiles whose sums are on their way together */
    for (uint32_t k = 0; k < count; k++) {
        const uint32_t set = first + k * step;
        const integer_addends add = load_addends(q, s, tokens, set);
        const float4 *from = sums_of(q, s, set);
        float4 total = make_float4(0, 0, 0, 0);
        for (uint32_t of = 0; of < q.tiles; of += AT_ONCE) {
            float4 v[AT_ONCE];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                if (of + i < q.tiles) v[i] = __ldcg(from + (of + i) * (UNIT / 4));
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                if (of + i < q.tiles) total = add4(total, v[i]);
        }
        store(q, s, tokens, set, total, scale, add);
    }
}

/* Consumers' sums of a tile by halves, as a chain's lanes are folded. */
__device__ __forceinline__ float4 fold(const float4 *from)
{
    float4 sum[CONSUMERS / 2];
#pragma unroll
    for (uint32_t w = 0; w < CONSUMERS / 2; w++) sum[w] = add4(from[w * 32], from[(w + CONSUMERS / 2) * 32]);
#pragma unroll
    for (uint32_t half = CONSUMERS / 4; half > 0; half /= 2)
#pragma unroll
        for (uint32_t w = 0; w < half; w++) sum[w] = add4(sum[w], sum[w + half]);
    return sum[0];
}

/* A reducer has one set of each group. */
template <typename D, uint32_t SETS>
__device__ __forceinline__ void reduce(const integer_params &q, const integer_share &s,
                                       const integer_memory<D, SETS> &m, uint32_t reducer)
{
    const uint32_t lane = threadIdx.x & 31;
    /* batches of about one size; the same in all slices */
    const uint32_t batch = div_up(s.groups, div_up(s.groups, BATCH)), step = s.step * SETS;
    wait_for_previous();
    const uint32_t tokens = tokens_of(q, s);
    float scale[2] = {1, 1};
    uint32_t held = 0, parity = 0;
    for (uint32_t i = 0; i < s.groups; i++) {
        const uint32_t set = (s.first_group + i * s.step) * SETS + reducer;
        integer_addends add;
        if (q.slices == 1) add = load_addends(q, s, tokens, set);
        float4 total = make_float4(0, 0, 0, 0);
        for (uint32_t tile = 0; tile < s.tiles; tile++, parity ^= 1) {
            bulk_wait(m.sums_full + 8 * reducer, parity);
            const float4 sum = fold(m.sums + reducer * CONSUMERS * 32 + lane);
            barrier_arrive(m.sums_free + 8 * reducer);
            if (q.slices == 1)
                total = add4(total, sum);
            else
                __stcg(sums_of(q, s, set) + (s.first_tile + tile) * (UNIT / 4), sum);
        }
        if (i == 0)
#pragma unroll
            for (uint32_t t = 0; t < 2; t++) scale[t] = x_scale(q.linear, m.x.squares, lane % 4 * 2 + t);
        if (q.slices == 1) {
            store(q, s, tokens, set, total, scale, add);
            continue;
        }
        if (++held < batch && i + 1 < s.groups) continue;
        const uint32_t first = set - (held - 1) * step;
        uint32_t *counter = q.counters + first * 2 + s.half, before = 0;
        __syncwarp();
        if (lane == 0) before = count_arrival(counter);
        before = __shfl_sync(0xffffffffu, before, 0);
        if (before + 1 == q.slices) {
            __syncwarp();                       /* all may see now what lane 0 may */
            if (lane == 0) __stcg(counter, 0u); /* as it was found */
            finish_batch(q, s, tokens, first, step, held, scale);
        }
        held = 0;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------ */

template <typename D, uint32_t SETS>
__global__ void __launch_bounds__(THREADS, 1) gemm_integer(const __grid_constant__ integer_params q)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t warp = threadIdx.x >> 5;
    const integer_share s = share_of<D>(q);
    const integer_memory<D, SETS> m(q, s, shared);
    let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < q.slots; i++) {
            barrier_open(m.full + 8 * i, D::LOOSE ? SETS * ROWS : PRODUCERS);
            barrier_open(m.empty + 8 * i, CONSUMERS * WARP_ARRIVALS);
        }
        for (uint32_t i = 0; i < SETS; i++) {
            barrier_open(m.sums_full + 8 * i, CONSUMERS * WARP_ARRIVALS);
            barrier_open(m.sums_free + 8 * i, WARP_ARRIVALS);
        }
        barriers_opened();
    }
    __syncthreads();
    if (s.groups == 0) return;
    if (warp < CONSUMERS)
        consume<D, SETS>(q, s, m, warp);
    else if (warp >= CONSUMERS + REDUCERS)
        produce<D, SETS>(q, s, m, warp - CONSUMERS - REDUCERS);
    else if (warp < CONSUMERS + SETS)
        reduce<D, SETS>(q, s, m, warp - CONSUMERS);
}

/* ---- launchers ------------------------------------------------------------------------------------- */

/* Deeper queues of copies bring nothing more and let every other access of memory wait. */
static const uint32_t RING_BYTES = 96 << 10;
static const uint64_t FASTER_FROM = 32u << 20; /* numbers of a matrix */

struct integer_shape {
    uint32_t lines, tile_lines, tiles, slices, sets, groups, halves, shares, slots, pitch;
    size_t shared;
};
/* A set by itself costs more than one of two, whose warps read x once for both. */
static uint32_t sets_for(uint32_t all, uint32_t blocks)
{
    const uint32_t by_one = div_up(all, blocks), by_two = div_up(div_up(all, 2), blocks);
    return by_one * 4 < by_two * 2 * 3 ? 1 : 2;
}
/* A slice has as many tiles as SLICE_LINES allow, one at least. sets 0: as many as are faster. */
template <typename D> static struct integer_shape shape_of(const struct linear_call &call, uint32_t sets)
{
    const struct gpuk_device *device = call.device;
    struct integer_shape s = {};
    s.lines = div_up(call.params.cols, LINE_COLUMNS);
    s.tile_lines = steady_lines(s.lines, D::LINE_BYTES, D::LOOSE);
    s.tiles = div_up(s.lines, s.tile_lines);
    const uint32_t together = SLICE_LINES / s.tile_lines, all = div_up(call.params.pairs, PAIRS);
    s.slices = s.lines <= ALONE_LINES ? 1 : div_up(s.tiles, together ? together : 1);
    s.halves = call.tokens > TOKENS ? 2 : 1;
    s.shares = (uint32_t)device->sm_count / s.slices;
    s.sets = sets ? sets : sets_for(all * s.halves, s.shares ? s.shares : 1);
    s.groups = div_up(all, s.sets);
    if (s.shares > s.groups * s.halves) s.shares = s.groups * s.halves;
    s.pitch = integer_part<D>::pitch();
    const uint32_t tiles_lines = div_up(s.tiles, s.slices) * s.tile_lines,
                   most = tiles_lines < s.lines ? tiles_lines : s.lines;
    const auto fixed = [&](uint32_t slots) {
        return (size_t)(s.sets == 1 ? integer_memory<D, 1>::fixed_bytes(most, slots)
                                    : integer_memory<D, 2>::fixed_bytes(most, slots));
    };
    const size_t slot = (size_t)s.pitch * ROWS * s.sets, limit = (size_t)device->shared_bytes_max;
    s.slots = limit > fixed(SLOTS_MAX) ? (uint32_t)((limit - fixed(SLOTS_MAX)) / slot) : 0;
    const uint32_t wanted =
        device->gemm_slots > 0 ? (uint32_t)device->gemm_slots : (uint32_t)(RING_BYTES / slot);
    if (s.slots > wanted) s.slots = wanted;
    if (s.slots > SLOTS_MAX) s.slots = SLOTS_MAX;
    s.shared = s.slots * slot + fixed(s.slots);
    if (s.sets == 2 && s.slots < SLOTS_MIN) return shape_of<D>(call, 1);
    return s;
}

/* Whether gemm_stream takes longer for it, as measured on an H100. */
template <typename D> static bool is_faster(const struct linear_call &call)
{
    return D::GROUPS == 1 && !D::LOOSE && (uint64_t)call.params.pairs * 2 * call.params.cols >= FASTER_FROM;
}

/* Whether it takes a product: a `steady` one whenever it can. */
template <typename D> static bool integer_takes(const struct linear_call &call)
{
    const struct gpuk_linear_args *args = call.args;
    if (!call.device->bulk_copy || !call.device->tensor_cores || !D::takes_pieces(args)) return false;
    if (call.device->gemm_integer < 0) return false;
    if (!args->steady && call.device->gemm_integer == 0 && !is_faster<D>(call)) return false;
    if (!D::LOOSE && !gpuk_linear_aligned(args)) return false;
    if (((size_t)args->x | (size_t)args->norm) % 16 != 0 || args->x_stride % 4 != 0) return false;
    const struct integer_shape s = shape_of<D>(call, 0);
    const uint32_t all = s.groups * s.sets;
    const size_t sums = (size_t)all * 2 * s.tiles * UNIT * sizeof(float);
    return s.slots >= SLOTS_MIN && s.shares >= s.halves &&
           (s.slices == 1 ||
            (sums <= gpuk_linear_sums_bytes(call.tokens, call.params.cols) && all <= COUNTERS / 2));
}

template <typename D> static int integer_launch(const struct linear_call &call, struct helm_err *err)
{
    const int choice = call.device->gemm_integer;
    const struct integer_shape s = shape_of<D>(call, choice == 1 || choice == 2 ? (uint32_t)choice : 0);
    struct integer_params q = {};
    q.linear = call.params;
    q.count = call.count;
    q.counters = (uint32_t *)call.workspace;
    q.sums = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES);
    q.groups = s.groups, q.lines = s.lines, q.tile_lines = s.tile_lines, q.tiles = s.tiles;
    q.slices = s.slices, q.slots = s.slots, q.pitch = s.pitch, q.halves = s.halves;
    return gpuk_launch("gemm", s.sets == 1 ? gemm_integer<D, 1> : gemm_integer<D, 2>,
                       dim3(s.shares * s.slices), dim3(THREADS), s.shared, call.flags, call.stream, err, q);
}

template <typename D> static int integer_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy || !device->tensor_cores) return HELM_OK;
    const int rc = gpuk_prepare("gemm", gemm_integer<D, 1>, (size_t)device->shared_bytes_max, err);
    return rc ? rc : gpuk_prepare("gemm", gemm_integer<D, 2>, (size_t)device->shared_bytes_max, err);
}

template <typename D> static constexpr struct linear_kernel integer_of()
{
    if constexpr (D::SCALED)
        return {"integer", integer_takes<D>, integer_launch<D>, integer_prepare<D>};
    else
        return {};
}
#define INTEGER(D) integer_of<D>()
linear_kernels gemm_integer_kernels = BY_FORMAT(INTEGER, {});
