/* One token's small linear layers: all weights on their way at once (9.0 and later). See linear.cu.
 *
 * Where a layer's bytes take a microsecond or two, what counts is the way from the end of the kernel in front
 * to this one's. So blocks are small and all of a matrix's are resident together, beside the last ones of the
 * kernel in front. With blocks of values each warp has one pair of rows, or a part of their columns, and asks
 * for it before it waits for x; with plain numbers and few rows, as a router's, a block holds one row in
 * registers. The next kernel may begin when this one has x: it then finds places, and what it may read early
 * is older than the kernel in front. */
#include <type_traits>

#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t WARPS_MOST = 16, PARTS_MOST = 4;
static const uint32_t ROW_WARPS = 4, ROW_VALUES = 32,
                      ROWS_MOST = 512; /* of a row; of a thread; of a launch */

struct once_params {
    linear_params linear;
    uint32_t lines, parts; /* of a row; warps that share a pair */
    uint32_t each, pitch;  /* lines of a part at most; bytes from a part's first row to its second */
    bool beside;           /* GPUK_BESIDE */
};
/* Shared memory, in this order. */
struct once_memory {
    unsigned char *x, *ring; /* [lines] as blocks_x has them; [warps][2][pitch] */
    float *sums, *squares;   /* [warps][2]; [warps] */
    uint64_t *barriers;      /* [warps] */
    __host__ __device__ size_t lay(unsigned char *at, const once_params &q, uint32_t warps)
    {
        x = at, ring = x + (size_t)q.lines * blocks_x::LINE_QUADS * 16;
        sums = reinterpret_cast<float *>(ring + (size_t)warps * 2 * q.pitch), squares = sums + 2 * warps;
        barriers = reinterpret_cast<uint64_t *>(squares + (warps + 1) / 2 * 2);
        return (size_t)(reinterpret_cast<unsigned char *>(barriers + warps) - at);
    }
};

template <typename D>
__global__ void __launch_bounds__(WARPS_MOST * 32) gemv_once(const __grid_constant__ once_params q)
{
    const linear_params &p = q.linear;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
                   groups = warps / q.parts, part = warp % q.parts;
    once_memory m;
    m.lay(shared, q, warps);
    const uint32_t pair = blockIdx.x * groups + warp / q.parts, from = part * q.each * D::LINE_BYTES,
                   most = q.each * D::LINE_BYTES,
                   left = from < p.row_bytes ? (uint32_t)p.row_bytes - from : 0,
                   bytes = pair < p.pairs ? (left < most ? left : most) : 0;
    const uint32_t barrier = shared_address(m.barriers + warp);
    unsigned char *ring = m.ring + (size_t)warp * 2 * q.pitch;
    tile_place tile = {ring, ring + q.pitch};
    if (bytes > 0) {
        const linear_pair rows = linear_locate(p, pair);
        const tile_window a = tile_window_of(rows.a + from, bytes), b = tile_window_of(rows.b + from, bytes);
        if (D::LOOSE) tile.a += (size_t)(rows.a + from) & 15, tile.b += (size_t)(rows.b + from) & 15;
        if (lane == 0) {
            bulk_barriers_open(barrier, 1);
            bulk_expect(barrier, rows.b ? a.bytes + b.bytes : a.bytes);
            bulk_copy(shared_address(ring), a.from, a.bytes, barrier);
            if (rows.b) bulk_copy(shared_address(ring) + q.pitch, b.from, b.bytes, barrier);
        }
    }
    __syncwarp();
    const uint32_t mine = blockIdx.x * groups + threadIdx.x; /* the pair that this thread brings to an end */
    const bool ends = threadIdx.x < groups && mine < p.pairs;
    float2 add = make_float2(0, 0);
    if (!q.beside) {
        wait_for_previous();
        let_next_start();
        if (ends) add = linear_addends(p, mine, 0);
    }
    float4 *x4 = reinterpret_cast<float4 *>(m.x);
    const float squares = warp_sum(blocks_x::put_all(p.x, p.norm, p.cols, x4, threadIdx.x, blockDim.x));
    if (lane == 0) m.squares[warp] = squares;
    __syncthreads();
    float a = 0, b = 0;
    if (bytes > 0) {
        bulk_wait(barrier, 0);
        const float4 *x = x4 + part * q.each * D::LINE_QUADS;
#pragma unroll 1
        for (uint32_t at = 0; at < bytes; at += D::LINE_BYTES, x += D::LINE_QUADS)
            D::line_add(tile.a + at, tile.b + at, bytes - at, x, a, b);
    }
    const float sum = tile_fold(tile_halves(a, b));
    if ((lane & 15) == 0) m.sums[warp * 2 + lane / 16] = sum;
    if (q.beside) {
        wait_for_previous();
        let_next_start();
        if (ends) add = linear_addends(p, mine, 0);
    }
    __syncthreads();
    if (!ends) return;
    const float scale = norm_scale(p, m.squares, warps);
    a = b = 0;
    for (uint32_t k = 0; k < q.parts; k++) {
        const float *of = m.sums + (threadIdx.x * q.parts + k) * 2;
        a += of[0], b += of[1];
    }
    linear_store(p, mine, 0, __fmaf_rn(a, scale, add.x), __fmaf_rn(b, scale, add.y));
}

/* ---- few rows of plain numbers: a block a row */

/* A thread's units of the row, and of the norm's weights, wait in registers. */
template <typename T>
__global__ void __launch_bounds__(ROW_WARPS * 32)
    gemv_rows(const __grid_constant__ linear_params p, bool beside)
{
    const uint32_t VALUES = 16 / sizeof(T), HELD = ROW_VALUES / VALUES; /* of a unit; units of a thread */
    const uint32_t units = p.cols / VALUES, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __shared__ float dots[ROW_WARPS], sums[ROW_WARPS];
    uint32_t s = 0, of = blockIdx.x;
    while (s + 1 < p.segments && of >= p.segment[s].rows) of -= p.segment[s++].rows;
    const linear_segment &to = p.segment[s];
    const unsigned char *weight = to.weight + of * p.row_bytes;
    const auto four = [&](const float *from, uint32_t unit, uint32_t k) {
        return reinterpret_cast<const float4 *>(from + (size_t)unit * VALUES + k);
    };
    uint4 w[HELD];
    float4 norm[ROW_VALUES / 4];
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++) {
        const uint32_t unit = i * ROW_WARPS * 32 + threadIdx.x;
        const bool in = unit < units;
        w[i] = in ? load_weight16(weight + unit * 16) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t k = 0; k < VALUES; k += 4)
            norm[(i * VALUES + k) / 4] =
                in && p.norm ? __ldg(four(p.norm, unit, k)) : make_float4(1, 1, 1, 1);
    }
    if (!beside) {
        wait_for_previous();
        let_next_start();
    }
    float dot = 0, squares = 0;
    const auto add = [&](const float *f, const float4 &v, const float4 &n) {
        squares = add_squares(squares, v);
        dot += v.x * n.x * f[0] + v.y * n.y * f[1] + v.z * n.z * f[2] + v.w * n.w * f[3];
    };
    float4 x[ROW_VALUES / 4];
#pragma unroll
    for (uint32_t i = 0; i < ROW_VALUES / 4; i++) {
        const uint32_t unit = i / (VALUES / 4) * ROW_WARPS * 32 + threadIdx.x;
        x[i] = unit < units ? __ldcg(four(p.x, unit, i * 4 % VALUES)) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++) {
        float f[VALUES];
        unpack16<T>(w[i], f);
#pragma unroll
        for (uint32_t k = 0; k < VALUES; k += 4)
            add(f + k, x[(i * VALUES + k) / 4], norm[(i * VALUES + k) / 4]);
    }
    for (uint32_t unit = HELD * ROW_WARPS * 32 + threadIdx.x; unit < units; unit += ROW_WARPS * 32) {
        float f[VALUES];
        unpack16<T>(load_weight16(weight + unit * 16), f);
        for (uint32_t k = 0; k < VALUES; k += 4)
            add(f + k, __ldcg(four(p.x, unit, k)),
                p.norm ? __ldg(four(p.norm, unit, k)) : make_float4(1, 1, 1, 1));
    }
    dot = warp_sum(dot), squares = warp_sum(squares);
    if (lane == 0) dots[warp] = dot, sums[warp] = squares;
    if (beside) {
        wait_for_previous();
        let_next_start();
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    dot = squares = 0;
    for (uint32_t i = 0; i < ROW_WARPS; i++) dot += dots[i], squares += sums[i];
    if (p.norm) dot *= rsqrtf(squares / (float)p.cols + p.eps);
    to.out[of] = dot + (to.bias ? to.bias[of] : 0.0f);
}

/* ---- launchers */

/* How it is run; false: not so. */
template <typename D>
static bool once_shape(const struct linear_call &call, once_params *q, uint32_t *warps, uint32_t *blocks,
                       size_t *shared)
{
    const struct gpuk_linear_args *args = call.args;
    const struct linear_params &p = call.params;
    const uint32_t sms = (uint32_t)call.device->sm_count;
    if (!call.device->bulk_copy || call.device->gemv_slots > 0 ||
        ((size_t)args->x | (size_t)args->norm) % 16 != 0 ||
        !(D::LOOSE ? gpuk_linear_begins(args) : gpuk_linear_aligned(args)) || p.row_bytes > 1u << 20)
        return false;
    *q = {p, div_up((uint32_t)p.row_bytes, D::LINE_BYTES), 1, 0, 0, false};
    /* a warp has two lines, or one where there are warps to spare */
    while (q->parts < PARTS_MOST && (div_up(q->lines, q->parts) > 2 ||
                                     (q->lines > q->parts && p.pairs * q->parts * 2 <= sms * WARPS_MOST)))
        q->parts *= 2;
    q->each = div_up(q->lines, q->parts);
    q->pitch = (q->each * D::LINE_BYTES + (D::LOOSE ? TILE_SLACK : 0) + 15) / 16 * 16;
    *warps = div_up(p.pairs * q->parts, WARPS_MOST) < sms ? WARPS_MOST / 2 : WARPS_MOST;
    *blocks = div_up(p.pairs, *warps / q->parts);
    once_memory m;
    *shared = m.lay(nullptr, *q, *warps);
    return *shared <= half_shared(call.device) && *blocks <= 8 * sms;
}
template <typename D> static bool once_takes(const struct linear_call &call)
{
    once_params q;
    uint32_t warps, blocks;
    size_t shared;
    return once_shape<D>(call, &q, &warps, &blocks, &shared);
}
template <typename D> static int once_launch(const struct linear_call &call, struct helm_err *err)
{
    once_params q;
    uint32_t warps = 0, blocks = 0;
    size_t shared = 0;
    once_shape<D>(call, &q, &warps, &blocks, &shared);
    q.beside = call.flags & GPUK_BESIDE;
    return gpuk_launch("gemv", gemv_once<D>, dim3(blocks), dim3(warps * 32), shared, call.flags, call.stream,
                       err, q);
}
template <typename D> static int once_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy) return HELM_OK;
    const int rc = gpuk_prepare("gemv", gemv_once<D>, half_shared(device), err);
    return rc ? rc : gpuk_prefer_shared("gemv", gemv_once<D>, err);
}

static uint32_t rows_of(const struct linear_call &call)
{
    uint32_t rows = 0;
    for (uint32_t s = 0; s < call.args->segments; s++) rows += call.args->segment[s].rows;
    return rows;
}
template <typename D> static bool rows_takes(const struct linear_call &call)
{
    const struct gpuk_linear_args *args = call.args;
    return call.device->early_launch && !args->residual && !args->swiglu && gpuk_linear_aligned(args) &&
           ((size_t)args->x | (size_t)args->norm) % 16 == 0 && rows_of(call) <= ROWS_MOST;
}
template <typename D> static int rows_launch(const struct linear_call &call, struct helm_err *err)
{
    return gpuk_launch("gemv", gemv_rows<typename D::value>, dim3(rows_of(call)), dim3(ROW_WARPS * 32), 0,
                       call.flags, call.stream, err, call.params, (call.flags & GPUK_BESIDE) != 0);
}
template <typename D> static int rows_prepare(const struct gpuk_device *, struct helm_err *err)
{
    const int rc = gpuk_prepare("gemv", gemv_rows<typename D::value>, 0, err);
    return rc ? rc : gpuk_prefer_shared("gemv", gemv_rows<typename D::value>, err);
}

template <typename D> static constexpr struct linear_kernel once_of()
{
    if constexpr (std::is_same<D, decode_f16>::value || std::is_same<D, decode_f32>::value) {
        return {"rows", rows_takes<D>, rows_launch<D>, rows_prepare<D>};
    } else if constexpr (D::TILES) {
        if constexpr (D::SCALED) return {"once", once_takes<D>, once_launch<D>, once_prepare<D>};
    }
    return {};
}
#define ONCE(D) once_of<D>()
linear_kernels gemv_once_kernels = BY_FORMAT(ONCE, {});
