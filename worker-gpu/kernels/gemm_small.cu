/* Linear layers for 2 to 16 tokens: every weight is still read once, so they cost little more than one
 * token's.
 *
 *   plain    a warp takes a pair of rows and keeps a sum for each token. Any shape, dtype and device.
 *   tensor   (8.0 and later, bf16 and f16, rows of whole 16-byte units) m16n8k16. The 8 warps of a block
 * share its rows and split the columns 64 at a time; sums meet in shared memory. Which k a fragment's element
 * is does not matter as long as A and B agree, so a thread's 16 bytes of a row, as loaded, are the fragments
 * of two instructions: no shuffles, no shared memory. Rows g and g + 8 of a fragment are a pair (linear.cuh),
 *            so gate and up of one output meet in one thread. Activations are high + low 16-bit parts, two
 * products. A first kernel normalises the tokens and lays them out.
 *   stream   (9.0 and later) gemm_stream.cu, wherever gpuk_gemm_streams says so.
 * Launchers below; worker-gpu/kernels.h says what they mean. */
#include "worker-gpu/kernels/gemm_stream.cuh"

static const uint32_t THREADS = 256, WARPS = THREADS / 32;

/* ---- the tokens --------------------------------------------------------------------------------- */

/* Token t of x, normalised, as fp32 (high == NULL) or as high and low parts; zeros from *count on. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    pack_kernel(const __grid_constant__ linear_params p, const uint32_t *count, float *plain, T *high, T *low)
{
    __shared__ float scratch[32];
    let_next_start();
    wait_for_previous();
    const uint32_t t = blockIdx.x;
    const bool counts = t < *count;
    const float *from = p.x + (size_t)t * p.x_stride;
    float scale = 1.0f;
    if (p.norm && counts) {
        float squares = 0;
        for (uint32_t i = threadIdx.x; i < p.cols; i += THREADS) {
            float v = __ldcg(from + i);
            squares += v * v;
        }
        scale = rsqrtf(block_sum(squares, scratch) / (float)p.cols + p.eps);
    }
    for (uint32_t i = threadIdx.x; i < p.cols; i += THREADS) {
        float v = counts ? __ldcg(from + i) : 0.0f;
        if (p.norm && counts) v = v * scale * p.norm[i];
        size_t at = (size_t)t * p.cols + i;
        if (!high) {
            plain[at] = v;
            continue;
        }
        if constexpr (sizeof(T) == 2) {
            if (fabsf(v) > element<T>::largest())
                v = copysignf(element<T>::largest(), v); /* a low part needs it */
            T part = element<T>::store(v);
            high[at] = part;
            low[at] = element<T>::store(v - element<T>::load(part));
        }
    }
}

/* ---- plain -------------------------------------------------------------------------------------- */

template <typename T, int TOKENS>
__global__ void __launch_bounds__(THREADS)
    gemm_plain(const __grid_constant__ linear_params p, const uint32_t *count, const float *x)
{
    let_next_start();
    wait_for_previous();
    const uint32_t lane = threadIdx.x & 31, tokens = *count < TOKENS ? *count : TOKENS;
    for (uint32_t pair = blockIdx.x * WARPS + (threadIdx.x >> 5); pair < p.pairs; pair += gridDim.x * WARPS) {
        linear_pair rows = linear_locate(p, pair);
        const T *wa = reinterpret_cast<const T *>(rows.a),
                *wb = rows.b ? reinterpret_cast<const T *>(rows.b) : wa;
        float a[TOKENS], b[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++) a[t] = 0, b[t] = 0;
#pragma unroll 2
        for (uint32_t c = lane; c < p.cols; c += 32) {
            float fa = element<T>::load(wa[c]), fb = element<T>::load(wb[c]);
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                float v = (uint32_t)t < tokens ? x[(size_t)t * p.cols + c] : 0.0f;
                a[t] += fa * v, b[t] += fb * v;
            }
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float sa = warp_sum(a[t]), sb = warp_sum(b[t]);
            if (lane == 0 && (uint32_t)t < tokens) linear_finish(p, pair, t, sa, sb);
        }
    }
}

/* ---- tensor ------------------------------------------------------------------------------------- */

/* M fragments of 8 pairs and N of 8 tokens a warp. */
template <typename T, int M, int N>
__global__ void __launch_bounds__(THREADS)
    gemm_tensor(const __grid_constant__ linear_params p, const uint32_t *count, const T *high, const T *low)
{
    __shared__ float4 shared[WARPS][M][N][32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
    const uint32_t first_pair = blockIdx.x * 8 * M;
    let_next_start();
    const T *wa[M], *wb[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t pair = first_pair + m * 8 + g; /* beyond the end: any row will do, its sums are not stored */
        linear_pair rows = linear_locate(p, pair < p.pairs ? pair : p.pairs - 1);
        wa[m] = reinterpret_cast<const T *>(rows.a);
        wb[m] = reinterpret_cast<const T *>(rows.b ? rows.b : rows.a);
        if (warp * 64 < p.cols && (lane & 3) == 0) {
            ask_l2(wa[m] + warp * 64);
            ask_l2(wb[m] + warp * 64);
        }
    }
    wait_for_previous();
    float sum[M][N][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[m][n][i] = 0;

    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (uint32_t base = warp * 64; base < p.cols; base += WARPS * 64) {
        uint4 a[M][2], b[M][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t c = base + h * 32 + (lane & 3) * 8;
#pragma unroll
            for (int m = 0; m < M; m++) {
                a[m][h] = c < p.cols ? load_weight16(wa[m] + c) : zero;
                b[m][h] = c < p.cols ? load_weight16(wb[m] + c) : zero;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t c = base + h * 32 + (lane & 3) * 8;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const size_t at = (size_t)(n * 8 + g) * p.cols + c;
                uint4 x = c < p.cols ? __ldcg(reinterpret_cast<const uint4 *>(high + at)) : zero;
                uint4 y = c < p.cols ? __ldcg(reinterpret_cast<const uint4 *>(low + at)) : zero;
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const uint4 &u = a[m][h], &v = b[m][h];
                    matrix_unit<T>::add(sum[m][n], u.x, v.x, u.y, v.y, x.x, x.y);
                    matrix_unit<T>::add(sum[m][n], u.z, v.z, u.w, v.w, x.z, x.w);
                    matrix_unit<T>::add(sum[m][n], u.x, v.x, u.y, v.y, y.x, y.y);
                    matrix_unit<T>::add(sum[m][n], u.z, v.z, u.w, v.w, y.z, y.w);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
            shared[warp][m][n][lane] = make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]);
    __syncthreads();
    const uint32_t tokens = *count;
    for (uint32_t i = threadIdx.x; i < M * N * 32; i += THREADS) {
        const uint32_t l = i & 31, n = i / 32 % N, m = i / 32 / N;
        float4 total = shared[0][m][n][l];
#pragma unroll
        for (uint32_t w = 1; w < WARPS; w++) {
            float4 v = shared[w][m][n][l];
            total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
        }
        const uint32_t pair = first_pair + m * 8 + (l >> 2), t = n * 8 + (l & 3) * 2;
        if (pair >= p.pairs) continue;
        if (t < tokens) linear_finish(p, pair, t, total.x, total.z);
        if (t + 1 < tokens) linear_finish(p, pair, t + 1, total.y, total.w);
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

extern "C" size_t gpuk_gemm_small_workspace_bytes(uint32_t tokens, uint32_t cols)
{
    return GPUK_LINEAR_COUNTER_BYTES + (gpuk_linear_sums_bytes(tokens, cols) + 255) / 256 * 256;
}

template <typename T>
static int run_plain(const struct gpuk_device *device, const struct linear_params *params, uint32_t tokens,
                     const uint32_t *count, void *workspace, uint32_t flags, void *stream,
                     struct helm_err *err)
{
    int rc = gpuk_launch("gemm: tokens", pack_kernel<T>, dim3(tokens), dim3(THREADS), 0, flags, stream, err,
                         *params, count, (float *)workspace, nullptr, nullptr);
    if (rc) return rc;
    uint32_t blocks = div_up(params->pairs, WARPS), most = (uint32_t)device->sm_count * 8;
    /* not early: it reads the tokens through the L1, which must not hold what an earlier kernel left there */
    dim3 grid(blocks < most ? blocks : most);
    if (tokens <= 4)
        return gpuk_launch("gemm", gemm_plain<T, 4>, grid, dim3(THREADS), 0, 0, stream, err, *params, count,
                           (const float *)workspace);
    return gpuk_launch("gemm", gemm_plain<T, 16>, grid, dim3(THREADS), 0, 0, stream, err, *params, count,
                       (const float *)workspace);
}

template <typename T, int M, int N>
static int run_tensor_shape(const struct linear_params *params, const uint32_t *count, const T *high,
                            const T *low, uint32_t flags, void *stream, struct helm_err *err)
{
    return gpuk_launch("gemm", gemm_tensor<T, M, N>, dim3(div_up(params->pairs, 8 * M)), dim3(THREADS), 0,
                       flags, stream, err, *params, count, high, low);
}

template <typename T>
static int run_tensor(const struct gpuk_device *device, const struct linear_params *params, uint32_t tokens,
                      const uint32_t *count, void *workspace, uint32_t flags, void *stream,
                      struct helm_err *err)
{
    const bool wide = tokens > 8;
    T *high = (T *)workspace, *low = high + (size_t)(wide ? 16 : 8) * params->cols;
    int rc = gpuk_launch("gemm: tokens", pack_kernel<T>, dim3(wide ? 16 : 8), dim3(THREADS), 0, flags, stream,
                         err, *params, count, nullptr, high, low);
    if (rc) return rc;
    /* more rows a block read the tokens less often, fewer leave no multiprocessor idle */
    const uint32_t sms = (uint32_t)device->sm_count;
    const int m = params->pairs >= 32 * 2 * sms ? 4 : params->pairs >= 16 * sms ? 2 : 1;
#define RUN(M)                                                                                               \
    (wide ? run_tensor_shape<T, M, 2>(params, count, high, low, flags, stream, err)                          \
          : run_tensor_shape<T, M, 1>(params, count, high, low, flags, stream, err))
    return m == 4 ? RUN(4) : m == 2 ? RUN(2) : RUN(1);
#undef RUN
}

extern "C" int gpuk_gemm_small(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                               uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                               void *stream, struct helm_err *err)
{
    struct linear_params params;
    int rc = gpuk_linear_params("gemm", args, &params, err);
    if (rc) return rc;
    if (tokens == 0 || tokens > GPUK_BATCH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "gemm: %u tokens (1 to %d)", tokens, GPUK_BATCH_MAX);
    uint32_t *counters = (uint32_t *)workspace;
    workspace = (char *)workspace + GPUK_LINEAR_COUNTER_BYTES;
    if (gpuk_gemm_streams(device, args, tokens))
        return gpuk_gemm_stream(device, args->dtype, &params, tokens, count, counters, (float *)workspace,
                                flags, stream, err);
    bool tensor = device->tensor_cores && gpuk_linear_aligned(args);
    switch (args->dtype) {
    case DTYPE_BF16:
        return tensor
                   ? run_tensor<__nv_bfloat16>(device, &params, tokens, count, workspace, flags, stream, err)
                   : run_plain<__nv_bfloat16>(device, &params, tokens, count, workspace, flags, stream, err);
    case DTYPE_F16:
        return tensor ? run_tensor<__half>(device, &params, tokens, count, workspace, flags, stream, err)
                      : run_plain<__half>(device, &params, tokens, count, workspace, flags, stream, err);
    default:
        return run_plain<float>(device, &params, tokens, count, workspace, flags, stream, err);
    }
}

template <typename T> static int prepare_tensor(struct helm_err *err)
{
    int rc = gpuk_prepare("gemm", (gemm_tensor<T, 1, 1>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_tensor<T, 1, 2>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_tensor<T, 2, 1>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_tensor<T, 2, 2>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_tensor<T, 4, 1>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_tensor<T, 4, 2>), 0, err);
    return rc;
}
template <typename T> static int prepare_plain(struct helm_err *err)
{
    int rc = gpuk_prepare("gemm: tokens", (pack_kernel<T>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_plain<T, 4>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_plain<T, 16>), 0, err);
    return rc;
}
int gpuk_prepare_gemm_small(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = prepare_plain<__nv_bfloat16>(err);
    if (!rc) rc = prepare_plain<__half>(err);
    if (!rc) rc = prepare_plain<float>(err);
    if (!rc && device->tensor_cores) rc = prepare_tensor<__nv_bfloat16>(err);
    if (!rc && device->tensor_cores) rc = prepare_tensor<__half>(err);
    if (!rc) rc = gpuk_prepare_gemm_stream(device, err);
    return rc;
}
