/* A shared expert's weight times its activations. See weigh.h.
 *
 * A token's product with the weight's vector is small beside what reads it, so each block of a token makes it
 * for itself. */
#include "worker-gpu/kernels/weigh.h"

#include "worker-gpu/kernels/device.cuh"

static const uint32_t THREADS = 256, EACH = 8; /* activations that a thread takes at a time */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    weigh_kernel(const uint32_t *count, const __grid_constant__ struct gpuk_weigh q, bool vector)
{
    __shared__ float scratch[32];
    wait_for_previous();
    let_next_start();
    if (count && blockIdx.x >= *count) return;
    const float *x = q.x + (size_t)blockIdx.x * q.width;
    float squares = 0, product = 0;
    for (uint32_t i = threadIdx.x; i < q.width; i += THREADS) {
        const float v = __ldcg(x + i);
        squares += v * v;
        product += v * __ldg(q.norm + i) * __ldg(q.weight + i);
    }
    squares = block_sum(squares, scratch);
    product = block_sum(product, scratch) * rsqrtf(squares / (float)q.width + q.eps);
    const float weight = 1.0f / (1.0f + expf(-product));
    T *act = (T *)q.act + (size_t)blockIdx.x * q.n;
    const uint32_t step = gridDim.y * THREADS * EACH;
    for (uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * EACH; i < q.n; i += step) {
        if (vector) {
            float v[EACH];
            load8<T>(act + i, v);
#pragma unroll
            for (uint32_t j = 0; j < EACH; j++) v[j] *= weight;
            store8<T>(act + i, v);
            continue;
        }
        for (uint32_t j = i; j < i + EACH && j < q.n; j++)
            act[j] = element<T>::store(element<T>::load(act[j]) * weight);
    }
}

int gpuk_prepare_weigh(struct helm_err *err)
{
    int rc = gpuk_prepare("weigh", weigh_kernel<float>, 0, err);
    if (!rc) rc = gpuk_prepare("weigh", weigh_kernel<__nv_bfloat16>, 0, err);
    return rc ? rc : gpuk_prepare("weigh", weigh_kernel<__half>, 0, err);
}

extern "C" int gpuk_weigh(const struct gpuk_weigh *args, uint32_t tokens, const uint32_t *count,
                          uint32_t flags, void *stream, struct helm_err *err)
{
    if (tokens == 0 || args->width == 0 || args->n == 0 || tokens > (1u << 24))
        return helm_fail(err, HELM_E_LIMIT, "weigh: %u tokens of %u and %u numbers (1 to 2^24 tokens)",
                         tokens, args->width, args->n);
    const bool vector = args->n % EACH == 0 && (size_t)args->act % 16 == 0;
    const dim3 grid(tokens, tokens <= GPUK_BATCH_MAX ? div_up(args->n, THREADS * EACH) : 1);
#define LAUNCH(T)                                                                                            \
    gpuk_launch("weigh", weigh_kernel<T>, grid, dim3(THREADS), 0, flags, stream, err, count, *args, vector)
    switch (args->dtype) {
    case DTYPE_BF16:
        return LAUNCH(__nv_bfloat16);
    case DTYPE_F16:
        return LAUNCH(__half);
    case DTYPE_F32:
        return LAUNCH(float);
    default:
        return helm_fail(err, HELM_E_UNSUPPORTED, "weigh: dtype %d", (int)args->dtype);
    }
#undef LAUNCH
}
