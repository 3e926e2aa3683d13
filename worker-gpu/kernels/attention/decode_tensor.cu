/* Decode attention on tensor cores: caches of 16 bits and q8_0, head_dim 64, 96, 128, 256 or 512,
 * pages of whole 16 positions, 8.0 and later (512: 9.0, for its shared memory).
 *
 * A block takes one token, up to 8 query heads of one kv head and a piece of the context: a unit of
 * attention/stream.cuh. Launched from attention/decode.cu. */
#include "worker-gpu/kernels/attention/stream.cuh"

static const uint32_t THREADS = STREAM_WARPS * 32;
static const uint32_t PIECE_MIN = 256; /* positions: merging pieces costs about as much as reading these */

/* Blocks of a head that read what lies in host memory, at most: a few have the link full. */
static const uint32_t FAR_PIECES = 4;

/* The first of a row's pages [first, end) that is not in host memory, where those that are come first; by the
 * whole warp. */
__device__ __forceinline__ uint32_t page_near_from(const uint32_t *pages, uint32_t first, uint32_t end)
{
    uint32_t low = first, high = end;
    while (low < high) {
        const uint32_t step = div_up(high - low, 32), at = low + (threadIdx.x & 31) * step;
        const uint32_t near = __ballot_sync(0xffffffffu, at >= high || !(pages[at] & GPUK_PAGE_HOST));
        const uint32_t k = near ? (uint32_t)__ffs((int)near) - 1 : 32;
        if (k < 32 && low + k * step < high) high = low + k * step;
        if (k > 0) low += (k - 1) * step + 1;
    }
    return low;
}

/* A token's positions [begin, end) in pieces, one a block: those in host memory, up to `near`, and those
 * after it. */
struct context_cut {
    uint32_t begin, near, end;
    uint32_t far_pieces, far_each, pieces, near_each;
    __device__ __forceinline__ context_cut(uint32_t from, uint32_t middle, uint32_t to, uint32_t tile)
        : begin(from), near(middle), end(to), far_pieces(0), far_each(0)
    {
        if (near > begin)
            cut(near - begin, gridDim.x - 1 < FAR_PIECES ? gridDim.x - 1 : FAR_PIECES, tile, far_pieces,
                far_each);
        cut(end - near, gridDim.x - far_pieces, tile, pieces, near_each);
        pieces += far_pieces;
    }
    __device__ __forceinline__ uint32_t begin_of(uint32_t piece) const
    {
        return piece < far_pieces ? begin + piece * far_each : near + (piece - far_pieces) * near_each;
    }
    __device__ __forceinline__ uint32_t end_of(uint32_t piece) const
    {
        return piece + 1 == pieces ? end : piece + 1 == far_pieces ? near : begin_of(piece + 1);
    }

  private:
    static __device__ __forceinline__ void cut(uint32_t positions, uint32_t most, uint32_t tile,
                                               uint32_t &count, uint32_t &each)
    {
        count = div_up(positions, PIECE_MIN) < most ? div_up(positions, PIECE_MIN) : most;
        each = div_up(div_up(positions, count), tile) * tile;
        count = div_up(positions, each);
    }
};

template <typename C, int HEAD>
__global__ void __launch_bounds__(THREADS, 1) decode_tensor_kernel(const __grid_constant__ decode_params p)
{
    SHARED_DYNAMIC(unsigned char, shared);
    typedef stream_shape<C, HEAD> S;
    const gpuk_attention &a = p.a;
    const kv_layout &l = a.kv.layout;
    const uint32_t t = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t kv_head = blockIdx.y / p.group_chunks, chunk = blockIdx.y - kv_head * p.group_chunks;
    const uint32_t group = a.heads / l.kv_heads, in_group = chunk * STREAM_HEADS;
    const bool counts = t < a.step.counts[0];
    const uint32_t position = counts ? a.step.position[t] : 0, end = position + 1;
    const uint32_t row = counts ? a.step.token_row[t] : 0;
    const uint32_t *pages =
        a.step.page_table + (counts ? (size_t)a.step.row_slot[row] * a.step.pages_per_slot : 0);
    const uint32_t first = first_of(a, counts, row, position), aligned = first & ~(STREAM_GROUP - 1);
    uint32_t near = aligned; /* where a token has its bits whatever lies where, it is cut alike */
    if (counts && a.order == GPUK_ORDER_TOGETHER && gridDim.x > 1 &&
        pages[aligned / l.page_tokens] & GPUK_PAGE_HOST) {
        const uint32_t at =
            page_near_from(pages, aligned / l.page_tokens, position / l.page_tokens) * l.page_tokens;
        near = at > aligned ? at : aligned;
    }
    const context_cut cut(aligned, near, end, S::TILE);
    const bool works = counts && has_token(a, false, position) && blockIdx.x < cut.pieces;
    stream_unit u;
    u.kv_head = kv_head, u.head0 = kv_head * group + in_group;
    u.heads = group - in_group < STREAM_HEADS ? group - in_group : STREAM_HEADS;
    u.first = first, u.begin = cut.begin_of(blockIdx.x);
    u.piece = blockIdx.x, u.pieces = cut.pieces;
    u.owner = blockIdx.x == cut.pieces - 1, u.appends = chunk == 0;
    u.end = cut.end_of(blockIdx.x) - (u.owner && gpuk_own_cells(&a, p.fused) ? 1 : 0);

    const uint32_t base = u.begin + warp * S::TILE;
    if (works && base < u.end) { /* earlier positions are in the cache already: on their way while we wait */
        const uint32_t page = pages[base / l.page_tokens];
        if (!(page & GPUK_PAGE_HOST)) { /* nor absent */
            const kv_steps<C> steps(l);
            const unsigned char *rows = kv_rows(a.kv, page, 0, kv_head);
            const unsigned char *numbers = rows + (size_t)(base & (l.page_tokens - 1)) * S::ROW;
            for (uint32_t at = lane * 128; at < STREAM_GROUP * S::ROW; at += 32 * 128) {
                ask_l2(numbers + at);
                ask_l2(numbers + steps.to_values + at);
            }
            if (C::SCALED && lane < 2)
                ask_l2(rows + steps.scales_at + (size_t)(base & (l.page_tokens - 1)) * S::SCALES +
                       lane * steps.to_values);
        }
    }
    wait_for_previous();
    let_next_start();
    if (!works) return;
    stream_place place = {t,
                          position,
                          pages,
                          pages[position / l.page_tokens],
                          p.counters + (size_t)t * gridDim.y + blockIdx.y,
                          shared};
    stream_attend<C, HEAD, block_team>(p, u, place);
}

typedef void (*tensor_kernel)(decode_params);
struct tensor_shape {
    tensor_kernel kernel; /* NULL: none */
    uint32_t bytes;       /* of shared memory */
};
#define KERNEL(C, HEAD)                                                                                      \
    {                                                                                                        \
        decode_tensor_kernel<C, HEAD>, stream_memory<C, HEAD>::BYTES                                         \
    }
#define KERNELS(C)                                                                                           \
    {                                                                                                        \
        KERNEL(C, 64), KERNEL(C, 96), KERNEL(C, 128), KERNEL(C, 256), KERNEL(C, 512)                         \
    }
/* [enum kv_dtype][stream_head_dim] */
static const tensor_shape shapes[KV_DTYPE_COUNT][STREAM_DIMS] = {KERNELS(kv_plain<__nv_bfloat16>),
                                                                 KERNELS(kv_plain<__half>),
                                                                 {},
                                                                 KERNELS(kv_q8_0)};

static const tensor_shape *shape_of(const struct gpuk_kv *kv)
{
    const struct kv_layout *l = &kv->layout;
    const int dim = stream_head_dim(l->head_dim);
    if (dim < 0 || !shapes[l->dtype][dim].kernel || l->page_tokens % STREAM_GROUP != 0 ||
        ((size_t)kv->pool | (size_t)kv->pool_host) % 16 != 0)
        return NULL;
    return &shapes[l->dtype][dim];
}
uint32_t stream_bytes(const struct gpuk_kv *kv)
{
    const tensor_shape *shape = shape_of(kv);
    return shape ? shape->bytes : 0;
}

int decode_tensor_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto &type : shapes)
        for (const tensor_shape &shape : type)
            if (!rc && shape.kernel && shape.bytes <= (uint32_t)device->shared_bytes_max)
                rc = gpuk_prepare("decode attention", shape.kernel, shape.bytes, err);
    return rc;
}

bool decode_tensor_fits(const struct gpuk_device *device, const struct gpuk_attention *args)
{
    const uint32_t bytes = stream_bytes(&args->kv);
    return device->tensor_cores && bytes > 0 && bytes <= (uint32_t)device->shared_bytes_max;
}

int decode_tensor_launch(const struct gpuk_device *device, decode_params *params, uint32_t tokens,
                         uint32_t flags, void *stream, struct helm_err *err)
{
    const struct kv_layout *l = &params->a.kv.layout;
    const tensor_shape *shape = shape_of(&params->a.kv);
    params->group_chunks = div_up(params->a.heads / l->kv_heads, STREAM_HEADS);
    const uint32_t blocks = l->kv_heads * params->group_chunks;
    uint32_t splits =
        (uint32_t)device->sm_count / (blocks * (params->a.order >= GPUK_ORDER_ALONE ? 1 : tokens));
    splits = splits < 1 ? 1 : splits > GPUK_SPLITS_MAX ? GPUK_SPLITS_MAX : splits;
    return gpuk_launch("decode attention", shape->kernel, dim3(splits, blocks, tokens), dim3(THREADS),
                       shape->bytes, flags, stream, err, *params);
}
