/* A chunk's products with experts on tensor cores, weights read as they lie (8.0 and later). See experts.h.
 *
 * Blocks of threads stay and take items in turn: an expert, some of its rows, 64 or 128 of its tokens; items
 * of the same rows are neighbours, so that weights come from memory once. Each warp has 16 rows and all
 * tokens. For gate and up these are 8 rows of each, so that both sums of an output meet in one lane. Units of
 * columns of the rows' weights, and steps of the tokens' x, come into shared memory while the ones before are
 * multiplied (fragments.cuh). */
#include "worker-gpu/kernels/experts/experts.cuh"
#include "worker-gpu/kernels/linear/fragments.cuh"

/* Tokens of an item, in eights; the more there are, the fewer columns are a step's. */
template <uint32_t N> struct chunk_tile {
    static const uint32_t TOKENS = N * 8, STEP = 1024 / N,
                          X_PITCH =
                              STEP * 2 + 64 /* eight tokens' quads lie in banks of their own, two by two */;
};

/* Columns of a unit, its bytes of a row, and from row to row in shared memory. */
template <typename D, uint32_t STEP, bool BLOCKS = D::SCALED> struct chunk_unit {
    static const uint32_t COLUMNS = 256, BYTES = COLUMNS / D::VALUES * D::format::BYTES,
                          ALIGN = D::format::ALIGN,
                          PITCH = (BYTES + (D::LOOSE ? TILE_SLACK : 0) + 15) / 32 * 32 + 16;
};
template <typename D, uint32_t STEP> struct chunk_unit<D, STEP, false> {
    static const uint32_t COLUMNS = STEP, BYTES = COLUMNS * sizeof(typename D::value), ALIGN = 16,
                          PITCH = BYTES + 64;
};

/* A block's item of work. */
struct chunk_item {
    const unsigned char *weight[2]; /* of gate and up; of down, of its first half of rows and again */
    uint32_t expert, row, begin, tokens;
};

template <typename D, uint32_t WARPS, uint32_t N> struct experts_gemm {
    static const uint32_t TOKENS = chunk_tile<N>::TOKENS, STEP = chunk_tile<N>::STEP,
                          X_PITCH = chunk_tile<N>::X_PITCH;
    typedef chunk_unit<D, STEP> unit;
    typedef typename D::value value;
    static const uint32_t ROWS = WARPS * 16, X_BYTES = TOKENS * X_PITCH, W_BYTES = ROWS * unit::PITCH,
                          SHARED = 2 * (X_BYTES + W_BYTES), STEPS = unit::COLUMNS / STEP;

    const experts_chunk_params &q;
    unsigned char *x, *w;   /* two of each */
    const uint32_t *source; /* [TOKENS] rows of x */
    chunk_item item;

    /* Rows of one role in an item. */
    __device__ __forceinline__ uint32_t rows() const { return q.down ? ROWS : ROWS / 2; }
    /* Where unit `u` of local row `row` begins; of rows that are not there, the last one's. */
    __device__ __forceinline__ const unsigned char *row_at(uint32_t row, uint32_t u) const
    {
        const uint32_t local = q.down ? row : row / 16 * 8 + row % 8, last = q.rows - 1,
                       r = item.row + local < last ? item.row + local : last;
        return item.weight[row / 8 % 2] + r * q.row_bytes + (uint64_t)u * unit::BYTES;
    }
    __device__ __forceinline__ void bring_x(uint32_t step) const
    {
        const uint32_t to = shared_address(x) + (step & 1) * X_BYTES, quads = STEP / 8;
#pragma unroll 4
        for (uint32_t at = threadIdx.x; at < TOKENS * quads; at += WARPS * 32) {
            const uint32_t token = at / quads, c = step * STEP + at % quads * 8;
            const bool there = token < item.tokens && c < q.cols;
            copy16_async(to + token * X_PITCH + at % quads * 16,
                         static_cast<const value *>(q.x) + (there ? (uint64_t)source[token] * q.cols + c : 0),
                         there);
        }
    }
    /* Each warp brings its 16 rows. */
    __device__ __forceinline__ void bring_w(uint32_t u) const
    {
        const uint32_t to = shared_address(w) + (u & 1) * W_BYTES, lane = threadIdx.x & 31,
                       warp = threadIdx.x >> 5, quads = D::SCALED ? unit::PITCH / 16 : unit::BYTES / 16;
        const uint64_t before = (uint64_t)u * unit::BYTES, left = q.row_bytes - before;
        const uint32_t bytes = left < unit::BYTES ? (uint32_t)left : unit::BYTES;
        for (uint32_t i = lane; i < 16 * quads; i += 32) {
            const uint32_t row = warp * 16 + i / quads, quad = i % quads;
            const tile_window from = tile_window_of(row_at(row, u), bytes);
            const bool there = quad * 16 < from.bytes;
            /* plain numbers after a row's end meet zeros of x and must be numbers */
            if (there || !D::SCALED)
                copy16_async(to + row * unit::PITCH + quad * 16, there ? from.from + quad * 16 : from.from,
                             there);
        }
    }
    __device__ __forceinline__ void multiply(uint32_t step, float sums[N][4]) const
    {
        const uint32_t lane = threadIdx.x & 31, group = lane >> 2, place = lane & 3, u = step / STEPS,
                       row = (threadIdx.x >> 5) * 16 + group;
        const unsigned char *at = w + (u & 1) * W_BYTES + row * unit::PITCH, *eighth = at + 8 * unit::PITCH;
        if (D::LOOSE) {
            at += (size_t)row_at(row, u) & 15;
            eighth += (size_t)row_at(row + 8, u) & 15;
        }
        const unsigned char *from = x + (step & 1) * X_BYTES + group * X_PITCH + place * 16;
#pragma unroll 1
        for (uint32_t r = 0; r < STEP / 32 && step * STEP + r * 32 < q.cols; r++) {
            uint32_t a[2][4];
            if constexpr (D::SCALED) {
                const uint32_t runs = D::VALUES / 32, in_unit = step % STEPS * (STEP / 32) + r,
                               before = in_unit / runs * D::format::BYTES;
                fragments_of_blocks<D>(at + before, eighth + before, in_unit % runs, a);
            } else {
                fragments_of_plain(at + r * 64, eighth + r * 64, a);
            }
            fragments_multiply<value, N, X_PITCH>(a, from + r * 64, item.tokens, sums);
        }
    }
    __device__ __forceinline__ void store(const float sums[N][4]) const
    {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2,
                       row = item.row + (q.down ? warp * 16 : warp * 8) + group;
        const uint64_t biases = (uint64_t)item.expert * q.rows;
        float bias[2] = {0, 0};
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float *from = q.role[q.down ? 0 : half].bias;
            const uint32_t r = q.down ? row + half * 8 : row;
            if (from && r < q.rows) bias[half] = from[biases + r];
        }
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t token = n * 8 + (lane & 3) * 2 + i;
                if (token >= item.tokens) continue;
                const uint64_t at = (uint64_t)(item.begin + token) * q.rows + row;
                const float first = sums[n][i] + bias[0], second = sums[n][2 + i] + bias[1];
                if (q.down) {
                    if (row < q.rows) static_cast<float *>(q.out)[at] = first;
                    if (row + 8 < q.rows) static_cast<float *>(q.out)[at + 8] = second;
                } else if (row < q.rows) {
                    experts_store(q, at, glu_value(q.glu, first, second));
                }
            }
    }
};

template <typename D, uint32_t WARPS, uint32_t N>
__global__ void __launch_bounds__(WARPS * 32, 2)
    experts_tensor(const __grid_constant__ experts_chunk_params q)
{
    typedef experts_gemm<D, WARPS, N> G;
    const uint32_t TOKENS = G::TOKENS;
    SHARED_DYNAMIC(unsigned char, shared);
    __shared__ uint32_t end[MODEL_EXPERTS_MAX], source[G::TOKENS];
    let_next_start();
    wait_for_previous();
    experts_tiles(q.first, q.experts, TOKENS, end);
    G g = {q, shared, shared + 2 * G::X_BYTES, source, {}};
    const uint32_t row_tiles = div_up(q.rows, g.rows()), steps = div_up(q.cols, G::STEP),
                   items = end[q.experts - 1] * row_tiles;
    for (uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
        const uint32_t e = experts_of_tile(end, q.experts, i / row_tiles), before = e ? end[e - 1] : 0,
                       tiles = end[e] - before, local = i - before * row_tiles, first = __ldcg(q.first + e),
                       all = __ldcg(q.first + e + 1) - first, from = local % tiles * TOKENS;
        const uint64_t slot = experts_slot(q.slot, q.experts, e);
        g.item.weight[0] = q.role[0].weight + slot * q.role[0].stride;
        g.item.weight[1] = q.down ? g.item.weight[0] : q.role[1].weight + slot * q.role[1].stride;
        g.item.expert = e, g.item.row = local / tiles * g.rows();
        g.item.begin = first + from, g.item.tokens = all - from < TOKENS ? all - from : TOKENS;
        __syncthreads(); /* all are through with the item before */
        if (threadIdx.x < g.item.tokens) {
            const uint32_t place = g.item.begin + threadIdx.x;
            source[threadIdx.x] = q.down ? place : __ldcg(q.pair + place) / q.chosen;
        }
        __syncthreads();
        float sums[N][4];
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) sums[n][k] = 0;
        g.bring_w(0);
        g.bring_x(0);
        copies_commit();
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            copies_wait<0>();
            __syncthreads(); /* all have what they brought, and are through with what lay there before */
            if (step + 1 < steps) g.bring_x(step + 1);
            /* the unit after this step's last, when the step begins its unit: the other place is free then */
            if (step % G::STEPS == 0 && step + G::STEPS < steps) g.bring_w(step / G::STEPS + 1);
            copies_commit();
            g.multiply(step, sums);
        }
        g.store(sums);
    }
}

/* ---- launcher ------------------------------------------------------------------------------------- */

typedef void (*tensor_function)(experts_chunk_params);
/* A kernel's block: its size and shared memory. */
struct tensor_shape {
    uint32_t warps, tokens, shared;
    tensor_function kernel;
};
template <typename D, uint32_t WARPS, uint32_t N> constexpr struct tensor_shape shape()
{
    return {WARPS, chunk_tile<N>::TOKENS, experts_gemm<D, WARPS, N>::SHARED, experts_tensor<D, WARPS, N>};
}
/* The first is for experts of many tokens, which decodes weights less often; the last for where shared memory
 * is short. */
template <typename D>
static const struct tensor_shape shapes[] = {shape<D, 8, 16>(), shape<D, 8, 8>(), shape<D, 4, 8>()};
static const uint32_t TOKENS_MANY = 96, /* of an expert on average */
    OWN = 8192;                         /* bytes of shared memory that a block has besides */

static bool fits(const struct gpuk_device *device, const struct tensor_shape &s)
{
    return s.shared + OWN <= (uint32_t)device->shared_bytes_max;
}
template <typename D> static const struct tensor_shape *shape_of(const struct experts_chunk_call &call)
{
    const bool many =
        (uint64_t)call.tokens * call.params.chosen >= (uint64_t)TOKENS_MANY * call.params.experts;
    for (const struct tensor_shape &s : shapes<D>)
        if (fits(call.device, s) && (many || s.tokens == chunk_tile<8>::TOKENS)) return &s;
    return nullptr;
}
template <typename D> static bool tensor_takes(const struct experts_chunk_call &call)
{
    const struct experts_chunk_params &p = call.params;
    size_t bits = (size_t)p.x;
    if (!D::SCALED) bits |= p.row_bytes;
    return call.device->tensor_cores && shape_of<D>(call) && bits % 16 == 0 && p.cols % 8 == 0;
}
template <typename D> static int tensor_launch(const struct experts_chunk_call &call, struct helm_err *err)
{
    const struct experts_chunk_params &p = call.params;
    const struct tensor_shape *s = shape_of<D>(call);
    const uint32_t rows = s->warps * (p.down ? 16 : 8),
                   each = 2 * (s->shared + OWN) <= (uint32_t)call.device->shared_bytes_max ? 2 : 1;
    /* no more than there can be items: every expert may have one tile that is not full */
    const uint64_t tiles = (uint64_t)call.tokens * p.chosen / s->tokens + p.experts,
                   items = tiles * div_up(p.rows, rows), most = (uint64_t)call.device->sm_count * each;
    return gpuk_launch("experts of a chunk", s->kernel, dim3((uint32_t)(items < most ? items : most)),
                       dim3(s->warps * 32), s->shared, call.flags, call.stream, err, p);
}
template <typename D> static int tensor_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const struct tensor_shape &s : shapes<D>) {
        if (!device->tensor_cores || !fits(device, s)) continue;
        if (!rc) rc = gpuk_prepare("experts of a chunk", s.kernel, s.shared, err);
        if (!rc) rc = gpuk_prefer_shared("experts of a chunk", s.kernel, err);
    }
    return rc;
}
template <typename D> static constexpr struct experts_chunk_kernel tensor_of()
{
    if constexpr (sizeof(typename D::value) == 2)
        return {"tensor", tensor_takes<D>, tensor_launch<D>, tensor_prepare<D>};
    return {};
}
#define TENSOR(D) tensor_of<D>()
experts_chunk_kernels experts_tensor_kernels = BY_FORMAT(TENSOR, {});
