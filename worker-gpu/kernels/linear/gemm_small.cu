/* Linear layers for 2 to 16 tokens: every weight is still read once, so they cost little more than one
 * token's.
 *
 *   plain    A warp takes a pair of rows and keeps a sum for each token. Any shape, dtype and device.
 *   tensor   (8.0 and later; values of 16 bits, where addresses allow pieces) m16n8k16. The 8 warps of a
 *            block share its rows and split the columns 64 at a time; sums meet in shared memory. Which k a
 *            fragment's element is does not matter as long as A and B agree, so a thread's 16 bytes of a row,
 *            as loaded, are the fragments of two instructions: no shuffles, no shared memory. Rows g and g +
 *            8 of a fragment are a pair (linear.cuh), so gate and up of one output meet in one thread.
 *            Activations are high + low 16-bit parts, two products. A first kernel normalises the tokens and
 *            lays them out.
 *   stream   (9.0 and later) gemm_stream.cu, wherever it takes a layer.
 * Launchers below; worker-gpu/kernels/kernels.h says what they mean. */
#include "worker-gpu/kernels/formats/decode.cuh"

static const uint32_t THREADS = 256, WARPS = THREADS / 32;

/* ---- the tokens --------------------------------------------------------------------------------- */

/* Token t of x, normalised, as fp32 (high == NULL) or as high and low parts; zeros from *count on. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    pack_kernel(const __grid_constant__ linear_params p, const uint32_t *count, float *plain, T *high, T *low)
{
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
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

template <typename D, int TOKENS>
__global__ void __launch_bounds__(THREADS)
    gemm_plain(const __grid_constant__ linear_params p, const uint32_t *count, const float *x)
{
    wait_for_previous();
    let_next_start();
    const uint32_t lane = threadIdx.x & 31, tokens = *count < TOKENS ? *count : TOKENS;
    for (uint32_t pair = blockIdx.x * WARPS + (threadIdx.x >> 5); pair < p.pairs; pair += gridDim.x * WARPS) {
        linear_pair rows = linear_locate(p, pair);
        const unsigned char *row_b = rows.b ? rows.b : rows.a;
        float a[TOKENS], b[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++) a[t] = 0, b[t] = 0;
#pragma unroll 2
        for (uint32_t c = lane; c < p.cols; c += 32) {
            float fa = D::number(rows.a, c), fb = D::number(row_b, c);
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

/* A token's values that meet a piece, the 16-bit ones from its columns on; `there`: they are within the
 * row. */
template <typename D, typename T> __device__ __forceinline__ uint4 piece_tokens(const T *from, bool there)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    if (!there) return v;
    if constexpr (D::PIECE_APART == 4) return __ldcg(reinterpret_cast<const uint4 *>(from));
    const uint2 first = __ldcg(reinterpret_cast<const uint2 *>(from)),
                second = __ldcg(reinterpret_cast<const uint2 *>(from + D::PIECE_APART));
    return make_uint4(first.x, first.y, second.x, second.y);
}
/* The sums of a fragment's two rows, of which u and v are pieces: products of 16 columns have a scale of
 * their own. tokens: sums of the tokens over the same columns. */
template <typename D>
__device__ __forceinline__ void add_scaled(float sum[4], const float (*part)[4], const float (*tokens)[4],
                                           const typename D::piece &u, const typename D::piece &v)
{
#pragma unroll
    for (uint32_t group = 0; group < D::GROUPS; group++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const block_scales &s = i < 2 ? u.scales : v.scales;
            sum[i] += part[group][i] * s.scale[group];
            if (D::LEAST) sum[i] -= tokens[group][i] * s.least[group];
        }
}

/* M fragments of 8 pairs and N of 8 tokens a warp. */
template <typename D, int M, int N>
__global__ void __launch_bounds__(THREADS)
    gemm_tensor(const __grid_constant__ linear_params p, const uint32_t *count, const typename D::value *high,
                const typename D::value *low)
{
    typedef typename D::value T;
    __shared__ float4 shared[WARPS][M][N][32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
    const uint32_t first_pair = blockIdx.x * 8 * M;
    const unsigned char *wa[M], *wb[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t pair = first_pair + m * 8 + g; /* beyond the end: any row will do, its sums are not stored */
        linear_pair rows = linear_locate(p, pair < p.pairs ? pair : p.pairs - 1);
        wa[m] = rows.a;
        wb[m] = rows.b ? rows.b : rows.a;
        if (warp * 64 < p.cols && (lane & 3) == 0) {
            ask_l2(wa[m] + D::bytes(warp * 64));
            ask_l2(wb[m] + D::bytes(warp * 64));
        }
    }
    wait_for_previous();
    let_next_start();
    float sum[M][N][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[m][n][i] = 0;

    const typename D::piece nothing = {};
    for (uint32_t base = warp * 64; base < p.cols; base += WARPS * 64) {
        typename D::piece a[M][2], b[M][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t c = base + h * 32 + (lane & 3) * 8;
#pragma unroll
            for (int m = 0; m < M; m++) {
                a[m][h] = c < p.cols ? D::piece_at(wa[m], c) : nothing;
                b[m][h] = c < p.cols ? D::piece_at(wb[m], c) : nothing;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t c = base + h * 32 + (lane & 3) * 8;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const size_t at = (size_t)(n * 8 + g) * p.cols + D::piece_column(c);
                const uint4 x = piece_tokens<D>(high + at, c < p.cols),
                            y = piece_tokens<D>(low + at, c < p.cols);
                float tokens[2][4] = {};
                if constexpr (D::SCALED) {
                    if constexpr (D::LEAST) { /* sums of tokens, as products with ones */
                        const uint32_t one = element<T>::pack(1, 1);
                        matrix_unit<T>::add(tokens[0], one, one, one, one, x.x, x.y);
                        matrix_unit<T>::add(tokens[0], one, one, one, one, y.x, y.y);
                        matrix_unit<T>::add(tokens[D::GROUPS - 1], one, one, one, one, x.z, x.w);
                        matrix_unit<T>::add(tokens[D::GROUPS - 1], one, one, one, one, y.z, y.w);
                    }
                }
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const uint4 u = D::halves(a[m][h]), v = D::halves(b[m][h]);
                    if constexpr (D::SCALED) {
                        float part[2][4] = {};
                        matrix_unit<T>::add(part[0], u.x, v.x, u.y, v.y, x.x, x.y);
                        matrix_unit<T>::add(part[D::GROUPS - 1], u.z, v.z, u.w, v.w, x.z, x.w);
                        matrix_unit<T>::add(part[0], u.x, v.x, u.y, v.y, y.x, y.y);
                        matrix_unit<T>::add(part[D::GROUPS - 1], u.z, v.z, u.w, v.w, y.z, y.w);
                        add_scaled<D>(sum[m][n], part, tokens, a[m][h], b[m][h]);
                    } else {
                        matrix_unit<T>::add(sum[m][n], u.x, v.x, u.y, v.y, x.x, x.y);
                        matrix_unit<T>::add(sum[m][n], u.z, v.z, u.w, v.w, x.z, x.w);
                        matrix_unit<T>::add(sum[m][n], u.x, v.x, u.y, v.y, y.x, y.y);
                        matrix_unit<T>::add(sum[m][n], u.z, v.z, u.w, v.w, y.z, y.w);
                    }
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

template <typename D> static bool plain_takes(const struct linear_call &)
{
    return true;
}
template <typename D> static int plain_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct linear_params &params = call.params;
    float *x = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES);
    int rc = gpuk_launch("gemm: tokens", pack_kernel<typename D::value>, dim3(call.tokens), dim3(THREADS), 0,
                         call.flags, call.stream, err, params, call.count, x, nullptr, nullptr);
    if (rc) return rc;
    uint32_t blocks = div_up(params.pairs, WARPS), most = (uint32_t)call.device->sm_count * 8;
    /* not early: it reads the tokens through the L1, which must not hold what an earlier kernel left there */
    return gpuk_launch("gemm", call.tokens <= 4 ? gemm_plain<D, 4> : gemm_plain<D, 16>,
                       dim3(blocks < most ? blocks : most), dim3(THREADS), 0, 0, call.stream, err, params,
                       call.count, (const float *)x);
}
template <typename D> static int plain_prepare(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("gemm: tokens", (pack_kernel<typename D::value>), 0, err);
    if (!rc) rc = gpuk_prepare("gemm", (gemm_plain<D, 4>), 0, err);
    return rc ? rc : gpuk_prepare("gemm", (gemm_plain<D, 16>), 0, err);
}

template <typename D> static bool tensor_takes(const struct linear_call &call)
{
    return call.device->tensor_cores && D::takes_pieces(call.args);
}
template <typename T> using tensor_function = void (*)(linear_params, const uint32_t *, const T *, const T *);
/* [of 4, 2 and 1 fragments of rows][of 8 and 16 tokens] */
template <typename D>
static const tensor_function<typename D::value> tensor_kernel[3][2] = {
    {gemm_tensor<D, 4, 1>, gemm_tensor<D, 4, 2>},
    {gemm_tensor<D, 2, 1>, gemm_tensor<D, 2, 2>},
    {gemm_tensor<D, 1, 1>, gemm_tensor<D, 1, 2>}};
template <typename D> static int tensor_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct linear_params &params = call.params;
    const bool wide = call.tokens > 8;
    typedef typename D::value T;
    T *high = (T *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES),
      *low = high + (size_t)(wide ? 16 : 8) * params.cols;
    int rc = gpuk_launch("gemm: tokens", pack_kernel<typename D::value>, dim3(wide ? 16 : 8), dim3(THREADS),
                         0, call.flags, call.stream, err, params, call.count, nullptr, high, low);
    if (rc) return rc;
    /* more rows a block read the tokens less often, fewer leave no multiprocessor idle */
    const uint32_t sms = (uint32_t)call.device->sm_count;
    const int shape = params.pairs >= 32 * 2 * sms ? 0 : params.pairs >= 16 * sms ? 1 : 2;
    return gpuk_launch("gemm", tensor_kernel<D>[shape][wide], dim3(div_up(params.pairs, 8 * (4u >> shape))),
                       dim3(THREADS), 0, call.flags, call.stream, err, params, call.count, (const T *)high,
                       (const T *)low);
}
template <typename D> static int tensor_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int i = 0; i < 6 && !rc && device->tensor_cores; i++)
        rc = gpuk_prepare("gemm", tensor_kernel<D>[i / 2][i % 2], 0, err);
    return rc;
}

#define PLAIN(D)                                                                                             \
    {                                                                                                        \
        "plain", plain_takes<D>, plain_launch<D>, plain_prepare<D>                                           \
    }
linear_kernels gemm_plain_kernels = BY_FORMAT(PLAIN, {});
template <typename D> static constexpr struct linear_kernel tensor_of()
{
    if constexpr (sizeof(typename D::value) == 2)
        return {"tensor", tensor_takes<D>, tensor_launch<D>, tensor_prepare<D>};
    return {};
}
#define TENSOR(D) tensor_of<D>()
linear_kernels gemm_tensor_kernels = BY_FORMAT(TENSOR, {});
