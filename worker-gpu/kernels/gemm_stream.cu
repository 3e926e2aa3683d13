/* Linear layers for 2 to 16 tokens at the speed of memory (9.0 and later, bf16 and f16).
 *
 * Columns are cut into slices, rows into groups of 8 pairs (linear.cuh); a block, one a multiprocessor, takes
 * every so many groups of one slice. Its warps have roles:
 *   producers  bring the slice's part of a group's 16 rows into a slot of the ring, a row a bulk copy. They
 *              begin before the kernel in front has finished and wait for nothing but free slots.
 *   consumers  share the slice's columns, two lines of 128 bytes a row at most each. The tokens' x of these
 *              columns stays in their registers for all groups: normalised but for the factor of the mean
 *              square, as a high and a low 16-bit part, as fragments of m16n8k16. The weights are A; which k
 *              an element of a fragment is does not matter as long as A and B agree, so 16 bytes of a row are
 *              a lane's part of two instructions. Copies are fastest to whole lines, so all rows begin in the
 *              same bank: even and odd rows take the two halves of a line in turn.
 *   reducers   take turns with groups, with a buffer each that the consumers fill: add the consumers' sums in
 *              order, put them with the other slices'. A fence and a count take microseconds while copies are
 *              in flight, so some groups share one; of the slices the last to count, whichever it is, adds
 *              all in order of slices, applies the norm's factor and stores. So the same input gives the same
 *              bits.
 * Reducers, and what a block has of the work and of shared memory, are in gemm_stream_reduce.cuh; launchers
 * below. */
#include "worker-gpu/kernels/decode.cuh"
#include "worker-gpu/kernels/gemm_stream_reduce.cuh"

/* ---- producers ---------------------------------------------------------------------------------- */

/* The slice's part of a row of the block's group i; NULL where there is none. */
__device__ __forceinline__ const unsigned char *part_of(const stream_params &q, const stream_share &s,
                                                        uint32_t i, uint32_t row)
{
    const linear_params &p = q.linear;
    const uint32_t pair = (q.first_group + s.first_group + i * s.step) * PAIRS + row % PAIRS;
    if (row >= ROWS || pair >= p.pairs) return nullptr;
    const linear_pair rows = linear_locate(p, pair);
    const unsigned char *from = row < PAIRS ? rows.a : rows.b;
    return from ? from + (uint64_t)s.first_line * LINE : nullptr;
}

__device__ __forceinline__ void produce(const stream_params &q, const stream_share &s, const stream_memory &m,
                                        uint32_t producer, bool starts_next)
{
    const uint32_t row = (threadIdx.x & 31) * q.producers + producer; /* of a group; lanes beyond are idle */
    const uint32_t to = shared_address(m.ring) + row * s.pitch;
    uint32_t slot = 0, parity = 1;
    for (uint32_t i = 0; i < s.groups; i++) {
        const unsigned char *from = part_of(q, s, i, row);
        if (i == q.slots)
            for (uint32_t j = i; j < s.groups && j < i + q.ahead; j++) {
                const unsigned char *later = part_of(q, s, j, row);
                if (later) bulk_ask_l2(later, s.bytes);
            }
        /* sums of rows that are not there are not stored */
        const uint32_t rows_there = (uint32_t)warp_sum(from ? 1.0f : 0.0f);
        if (i >= q.slots) bulk_wait(m.empty + 8 * slot, parity);
        /* not before x has been read, which copies of two blocks would delay */
        if (starts_next && i == q.slots) let_next_start();
        if ((threadIdx.x & 31) == 0) bulk_expect(m.full + 8 * slot, rows_there * s.bytes);
        __syncwarp();
        if (from) bulk_copy(to + slot * ROWS * s.pitch, from, s.bytes, m.full + 8 * slot);
        __syncwarp();
        if (++slot == q.slots) slot = 0, parity ^= 1;
    }
    if (starts_next && s.groups <= q.slots) let_next_start();
}

/* ---- consumers ---------------------------------------------------------------------------------- */

/* f16 has few exponents: x is brought near the top of its range by a power of two for each token, and sums
 * back by its inverse. */
template <typename T> struct few_exponents {
    static const bool value = false;
};
template <> struct few_exponents<__half> {
    static const bool value = true;
};
/* The power of two that brings `most` into [2^14, 2^15), or its inverse; neither is subnormal. */
__device__ __forceinline__ float range_factor(float most, bool inverse)
{
    int power = 141 - (int)(__float_as_uint(most) >> 23);
    power = power > 126 ? 126 : power;
    return __uint_as_float((uint32_t)(127 + (inverse ? -power : power)) << 23);
}

/* A consumer's x: words of columns (0, 1) to (6, 7) of a lane's 8 in each half of its lines; a lane has token
 * lane / 4 of each 8. */
template <int N> struct stream_x {
    uint32_t high[LINES][2][N][4], low[LINES][2][N][4];
};

__device__ __forceinline__ void load4(float *to, const float4 &v)
{
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
/* Words of 4 columns, as loaded, to words of the lane's own: even lanes of a pair have columns 0 to 3 and 8
 * to 11 of 16 and want 0 to 7, odd ones have 4 to 7 and 12 to 15 and want 8 to 15. */
__device__ __forceinline__ void trade(bool odd, const uint32_t *had, uint32_t *to)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t theirs = __shfl_xor_sync(0xffffffffu, odd ? had[j] : had[2 + j], 1);
        to[j] = odd ? theirs : had[j];
        to[2 + j] = odd ? had[2 + j] : theirs;
    }
}

/* The warp's columns begin at `first`. Leaves the tokens' squares and f16's inverse factors in shared memory.
 */
template <typename T, int N>
__device__ __forceinline__ void take_x(const stream_params &q, uint32_t first, uint32_t lines,
                                       float *squares_to, float *factors_to, stream_x<N> &x)
{
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
    const bool odd = lane & 1;
    /* a pair of lanes loads 32 bytes that belong together, so that the L2 is asked for them once */
    const uint32_t column = first + (lane >> 1 & 1) * 16 + odd * 4, tokens = *q.count;
    float norm[LINES][2][8], v[LINES][2][N][8], squares[N], most[N];
#pragma unroll
    for (uint32_t i = 0; i < LINES * 4; i++) {
        const uint32_t c = column + i / 2 * 32 + i % 2 * 8;
        const bool has = p.norm && i / 4 < lines && c < p.cols;
        load4(norm[i / 4][i / 2 % 2] + i % 2 * 4,
              has ? __ldg(reinterpret_cast<const float4 *>(p.norm + c)) : make_float4(1, 1, 1, 1));
    }
    wait_for_previous();
#pragma unroll
    for (uint32_t i = 0; i < LINES * 4; i++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t t = n * 8 + g, c = column + i / 2 * 32 + i % 2 * 8;
            const bool has = t < tokens && i / 4 < lines && c < p.cols;
            const float *from = p.x + (size_t)t * p.x_stride + c;
            load4(v[i / 4][i / 2 % 2][n] + i % 2 * 4,
                  has ? __ldcg(reinterpret_cast<const float4 *>(from)) : make_float4(0, 0, 0, 0));
        }
#pragma unroll
    for (int n = 0; n < N; n++) {
        squares[n] = most[n] = 0;
#pragma unroll
        for (uint32_t i = 0; i < LINES * 2; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &e = v[i / 2][i % 2][n][j];
                squares[n] += e * e;
                e *= norm[i / 2][i % 2][j];
                most[n] = fmaxf(most[n], fabsf(e));
            }
#pragma unroll
        for (int mask = 1; mask <= 2; mask <<= 1) {
            squares[n] += __shfl_xor_sync(0xffffffffu, squares[n], mask);
            most[n] = fmaxf(most[n], __shfl_xor_sync(0xffffffffu, most[n], mask));
        }
        if ((lane & 3) == 0) {
            squares_to[n * 8 + g] = squares[n];
            if (few_exponents<T>::value) factors_to[n * 8 + g] = range_factor(most[n], true);
        }
        const float factor = few_exponents<T>::value ? range_factor(most[n], false) : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < LINES * 2; i++) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float a = v[i / 2][i % 2][n][2 * j] * factor, b = v[i / 2][i % 2][n][2 * j + 1] * factor;
                const float largest = element<T>::largest(); /* a low part needs it */
                if (fabsf(a) > largest) a = copysignf(largest, a);
                if (fabsf(b) > largest) b = copysignf(largest, b);
                high[j] = element<T>::pack(a, b);
                float high_a, high_b;
                element<T>::unpack(high[j], high_a, high_b);
                low[j] = element<T>::pack(a - high_a, b - high_b);
            }
            trade(odd, high, x.high[i / 2][i % 2][n]);
            trade(odd, low, x.low[i / 2][i % 2][n]);
        }
    }
    __syncwarp(); /* for the factors */
}

__device__ __forceinline__ uint4 choose(bool first, const uint4 &a, const uint4 &b)
{
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

template <typename T, int N>
__device__ __forceinline__ void consume(const stream_params &q, const stream_share &s, const stream_memory &m,
                                        uint32_t consumer)
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, unit = lane & 3;
    const uint32_t first = s.lines * consumer / s.consumers;
    const uint32_t lines = s.lines * (consumer + 1) / s.consumers - first;
    const bool odd = g & 1;
    stream_x<N> x;
    take_x<T, N>(q, (s.first_line + first) * (LINE / 2), lines, m.squares + consumer * 8 * N,
                 m.factors + consumer * 8 * N, x);
    float factor[N][2]; /* of tokens 2 * unit and one more of each 8 */
    if (few_exponents<T>::value)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) factor[n][j] = m.factors[(consumer * N + n) * 8 + 2 * unit + j];

    const unsigned char *rows = m.ring + g * s.pitch + first * LINE + unit * 16;
    float4 *sums_to = m.sums + consumer * N * 32 + lane;
    uint32_t slot = 0, parity = 0, reducer = 0, free_parity = 1;
    for (uint32_t i = 0; i < s.groups; i++) {
        float sum[2][N][4]; /* of high and low parts: shorter chains of additions */
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[0][n][j] = sum[1][n][j] = 0;
        bulk_wait(m.full + 8 * slot, parity);
        const unsigned char *from = rows + slot * ROWS * s.pitch;
#pragma unroll
        for (uint32_t l = 0; l < LINES; l++) {
            if (l >= lines) break;
            uint4 a[2], b[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned char *at = from + l * LINE + (odd ? 64 - h * 64 : h * 64);
                a[h] = *reinterpret_cast<const uint4 *>(at);
                b[h] = *reinterpret_cast<const uint4 *>(at + PAIRS * s.pitch);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 u = choose(odd, a[1 - h], a[h]), v = choose(odd, b[1 - h], b[h]);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const uint32_t *high = x.high[l][h][n], *low = x.low[l][h][n];
                    matrix_unit<T>::add(sum[0][n], u.x, v.x, u.y, v.y, high[0], high[1]);
                    matrix_unit<T>::add(sum[1][n], u.x, v.x, u.y, v.y, low[0], low[1]);
                    matrix_unit<T>::add(sum[0][n], u.z, v.z, u.w, v.w, high[2], high[3]);
                    matrix_unit<T>::add(sum[1][n], u.z, v.z, u.w, v.w, low[2], low[3]);
                }
            }
        }
        /* every lane's reads of the slot are over: the products have taken them */
        warp_arrive(m.empty + 8 * slot);
        if (++slot == q.slots) slot = 0, parity ^= 1;

        if (i >= q.reducers) bulk_wait(m.sums_free + 8 * reducer, free_parity);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 total = make_float4(sum[0][n][0] + sum[1][n][0], sum[0][n][1] + sum[1][n][1],
                                       sum[0][n][2] + sum[1][n][2], sum[0][n][3] + sum[1][n][3]);
            if (few_exponents<T>::value)
                total.x *= factor[n][0], total.y *= factor[n][1], total.z *= factor[n][0],
                    total.w *= factor[n][1];
            sums_to[(reducer * CONSUMERS * N + n) * 32] = total;
        }
        warp_arrive(m.sums_full + 8 * reducer);
        if (++reducer == q.reducers) reducer = 0, free_parity ^= 1;
    }
}

/* ---- the kernel --------------------------------------------------------------------------------- */

/* N times 8 tokens; where two blocks are FITTING a multiprocessor, one is the next launch's, whose ring fills
 * meanwhile. */
template <typename D, int N, int FITTING>
__global__ void __launch_bounds__(FITTING == 1 ? THREADS_MAX : THREADS_SHARED, FITTING)
    gemm_stream(const __grid_constant__ stream_params q)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t warp = threadIdx.x >> 5;
    const stream_share s = share_of(q);
    const stream_memory m = memory_of<N>(q, shared, s.pitch);
    if (FITTING == 1) let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < q.slots; i++) {
            barrier_open(m.full + 8 * i, q.producers);
            barrier_open(m.empty + 8 * i, s.consumers * WARP_ARRIVALS);
        }
        for (uint32_t i = 0; i < q.reducers; i++) {
            barrier_open(m.sums_full + 8 * i, s.consumers * WARP_ARRIVALS);
            barrier_open(m.sums_free + 8 * i, WARP_ARRIVALS);
        }
        barriers_opened();
    }
    /* what lies behind the end of a row in its last line meets zeros of x and must be a number */
    const uint32_t rest = (s.lines * LINE - s.bytes) / 16;
    for (uint32_t i = threadIdx.x; i < q.slots * ROWS * rest; i += blockDim.x)
        *reinterpret_cast<uint4 *>(m.ring + i / rest * s.pitch + s.bytes + i % rest * 16) =
            make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (warp < CONSUMERS) {
        if (warp < s.consumers) consume<typename D::value, N>(q, s, m, warp);
    } else if (warp < CONSUMERS + q.reducers) {
        reduce<N>(q, s, m, warp - CONSUMERS);
    } else {
        produce(q, s, m, warp - CONSUMERS - q.reducers, FITTING > 1);
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

struct stream_shape {
    uint32_t lines, groups, slices, shares, slots, reducers, blocks;
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
static struct stream_shape shape_of(const struct gpuk_device *device, const struct linear_params *params,
                                    uint32_t tiles)
{
    struct stream_shape s = {
        (uint32_t)((params->row_bytes + LINE - 1) / LINE), div_up(params->pairs, PAIRS), 0, 0, 0, 0, 0};
    const uint32_t sms = (uint32_t)device->sm_count, least = div_up(s.lines, CONSUMERS * LINES);
    s.slices = least;
    if (device->gemm_slices > 0) {
        s.slices = (uint32_t)device->gemm_slices < least ? least : (uint32_t)device->gemm_slices;
        if (s.slices > s.lines) s.slices = s.lines;
    }
    s.shares = sms / s.slices ? sms / s.slices : 1;
    if (s.shares > s.groups) s.shares = s.groups;
    const uint64_t slot = (uint64_t)div_up(s.lines, s.slices) * LINE * ROWS;
    const uint32_t wanted = chosen(device->gemm_slots, (uint32_t)(RING_BYTES / slot), 1, SLOTS_MAX);
    s.reducers = chosen(device->gemm_reducers, REDUCERS, REDUCERS_MIN, REDUCERS_MAX);
    /* two blocks of more tokens have not enough registers, nor of more warps */
    s.blocks = tiles == 1 && s.reducers <= REDUCERS_SHARED ? chosen(device->gemm_blocks, BLOCKS, 1, 2) : 1;
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
    if (((size_t)args->x | (size_t)args->norm) % 16 != 0 || args->x_stride % 4 != 0) return false;
    const struct stream_shape s = shape_of(call.device, &call.params, call.tokens > 8 ? 2 : 1);
    return s.slots > 0 && (uint64_t)s.lines * s.slices <= UINT32_MAX &&
           fitting(call.tokens, &call.params, s.slices) > 0;
}

/* [8 tokens, 16 tokens, 8 tokens of which two blocks fit] */
template <typename D>
static void (*const stream_kernel[3])(stream_params) = {gemm_stream<D, 1, 1>, gemm_stream<D, 2, 1>,
                                                        gemm_stream<D, 1, 2>};

template <typename D> static int stream_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct gpuk_device *device = call.device;
    const uint32_t tiles = call.tokens > 8 ? 2 : 1;
    const struct stream_shape s = shape_of(device, &call.params, tiles);
    struct stream_params q = {};
    q.linear = call.params;
    q.count = call.count;
    q.counters = (uint32_t *)call.workspace;
    q.sums = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES);
    q.lines = s.lines, q.slices = s.slices, q.slots = s.slots;
    q.reducers = s.reducers;
    const uint32_t most = s.blocks > 1 || s.reducers + PRODUCERS_MAX > OTHERS_MAX ? 1 : PRODUCERS_MAX;
    q.producers = chosen(device->gemm_producers, 1, 1, most);
    q.batch = chosen(device->gemm_batch, BATCH, 1, UINT32_MAX);
    q.ahead = device->gemm_ahead > 0 ? (uint32_t)device->gemm_ahead : 0;
    const uint32_t threads = 32 * (CONSUMERS + q.reducers + q.producers);
    const size_t shared =
        (size_t)s.slots * ROWS * div_up(s.lines, s.slices) * LINE + fixed_bytes(tiles, s.slots, s.reducers);
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
#ifndef HELM_CUDA_EMULATED
    /* blocks of two launches are on a multiprocessor together only where they want the same division */
    for (int i = 0; i < 3 && !rc; i++) {
        cudaError_t code = cudaFuncSetAttribute((const void *)stream_kernel<D>[i],
                                                cudaFuncAttributePreferredSharedMemoryCarveout,
                                                cudaSharedmemCarveoutMaxShared);
        if (code != cudaSuccess) rc = gpuk_cuda_fail(err, code, "gemm");
    }
#endif
    return rc;
}

template <typename D> static constexpr struct linear_kernel stream_of()
{
    if constexpr (sizeof(typename D::value) == 2 && !D::SCALED)
        return {"stream", stream_takes<D>, stream_launch<D>, stream_prepare<D>};
    return {};
}
#define STREAM(D) stream_of<D>()
linear_kernels gemm_stream_kernels = BY_FORMAT(STREAM, {});
