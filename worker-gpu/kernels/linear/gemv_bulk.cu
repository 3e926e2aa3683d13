/* One token's linear layers by bulk copies (9.0 and later). See linear.cu.
 *
 * Decode moves every weight once a token, so this is as fast as memory lets it be. One block a
 * multiprocessor. Each warp keeps a private ring of slots in shared memory filled by the bulk copy engine:
 * many kilobytes in flight at the cost of no registers, and the ring is filled before the kernel in front has
 * finished. The unit of work is a tile of about 1 KB of two rows; tiles go round the warps, so that they all
 * end together whatever the shape; sums of tiles meet in shared memory and are added in order of columns. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/tile.cuh"

struct bulk_params {
    linear_params linear;
    uint32_t chunks; /* tiles of a row */
    uint32_t slots;
    uint32_t ahead_tiles; /* a warp's tiles asked into the L2 beyond its slots */
    bool contiguous;      /* a block's pairs are neighbours; else they lie gridDim.x apart */
    bool loose;           /* rows that do not begin on 16 bytes */
    tile_walk step;       /* as many tiles on as a block has warps */
};

/* A block's pairs: first, first + step, ... */
struct block_share {
    uint32_t first, step, pairs;
};
__device__ __forceinline__ block_share share_of(const bulk_params &q)
{
    const uint64_t all = q.linear.pairs;
    if (!q.contiguous)
        return {blockIdx.x, gridDim.x, (uint32_t)((all - blockIdx.x + gridDim.x - 1) / gridDim.x)};
    const uint32_t first = (uint32_t)(all * blockIdx.x / gridDim.x);
    return {first, 1, (uint32_t)(all * (blockIdx.x + 1) / gridDim.x) - first};
}

/* The same for steps of many rows. */
__device__ __forceinline__ void walk_far(tile_walk &w, uint32_t chunks, uint32_t step)
{
    w.chunk += step;
    w.pair += w.chunk / chunks;
    w.chunk %= chunks;
}

/* Bytes of tile `chunk` of a row. */
template <uint32_t TILE>
__device__ __forceinline__ uint32_t tile_bytes(const linear_params &p, uint32_t chunk)
{
    const uint64_t left = p.row_bytes - (uint64_t)chunk * TILE;
    return left < TILE ? (uint32_t)left : TILE;
}

/* From a tile's first row in its slot to its second. */
template <typename D> __host__ __device__ constexpr uint32_t tile_pitch(uint32_t tile)
{
    return D::LOOSE ? (tile + TILE_SLACK + 15) / 16 * 16 : tile;
}
template <typename D>
__device__ __forceinline__ tile_window window_of(const unsigned char *first, uint32_t bytes)
{
    if (D::LOOSE) return tile_window_of(first, bytes);
    return {first, bytes};
}

/* Starts the copy of a tile of both rows; one lane. */
template <typename D, uint32_t TILE>
__device__ __forceinline__ void tile_copy(const linear_params &p, const block_share &share, tile_walk w,
                                          uint32_t slot, uint32_t barrier)
{
    const linear_pair rows = linear_locate(p, share.first + w.pair * share.step);
    const uint32_t bytes = tile_bytes<TILE>(p, w.chunk);
    const uint64_t at = (uint64_t)w.chunk * TILE;
    const tile_window a = window_of<D>(rows.a + at, bytes), b = window_of<D>(rows.b + at, bytes);
    bulk_expect(barrier, rows.b ? a.bytes + b.bytes : a.bytes);
    bulk_copy(slot, a.from, a.bytes, barrier);
    if (rows.b) bulk_copy(slot + tile_pitch<D>(TILE), b.from, b.bytes, barrier);
}
/* Where its rows lie then. */
template <typename D, uint32_t TILE>
__device__ __forceinline__ tile_place tile_at(const bulk_params &q, const block_share &share, tile_walk w,
                                              const unsigned char *slot)
{
    const linear_params &p = q.linear;
    tile_place tile = {slot, slot + tile_pitch<D>(TILE)};
    if (!D::LOOSE || !q.loose) return tile;
    const linear_pair rows = linear_locate(p, share.first + w.pair * share.step);
    tile.a += ((size_t)rows.a + w.chunk * TILE) & 15;
    tile.b += ((size_t)rows.b + w.chunk * TILE) & 15;
    return tile;
}

template <typename D, uint32_t TILE>
__device__ __forceinline__ void tile_ask(const linear_params &p, const block_share &share, tile_walk w)
{
    const linear_pair rows = linear_locate(p, share.first + w.pair * share.step);
    const uint32_t bytes = tile_bytes<TILE>(p, w.chunk);
    const uint64_t at = (uint64_t)w.chunk * TILE;
    const tile_window a = window_of<D>(rows.a + at, bytes), b = window_of<D>(rows.b + at, bytes);
    bulk_ask_l2(a.from, a.bytes);
    if (rows.b) bulk_ask_l2(b.from, b.bytes);
}

/* A warp opens its barriers and asks for its first tiles, as many as it has slots, then for those that are to
 * be in the L2. `ask` is the first tile that has no slot yet. */
template <typename D, uint32_t WARPS, uint32_t TILE>
__device__ __forceinline__ void ring_fill(const bulk_params &q, const block_share &share, uint32_t ring,
                                          uint32_t barriers, tile_walk &ask)
{
    const uint32_t lane = threadIdx.x & 31;
    if (lane == 0) bulk_barriers_open(barriers, q.slots);
    __syncwarp();
    for (uint32_t s = 0; s < q.slots; s++) {
        if (ask.pair < share.pairs && lane == 0)
            tile_copy<D, TILE>(q.linear, share, ask, ring + s * 2 * tile_pitch<D>(TILE), barriers + 8 * s);
        walk_step(ask, q.chunks, q.step);
    }
    if (lane >= q.ahead_tiles) return;
    tile_walk w = ask;
    walk_far(w, q.chunks, WARPS * lane);
    if (w.pair < share.pairs) tile_ask<D, TILE>(q.linear, share, w);
}

/* x to shared memory after the kernel in front; the thread's part of its squares. The norm's weights wait in
 * x's place, but for blocks; x is scaled by the mean square at the very end. */
template <typename D, uint32_t WARPS>
__device__ __forceinline__ float x_take(const linear_params &p, float4 *x4)
{
    if constexpr (!D::SCALED) x_put_norm<D>(p.norm, p.cols, x4, threadIdx.x, WARPS * 32);
    wait_for_previous();
    let_next_start();
    if constexpr (D::SCALED)
        return blocks_x::put_all(p.x, p.norm, p.cols, x4, threadIdx.x, WARPS * 32);
    else
        return x_put<D>(p.x, p.norm, p.cols, x4, threadIdx.x, WARPS * 32);
}

/* Two blocks fit a multiprocessor, where x leaves room: the next launch's fills its ring meanwhile. Shared
 * memory: ring [warp][slot][2][tile_pitch], x [chunks * floats of a tile], partial [2][PARTIAL_FLOATS], 32
 * floats for reductions, barriers [warp][slot]. */
template <typename D, uint32_t WARPS, uint32_t TILE>
__global__ void __launch_bounds__(WARPS * 32, 2) gemv_bulk(const __grid_constant__ bulk_params q)
{
    const linear_params &p = q.linear;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t tile_floats = TILE / D::LINE_BYTES * D::LINE_QUADS * 4, pitch = tile_pitch<D>(TILE);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *x = reinterpret_cast<float *>(shared + (size_t)WARPS * q.slots * 2 * pitch);
    float *partial = x + (size_t)q.chunks * tile_floats;
    float *scratch = partial + 2 * PARTIAL_FLOATS;
    uint64_t *barriers = reinterpret_cast<uint64_t *>(scratch + 32);
    const unsigned char *ring = shared + (size_t)warp * q.slots * 2 * pitch;
    const uint32_t ring_address = shared_address(ring);
    const uint32_t barrier_address = shared_address(barriers + warp * q.slots);
    const block_share share = share_of(q);

    tile_walk ask = {0, 0}; /* next tile to ask for */
    walk_next(ask, q.chunks, warp);
    ring_fill<D, WARPS, TILE>(q, share, ring_address, barrier_address, ask);
    float4 *x4 = reinterpret_cast<float4 *>(x);
    /* also the barrier after which every warp may read x */
    const float squares = block_sum(x_take<D, WARPS>(p, x4), scratch);
    const float scale = p.norm ? rsqrtf(squares / (float)p.cols + p.eps) : 1.0f;

    tile_walk use = {0, 0};
    walk_next(use, q.chunks, warp);
    uint32_t slot = 0, parity = 0;
    const uint32_t batch_pairs = PARTIAL_FLOATS / 2 / q.chunks;
    for (uint32_t batch = 0, which = 0; batch < share.pairs; batch += batch_pairs, which ^= 1) {
        float *sums = partial + which * PARTIAL_FLOATS;
        const uint32_t end = batch + batch_pairs < share.pairs ? batch + batch_pairs : share.pairs;
        while (use.pair < end) {
            bulk_wait(barrier_address + 8 * slot, parity);
            const tile_place tile = tile_at<D, TILE>(q, share, use, ring + (size_t)slot * 2 * pitch);
            const uint32_t bytes = tile_bytes<TILE>(p, use.chunk);
            float keep = tile_sums<D, TILE>(tile, bytes, x4 + use.chunk * (tile_floats / 4));
            /* Each lane's reads of the slot are in its registers, since the exchange took sums of them: the
             * slot may be filled again. A barrier of the warp alone would not do: it orders loads before
             * later accesses of threads, not before those of the copy engine, and a load may wait in a queue
             * of its own. Here it costs nothing and says the order to tools that look for races. */
            __syncwarp();
            if (lane == 0 && ask.pair < share.pairs)
                tile_copy<D, TILE>(p, share, ask, ring_address + slot * 2 * pitch,
                                   barrier_address + 8 * slot);
            walk_step(ask, q.chunks, q.step);
            keep = tile_fold(keep);
            if ((lane & 15) == 0) sums[((use.pair - batch) * q.chunks + use.chunk) * 2 + (lane >> 4)] = keep;
            walk_step(use, q.chunks, q.step);
            if (++slot == q.slots) slot = 0, parity ^= 1;
        }
        __syncthreads();
        for (uint32_t i = batch + threadIdx.x; i < end; i += WARPS * 32) {
            const float2 *from = reinterpret_cast<const float2 *>(sums) + (i - batch) * q.chunks;
            float a = 0, b = 0;
            for (uint32_t c = 0; c < q.chunks; c++) a += from[c].x, b += from[c].y;
            linear_finish(p, share.first + i * share.step, 0, __fmul_rn(a, scale), __fmul_rn(b, scale));
        }
    }
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

/* How the bulk kernel is run. */
struct bulk_shape {
    uint32_t warps, tile, slots, ahead_bytes;
    bool contiguous;
};
/* A tile of blocks costs a third as much as the products of a line, so that two lines are better, unless
 * warps would have all the whole tiles or all the others: tiles go round the warps, of which there are 8 or
 * 16. */
template <typename D> static uint32_t bulk_tile_of(const struct linear_params *params)
{
    const uint64_t row_bytes = params->row_bytes, large = (row_bytes + D::TILE_LARGE - 1) / D::TILE_LARGE;
    return D::SCALED && (row_bytes % D::TILE_LARGE == 0 || large % 2 == 1 || large >= 8) ? D::TILE_LARGE
                                                                                         : D::TILE;
}
/* The shape that measured best for whole matrices. For a slice (some rows of a matrix, as it passes through
 * the ring of streamed weights) a block may have fewer tiles than warps: half the warps meet at barriers
 * sooner. */
template <typename D>
static struct bulk_shape bulk_shape_of(const struct gpuk_device *device, const struct linear_params *params)
{
    struct bulk_shape s = {16, bulk_tile_of<D>(params), 0, 64 * 1024, device->gemv_contiguous};
    const uint64_t pairs_a_block = div_up(params->pairs, (uint32_t)device->sm_count);
    if (pairs_a_block * ((params->row_bytes + s.tile - 1) / s.tile) <= 8) s.warps = 8;
    if (device->gemv_warps) s.warps = device->gemv_warps <= 8 ? 8 : 16;
    if (device->gemv_tile_bytes) s.tile = device->gemv_tile_bytes <= 1024 ? D::TILE : D::TILE_LARGE;
    s.slots = s.tile < 1024 ? div_up(2048, s.tile) : 2;
    if (device->gemv_slots > 0) s.slots = device->gemv_slots < 12 ? (uint32_t)device->gemv_slots : 12;
    if (device->gemv_ahead_bytes)
        s.ahead_bytes = device->gemv_ahead_bytes > 0 ? (uint32_t)device->gemv_ahead_bytes : 0;
    return s;
}

template <typename D> static size_t bulk_shared_bytes(const struct bulk_shape *s, uint32_t chunks)
{
    const size_t tile_floats = s->tile / D::LINE_BYTES * D::LINE_QUADS * 4, pitch = tile_pitch<D>(s->tile);
    return (size_t)s->warps * s->slots * (2 * pitch + 8) +
           (chunks * tile_floats + 2 * PARTIAL_FLOATS + 32) * sizeof(float);
}

/* Whether the bulk kernel takes it, and then how. */
template <typename D>
static bool bulk_shape_fits(const struct linear_call &call, struct bulk_shape *s, uint32_t *chunks)
{
    const struct gpuk_device *device = call.device;
    const struct gpuk_linear_args *args = call.args;
    const size_t limit = (size_t)device->shared_bytes_max;
    *s = bulk_shape_of<D>(device, &call.params);
    *chunks = (uint32_t)((call.params.row_bytes + s->tile - 1) / s->tile);
    while (s->slots > 2 && bulk_shared_bytes<D>(s, *chunks) > limit) s->slots--;
    /* devices with 99 KiB a block: long rows leave room for half the warps */
    if (s->warps > 8 && bulk_shared_bytes<D>(s, *chunks) > limit) s->warps = 8;
    return device->bulk_copy && (D::LOOSE ? D::takes_pieces(args) : gpuk_linear_aligned(args)) &&
           ((size_t)args->x | (size_t)args->norm) % 16 == 0 && *chunks <= PARTIAL_FLOATS / 2 &&
           bulk_shared_bytes<D>(s, *chunks) <= limit;
}
template <typename D> static bool bulk_takes(const struct linear_call &call)
{
    struct bulk_shape s;
    uint32_t chunks;
    return bulk_shape_fits<D>(call, &s, &chunks);
}
uint32_t gemv_bulk_warps(const struct linear_call &call)
{
    struct bulk_shape s;
    uint32_t chunks;
    return bulk_shape_fits<decode_bf16>(call, &s, &chunks) && s.tile == decode_bf16::TILE ? s.warps : 0;
}

typedef void (*bulk_function)(bulk_params);
/* [of 16 warps][of twice as large tiles] */
template <typename D>
static const bulk_function bulk_kernel[2][2] = {{gemv_bulk<D, 8, D::TILE>, gemv_bulk<D, 8, D::TILE_LARGE>},
                                                {gemv_bulk<D, 16, D::TILE>, gemv_bulk<D, 16, D::TILE_LARGE>}};
template <typename D> static int bulk_launch(const struct linear_call &call, struct helm_err *err)
{
    struct bulk_shape s;
    uint32_t chunks;
    bulk_shape_fits<D>(call, &s, &chunks);
    const uint32_t ahead = s.ahead_bytes / (s.warps * 2 * s.tile), sms = (uint32_t)call.device->sm_count,
                   pairs = call.params.pairs;
    struct bulk_params bulk = {call.params,
                               chunks,
                               s.slots,
                               ahead < 32 ? ahead : 32,
                               s.contiguous,
                               !gpuk_linear_aligned(call.args) || s.tile % 16 != 0,
                               {s.warps / chunks, s.warps % chunks}};
    return gpuk_launch("gemv", bulk_kernel<D>[s.warps == 16][s.tile > D::TILE],
                       dim3(sms < pairs ? sms : pairs), dim3(s.warps * 32), bulk_shared_bytes<D>(&s, chunks),
                       call.flags, call.stream, err, bulk);
}
template <typename D> static int bulk_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int v = 0; v < 4 && !rc && device->bulk_copy; v++)
        rc = gpuk_prepare("gemv", bulk_kernel<D>[v / 2][v % 2], (size_t)device -> shared_bytes_max, err);
    return rc;
}

template <typename D> static constexpr struct linear_kernel bulk_of()
{
    if constexpr (D::TILES) return {"bulk", bulk_takes<D>, bulk_launch<D>, bulk_prepare<D>};
    return {};
}
#define BULK(D) bulk_of<D>()
linear_kernels gemv_bulk_kernels = BY_FORMAT(BULK, {});
