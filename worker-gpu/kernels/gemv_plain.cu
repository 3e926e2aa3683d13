/* One token's linear layers, a warp a pair of rows: any shape and alignment, every device. See linear.cu.
 *
 * Lanes load neighbouring pieces of both rows (decode.cuh), x through the L1. What devices without bulk copies have
 * for formats without groups, and what others fall back to. */
#include "worker-gpu/kernels/decode.cuh"

static const uint32_t PLAIN_THREADS = 256;

template <typename D>
__device__ __forceinline__ void add_pieces(const typename D::piece &wa, const typename D::piece &wb,
                                           const float *from, float &a, float &b)
{
    const uint32_t values = D::PIECE_VALUES;
    float fa[values], fb[values], x[values];
    D::unpack(wa, fa);
    D::unpack(wb, fb);
#pragma unroll
    for (uint32_t j = 0; j < values; j += 4)
        *reinterpret_cast<float4 *>(x + j) = *reinterpret_cast<const float4 *>(from + j / 4 * D::PIECE_APART);
#pragma unroll
    for (uint32_t j = 0; j < values; j++) a += fa[j] * x[j], b += fb[j] * x[j];
}

template <typename D, bool VECTOR>
__global__ void __launch_bounds__(PLAIN_THREADS) gemv_plain(const __grid_constant__ linear_params p)
{
    let_next_start();
    wait_for_previous();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * (blockDim.x / 32);
    for (uint32_t pair = blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5); pair < p.pairs; pair += warps) {
        linear_pair rows = linear_locate(p, pair);
        float a = 0, b = 0;
        const unsigned char *row_b = rows.b ? rows.b : rows.a;
        if constexpr (VECTOR) {
            const uint32_t values = D::PIECE_VALUES, step = 32 * values;
            uint32_t c = lane * values;
            for (; c + 3 * step < p.cols; c += 4 * step) {
                typename D::piece wa[4], wb[4]; /* eight loads in flight before the first is used */
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    wa[j] = D::piece_at(rows.a, c + j * step);
                    wb[j] = D::piece_at(row_b, c + j * step);
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
                    add_pieces<D>(wa[j], wb[j], p.x + D::piece_column(c) + j * step, a, b);
            }
            for (; c < p.cols; c += step)
                add_pieces<D>(D::piece_at(rows.a, c), D::piece_at(row_b, c), p.x + D::piece_column(c), a, b);
        } else {
#pragma unroll 4
            for (uint32_t c = lane; c < p.cols; c += 32) {
                float x = p.x[c];
                a += D::number(rows.a, c) * x;
                b += D::number(row_b, c) * x;
            }
        }
        a = warp_sum(a);
        b = warp_sum(b);
        if (lane == 0) linear_finish(p, pair, 0, a, b);
    }
}

template <typename D> static bool plain_takes(const struct linear_call &)
{
    return true;
}
typedef void (*plain_function)(linear_params);
template <typename D>
static const plain_function plain_kernel[2] = {gemv_plain<D, false>, gemv_plain<D, true>};
template <typename D> static int plain_launch(const struct linear_call &call, struct helm_err *err)
{
    const struct gpuk_linear_args *args = call.args;
    struct linear_params params = call.params;
    if (args->norm) {
        float *normed = (float *)((char *)call.workspace + GPUK_LINEAR_COUNTER_BYTES);
        int rc = gpuk_rmsnorm(NULL, 1, args->x, args->norm, args->eps, args->cols, normed, DTYPE_F32,
                              call.flags, call.stream, err);
        if (rc) return rc;
        params.x = normed;
    }
    /* never early: it reads x through the L1, which must not hold what an earlier kernel left there */
    bool vector = D::takes_pieces(args) && (size_t)params.x % 16 == 0;
    /* few rows: small blocks, so that every multiprocessor has some */
    const uint32_t sms = (uint32_t)call.device->sm_count, most = sms * 8;
    uint32_t threads = PLAIN_THREADS;
    while (threads > 64 && div_up(params.pairs, threads / 32) < sms) threads /= 2;
    uint32_t blocks = div_up(params.pairs, threads / 32);
    return gpuk_launch("gemv", plain_kernel<D>[vector], dim3(blocks < most ? blocks : most), dim3(threads), 0,
                       0, call.stream, err, params);
}
template <typename D> static int plain_prepare(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("gemv", plain_kernel<D>[0], 0, err);
    return rc ? rc : gpuk_prepare("gemv", plain_kernel<D>[1], 0, err);
}

#define PLAIN(D)                                                                                             \
    {                                                                                                        \
        "plain", plain_takes<D>, plain_launch<D>, plain_prepare<D>                                           \
    }
linear_kernels gemv_plain_kernels = BY_FORMAT(PLAIN, {});
