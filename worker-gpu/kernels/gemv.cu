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

static const uint32_t PLAIN_THREADS = 256;
static const uint32_t BULK_WARPS = 8;
static const uint32_t BULK_THREADS = BULK_WARPS * 32;
static const uint32_t TILE_BYTES = 1024; /* of one row */
static const uint32_t PARTIAL_FLOATS = 1024;
static const uint32_t SLOTS_DEFAULT = 4, SLOTS_MAX = 12;
static const uint32_t AHEAD_DEFAULT = 64 * 1024;

/* ---- plain
 * ------------------------------------------------------------------------------------------------- */

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
    const uint32_t warps = gridDim.x * (PLAIN_THREADS / 32);
    for (uint32_t pair = blockIdx.x * (PLAIN_THREADS / 32) + (threadIdx.x >> 5); pair < p.pairs;
         pair += warps) {
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

/* ---- bulk
 * -------------------------------------------------------------------------------------------------- */

struct bulk_params {
    linear_params linear;
    uint32_t chunks; /* tiles of a row */
    uint32_t slots;
    uint32_t ahead_tiles; /* a warp's tiles asked into the L2 beyond its slots */
};

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Bytes of tile `chunk` of a row. */
__device__ __forceinline__ uint32_t tile_bytes(const linear_params &p, uint32_t chunk)
{
    uint64_t left = p.row_bytes - (uint64_t)chunk * TILE_BYTES;
    return left < TILE_BYTES ? (uint32_t)left : TILE_BYTES;
}

/* A warp's place in its walk over the block's tiles: warp, warp + BULK_WARPS, ... */
struct tile_walk {
    uint32_t pair, chunk; /* pair counts from the block's first */
};
__device__ __forceinline__ void walk_next(tile_walk &w, uint32_t chunks, uint32_t step)
{
    w.chunk += step;
    while (w.chunk >= chunks) w.chunk -= chunks, w.pair++;
}

__device__ __forceinline__ void tile_copy(const linear_params &p, uint32_t first_pair, tile_walk w,
                                          uint32_t slot, uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    /* weights are not read again before everything else has gone through the L2 */
    const uint64_t evict_first = 0x12F0000000000000ull;
    linear_pair rows = linear_locate(p, first_pair + w.pair);
    uint32_t bytes = tile_bytes(p, w.chunk);
    uint64_t at = (uint64_t)w.chunk * TILE_BYTES;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(rows.b ? 2 * bytes : bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(slot),
                 "l"(rows.a + at), "r"(bytes), "r"(barrier), "l"(evict_first)
                 : "memory");
    if (rows.b)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(slot + TILE_BYTES),
                     "l"(rows.b + at), "r"(bytes), "r"(barrier), "l"(evict_first)
                     : "memory");
#endif
}

__device__ __forceinline__ void tile_ask(const linear_params &p, uint32_t first_pair, tile_walk w)
{
#if __CUDA_ARCH__ >= 900
    linear_pair rows = linear_locate(p, first_pair + w.pair);
    uint32_t bytes = tile_bytes(p, w.chunk);
    uint64_t at = (uint64_t)w.chunk * TILE_BYTES;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(rows.a + at), "r"(bytes) : "memory");
    if (rows.b)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(rows.b + at), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

/* Place of float4 number f of x in shared memory. A lane's 16 bytes of 16-bit weights meet 8 floats; the
 * first and second halves of all lanes' 8 lie apart, so that neither read has bank conflicts. */
template <typename T> __device__ __forceinline__ uint32_t x_place(uint32_t f)
{
    if (sizeof(T) == 4) return f;
    return (f & ~63u) + ((f & 1) << 5) + ((f & 63) >> 1);
}

/* Shared memory: ring [warp][slot][2][TILE_BYTES], x [chunks * elements of a tile], partial
 * [2][PARTIAL_FLOATS], 32 floats for reductions, barriers [warp][slot]. */
template <typename T>
__global__ void __launch_bounds__(BULK_THREADS) gemv_bulk(const __grid_constant__ bulk_params q)
{
    const linear_params &p = q.linear;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t tile_elements = TILE_BYTES / sizeof(T);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *x = reinterpret_cast<float *>(shared + (size_t)BULK_WARPS * q.slots * 2 * TILE_BYTES);
    float *partial = x + (size_t)q.chunks * tile_elements;
    float *scratch = partial + 2 * PARTIAL_FLOATS;
    uint64_t *barriers = reinterpret_cast<uint64_t *>(scratch + 32);
    const unsigned char *ring = shared + (size_t)warp * q.slots * 2 * TILE_BYTES;
    const uint32_t ring_address = shared_address(ring),
                   barrier_address = shared_address(barriers + warp * q.slots);

    const uint32_t first_pair = (uint32_t)((uint64_t)p.pairs * blockIdx.x / gridDim.x);
    const uint32_t pairs = (uint32_t)((uint64_t)p.pairs * (blockIdx.x + 1) / gridDim.x) - first_pair;

    let_next_start();
    tile_walk ask = {0, 0}; /* next tile to ask for */
    walk_next(ask, q.chunks, warp);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        for (uint32_t s = 0; s < q.slots; s++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_address + 8 * s) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#endif
    __syncwarp();
    for (uint32_t s = 0; s < q.slots; s++) {
        if (ask.pair < pairs && lane == 0)
            tile_copy(p, first_pair, ask, ring_address + s * 2 * TILE_BYTES, barrier_address + 8 * s);
        walk_next(ask, q.chunks, BULK_WARPS);
    }
    if (lane < q.ahead_tiles) {
        tile_walk w = ask;
        walk_next(w, q.chunks, BULK_WARPS * lane);
        if (w.pair < pairs) tile_ask(p, first_pair, w);
    }
    /* The norm's weights wait in x's place; x is scaled by the mean square at the very end. */
    const uint32_t quads = p.cols / 4;
    float4 *x4 = reinterpret_cast<float4 *>(x);
    if (p.norm)
        for (uint32_t f = threadIdx.x; f < quads; f += BULK_THREADS)
            x4[x_place<T>(f)] = __ldg(reinterpret_cast<const float4 *>(p.norm) + f);

    wait_for_previous();
    float squares = 0;
    if (p.norm) {
#pragma unroll 4
        for (uint32_t f = threadIdx.x; f < quads; f += BULK_THREADS) {
            float4 v = __ldcg(reinterpret_cast<const float4 *>(p.x) + f), n = x4[x_place<T>(f)];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            x4[x_place<T>(f)] = make_float4(v.x * n.x, v.y * n.y, v.z * n.z, v.w * n.w);
        }
    } else {
#pragma unroll 4
        for (uint32_t f = threadIdx.x; f < quads; f += BULK_THREADS)
            x4[x_place<T>(f)] = __ldcg(reinterpret_cast<const float4 *>(p.x) + f);
    }
    /* also the barrier after which every warp may read x */
    squares = block_sum(squares, scratch);
    const float scale = p.norm ? rsqrtf(squares / (float)p.cols + p.eps) : 1.0f;

    tile_walk use = {0, 0};
    walk_next(use, q.chunks, warp);
    uint32_t slot = 0, parity = 0;
    const uint32_t batch_pairs = PARTIAL_FLOATS / 2 / q.chunks;
    for (uint32_t batch = 0, which = 0; batch < pairs; batch += batch_pairs, which ^= 1) {
        float *sums = partial + which * PARTIAL_FLOATS;
        const uint32_t end = batch + batch_pairs < pairs ? batch + batch_pairs : pairs;
        while (use.pair < end) {
            barrier_wait(barrier_address + 8 * slot, parity);
            const unsigned char *tile = ring + (size_t)slot * 2 * TILE_BYTES;
            const uint32_t bytes = tile_bytes(p, use.chunk);
            float a = 0, b = 0;
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t at = half * (TILE_BYTES / 2) + lane * 16;
                if (at >= bytes) continue;
                const uint32_t per_load = 16 / sizeof(T);
                uint4 wa = *reinterpret_cast<const uint4 *>(tile + at);
                uint4 wb = *reinterpret_cast<const uint4 *>(tile + TILE_BYTES + at);
                float fa[per_load], fb[per_load], fx[per_load];
                const float4 *from = x4 + (use.chunk * tile_elements + half * (tile_elements / 2)) / 4 + lane;
#pragma unroll
                for (uint32_t j = 0; j < per_load; j += 4) *reinterpret_cast<float4 *>(fx + j) = from[j * 8];
                unpack16<T>(wa, fa);
                unpack16<T>(wb, fb);
#pragma unroll
                for (uint32_t j = 0; j < per_load; j++) a += fa[j] * fx[j], b += fb[j] * fx[j];
            }
            __syncwarp(); /* every lane has read the slot: it may be filled again */
            if (lane == 0 && ask.pair < pairs)
                tile_copy(p, first_pair, ask, ring_address + slot * 2 * TILE_BYTES,
                          barrier_address + 8 * slot);
            walk_next(ask, q.chunks, BULK_WARPS);
            /* both sums in one butterfly: the lower half of the warp ends with a's, the upper with b's */
            float keep = lane < 16 ? a : b, give = lane < 16 ? b : a;
            keep += __shfl_xor_sync(0xffffffffu, give, 16);
#pragma unroll
            for (int mask = 8; mask > 0; mask >>= 1) keep += __shfl_xor_sync(0xffffffffu, keep, mask);
            if ((lane & 15) == 0) sums[((use.pair - batch) * q.chunks + use.chunk) * 2 + (lane >> 4)] = keep;
            walk_next(use, q.chunks, BULK_WARPS);
            if (++slot == q.slots) slot = 0, parity ^= 1;
        }
        __syncthreads();
        for (uint32_t i = batch + threadIdx.x; i < end; i += BULK_THREADS) {
            const float2 *from = reinterpret_cast<const float2 *>(sums) + (i - batch) * q.chunks;
            float a = 0, b = 0;
            for (uint32_t c = 0; c < q.chunks; c++) a += from[c].x, b += from[c].y;
            linear_finish(p, first_pair + i, 0, a * scale, b * scale);
        }
    }
}

/* ---- launchers
 * --------------------------------------------------------------------------------------------- */

static size_t bulk_shared_bytes(enum dtype dtype, uint32_t chunks, uint32_t slots)
{
    size_t tile_elements = TILE_BYTES / (dtype == DTYPE_F32 ? 4 : 2);
    return (size_t)BULK_WARPS * slots * (2 * TILE_BYTES + 8) +
           (chunks * tile_elements + 2 * PARTIAL_FLOATS + 32) * sizeof(float);
}

static void (*const bulk_kernel[DTYPE_COUNT])(bulk_params) = {gemv_bulk<__nv_bfloat16>, gemv_bulk<__half>,
                                                              gemv_bulk<float>};
static void (*const plain_kernel[DTYPE_COUNT][2])(linear_params) = {
    {gemv_plain<__nv_bfloat16, false>, gemv_plain<__nv_bfloat16, true>},
    {gemv_plain<__half, false>, gemv_plain<__half, true>},
    {gemv_plain<float, false>, gemv_plain<float, true>}};

int gpuk_prepare_gemv(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int d = 0; d < DTYPE_COUNT && !rc; d++) {
        for (int v = 0; v < 2 && !rc; v++) rc = gpuk_prepare("gemv", plain_kernel[d][v], 0, err);
        if (!rc && device->bulk_copy)
            rc = gpuk_prepare("gemv", bulk_kernel[d], (size_t)device->shared_bytes_max, err);
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
    return ((size_t)cols * sizeof(float) + 255) / 256 * 256;
}

static int run_bulk(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                    const struct linear_params *linear, uint32_t chunks, uint32_t slots, uint32_t flags,
                    void *stream, struct helm_err *err)
{
    uint32_t ahead = device->gemv_ahead_bytes < 0   ? 0
                     : device->gemv_ahead_bytes > 0 ? (uint32_t)device->gemv_ahead_bytes
                                                    : AHEAD_DEFAULT;
    uint32_t ahead_tiles = ahead / (BULK_WARPS * 2 * TILE_BYTES);
    struct bulk_params params = {*linear, chunks, slots, ahead_tiles < 32 ? ahead_tiles : 32};
    uint32_t blocks = (uint32_t)device->sm_count < linear->pairs ? (uint32_t)device->sm_count : linear->pairs;
    return gpuk_launch("gemv", bulk_kernel[args->dtype], dim3(blocks), dim3(BULK_THREADS),
                       bulk_shared_bytes(args->dtype, chunks, slots), flags, stream, err, params);
}

extern "C" int gpuk_gemv(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                         void *workspace, uint32_t flags, void *stream, struct helm_err *err)
{
    struct linear_params params;
    int rc = gpuk_linear_params("gemv", args, &params, err);
    if (rc) return rc;
    bool aligned = gpuk_linear_aligned(args), x_aligned = ((size_t)args->x | (size_t)args->norm) % 16 == 0;
    uint32_t chunks = (uint32_t)((params.row_bytes + TILE_BYTES - 1) / TILE_BYTES);
    uint32_t slots = device->gemv_slots ? (uint32_t)device->gemv_slots : SLOTS_DEFAULT;
    if (slots > SLOTS_MAX) slots = SLOTS_MAX;
    size_t limit = (size_t)device->shared_bytes_max;
    while (slots > 2 && bulk_shared_bytes(args->dtype, chunks, slots) > limit) slots--;
    if (device->bulk_copy && aligned && x_aligned && chunks <= PARTIAL_FLOATS / 2 &&
        bulk_shared_bytes(args->dtype, chunks, slots) <= limit)
        return run_bulk(device, args, &params, chunks, slots, flags, stream, err);

    if (args->norm) {
        rc = gpuk_rmsnorm(NULL, 1, args->x, args->norm, args->eps, args->cols, workspace, DTYPE_F32, flags,
                          stream, err);
        if (rc) return rc;
        params.x = (const float *)workspace;
    }
    /* never early: it reads x through the L1, which must not hold what an earlier kernel left there */
    bool vector = aligned && (size_t)params.x % 16 == 0;
    uint32_t blocks = div_up(params.pairs, PLAIN_THREADS / 32), most = (uint32_t)device->sm_count * 8;
    return gpuk_launch("gemv", plain_kernel[args->dtype][vector], dim3(blocks < most ? blocks : most),
                       dim3(PLAIN_THREADS), 0, 0, stream, err, params);
}
