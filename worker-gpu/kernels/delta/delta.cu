/* Gated delta nets: the convolution, and the rule token by token; prompts in chunks are delta/chunk.cu's.
 *
 * The convolution also gives q and k their length. The rule has a block for each v head of a row.
 * (delta.cuh) */
#include "worker-gpu/kernels/delta/delta.cuh"

/* ---- convolution ---- */

static const uint32_t CONV_WARPS = 8,
                      CONV_RUN = 8; /* tokens that a warp of a chunk takes one after another */

template <uint32_t STEPS>
__global__ void __launch_bounds__(CONV_WARPS * 32)
    delta_convolve_kernel(const __grid_constant__ delta_params p, uint32_t run)
{
    const gpuk_delta &d = p.d;
    const uint32_t head = blockIdx.y * CONV_WARPS + (threadIdx.x >> 5), first = blockIdx.x * run;
    if (head >= 2 * d.key_heads + d.value_heads) return;
    const conv_head<STEPS> own(p, head);
    wait_for_previous();
    let_next_start();
    const uint32_t count = d.step.counts[0], end = first + run < count ? first + run : count;
    conv_columns<STEPS> c;
    uint32_t of = UINT32_MAX; /* the row whose columns these are */
    for (uint32_t t = first; t < end; t++) {
        const uint32_t row = d.step.token_row[t];
        if (row != of) conv_before(p, t, row, own, c), of = row;
        conv_token(p, t, own, c);
    }
}

/* ---- the rule, token by token ---- */

static const uint32_t RULE_TOGETHER = 8;

struct rule_team {
    static __device__ __forceinline__ uint32_t threads() { return blockDim.x; }
    static __device__ __forceinline__ void meet() { __syncthreads(); }
};

/* A head's matrix as the block has left it. */
__device__ __forceinline__ void copy_matrix(const gpuk_delta &d, float *to, const float *from)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x * 4; i < d.key_dim * d.value_dim; i += blockDim.x * 4)
        *reinterpret_cast<float4 *>(to + i) = __ldcg(reinterpret_cast<const float4 *>(from + i));
}

/* grid: [v heads][rows]. chunks: rows of many tokens are another kernel's. */
template <uint32_t ROWS>
__global__ void __launch_bounds__(512) delta_rule_kernel(const __grid_constant__ delta_params p, bool chunks)
{
    SHARED_DYNAMIC(float, memory);
    const gpuk_delta &d = p.d;
    const uint32_t head = blockIdx.x, row = blockIdx.y;
    const bool counts = row < d.step.counts[1];
    const uint32_t first = counts ? d.step.row_first[row] : 0, end = counts ? d.step.row_first[row + 1] : 0;
    char *record = counts ? delta_record(d, row) : nullptr;
    const bool mine = counts && first < end && !delta_is_chunked(end - first, chunks);
    if (mine) rule_ask(d, delta_matrix(d, record, head), blockDim.x);
    wait_for_previous();
    let_next_start();
    if (first >= end) return;
    const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    /* a thread has the same channels of all, and the record's own come last */
    for (gpuk_left_at left = delta_left_after(d, row, first, end); left.to;
         left = delta_left_after(d, row, left.at, end))
        keep_columns(p, record, left.to, first, left.at - first, thread, threads);
    keep_columns(p, record, record, first, end - first, thread, threads);
    for (uint32_t from = first; mine && from < end;) {
        const gpuk_left_at left = delta_left_after(d, row, from, end);
        rule_row<rule_team>(p, rule_shared<ROWS, RULE_TOGETHER>(memory, d.value_dim),
                            delta_matrix(d, record, head), head, from, left.at);
        if (left.to) copy_matrix(d, delta_matrix(d, left.to, head), delta_matrix(d, record, head));
        from = left.at;
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

int gpuk_delta_check(const char *what, const struct gpuk_delta *d, uint32_t tokens, struct helm_err *err)
{
    if (tokens == 0 || tokens > 1u << 20 || d->rows == 0)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u tokens of %u rows (1 to 2^20)", what, tokens, d->rows);
    if (d->key_heads == 0 || d->value_heads == 0 || d->value_heads % d->key_heads != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: %u v heads of %u k heads", what, d->value_heads,
                         d->key_heads);
    if (d->key_dim == 0 || d->value_dim == 0 || d->key_dim % GPUK_DELTA_HEAD_UNIT ||
        d->value_dim % GPUK_DELTA_HEAD_UNIT || d->key_dim > GPUK_DELTA_HEAD_MAX ||
        d->value_dim > GPUK_DELTA_HEAD_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s: heads of %u and %u numbers (multiples of %d, at most %d)", what, d->key_dim,
                         d->value_dim, GPUK_DELTA_HEAD_UNIT, GPUK_DELTA_HEAD_MAX);
    if (((size_t)d->state | d->slot_bytes | d->matrices_at | (size_t)d->mixed) % 16)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: records are not at multiples of 16 bytes", what);
    return HELM_OK;
}

extern "C" int gpuk_delta_convolve(const struct gpuk_delta *args, uint32_t tokens, uint32_t flags,
                                   void *stream, struct helm_err *err)
{
    const int rc = gpuk_delta_check("delta convolution", args, tokens, err);
    if (rc) return rc;
    const uint32_t run = tokens <= GPUK_BATCH_MAX ? 1 : CONV_RUN,
                   heads = 2 * args->key_heads + args->value_heads;
    const bool small = args->key_dim <= 128 && args->value_dim <= 128;
    return gpuk_launch("delta convolution", small ? delta_convolve_kernel<4> : delta_convolve_kernel<8>,
                       dim3(div_up(tokens, run), div_up(heads, CONV_WARPS)), dim3(CONV_WARPS * 32), 0, flags,
                       stream, err, delta_params_of(args), run);
}

extern "C" int gpuk_delta_rule(const struct gpuk_device *device, const struct gpuk_delta *args,
                               uint32_t tokens, uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = gpuk_delta_check("delta rule", args, tokens, err);
    if (rc) return rc;
    const bool small = args->key_dim <= 128, chunks = args->chunks && tokens >= DELTA_CHUNKED_FROM &&
                                                      delta_chunks_fit(device, args->key_dim);
    const uint32_t rows = args->rows < tokens ? args->rows : tokens; /* each has a token */
    rc = gpuk_launch("delta rule", small ? delta_rule_kernel<16> : delta_rule_kernel<32>,
                     dim3(args->value_heads, rows), dim3(args->value_dim / RULE_COLUMNS * 32),
                     small ? rule_shared<16, RULE_TOGETHER>::bytes(args->value_dim)
                           : rule_shared<32, RULE_TOGETHER>::bytes(args->value_dim),
                     flags, stream, err, delta_params_of(args), chunks);
    return rc || !chunks ? rc : delta_chunks_launch(device, args, tokens, flags, stream, err);
}

int gpuk_prepare_delta(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = gpuk_prepare("delta convolution", delta_convolve_kernel<4>, 0, err);
    if (!rc) rc = gpuk_prepare("delta convolution", delta_convolve_kernel<8>, 0, err);
    if (!rc) rc = gpuk_prepare("delta rule", delta_rule_kernel<16>, 0, err);
    if (!rc) rc = gpuk_prepare("delta rule", delta_rule_kernel<32>, 0, err);
    return rc ? rc : delta_chunks_prepare(device, err);
}
