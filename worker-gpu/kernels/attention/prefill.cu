/* Prefill attention over paged KV: many queries, causal, windowed, with any context before them.
 *
 *   plain    a warp takes one query of one head, lane = dimension. Any head_dim and cache dtype, every
 *            device.
 *   tensor   (8.0 and later, 16 bits and q8_0, head_dim 64, 128, 256 or 512) FlashAttention-2's shape (Dao 2023): a
 *            block takes 64 queries of one head, four warps of 16; keys and values come in tiles of 64 positions
 *            (kv_tile.cuh), by asynchronous copies that follow the page table, the next while one is computed with;
 *            scores live in registers only. Tiles of long sequences are taken last first: the longest work starts
 *            earliest.
 *
 * Of head_dim 512 two warps share 16 queries: each multiplies half of the dimensions, they add their scores in shared memory,
 * and each has half of the outputs. Keys and values of a tile are copied in turns, one while the other is computed with.
 *
 * Of an attention in parts a block takes up its numbers where the launch before has left them, and leaves them again.
 *
 * Launchers below; worker-gpu/kernels/kernels.h says what they mean. */
#include <type_traits>

#include "worker-gpu/kernels/attention/kv_tile.cuh"
#include "worker-gpu/kernels/attention/rope.cuh"

static const uint32_t TILE = PREFILL_TILE; /* queries of a block, and positions of a key tile */
static_assert(PREFILL_TILE == GPU_PREFILL_TILE, "pieces are whole tiles");
static const uint32_t THREADS = 128, WARPS = THREADS / 32; /* of the plain kernel */
static const uint32_t EXCHANGE_BYTES =
    8 * 32 * (TILE / 2) * 4; /* two warps' scores of 16 queries, four times */
static const float LOG2E = 1.44269504088896341f;

struct prefill_params {
    gpuk_attention a;
    const void *q;
    void *out;
    int out_dtype;
    gpuk_part part;
};

__device__ __forceinline__ void store_out(const prefill_params &p, size_t at, float v)
{
    v *= gate_at(p.a, at);
    if (p.out_dtype == DTYPE_BF16)
        ((__nv_bfloat16 *)p.out)[at] = __float2bfloat16_rn(v);
    else if (p.out_dtype == DTYPE_F16)
        ((__half *)p.out)[at] = __float2half_rn(v);
    else
        ((float *)p.out)[at] = v;
}
__device__ __forceinline__ void store_out2(const prefill_params &p, size_t at, float v, float w)
{
    v *= gate_at(p.a, at), w *= gate_at(p.a, at + 1);
    if (p.out_dtype == DTYPE_BF16)
        *(uint32_t *)((__nv_bfloat16 *)p.out + at) = element<__nv_bfloat16>::pack(v, w);
    else if (p.out_dtype == DTYPE_F16)
        *(uint32_t *)((__half *)p.out + at) = element<__half>::pack(v, w);
    else
        *(float2 *)((float *)p.out + at) = make_float2(v, w);
}

/* What a launch of several does for queries whose first position in the cache is `first`, a tile's. */
struct part_work {
    uint32_t from, to; /* positions */
    bool resumes;
};
__device__ __forceinline__ bool is_last(const gpuk_part &part)
{
    return !part.before || part.piece == GPUK_PART_LAST;
}
__device__ __forceinline__ part_work part_of(const prefill_params &p, uint32_t row, uint32_t first)
{
    part_work w;
    gpuk_part_span(&p.part, row, p.a.kv.layout.page_tokens, &w.from, &w.to);
    w.resumes = w.from > first;
    if (!w.resumes) w.from = first;
    return w;
}

__device__ __forceinline__ const uint32_t *pages_of(const gpuk_step &s, uint32_t row)
{
    return s.page_table + (size_t)s.row_slot[row] * s.pages_per_slot;
}

/* ---- plain -------------------------------------------------------------------------------------- */

/* N: dimensions that a lane holds. */
template <typename C, uint32_t N>
__global__ void __launch_bounds__(THREADS) attention_plain(const __grid_constant__ prefill_params p)
{
    let_next_start();
    wait_for_previous();
    const gpuk_attention &a = p.a;
    const uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    const uint32_t head_dim = a.kv.layout.head_dim, page_tokens = a.kv.layout.page_tokens;
    if (t >= a.step.counts[0] || head >= a.heads) return;
    const uint32_t position = a.step.position[t], kv_head = head / (a.heads / a.kv.layout.kv_heads);
    const uint32_t *pages = pages_of(a.step, a.step.token_row[t]);
    const uint32_t first = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
    const part_work part = part_of(p, a.step.token_row[t], first);
    if (part.from >= part.to) return;
    const size_t at = ((size_t)t * a.heads + head) * head_dim;
    float *state = p.part.state + ((size_t)t * a.heads + head) * GPU_PART_FLOATS;
    typedef typename C::query query;
    const kv_steps<C> steps(a.kv.layout);
    float q[N], o[N], m = -INFINITY, s = 0;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        uint32_t d = lane + 32 * j;
        q[j] = d < head_dim ? element<query>::load(((const query *)p.q)[at + d]) * a.scale : 0.0f;
        o[j] = part.resumes && d < head_dim ? p.part.o[at + d] : 0.0f;
    }
    if (part.resumes) m = state[0], s = state[1];
    for (uint32_t i = part.from; i <= position && i < part.to; i++) {
        uint32_t page = pages[i / page_tokens];
        const unsigned char *rows = kv_rows(a.kv, page, 0, kv_head);
        const unsigned char *k = rows + (size_t)(i % page_tokens) * steps.number, *v = k + steps.to_values;
        const unsigned char *k_scales = rows + steps.scales_at + (size_t)(i % page_tokens) * steps.scale;
        const unsigned char *v_scales = k_scales + steps.to_values;
        float x = 0;
#pragma unroll
        for (uint32_t j = 0; j < N; j++)
            if (lane + 32 * j < head_dim) x += q[j] * C::number(k, k_scales, lane + 32 * j);
        x = warp_sum(x);
        float most = fmaxf(m, x), keep = expf(m - most), w = expf(x - most);
        m = most;
        s = s * keep + w;
#pragma unroll
        for (uint32_t j = 0; j < N; j++)
            if (lane + 32 * j < head_dim) o[j] = o[j] * keep + w * C::number(v, v_scales, lane + 32 * j);
    }
    if (a.sinks && is_last(p.part)) s += expf(a.sinks[head] - m);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        if (lane + 32 * j >= head_dim) continue;
        if (is_last(p.part))
            store_out(p, at + lane + 32 * j, o[j] / s);
        else
            p.part.o[at + lane + 32 * j] = o[j];
    }
    if (!is_last(p.part) && lane == 0) state[0] = m, state[1] = s;
}

/* ---- tensor ------------------------------------------------------------------------------------- */

/* The queries of a thread between two launches: `query` and the one 8 further, if they are among the block's; its dimensions
 * begin with first_dim. */
struct part_query {
    uint32_t token0, query, queries, head, first_dim;
};

/* A thread's outputs of WIDE dimensions, maxima and its own shares of the sums. c: its first dimension of each 8. */
template <int HEAD, int WIDE>
__device__ __forceinline__ void part_load(const prefill_params &p, const part_query &of, uint32_t c,
                                          float (&o)[WIDE / 8][4], float (&m)[2], float (&s)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (of.query + r * 8 >= of.queries) continue;
        const size_t at = (size_t)(of.token0 + of.query + r * 8) * p.a.heads + of.head;
        m[r] = p.part.state[at * GPU_PART_FLOATS];
        s[r] = p.part.state[at * GPU_PART_FLOATS + 1 + c / 2];
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++) {
            const float2 two = *(const float2 *)(p.part.o + at * HEAD + of.first_dim + n * 8 + c);
            o[n][2 * r] = two.x;
            o[n][2 * r + 1] = two.y;
        }
    }
}
template <int HEAD, int WIDE>
__device__ __forceinline__ void part_store(const prefill_params &p, const part_query &of, uint32_t c,
                                           const float (&o)[WIDE / 8][4], const float (&m)[2],
                                           const float (&s)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (of.query + r * 8 >= of.queries) continue;
        const size_t at = (size_t)(of.token0 + of.query + r * 8) * p.a.heads + of.head;
        if (c == 0 && of.first_dim == 0) p.part.state[at * GPU_PART_FLOATS] = m[r];
        if (of.first_dim == 0) p.part.state[at * GPU_PART_FLOATS + 1 + c / 2] = s[r];
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++)
            *(float2 *)(p.part.o + at * HEAD + of.first_dim + n * 8 + c) =
                make_float2(o[n][2 * r], o[n][2 * r + 1]);
    }
}

/* A warp's scores and those of the other one with its queries, added: x[n][i] is of the same query and position in both. */
__device__ __forceinline__ void add_scores(float (&x)[TILE / 8][4], unsigned char *exchange, uint32_t warp,
                                           uint32_t lane, bool put)
{
    float4 *own = (float4 *)exchange + warp * (TILE / 8) * 32 + lane,
           *other = (float4 *)exchange + (warp ^ 4) * (TILE / 8) * 32 + lane;
#pragma unroll
    for (int n = 0; n < (int)TILE / 8; n++) {
        if (put) {
            own[n * 32] = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
            continue;
        }
        const float4 more = other[n * 32];
        x[n][0] += more.x, x[n][1] += more.y, x[n][2] += more.z, x[n][3] += more.w;
    }
}

template <typename C, int HEAD>
__global__ void __launch_bounds__(prefill_sides<HEAD>::THREADS, prefill_tile<C, HEAD>::BLOCKS)
    attention_tensor(const __grid_constant__ prefill_params p)
{
    SHARED_DYNAMIC(unsigned char, memory);
    typedef typename C::query T;
    const gpuk_attention &a = p.a;
    const int SIDES = prefill_sides<HEAD>::SIDES, WIDE = HEAD / SIDES; /* a warp's dimensions */
    const bool IN_PLACE = prefill_tile<C, HEAD>::IN_PLACE, IN_TURNS = IN_PLACE && SIDES > 1;
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = (lane & 3) * 2;
    const uint32_t warp = threadIdx.x >> 5 & 3,
                   side = threadIdx.x >> 7; /* of its queries; of its dimensions */
    const uint32_t tile_bytes = TILE * HEAD * 2, shared = shared_address(memory);
    let_next_start();
    wait_for_previous();

    /* which sequence and which 64 of its tokens */
    const uint32_t rows = a.step.counts[1];
    uint32_t row = 0, tile = blockIdx.x, tiles = 0;
    for (; row < rows; row++) {
        tiles = (a.step.row_first[row + 1] - a.step.row_first[row] + TILE - 1) / TILE;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (row >= rows) return;
    tile = tiles - 1 - tile;
    const uint32_t token0 = a.step.row_first[row] + tile * TILE, token_end = a.step.row_first[row + 1];
    const uint32_t queries = token_end - token0 < TILE ? token_end - token0 : TILE;
    const uint32_t position0 = a.step.position[token0];
    uint32_t end = position0 + queries;
    const uint32_t head = blockIdx.y, kv_head = head / (a.heads / a.kv.layout.kv_heads);
    const uint32_t *pages = pages_of(a.step, row);
    const uint32_t first = a.window && position0 + 1 > a.window ? position0 + 1 - a.window : 0;
    const part_work part = part_of(p, row, first / TILE * TILE);
    if (part.from >= part.to) return;
    if (end > part.to) end = part.to;

    /* q waits in the second stage's place until it is in registers; a tile that is not fetched in place comes behind
     * it, in the bytes of half a stage, and becomes the first stage's rows. Where two warps share queries there is one stage:
     * q waits in it, and scores on their way between warps come behind it */
    const uint32_t stage_bytes = 2 * tile_bytes, units = HEAD / 8;
    const uint32_t q_at = SIDES > 1 ? 0 : stage_bytes,
                   raw = stage_bytes + (SIDES > 1 ? EXCHANGE_BYTES : tile_bytes);
    unsigned char *exchange = memory + stage_bytes;
    prefill_tile<C, HEAD> cells;
    const auto fetch = [&](uint32_t from, uint32_t stage) {
        const tile_source source = {a.kv, pages, kv_head, from, end};
        if constexpr (IN_PLACE)
            cells.fetch(source, shared + stage * stage_bytes, shared + stage * stage_bytes + tile_bytes);
        else
            cells.fetch(source, shared + raw, shared + raw + TILE * HEAD);
        copies_commit();
    };
    const auto fetch_one = [&](uint32_t from, auto keys) {
        const tile_source source = {a.kv, pages, kv_head, from, end};
        if constexpr (IN_TURNS)
            cells.template fetch<keys.value, !keys.value>(source, shared, shared + tile_bytes);
        copies_commit();
    };
    const std::true_type of_keys;
    const std::false_type of_values;
    for (uint32_t i = threadIdx.x; i < TILE * units; i += prefill_sides<HEAD>::THREADS) {
        const uint32_t r = i / units, unit = i % units;
        const T *from =
            (const T *)p.q + ((size_t)(token0 + (r < queries ? r : 0)) * a.heads + head) * HEAD + unit * 8;
        copy16_async(shared + q_at + tile_unit<HEAD>(r, unit), from, r < queries);
    }
    copies_commit();
    uint32_t base = part.from;
    if constexpr (!IN_TURNS) fetch(base, 0);
    copies_wait<IN_TURNS ? 0 : 1>();
    __syncthreads();
    uint32_t q[WIDE / 16][4];
    const uint32_t first_unit = side * (WIDE / 8);
#pragma unroll
    for (uint32_t k = 0; k < WIDE / 16; k++)
        load_matrices(q[k], shared + q_at +
                                tile_unit<HEAD>(warp * 16 + (lane & 15), first_unit + k * 2 + (lane >> 4)));
    __syncthreads();
    if constexpr (IN_TURNS) fetch_one(base, of_keys), fetch_one(base, of_values);

    float o[WIDE / 8][4], m[2] = {-INFINITY, -INFINITY}, s[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < WIDE / 8; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    const part_query mine = {token0, warp * 16 + g, queries, head, side * WIDE};
    if (part.resumes) part_load<HEAD, WIDE>(p, mine, c, o, m, s);
    const float scale = a.scale * LOG2E;
    const uint32_t my_position = position0 + warp * 16 + g; /* of sum rows 0; rows 1 are 8 further */

    for (uint32_t stage = 0; base < end; base += TILE, stage ^= IN_PLACE && !IN_TURNS) {
        const uint32_t keys = shared + stage * stage_bytes, values = keys + tile_bytes;
        if constexpr (IN_TURNS) {
            copies_wait<1>(); /* keys; values may be on their way */
        } else if constexpr (IN_PLACE) {
            if (base + TILE < end)
                fetch(base + TILE, stage ^ 1);
            else
                copies_commit();
            copies_wait<1>();
        } else {
            copies_wait<0>();
            cells.settle(memory + raw, memory, memory + tile_bytes);
            if (base + TILE < end) fetch(base + TILE, 0);
        }
        __syncthreads();

        float x[TILE / 8][4];
#pragma unroll
        for (int n = 0; n < (int)TILE / 8; n++) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
#pragma unroll
        for (uint32_t k = 0; k < WIDE / 16; k++) {
#pragma unroll
            for (uint32_t n = 0; n < TILE / 16; n++) {
                uint32_t b[4]; /* positions n * 16 .. + 8 and + 8 .. + 16, each of two halves of k */
                load_matrices(b, keys + tile_unit<HEAD>(n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                        first_unit + k * 2 + (lane >> 3 & 1)));
                matrix_unit<T>::add(x[2 * n], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
                matrix_unit<T>::add(x[2 * n + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
            }
        }
        if constexpr (SIDES > 1) {
            add_scores(x, exchange, threadIdx.x >> 5, lane, true);
            __syncthreads(); /* scores are there; keys may be overwritten */
            if constexpr (IN_TURNS) {
                if (base + TILE < end)
                    fetch_one(base + TILE, of_keys);
                else
                    copies_commit();
            }
            add_scores(x, exchange, threadIdx.x >> 5, lane, false);
        }
        const bool edge =
            base + TILE > position0 + warp * 16 + 1 || base < first + TILE + (a.window ? TILE : 0);
#pragma unroll
        for (int n = 0; n < (int)TILE / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[n][i] *= scale;
                if (edge) {
                    const uint32_t at = base + n * 8 + c + (i & 1), mine = my_position + (i >> 1) * 8;
                    if (at > mine || (a.window && at + a.window <= mine)) x[n][i] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = m[r];
#pragma unroll
            for (int n = 0; n < (int)TILE / 8; n++) most = fmaxf(most, fmaxf(x[n][2 * r], x[n][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            /* a row that has seen nothing yet (window) keeps exponents defined */
            const float from = most == -INFINITY ? 0.0f : most, keep = exp2f(m[r] - from);
            m[r] = most;
            s[r] *= keep;
#pragma unroll
            for (int n = 0; n < (int)TILE / 8; n++) {
                x[n][2 * r] = exp2f(x[n][2 * r] - from);
                x[n][2 * r + 1] = exp2f(x[n][2 * r + 1] - from);
                s[r] += x[n][2 * r] + x[n][2 * r + 1];
            }
#pragma unroll
            for (int n = 0; n < WIDE / 8; n++) o[n][2 * r] *= keep, o[n][2 * r + 1] *= keep;
        }
        if constexpr (IN_TURNS) {
            copies_wait<1>(); /* values; the next keys may be on their way */
            __syncthreads();
        }
#pragma unroll
        for (uint32_t k = 0; k < TILE / 16; k++) {
            const uint32_t a0 = element<T>::pack(x[2 * k][0], x[2 * k][1]),
                           a1 = element<T>::pack(x[2 * k][2], x[2 * k][3]);
            const uint32_t a2 = element<T>::pack(x[2 * k + 1][0], x[2 * k + 1][1]);
            const uint32_t a3 = element<T>::pack(x[2 * k + 1][2], x[2 * k + 1][3]);
#pragma unroll
            for (uint32_t n = 0; n < WIDE / 16; n++) {
                uint32_t b[4]; /* dimensions n * 16 .. + 8 and + 8 .. + 16, each of two halves of positions */
                load_matrices_transposed(b, values + tile_unit<HEAD>(k * 16 + (lane & 15),
                                                                     first_unit + n * 2 + (lane >> 4)));
                matrix_unit<T>::add(o[2 * n], a0, a1, a2, a3, b[0], b[1]);
                matrix_unit<T>::add(o[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
        __syncthreads(); /* the stage may be filled again */
        if constexpr (IN_TURNS) {
            if (base + TILE < end)
                fetch_one(base + TILE, of_values);
            else
                copies_commit();
        }
    }
    if (!is_last(p.part)) {
        part_store<HEAD, WIDE>(p, mine, c, o, m, s);
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s[r] += __shfl_xor_sync(0xffffffffu, s[r], 1);
        s[r] += __shfl_xor_sync(0xffffffffu, s[r], 2);
        const uint32_t query = warp * 16 + g + r * 8;
        if (query >= queries) continue;
        if (a.sinks && s[r] > 0) s[r] += exp2f(a.sinks[head] * LOG2E - m[r]);
        const float inverse = s[r] > 0 ? 1.0f / s[r] : 0.0f;
        const size_t at = ((size_t)(token0 + query) * a.heads + head) * HEAD + mine.first_dim + c;
#pragma unroll
        for (int n = 0; n < WIDE / 8; n++)
            store_out2(p, at + n * 8, o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse);
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

typedef void (*prefill_kernel)(prefill_params);
#define PLAIN(C)                                                                                             \
    {                                                                                                        \
        attention_plain<C, HEAD_STEPS>, attention_plain<C, HEAD_STEPS_WIDE>                                  \
    }
/* [enum kv_dtype][the head is wide] */
static const prefill_kernel plain_kernels[KV_DTYPE_COUNT][2] = BY_KV_DTYPE(PLAIN);

struct tensor_shape {
    uint32_t head_dim, threads, bytes; /* of shared memory */
    prefill_kernel kernel;
};
template <typename C, int HEAD> static constexpr tensor_shape shape()
{
    const uint32_t tile_bytes = TILE * HEAD * 2, raw = prefill_tile<C, HEAD>::IN_PLACE ? 0 : tile_bytes;
    return {HEAD, prefill_sides<HEAD>::THREADS,
            prefill_sides<HEAD>::SIDES > 1 ? 2 * tile_bytes + EXCHANGE_BYTES + raw : 4 * tile_bytes,
            attention_tensor<C, HEAD>};
}
#define TENSOR(C)                                                                                            \
    {                                                                                                        \
        shape<C, 64>(), shape<C, 128>(), shape<C, 256>(), shape<C, 512>()                                    \
    }
/* [enum kv_dtype]; none for f32 */
static const tensor_shape tensor_shapes[KV_DTYPE_COUNT][4] = {TENSOR(kv_plain<__nv_bfloat16>),
                                                              TENSOR(kv_plain<__half>),
                                                              {},
                                                              TENSOR(kv_q8_0)};

static bool fits(const struct gpuk_device *device, const tensor_shape &shape)
{
    return device->tensor_cores && shape.kernel && shape.bytes <= (uint32_t)device->shared_bytes_max;
}
/* How tensor cores take heads of this size; NULL: they do not, or the device lacks the memory. */
static const tensor_shape *shape_of(const struct gpuk_device *device, const struct kv_layout *l)
{
    for (const tensor_shape &shape : tensor_shapes[l->dtype])
        if (shape.head_dim == l->head_dim && fits(device, shape)) return &shape;
    return NULL;
}

int gpuk_prepare_attention_prefill(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int d = 0; d < KV_DTYPE_COUNT && !rc; d++) {
        for (const prefill_kernel kernel : plain_kernels[d])
            if (!rc) rc = gpuk_prepare("prefill attention", kernel, 0, err);
        for (const tensor_shape &shape : tensor_shapes[d])
            if (!rc && fits(device, shape))
                rc = gpuk_prepare("prefill attention", shape.kernel, shape.bytes, err);
    }
    return rc;
}

extern "C" int gpuk_attention_prefill(const struct gpuk_device *device, const struct gpuk_prefill *prefill,
                                      uint32_t tokens, uint32_t flags, void *stream, struct helm_err *err)
{
    const struct gpuk_attention *args = &prefill->args;
    const struct gpuk_part *part = &prefill->part;
    int rc = gpuk_attention_check("prefill attention", args, tokens, err);
    if (rc) return rc;
    if (prefill->rows == 0 || (unsigned)prefill->out_dtype >= DTYPE_COUNT)
        return helm_fail(err, HELM_E_UNSUPPORTED, "prefill attention: %u rows, out of dtype %d",
                         prefill->rows, (int)prefill->out_dtype);
    const struct kv_layout *l = &args->kv.layout;
    if (part->before &&
        (!part->o || !part->state || part->pages == 0 || part->pages * l->page_tokens % TILE != 0))
        return helm_fail(err, HELM_E_UNSUPPORTED, "prefill attention in pieces of %u pages", part->pages);
    struct prefill_params p = {*args, prefill->q, prefill->out, (int)prefill->out_dtype, *part};
    bool aligned =
        ((size_t)args->kv.pool | (size_t)args->kv.pool_host | (size_t)p.q | (size_t)p.out | (size_t)part->o) %
            16 ==
        0;
    const tensor_shape *shape = aligned ? shape_of(device, l) : NULL;
    if (shape)
        return gpuk_launch("prefill attention", shape->kernel,
                           dim3(tokens / TILE + prefill->rows, args->heads), dim3(shape->threads),
                           shape->bytes, flags, stream, err, p);
    return gpuk_launch("prefill attention", plain_kernels[l->dtype][l->head_dim > HEAD_DIM_USUAL],
                       dim3(tokens, div_up(args->heads, WARPS)), dim3(THREADS), 0, flags, stream, err, p);
}
