/* Products of a chunk's tokens with blocks as they lie, on the matrix instructions of warpgroups (9.0):
 * wide.cuh has the loop. gpuk_blocks_run launches it for more tokens than gemm_blocks.cu takes.
 *
 * An item is 256 rows, up to 128 tokens, and of the columns one of some parts, where there would be fewer
 * items than multiprocessors. Sums of parts are left in a workspace; a second kernel, of all multiprocessors
 * again, adds them in order, so that the same input gives the same bits. */
#define WIDE_GROUPS 4
#include "worker-gpu/kernels/linear/wide.cuh"

static const uint32_t PARTS_MAX = 16, UNIT_STEPS = 256 / WIDE_STEP;

struct wide_params {
    struct gpuk_blocks_product product;
    uint64_t row_bytes;
    uint32_t tokens, row_tiles, token_tiles, parts, units; /* of columns: whole units, but for the last */
    float4 *sums;                                          /* [tile][part][quad of a thread's sums][thread] */
    uint32_t quads;                                        /* in a tile, at most */
};

/* A quad of a thread's sums: where it is of the tile that begins at these rows and tokens, and which of both
 * are there. */
struct wide_quad {
    uint32_t row, token; /* and 8 rows more, one token more */

    __device__ __forceinline__ wide_quad(uint32_t first_row, uint32_t first_token, uint32_t i)
    {
        const uint32_t lane = threadIdx.x & 31;
        row = first_row + (threadIdx.x >> 5) * 16 + lane / 4, token = first_token + i * 8 + (lane & 3) * 2;
    }
    template <typename T> __device__ __forceinline__ T *at(const wide_params &q, uint32_t k) const
    {
        const uint32_t r = row + k / 2 * 8, t = token + k % 2;
        if (r >= q.product.rows || t >= q.tokens) return nullptr;
        return static_cast<T *>(q.product.out) + (uint64_t)t * q.product.out_stride + r;
    }
};
/* Quads to where they belong: all that is added to is on its way before any is stored. */
template <typename T, uint32_t N>
__device__ __forceinline__ void wide_put(const wide_params &q, uint32_t row, uint32_t token, uint32_t first,
                                         float *sums)
{
#pragma unroll
    for (uint32_t i = 0; q.product.accumulate && i < N * 4; i++) {
        const T *from = wide_quad(row, token, first + i / 4).at<T>(q, i % 4);
        if (from) sums[i] += element<T>::load(*from);
    }
#pragma unroll
    for (uint32_t i = 0; i < N * 4; i++) {
        T *to = wide_quad(row, token, first + i / 4).at<T>(q, i % 4);
        if (to) *to = element<T>::store(sums[i]);
    }
}
template <uint32_t N>
__device__ __forceinline__ void wide_put_as(const wide_params &q, uint32_t row, uint32_t token,
                                            uint32_t first, float *sums)
{
    if (q.product.out_dtype == DTYPE_F32)
        wide_put<float, N>(q, row, token, first, sums);
    else
        wide_put<__nv_bfloat16, N>(q, row, token, first, sums);
}

struct product_work {
    const wide_params &q;
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
    template <uint32_t N>
    __device__ __forceinline__ void store(const wide_item &item, float sums[N][32]) const
    {
        if (q.parts == 1) {
#pragma unroll
            for (uint32_t n = 0; n < N; n++) wide_put_as<8>(q, item.row, item.begin, n * 8, sums[n]);
            return;
        }
        float4 *to = q.sums + (uint64_t)item.owner * q.quads * WIDE_THREADS + threadIdx.x;
#pragma unroll
        for (uint32_t i = 0; i < N * 8; i++) {
            const float *s = &sums[i / 8][i % 8 * 4];
            __stcg(to + i * WIDE_THREADS, make_float4(s[0], s[1], s[2], s[3]));
        }
    }
};

/* Block (quad, tile): the parts' sums of a quad of each thread, in order of parts. */
__global__ void __launch_bounds__(WIDE_THREADS) gemm_wide_sums(const __grid_constant__ wide_params q)
{
    let_next_start();
    wait_for_previous();
    const uint32_t tile = blockIdx.y, row = tile / q.token_tiles * WIDE_ROWS,
                   token = tile % q.token_tiles * WIDE_TOKENS;
    if (token + blockIdx.x * 8 >= q.tokens) return;
    const float4 *from =
        q.sums + ((uint64_t)tile * q.parts * q.quads + blockIdx.x) * WIDE_THREADS + threadIdx.x;
    float sums[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (uint32_t p = 0; p < q.parts; p++) {
        const float4 v = __ldcg(from + (uint64_t)p * q.quads * WIDE_THREADS);
        sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w;
    }
    wide_put_as<1>(q, row, token, blockIdx.x, sums);
}

template <typename D>
__global__ void __launch_bounds__(WIDE_THREADS, 1) gemm_wide(const __grid_constant__ wide_params q)
{
#ifdef WARPGROUP_MATRIX
    SHARED_DYNAMIC(unsigned char, shared);
    __shared__ uint32_t source[2 * WIDE_TOKENS];
    const product_work work = {
        q, q.row_tiles * q.token_tiles * q.parts, q.product.cols, q.product.rows, q.row_bytes, q.product.x};
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

/* Parts of the columns, at least two units each: what leaves multiprocessors idle the least, and of equals
 * the fewest. */
static uint32_t parts_of(const struct gpuk_device *device, uint32_t tiles, uint32_t units, uint32_t quads)
{
    const uint64_t sms = (uint64_t)device->sm_count,
                   each = (uint64_t)tiles * quads * WIDE_THREADS * sizeof(float4);
    uint32_t best = 1;
    uint64_t least = UINT64_MAX;
    for (uint32_t parts = 1; parts <= PARTS_MAX && (parts == 1 || 2 * parts <= units); parts++) {
        if (parts > 1 && (parts * each > GPUK_MATMUL_WORKSPACE || tiles > 65535)) break;
        /* steps of the longest part, what an item begins and ends with, and the second kernel */
        const uint64_t time = ((tiles * parts + sms - 1) / sms) * (UNIT_STEPS * div_up(units, parts) + 3) +
                              (parts > 1 ? 4 + parts * each / ((uint64_t)4 << 20) : 0);
        if (time < least) least = time, best = parts;
    }
    return best;
}

extern "C" bool gpuk_wide_takes(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                                uint32_t tokens)
{
    const struct wide_kernel &k = kernels[product->format];
    return fits(device, k) && tokens > 0 && tokens <= GPU_SUB_TOKENS && product->rows > 0 &&
           product->dtype == DTYPE_BF16 &&
           (product->out_dtype == DTYPE_F32 || product->out_dtype == DTYPE_BF16) &&
           product->cols % tensor_format_of(product->format)->block_values == 0 && k.takes(product->cols) &&
           ((size_t)product->weight % k.align | (size_t)product->x % 16) == 0;
}

extern "C" int gpuk_wide_run(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                             uint32_t tokens, void *workspace, uint32_t *, void *stream, struct helm_err *err)
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
                                  quads};
    const int rc = gpuk_launch("product with blocks", k.kernel, dim3(items < most ? items : most),
                               dim3(WIDE_THREADS), k.shared, 0, stream, err, q);
    if (rc || parts == 1) return rc;
    return gpuk_launch("product with blocks: sums", gemm_wide_sums, dim3(quads, tiles), dim3(WIDE_THREADS), 0,
                       device->early_launch ? (uint32_t)GPUK_EARLY : 0u, stream, err, q);
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
    if (!fits(device, k)) return HELM_OK;
    const int rc = gpuk_prepare("product with blocks", k.kernel, k.shared, err);
    return rc ? rc : gpuk_prepare("product with blocks: sums", gemm_wide_sums, 0, err);
}
template <typename D> static constexpr struct linear_kernel linear_of()
{
    if constexpr (D::SCALED) return {"wide", wide_take<D>, nullptr, wide_prepare<D>};
    return {};
}
#define LINEAR(D) linear_of<D>()
linear_kernels gemm_wide_kernels = BY_FORMAT(LINEAR, {});
