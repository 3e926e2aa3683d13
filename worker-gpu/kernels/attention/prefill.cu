/* Prefill attention over paged KV: many queries, causal, windowed, with any context before them.
 *
 *   plain    a warp takes one query of one head, lane = dimension. Any head_dim and cache dtype, every
 *            device.
 *   tensor   (8.0 and later, 16 bits and q8_0, head_dim 64, 128, 256 or 512) prefill_tensor.cuh, in shapes of
 *            the table below.
 *
 * Launchers below; worker-gpu/kernels/kernels.h says what they mean. */
#include "worker-gpu/kernels/attention/prefill_tensor.cuh"

static const uint32_t THREADS = 128, WARPS = THREADS / 32; /* of the plain kernel */

/* ---- plain -------------------------------------------------------------------------------------- */

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

/* ---- launchers ---------------------------------------------------------------------------------- */

typedef void (*prefill_kernel)(prefill_params);
#define PLAIN(C)                                                                                             \
    {                                                                                                        \
        attention_plain<C, HEAD_STEPS>, attention_plain<C, HEAD_STEPS_WIDE>,                                 \
            attention_plain<C, HEAD_STEPS_MOST>                                                              \
    }
/* [enum kv_dtype][head_width] */
static const prefill_kernel plain_kernels[KV_DTYPE_COUNT][3] = BY_KV_DTYPE(PLAIN);

struct tensor_shape {
    uint32_t dtype, head_dim, rows, threads, blocks, bytes; /* of shared memory */
    prefill_kernel kernel;
};
template <typename S> static constexpr tensor_shape shape(uint32_t dtype)
{
    return {dtype, S::HEAD, S::ROWS, S::THREADS, S::BLOCKS, S::BYTES, attention_tensor<S>};
}
/* head_dim, positions of a tile, warps of 16 queries, slots, blocks of a multiprocessor, whether queries are
 * held. */
#define SHAPE(dtype, C, ...) shape<prefill_shape<C, __VA_ARGS__>>(dtype)
#define SHAPES(dtype, C)                                                                                     \
    SHAPE(dtype, C, 64, 64, 4, 3, 4, true), SHAPE(dtype, C, 128, 64, 4, 3, 2, true),                         \
        SHAPE(dtype, C, 256, 64, 4, 2, 2, false), SHAPE(dtype, C, 512, 64, 4, 2, 1, false),                  \
        SHAPE(dtype, C, 512, 32, 4, 2, 1, true)
/* Those of q8_0 settle a tile once for all queries of a block, so eight warps are better than four twice. The
 * first that fits is taken; for each type there is one of up to 99 KiB, as cards of 8.6 and 8.9 have. */
static const tensor_shape tensor_shapes[] = {
    SHAPES(KV_BF16, kv_plain<__nv_bfloat16>),         SHAPES(KV_F16, kv_plain<__half>),
    SHAPE(KV_Q8_0, kv_q8_0, 64, 64, 4, 2, 3, true),   SHAPE(KV_Q8_0, kv_q8_0, 128, 64, 8, 2, 1, true),
    SHAPE(KV_Q8_0, kv_q8_0, 256, 32, 8, 2, 1, false), SHAPE(KV_Q8_0, kv_q8_0, 256, 32, 4, 2, 1, false),
    SHAPE(KV_Q8_0, kv_q8_0, 512, 32, 4, 2, 1, false), SHAPE(KV_Q8_0, kv_q8_0, 512, 16, 2, 2, 1, true)};

/* In how many ranges a launch cuts positions: as many as multiprocessors have room for and the workspace
 * does. */
static const uint32_t RANGES_MAX = 16;
static uint32_t ranges_of(const struct gpuk_device *device, const struct gpuk_prefill *prefill,
                          const tensor_shape &shape, uint32_t tokens)
{
    if (!prefill->workspace || prefill->part.before) return 1;
    const uint32_t heads = prefill->args.heads, blocks = div_up(tokens, shape.rows) * heads;
    const size_t each = (size_t)tokens * heads * (shape.head_dim + GPU_PART_FLOATS) * sizeof(float);
    const size_t idle = (size_t)device->sm_count * shape.blocks / blocks,
                 fitting = GPUK_MATMUL_WORKSPACE / each, ranges = idle < fitting ? idle : fitting;
    return ranges > RANGES_MAX ? RANGES_MAX : ranges > 1 ? (uint32_t)ranges : 1;
}

static bool fits(const struct gpuk_device *device, const tensor_shape &shape)
{
    return device->tensor_cores && shape.bytes <= (uint32_t)device->shared_bytes_max;
}
/* How tensor cores take heads of this size; NULL: they do not, or the device lacks the memory. */
static const tensor_shape *shape_of(const struct gpuk_device *device, const struct kv_layout *l)
{
    for (const tensor_shape &shape : tensor_shapes)
        if (shape.dtype == l->dtype && shape.head_dim == l->head_dim && fits(device, shape)) return &shape;
    return NULL;
}

int gpuk_prepare_attention_prefill(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = gpuk_prepare("prefill attention", attention_join, 0, err);
    for (int d = 0; d < KV_DTYPE_COUNT && !rc; d++) {
        for (const prefill_kernel kernel : plain_kernels[d])
            if (!rc) rc = gpuk_prepare("prefill attention", kernel, 0, err);
    }
    for (const tensor_shape &shape : tensor_shapes)
        if (!rc && fits(device, shape))
            rc = gpuk_prepare("prefill attention", shape.kernel, shape.bytes, err);
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
    if (part->before && (!part->o || !part->state || part->pages == 0 ||
                         part->pages * l->page_tokens % GPU_PREFILL_TILE != 0))
        return helm_fail(err, HELM_E_UNSUPPORTED, "prefill attention in pieces of %u pages", part->pages);
    struct prefill_params p = {*args, prefill->q, prefill->out, (int)prefill->out_dtype,
                               *part, 1,          NULL,         NULL};
    bool aligned =
        ((size_t)args->kv.pool | (size_t)args->kv.pool_host | (size_t)p.q | (size_t)p.out | (size_t)part->o) %
            16 ==
        0;
    const tensor_shape *shape = aligned ? shape_of(device, l) : NULL;
    if (!shape)
        return gpuk_launch("prefill attention", plain_kernels[l->dtype][head_width(l->head_dim)],
                           dim3(tokens, div_up(args->heads, WARPS)), dim3(THREADS), 0, flags, stream, err, p);
    p.ranges = ranges_of(device, prefill, *shape, tokens);
    p.o = (float *)prefill->workspace, p.state = p.o + (size_t)p.ranges * tokens * args->heads * l->head_dim;
    rc = gpuk_launch("prefill attention", shape->kernel,
                     dim3(args->heads, tokens / shape->rows + prefill->rows, p.ranges), dim3(shape->threads),
                     shape->bytes, flags, stream, err, p);
    if (rc || p.ranges == 1) return rc;
    return gpuk_launch("prefill attention", attention_join, dim3(tokens, div_up(args->heads, JOIN_WARPS)),
                       dim3(JOIN_WARPS * 32), 0, device->early_launch ? GPUK_EARLY : 0, stream, err, p);
}
