/* What matrices by columns (gpuk_linear_args.columns) need beside chains: to be put so when they are loaded,
 * and small batches, whose products are cuBLASLt's (matmul.cu).
 *
 * Transposing: a block has a square of numbers, read by rows and written by columns, whole lines of 128 bytes
 * on both sides; in shared memory it lies by columns. Small batches: a block a token makes the two parts of
 * its x; another kernel adds up what the product made of them. Launchers below; worker-gpu/kernels.h says
 * what they mean. */
#include "worker-gpu/kernels/device.cuh"

/* ---- transposing -------------------------------------------------------------------------------- */

static const uint32_t THREADS = 256, SIDE = 64 /* of a square */,
                      PITCH = SIDE + 2 /* one word: other banks */;

/* Everything in units of 16 bytes, on both sides. */
__global__ void __launch_bounds__(THREADS)
    transpose_units_kernel(const uint16_t *from, uint32_t rows, uint32_t cols, uint16_t *to, uint32_t to_rows)
{
    __shared__ uint32_t words[SIDE * PITCH / 2]; /* [column][row] */
    uint16_t *square = reinterpret_cast<uint16_t *>(words);
    const uint32_t first_row = blockIdx.y * SIDE, first_col = blockIdx.x * SIDE;
    const uint32_t LINE = SIDE / 8 /* units */, OWN = SIDE * LINE / THREADS /* a thread's */;
    uint4 v[OWN];
#pragma unroll
    for (uint32_t u = 0; u < OWN; u++) {
        const uint32_t i = u * THREADS + threadIdx.x;
        const uint32_t row = first_row + i / LINE, col = first_col + i % LINE * 8;
        v[u] = row < rows && col < cols ? load_weight16(from + (uint64_t)row * cols + col)
                                        : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (uint32_t u = 0; u < OWN; u++) {
        const uint32_t i = u * THREADS + threadIdx.x, pair[4] = {v[u].x, v[u].y, v[u].z, v[u].w};
        uint16_t *at = square + i % LINE * 8 * PITCH + i / LINE;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            at[2 * j * PITCH] = (uint16_t)pair[j];
            at[(2 * j + 1) * PITCH] = (uint16_t)(pair[j] >> 16);
        }
    }
    __syncthreads();
#pragma unroll
    for (uint32_t u = 0; u < OWN; u++) {
        const uint32_t i = u * THREADS + threadIdx.x, c = i / LINE, r = i % LINE * 8;
        const uint32_t *at = words + (c * PITCH + r) / 2;
        if (first_col + c < cols && first_row + r < rows)
            *reinterpret_cast<uint4 *>(to + (uint64_t)(first_col + c) * to_rows + first_row + r) =
                make_uint4(at[0], at[1], at[2], at[3]);
    }
}

/* Any shape at any address. */
__global__ void __launch_bounds__(THREADS)
    transpose_kernel(const uint16_t *from, uint32_t rows, uint32_t cols, uint16_t *to, uint32_t to_rows)
{
    __shared__ uint16_t square[SIDE * PITCH]; /* [column][row] */
    const uint32_t first_row = blockIdx.y * SIDE, first_col = blockIdx.x * SIDE;
    for (uint32_t i = threadIdx.x; i < SIDE * SIDE; i += THREADS) {
        const uint32_t r = i / SIDE, c = i % SIDE;
        if (first_row + r < rows && first_col + c < cols)
            square[c * PITCH + r] = from[(uint64_t)(first_row + r) * cols + first_col + c];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < SIDE * SIDE; i += THREADS) {
        const uint32_t c = i / SIDE, r = i % SIDE;
        if (first_row + r < rows && first_col + c < cols)
            to[(uint64_t)(first_col + c) * to_rows + first_row + r] = square[c * PITCH + r];
    }
}

extern "C" int gpuk_transpose(const void *from, uint32_t rows, uint32_t cols, void *to, uint32_t to_rows,
                              void *stream, struct helm_err *err)
{
    if (rows == 0 || cols == 0 || to_rows < rows || div_up(rows, SIDE) > 65535)
        return helm_fail(err, HELM_E_LIMIT, "transpose: %u x %u to columns of %u", rows, cols, to_rows);
    const bool units = (rows | cols | to_rows) % 8 == 0 && ((size_t)from | (size_t)to) % 16 == 0;
    return gpuk_launch("transpose", units ? transpose_units_kernel : transpose_kernel,
                       dim3(div_up(cols, SIDE), div_up(rows, SIDE)), dim3(THREADS), 0, 0, stream, err,
                       (const uint16_t *)from, rows, cols, (uint16_t *)to, to_rows);
}

/* ---- small batches ------------------------------------------------------------------------------ */

static const uint32_t SPLIT_THREADS = 1024;

/* Numbers i to i + 3 of a row of n, as far as there are so many; `vector`: there are, and aligned. */
__device__ __forceinline__ void take4(const float *from, uint32_t i, uint32_t n, bool vector, float *v)
{
    if (vector) {
        const float4 all = __ldcg(reinterpret_cast<const float4 *>(from + i));
        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) v[j] = i + j < n ? __ldcg(from + i + j) : 0.0f;
}
template <typename T>
__device__ __forceinline__ void put4(T *to, uint32_t i, uint32_t n, bool vector, const T *v)
{
    if (vector) {
        *reinterpret_cast<uint64_t *>(to + i) = *reinterpret_cast<const uint64_t *>(v);
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        if (i + j < n) to[i + j] = v[j];
}

/* The largest of all threads' values, none negative, for all threads. */
__device__ __forceinline__ float block_largest(float v, float *shared)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    for (uint32_t warp = 0; warp < SPLIT_THREADS / 32; warp++) v = fmaxf(v, shared[warp]);
    return v;
}

template <typename T>
__global__ void __launch_bounds__(SPLIT_THREADS)
    split_kernel(const uint32_t *count, const float *x, uint32_t x_stride, uint32_t cols, T *parts,
                 float *factors, bool vector)
{
    __shared__ float scratch[32];
    const uint32_t token = blockIdx.x, tokens = gridDim.x;
    const float *from = x + (uint64_t)token * x_stride;
    T *to_high = parts + (uint64_t)token * cols, *to_low = to_high + (uint64_t)tokens * cols;
    let_next_start();
    wait_for_previous();
    const bool there = token < *count;
    float factor = 1.0f, back = 1.0f;
    if (few_exponents<T>::value && there) {
        float most = 0;
        for (uint32_t i = threadIdx.x * 4; i < cols; i += SPLIT_THREADS * 4) {
            float v[4];
            take4(from, i, cols, vector, v);
            most = fmaxf(most, fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
        }
        most = block_largest(most, scratch);
        factor = range_factor(most, false), back = range_factor(most, true);
    }
    if (threadIdx.x == 0) factors[token] = back;
    for (uint32_t i = threadIdx.x * 4; i < cols; i += SPLIT_THREADS * 4) {
        float v[4] = {0, 0, 0, 0};
        alignas(8) T high[4], low[4];
        if (there) take4(from, i, cols, vector, v);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float largest = element<T>::largest(); /* a low part needs it */
            float part = v[j] * factor;
            if (fabsf(part) > largest) part = copysignf(largest, part);
            high[j] = element<T>::store(part);
            low[j] = element<T>::store(part - element<T>::load(high[j]));
        }
        put4(to_high, i, cols, vector, high);
        put4(to_low, i, cols, vector, low);
    }
}

/* Four rows a thread. */
__global__ void __launch_bounds__(THREADS)
    join_kernel(const uint32_t *count, const float *sums, const float *factors, uint32_t rows,
                const float *bias, const float *residual, float *out, uint32_t out_stride, bool vector)
{
    const uint32_t token = blockIdx.x, tokens = gridDim.x, i = (blockIdx.y * THREADS + threadIdx.x) * 4;
    let_next_start();
    wait_for_previous();
    if (token >= *count || i >= rows) return;
    float high[4], low[4], add[4] = {0, 0, 0, 0}, more[4] = {0, 0, 0, 0};
    const float factor = __ldcg(factors + token);
    take4(sums + (uint64_t)token * rows, i, rows, vector, high);
    take4(sums + (uint64_t)(tokens + token) * rows, i, rows, vector, low);
    if (bias) take4(bias, i, rows, vector, add);
    if (residual) take4(residual + (uint64_t)token * out_stride, i, rows, vector, more);
#pragma unroll
    for (int j = 0; j < 4; j++) high[j] = (high[j] + low[j]) * factor + (add[j] + more[j]);
    float *to = out + (uint64_t)token * out_stride;
    if (vector)
        *reinterpret_cast<float4 *>(to + i) = make_float4(high[0], high[1], high[2], high[3]);
    else
        for (uint32_t j = 0; j < 4 && i + j < rows; j++) to[i + j] = high[j];
}

static int check_args(const char *what, const struct gpuk_linear_args *args, uint32_t tokens,
                      struct helm_err *err)
{
    if (!args->columns || args->segments != 1 || args->norm || args->swiglu || args->cols == 0 ||
        args->segment[0].rows == 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: not one matrix by columns, alone", what);
    if (tokens == 0 || tokens > GPUK_BATCH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u tokens (1 to %d)", what, tokens, GPUK_BATCH_MAX);
    return HELM_OK;
}

extern "C" int gpuk_split(const struct gpuk_linear_args *args, uint32_t tokens, const uint32_t *count,
                          const struct gpuk_parts *parts, uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check_args("split", args, tokens, err);
    if (rc) return rc;
    const bool vector =
        (args->cols | args->x_stride) % 4 == 0 && ((size_t)args->x | (size_t)parts->x) % 16 == 0;
#define LAUNCH(T)                                                                                            \
    gpuk_launch("split", split_kernel<T>, dim3(tokens), dim3(SPLIT_THREADS), 0, flags, stream, err, count,   \
                args->x, args->x_stride, args->cols, (T *)parts->x, parts->factors, vector)
    switch (args->dtype) {
    case DTYPE_BF16:
        return LAUNCH(__nv_bfloat16);
    case DTYPE_F16:
        return LAUNCH(__half);
    default:
        return helm_fail(err, HELM_E_UNSUPPORTED, "split: weights of dtype %d", (int)args->dtype);
    }
#undef LAUNCH
}

extern "C" int gpuk_join(const struct gpuk_linear_args *args, uint32_t tokens, const uint32_t *count,
                         const struct gpuk_parts *parts, uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check_args("join", args, tokens, err);
    if (rc) return rc;
    const struct gpuk_linear *to = &args->segment[0];
    const size_t addresses =
        (size_t)parts->sums | (size_t)to->bias | (size_t)args->residual | (size_t)to->out;
    const bool vector = (to->rows | args->out_stride) % 4 == 0 && addresses % 16 == 0;
    return gpuk_launch("join", join_kernel, dim3(tokens, div_up(to->rows, 4 * THREADS)), dim3(THREADS), 0,
                       flags, stream, err, count, parts->sums, parts->factors, to->rows, to->bias,
                       args->residual, to->out, args->out_stride, vector);
}

int gpuk_prepare_columns(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("transpose", transpose_units_kernel, 0, err);
    if (!rc) rc = gpuk_prepare("transpose", transpose_kernel, 0, err);
    if (!rc) rc = gpuk_prepare("split", split_kernel<__nv_bfloat16>, 0, err);
    if (!rc) rc = gpuk_prepare("split", split_kernel<__half>, 0, err);
    return rc ? rc : gpuk_prepare("join", join_kernel, 0, err);
}
