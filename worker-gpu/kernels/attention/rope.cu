/* Rotation tables, and what stands between the q, k, v products and attention for several tokens: head norms,
 * rotation, and the new rows of the cache.
 *
 * One warp a head. Launchers below; worker-gpu/kernels/kernels.h says what they mean. */
#include "worker-gpu/kernels/attention/rope.cuh"

static const uint32_t WARPS = 8;

__global__ void rope_table_kernel(const uint32_t *count, const uint32_t *position, const float *inv_freq,
                                  uint32_t half, float scale, float *table)
{
    wait_for_previous();
    let_next_start();
    uint32_t t = blockIdx.x;
    if (t >= *count) return;
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        float s, c;
        sincosf((float)position[t] * inv_freq[i], &s, &c);
        table[(size_t)t * 2 * half + i] = c * scale;
        table[(size_t)t * 2 * half + half + i] = s * scale;
    }
}

/* N: dimensions that a lane holds. */
template <typename C, typename Q, uint32_t N>
__global__ void __launch_bounds__(WARPS * 32)
    rope_append_kernel(const __grid_constant__ gpuk_attention a, Q *q_out)
{
    __shared__ float shared[WARPS][32 * N];
    wait_for_previous();
    let_next_start();
    const uint32_t t = blockIdx.x, head_dim = a.kv.layout.head_dim, kv_heads = a.kv.layout.kv_heads;
    if (t >= a.step.counts[0]) return;
    const uint32_t task = blockIdx.y * WARPS + (threadIdx.x >> 5);
    const uint32_t latent = a.kv.layout.latent;
    if (task >= a.heads + (a.k ? kv_kinds(&a.kv.layout) * kv_heads : 0)) return;
    const uint32_t turning = gpuk_rope_dims(&a);
    const float *table = a.rope_table + (size_t)t * 2 * (turning / 2);
    float *own = shared[threadIdx.x >> 5], v[N];
    if (task < a.heads) {
        head_load(a.q + (size_t)t * a.q_stride + (size_t)task * head_dim, query_norm(a), table, turning,
                  head_dim, own, v, latent);
        Q *to = q_out + ((size_t)t * a.heads + task) * head_dim;
#pragma unroll
        for (uint32_t j = 0; j < N; j++)
            if ((threadIdx.x & 31) + 32 * j < head_dim)
                to[(threadIdx.x & 31) + 32 * j] = element<Q>::store(v[j]);
        return;
    }
    const uint32_t is_value = task >= a.heads + kv_heads, head = task - a.heads - is_value * kv_heads;
    const float *from = (is_value ? a.v : a.k) + (size_t)t * a.kv_stride + (size_t)head * head_dim;
    head_load(from, cell_norm(a, is_value), is_value ? nullptr : table, turning, head_dim, own, v, latent);
    const uint32_t *pages =
        a.step.page_table + (size_t)a.step.row_slot[a.step.token_row[t]] * a.step.pages_per_slot;
    kv_store<C>(a.kv, pages, a.step.position[t], is_value, head, v);
}

/* ---- launchers ---------------------------------------------------------------------------------- */

int gpuk_attention_check(const char *what, const struct gpuk_attention *args, uint32_t tokens,
                         struct helm_err *err)
{
    const struct kv_layout *l = &args->kv.layout;
    if (tokens == 0 || tokens > (1u << 24))
        return helm_fail(err, HELM_E_LIMIT, "%s: %u tokens (1 to 2^24)", what, tokens);
    if (l->head_dim == 0 || l->head_dim > GPUK_HEAD_DIM_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: head_dim %u (1 to %d)", what, l->head_dim,
                         GPUK_HEAD_DIM_MAX);
    if (l->kv_heads == 0 || args->heads == 0 || args->heads % l->kv_heads != 0 ||
        args->heads > MODEL_HEADS_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: %u heads over %u kv heads", what, args->heads,
                         l->kv_heads);
    if (l->page_tokens == 0 || (l->page_tokens & (l->page_tokens - 1)) != 0 || args->kv.layer >= l->layers)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: pages of %u tokens, layer %u of %u", what,
                         l->page_tokens, args->kv.layer, l->layers);
    if (l->dtype >= KV_DTYPE_COUNT)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: cache dtype %u is none", what, l->dtype);
    if (args->rope_dims > l->head_dim - (l->latent < l->head_dim ? l->latent : l->head_dim))
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: %u of %u numbers of a head turn", what,
                         args->rope_dims, l->head_dim);
    if (!kv_dtype_takes(l->dtype, l->head_dim))
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: head_dim %u in a %s cache (multiples of %d)", what,
                         l->head_dim, kv_dtype_name((enum kv_dtype)l->dtype), KV_Q8_0_VALUES);
    return HELM_OK;
}

extern "C" int gpuk_rope_table(const struct gpuk_step *step, uint32_t tokens, const float *inv_freq,
                               uint32_t head_dim, float scale, float *table, uint32_t flags, void *stream,
                               struct helm_err *err)
{
    if (tokens == 0 || head_dim / 2 == 0)
        return helm_fail(err, HELM_E_LIMIT, "rope table: %u tokens, head_dim %u", tokens, head_dim);
    return gpuk_launch("rope table", rope_table_kernel, dim3(tokens), dim3(div_up(head_dim / 2, 32) * 32), 0,
                       flags, stream, err, step->counts, step->position, inv_freq, head_dim / 2, scale,
                       table);
}

template <typename C, uint32_t N>
static int run_append(const struct gpuk_attention *args, uint32_t tokens, void *q_out, enum dtype q_dtype,
                      uint32_t flags, void *stream, struct helm_err *err)
{
    dim3 grid(tokens,
              div_up(args->heads + (args->k ? kv_kinds(&args->kv.layout) * args->kv.layout.kv_heads : 0),
                     WARPS)),
        block(WARPS * 32);
    if (q_dtype == DTYPE_F32)
        return gpuk_launch("rope", rope_append_kernel<C, float, N>, grid, block, 0, flags, stream, err, *args,
                           (float *)q_out);
    if (q_dtype == kv_query_dtype(args->kv.layout.dtype))
        return gpuk_launch("rope", rope_append_kernel<C, typename C::query, N>, grid, block, 0, flags, stream,
                           err, *args, (typename C::query *)q_out);
    return helm_fail(err, HELM_E_UNSUPPORTED, "rope: q of dtype %d beside a cache of dtype %u", (int)q_dtype,
                     args->kv.layout.dtype);
}

typedef int (*append_run)(const struct gpuk_attention *, uint32_t, void *, enum dtype, uint32_t, void *,
                          struct helm_err *);
#define RUN(C)                                                                                               \
    {                                                                                                        \
        run_append<C, HEAD_STEPS>, run_append<C, HEAD_STEPS_WIDE>, run_append<C, HEAD_STEPS_MOST>            \
    }
/* [enum kv_dtype][head_width] */
static const append_run append_runs[KV_DTYPE_COUNT][3] = BY_KV_DTYPE(RUN);

extern "C" int gpuk_rope_append(const struct gpuk_attention *args, uint32_t tokens, void *q_out,
                                enum dtype q_dtype, uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = gpuk_attention_check("rope", args, tokens, err);
    if (rc) return rc;
    const struct kv_layout *l = &args->kv.layout;
    return append_runs[l->dtype][head_width(l->head_dim)](args, tokens, q_out, q_dtype, flags, stream, err);
}

template <typename C, uint32_t N> static int prepare_append_of(struct helm_err *err)
{
    const int rc = gpuk_prepare("rope", rope_append_kernel<C, float, N>, 0, err);
    return rc ? rc : gpuk_prepare("rope", rope_append_kernel<C, typename C::query, N>, 0, err);
}
template <typename C> static int prepare_append(struct helm_err *err)
{
    int rc = prepare_append_of<C, HEAD_STEPS>(err);
    if (!rc) rc = prepare_append_of<C, HEAD_STEPS_WIDE>(err);
    return rc ? rc : prepare_append_of<C, HEAD_STEPS_MOST>(err);
}

int gpuk_prepare_rope(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("rope table", rope_table_kernel, 0, err);
    if (!rc) rc = prepare_append<kv_plain<__nv_bfloat16>>(err);
    if (!rc) rc = prepare_append<kv_plain<__half>>(err);
    if (!rc) rc = prepare_append<kv_plain<float>>(err);
    if (!rc) rc = prepare_append<kv_q8_0>(err);
    return rc;
}
