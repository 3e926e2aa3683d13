/* Products with experts for every format, shape, alignment and device: what others fall back to. See
 * experts.cu.
 *
 * Few tokens: a warp has two rows, gate's and up's of one output or neighbours of down's, of one token; lanes
 * load neighbouring pieces (decode.cuh), x through the L1. Chunks: a warp has the same two rows and some
 * tokens of an expert, so that a weight is decoded once for these. */
#include "worker-gpu/kernels/experts/experts.cuh"
#include "worker-gpu/kernels/linear/plain_rows.cuh"

static const uint32_t THREADS = 256, WARPS = THREADS / 32, EACH = 8;

/* ---- few tokens ----------------------------------------------------------------------------------- */

/* Token t of x, normalised, dense. */
__global__ void __launch_bounds__(THREADS) experts_norm(const __grid_constant__ experts_params p, float *to)
{
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
    const uint32_t t = blockIdx.x;
    if (t >= experts_tokens(p)) return;
    const float *from = p.x + (uint64_t)t * p.x_stride;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < p.cols; i += THREADS) {
        const float v = __ldcg(from + i);
        squares += v * v;
    }
    const float scale = rsqrtf(block_sum(squares, scratch) / (float)p.cols + p.eps);
    for (uint32_t i = threadIdx.x; i < p.cols; i += THREADS)
        to[(uint64_t)t * p.cols + i] = __ldcg(from + i) * scale * p.norm[i];
}

template <typename D, bool VECTOR>
__device__ __forceinline__ void glu_of(const experts_params &p, uint32_t pair, uint32_t row)
{
    const uint32_t id = __ldcg(p.choice.id + pair), slot = experts_slot(p.slot, p.experts, id);
    if (slot == GPUK_SLOT_ABSENT) return;
    const uint64_t at = row * p.row_bytes;
    float2 sum = two_rows<D, VECTOR>(p.role[0].at(slot) + at, p.role[1].at(slot) + at,
                                     p.x + (uint64_t)(pair / p.choice.chosen) * p.x_stride, p.cols);
    if ((threadIdx.x & 31) != 0) return;
    const uint64_t bias = (uint64_t)id * p.rows + row;
    if (p.role[0].bias) sum.x += p.role[0].bias[bias];
    if (p.role[1].bias) sum.y += p.role[1].bias[bias];
    p.out[(uint64_t)pair * p.rows + row] = glu_value(p.glu, sum.x, sum.y);
}
template <typename D, bool VECTOR>
__device__ __forceinline__ void down_of(const experts_params &p, uint32_t token, uint32_t row)
{
    const bool two = row + 1 < p.rows;
    float2 total = make_float2(0, 0);
    for (uint32_t j = 0; j < p.choice.chosen; j++) {
        const uint32_t pair = token * p.choice.chosen + j, id = __ldcg(p.choice.id + pair),
                       slot = experts_slot(p.slot, p.experts, id);
        if (slot == GPUK_SLOT_ABSENT) continue;
        const unsigned char *a = p.role[0].at(slot) + row * p.row_bytes;
        float2 sum = two_rows<D, VECTOR>(a, two ? a + p.row_bytes : a, p.x + (uint64_t)pair * p.cols, p.cols);
        if (p.role[0].bias) {
            const float *bias = p.role[0].bias + (uint64_t)id * p.rows + row;
            sum.x += bias[0];
            if (two) sum.y += bias[1];
        }
        const float weight = __ldcg(p.choice.weight + pair);
        total.x += weight * sum.x, total.y += weight * sum.y;
    }
    if ((threadIdx.x & 31) != 0) return;
    const uint64_t at = (uint64_t)token * p.out_stride + row;
    p.out[at] = (p.residual ? __ldcg(p.residual + at) : 0.0f) + total.x;
    if (two) p.out[at + 1] = (p.residual ? __ldcg(p.residual + at + 1) : 0.0f) + total.y;
}

template <typename D, bool VECTOR>
__global__ void __launch_bounds__(THREADS) experts_plain(const __grid_constant__ experts_params p)
{
    wait_for_previous();
    let_next_start();
    const uint32_t tokens = experts_tokens(p),
                   each = p.down ? div_up(p.rows, 2) : p.choice.chosen * p.rows; /* of a token */
    for (uint32_t u = blockIdx.x * WARPS + (threadIdx.x >> 5); u < tokens * each; u += gridDim.x * WARPS)
        if (p.down)
            down_of<D, VECTOR>(p, u / each, u % each * 2);
        else
            glu_of<D, VECTOR>(p, u / p.rows, u % p.rows);
}

/* ---- chunks --------------------------------------------------------------------------------------- */

__device__ __forceinline__ float load_as(const void *from, enum dtype dtype, uint64_t i)
{
    if (dtype == DTYPE_F32) return __ldcg(static_cast<const float *>(from) + i);
    if (dtype == DTYPE_F16) return element<__half>::load(static_cast<const __half *>(from)[i]);
    return element<__nv_bfloat16>::load(static_cast<const __nv_bfloat16 *>(from)[i]);
}
template <typename D>
__global__ void __launch_bounds__(THREADS)
    experts_each(const __grid_constant__ experts_chunk_params p, enum dtype dtype)
{
    __shared__ uint32_t end[MODEL_EXPERTS_MAX];
    experts_tiles(p.first, p.experts, EACH, end);
    const uint32_t lane = threadIdx.x & 31, tiles = end[p.experts - 1],
                   units = p.down ? div_up(p.rows, 2) : p.rows;
    for (uint64_t u = (uint64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); u < (uint64_t)tiles * units;
         u += gridDim.x * WARPS) {
        const uint32_t tile = (uint32_t)(u / units), unit = (uint32_t)(u % units),
                       e = experts_of_tile(end, p.experts, tile), slot = experts_slot(p.slot, p.experts, e),
                       begin = __ldcg(p.first + e) + (tile - (e ? end[e - 1] : 0)) * EACH,
                       after = __ldcg(p.first + e + 1), n = after - begin < EACH ? after - begin : EACH,
                       row = p.down ? 2 * unit : unit;
        const bool two = p.down && row + 1 < p.rows;
        const unsigned char *a = p.role[0].weight + slot * p.role[0].stride + row * p.row_bytes,
                            *b = !p.down ? p.role[1].weight + slot * p.role[1].stride + row * p.row_bytes
                                 : two   ? a + p.row_bytes
                                         : a;
        uint64_t from[EACH];
        float sum_a[EACH], sum_b[EACH];
#pragma unroll
        for (uint32_t t = 0; t < EACH; t++) {
            const uint32_t place = begin + (t < n ? t : 0);
            from[t] = (uint64_t)(p.down ? place : __ldcg(p.pair + place) / p.chosen) * p.cols;
            sum_a[t] = sum_b[t] = 0;
        }
        for (uint32_t c = lane; c < p.cols; c += 32) {
            const float fa = D::number(a, c), fb = D::number(b, c);
#pragma unroll
            for (uint32_t t = 0; t < EACH; t++) {
                const float v = load_as(p.x, dtype, from[t] + c);
                sum_a[t] += fa * v, sum_b[t] += fb * v;
            }
        }
        const uint64_t bias = (uint64_t)e * p.rows + row;
#pragma unroll
        for (uint32_t t = 0; t < EACH; t++) {
            float va = warp_sum(sum_a[t]), vb = warp_sum(sum_b[t]);
            if (lane != 0 || t >= n) continue;
            const uint64_t at = (uint64_t)(begin + t) * p.rows + row;
            if (p.role[0].bias) va += p.role[0].bias[bias];
            if (!p.down) {
                if (p.role[1].bias) vb += p.role[1].bias[bias];
                experts_store(p, at, glu_value(p.glu, va, vb));
                continue;
            }
            static_cast<float *>(p.out)[at] = va;
            if (two)
                static_cast<float *>(p.out)[at + 1] = vb + (p.role[0].bias ? p.role[0].bias[bias + 1] : 0);
        }
    }
}

/* ---- launchers ------------------------------------------------------------------------------------ */

/* Where pieces may be loaded: every slot's matrices begin where those of single ones would have to. */
template <typename D> static bool takes_pieces(const struct experts_call &call)
{
    struct gpuk_linear_args args = {};
    args.format = call.format, args.cols = call.params.cols, args.segments = call.params.down ? 1 : 2;
    for (uint32_t s = 0; s < args.segments; s++) args.segment[s].weight = call.params.role[s].weight;
    return D::takes_pieces(&args);
}
typedef void (*plain_function)(experts_params);
template <typename D>
static const plain_function plain_kernel[2] = {experts_plain<D, false>, experts_plain<D, true>};
template <typename D> static bool plain_takes(const struct experts_call &)
{
    return true;
}
template <typename D> static int plain_launch(const struct experts_call &call, struct helm_err *err)
{
    struct experts_params p = call.params;
    uint32_t flags = call.flags;
    int rc = HELM_OK;
    if (p.routes) {
        rc = gpuk_route(&p.router, p.count, p.tokens, p.logits, p.choice_bias, &p.choice, flags, call.stream,
                        err);
        flags = 0;
    }
    if (!rc && p.norm) {
        float *normed = static_cast<float *>(call.workspace);
        rc = gpuk_launch("experts: norm", experts_norm, dim3(p.tokens), dim3(THREADS), 0, flags, call.stream,
                         err, p, normed);
        p.x = normed, p.x_stride = p.cols;
    }
    if (rc) return rc;
    const bool vector =
        takes_pieces<D>(call) && ((size_t)p.x % 16 | p.cols % 4 | (p.down ? 0 : p.x_stride % 4)) == 0;
    const uint32_t most = (uint32_t)call.device->sm_count * 8,
                   units = p.tokens * (p.down ? div_up(p.rows, 2) : p.choice.chosen * p.rows),
                   blocks = div_up(units, WARPS);
    /* never early: it reads x through the L1, which must not hold what an earlier kernel left there */
    return gpuk_launch("experts", plain_kernel<D>[vector], dim3(blocks < most ? blocks : most), dim3(THREADS),
                       0, 0, call.stream, err, p);
}
template <typename D> static int plain_prepare(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("experts: norm", experts_norm, 0, err);
    for (int i = 0; i < 2 && !rc; i++) rc = gpuk_prepare("experts", plain_kernel<D>[i], 0, err);
    return rc;
}
#define PLAIN(D)                                                                                             \
    {                                                                                                        \
        "plain", plain_takes<D>, plain_launch<D>, plain_prepare<D>                                           \
    }
experts_kernels experts_plain_kernels = BY_FORMAT(PLAIN, {});

template <typename D> static bool each_takes(const struct experts_chunk_call &)
{
    return true;
}
template <typename D> static int each_launch(const struct experts_chunk_call &call, struct helm_err *err)
{
    return gpuk_launch("experts of a chunk", experts_each<D>, dim3((uint32_t)call.device->sm_count * 8),
                       dim3(THREADS), 0, 0, call.stream, err, call.params, call.dtype);
}
template <typename D> static int each_prepare(const struct gpuk_device *, struct helm_err *err)
{
    return gpuk_prepare("experts of a chunk", experts_each<D>, 0, err);
}
#define EACH_OF(D)                                                                                           \
    {                                                                                                        \
        "each", each_takes<D>, each_launch<D>, each_prepare<D>                                               \
    }
experts_chunk_kernels experts_each_kernels = BY_FORMAT(EACH_OF, {});
