/* One token's linear layers over packed weights (common/packed.h): what gpuk_expand and then gpuk_gemv would
 * compute, to the same bits, without the plain weights in between.
 *
 * A packed tile is 1,024 values: two tiles of 512 columns as gemv_bulk adds them up, and a packed tile's
 * lanes have the 16-byte units that gemv_bulk's have. So where rows are a multiple of 512 columns each half
 * of a packed tile is one tile of one row, sums are made in the same order, and a run, a pair of neighbouring
 * rows of one matrix, is a whole number of packed tiles.
 *
 * One block a multiprocessor has neighbouring runs, of SwiGLU those of gate and of up; their steps, two tiles
 * each (packed_steps.cuh), go round its warps. Each warp keeps a ring of slots in shared memory that the bulk
 * copy engine fills (9.0), or asynchronous copies of its lanes (8.0); lanes build their 64 values in
 * registers. Escapes are a few in a hundred: every lane stores its values of a tile to the slot, whose bytes
 * are in registers by then, puts the exponents of its escapes there and loads them again. Sums of tiles wait
 * in shared memory until those of a batch of runs are there and are added in order of columns; meanwhile the
 * rings are filled for the next. Groups that are stored raw are loaded as they are. */
#include "worker-gpu/kernels/packed_escapes.cuh"
#include "worker-gpu/kernels/packed_steps.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t ROOM_PITCH = 80; /* bytes of a lane's values of a tile, and so many that stores meet no
                                          other lane's banks */
static_assert(32 * ROOM_PITCH <= SLOT_LISTS, "a tile's values lie where the records were");

/* The values of a lane's units in a room, for bits of escape_mask_runs: value b at 2 * b. */
static __device__ __forceinline__ void room_store(unsigned char *room, const uint4 unit[4])
{
    uint4 *to = reinterpret_cast<uint4 *>(room);
    to[0] = make_uint4(unit[0].x, unit[0].y, unit[1].x, unit[1].y);
    to[1] = make_uint4(unit[2].x, unit[2].y, unit[3].x, unit[3].y);
    to[2] = make_uint4(unit[0].z, unit[0].w, unit[1].z, unit[1].w);
    to[3] = make_uint4(unit[2].z, unit[2].w, unit[3].z, unit[3].w);
}
static __device__ __forceinline__ void room_load(const unsigned char *room, uint4 unit[4])
{
    const uint4 *from = reinterpret_cast<const uint4 *>(room);
    const uint4 a = from[0], b = from[1], c = from[2], d = from[3];
    unit[0] = make_uint4(a.x, a.y, c.x, c.y), unit[1] = make_uint4(a.z, a.w, c.z, c.w);
    unit[2] = make_uint4(b.x, b.y, d.x, d.y), unit[3] = make_uint4(b.z, b.w, d.z, d.w);
}
static __device__ __forceinline__ void room_put(unsigned char *room, uint32_t place, uint32_t exponent)
{
    uint16_t *value = reinterpret_cast<uint16_t *>(room + place);
    *value = (uint16_t)((*value & 0x807f) | exponent << 7);
}

/* A lane's units as if nothing were an escape, to its room. */
static __device__ __forceinline__ void decode_tile(const tile_words &words, uint32_t base2,
                                                   unsigned char *room)
{
    uint4 unit[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        unit[k] = make_uint4(words_pair(words, base2, k, 0), words_pair(words, base2, k, 1),
                             words_pair(words, base2, k, 2), words_pair(words, base2, k, 3));
    room_store(room, unit);
}

/* Puts exponents of the escapes in `left` there. ends: escape_ends; list: in shared memory. */
static __device__ __forceinline__ void put_escapes(uint32_t left, uint32_t ends, const unsigned char *list,
                                                   unsigned char *room)
{
    while (left) { /* from the last */
        const uint32_t bit = 31 - (uint32_t)__clz((int)left), run = bit * 2 & 24;
        left ^= 1u << bit;
        ends -= 1u << run;
        room_put(room, bit * 2, list[ends >> run & 255]);
    }
}
/* The same with a list of any length, where it lies. */
static __device__ void put_many_escapes(const tile_words &words, const unsigned char *list, uint32_t lane,
                                        unsigned char *room)
{
    const uint32_t mask = escape_mask(words.codes);
    const escape_ranks ranks = rank_escapes(mask, lane);
    uint32_t n = 0;
    for (uint32_t left = mask; left; left &= left - 1, n++) {
        const uint32_t bit = (uint32_t)__ffs((int)left) - 1, k = bit / 8, i = bit / 2 % 4;
        room_put(room, (i / 2 * 16 + k * 4 + i % 2 * 2 + bit % 2) * 2,
                 __ldg(list + escape_rank(ranks, bit, n)));
    }
}

/* Tile t of a step that is stored raw, to the lane's room; what is behind the last row is 0. */
static __device__ __forceinline__ void copy_tile(const packed_step &d, uint32_t t, uint32_t lane,
                                                 unsigned char *room)
{
    const bool there = t == 0 || d.second;
    const unsigned char *from = d.from + t * d.second + lane * 16;
    uint4 unit[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        unit[k] =
            there && (k < 2 || d.of_list[t] > HALF) ? load_weight16(from + k * 512) : make_uint4(0, 0, 0, 0);
    room_store(room, unit);
}

/* A lane's eight units of a step's tiles. What is not there is anything. */
static __device__ __forceinline__ void decode_step(const packed_step &d, unsigned char *slot, uint32_t lane,
                                                   uint4 unit[2][4])
{
    const tile_words words[2] = {load_words<true>(slot, lane),
                                 load_words<true>(slot + PACKED_TILE_BYTES, lane)};
    const bool easy = !(d.base2 & (STEP_RAW | STEP_LONG));
    unsigned char *room = slot + lane * ROOM_PITCH;
    uint32_t mask[2] = {0, 0}, ends[2] = {0, 0};
    if (easy) {
        mask[0] = escape_mask_runs(words[0].codes);
        mask[1] = escape_mask_runs(words[1].codes) & (d.second ? 0xffffffffu : 0);
        ends[0] = escape_ends(mask[0]), ends[1] = escape_ends(mask[1]);
    }
    /* Barriers of the warp: all have read the records; and stores of other types stay between those of units,
     * for the compiler too. */
    __syncwarp();
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
        if (d.base2 == STEP_RAW)
            copy_tile(d, t, lane, room);
        else
            decode_tile(words[t], d.base2 & ~STEP_LONG, room);
        __syncwarp();
        if (easy)
            put_escapes(mask[t], ends[t], slot + SLOT_LISTS + t * LIST_BYTES + step_lead(d, t), room);
        else if (d.base2 != STEP_RAW && step_count(d, t))
            put_many_escapes(words[t], d.from + d.list[t] + step_lead(d, t), lane, room);
        __syncwarp();
        room_load(room, unit[t]);
    }
}

/* A lane's 16 of 512 values of x. */
static __device__ __forceinline__ void load_x(const float4 *x, float fx[16])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) *reinterpret_cast<float4 *>(fx + 4 * i) = x[i * 32];
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

/* Shared memory: ring [warp][slot][SLOT_BYTES], x [cols], sums [2][batch][sums_pitch], 32 floats for
 * reductions, barriers [warp][slot]. BULK: copies are bulk copies (9.0), else asynchronous ones (8.0), of
 * SLOTS slots. */
template <uint32_t WARPS, bool BULK, uint32_t SLOTS>
__global__ void __launch_bounds__(WARPS * 32, WARPS <= 8 ? 2 : 1)
    gemv_packed(const __grid_constant__ packed_params q)
{
    const linear_params &p = q.linear;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slots = BULK ? q.slots : SLOTS;
    const uint32_t chunks = p.cols / HALF, pitch = sums_pitch(chunks);
    unsigned char *ring = shared + (size_t)warp * slots * SLOT_BYTES;
    float *x = reinterpret_cast<float *>(shared + (size_t)WARPS * slots * SLOT_BYTES), *partial = x + p.cols,
          *scratch = partial + ((2 * q.batch * pitch + 1) & ~1u);
    const uint32_t ring_address = shared_address(ring),
                   barrier_address =
                       shared_address(reinterpret_cast<uint64_t *>(scratch + 32) + warp * slots);
    const uint32_t first = (uint32_t)((uint64_t)q.units * blockIdx.x / gridDim.x),
                   units = (uint32_t)((uint64_t)q.units * (blockIdx.x + 1) / gridDim.x) - first,
                   runs = p.swiglu ? 2 * units : units;

    let_next_start();
    if (BULK) {
        if (lane == 0) bulk_barriers_open(barrier_address, slots);
        __syncwarp();
    }
    packed_step mine = {nullptr, 0, 0, {0, 0}, {0, 0}}; /* of the 32 looked up, the lane's */
    uint32_t asked = 0;                                 /* steps of the warp */
    const auto ask = [&](uint32_t slot) {
        if (warp + asked * WARPS < runs * q.steps) {
            unsigned char *at = ring + slot * SLOT_BYTES;
            const bool own = lane == asked % 32;
            if (asked % 32 == 0)
                mine = find_step(q, first, runs, warp + (asked + lane) * WARPS, [&](const packed_step &d) {
                    if (BULK && asked == 0 && lane < slots) /* the very first copies, as soon as can be */
                        bring_records(d, ring_address + lane * SLOT_BYTES, barrier_address + 8 * lane);
                });
            if (BULK) {
                if (own)
                    bring_bulk(mine, asked >= slots, at, ring_address + slot * SLOT_BYTES,
                               barrier_address + 8 * slot);
            } else {
                if (own) *reinterpret_cast<packed_step *>(at + SLOT_STEP) = mine;
                __syncwarp();
                bring_async(at, ring_address + slot * SLOT_BYTES, lane);
            }
            asked++;
        }
        if (!BULK) copies_commit();
    };
    for (uint32_t s = 0; s < slots; s++) ask(s);

    /* x as gemv_bulk takes it: parts of as many threads, so that the mean square has the same bits */
    float4 *x4 = reinterpret_cast<float4 *>(x);
    for (uint32_t t = threadIdx.x; t < q.threads; t += WARPS * 32)
        x_put_norm<__nv_bfloat16>(p.norm, p.cols, x4, t, q.threads);
    wait_for_previous();
    for (uint32_t t = threadIdx.x; t < q.threads; t += WARPS * 32) {
        const float part = warp_sum(x_put<__nv_bfloat16>(p.x, p.norm, p.cols, x4, t, q.threads));
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
            unsigned char *at = ring + slot * SLOT_BYTES;
            if (BULK)
                bulk_wait(barrier_address + 8 * slot, parity);
            else
                copies_wait<(int)SLOTS - 1>();
            __syncwarp();
            const packed_step d = *reinterpret_cast<const packed_step *>(at + SLOT_STEP);
            float sum[4] = {0, 0, 0, 0};
            if (d.from) {
                uint4 unit[2][4];
                decode_step(d, at, lane, unit);
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

typedef void (*packed_function)(packed_params);
/* What a block is like, in the order in which they are tried. */
struct packed_shape {
    uint32_t warps, slots;
    packed_function bulk, async;
};
#define SHAPE(warps)                                                                                         \
    {                                                                                                        \
        warps, 2, gemv_packed<warps, true, 2>, gemv_packed<warps, false, 2>                                  \
    }
static const struct packed_shape packed_shapes[] = {SHAPE(24), SHAPE(16), SHAPE(8), SHAPE(4)};
static const int PACKED_SHAPES = sizeof packed_shapes / sizeof packed_shapes[0];

static size_t shared_bytes_of(const packed_params &q, uint32_t warps)
{
    const size_t sums = (size_t)2 * q.batch * sums_pitch(q.linear.cols / HALF) + 1;
    return (size_t)warps * q.slots * (SLOT_BYTES + 8) + (q.linear.cols + sums + 32) * sizeof(float);
}

/* Warps of a block that does so many steps: 24 hide what a step waits for best (H200: a tenth faster), unless
 * the last round of them leaves more of them idle than that. */
static uint32_t warps_for(const struct gpuk_device *device, uint32_t steps)
{
    if (device->packed_warps) return (uint32_t)device->packed_warps;
    return div_up(steps, 24) * 24 * 9 <= div_up(steps, 16) * 16 * 10 ? 24 : 16;
}

/* How it is computed; NULL: not here. */
static const struct packed_shape *shape_of(const struct gpuk_device *device,
                                           const struct gpuk_linear_args *args, const linear_params &params,
                                           packed_params *q, uint32_t *blocks)
{
    if (device->capability < 80 || args->dtype != DTYPE_BF16 || args->cols % HALF ||
        device->gemv_tile_bytes > 1024 || !gpuk_linear_aligned(args) ||
        ((size_t)args->x | (size_t)args->norm) % 16)
        return nullptr;
    struct gpuk_device bulk = *device;
    bulk.bulk_copy = true;
    const uint32_t chunks = args->cols / HALF, each = args->swiglu ? 2 : 1, sms = (uint32_t)device->sm_count,
                   threads = gpuk_gemv_bulk_warps(&bulk, args) * 32;
    const bool rows_of_tiles = chunks % 2 == 0; /* whole ones */
    *q = {};
    q->linear = params;
    q->units = args->swiglu ? (args->segment[0].rows + 1) / 2 : params.pairs;
    q->steps = (chunks + 1) / 2;
    q->apart = rows_of_tiles ? chunks / 2 : 1;
    q->threads = threads ? threads : 512;
    for (uint32_t per_sm = device->packed_blocks > 1 ? (uint32_t)device->packed_blocks : 1; per_sm;
         per_sm--) {
        *blocks = per_sm * sms < q->units ? per_sm * sms : q->units;
        const uint32_t runs = div_up(q->units, *blocks) * each,
                       warps_most = warps_for(device, runs * q->steps);
        for (const struct packed_shape &s : packed_shapes)
            for (uint32_t sums : {SUMS_MAX, SUMS_FEW}) {
                const uint32_t batch = sums / sums_pitch(chunks) / each * each;
                q->batch = batch == 0 ? each : batch < runs ? batch : runs;
                q->slots =
                    device->bulk_copy && device->packed_slots ? (uint32_t)device->packed_slots : s.slots;
                if (s.warps <= warps_most &&
                    shared_bytes_of(*q, s.warps) * per_sm <= (size_t)device->shared_bytes_max)
                    return &s;
            }
    }
    return nullptr;
}

extern "C" bool gpuk_gemv_packed_takes(const struct gpuk_device *device, const struct gpuk_linear_args *args)
{
    linear_params params;
    packed_params q;
    uint32_t blocks;
    struct helm_err err;
    return !gpuk_linear_params("packed gemv", args, &params, &err) &&
           shape_of(device, args, params, &q, &blocks);
}

extern "C" int gpuk_gemv_packed(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                                const uint32_t *const *offset, uint32_t flags, void *stream,
                                struct helm_err *err)
{
    linear_params params;
    packed_params q;
    uint32_t blocks = 0;
    int rc = gpuk_linear_params("packed gemv", args, &params, err);
    if (rc) return rc;
    const struct packed_shape *shape = shape_of(device, args, params, &q, &blocks);
    if (!shape)
        return helm_fail(err, HELM_E_UNSUPPORTED, "packed gemv: %u rows of %u columns on this device",
                         args->segment[0].rows, args->cols);
    for (uint32_t s = 0; s < args->segments; s++) {
        if ((uintptr_t)offset[s] % sizeof(uint32_t))
            return helm_fail(err, HELM_E_USAGE, "packed gemv: a table of offsets is not aligned");
        q.offset[s] = offset[s];
    }
    return gpuk_launch("packed gemv", device->bulk_copy ? shape->bulk : shape->async, dim3(blocks),
                       dim3(shape->warps * 32), shared_bytes_of(q, shape->warps), flags, stream, err, q);
}

int gpuk_prepare_gemv_packed(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    if (device->capability < 80) return HELM_OK;
    for (int i = 0; i < PACKED_SHAPES && !rc; i++) {
        rc = gpuk_prepare("packed gemv", packed_shapes[i].async, (size_t)device->shared_bytes_max, err);
        if (!rc && device->bulk_copy)
            rc = gpuk_prepare("packed gemv", packed_shapes[i].bulk, (size_t)device->shared_bytes_max, err);
    }
    return rc;
}
