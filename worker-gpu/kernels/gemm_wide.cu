/* Products of a chunk's tokens with blocks as they lie, on the matrix instructions of warpgroups (9.0): wide.cuh has the
 * loop. gpuk_blocks_run launches it for more tokens than gemm_blocks.cu takes.
 *
 * An item is 128 rows, up to 256 tokens, and of the columns one of some parts, where there would be fewer items than
 * multiprocessors. Sums of parts meet in a workspace; the last block of a tile to count, whichever it is, adds all in order
 * and stores, so that the same input gives the same bits. */
#include "worker-gpu/kernels/wide.cuh"

static const uint32_t PARTS_MAX = 16, UNIT_STEPS = 256 / WIDE_STEP;

struct wide_params {
    struct gpuk_blocks_product product;
    uint64_t row_bytes;
    uint32_t tokens, row_tiles, token_tiles, parts, units; /* of columns: whole units, but for the last */
    float4 *sums;                                          /* [tile][part][lane's quad of sums][thread] */
    uint32_t quads;                                        /* of a lane's sums in a tile, at most */
    uint32_t *counters;                                    /* [tile] parts whose sums have come */
};

struct product_work {
    const wide_params &q;
    uint32_t *before; /* in shared memory */
    uint32_t items, cols, rows;
    uint64_t row_bytes;
    const void *x;
    static const bool two = false;

    __device__ __forceinline__ void item(uint32_t index, wide_item &item) const
    {
        const uint32_t tile = index / q.parts, part = index % q.parts, all = cols / WIDE_STEP,
                       end = q.units * (part + 1) / q.parts * UNIT_STEPS,
                       from = tile % q.token_tiles * WIDE_TOKENS;
        item.weight = item.second = static_cast<const unsigned char *>(q.product.weight);
        item.row = tile / q.token_tiles * WIDE_ROWS;
        item.first = q.units * part / q.parts * UNIT_STEPS;
        item.steps = (end < all ? end : all) - item.first;
        item.begin = from, item.tokens = q.tokens - from < WIDE_TOKENS ? q.tokens - from : WIDE_TOKENS;
        item.owner = index;
    }
    __device__ __forceinline__ uint32_t source(const wide_item &item, uint32_t token) const
    {
        return item.begin + token;
    }
    /* This part's sums to the others'; whether it was the last, with all of them in order of parts. */
    template <uint32_t N> __device__ __forceinline__ bool meet(const wide_item &item, float sums[N][32]) const
    {
        const uint32_t tile = item.owner / q.parts, part = item.owner % q.parts;
        float4 *all = q.sums + (uint64_t)tile * q.parts * q.quads * WIDE_THREADS + threadIdx.x;
#pragma unroll
        for (uint32_t i = 0; i < N * 8; i++) {
            const float *s = &sums[i / 8][i % 8 * 4];
            __stcg(all + (part * q.quads + i) * WIDE_THREADS, make_float4(s[0], s[1], s[2], s[3]));
        }
        __syncthreads();
        if (threadIdx.x == 0) *before = count_arrival(q.counters + tile);
        __syncthreads();
        if (*before + 1 != q.parts) return false;
        if (threadIdx.x == 0) __stcg(q.counters + tile, 0u); /* as it was found */
#pragma unroll
        for (uint32_t i = 0; i < N * 32; i++) sums[i / 32][i % 32] = 0;
#pragma unroll 1
        for (uint32_t p = 0; p < q.parts; p++)
#pragma unroll
            for (uint32_t i = 0; i < N * 8; i++) {
                const float4 v = __ldcg(all + (p * q.quads + i) * WIDE_THREADS);
                float *s = &sums[i / 8][i % 8 * 4];
                s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
            }
        return true;
    }
    template <typename T, uint32_t N>
    __device__ __forceinline__ void put(const wide_item &item, float sums[N][32]) const
    {
        const uint32_t lane = threadIdx.x & 31, row = item.row + (threadIdx.x >> 5) * 16 + lane / 4;
        const uint64_t stride = q.product.out_stride;
        T *out = static_cast<T *>(q.product.out) + row;
        /* all that is added to is on its way before any is stored */
#pragma unroll
        for (uint32_t i = 0; q.product.accumulate && i < N * 32; i++) {
            const uint32_t s = i % 32, token = i / 32 * 64 + s / 4 * 8 + (lane & 3) * 2 + s % 2,
                           r = s / 2 % 2 * 8;
            if (token < item.tokens && row + r < rows)
                sums[i / 32][s] += element<T>::load(out[(item.begin + token) * stride + r]);
        }
#pragma unroll
        for (uint32_t i = 0; i < N * 32; i++) {
            const uint32_t s = i % 32, token = i / 32 * 64 + s / 4 * 8 + (lane & 3) * 2 + s % 2,
                           r = s / 2 % 2 * 8;
            if (token < item.tokens && row + r < rows)
                out[(item.begin + token) * stride + r] = element<T>::store(sums[i / 32][s]);
        }
    }
    template <uint32_t N>
    __device__ __forceinline__ void store(const wide_item &item, float sums[N][32]) const
    {
        if (q.parts > 1 && !meet<N>(item, sums)) return;
        if (q.product.out_dtype == DTYPE_F32)
            put<float, N>(item, sums);
        else
            put<__nv_bfloat16, N>(item, sums);
    }
};

template <typename D>
__global__ void __launch_bounds__(WIDE_THREADS, 1) gemm_wide(const __grid_constant__ wide_params q)
{
#ifdef WARPGROUP_MATRIX
    SHARED_DYNAMIC(unsigned char, shared);
    __shared__ uint32_t source[2 * WIDE_TOKENS], before;
    const product_work work = {
        q,           &before,    q.row_tiles * q.token_tiles * q.parts, q.product.cols, q.product.rows,
        q.row_bytes, q.product.x};
    const wide_loop<D, product_work> loop(work, shared, source);
    loop.run();
#endif
}

/* ---- launchers ---------------------------------------------------------------------------------------- */

struct wide_kernel {
    bool (*takes)(uint32_t cols);
    void (*kernel)(wide_params);
    uint32_t shared, align;
};
static const uint32_t OWN = 3072; /* bytes of shared memory that a block has besides */
template <typename D> static bool takes_cols(uint32_t cols)
{
    return cols % WIDE_STEP == 0 && wide_loop<D, product_work>::takes_steps(cols / WIDE_STEP);
}
template <typename D> static constexpr struct wide_kernel kernel_of()
{
    if constexpr (D::SCALED)
        return {takes_cols<D>, gemm_wide<D>, wide_loop<D, product_work>::SHARED, D::format::ALIGN};
    return {};
}
#define KERNEL(D) kernel_of<D>()
static const struct wide_kernel kernels[FORMAT_COUNT] = BY_FORMAT(KERNEL, {});

static bool fits(const struct gpuk_device *device, const struct wide_kernel &k)
{
    return device->warpgroups && k.kernel && k.shared + OWN <= (uint32_t)device->shared_bytes_max;
}

/* Parts of the columns, at least two units each: what leaves multiprocessors idle the least, and of equals the fewest. */
static uint32_t parts_of(const struct gpuk_device *device, uint32_t tiles, uint32_t units, uint32_t quads)
{
    const uint64_t sms = (uint64_t)device->sm_count,
                   each = (uint64_t)tiles * quads * WIDE_THREADS * sizeof(float4);
    uint32_t best = 1;
    uint64_t least = UINT64_MAX;
    for (uint32_t parts = 1; parts <= PARTS_MAX && (parts == 1 || 2 * parts <= units); parts++) {
        if (parts > 1 &&
            (parts * each > GPUK_MATMUL_WORKSPACE || tiles > GPUK_LINEAR_COUNTER_BYTES / sizeof(uint32_t)))
            break;
        /* steps of the longest part, what an item begins and ends with, and the meeting: all but the last leave their
         * sums, and the last reads all */
        const uint64_t time =
            ((tiles * parts + sms - 1) / sms) * (UNIT_STEPS * div_up(units, parts) + (parts > 1 ? 8 : 4)) +
            (parts > 1 ? 2 * parts : 0);
        if (time < least) least = time, best = parts;
    }
    return best;
}

extern "C" bool gpuk_wide_takes(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                                uint32_t tokens)
{
    const struct wide_kernel &k = kernels[product->format];
    return fits(device, k) && tokens > 0 && tokens <= GPUK_WIDE_TOKENS && product->rows > 0 &&
           product->dtype == DTYPE_BF16 &&
           (product->out_dtype == DTYPE_F32 || product->out_dtype == DTYPE_BF16) &&
           product->cols % tensor_format_of(product->format)->block_values == 0 && k.takes(product->cols) &&
           ((size_t)product->weight % k.align | (size_t)product->x % 16) == 0;
}

extern "C" int gpuk_wide_run(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                             uint32_t tokens, void *workspace, uint32_t *counters, void *stream,
                             struct helm_err *err)
{
    const struct wide_kernel &k = kernels[product->format];
    const uint32_t row_tiles = div_up(product->rows, WIDE_ROWS), token_tiles = div_up(tokens, WIDE_TOKENS),
                   quads = div_up(tokens < WIDE_TOKENS ? tokens : WIDE_TOKENS, 64) * 8,
                   units = div_up(product->cols, UNIT_STEPS * WIDE_STEP), tiles = row_tiles * token_tiles,
                   parts = parts_of(device, tiles, units, quads), items = tiles * parts,
                   most = (uint32_t)device->sm_count;
    const struct wide_params q = {*product,    tensor_format_row_bytes(product->format, product->cols),
                                  tokens,      row_tiles,
                                  token_tiles, parts,
                                  units,       static_cast<float4 *>(workspace),
                                  quads,       counters};
    return gpuk_launch("product with blocks", k.kernel, dim3(items < most ? items : most), dim3(WIDE_THREADS),
                       k.shared, 0, stream, err, q);
}

/* In the table of linear.cu to be asked and prepared only; gpuk_blocks_run launches it. */
template <typename D> static bool wide_take(const struct linear_call &call)
{
    return fits(call.device, kernel_of<D>()) && takes_cols<D>(call.params.cols) &&
           gpuk_linear_begins(call.args);
}
template <typename D> static int wide_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    const struct wide_kernel k = kernel_of<D>();
    return fits(device, k) ? gpuk_prepare("product with blocks", k.kernel, k.shared, err) : HELM_OK;
}
template <typename D> static constexpr struct linear_kernel linear_of()
{
    if constexpr (D::SCALED) return {"wide", wide_take<D>, nullptr, wide_prepare<D>};
    return {};
}
#define LINEAR(D) linear_of<D>()
linear_kernels gemm_wide_kernels = BY_FORMAT(LINEAR, {});
