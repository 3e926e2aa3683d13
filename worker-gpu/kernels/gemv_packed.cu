/* One token's linear layers over packed weights (common/packed.h): what gpuk_expand and then gpuk_gemv would
 * compute, to the same bits, without the plain weights in between.
 *
 * A packed tile is 1,024 values: two tiles of 512 columns as gemv_bulk adds them up, and a packed tile's
 * lanes have the 16-byte units that gemv_bulk's have. So where rows are a multiple of 512 columns each half
 * of a packed tile is one tile of one row, sums are made in the same order, and a *run*, a pair of
 * neighbouring rows of one matrix, is a whole number of packed tiles.
 *
 * One block a multiprocessor has neighbouring runs, of SwiGLU those of gate and of up. Each warp keeps a ring
 * of slots in shared memory that the bulk copy engine fills with packed tiles; lanes build their 32 values in
 * registers. Escapes are a few in a hundred: a lane that has some passes its values through its own 64 bytes
 * of shared memory. The list of a tile's escapes is loaded while the tile before is computed. Sums of tiles
 * wait in shared memory until all are there and are added in order of columns. Groups that are stored raw
 * are loaded as they are. */
#include "worker-gpu/kernels/linear.cuh"
#include "worker-gpu/kernels/packed_escapes.cuh"
#include "worker-gpu/kernels/tile.cuh"

extern "C" {
#include "common/packed.h"
}

static const uint32_t HALF = PACKED_TILE / 2; /* values of a tile of gemv_bulk */
static const uint32_t ROOM = PACKED_TILE * 2; /* bytes of a warp's plain tile */
static const uint32_t LISTED = 64;            /* escapes of a tile that are loaded ahead */
static const uint32_t SLOTS = 4;
static const uint32_t RUNS_MAX = 128, SUMS_MAX = 2048; /* of a block */

struct packed_params {
    linear_params linear; /* of its segments, `weight` is where the first group lies */
    const uint32_t *offset[GPUK_SEGMENTS_MAX];
    uint32_t units; /* a run, or of SwiGLU two */
    uint32_t most;  /* units of a block */
    uint32_t slots;
};

/* Two rows of one matrix, or its last one alone. */
struct packed_run {
    const unsigned char *group;
    uint32_t first;  /* of the group's tiles */
    uint32_t values; /* of the group */
    uint32_t raw;
    uint32_t base2; /* the group's base where the exponents of a pair of values stand */
};

static __host__ __device__ __forceinline__ uint32_t up_to_align(uint32_t bytes)
{
    return (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
static __device__ __forceinline__ uint32_t tiles_of(uint32_t values)
{
    return (values + PACKED_TILE - 1) / PACKED_TILE;
}
/* Of a coded group, before its records. */
static __device__ __forceinline__ uint32_t head_of(uint32_t values)
{
    return up_to_align((uint32_t)sizeof(struct packed_header) + (tiles_of(values) + 1) * 4);
}

static __device__ __forceinline__ packed_run locate_run(const packed_params &q, uint32_t unit, uint32_t which)
{
    const linear_params &p = q.linear;
    const uint32_t s = p.swiglu ? which : linear_segment_of(p, unit);
    const linear_segment &g = p.segment[s];
    const uint32_t pair = p.swiglu || s == 0 ? unit : unit - p.segment[s - 1].pair_end;
    const uint32_t pairs = PACKED_ROWS / 2, group = pair / pairs, left = g.rows - group * PACKED_ROWS;
    const uint32_t at = __ldg(q.offset[s] + group), units = __ldg(q.offset[s] + group + 1) - at;
    packed_run run;
    run.group = g.weight + (size_t)(at - __ldg(q.offset[s])) * PACKED_ALIGN;
    run.first = pair % pairs * (p.cols / HALF);
    run.values = (left < PACKED_ROWS ? left : PACKED_ROWS) * p.cols;
    /* a group is coded only if that is smaller */
    run.raw = units == (PACKED_ALIGN + up_to_align(run.values * 2)) / PACKED_ALIGN;
    run.base2 = 0;
    return run;
}

/* Whether the run's tile is there: of a single last row only half of them are. */
static __device__ __forceinline__ bool has_tile(const packed_run &run, uint32_t tile)
{
    return (run.first + tile) * PACKED_TILE < run.values;
}

/* Starts the copy of a tile's record; one lane. Of others the barrier's phase ends at once. */
static __device__ __forceinline__ void copy_tile(const packed_run &run, uint32_t tile, uint32_t slot,
                                                 uint32_t barrier)
{
    if (run.raw || !has_tile(run, tile)) {
        barrier_arrive(barrier);
        return;
    }
    bulk_expect(barrier, PACKED_TILE_BYTES);
    bulk_copy(slot, run.group + head_of(run.values) + (size_t)(run.first + tile) * PACKED_TILE_BYTES,
              PACKED_TILE_BYTES, barrier);
}

/* A tile's escapes: where they are and how many, and a lane's two of the first LISTED. */
struct escape_list {
    const unsigned char *at;
    uint32_t count, low, high;
};
static __device__ __forceinline__ escape_list find_escapes(const packed_run &run, uint32_t tile)
{
    escape_list list = {run.group, 0, 0, 0};
    if (run.raw || !has_tile(run, tile)) return list;
    const uint32_t *start =
        reinterpret_cast<const uint32_t *>(run.group + sizeof(struct packed_header)) + run.first + tile;
    const uint32_t from = __ldg(start);
    list.count = __ldg(start + 1) - from;
    list.at += head_of(run.values) + (size_t)tiles_of(run.values) * PACKED_TILE_BYTES + from;
    return list;
}
static __device__ __forceinline__ void load_escapes(escape_list &list, uint32_t lane)
{
    if (lane < list.count) list.low = __ldg(list.at + lane);
    if (lane + 32 < list.count) list.high = __ldg(list.at + lane + 32);
}

/* A lane's four units of a coded tile. `room`: the warp's plain tile, `listed` its escapes. */
static __device__ __forceinline__ void decode_tile(const unsigned char *record, uint32_t base2,
                                                   const escape_list &list, unsigned char *room,
                                                   unsigned char *listed, uint32_t lane, uint4 unit[4])
{
    const unsigned char *rest = record + PACKED_CODE_BYTES;
    uint32_t codes[4];
    uint2 bytes[4];
#pragma unroll
    for (uint32_t i = 0; i < 3; i++)
        codes[i] = *reinterpret_cast<const uint32_t *>(record + i * 128 + lane * 4);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) bytes[k] = *reinterpret_cast<const uint2 *>(rest + k * 256 + lane * 8);
    codes[3] = (codes[0] >> 12 & 0x000f000fu) | (codes[1] >> 8 & 0x00f000f0u) | (codes[2] >> 4 & 0x0f000f00u);
    const uint32_t mask = escape_mask(codes);
    const escape_ranks ranks = rank_escapes(mask, lane);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t pair[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t exponents = (k == 3 ? codes[i] >> 2 : codes[i] << (7 - 3 * k)) & 0x03800380u;
            const uint32_t two = __byte_perm(i < 2 ? bytes[k].x : bytes[k].y, 0, i & 1 ? 0x3322 : 0x1100);
            pair[i] = exponents + base2 + (two & 0x807f807fu);
        }
        unit[k] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }

    listed[lane] = (unsigned char)list.low;
    listed[lane + 32] = (unsigned char)list.high;
    if (mask)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) *reinterpret_cast<uint4 *>(room + k * 512 + lane * 16) = unit[k];
    __syncwarp(); /* and stores of other types stay between those of units, for the compiler too */
    uint32_t n = 0;
    for (uint32_t left = mask; left; left &= left - 1, n++) {
        const uint32_t bit = (uint32_t)__ffs((int)left) - 1, place = escape_place(bit, lane),
                       rank = escape_rank(ranks, bit, n);
        const uint32_t byte = rest[place], exponent = rank < LISTED ? listed[rank] : __ldg(list.at + rank);
        reinterpret_cast<uint16_t *>(room)[place] =
            (uint16_t)((byte & 0x80) << 8 | exponent << 7 | (byte & 0x7f));
    }
    __syncwarp();
    if (mask)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            unit[k] = *reinterpret_cast<const uint4 *>(room + k * 512 + lane * 16);
}

/* A lane's four units of a raw group's tile; what is behind the last row is 0. */
static __device__ __forceinline__ void load_tile(const packed_run &run, uint32_t tile, uint32_t lane,
                                                 uint4 unit[4])
{
    const unsigned char *from = run.group + PACKED_ALIGN + (size_t)(run.first + tile) * ROOM + lane * 16;
    const uint32_t here = run.values - (run.first + tile) * PACKED_TILE;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        unit[k] = k < 2 || here > HALF ? load_weight16(from + k * 512) : make_uint4(0, 0, 0, 0);
}

/* A lane's part of the sum of one row over 512 columns: as unit_add does it, two units. */
static __device__ __forceinline__ float half_sum(const uint4 unit[2], const float4 *x)
{
    float2 a = make_float2(0, 0);
#pragma unroll
    for (uint32_t u = 0; u < 2; u++) {
        float f[8], fx[8];
#pragma unroll
        for (uint32_t j = 0; j < 8; j += 4) *reinterpret_cast<float4 *>(fx + j) = x[u * 64 + j * 8];
        unpack16<__nv_bfloat16>(unit[u], f);
#pragma unroll
        for (uint32_t j = 0; j < 8; j += 2) a.x += f[j] * fx[j], a.y += f[j + 1] * fx[j + 1];
    }
    return a.x + a.y;
}

static __device__ __forceinline__ float row_sum(const float *from, uint32_t count)
{
    float sum = 0;
    for (uint32_t c = 0; c < count; c++) sum += from[c];
    return sum;
}

/* Shared memory: ring [warp][slot][PACKED_TILE_BYTES], room [warp][ROOM], listed [warp][LISTED], x [cols],
 * sums [runs][2 rows][tiles of 512], 32 floats for reductions, runs, barriers [warp][slot]. */
template <uint32_t WARPS>
__global__ void __launch_bounds__(WARPS * 32) gemv_packed(const __grid_constant__ packed_params q)
{
    const linear_params &p = q.linear;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slots = q.slots;
    const uint32_t chunks = p.cols / HALF, each = p.swiglu ? 2 : 1; /* runs of a unit */
    unsigned char *rooms = shared + (size_t)WARPS * slots * PACKED_TILE_BYTES, *room = rooms + warp * ROOM,
                  *listed = rooms + WARPS * ROOM + warp * LISTED;
    float *x = reinterpret_cast<float *>(rooms + WARPS * (ROOM + LISTED)), *sums = x + p.cols,
          *scratch = sums + (size_t)q.most * each * 2 * chunks;
    packed_run *run = reinterpret_cast<packed_run *>(scratch + 32);
    uint64_t *barriers = reinterpret_cast<uint64_t *>(run + q.most * each);
    const unsigned char *ring = shared + (size_t)warp * slots * PACKED_TILE_BYTES;
    const uint32_t ring_address = shared_address(ring);
    const uint32_t barrier_address = shared_address(barriers + warp * slots);
    const uint32_t first = (uint32_t)((uint64_t)q.units * blockIdx.x / gridDim.x),
                   units = (uint32_t)((uint64_t)q.units * (blockIdx.x + 1) / gridDim.x) - first,
                   runs = units * each;

    let_next_start();
    for (uint32_t i = threadIdx.x; i < runs; i += WARPS * 32)
        run[i] = locate_run(q, first + i / each, i % each);
    if (lane == 0) bulk_barriers_open(barrier_address, slots);
    __syncthreads();
    tile_walk ask = {0, 0}; /* the next tile to ask for */
    walk_next(ask, chunks, warp);
    const tile_walk begin = ask;
    for (uint32_t s = 0; s < slots; s++) {
        if (ask.pair < runs && lane == 0)
            copy_tile(run[ask.pair], ask.chunk, ring_address + s * PACKED_TILE_BYTES,
                      barrier_address + 8 * s);
        walk_next(ask, chunks, WARPS);
    }
    /* lists of escapes: of the tile in hand and the next, whose bytes are not loaded yet */
    tile_walk seek = begin;
    escape_list list = {nullptr, 0, 0, 0}, next = list;
    if (seek.pair < runs) list = find_escapes(run[seek.pair], seek.chunk);
    walk_next(seek, chunks, WARPS);
    if (seek.pair < runs) next = find_escapes(run[seek.pair], seek.chunk);
    load_escapes(list, lane);
    __syncwarp(); /* who reads a run's base2 does so behind the block's barriers below */
    for (uint32_t i = threadIdx.x; i < runs; i += WARPS * 32)
        run[i].base2 =
            run[i].raw ? 0
                       : __ldg(run[i].group + offsetof(struct packed_header, base)) * (1u << 7 | 1u << 23);

    /* x as gemv_bulk takes it: by as many threads, so that the mean square has the same bits */
    const uint32_t quads = p.cols / 4;
    float4 *x4 = reinterpret_cast<float4 *>(x);
    if (p.norm)
        for (uint32_t f = threadIdx.x; f < quads; f += WARPS * 32)
            x4[x_place<__nv_bfloat16>(f)] = __ldg(reinterpret_cast<const float4 *>(p.norm) + f);
    wait_for_previous();
    float squares = 0;
    if (p.norm) {
#pragma unroll 4
        for (uint32_t f = threadIdx.x; f < quads; f += WARPS * 32) {
            float4 v = __ldcg(reinterpret_cast<const float4 *>(p.x) + f), n = x4[x_place<__nv_bfloat16>(f)];
            squares = add_squares(squares, v);
            x4[x_place<__nv_bfloat16>(f)] = make_float4(v.x * n.x, v.y * n.y, v.z * n.z, v.w * n.w);
        }
    } else {
#pragma unroll 4
        for (uint32_t f = threadIdx.x; f < quads; f += WARPS * 32)
            x4[x_place<__nv_bfloat16>(f)] = __ldcg(reinterpret_cast<const float4 *>(p.x) + f);
    }
    squares = block_sum(squares, scratch); /* also the barrier after which x and runs may be read */
    const float scale = p.norm ? rsqrtf(squares / (float)p.cols + p.eps) : 1.0f;

    uint32_t slot = 0, parity = 0;
    for (tile_walk use = begin; use.pair < runs; walk_next(use, chunks, WARPS)) {
        const packed_run here = run[use.pair];
        load_escapes(next, lane);
        walk_next(seek, chunks, WARPS);
        escape_list after = {nullptr, 0, 0, 0};
        if (seek.pair < runs) after = find_escapes(run[seek.pair], seek.chunk);
        bulk_wait(barrier_address + 8 * slot, parity);
        float keep = 0;
        if (has_tile(here, use.chunk)) {
            uint4 unit[4];
            if (here.raw)
                load_tile(here, use.chunk, lane, unit);
            else
                decode_tile(ring + slot * PACKED_TILE_BYTES, here.base2, list, room, listed, lane, unit);
            const uint32_t a = 2 * use.chunk, b = a + 1; /* of both rows' */
            const float sum_a = half_sum(unit, x4 + (a < chunks ? a : a - chunks) * (HALF / 4) + lane),
                        sum_b = half_sum(unit + 2, x4 + (b < chunks ? b : b - chunks) * (HALF / 4) + lane);
            const float mine = lane < 16 ? sum_a : sum_b, give = lane < 16 ? sum_b : sum_a;
            keep = mine + __shfl_xor_sync(0xffffffffu, give, 16);
        }
        /* Every lane has taken a sum of what every other read of the slot and of the room, so both may be
         * filled again. */
        __syncwarp();
        if (lane == 0 && ask.pair < runs)
            copy_tile(run[ask.pair], ask.chunk, ring_address + slot * PACKED_TILE_BYTES,
                      barrier_address + 8 * slot);
        walk_next(ask, chunks, WARPS);
        keep = tile_fold(keep);
        if ((lane & 15) == 0) sums[(use.pair * chunks + use.chunk) * 2 + (lane >> 4)] = keep;
        list = next;
        next = after;
        if (++slot == slots) slot = 0, parity ^= 1;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < runs; i += WARPS * 32) {
        if (!p.swiglu) {
            const float *from = sums + i * 2 * chunks;
            const float a = row_sum(from, chunks), b = row_sum(from + chunks, chunks);
            linear_finish(p, first + i, 0, __fmul_rn(a, scale), __fmul_rn(b, scale));
            continue;
        }
        const uint32_t row = 2 * first + i; /* one of the two of gate's run and of up's */
        const float *from = sums + (i / 2 * 4 + i % 2) * chunks;
        if (row >= p.segment[0].rows) continue;
        const float a = row_sum(from, chunks), b = row_sum(from + 2 * chunks, chunks);
        linear_finish(p, row, 0, __fmul_rn(a, scale), __fmul_rn(b, scale));
    }
}

/* ---- launchers ------------------------------------------------------------------------------------- */

static size_t shared_bytes_of(const packed_params &q, uint32_t warps)
{
    const size_t runs = (size_t)q.most * (q.linear.swiglu ? 2 : 1);
    return (size_t)warps * (q.slots * (PACKED_TILE_BYTES + 8) + ROOM + LISTED) +
           (q.linear.cols + runs * 2 * (q.linear.cols / HALF) + 32) * sizeof(float) +
           runs * sizeof(struct packed_run);
}

/* How it is computed; returns the warps of a block, 0: not here. */
static uint32_t packed_shape(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                             const linear_params &params, packed_params *q, uint32_t *blocks)
{
    const uint32_t warps = gpuk_gemv_bulk_warps(device, args);
    if (!warps || args->dtype != DTYPE_BF16 || args->cols % HALF) return 0;
    const uint32_t each = args->swiglu ? 2 : 1, sms = (uint32_t)device->sm_count;
    const uint32_t sums = each * 2 * (args->cols / HALF);
    uint32_t cap = SUMS_MAX / sums;
    if (cap > RUNS_MAX / each) cap = RUNS_MAX / each;
    if (cap == 0) return 0;
    *q = {};
    q->linear = params;
    q->units = args->swiglu ? (args->segment[0].rows + 1) / 2 : params.pairs;
    *blocks = sms < q->units ? sms : q->units;
    if (div_up(q->units, *blocks) > cap) *blocks = div_up(q->units, cap);
    q->most = div_up(q->units, *blocks);
    for (q->slots = SLOTS; q->slots > 1; q->slots--)
        if (shared_bytes_of(*q, warps) <= (size_t)device->shared_bytes_max) return warps;
    return 0;
}

extern "C" bool gpuk_gemv_packed_takes(const struct gpuk_device *device, const struct gpuk_linear_args *args)
{
    linear_params params;
    packed_params q;
    uint32_t blocks;
    struct helm_err err;
    return !gpuk_linear_params("packed gemv", args, &params, &err) &&
           packed_shape(device, args, params, &q, &blocks) > 0;
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
    const uint32_t warps = packed_shape(device, args, params, &q, &blocks);
    if (!warps)
        return helm_fail(err, HELM_E_UNSUPPORTED, "packed gemv: %u rows of %u columns on this device",
                         args->segment[0].rows, args->cols);
    for (uint32_t s = 0; s < args->segments; s++) {
        if ((uintptr_t)offset[s] % sizeof(uint32_t))
            return helm_fail(err, HELM_E_USAGE, "packed gemv: a table of offsets is not aligned");
        q.offset[s] = offset[s];
    }
    return gpuk_launch("packed gemv", warps == 16 ? gemv_packed<16> : gemv_packed<8>, dim3(blocks),
                       dim3(warps * 32), shared_bytes_of(q, warps), flags, stream, err, q);
}

int gpuk_prepare_gemv_packed(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy) return HELM_OK;
    int rc = gpuk_prepare("packed gemv", gemv_packed<8>, (size_t)device->shared_bytes_max, err);
    if (!rc) rc = gpuk_prepare("packed gemv", gemv_packed<16>, (size_t)device->shared_bytes_max, err);
    return rc;
}
