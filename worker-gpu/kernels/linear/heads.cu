/* A product of each head. See heads.h.
 *
 * A block takes ROWS rows of one head by some tokens: the rows' numbers are decoded to shared memory, COLS
 * columns at a time, and meet the tokens' there. A thread makes whole sums of its own, so that their order is
 * that of the columns. */
#include "worker-gpu/kernels/linear/heads.h"

#include "worker-gpu/kernels/formats/decode.cuh"

static const uint32_t ROWS = 32, COLS = 32, THREADS = 128;
/* Tokens of a block: of decode, and of a chunk. */
static const uint32_t FEW = 16, MANY = 64;

__device__ __forceinline__ float number_at(const void *from, enum dtype dtype, size_t i)
{
    if (dtype == DTYPE_F32) return __ldcg((const float *)from + i);
    if (dtype == DTYPE_BF16) return element<__nv_bfloat16>::load(((const __nv_bfloat16 *)from)[i]);
    return element<__half>::load(((const __half *)from)[i]);
}
__device__ __forceinline__ void put_number(void *to, enum dtype dtype, size_t i, float value)
{
    if (dtype == DTYPE_F32)
        ((float *)to)[i] = value;
    else if (dtype == DTYPE_BF16)
        ((__nv_bfloat16 *)to)[i] = element<__nv_bfloat16>::store(value);
    else
        ((__half *)to)[i] = element<__half>::store(value);
}

template <typename D, uint32_t TOKENS>
__global__ void __launch_bounds__(THREADS)
    heads_kernel(const uint32_t *count, const __grid_constant__ struct gpuk_heads a, uint32_t tokens)
{
    /* one number more than a row has: neighbouring rows lie in other banks */
    __shared__ float w[ROWS][COLS + 1], x[TOKENS][COLS + 1];
    wait_for_previous();
    let_next_start();
    const uint32_t most = count ? *count : tokens, t0 = blockIdx.z * TOKENS;
    const uint32_t head = a.first / a.rows + blockIdx.x, r0 = blockIdx.y * ROWS;
    if (t0 >= most) return;
    const unsigned char *weight = (const unsigned char *)a.weight;
    const uint64_t row_bytes = D::bytes(a.cols);
    float sum[TOKENS * ROWS / THREADS];
    const uint32_t row = threadIdx.x % ROWS, first_token = threadIdx.x / ROWS;
    const uint32_t apart = THREADS / ROWS; /* tokens of a thread */
#pragma unroll
    for (uint32_t i = 0; i < TOKENS / apart; i++) sum[i] = 0;
    for (uint32_t c0 = 0; c0 < a.cols; c0 += COLS) {
        for (uint32_t i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
            const uint32_t r = r0 + i / COLS, c = c0 + i % COLS, at = head * a.rows + r;
            const bool there = r < a.rows && c < a.cols && at >= a.first && at < a.first + a.count;
            w[i / COLS][i % COLS] = there ? D::number(weight + (at - a.first) * row_bytes, c) : 0.0f;
        }
        for (uint32_t i = threadIdx.x; i < TOKENS * COLS; i += THREADS) {
            const uint32_t t = t0 + i / COLS, c = c0 + i % COLS;
            const size_t at = (size_t)t * a.x_stride + (size_t)head * a.head_in + c;
            x[i / COLS][i % COLS] = t < most && c < a.cols ? number_at(a.x, a.x_dtype, at) : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (uint32_t c = 0; c < COLS; c++) {
            const float own = w[row][c];
#pragma unroll
            for (uint32_t i = 0; i < TOKENS / apart; i++)
                sum[i] = __fmaf_rn(own, x[first_token + i * apart][c], sum[i]);
        }
        __syncthreads();
    }
    const uint32_t r = r0 + row, at = head * a.rows + r, beyond = a.head_out - a.rows;
    if (r < a.rows && at >= a.first && at < a.first + a.count) {
#pragma unroll
        for (uint32_t i = 0; i < TOKENS / apart; i++) {
            const uint32_t t = t0 + first_token + i * apart;
            if (t < most)
                put_number(a.out, a.out_dtype, (size_t)t * a.out_stride + (size_t)head * a.head_out + r,
                           sum[i]);
        }
    }
    const uint32_t last = (head + 1) * a.rows - 1;
    if (r0 + ROWS < a.rows || last < a.first || last >= a.first + a.count) return;
    for (uint32_t i = threadIdx.x; i < TOKENS * beyond; i += THREADS) {
        const uint32_t t = t0 + i / beyond, d = i % beyond;
        if (t >= most) continue;
        const float value =
            number_at(a.x, a.x_dtype, (size_t)t * a.x_stride + (size_t)head * a.head_in + a.cols + d);
        put_number(a.out, a.out_dtype, (size_t)t * a.out_stride + (size_t)head * a.head_out + a.rows + d,
                   value);
    }
}

typedef void (*heads_kernel_of)(const uint32_t *, struct gpuk_heads, uint32_t);
#define KERNELS(D)                                                                                           \
    {                                                                                                        \
        heads_kernel<D, FEW>, heads_kernel<D, MANY>                                                          \
    }
/* [enum tensor_format][many tokens]; packed bf16, whose rows have no size of their own, has none */
static const heads_kernel_of kernels[FORMAT_COUNT][2] = BY_FORMAT(KERNELS, {});

int gpuk_prepare_heads(struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto &format : kernels)
        for (const heads_kernel_of kernel : format)
            if (!rc && kernel) rc = gpuk_prepare("product of heads", kernel, 0, err);
    return rc;
}

extern "C" int gpuk_heads(const struct gpuk_heads *args, uint32_t tokens, const uint32_t *count,
                          uint32_t flags, void *stream, struct helm_err *err)
{
    if (tokens == 0 || tokens > (1u << 20) || args->count == 0 || args->rows == 0 || args->cols == 0)
        return helm_fail(err, HELM_E_LIMIT,
                         "product of heads: %u tokens, %u rows of %u and %u columns (1 to 2^20 tokens)",
                         tokens, args->count, args->rows, args->cols);
    if (args->cols > args->head_in || args->rows > args->head_out ||
        args->head_out - args->rows > args->head_in - args->cols)
        return helm_fail(err, HELM_E_USAGE, "product of heads: %u of %u numbers to %u of %u", args->cols,
                         args->head_in, args->rows, args->head_out);
    const bool many = tokens > FEW;
    const heads_kernel_of kernel = (unsigned)args->format < FORMAT_COUNT ? kernels[args->format][many] : NULL;
    if (!kernel)
        return helm_fail(err, HELM_E_UNSUPPORTED, "product of heads: weights of %s",
                         tensor_format_name(args->format));
    const uint32_t heads = (args->first + args->count - 1) / args->rows - args->first / args->rows + 1;
    return gpuk_launch("product of heads", kernel,
                       dim3(heads, div_up(args->rows, ROWS), div_up(tokens, many ? MANY : FEW)),
                       dim3(THREADS), 0, flags, stream, err, count, *args, tokens);
}
