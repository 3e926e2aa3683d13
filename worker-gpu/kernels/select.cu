/* From logits to a token on the device: the largest; or what a draw on the host needs of a row
 * (kernels_few.h).
 *
 * A row is cut among BLOCKS blocks; the last of them to finish merges in fixed order. A logit and its id make
 * one 64-bit key (larger logit first, then lower id), so that ties cannot depend on timing. Logits that are
 * not finite have no key. Launchers below; worker-gpu/kernels/kernels.h says what they mean. */
#include "worker-gpu/kernels/device.cuh"
#include "worker-gpu/kernels/kernels_few.h"

#ifdef HELM_CUDA_EMULATED /* compiled without contraction */
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
#endif

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
                  gpuk_next next, uint32_t *counters, logit_key *keys)
{
    __shared__ logit_key shared[THREADS / 32];
    wait_for_previous();
    let_next_start();
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
    if (threadIdx.x > 0) return;
    result[row] = {key_id(best), key_logit(best)};
    if (next.token_id) next.token_id[row] = key_id(best), next.position[row] += 1;
}

/* ---- what a draw needs of a row -------------------------------------------------------------------------
 */

/* Blocks as sampling's passes have them: the k-th largest of their maxima is at most the k-th largest logit,
 * so that all that matters lies in few of them. */
static const uint32_t FEW_BLOCK = 64, FEW_THREADS = 512, FEW_WARPS = FEW_THREADS / 32, FEW_BINS = 1024;

struct few_list {
    struct gpuk_few row[GPUK_FEW_ROWS];
};
/* One row's part of the workspace: the largest logit of each block, in the ordered bits of a key; then that
 * of the row; sums of each CUDA block's share. */
struct few_work {
    uint32_t *tops, *top;
    unsigned long long *sums;
};
static __host__ __device__ inline size_t few_row_bytes(uint32_t vocab)
{
    return ((size_t)div_up(vocab, FEW_BLOCK) + 1 + 63) / 64 * 64 * sizeof(uint32_t) +
           2 * BLOCKS * sizeof(unsigned long long);
}
__device__ __forceinline__ few_work few_work_of(char *rows, uint32_t row, uint32_t vocab)
{
    char *at = rows + row * few_row_bytes(vocab);
    few_work work;
    work.sums = (unsigned long long *)at;
    work.tops = (uint32_t *)(work.sums + 2 * BLOCKS);
    work.top = work.tops + div_up(vocab, FEW_BLOCK);
    return work;
}
__device__ __forceinline__ uint32_t ordered_bits(const float *from, uint32_t i, uint32_t vocab)
{
    return i < vocab ? (uint32_t)(key_of(__ldcg(from + i), 0) >> 32) : 0;
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Largest and smallest (but 0) of at(0 .. n) and how many there are, for all threads. */
struct few_range {
    uint32_t most, least, count;
};
template <typename at_fn> __device__ few_range range_of(at_fn at, uint32_t n)
{
    __shared__ few_range warp_range[FEW_WARPS];
    few_range r = {0, 0xffffffffu, 0};
    for (uint32_t b = threadIdx.x; b < n; b += FEW_THREADS) {
        uint32_t top = at(b);
        if (!top) continue;
        r.most = larger(r.most, top);
        r.least = top < r.least ? top : r.least;
        r.count++;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        uint32_t least = __shfl_xor_sync(0xffffffffu, r.least, mask);
        r.most = larger(r.most, __shfl_xor_sync(0xffffffffu, r.most, mask));
        r.count += __shfl_xor_sync(0xffffffffu, r.count, mask);
        r.least = least < r.least ? least : r.least;
    }
    if ((threadIdx.x & 31) == 0) warp_range[threadIdx.x >> 5] = r;
    __syncthreads();
    r = warp_range[0];
    for (uint32_t w = 1; w < FEW_WARPS; w++) {
        r.most = larger(r.most, warp_range[w].most);
        r.least = warp_range[w].least < r.least ? warp_range[w].least : r.least;
        r.count += warp_range[w].count;
    }
    __syncthreads();
    return r;
}

/* A value that at least `need` of them reach, and hardly more unless they tie: a histogram over their range,
 * then over the bin the value falls into, and so on. There are more than `need` in the range. */
template <typename at_fn> __device__ uint32_t floor_of(at_fn at, uint32_t n, few_range range, uint32_t need)
{
    __shared__ uint32_t bin[FEW_BINS], lane_sum[32], found[3];
    uint32_t from = range.least, to = range.most, slack = need / 8 + 4;
    for (;;) {
        uint32_t span = to - from, shift = 0;
        while (span >> shift >= FEW_BINS) shift++;
        for (uint32_t i = threadIdx.x; i < FEW_BINS; i += FEW_THREADS) bin[i] = 0;
        __syncthreads();
        for (uint32_t b = threadIdx.x; b < n; b += FEW_THREADS) {
            uint32_t top = at(b), i = (to - top) >> shift;
            /* bin i stands where a lane that adds up 32 neighbours meets no other in a bank */
            if (top >= from && top <= to) atomicAdd(&bin[(i & 31) * 32 + (i >> 5)], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            uint32_t sum = 0;
            for (uint32_t i = 0; i < 32; i++) sum += bin[i * 32 + threadIdx.x];
            lane_sum[threadIdx.x] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t before = 0, lane = 0, i = 0;
            while (before + lane_sum[lane] < need) before += lane_sum[lane++];
            while (before + bin[i * 32 + lane] < need) before += bin[i++ * 32 + lane];
            found[0] = lane * 32 + i, found[1] = before, found[2] = before + bin[i * 32 + lane];
        }
        __syncthreads();
        uint32_t which = found[0], before = found[1], with = found[2];
        uint32_t above = which << shift, end = ((which + 1) << shift) - 1,
                 low = to - (end < span ? end : span);
        if (shift == 0 || with <= need + slack) return low;
        need -= before;
        to -= above;
        from = low;
        __syncthreads(); /* before found is written again */
    }
}

/* Everything from `least` on, out of the blocks whose top reaches it. More than a room's worth: only the
 * number, or one more than that. */
__device__ void store_few(const float *from, uint32_t vocab, const uint32_t *tops, uint32_t least, bool all,
                          struct gpuk_few_room *room)
{
    __shared__ uint32_t block[GPUK_FEW_ROOM], blocks, found;
    __shared__ struct sampling_logit few[GPUK_FEW_ROOM];
    const uint32_t n = div_up(vocab, FEW_BLOCK), lane = threadIdx.x & 31;
    if (threadIdx.x == 0) blocks = found = 0;
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < n; b += FEW_THREADS) {
        if (__ldcg(tops + b) < least) continue;
        uint32_t at = atomicAdd(&blocks, 1u);
        if (at < GPUK_FEW_ROOM) block[at] = b;
    }
    __syncthreads();
    const uint32_t selected = blocks; /* each has one at least */
    for (uint32_t at = threadIdx.x >> 5; at < selected && selected <= GPUK_FEW_ROOM; at += 2 * FEW_WARPS) {
        uint32_t id[4], bits[4];
        float logit[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { /* loads of two blocks before any is waited for */
            uint32_t which = at + i / 2 * FEW_WARPS;
            id[i] = which < selected ? block[which] * FEW_BLOCK + i % 2 * 32 + lane : vocab;
            logit[i] = id[i] < vocab ? __ldcg(from + id[i]) : INFINITY;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            bits[i] = (uint32_t)(key_of(logit[i], 0) >> 32);
            if (!bits[i] || bits[i] < least) continue;
            uint32_t to = atomicAdd(&found, 1u);
            if (to < GPUK_FEW_ROOM) few[to].token = id[i], few[to].logit = logit[i];
        }
    }
    __syncthreads();
    const uint32_t count = selected <= GPUK_FEW_ROOM ? found : selected;
    for (uint32_t i = threadIdx.x; i < count && count <= GPUK_FEW_ROOM; i += FEW_THREADS)
        room->candidate[i] = few[i];
    if (threadIdx.x == 0) room->found = count, room->all = all;
}

__global__ void __launch_bounds__(FEW_THREADS)
    few_kernel(few_list list, const float *logits, uint32_t vocab, struct gpuk_few_room *rooms,
               uint32_t *counters, char *rows)
{
    const uint32_t row = blockIdx.y, n = div_up(vocab, FEW_BLOCK), warp = threadIdx.x >> 5,
                   lane = threadIdx.x & 31;
    const struct gpuk_few want = list.row[row];
    const float *from = logits + (size_t)want.row * vocab;
    struct gpuk_few_room *room = rooms + row;
    const few_work work = few_work_of(rows, row, vocab);
#pragma unroll 4
    for (uint32_t b = blockIdx.x * FEW_WARPS + warp; b < n; b += gridDim.x * FEW_WARPS) {
        uint32_t i = b * FEW_BLOCK + lane,
                 top = larger(ordered_bits(from, i, vocab), ordered_bits(from, i + 32, vocab));
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) top = larger(top, __shfl_xor_sync(0xffffffffu, top, mask));
        if (lane == 0) work.tops[b] = top;
    }
    for (uint32_t i = blockIdx.x * FEW_THREADS + threadIdx.x; i < want.changed;
         i += gridDim.x * FEW_THREADS) {
        uint32_t token = room->token[i];
        room->logit[i] = token < vocab ? __ldcg(from + token) : NAN;
    }
    if (!last_block(counters + row)) return;
    auto top_of = [&](uint32_t b) { return __ldcg(work.tops + b); };
    auto bits_of = [&](uint32_t i) { return ordered_bits(from, i, vocab); };
    few_range range = range_of(top_of, n);
    if (threadIdx.x == 0) *work.top = range.most;
    uint32_t least = 1;
    bool all = false;
    if (range.count > want.candidates) {
        least = floor_of(top_of, n, range, want.candidates);
    } else { /* a small vocabulary: of the logits themselves */
        range = range_of(bits_of, vocab);
        all = range.count <= want.candidates;
        if (!all) least = floor_of(bits_of, vocab, range, want.candidates);
    }
    store_few(from, vocab, work.tops, least, all, room);
}

/* floor(2^40 * exp((x - top) * inv_temp)), the operations of common/sampling/pass.c one by one. */
__device__ __forceinline__ unsigned long long weight_of(float x, float top, float inv_temp)
{
    const float magic = 12582912.0f, scale = 1048576.0f;
    float z = fmaxf(__fmul_rn(__fsub_rn(x, top), inv_temp), -87.0f);
    float shifted = __fadd_rn(__fmul_rn(z, 1.44269504f), magic), n = __fsub_rn(shifted, magic);
    float r = __fsub_rn(z, __fmul_rn(n, 0.693359375f));
    r = __fadd_rn(r, __fmul_rn(n, 2.12194440e-4f));
    float p = 1.9875691500e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
    p = __fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), __fadd_rn(r, 1.0f));
    float e = fminf(__uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23)), 1.0f);
    float scaled = __fmul_rn(e, scale);
    uint32_t upper = (uint32_t)scaled;
    uint32_t lower = (uint32_t)__fmul_rn(__fsub_rn(scaled, (float)upper), scale);
    return ((unsigned long long)upper << 20) + lower;
}

__device__ __forceinline__ unsigned long long warp_total(unsigned long long v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

/* Runs after few_kernel, which left the rows' tops. Whole numbers: the same sum in any order. */
__global__ void __launch_bounds__(FEW_THREADS)
    few_sums_kernel(few_list list, const float *logits, uint32_t vocab, struct gpuk_few_room *rooms,
                    uint32_t *counters, char *rows)
{
    __shared__ unsigned long long warp_sum[2][FEW_WARPS];
    const uint32_t row = blockIdx.y, n = div_up(vocab, FEW_BLOCK), warp = threadIdx.x >> 5,
                   lane = threadIdx.x & 31;
    const struct gpuk_few want = list.row[row];
    if (!want.sum && !want.model_sum) return;
    const float *from = logits + (size_t)want.row * vocab;
    const few_work work = few_work_of(rows, row, vocab);
    const float top = key_logit((logit_key)__ldcg(work.top) << 32);
    unsigned long long sum[2] = {0, 0};
    for (uint32_t b = blockIdx.x * FEW_WARPS + warp; b < n; b += gridDim.x * FEW_WARPS) {
        uint32_t block_top = __ldcg(work.tops + b);
        if (!block_top) continue;
        float below = __fsub_rn(key_logit((logit_key)block_top << 32), top);
        bool counts[2] = {want.sum && __fmul_rn(below, want.inv_temp) > -28.0f,
                          want.model_sum && below > -28.0f};
        if (!counts[0] && !counts[1]) continue;
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t i = b * FEW_BLOCK + half * 32 + lane;
            float x = i < vocab ? __ldcg(from + i) : INFINITY;
            if (!isfinite(x)) continue;
            if (counts[0]) sum[0] += weight_of(x, top, want.inv_temp);
            if (counts[1]) sum[1] += weight_of(x, top, 1.0f);
        }
    }
    for (int s = 0; s < 2; s++) {
        sum[s] = warp_total(sum[s]);
        if (lane == 0) warp_sum[s][warp] = sum[s];
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        unsigned long long total = 0;
        for (uint32_t w = 0; w < FEW_WARPS; w++) total += warp_sum[threadIdx.x][w];
        work.sums[blockIdx.x * 2 + threadIdx.x] = total;
    }
    if (!last_block(counters + row)) return;
    if (threadIdx.x < 2) {
        unsigned long long total = 0;
        for (uint32_t b = 0; b < gridDim.x; b++) total += __ldcg(work.sums + b * 2 + threadIdx.x);
        if (threadIdx.x == 0)
            rooms[row].sum = total;
        else
            rooms[row].model_sum = total;
    }
}

/* ---- launchers ---------------------------------------------------------------------------------- */

extern "C" size_t gpuk_argmax_counter_bytes(uint32_t rows)
{
    return ((size_t)rows * sizeof(uint32_t) + 255) / 256 * 256;
}
extern "C" size_t gpuk_argmax_workspace_bytes(uint32_t rows)
{
    return gpuk_argmax_counter_bytes(rows) + (size_t)rows * BLOCKS * sizeof(logit_key);
}

static int check(const char *what, uint32_t rows, uint32_t vocab, struct helm_err *err)
{
    if (rows == 0 || rows > 65535 || vocab == 0 || vocab > MODEL_VOCAB_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u rows of %u logits", what, rows, vocab);
    return HELM_OK;
}

extern "C" int gpuk_argmax(const uint32_t *count, uint32_t rows, const float *logits, uint32_t vocab,
                           struct gpuk_token *result, const struct gpuk_next *next, void *workspace,
                           uint32_t flags, void *stream, struct helm_err *err)
{
    const struct gpuk_next nobodys = {nullptr, nullptr};
    int rc = check("argmax", rows, vocab, err);
    if (rc) return rc;
    return gpuk_launch("argmax", argmax_kernel, dim3(BLOCKS, rows), dim3(THREADS), 0, flags, stream, err,
                       count, logits, vocab, result, next ? *next : nobodys, (uint32_t *)workspace,
                       (logit_key *)((char *)workspace + gpuk_argmax_counter_bytes(rows)));
}

extern "C" size_t gpuk_few_workspace_bytes(uint32_t rows, uint32_t vocab)
{
    return gpuk_argmax_counter_bytes(GPUK_FEW_ROWS) + rows * few_row_bytes(vocab);
}

extern "C" int gpuk_few(const struct gpuk_few *few, uint32_t count, const float *logits, uint32_t vocab,
                        struct gpuk_few_room *room, void *workspace, void *stream, struct helm_err *err)
{
    few_list list = {};
    bool sums = false;
    int rc = check("candidates", count, vocab, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < count && count <= GPUK_FEW_ROWS; i++) {
        if (few[i].candidates == 0 || few[i].candidates > SAMPLING_FEW_MAX ||
            few[i].changed > SAMPLING_CHANGES_MAX)
            return helm_fail(err, HELM_E_LIMIT,
                             "%u candidates and %u other logits asked for (at most %d and %d)",
                             few[i].candidates, few[i].changed, SAMPLING_FEW_MAX, SAMPLING_CHANGES_MAX);
        list.row[i] = few[i];
        sums = sums || few[i].sum || few[i].model_sum;
    }
    if (count > GPUK_FEW_ROWS) return helm_fail(err, HELM_E_LIMIT, "candidates of %u rows", count);
    uint32_t *counters = (uint32_t *)workspace;
    char *rows = (char *)workspace + gpuk_argmax_counter_bytes(GPUK_FEW_ROWS);
    rc = gpuk_launch("candidates", few_kernel, dim3(BLOCKS, count), dim3(FEW_THREADS), 0, 0, stream, err,
                     list, logits, vocab, room, counters, rows);
    if (!rc && sums)
        rc = gpuk_launch("sums of weights", few_sums_kernel, dim3(BLOCKS, count), dim3(FEW_THREADS), 0, 0,
                         stream, err, list, logits, vocab, room, counters, rows);
    return rc;
}

int gpuk_prepare_select(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("argmax", argmax_kernel, 0, err);
    if (!rc) rc = gpuk_prepare("candidates", few_kernel, 0, err);
    return rc ? rc : gpuk_prepare("sums of weights", few_sums_kernel, 0, err);
}
