/* One token's linear layers over formats of groups of rows: what gpuk_expand and then gemv_bulk would
 * compute, to the same bits, without the plain weights in between. See linear.cu.
 *
 * A step of a decoder (linear/packed_step.cuh) is two tiles of 1,024 values: each two tiles of 512 columns as
 * gemv_bulk adds them up, whose lanes have the 16-byte units that gemv_bulk's have. So where rows are a
 * multiple of 512 columns each half of a tile is one tile of one row, sums are made in the same order, and a
 * run, a pair of neighbouring rows of one matrix, is a whole number of tiles.
 *
 * One block a multiprocessor has neighbouring runs, of SwiGLU those of gate and of up; their steps go round
 * its warps. Each warp keeps a ring of slots in shared memory that the bulk copy engine fills (9.0), or
 * asynchronous copies of its lanes (8.0). Sums of tiles wait in shared memory until those of a batch of runs
 * are there and are added in order of columns; meanwhile the rings are filled for the next. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/linear/packed_step.cuh"
#include "worker-gpu/kernels/linear/gemv_groups.cuh"
#include "worker-gpu/kernels/tile.cuh"

/* A lane's 16 of 512 values of x. */
static __device__ __forceinline__ void load_x(const float4 *x, float fx[16])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) put4(fx + 4 * i, x[i * 32]);
}
/* A lane's part of the sum of one row over 512 columns: as unit_add does it, two units. */
static __device__ __forceinline__ float half_sum(const uint4 unit[2], const float fx[16])
{
    float2 a = make_float2(0, 0);
#pragma unroll
    for (uint32_t u = 0; u < 2; u++) {
        float f[8];
        unpack16<__nv_bfloat16>(unit[u], f);
#pragma unroll
        for (uint32_t j = 0; j < 8; j += 2) a.x += f[j] * fx[8 * u + j], a.y += f[j + 1] * fx[8 * u + j + 1];
    }
    return a.x + a.y;
}
/* The sums of the four halves of a step over the warp, by the same exchanges as tile_sums and tile_fold: lane
 * 8 * n ends with number n. */
static __device__ __forceinline__ float step_fold(const float sum[4], uint32_t lane)
{
    const bool upper = lane & 16, odd = lane & 8;
    float two[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float keep = upper ? sum[i + 2] : sum[i], give = upper ? sum[i] : sum[i + 2];
        two[i] = keep + __shfl_xor_sync(0xffffffffu, give, 16);
    }
    float total = (odd ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, odd ? two[0] : two[1], 8);
#pragma unroll
    for (int mask = 4; mask > 0; mask >>= 1) total += __shfl_xor_sync(0xffffffffu, total, mask);
    return total;
}

/* From a run's sums on to the next's: those of two rows, and one, so that runs begin in different banks. */
static __host__ __device__ __forceinline__ uint32_t sums_pitch(uint32_t chunks)
{
    return 2 * chunks + 1;
}
/* Adds up the sums of runs [begin, end) of the block and stores what they make; i: this thread's run. */
static __device__ __forceinline__ void finish_run(const linear_params &p, uint32_t first, uint32_t i,
                                                  uint32_t chunks, const float *sums, float scale)
{
    const uint32_t pitch = sums_pitch(chunks), row = 2 * first + i;
    const float *from_a = sums, *from_b = sums + chunks;
    if (p.swiglu) { /* one of the two rows of gate's run and of up's */
        if (row >= p.segment[0].rows) return;
        from_a = sums - i % 2 * pitch + i % 2 * chunks, from_b = from_a + pitch;
    }
    float a = 0, b = 0;
    for (uint32_t c = 0; c < chunks; c++) a += from_a[c], b += from_b[c];
    linear_finish(p, p.swiglu ? row : first + i, 0, __fmul_rn(a, scale), __fmul_rn(b, scale));
}

/* Shared memory: ring [warp][slot][SLOT], x [cols], sums [2][batch][sums_pitch], 32 floats for
 * reductions, barriers [warp][slot]. BULK: copies are bulk copies (9.0), else asynchronous ones (8.0), of
 * SLOTS slots. */
template <typename D, uint32_t WARPS, bool BULK, uint32_t SLOTS>
__global__ void __launch_bounds__(WARPS * 32, WARPS <= 8 ? 2 : 1)
    gemv_groups(const __grid_constant__ groups_params q)
{
    const linear_params &p = q.linear;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slots = BULK ? q.slots : SLOTS;
    const uint32_t chunks = p.cols / HALF, pitch = sums_pitch(chunks);
    unsigned char *ring = shared + (size_t)warp * slots * D::SLOT;
    float *x = reinterpret_cast<float *>(shared + (size_t)WARPS * slots * D::SLOT), *partial = x + p.cols,
          *scratch = partial + ((2 * q.batch * pitch + 1) & ~1u);
    const uint32_t ring_address = shared_address(ring),
                   barrier_address =
                       shared_address(reinterpret_cast<uint64_t *>(scratch + 32) + warp * slots);
    const uint32_t first = (uint32_t)((uint64_t)q.units * blockIdx.x / gridDim.x),
                   units = (uint32_t)((uint64_t)q.units * (blockIdx.x + 1) / gridDim.x) - first,
                   runs = p.swiglu ? 2 * units : units;

    if (BULK) {
        if (lane == 0) bulk_barriers_open(barrier_address, slots);
        __syncwarp();
    }
    typename D::step mine = D::none(); /* of the 32 looked up, the lane's */
    uint32_t asked = 0;                /* steps of the warp */
    const auto ask = [&](uint32_t slot) {
        if (warp + asked * WARPS < runs * q.steps) {
            unsigned char *at = ring + slot * D::SLOT;
            const bool own = lane == asked % 32;
            if (asked % 32 == 0)
                mine = D::find(q, first, runs, warp + (asked + lane) * WARPS, [&](const typename D::step &d) {
                    if (BULK && asked == 0 && lane < slots) /* the very first copies, as soon as can be */
                        D::bring_first(d, ring_address + lane * D::SLOT, barrier_address + 8 * lane);
                });
            if (BULK) {
                if (own)
                    D::bring(mine, asked >= slots, at, ring_address + slot * D::SLOT,
                             barrier_address + 8 * slot);
            } else {
                if (own) *reinterpret_cast<typename D::step *>(at + D::STEP_AT) = mine;
                __syncwarp();
                D::bring_lanes(at, ring_address + slot * D::SLOT, lane);
            }
            asked++;
        }
        if (!BULK) copies_commit();
    };
    for (uint32_t s = 0; s < slots; s++) ask(s);

    /* x as gemv_bulk takes it: parts of as many threads, so that the mean square has the same bits */
    float4 *x4 = reinterpret_cast<float4 *>(x);
    for (uint32_t t = threadIdx.x; t < q.threads; t += WARPS * 32)
        x_put_norm<typename D::plain>(p.norm, p.cols, x4, t, q.threads);
    wait_for_previous();
    let_next_start();
    for (uint32_t t = threadIdx.x; t < q.threads; t += WARPS * 32) {
        const float part = warp_sum(x_put<typename D::plain>(p.x, p.norm, p.cols, x4, t, q.threads));
        if (lane == 0) scratch[t / 32] = part;
    }
    __syncthreads(); /* also what lets x be read */
    const float squares = warp_sum(lane < q.threads / 32 ? scratch[lane] : 0.0f),
                scale = p.norm ? rsqrtf(squares / (float)p.cols + p.eps) : 1.0f;

    tile_walk use = {0, 0}; /* a run and its step */
    walk_next(use, q.steps, warp);
    const tile_walk far = {WARPS / q.steps, WARPS % q.steps};
    uint32_t slot = 0, parity = 0;
    for (uint32_t batch = 0, which = 0; batch < runs; batch += q.batch, which ^= 1) {
        float *sums = partial + which * q.batch * pitch;
        const uint32_t end = batch + q.batch < runs ? batch + q.batch : runs;
        while (use.pair < end) {
            unsigned char *at = ring + slot * D::SLOT;
            if (BULK)
                bulk_wait(barrier_address + 8 * slot, parity);
            else
                copies_wait<(int)SLOTS - 1>();
            __syncwarp();
            const typename D::step d = *reinterpret_cast<const typename D::step *>(at + D::STEP_AT);
            float sum[4] = {0, 0, 0, 0};
            if (d.from) {
                uint4 unit[2][4];
                D::values(d, at, lane, unit);
                if (q.apart > 1) { /* the same columns of both rows */
#pragma unroll
                    for (uint32_t h = 0; h < 2; h++) {
                        float fx[16];
                        load_x(x4 + (2 * use.chunk + h) * (HALF / 4) + lane, fx);
                        sum[h] = half_sum(unit[0] + 2 * h, fx);
                        sum[2 + h] = half_sum(unit[1] + 2 * h, fx);
                    }
                } else {
#pragma unroll
                    for (uint32_t h = 0; h < 4; h++) {
                        const uint32_t chunk = 4 * use.chunk + h; /* of both rows' */
                        const uint32_t c = chunk < chunks ? chunk : chunk < 2 * chunks ? chunk - chunks : 0;
                        float fx[16];
                        load_x(x4 + c * (HALF / 4) + lane, fx);
                        sum[h] = half_sum(unit[h / 2] + h % 2 * 2, fx);
                    }
                }
            }
            const float total = step_fold(sum, lane);
            /* Every lane has taken a sum of what every other read of the slot, so it may be filled again. */
            if (BULK) bulk_after_stores();
            __syncwarp();
            ask(slot);
            const uint32_t tile = q.apart > 1 ? use.chunk + lane / 16 * q.apart : 2 * use.chunk + lane / 16;
            if (lane % 8 == 0 && tile < chunks)
                sums[(use.pair - batch) * pitch + 2 * tile + lane / 8 % 2] = total;
            use.pair += far.pair, use.chunk += far.chunk;
            if (use.chunk >= q.steps) use.chunk -= q.steps, use.pair++;
            if (++slot == slots) slot = 0, parity ^= 1;
        }
        __syncthreads();
        for (uint32_t i = batch + threadIdx.x; i < end; i += WARPS * 32)
            finish_run(p, first, i, chunks, sums + (i - batch) * pitch, scale);
    }
}

/* ---- launchers ------------------------------------------------------------------------------------- */

static const uint32_t SUMS_MAX = 2048, SUMS_FEW = 768; /* of a batch; where shared memory is short */

typedef void (*groups_function)(groups_params);
/* Shapes of a block, in the order in which they are tried. */
struct groups_shape {
    uint32_t warps, slots;
    groups_function bulk, async;
};
template <typename D, uint32_t WARPS> constexpr struct groups_shape shape()
{
    return {WARPS, 2, gemv_groups<D, WARPS, true, 2>, gemv_groups<D, WARPS, false, 2>};
}
template <typename D>
static const struct groups_shape shapes[] = {shape<D, 24>(), shape<D, 16>(), shape<D, 8>(), shape<D, 4>()};

template <typename D> static size_t shared_bytes_of(const groups_params &q, uint32_t warps)
{
    const size_t sums = (size_t)2 * q.batch * sums_pitch(q.linear.cols / HALF) + 1;
    return (size_t)warps * q.slots * (D::SLOT + 8) + (q.linear.cols + sums + 32) * sizeof(float);
}

/* Warps of a block that does `steps` steps: 24 hide a step's latency best (H200: a tenth faster than 16),
 * unless warps left idle in the last round cost more than that gains. */
static uint32_t warps_for(const struct gpuk_device *device, uint32_t steps)
{
    if (device->packed_warps) return (uint32_t)device->packed_warps;
    return div_up(steps, 24) * 24 * 9 <= div_up(steps, 16) * 16 * 10 ? 24 : 16;
}

/* How it is computed; NULL: not here. */
template <typename D>
static const struct groups_shape *shape_of(const struct linear_call &call, groups_params *q, uint32_t *blocks)
{
    const struct gpuk_device *device = call.device;
    const struct gpuk_linear_args *args = call.args;
    if (device->capability < 80 || args->cols % HALF || device->gemv_tile_bytes > 1024 ||
        !gpuk_linear_aligned(args) || ((size_t)args->x | (size_t)args->norm) % 16)
        return nullptr;
    struct gpuk_device bulk = *device;
    bulk.bulk_copy = true;
    struct linear_call plain = call;
    plain.device = &bulk;
    const uint32_t chunks = args->cols / HALF, each = args->swiglu ? 2 : 1, sms = (uint32_t)device->sm_count,
                   threads = gemv_bulk_warps(plain) * 32;
    const bool rows_of_tiles = chunks % 2 == 0; /* whole ones */
    *q = {};
    q->linear = call.params;
    q->units = args->swiglu ? (args->segment[0].rows + 1) / 2 : call.params.pairs;
    q->steps = (chunks + 1) / 2;
    q->apart = rows_of_tiles ? chunks / 2 : 1;
    q->threads = threads ? threads : 512;
    for (uint32_t per_sm = device->packed_blocks > 1 ? (uint32_t)device->packed_blocks : 1; per_sm;
         per_sm--) {
        *blocks = per_sm * sms < q->units ? per_sm * sms : q->units;
        const uint32_t runs = div_up(q->units, *blocks) * each,
                       warps_most = warps_for(device, runs * q->steps);
        for (const struct groups_shape &s : shapes<D>)
            for (uint32_t sums : {SUMS_MAX, SUMS_FEW}) {
                const uint32_t batch = sums / sums_pitch(chunks) / each * each;
                q->batch = batch == 0 ? each : batch < runs ? batch : runs;
                q->slots =
                    device->bulk_copy && device->packed_slots ? (uint32_t)device->packed_slots : s.slots;
                if (s.warps <= warps_most &&
                    shared_bytes_of<D>(*q, s.warps) * per_sm <= (size_t)device->shared_bytes_max)
                    return &s;
            }
    }
    return nullptr;
}

template <typename D> static bool groups_takes(const struct linear_call &call)
{
    groups_params q;
    uint32_t blocks;
    return shape_of<D>(call, &q, &blocks) != nullptr;
}

template <typename D> static int groups_launch(const struct linear_call &call, struct helm_err *err)
{
    groups_params q;
    uint32_t blocks = 0;
    const struct groups_shape *shape = shape_of<D>(call, &q, &blocks);
    for (uint32_t s = 0; s < call.args->segments; s++) {
        q.offset[s] = call.args->segment[s].offset;
        if (!q.offset[s] || (uintptr_t)q.offset[s] % sizeof(uint32_t))
            return helm_fail(err, HELM_E_USAGE,
                             "gemv of groups: a table of offsets is missing or not aligned");
    }
    return gpuk_launch("gemv of groups", call.device->bulk_copy ? shape->bulk : shape->async, dim3(blocks),
                       dim3(shape->warps * 32), shared_bytes_of<D>(q, shape->warps), call.flags, call.stream,
                       err, q);
}

template <typename D> static int groups_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    if (device->capability < 80) return HELM_OK;
    for (const struct groups_shape &s : shapes<D>) {
        if (!rc) rc = gpuk_prepare("gemv of groups", s.async, (size_t)device->shared_bytes_max, err);
        if (!rc && device->bulk_copy)
            rc = gpuk_prepare("gemv of groups", s.bulk, (size_t)device->shared_bytes_max, err);
    }
    return rc;
}

#define NONE(D)                                                                                              \
    {                                                                                                        \
    }
#define GROUPS(D)                                                                                            \
    {                                                                                                        \
        "groups", groups_takes<D>, groups_launch<D>, groups_prepare<D>                                       \
    }
linear_kernels gemv_groups_kernels = BY_FORMAT(NONE, GROUPS(decode_bf16_packed_step));
