/* Products of up to 64 tokens with blocks as they lie (8.0 and later): prefill of a short prompt, for which
 * writing the weights as 16-bit values and reading them again costs more than the products.
 *
 * A block of threads has 128 rows, and of the columns one of some parts; each of its 8 warps has 16 rows and
 * all tokens. Units of 256 columns of the rows' blocks, and steps of 128 columns of the tokens' x, come into
 * shared memory while the ones before are multiplied. A lane decodes 8 values of two rows of a run of 32
 * columns at a time, to the bf16 values that gpuk_expand writes, as fragments A of m16n8k16: which k an
 * element is does not matter as long as A and B agree, so these are 8 neighbours, and those of x beside them.
 * Where columns are in parts their sums meet in a workspace; the last block of a tile to count, whichever it
 * is, adds all in order and stores, so that the same input gives the same bits. */
#include "worker-gpu/kernels/linear/fragments.cuh"

static const uint32_t WARPS = 8, THREADS = WARPS * 32, TILE_ROWS = WARPS * 16, UNIT = 256, STEP = 128,
                      X_PITCH = STEP * 2 + 64 /* eight tokens' quads lie in banks of their own, two by two */;
static const uint32_t PARTS_MAX = 8, N = GPUK_BLOCKS_TOKENS / 8; /* tokens in eights */

struct blocks_params {
    struct gpuk_blocks_product product;
    uint64_t row_bytes;
    uint32_t tokens, tiles, parts, units; /* of columns: whole units, but for the last */
    float4 *sums;                         /* [tile][part][8 tokens][thread] */
    uint32_t *counters;                   /* [tile] parts whose sums have come */
};

/* Bytes of a unit of a row, and from row to row in shared memory: 16 bytes and a multiple of 32, so that 8
 * rows' words lie in banks of their own. */
template <typename D> __host__ __device__ constexpr uint32_t unit_bytes()
{
    return UNIT / D::VALUES * D::format::BYTES;
}
template <typename D> __host__ __device__ constexpr uint32_t unit_pitch()
{
    return (unit_bytes<D>() + (D::LOOSE ? TILE_SLACK : 0) + 15) / 32 * 32 + 16;
}

template <typename D> struct blocks_gemm {
    typedef typename D::format F;
    static const uint32_t X_BYTES = N * 8 * X_PITCH, W_PITCH = unit_pitch<D>(), W_BYTES = TILE_ROWS * W_PITCH,
                          SHARED = 2 * (X_BYTES + W_BYTES);

    const blocks_params &q;
    unsigned char *x, *w; /* two of each */
    uint32_t tile;

    __device__ __forceinline__ uint32_t rows_from() const { return tile * TILE_ROWS; }
    /* Where unit `unit` of a row of the tile begins; of rows that are not there, the last one's. */
    __device__ __forceinline__ const unsigned char *row_at(uint32_t row, uint32_t unit) const
    {
        const uint32_t last = q.product.rows - 1, r = rows_from() + row < last ? rows_from() + row : last;
        return static_cast<const unsigned char *>(q.product.weight) + r * q.row_bytes +
               (uint64_t)unit * unit_bytes<D>();
    }
    /* Every thread brings some 16 bytes of x's step, and of the warp's 16 rows. */
    __device__ __forceinline__ void bring_x(uint32_t step) const
    {
        const uint32_t to = shared_address(x) + (step & 1) * X_BYTES, quads = STEP / 8;
#pragma unroll
        for (uint32_t i = 0; i < N * 8 * quads / THREADS; i++) {
            const uint32_t at = i * THREADS + threadIdx.x, token = at / quads,
                           c = step * STEP + at % quads * 8;
            const bool there = token < q.tokens && c < q.product.cols;
            copy16_async(to + token * X_PITCH + at % quads * 16,
                         static_cast<const __nv_bfloat16 *>(q.product.x) +
                             (there ? (uint64_t)token * q.product.cols + c : 0),
                         there);
        }
    }
    __device__ __forceinline__ void bring_w(uint32_t unit) const
    {
        const uint32_t to = shared_address(w) + (unit & 1) * W_BYTES, lane = threadIdx.x & 31,
                       warp = threadIdx.x >> 5;
        const uint64_t before = (uint64_t)unit * unit_bytes<D>(), left = q.row_bytes - before;
        const uint32_t bytes = left < unit_bytes<D>() ? (uint32_t)left : unit_bytes<D>();
        for (uint32_t i = lane; i < 16 * (W_PITCH / 16); i += 32) {
            const uint32_t row = warp * 16 + i / (W_PITCH / 16), quad = i % (W_PITCH / 16);
            const tile_window from = tile_window_of(row_at(row, unit), bytes);
            if (quad * 16 < from.bytes)
                copy16_async(to + row * W_PITCH + quad * 16, from.from + quad * 16, true);
        }
    }
    __device__ __forceinline__ void multiply(uint32_t step, float sums[N][4]) const
    {
        const uint32_t lane = threadIdx.x & 31, group = lane >> 2, place = lane & 3, unit = step / 2,
                       row = (threadIdx.x >> 5) * 16 + group, runs = D::VALUES / 32;
        const unsigned char *at = w + (unit & 1) * W_BYTES + row * W_PITCH, *eighth = at + 8 * W_PITCH;
        if (D::LOOSE) {
            at += (size_t)row_at(row, unit) & 15;
            eighth += (size_t)row_at(row + 8, unit) & 15;
        }
        const unsigned char *from = x + (step & 1) * X_BYTES + group * X_PITCH + place * 16;
#pragma unroll 1
        for (uint32_t r = 0; r < STEP / 32 && step * STEP + r * 32 < q.product.cols; r++) {
            const uint32_t in_unit = step % 2 * (STEP / 32) + r, before = in_unit / runs * F::BYTES;
            uint32_t a[2][4];
            fragments_of_blocks<D>(at + before, eighth + before, in_unit % runs, a);
            fragments_multiply<__nv_bfloat16, N, X_PITCH>(a, from + r * 64, 8 * N, sums);
        }
    }
    template <typename T> __device__ __forceinline__ void put(uint32_t token, uint32_t row, float sum) const
    {
        if (token >= q.tokens || row >= q.product.rows) return;
        T *to = static_cast<T *>(q.product.out) + (uint64_t)token * q.product.out_stride + row;
        if (q.product.accumulate) sum += element<T>::load(*to);
        *to = element<T>::store(sum);
    }
    __device__ __forceinline__ void store(const float sums[N][4]) const
    {
        const uint32_t lane = threadIdx.x & 31, row = rows_from() + (threadIdx.x >> 5) * 16 + (lane >> 2);
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t token = n * 8 + (lane & 3) * 2 + i % 2;
                if (q.product.out_dtype == DTYPE_F32)
                    put<float>(token, row + i / 2 * 8, sums[n][i]);
                else
                    put<__nv_bfloat16>(token, row + i / 2 * 8, sums[n][i]);
            }
    }
    /* This part's sums to the others'; whether it was the last, with all of them in order of parts. */
    __device__ __forceinline__ bool meet(uint32_t part, float sums[N][4], uint32_t *before) const
    {
        float4 *all = q.sums + (uint64_t)tile * q.parts * N * THREADS + threadIdx.x;
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
            __stcg(all + (part * N + n) * THREADS,
                   make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]));
        __syncthreads();
        if (threadIdx.x == 0) *before = count_arrival(q.counters + tile);
        __syncthreads();
        if (*before + 1 != q.parts) return false;
        if (threadIdx.x == 0) __stcg(q.counters + tile, 0u); /* as it was found */
#pragma unroll
        for (uint32_t n = 0; n < N; n++) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (uint32_t p = 0; p < q.parts; p++) {
                const float4 v = __ldcg(all + (p * N + n) * THREADS);
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            sums[n][0] = sum.x, sums[n][1] = sum.y, sums[n][2] = sum.z, sums[n][3] = sum.w;
        }
        return true;
    }
};

template <typename D>
__global__ void __launch_bounds__(THREADS, 1) gemm_blocks(const __grid_constant__ blocks_params q)
{
    typedef blocks_gemm<D> G;
    SHARED_DYNAMIC(unsigned char, shared);
    /* parts of a tile are neighbours: they meet at about the same time */
    const uint32_t part = blockIdx.x % q.parts, first = q.units * part / q.parts * (UNIT / STEP),
                   after = q.units * (part + 1) / q.parts * (UNIT / STEP), all = div_up(q.product.cols, STEP),
                   end = after < all ? after : all;
    const G g = {q, shared, shared + 2 * G::X_BYTES, blockIdx.x / q.parts};
    float sums[N][4];
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sums[n][i] = 0;
    g.bring_w(first / 2);
    g.bring_x(first);
    copies_commit();
#pragma unroll 1
    for (uint32_t step = first; step < end; step++) {
        copies_wait<0>();
        __syncthreads(); /* all have what they brought, and are through with what lay there before */
        if (step + 1 < end) g.bring_x(step + 1);
        if (step % 2 == 0 && step + 2 < end) g.bring_w(step / 2 + 1);
        copies_commit();
        g.multiply(step, sums);
    }
    if (q.parts > 1) {
        __syncthreads();
        if (!g.meet(part, sums, reinterpret_cast<uint32_t *>(shared))) return;
    }
    g.store(sums);
}

/* ---- launchers ---------------------------------------------------------------------------------------- */

struct blocks_kernel {
    bool (*takes)(const struct gpuk_blocks_product *product);
    void (*kernel)(blocks_params);
    uint32_t shared;
};
template <typename D> static bool takes(const struct gpuk_blocks_product *product)
{
    return ((size_t)product->weight % D::format::ALIGN | (size_t)product->x % 16) == 0;
}
template <typename D> static constexpr struct blocks_kernel kernel_of()
{
    if constexpr (D::SCALED) return {takes<D>, gemm_blocks<D>, blocks_gemm<D>::SHARED};
    return {};
}
#define KERNEL(D) kernel_of<D>()
static const struct blocks_kernel kernels[FORMAT_COUNT] = BY_FORMAT(KERNEL, {});

/* Parts of the columns: what leaves multiprocessors idle the least, and of equals the fewest. */
static uint32_t parts_of(const struct gpuk_device *device, uint32_t tiles, uint32_t units)
{
    const uint64_t sms = (uint64_t)device->sm_count, room = GPUK_MATMUL_WORKSPACE,
                   each = (uint64_t)tiles * GPUK_BLOCKS_TOKENS * TILE_ROWS * sizeof(float);
    uint32_t best = 1;
    uint64_t least = UINT64_MAX;
    for (uint32_t parts = 1; parts <= PARTS_MAX && parts <= units; parts++) {
        if (parts > 1 && (parts * each > room || tiles > GPUK_LINEAR_COUNTER_BYTES / sizeof(uint32_t))) break;
        /* units of the longest part, rounds of blocks, and what meeting costs */
        const uint64_t time =
            ((tiles * parts + sms - 1) / sms) * (4 * div_up(units, parts) + (parts > 1 ? 6 : 2));
        if (time < least) least = time, best = parts;
    }
    return best;
}

extern "C" bool gpuk_blocks_takes(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                                  uint32_t tokens)
{
    const struct blocks_kernel *k = &kernels[product->format];
    if (tokens > GPUK_BLOCKS_TOKENS)
        return tokens <= GPUK_WIDE_TOKENS && gpuk_wide_takes(device, product, tokens);
    return device->tensor_cores && k->takes && product->rows > 0 &&
           product->cols % tensor_format_of(product->format)->block_values == 0 &&
           product->dtype == DTYPE_BF16 &&
           (product->out_dtype == DTYPE_F32 || product->out_dtype == DTYPE_BF16) &&
           k->shared <= (uint32_t)device->shared_bytes_max && k->takes(product);
}

extern "C" int gpuk_blocks_run(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                               uint32_t tokens, void *workspace, uint32_t *counters, void *stream,
                               struct helm_err *err)
{
    if (!gpuk_blocks_takes(device, product, tokens))
        return helm_fail(err, HELM_E_UNSUPPORTED, "product of %u tokens with %u rows of %u columns of %s",
                         tokens, product->rows, product->cols, tensor_format_name(product->format));
    if (tokens > GPUK_BLOCKS_TOKENS)
        return gpuk_wide_run(device, product, tokens, workspace, counters, stream, err);
    const uint32_t tiles = div_up(product->rows, TILE_ROWS), units = div_up(product->cols, UNIT),
                   parts = parts_of(device, tiles, units);
    const struct blocks_params q = {*product,
                                    tensor_format_row_bytes(product->format, product->cols),
                                    tokens,
                                    tiles,
                                    parts,
                                    units,
                                    static_cast<float4 *>(workspace),
                                    counters};
    const struct blocks_kernel *k = &kernels[product->format];
    return gpuk_launch("product with blocks", k->kernel, dim3(tiles * parts), dim3(THREADS), k->shared, 0,
                       stream, err, q);
}

/* In the table of linear.cu to be asked and prepared only; gpuk_blocks_run launches it. */
template <typename D> static bool blocks_take(const struct linear_call &call)
{
    return call.device->tensor_cores && kernel_of<D>().shared <= (uint32_t)call.device->shared_bytes_max &&
           gpuk_linear_begins(call.args);
}
template <typename D> static int blocks_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    const struct blocks_kernel k = kernel_of<D>();
    if (!device->tensor_cores || k.shared > (uint32_t)device->shared_bytes_max) return HELM_OK;
    return gpuk_prepare("product with blocks", k.kernel, k.shared, err);
}
template <typename D> static constexpr struct linear_kernel linear_of()
{
    if constexpr (D::SCALED) return {"blocks", blocks_take<D>, nullptr, blocks_prepare<D>};
    return {};
}
#define LINEAR(D) linear_of<D>()
linear_kernels gemm_blocks_kernels = BY_FORMAT(LINEAR, {});
