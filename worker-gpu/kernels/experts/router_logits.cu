/* A router's logits of a chunk, and of a few tokens. See experts.h.
 *
 * Launchers below; called by the CUDA device and tests. Products and sums are fp32, since experts are chosen
 * by what is left of differences. A block has 32 tokens, 128 experts and some columns of x and of the router;
 * sums of a token's squares come with its x. A second kernel adds the columns' sums in order and applies the
 * norm, so that a token has the same bits among any others. */
#include "worker-gpu/kernels/experts/experts.cuh"

static const uint32_t THREADS = 256, TOKENS = 32, EXPERTS = 128, STEP = 32, FINISH_THREADS = 128;
/* Columns of a block: of a chunk, and of a few tokens, which have fewer blocks otherwise than there are
 * multiprocessors. */
static const uint32_t PART = 256, PART_FEW = 64;
/* From one column to the next in shared memory: a warp's stores, 8 columns of 4 rows, meet all banks. */
static const uint32_t X_PITCH = TOKENS + 4, W_PITCH = EXPERTS + 4;

struct logits_params {
    const float *weight, *bias, *x, *norm;
    const uint32_t *count;
    float *sums, *squares; /* [part][token][expert], [part][token] */
    float *out;
    uint32_t first, tokens; /* of the chunk: what a launch has */
    uint32_t experts, cols, part, parts, x_stride, out_stride;
    float eps;
};

/* Tokens of the launch that count. */
__device__ __forceinline__ uint32_t logits_tokens(const logits_params &q)
{
    const uint32_t all = q.count ? *q.count : q.first + q.tokens, here = all > q.first ? all - q.first : 0;
    return here < q.tokens ? here : q.tokens;
}

/* A thread's share of a step: 4 values of one token, 8 columns apart, and as many of each of 4 experts. */
struct logits_step {
    float x[4], w[4][4];

    __device__ __forceinline__ void load(const logits_params &q, const float *x_row, const float *w_rows,
                                         uint32_t expert, uint32_t c)
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const bool in = c + 8 * i < q.cols;
            float v = in && x_row ? __ldcg(x_row + c + 8 * i) : 0.0f;
            x[i] = v;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                w[j][i] = in && expert + 32 * j < q.experts
                              ? __ldg(w_rows + (uint64_t)32 * j * q.cols + c + 8 * i)
                              : 0.0f;
        }
    }
};

__global__ void __launch_bounds__(THREADS) logits_kernel(const __grid_constant__ logits_params q)
{
    alignas(16) __shared__ float xs[STEP * X_PITCH], ws[STEP * W_PITCH];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, token = blockIdx.x * TOKENS,
                   part = blockIdx.y, first_expert = blockIdx.z * EXPERTS;
    wait_for_previous();
    let_next_start();
    const uint32_t tokens = logits_tokens(q);
    if (token >= tokens) return;
    const uint32_t row = warp * 4 + lane / 8, column = lane % 8, expert = first_expert + row,
                   begin = part * q.part, end = begin + q.part < q.cols ? begin + q.part : q.cols;
    const float *x_row =
                    token + row < tokens ? q.x + (uint64_t)(q.first + token + row) * q.x_stride : nullptr,
                *w_rows = q.weight + (uint64_t)expert * q.cols;
    const float *mine_x = xs + warp / 2 * 8, *mine_w = ws + warp % 2 * 64 + lane * 2;
    float sum[8][2] = {}, squares = 0;
    logits_step next;
    next.load(q, x_row, w_rows, expert, begin + column);
#pragma unroll 1
    for (uint32_t c = begin; c < end; c += STEP) {
        __syncthreads(); /* all are through with the step before */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t k = 8 * i + column;
            float v = next.x[i];
            squares += v * v;
            if (q.norm && c + k < q.cols) v *= __ldg(q.norm + c + k);
            xs[k * X_PITCH + row] = v;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) ws[k * W_PITCH + 32 * j + row] = next.w[j][i];
        }
        __syncthreads();
        if (c + STEP < end) next.load(q, x_row, w_rows, expert, c + STEP + column);
#pragma unroll 8
        for (uint32_t k = 0; k < STEP; k++) {
            const float4 a = *reinterpret_cast<const float4 *>(mine_x + k * X_PITCH),
                         b = *reinterpret_cast<const float4 *>(mine_x + k * X_PITCH + 4);
            const float2 w = *reinterpret_cast<const float2 *>(mine_w + k * W_PITCH);
            const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t t = 0; t < 8; t++) sum[t][0] += v[t] * w.x, sum[t][1] += v[t] * w.y;
        }
    }
#pragma unroll
    for (uint32_t t = 0; t < 8; t++) {
        const uint32_t at = token + warp / 2 * 8 + t, e = first_expert + warp % 2 * 64 + lane * 2;
        float *to = q.sums + ((uint64_t)part * q.tokens + at) * q.experts + e;
        if (at < tokens && e < q.experts) __stcg(to, sum[t][0]);
        if (at < tokens && e + 1 < q.experts) __stcg(to + 1, sum[t][1]);
    }
    if (!q.norm || blockIdx.z != 0) return;
#pragma unroll
    for (int mask = 4; mask > 0; mask >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
    if (column == 0 && token + row < tokens)
        __stcg(q.squares + (uint64_t)part * q.tokens + token + row, squares);
}

__global__ void __launch_bounds__(FINISH_THREADS) logits_finish(const __grid_constant__ logits_params q)
{
    const uint32_t token = blockIdx.x, e = blockIdx.y * FINISH_THREADS + threadIdx.x;
    wait_for_previous();
    let_next_start();
    if (token >= logits_tokens(q) || e >= q.experts) return;
    float sum = 0, squares = 0;
#pragma unroll 16
    for (uint32_t p = 0; p < q.parts; p++) {
        sum += __ldcg(q.sums + ((uint64_t)p * q.tokens + token) * q.experts + e);
        if (q.norm) squares += __ldcg(q.squares + (uint64_t)p * q.tokens + token);
    }
    if (q.norm) sum *= rsqrtf(squares / (float)q.cols + q.eps);
    if (q.bias) sum += q.bias[e];
    q.out[(uint64_t)(q.first + token) * q.out_stride + e] = sum;
}

/* ---- launcher ------------------------------------------------------------------------------------- */

extern "C" int gpuk_router_logits(const struct gpuk_router_logits *args, uint32_t tokens,
                                  const uint32_t *count, void *workspace, size_t workspace_bytes,
                                  uint32_t flags, void *stream, struct helm_err *err)
{
    if (tokens == 0 || args->experts == 0 || args->experts > MODEL_EXPERTS_MAX || args->cols == 0 ||
        args->x_stride < args->cols || args->out_stride < args->experts)
        return helm_fail(err, HELM_E_USAGE, "router: logits of %u tokens for %u experts from %u columns",
                         tokens, args->experts, args->cols);
    const uint32_t part = tokens > GPUK_BATCH_MAX ? PART : PART_FEW, parts = div_up(args->cols, part);
    /* sums, and then squares, of as many tokens as there is room for at a time */
    const uint64_t each = (uint64_t)parts * (args->experts + 1) * sizeof(float),
                   room = workspace_bytes / each;
    if (room == 0)
        return helm_fail(err, HELM_E_LIMIT, "router: a token's sums take %llu bytes of %zu",
                         (unsigned long long)each, workspace_bytes);
    const uint32_t most = room < tokens ? (uint32_t)room : tokens;
    int rc = HELM_OK;
    for (uint32_t first = 0; first < tokens && !rc; first += most) {
        const uint32_t here = tokens - first < most ? tokens - first : most;
        float *sums = static_cast<float *>(workspace);
        const logits_params q = {args->weight,
                                 args->bias,
                                 args->x,
                                 args->norm,
                                 count,
                                 sums,
                                 sums + (uint64_t)parts * here * args->experts,
                                 args->out,
                                 first,
                                 here,
                                 args->experts,
                                 args->cols,
                                 part,
                                 parts,
                                 args->x_stride,
                                 args->out_stride,
                                 args->eps};
        rc = gpuk_launch("router logits", logits_kernel,
                         dim3(div_up(here, TOKENS), parts, div_up(args->experts, EXPERTS)), dim3(THREADS), 0,
                         flags, stream, err, q);
        if (!rc)
            rc = gpuk_launch("router logits: sums", logits_finish,
                             dim3(here, div_up(args->experts, FINISH_THREADS)), dim3(FINISH_THREADS), 0,
                             flags, stream, err, q);
    }
    return rc;
}

int gpuk_prepare_router_logits(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("router logits", logits_kernel, 0, err);
    return rc ? rc : gpuk_prepare("router logits: sums", logits_finish, 0, err);
}
