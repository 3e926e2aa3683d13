/* The small kernels of prefill and of a step's ends: embedding, norms, SwiGLU, biases, gathering, lanes.
 *
 * One block or more a token; tokens beyond *count are left alone. Launchers below;
 * worker-gpu/kernels/kernels.h says what they mean. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/join.h"

static const uint32_t THREADS = 256;

__device__ __forceinline__ bool beyond(const uint32_t *count, uint32_t token)
{
    return count && token >= *count;
}

/* ---- embedding ---------------------------------------------------------------------------------- */

template <typename D>
__global__ void embed_kernel(const uint32_t *count, const uint32_t *ids, const unsigned char *table,
                             uint32_t vocab, uint32_t hidden, float scale, float *x)
{
    wait_for_previous();
    let_next_start();
    uint32_t t = blockIdx.x;
    if (beyond(count, t)) return;
    uint32_t id = ids[t];
    for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < hidden; i += gridDim.y * THREADS)
        x[(size_t)t * hidden + i] =
            id < vocab ? scale * D::number(table + id * D::bytes(hidden), i) : __int_as_float(0x7fc00000);
}

/* A block a token and layer. */
template <typename D>
__global__ void __launch_bounds__(THREADS) per_layer_kernel(const __grid_constant__ struct gpuk_per_layer a)
{
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
    const uint32_t t = blockIdx.x, at = blockIdx.y * a.width;
    if (beyond(a.step.counts, t)) return;
    const uint32_t id = a.step.token_id[t];
    const unsigned char *row = (const unsigned char *)a.table + id * (size_t)D::bytes(a.layers * a.width);
    float *x = a.x + (size_t)t * a.stride + at;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) {
        const float v = __ldcg(x + i) * a.in_scale;
        squares += v * v;
    }
    const float scale = a.in_scale * rsqrtf(block_sum(squares, scratch) / (float)a.width + a.eps);
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS)
        x[i] = id < a.vocab ? (__ldcg(x + i) * scale * a.norm[i] + a.table_scale * D::number(row, at + i)) *
                                  a.out_scale
                            : __int_as_float(0x7fc00000);
}

/* ---- norm --------------------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    rmsnorm_kernel(const uint32_t *count, const float *x, const float *norm, float eps, uint32_t hidden,
                   T *out, bool vector)
{
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    const float *from = x + (size_t)blockIdx.x * hidden;
    T *to = out + (size_t)blockIdx.x * hidden;
    float scale = 1.0f;
    if (norm) {
        float squares = 0;
        if (vector)
            for (uint32_t i = threadIdx.x; i < hidden / 4; i += THREADS) {
                float4 v = __ldcg(reinterpret_cast<const float4 *>(from) + i);
                squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
        else
            for (uint32_t i = threadIdx.x; i < hidden; i += THREADS) {
                float v = __ldcg(from + i);
                squares += v * v;
            }
        squares = block_sum(squares, scratch);
        scale = rsqrtf(squares / (float)hidden + eps);
    }
    if (vector) {
        for (uint32_t i = threadIdx.x; i < hidden / 8; i += THREADS) {
            float v[8];
            put4(v, __ldcg(reinterpret_cast<const float4 *>(from) + 2 * i));
            put4(v + 4, __ldcg(reinterpret_cast<const float4 *>(from) + 2 * i + 1));
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = norm ? v[j] * scale * norm[i * 8 + j] : v[j];
            store8<T>(to + i * 8, v);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < hidden; i += THREADS) {
            float v = __ldcg(from + i);
            to[i] = element<T>::store(norm ? v * scale * norm[i] : v);
        }
    }
}

/* Dividing by the root of the mean of a row's squares: what each thread's numbers are to be multiplied by. */
__device__ __forceinline__ float norm_scale(float squares, uint32_t width, float eps, float *scratch)
{
    const float sum = block_sum(squares, scratch);
    __syncthreads(); /* the scratch may be used again */
    return rsqrtf(sum / (float)width + eps);
}

/* A block a token and half of its row. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    join_kernel(const __grid_constant__ struct gpuk_join a, const uint32_t *count)
{
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    const bool second = blockIdx.y > 0;
    const float *from = (second ? a.b : a.a) + (size_t)blockIdx.x * a.width,
                *norm = second ? a.norm_b : a.norm_a;
    T *to = (T *)a.out + ((size_t)blockIdx.x * 2 + second) * a.width;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) {
        const float v = __ldcg(from + i);
        squares += v * v;
    }
    const float scale = norm_scale(squares, a.width, a.eps, scratch);
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS)
        to[i] = element<T>::store(__ldcg(from + i) * scale * norm[i]);
}

/* A block a token. */
__global__ void __launch_bounds__(THREADS)
    add_normed_kernel(const __grid_constant__ struct gpuk_add_normed a, const uint32_t *count)
{
    __shared__ float scratch[32];
    float by = a.factor ? *a.factor : 1.0f;
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    const size_t at = (size_t)blockIdx.x * (a.stride ? a.stride : a.width);
    if (a.growth != 0) by = 1.0f + a.growth * logf(1.0f + (float)(a.position[blockIdx.x] / a.growth_context));
    float squares = 0, others = 0, in_scale = 1, other_scale = 0;
    const auto row = [&](uint32_t i) {
        const float v = __ldcg(a.in + at + i);
        return a.other
                   ? v * in_scale * a.in_norm[i] + __ldcg(a.other + at + i) * other_scale * a.other_norm[i]
                   : v;
    };
    for (uint32_t i = threadIdx.x; a.other && i < a.width; i += THREADS) {
        const float v = __ldcg(a.in + at + i), w = __ldcg(a.other + at + i);
        squares += v * v, others += w * w;
    }
    if (a.other) {
        in_scale = norm_scale(squares, a.width, a.eps, scratch);
        other_scale = norm_scale(others, a.width, a.eps, scratch);
        squares = 0;
    }
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) {
        const float v = row(i);
        squares += v * v;
    }
    const float scale = norm_scale(squares, a.width, a.eps, scratch);
    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) {
        const float normed = a.norm ? row(i) * scale * a.norm[i] : row(i);
        a.out[at + i] = (a.x ? __ldcg(a.x + at + i) + normed : normed) * by;
    }
}

__global__ void __launch_bounds__(THREADS)
    soft_cap_kernel(const uint32_t *count, float *x, uint32_t width, float cap)
{
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    const uint32_t i = blockIdx.y * THREADS + threadIdx.x;
    float *at = x + (size_t)blockIdx.x * width + i;
    if (i < width) *at = cap * tanhf(__ldcg(at) / cap);
}

/* ---- SwiGLU ------------------------------------------------------------------------------------- */

template <typename I, typename O>
__global__ void __launch_bounds__(THREADS)
    swiglu_kernel(const uint32_t *count, const I *in, enum glu_kind glu, uint32_t stride, uint32_t up_at,
                  uint32_t n, O *out, uint32_t out_stride, bool vector)
{
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    const I *gate = in + (size_t)blockIdx.x * stride, *up = gate + up_at;
    O *to = out + (size_t)blockIdx.x * out_stride;
    uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (vector) {
        if (i >= n) return;
        float g[8], u[8];
        load8<I>(gate + i, g);
        load8<I>(up + i, u);
#pragma unroll
        for (int j = 0; j < 8; j++) g[j] = glu_value(glu, g[j], u[j]);
        store8<O>(to + i, g);
        return;
    }
    for (uint32_t end = i + 8; i < end && i < n; i++)
        to[i] = element<O>::store(glu_value(glu, element<I>::load(gate[i]), element<I>::load(up[i])));
}

template <typename T>
__global__ void add_bias_kernel(const uint32_t *count, T *out, uint32_t stride, uint32_t rows,
                                const float *bias)
{
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    T *to = out + (size_t)blockIdx.x * stride;
    for (uint32_t i = threadIdx.x; i < rows; i += THREADS)
        to[i] = element<T>::store(element<T>::load(to[i]) + bias[i]);
}

/* ---- rows of fp32 ------------------------------------------------------------------------------- */

/* Row i of out = row index[i] (or i) of x. x and out may be mapped host memory: x is read once, past the L1,
 * and 16 bytes at a time where it is aligned. */
__global__ void copy_rows_kernel(const uint32_t *count, const uint32_t *index, const float *x,
                                 uint32_t hidden, float *out, bool vector)
{
    wait_for_previous();
    let_next_start();
    if (beyond(count, blockIdx.x)) return;
    const float *from = x + (size_t)(index ? index[blockIdx.x] : blockIdx.x) * hidden;
    float *to = out + (size_t)blockIdx.x * hidden;
    const uint32_t first = blockIdx.y * THREADS + threadIdx.x, step = gridDim.y * THREADS;
    if (vector)
        for (uint32_t i = first; i < hidden / 4; i += step)
            __stcg(reinterpret_cast<float4 *>(to) + i, __ldcv(reinterpret_cast<const float4 *>(from) + i));
    else
        for (uint32_t i = first; i < hidden; i += step) __stcg(to + i, __ldcv(from + i));
}

/* ---- launchers ---------------------------------------------------------------------------------- */

static int bad_dtype(const char *what, int dtype, struct helm_err *err)
{
    return helm_fail(err, HELM_E_UNSUPPORTED, "%s: dtype %d", what, dtype);
}
static int check_shape(const char *what, uint32_t tokens, uint32_t width, struct helm_err *err)
{
    if (tokens == 0 || width == 0 || tokens > (1u << 24))
        return helm_fail(err, HELM_E_LIMIT, "%s: %u tokens of %u (1 to 2^24 tokens)", what, tokens, width);
    return HELM_OK;
}

typedef void (*embed_function)(const uint32_t *, const uint32_t *, const unsigned char *, uint32_t, uint32_t,
                               float, float *);
#define EMBED(D) embed_kernel<D>
static const embed_function embed_kernels[FORMAT_COUNT] = BY_FORMAT(EMBED, nullptr);

extern "C" int gpuk_embed(const struct gpuk_step *step, uint32_t tokens, const void *table,
                          enum tensor_format format, uint32_t vocab, uint32_t hidden, float scale, float *x,
                          uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check_shape("embed", tokens, hidden, err);
    if (rc) return rc;
    dim3 grid(tokens, tokens <= GPUK_BATCH_MAX ? div_up(hidden, THREADS) : 1);
    if ((unsigned)format >= FORMAT_COUNT || !embed_kernels[format])
        return helm_fail(err, HELM_E_UNSUPPORTED, "embed: a table of %s", tensor_format_name(format));
    return gpuk_launch("embed", embed_kernels[format], grid, dim3(THREADS), 0, flags, stream, err,
                       step->counts, step->token_id, (const unsigned char *)table, vocab, hidden, scale, x);
}

typedef void (*per_layer_function)(struct gpuk_per_layer);
#define PER_LAYER(D) per_layer_kernel<D>
static const per_layer_function per_layer_kernels[FORMAT_COUNT] = BY_FORMAT(PER_LAYER, nullptr);

extern "C" int gpuk_per_layer(const struct gpuk_per_layer *args, uint32_t tokens, uint32_t flags,
                              void *stream, struct helm_err *err)
{
    const int rc = check_shape("per-layer embedding", tokens, args->width, err);
    if (rc) return rc;
    if ((unsigned)args->format >= FORMAT_COUNT || !per_layer_kernels[args->format])
        return helm_fail(err, HELM_E_UNSUPPORTED, "per-layer embedding: a table of %s",
                         tensor_format_name(args->format));
    return gpuk_launch("per-layer embedding", per_layer_kernels[args->format], dim3(tokens, args->layers),
                       dim3(THREADS), 0, flags, stream, err, *args);
}

extern "C" int gpuk_rmsnorm(const uint32_t *count, uint32_t tokens, const float *x, const float *norm,
                            float eps, uint32_t hidden, void *out, enum dtype out_dtype, uint32_t flags,
                            void *stream, struct helm_err *err)
{
    int rc = check_shape("rmsnorm", tokens, hidden, err);
    if (rc) return rc;
    bool vector = hidden % 8 == 0 && ((size_t)x | (size_t)out) % 16 == 0;
#define LAUNCH(T)                                                                                            \
    gpuk_launch("rmsnorm", rmsnorm_kernel<T>, dim3(tokens), dim3(THREADS), 0, flags, stream, err, count, x,  \
                norm, eps, hidden, (T *)out, vector)
    switch (out_dtype) {
    case DTYPE_BF16:
        return LAUNCH(__nv_bfloat16);
    case DTYPE_F16:
        return LAUNCH(__half);
    case DTYPE_F32:
        return LAUNCH(float);
    default:
        return bad_dtype("rmsnorm", (int)out_dtype, err);
    }
#undef LAUNCH
}

static int copy_rows(const char *what, const uint32_t *count, uint32_t rows, const uint32_t *index,
                     const float *x, uint32_t hidden, float *out, uint32_t flags, void *stream,
                     struct helm_err *err)
{
    int rc = check_shape(what, rows, hidden, err);
    if (rc) return rc;
    bool vector = hidden % 4 == 0 && ((size_t)x | (size_t)out) % 16 == 0;
    /* few rows: spread over blocks, since a load from host memory takes more than a microsecond */
    dim3 grid(rows, rows <= GPUK_BATCH_MAX ? div_up(hidden, vector ? 4 * THREADS : THREADS) : 1);
    return gpuk_launch(what, copy_rows_kernel, grid, dim3(THREADS), 0, flags, stream, err, count, index, x,
                       hidden, out, vector);
}

extern "C" int gpuk_join(const struct gpuk_join *args, const uint32_t *count, uint32_t tokens, uint32_t flags,
                         void *stream, struct helm_err *err)
{
    const int rc = check_shape("join", tokens, args->width, err);
    if (rc) return rc;
#define LAUNCH(T)                                                                                            \
    gpuk_launch("join", join_kernel<T>, dim3(tokens, 2), dim3(THREADS), 0, flags, stream, err, *args, count)
    switch (args->out_dtype) {
    case DTYPE_BF16:
        return LAUNCH(__nv_bfloat16);
    case DTYPE_F16:
        return LAUNCH(__half);
    case DTYPE_F32:
        return LAUNCH(float);
    default:
        return bad_dtype("join", (int)args->out_dtype, err);
    }
#undef LAUNCH
}

extern "C" int gpuk_add_normed(const struct gpuk_add_normed *args, const uint32_t *count, uint32_t tokens,
                               uint32_t flags, void *stream, struct helm_err *err)
{
    const int rc = check_shape("add normed", tokens, args->width, err);
    if (rc) return rc;
    return gpuk_launch("add normed", add_normed_kernel, dim3(tokens), dim3(THREADS), 0, flags, stream, err,
                       *args, count);
}

extern "C" int gpuk_soft_cap(const uint32_t *count, uint32_t rows, float *x, uint32_t width, float cap,
                             uint32_t flags, void *stream, struct helm_err *err)
{
    const int rc = check_shape("soft cap", rows, width, err);
    if (rc) return rc;
    return gpuk_launch("soft cap", soft_cap_kernel, dim3(rows, div_up(width, THREADS)), dim3(THREADS), 0,
                       flags, stream, err, count, x, width, cap);
}

extern "C" int gpuk_gather(const struct gpuk_step *step, uint32_t samples, const float *x, uint32_t hidden,
                           float *out, uint32_t flags, void *stream, struct helm_err *err)
{
    return copy_rows("gather", step->counts + 2, samples, step->sample_token, x, hidden, out, flags, stream,
                     err);
}

extern "C" int gpuk_lane_copy(const uint32_t *count, uint32_t tokens, const float *x, uint32_t hidden,
                              float *out, uint32_t flags, void *stream, struct helm_err *err)
{
    return copy_rows("lane copy", count, tokens, NULL, x, hidden, out, flags, stream, err);
}

template <typename I, typename O>
static int run_swiglu(const uint32_t *count, uint32_t tokens, const void *in, enum glu_kind glu,
                      uint32_t stride, uint32_t up_at, uint32_t n, void *out, uint32_t out_stride,
                      uint32_t flags, void *stream, struct helm_err *err)
{
    bool vector = (stride | up_at | n | out_stride) % 8 == 0 && ((size_t)in | (size_t)out) % 16 == 0;
    return gpuk_launch("swiglu", swiglu_kernel<I, O>, dim3(tokens, div_up(n, 8 * THREADS)), dim3(THREADS), 0,
                       flags, stream, err, count, (const I *)in, glu, stride, up_at, n, (O *)out, out_stride,
                       vector);
}

extern "C" int gpuk_swiglu(const uint32_t *count, uint32_t tokens, const void *in, enum dtype in_dtype,
                           enum glu_kind glu, uint32_t stride, uint32_t up_at, uint32_t n, void *out,
                           enum dtype out_dtype, uint32_t out_stride, uint32_t flags, void *stream,
                           struct helm_err *err)
{
    int rc = check_shape("swiglu", tokens, n, err);
    if (rc) return rc;
    if (out_stride < n)
        return helm_fail(err, HELM_E_USAGE, "swiglu: rows of %u numbers, %u apart", n, out_stride);
#define RUN(I, O)                                                                                            \
    run_swiglu<I, O>(count, tokens, in, glu, stride, up_at, n, out, out_stride, flags, stream, err)
    if (in_dtype == DTYPE_F32 && out_dtype == DTYPE_F32) return RUN(float, float);
    if (in_dtype == DTYPE_F32 && out_dtype == DTYPE_BF16) return RUN(float, __nv_bfloat16);
    if (in_dtype == DTYPE_F32 && out_dtype == DTYPE_F16) return RUN(float, __half);
    if (in_dtype == DTYPE_BF16 && out_dtype == DTYPE_BF16) return RUN(__nv_bfloat16, __nv_bfloat16);
    if (in_dtype == DTYPE_F16 && out_dtype == DTYPE_F16) return RUN(__half, __half);
#undef RUN
    return helm_fail(err, HELM_E_UNSUPPORTED, "swiglu: dtype %d to %d", (int)in_dtype, (int)out_dtype);
}

extern "C" int gpuk_add_bias(const uint32_t *count, uint32_t tokens, void *out, enum dtype dtype,
                             uint32_t stride, uint32_t rows, const float *bias, uint32_t flags, void *stream,
                             struct helm_err *err)
{
    int rc = check_shape("add bias", tokens, rows, err);
    if (rc) return rc;
#define LAUNCH(T)                                                                                            \
    gpuk_launch("add bias", add_bias_kernel<T>, dim3(tokens), dim3(THREADS), 0, flags, stream, err, count,   \
                (T *)out, stride, rows, bias)
    switch (dtype) {
    case DTYPE_BF16:
        return LAUNCH(__nv_bfloat16);
    case DTYPE_F16:
        return LAUNCH(__half);
    case DTYPE_F32:
        return LAUNCH(float);
    default:
        return bad_dtype("add bias", (int)dtype, err);
    }
#undef LAUNCH
}

int gpuk_prepare_elementwise(const struct gpuk_device *, struct helm_err *err)
{
    int rc = HELM_OK;
#define PREPARE(kernel) rc = rc ? rc : gpuk_prepare(#kernel, kernel, 0, err)
    for (const embed_function kernel : embed_kernels)
        if (kernel) PREPARE(kernel);
    for (const per_layer_function kernel : per_layer_kernels)
        if (kernel) PREPARE(kernel);
    PREPARE((rmsnorm_kernel<__nv_bfloat16>));
    PREPARE((rmsnorm_kernel<__half>));
    PREPARE((rmsnorm_kernel<float>));
    PREPARE((join_kernel<__nv_bfloat16>));
    PREPARE((join_kernel<__half>));
    PREPARE((join_kernel<float>));
    PREPARE(add_normed_kernel);
    PREPARE(soft_cap_kernel);
    PREPARE((swiglu_kernel<float, float>));
    PREPARE((swiglu_kernel<float, __nv_bfloat16>));
    PREPARE((swiglu_kernel<float, __half>));
    PREPARE((swiglu_kernel<__nv_bfloat16, __nv_bfloat16>));
    PREPARE((swiglu_kernel<__half, __half>));
    PREPARE((add_bias_kernel<__nv_bfloat16>));
    PREPARE((add_bias_kernel<__half>));
    PREPARE((add_bias_kernel<float>));
    PREPARE(copy_rows_kernel);
#undef PREPARE
    return rc;
}
