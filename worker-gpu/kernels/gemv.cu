/* One token's linear layers: y = W x with everything that stands before and after it fused.
 *
 * Decode moves every weight once a token, so these kernels are as fast as memory lets them be.
 *   plain   a warp takes a pair of rows, 16-byte loads, x through the L1. Any shape and alignment, every
 * device. bulk    (9.0 and later) one block a multiprocessor. Each warp keeps a private ring of slots in
 * shared memory filled by the bulk copy engine: many kilobytes in flight at the cost of no registers, and the
 * ring is filled before the kernel in front has finished. The unit of work is a tile of 1 KB of two rows;
 *           tiles go round the warps, so that they all end together whatever the shape; sums of tiles meet in
 *           shared memory and are added in order of columns.
 * Launchers below; worker-gpu/kernels.h says what they mean. */
#include "worker-gpu/kernels/linear.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t PLAIN_THREADS = 256;

/* ---- plain -------------------------------------------------------------------------------------- */

template <typename T>
__device__ __forceinline__ void plain_add(const uint4 &wa, const uint4 &wb, const float *from, float &a,
                                          float &b)
{
    const uint32_t per_load = 16 / sizeof(T);
    float fa[per_load], fb[per_load], x[per_load];
    unpack16<T>(wa, fa);
    unpack16<T>(wb, fb);
#pragma unroll
    for (uint32_t j = 0; j < per_load; j += 4)
        *reinterpret_cast<float4 *>(x + j) = *reinterpret_cast<const float4 *>(from + j);
#pragma unroll
    for (uint32_t j = 0; j < per_load; j++) a += fa[j] * x[j], b += fb[j] * x[j];
}

template <typename T, bool VECTOR>
__global__ void __launch_bounds__(PLAIN_THREADS) gemv_plain(const __grid_constant__ linear_params p)
{
    let_next_start();
    wait_for_previous();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * (blockDim.x / 32);
    for (uint32_t pair = blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5); pair < p.pairs; pair += warps) {
        linear_pair rows = linear_locate(p, pair);
        float a = 0, b = 0;
        const unsigned char *row_b = rows.b ? rows.b : rows.a;
        if constexpr (VECTOR) {
            const uint32_t per_load = 16 / sizeof(T), step = 32 * per_load;
            uint32_t c = lane * per_load;
            for (; c + 3 * step < p.cols; c += 4 * step) {
                uint4 wa[4], wb[4]; /* eight loads in flight before the first is used */
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    wa[j] = load_weight16(rows.a + (size_t)(c + j * step) * sizeof(T));
                    wb[j] = load_weight16(row_b + (size_t)(c + j * step) * sizeof(T));
                }
#pragma unroll
                for (int j = 0; j < 4; j++) plain_add<T>(wa[j], wb[j], p.x + c + j * step, a, b);
            }
            for (; c < p.cols; c += step)
                plain_add<T>(load_weight16(rows.a + (size_t)c * sizeof(T)),
                             load_weight16(row_b + (size_t)c * sizeof(T)), p.x + c, a, b);
        } else {
            const T *wa = reinterpret_cast<const T *>(rows.a), *wb = reinterpret_cast<const T *>(row_b);
#pragma unroll 4
            for (uint32_t c = lane; c < p.cols; c += 32) {
                float x = p.x[c];
                a += element<T>::load(wa[c]) * x;
                b += element<T>::load(wb[c]) * x;
            }
        }
        a = warp_sum(a);
        b = warp_sum(b);
        if (lane == 0) linear_finish(p, pair, 0, a, b);
    }
}

/* ---- bulk ------------------------------------------------------------------------------------------ */

struct bulk_params {
    linear_params linear;
    uint32_t chunks; /* tiles of a row */
    uint32_t slots;
    uint32_t ahead_tiles; /* a warp's tiles asked into the L2 beyond its slots */
    bool contiguous;      /* a block's pairs are neighbours; else they lie gridDim.x apart */
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

/* Starts the copy of a tile of both rows; one lane. */
template <uint32_t TILE>
__device__ __forceinline__ void tile_copy(const linear_params &p, const block_share &share, tile_walk w,
                                          uint32_t slot, uint32_t barrier)
{
    const linear_pair rows = linear_locate(p, share.first + w.pair * share.step);
    const uint32_t bytes = tile_bytes<TILE>(p, w.chunk);
    const uint64_t at = (uint64_t)w.chunk * TILE;
    bulk_expect(barrier, rows.b ? 2 * bytes : bytes);
    bulk_copy(slot, rows.a + at, bytes, barrier);
    if (rows.b) bulk_copy(slot + TILE, rows.b + at, bytes, barrier);
}

template <uint32_t TILE>
__device__ __forceinline__ void tile_ask(const linear_params &p, const block_share &share, tile_walk w)
{
    const linear_pair rows = linear_locate(p, share.first + w.pair * share.step);
    const uint32_t bytes = tile_bytes<TILE>(p, w.chunk);
    const uint64_t at = (uint64_t)w.chunk * TILE;
    bulk_ask_l2(rows.a + at, bytes);
    if (rows.b) bulk_ask_l2(rows.b + at, bytes);
}

/* Shared memory: ring [warp][slot][2][TILE], x [chunks * elements of a tile], partial [2][PARTIAL_FLOATS],
 * 32 floats for reductions, barriers [warp][slot]. */
template <typename T, uint32_t WARPS, uint32_t TILE>
__global__ void __launch_bounds__(WARPS * 32) gemv_bulk(const __grid_constant__ bulk_params q)
{
    const linear_params &p = q.linear;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t tile_elements = TILE / sizeof(T);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *x = reinterpret_cast<float *>(shared + (size_t)WARPS * q.slots * 2 * TILE);
    float *partial = x + (size_t)q.chunks * tile_elements;
    float *scratch = partial + 2 * PARTIAL_FLOATS;
    uint64_t *barriers = reinterpret_cast<uint64_t *>(scratch + 32);
    const unsigned char *ring = shared + (size_t)warp * q.slots * 2 * TILE;
    const uint32_t ring_address = shared_address(ring);
    const uint32_t barrier_address = shared_address(barriers + warp * q.slots);
    const block_share share = share_of(q);

    let_next_start();
    tile_walk ask = {0, 0}; /* next tile to ask for */
    walk_next(ask, q.chunks, warp);
    if (lane == 0) bulk_barriers_open(barrier_address, q.slots);
    __syncwarp();
    for (uint32_t s = 0; s < q.slots; s++) {
        if (ask.pair < share.pairs && lane == 0)
            tile_copy<TILE>(p, share, ask, ring_address + s * 2 * TILE, barrier_address + 8 * s);
        walk_next(ask, q.chunks, WARPS);
    }
    if (lane < q.ahead_tiles) {
        tile_walk w = ask;
        walk_far(w, q.chunks, WARPS * lane);
        if (w.pair < share.pairs) tile_ask<TILE>(p, share, w);
    }
    /* The norm's weights wait in x's place; x is scaled by the mean square at the very end. */
    float4 *x4 = reinterpret_cast<float4 *>(x);
    x_put_norm<T>(p.norm, p.cols, x4, threadIdx.x, WARPS * 32);
    wait_for_previous();
    float squares = x_put<T>(p.x, p.norm, p.cols, x4, threadIdx.x, WARPS * 32);
    /* also the barrier after which every warp may read x */
    squares = block_sum(squares, scratch);
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
            const unsigned char *tile = ring + (size_t)slot * 2 * TILE;
            const uint32_t bytes = tile_bytes<TILE>(p, use.chunk);
            float keep = tile_sums<T, TILE>(tile, bytes, x4 + use.chunk * (tile_elements / 4));
            /* What every lane read of the slot is in its registers, since the exchange took sums of it: the
             * slot may be filled again. A barrier of the warp alone would not do: it orders loads before
             * later accesses of threads, not before those of the copy engine, and a load may wait in a queue
             * of its own. Here it costs nothing and says the order to tools that look for races. */
            __syncwarp();
            if (lane == 0 && ask.pair < share.pairs)
                tile_copy<TILE>(p, share, ask, ring_address + slot * 2 * TILE, barrier_address + 8 * slot);
            walk_next(ask, q.chunks, WARPS);
            keep = tile_fold(keep);
            if ((lane & 15) == 0) sums[((use.pair - batch) * q.chunks + use.chunk) * 2 + (lane >> 4)] = keep;
            walk_next(use, q.chunks, WARPS);
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

/* ---- launchers ------------------------------------------------------------------------------------- */

/* How the bulk kernel is run. */
struct bulk_shape {
    uint32_t warps, tile, slots, ahead_bytes;
    bool contiguous;
};
/* What measured best for whole matrices. Of a slice (some rows of a matrix, as it passes through the ring of
 * streamed weights) a block may have fewer tiles than warps: half the warps meet at barriers sooner. */
static struct bulk_shape bulk_shape_of(const struct gpuk_device *device, const struct linear_params *params)
{
    struct bulk_shape s = {16, 1024, 2, 64 * 1024, device->gemv_contiguous};
    const uint64_t pairs_a_block = div_up(params->pairs, (uint32_t)device->sm_count);
    if (pairs_a_block * ((params->row_bytes + s.tile - 1) / s.tile) <= 8) s.warps = 8;
    if (device->gemv_warps) s.warps = device->gemv_warps <= 8 ? 8 : 16;
    if (device->gemv_tile_bytes) s.tile = device->gemv_tile_bytes <= 1024 ? 1024 : 2048;
    if (device->gemv_slots > 0) s.slots = device->gemv_slots < 12 ? (uint32_t)device->gemv_slots : 12;
    if (device->gemv_ahead_bytes)
        s.ahead_bytes = device->gemv_ahead_bytes > 0 ? (uint32_t)device->gemv_ahead_bytes : 0;
    return s;
}

static size_t bulk_shared_bytes(enum dtype dtype, const struct bulk_shape *s, uint32_t chunks)
{
    const size_t tile_elements = s->tile / (dtype == DTYPE_F32 ? 4 : 2);
    return (size_t)s->warps * s->slots * (2 * s->tile + 8) +
           (chunks * tile_elements + 2 * PARTIAL_FLOATS + 32) * sizeof(float);
}

typedef void (*bulk_function)(bulk_params);
#define BULK(T)                                                                                              \
    {                                                                                                        \
        {gemv_bulk<T, 8, 1024>, gemv_bulk<T, 8, 2048>},                                                      \
        {                                                                                                    \
            gemv_bulk<T, 16, 1024>, gemv_bulk<T, 16, 2048>                                                   \
        }                                                                                                    \
    }
static const bulk_function bulk_kernel[DTYPE_COUNT][2][2] = {BULK(__nv_bfloat16), BULK(__half), BULK(float)};
typedef void (*plain_function)(linear_params);
static const plain_function plain_kernel[DTYPE_COUNT][2] = {
    {gemv_plain<__nv_bfloat16, false>, gemv_plain<__nv_bfloat16, true>},
    {gemv_plain<__half, false>, gemv_plain<__half, true>},
    {gemv_plain<float, false>, gemv_plain<float, true>}};

int gpuk_prepare_gemv(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int d = 0; d < DTYPE_COUNT && !rc; d++) {
        for (int v = 0; v < 2 && !rc; v++) rc = gpuk_prepare("gemv", plain_kernel[d][v], 0, err);
        for (int v = 0; v < 4 && !rc && device->bulk_copy; v++)
            rc = gpuk_prepare("gemv", bulk_kernel[d][v / 2][v % 2], (size_t)device->shared_bytes_max, err);
    }
    return rc;
}

int gpuk_linear_params(const char *what, const struct gpuk_linear_args *args, struct linear_params *params,
                       struct helm_err *err)
{
    if ((unsigned)args->dtype >= DTYPE_COUNT)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: weights of dtype %d", what, (int)args->dtype);
    if (args->cols == 0 || args->segments == 0 || args->segments > GPUK_SEGMENTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u columns, %u matrices (1 to %d)", what, args->cols,
                         args->segments, GPUK_SEGMENTS_MAX);
    if ((args->swiglu && (args->segments != 2 || args->segment[0].rows != args->segment[1].rows)) ||
        (args->residual && (args->swiglu || args->segments != 1)))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s: SwiGLU takes two matrices of equal rows, a residual one", what);
    *params = {};
    for (uint32_t s = 0; s < args->segments; s++) {
        const struct gpuk_linear *from = &args->segment[s];
        if (from->rows == 0 || from->rows > UINT32_MAX / 4)
            return helm_fail(err, HELM_E_LIMIT, "%s: a matrix of %u rows", what, from->rows);
        uint32_t pairs = args->swiglu ? (s == 0 ? from->rows : 0) : (from->rows + 1) / 2;
        params->pairs += pairs;
        params->segment[s] = {(const unsigned char *)from->weight, from->bias, from->out, from->rows,
                              params->pairs};
    }
    params->x = args->x;
    params->norm = args->norm;
    params->residual = args->residual;
    params->row_bytes = (uint64_t)args->cols * (args->dtype == DTYPE_F32 ? 4 : 2);
    params->cols = args->cols;
    params->segments = args->segments;
    params->x_stride = args->x_stride;
    params->out_stride = args->out_stride;
    params->eps = args->eps;
    params->swiglu = args->swiglu;
    return HELM_OK;
}

bool gpuk_linear_aligned(const struct gpuk_linear_args *args)
{
    size_t bits = (size_t)args->cols * (args->dtype == DTYPE_F32 ? 4 : 2);
    for (uint32_t s = 0; s < args->segments; s++) bits |= (size_t)args->segment[s].weight;
    return bits % 16 == 0;
}

extern "C" size_t gpuk_gemv_workspace_bytes(uint32_t cols)
{
    return GPUK_LINEAR_COUNTER_BYTES + ((size_t)cols * sizeof(float) + 255) / 256 * 256;
}

/* Whether the bulk kernel takes it, and then how. */
static bool takes_bulk(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                       const struct linear_params *params, struct bulk_shape *s, uint32_t *chunks)
{
    const size_t limit = (size_t)device->shared_bytes_max;
    *s = bulk_shape_of(device, params);
    *chunks = (uint32_t)((params->row_bytes + s->tile - 1) / s->tile);
    while (s->slots > 2 && bulk_shared_bytes(args->dtype, s, *chunks) > limit) s->slots--;
    /* devices with 99 KiB a block: long rows leave room for half the warps */
    if (s->warps > 8 && bulk_shared_bytes(args->dtype, s, *chunks) > limit) s->warps = 8;
    return device->bulk_copy && gpuk_linear_aligned(args) &&
           ((size_t)args->x | (size_t)args->norm) % 16 == 0 && *chunks <= PARTIAL_FLOATS / 2 &&
           bulk_shared_bytes(args->dtype, s, *chunks) <= limit;
}

uint32_t gpuk_gemv_bulk_warps(const struct gpuk_device *device, const struct gpuk_linear_args *args)
{
    struct linear_params params;
    struct bulk_shape s;
    uint32_t chunks;
    struct helm_err err;
    if (gpuk_linear_params("gemv", args, &params, &err)) return 0;
    return takes_bulk(device, args, &params, &s, &chunks) && s.tile == 1024 ? s.warps : 0;
}

extern "C" int gpuk_gemv(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                         void *workspace, uint32_t flags, void *stream, struct helm_err *err)
{
    struct linear_params params;
    int rc = gpuk_linear_params("gemv", args, &params, err);
    if (rc) return rc;
    struct bulk_shape s;
    uint32_t chunks;
    if (takes_bulk(device, args, &params, &s, &chunks)) {
        const uint32_t ahead = s.ahead_bytes / (s.warps * 2 * s.tile), sms = (uint32_t)device->sm_count;
        struct bulk_params bulk = {params, chunks, s.slots, ahead < 32 ? ahead : 32, s.contiguous};
        return gpuk_launch("gemv", bulk_kernel[args->dtype][s.warps == 16][s.tile == 2048],
                           dim3(sms < params.pairs ? sms : params.pairs), dim3(s.warps * 32),
                           bulk_shared_bytes(args->dtype, &s, chunks), flags, stream, err, bulk);
    }

    if (args->norm) {
        workspace = (char *)workspace + GPUK_LINEAR_COUNTER_BYTES;
        rc = gpuk_rmsnorm(NULL, 1, args->x, args->norm, args->eps, args->cols, workspace, DTYPE_F32, flags,
                          stream, err);
        if (rc) return rc;
        params.x = (const float *)workspace;
    }
    /* never early: it reads x through the L1, which must not hold what an earlier kernel left there */
    bool vector = gpuk_linear_aligned(args) && (size_t)params.x % 16 == 0;
    /* few rows: small blocks, so that every multiprocessor has some */
    uint32_t threads = PLAIN_THREADS, most = (uint32_t)device->sm_count * 8;
    while (threads > 64 && div_up(params.pairs, threads / 32) < (uint32_t)device->sm_count) threads /= 2;
    uint32_t blocks = div_up(params.pairs, threads / 32);
    return gpuk_launch("gemv", plain_kernel[args->dtype][vector], dim3(blocks < most ? blocks : most),
                       dim3(threads), 0, 0, stream, err, params);
}
