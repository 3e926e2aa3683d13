/* From logits to a token on the device: the largest, or the few largest as logprobs.
 *
 * A row is cut among BLOCKS blocks; the last of them to finish merges in fixed order. A logit and its id make
 * one 64-bit key (larger logit first, then lower id), so that ties cannot depend on timing. Logits that are
 * not finite have no key. Launchers below; worker-gpu/kernels.h says what they mean. */
#include "worker-gpu/kernels/device.cuh"

static const uint32_t BLOCKS = 32, THREADS = 256;
typedef unsigned long long logit_key; /* 0: none */

__device__ __forceinline__ logit_key key_of(float logit, uint32_t id)
{
    uint32_t bits = __float_as_uint(logit + 0.0f); /* -0 and 0 tie */
    if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (logit_key)bits << 32 | (0xffffffffu - id);
}
__device__ __forceinline__ uint32_t key_id(logit_key key)
{
    return key ? 0xffffffffu - (uint32_t)key : GPUK_TOKEN_NONE;
}
__device__ __forceinline__ float key_logit(logit_key key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    return key ? __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits) : 0.0f;
}

/* Largest key of the block, for all threads. */
__device__ __forceinline__ logit_key block_max(logit_key key, logit_key *shared)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        logit_key other = __shfl_xor_sync(0xffffffffu, key, mask);
        key = other > key ? other : key;
    }
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = key;
    __syncthreads();
    key = shared[0];
#pragma unroll
    for (uint32_t w = 1; w < THREADS / 32; w++) key = shared[w] > key ? shared[w] : key;
    __syncthreads();
    return key;
}

/* True in the last of a row's blocks to get here; what the others stored is visible to it. */
__device__ __forceinline__ bool last_block(uint32_t *counter)
{
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(counter, 1) == gridDim.x - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

struct slice {
    uint32_t first, last;
};
__device__ __forceinline__ slice slice_of(uint32_t vocab)
{
    return {(uint32_t)((uint64_t)vocab * blockIdx.x / gridDim.x),
            (uint32_t)((uint64_t)vocab * (blockIdx.x + 1) / gridDim.x)};
}

__global__ void __launch_bounds__(THREADS)
    argmax_kernel(const uint32_t *count, const float *logits, uint32_t vocab, gpuk_token *result,
                  uint32_t *counters, logit_key *keys)
{
    __shared__ logit_key shared[THREADS / 32];
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.y;
    if (row >= *count) return;
    const float *from = logits + (size_t)row * vocab;
    slice s = slice_of(vocab);
    logit_key best = 0;
#pragma unroll 4
    for (uint32_t i = s.first + threadIdx.x; i < s.last; i += THREADS) {
        logit_key key = key_of(__ldcg(from + i), i);
        best = key > best ? key : best;
    }
    best = block_max(best, shared);
    if (threadIdx.x == 0) keys[(size_t)row * BLOCKS + blockIdx.x] = best;
    if (!last_block(counters + row)) return;
    best = block_max(threadIdx.x < BLOCKS ? __ldcg(keys + (size_t)row * BLOCKS + threadIdx.x) : 0, shared);
    if (threadIdx.x == 0) result[row] = {key_id(best), key_logit(best)};
}

__global__ void __launch_bounds__(THREADS)
    top_kernel(const uint32_t *count, const float *logits, uint32_t vocab, uint32_t k, gpuk_token *top,
               uint32_t *counters, logit_key *keys, float *sums)
{
    __shared__ logit_key shared[THREADS / 32];
    __shared__ float scratch[32];
    let_next_start();
    wait_for_previous();
    const uint32_t row = blockIdx.y;
    if (row >= *count) return;
    const float *from = logits + (size_t)row * vocab;
    slice s = slice_of(vocab);
    logit_key *own = keys + ((size_t)row * BLOCKS + blockIdx.x) * GPUK_TOP_MAX, before = ~(logit_key)0;
    float most = 0;
    for (uint32_t n = 0; n < k; n++) {
        logit_key best = 0;
        for (uint32_t i = s.first + threadIdx.x; i < s.last; i += THREADS) {
            logit_key key = key_of(__ldcg(from + i), i);
            best = key > best && key < before ? key : best;
        }
        before = block_max(best, shared);
        if (n == 0) most = key_logit(before);
        if (threadIdx.x == 0) own[n] = before;
    }
    float sum = 0;
    for (uint32_t i = s.first + threadIdx.x; i < s.last; i += THREADS) {
        float x = __ldcg(from + i);
        if (isfinite(x)) sum += expf(x - most);
    }
    sum = block_sum(sum, scratch);
    float *piece = sums + ((size_t)row * BLOCKS + blockIdx.x) * 2;
    if (threadIdx.x == 0) piece[0] = most, piece[1] = sum;
    if (!last_block(counters + row)) return;

    const logit_key *all = keys + (size_t)row * BLOCKS * GPUK_TOP_MAX;
    float log_sum = 0;
    before = ~(logit_key)0;
    for (uint32_t n = 0; n < k; n++) {
        logit_key best = 0;
        for (uint32_t i = threadIdx.x; i < BLOCKS * k; i += THREADS) {
            logit_key key = __ldcg(all + i / k * GPUK_TOP_MAX + i % k);
            best = key > best && key < before ? key : best;
        }
        before = block_max(best, shared);
        if (n == 0) { /* the largest is known: every thread adds the pieces in order */
            float total = 0, largest = key_logit(before);
            for (uint32_t b = 0; b < BLOCKS; b++) {
                float m = __ldcg(sums + ((size_t)row * BLOCKS + b) * 2),
                      part = __ldcg(sums + ((size_t)row * BLOCKS + b) * 2 + 1);
                if (part > 0) total += part * expf(m - largest);
            }
            log_sum = largest + logf(total);
        }
        if (threadIdx.x == 0)
            top[(size_t)row * k + n] = {key_id(before), before ? key_logit(before) - log_sum : 0.0f};
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

extern "C" size_t gpuk_argmax_counter_bytes(uint32_t rows)
{
    return ((size_t)rows * sizeof(uint32_t) + 255) / 256 * 256;
}
extern "C" size_t gpuk_argmax_workspace_bytes(uint32_t rows)
{
    return gpuk_argmax_counter_bytes(rows) +
           (size_t)rows * BLOCKS * (GPUK_TOP_MAX * sizeof(logit_key) + 2 * sizeof(float));
}

static int check(const char *what, uint32_t rows, uint32_t vocab, struct helm_err *err)
{
    if (rows == 0 || rows > 65535 || vocab == 0 || vocab > MODEL_VOCAB_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u rows of %u logits", what, rows, vocab);
    return HELM_OK;
}

extern "C" int gpuk_argmax(const uint32_t *count, uint32_t rows, const float *logits, uint32_t vocab,
                           struct gpuk_token *result, void *workspace, uint32_t flags, void *stream,
                           struct helm_err *err)
{
    int rc = check("argmax", rows, vocab, err);
    if (rc) return rc;
    return gpuk_launch("argmax", argmax_kernel, dim3(BLOCKS, rows), dim3(THREADS), 0, flags, stream, err,
                       count, logits, vocab, result, (uint32_t *)workspace,
                       (logit_key *)((char *)workspace + gpuk_argmax_counter_bytes(rows)));
}

extern "C" int gpuk_top_logprobs(const uint32_t *count, uint32_t rows, const float *logits, uint32_t vocab,
                                 uint32_t k, struct gpuk_token *top, void *workspace, uint32_t flags,
                                 void *stream, struct helm_err *err)
{
    int rc = check("top logprobs", rows, vocab, err);
    if (rc) return rc;
    if (k == 0 || k > GPUK_TOP_MAX)
        return helm_fail(err, HELM_E_LIMIT, "top logprobs: %u asked for (1 to %d)", k, GPUK_TOP_MAX);
    logit_key *keys = (logit_key *)((char *)workspace + gpuk_argmax_counter_bytes(rows));
    return gpuk_launch("top logprobs", top_kernel, dim3(BLOCKS, rows), dim3(THREADS), 0, flags, stream, err,
                       count, logits, vocab, k, top, (uint32_t *)workspace, keys,
                       (float *)(keys + (size_t)rows * BLOCKS * GPUK_TOP_MAX));
}

int gpuk_prepare_select(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("argmax", argmax_kernel, 0, err);
    return rc ? rc : gpuk_prepare("top logprobs", top_kernel, 0, err);
}
