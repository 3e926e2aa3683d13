/* Gated delta nets: the convolution, and the rule token by token; prompts in chunks are delta/chunk.cu's.
 *
 * The convolution also gives q and k their length. The rule has a block for each v head of a row. A warp has 16 columns of the
 * head's state in registers, through all tokens: the state is read and written once. A lane has four columns of every eighth
 * row, so sums over rows take three exchanges, and warps meet once for some tokens: for the norm of the head's output. A token
 * is computed by the same operations however many there are. */
#include "worker-gpu/kernels/delta/delta.cuh"

/* ---- convolution ---- */

static const uint32_t CONV_WARPS = 8, CONV_RUN = 8; /* tokens that a warp of a chunk takes one after another */

/* A warp has a head's channels: lane, lane + 32, ... */
template <uint32_t STEPS> struct conv_columns {
    float x[GPUK_DELTA_COLUMNS][STEPS];
};
/* The inputs in front of token t. */
template <uint32_t STEPS>
__device__ __forceinline__ void conv_before(const delta_params &p, uint32_t t, uint32_t row, uint32_t at,
                                            uint32_t dim, conv_columns<STEPS> &c)
{
    const uint32_t lane = threadIdx.x & 31, there = t - p.d.step.row_first[row];
    const float *columns = reinterpret_cast<const float *>(delta_record(p.d, row));
#pragma unroll
    for (uint32_t w = 0; w < GPUK_DELTA_COLUMNS; w++) {
        const uint32_t back = GPUK_DELTA_COLUMNS - w;
        const float *from = back <= there ? p.d.in + (size_t)(t - back) * p.d.in_stride
                                          : columns + (size_t)(w + there) * p.channels;
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++)
            c.x[w][j] = lane + 32 * j < dim ? __ldcg(from + at + lane + 32 * j) : 0.0f;
    }
}

template <uint32_t STEPS>
__global__ void __launch_bounds__(CONV_WARPS * 32)
    delta_convolve_kernel(const __grid_constant__ delta_params p, uint32_t run)
{
    const gpuk_delta &d = p.d;
    const uint32_t lane = threadIdx.x & 31, head = blockIdx.y * CONV_WARPS + (threadIdx.x >> 5),
                   first = blockIdx.x * run;
    let_next_start();
    if (head >= 2 * d.key_heads + d.value_heads) return;
    const bool is_key = head < 2 * d.key_heads;
    const uint32_t dim = is_key ? d.key_dim : d.value_dim,
                   at = is_key ? head * d.key_dim : 2 * p.keys + (head - 2 * d.key_heads) * d.value_dim;
    const float length = head < d.key_heads ? rsqrtf((float)d.key_dim) : 1.0f;
    float weight[GPUK_DELTA_COLUMNS + 1][STEPS];
#pragma unroll
    for (uint32_t w = 0; w <= GPUK_DELTA_COLUMNS; w++)
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++)
            weight[w][j] = lane + 32 * j < dim ? d.conv[w * p.channels + at + lane + 32 * j] : 0.0f;
    wait_for_previous();
    const uint32_t count = d.step.counts[0], end = first + run < count ? first + run : count;
    conv_columns<STEPS> c;
    uint32_t of = UINT32_MAX; /* the row whose columns these are */
    for (uint32_t t = first; t < end; t++) {
        const uint32_t row = d.step.token_row[t];
        if (row != of) conv_before<STEPS>(p, t, row, at, dim, c), of = row;
        float out[STEPS], squares = 0;
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++) {
            const float now =
                lane + 32 * j < dim ? __ldcg(d.in + (size_t)t * d.in_stride + at + lane + 32 * j) : 0.0f;
            float sum = __fmul_rn(weight[0][j], c.x[0][j]);
#pragma unroll
            for (uint32_t w = 1; w < GPUK_DELTA_COLUMNS; w++) sum = __fmaf_rn(weight[w][j], c.x[w][j], sum);
            sum = __fmaf_rn(weight[GPUK_DELTA_COLUMNS][j], now, sum);
            out[j] = silu(sum);
            squares = __fmaf_rn(out[j], out[j], squares);
            c.x[0][j] = c.x[1][j], c.x[1][j] = c.x[2][j], c.x[2][j] = now;
        }
        const float scale = is_key ? rsqrtf(warp_sum(squares) + DELTA_LENGTH_EPS) * length : 1.0f;
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++)
            if (lane + 32 * j < dim) d.mixed[(size_t)t * p.channels + at + lane + 32 * j] = out[j] * scale;
    }
}

/* ---- the rule, token by token ---- */

static const uint32_t RULE_COLUMNS = 16; /* of a warp */
static const uint32_t RULE_TOGETHER = 8; /* tokens between two meetings of the warps */
static const uint32_t RULE_GROUPS = 8;   /* of rows, one for four lanes */

/* A record's columns become the row's last inputs; a part of the channels for each block of the row. */
__device__ __forceinline__ void keep_columns(const delta_params &p, char *record, uint32_t first,
                                             uint32_t count)
{
    float *columns = reinterpret_cast<float *>(record);
    for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < p.channels; c += gridDim.x * blockDim.x) {
        float now[GPUK_DELTA_COLUMNS];
#pragma unroll
        for (uint32_t w = 0; w < GPUK_DELTA_COLUMNS; w++) {
            const uint32_t at = w + count; /* of the columns and the tokens behind them */
            now[w] =
                at < GPUK_DELTA_COLUMNS
                    ? columns[(size_t)at * p.channels + c]
                    : __ldcg(p.d.in + (size_t)(first + at - GPUK_DELTA_COLUMNS) * p.d.in_stride + c);
        }
#pragma unroll
        for (uint32_t w = 0; w < GPUK_DELTA_COLUMNS; w++) columns[(size_t)w * p.channels + c] = now[w];
    }
}

/* What a block has in shared memory of some tokens: q and k [token][key rows, zeros behind key_dim], v and o [token][value],
 * decay and rate [token], squares [token][warp]. */
template <uint32_t ROWS> struct rule_shared {
    static const uint32_t KEY = ROWS * RULE_GROUPS;
    float *q, *k, *v, *o, *decay, *rate, *squares;
    __device__ __forceinline__ rule_shared(float *memory, uint32_t value)
    {
        q = memory, k = q + RULE_TOGETHER * KEY, v = k + RULE_TOGETHER * KEY, o = v + RULE_TOGETHER * value;
        decay = o + RULE_TOGETHER * value, rate = decay + RULE_TOGETHER, squares = rate + RULE_TOGETHER;
    }
    static size_t bytes(uint32_t value)
    {
        return RULE_TOGETHER * (2 * KEY + 2 * value + 2 + value / RULE_COLUMNS) * sizeof(float);
    }
};

template <uint32_t ROWS>
__device__ __forceinline__ void rule_fetch(const delta_params &p, const rule_shared<ROWS> &s, uint32_t head,
                                           uint32_t first, uint32_t count)
{
    const gpuk_delta &d = p.d;
    const uint32_t KEY = rule_shared<ROWS>::KEY, key = delta_key_of(d, head) * d.key_dim;
    for (uint32_t i = threadIdx.x; i < count * KEY; i += blockDim.x) {
        const uint32_t t = i / KEY, c = i % KEY;
        const float *from = d.mixed + (size_t)(first + t) * p.channels + key + c;
        s.q[i] = c < d.key_dim ? __ldcg(from) : 0.0f;
        s.k[i] = c < d.key_dim ? __ldcg(from + p.keys) : 0.0f;
    }
    for (uint32_t i = threadIdx.x; i < count * d.value_dim; i += blockDim.x) {
        const uint32_t t = i / d.value_dim, c = i - t * d.value_dim;
        s.v[i] = __ldcg(d.mixed + (size_t)(first + t) * p.channels + 2 * p.keys + head * d.value_dim + c);
    }
    if (threadIdx.x < count) {
        const delta_gates g = delta_gates_of(d, first + threadIdx.x, head);
        s.decay[threadIdx.x] = expf(g.log_decay), s.rate[threadIdx.x] = g.rate;
    }
}

/* Over the warp's eight groups of rows. */
__device__ __forceinline__ float rule_sum(float v)
{
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, mask));
    return v;
}

/* A token over a lane's part of the state. */
template <uint32_t ROWS>
__device__ __forceinline__ void rule_token(float (&state)[ROWS][4], const float *q, const float *k,
                                           const float v[4], float decay, float rate, float o[4])
{
    const uint32_t group = (threadIdx.x & 31) / 4;
    float known[4] = {0, 0, 0, 0}, delta[4];
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const float by = k[group + RULE_GROUPS * m];
#pragma unroll
        for (int j = 0; j < 4; j++) known[j] = __fmaf_rn(by, state[m][j], known[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        delta[j] = __fmul_rn(rate, __fmaf_rn(-decay, rule_sum(known[j]), v[j]));
        o[j] = 0;
    }
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const float by_k = k[group + RULE_GROUPS * m], by_q = q[group + RULE_GROUPS * m];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            state[m][j] = __fmaf_rn(by_k, delta[j], __fmul_rn(decay, state[m][j]));
            o[j] = __fmaf_rn(by_q, state[m][j], o[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) o[j] = rule_sum(o[j]);
}

/* grid: [v heads][rows]. chunks: rows of many tokens are another kernel's. */
template <uint32_t ROWS>
__global__ void __launch_bounds__(512) delta_rule_kernel(const __grid_constant__ delta_params p, bool chunks)
{
    SHARED_DYNAMIC(float, memory);
    const gpuk_delta &d = p.d;
    const uint32_t head = blockIdx.x, row = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
                   warps = blockDim.x / 32, column = warp * RULE_COLUMNS + (lane & 3) * 4, group = lane / 4;
    const rule_shared<ROWS> s(memory, d.value_dim);
    let_next_start();
    const bool counts = row < d.step.counts[1];
    const uint32_t first = counts ? d.step.row_first[row] : 0, end = counts ? d.step.row_first[row + 1] : 0;
    char *record = counts ? delta_record(d, row) : nullptr;
    float *matrix = counts ? delta_matrix(d, record, head) : nullptr;
    const bool mine = counts && first < end && !delta_is_chunked(end - first, chunks);
    /* from memory by the time it is wanted */
    for (uint32_t i = threadIdx.x * 32; mine && i < d.key_dim * d.value_dim; i += blockDim.x * 32)
        ask_l2(matrix + i);
    wait_for_previous();
    if (first >= end) return;
    keep_columns(p, record, first, end - first);
    if (!mine) return;
    float state[ROWS][4];
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const uint32_t i = group + RULE_GROUPS * m;
        const float4 part = i < d.key_dim ? __ldcg(reinterpret_cast<const float4 *>(
                                                matrix + (size_t)i * d.value_dim + column))
                                          : make_float4(0, 0, 0, 0);
        put4(state[m], part);
    }
    for (uint32_t from = first; from < end; from += RULE_TOGETHER) {
        const uint32_t count = end - from < RULE_TOGETHER ? end - from : RULE_TOGETHER;
        rule_fetch<ROWS>(p, s, head, from, count);
        __syncthreads();
        for (uint32_t t = 0; t < count; t++) {
            const uint32_t KEY = rule_shared<ROWS>::KEY;
            float v[4], o[4];
            put4(v, *reinterpret_cast<const float4 *>(s.v + t * d.value_dim + column));
            rule_token<ROWS>(state, s.q + t * KEY, s.k + t * KEY, v, s.decay[t], s.rate[t], o);
            float squares = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) squares = __fmaf_rn(o[j], o[j], squares);
            squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffffu, squares, 1));
            squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffffu, squares, 2));
            if (lane == 0) s.squares[t * warps + warp] = squares;
            if (group == 0)
                *reinterpret_cast<float4 *>(s.o + t * d.value_dim + column) =
                    make_float4(o[0], o[1], o[2], o[3]);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count * d.value_dim; i += blockDim.x) {
            const uint32_t t = i / d.value_dim, j = i - t * d.value_dim;
            float squares = 0;
            for (uint32_t w = 0; w < warps; w++) squares = __fadd_rn(squares, s.squares[t * warps + w]);
            delta_finish(d, from + t, head, j, s.o[i], squares);
        }
        __syncthreads(); /* what they read may be written again */
    }
#pragma unroll
    for (uint32_t m = 0; m < ROWS; m++) {
        const uint32_t i = group + RULE_GROUPS * m;
        if (i < d.key_dim)
            *reinterpret_cast<float4 *>(matrix + (size_t)i * d.value_dim + column) =
                make_float4(state[m][0], state[m][1], state[m][2], state[m][3]);
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

static int check(const char *what, const struct gpuk_delta *d, uint32_t tokens, struct helm_err *err)
{
    if (tokens == 0 || tokens > 1u << 20 || d->rows == 0)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u tokens of %u rows (1 to 2^20)", what, tokens, d->rows);
    if (d->key_heads == 0 || d->value_heads == 0 || d->value_heads % d->key_heads != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: %u v heads of %u k heads", what, d->value_heads,
                         d->key_heads);
    if (d->key_dim == 0 || d->value_dim == 0 || d->key_dim % GPUK_DELTA_HEAD_UNIT ||
        d->value_dim % GPUK_DELTA_HEAD_UNIT || d->key_dim > GPUK_DELTA_HEAD_MAX ||
        d->value_dim > GPUK_DELTA_HEAD_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: heads of %u and %u numbers (multiples of %d, at most %d)",
                         what, d->key_dim, d->value_dim, GPUK_DELTA_HEAD_UNIT, GPUK_DELTA_HEAD_MAX);
    if (((size_t)d->state | d->slot_bytes | d->matrices_at | (size_t)d->mixed) % 16)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: records are not at multiples of 16 bytes", what);
    return HELM_OK;
}

extern "C" int gpuk_delta_convolve(const struct gpuk_delta *args, uint32_t tokens, uint32_t flags,
                                   void *stream, struct helm_err *err)
{
    const int rc = check("delta convolution", args, tokens, err);
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
    int rc = check("delta rule", args, tokens, err);
    if (rc) return rc;
    const bool small = args->key_dim <= 128,
               chunks = args->chunks && device->tensor_cores && tokens >= DELTA_CHUNKED_FROM;
    const uint32_t rows = args->rows < tokens ? args->rows : tokens; /* each has a token */
    rc = gpuk_launch("delta rule", small ? delta_rule_kernel<16> : delta_rule_kernel<32>,
                       dim3(args->value_heads, rows), dim3(args->value_dim / RULE_COLUMNS * 32),
                       small ? rule_shared<16>::bytes(args->value_dim) : rule_shared<32>::bytes(args->value_dim),
                     flags, stream, err, delta_params_of(args), chunks);
    return rc || !chunks ? rc : delta_chunks_launch(args, tokens, flags, stream, err);
}

int gpuk_prepare_delta(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = gpuk_prepare("delta convolution", delta_convolve_kernel<4>, 0, err);
    if (!rc) rc = gpuk_prepare("delta convolution", delta_convolve_kernel<8>, 0, err);
    if (!rc) rc = gpuk_prepare("delta rule", delta_rule_kernel<16>, 0, err);
    if (!rc) rc = gpuk_prepare("delta rule", delta_rule_kernel<32>, 0, err);
    return rc ? rc : delta_chunks_prepare(device, err);
}
