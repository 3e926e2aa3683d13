/* One token's linear layers, a warp a pair of rows: any shape and alignment, every device. See linear.cu.
 *
 * Lanes load neighbouring pieces of both rows (decode.cuh), x through the L1. Devices without bulk copies use
 * it for formats without groups, and other kernels fall back to it. */
#include "worker-gpu/kernels/linear/plain_rows.cuh"

static const uint32_t PLAIN_THREADS = 256;

template <typename D, bool VECTOR>
__global__ void __launch_bounds__(PLAIN_THREADS) gemv_plain(const __grid_constant__ linear_params p)
{
    wait_for_previous();
    let_next_start();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * (blockDim.x / 32);
    for (uint32_t pair = blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5); pair < p.pairs; pair += warps) {
        linear_pair rows = linear_locate(p, pair);
        const float2 sum = two_rows<D, VECTOR>(rows.a, rows.b ? rows.b : rows.a, p.x, p.cols);
        if (lane == 0) linear_finish(p, pair, 0, sum.x, sum.y);
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
