/* Shared by the kernels of mixtures of experts: their argument block on the device, where an expert's rows
 * lie, an expert's activation, and how a token's experts are chosen.
 *
 * Included by experts*.cu only. common/model/router.c is the definition of the choice and of the activation.
 * No state. */
#pragma once

#include "worker-gpu/kernels/device.cuh"
#include "worker-gpu/kernels/experts/experts.h"

/* One role's matrices on the device: gate, up or down. */
struct experts_role {
    const unsigned char *weight, *host;
    const float *bias;
    uint64_t stride;

    /* A slot's matrix, or an expert's in host memory. */
    __device__ __forceinline__ const unsigned char *at(uint32_t slot) const
    {
        return slot & GPUK_SLOT_HOST ? host + (uint64_t)(slot & ~GPUK_SLOT_HOST) * stride
                                     : weight + (uint64_t)slot * stride;
    }
};
/* A few tokens' gate and up, or down. */
struct experts_params {
    experts_role role[2]; /* gate and up; down alone */
    const uint32_t *slot;
    struct gpuk_choice choice;
    const uint32_t *count;
    const float *x, *norm; /* of down: the activations, dense, a vector a pair (token, chosen) */
    const float *residual; /* of down */
    float *out;
    uint64_t row_bytes;
    uint32_t experts, rows, cols, tokens, x_stride, out_stride;
    float eps;
    enum glu_kind glu;
    bool down;
    bool routes; /* the choice is made first */
    bool again;  /* of down: may be made again, before the kernel in front has ended */
    struct model_router router;
    const float *logits, *choice_bias;
    experts_role ahead;   /* weight NULL: none */
    uint64_t ahead_bytes; /* of an expert's matrix */
};

/* The slot that expert `id` lies in, or GPUK_SLOT_ABSENT; also of numbers that are no expert's. */
__device__ __forceinline__ uint32_t experts_slot(const uint32_t *slot, uint32_t experts, uint32_t id)
{
    if (id >= experts) return GPUK_SLOT_ABSENT;
    return slot ? __ldcg(slot + id) : id;
}

/* Tokens that count. */
__device__ __forceinline__ uint32_t experts_tokens(const experts_params &p)
{
    const uint32_t count = p.count ? *p.count : p.tokens;
    return count < p.tokens ? count : p.tokens;
}

/* ---- the choice: a warp a token --------------------------------------------------------------------- */

/* Whole numbers in the order of floats, none 0; a number that is none is the least. */
__device__ __forceinline__ uint32_t experts_order(float v)
{
    if (!(v == v)) v = -INFINITY;
    const uint32_t bits = __float_as_uint(v + 0.0f); /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
/* Order and number in one: the larger value, of equal ones the lower number, has the larger key. */
__device__ __forceinline__ uint64_t experts_key(float value, uint32_t i)
{
    return (uint64_t)experts_order(value) << 32 | (0xffffffffu - i);
}
__device__ __forceinline__ uint64_t experts_largest(uint64_t key)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, key, mask);
        key = other > key ? other : key;
    }
    return key;
}
__device__ __forceinline__ float experts_most(float v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
    return v;
}

/* Floats of scratch that a warp's choice takes: of each expert its score and its value, of each group its
 * sum. */
static __host__ __device__ inline uint32_t experts_scratch(const struct model_router &router)
{
    return 2 * router.experts + MODEL_EXPERT_GROUPS_MAX;
}

/* Leaves open only experts of the best groups: others' values become NaN, which is what `taken` ones are
 * too. */
__device__ __forceinline__ void experts_open_groups(const struct model_router &router, float *value,
                                                    float *sums, uint32_t lane)
{
    const uint32_t size = router.experts / router.groups;
    for (uint32_t g = lane; g < router.groups; g += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            const float v = value[i];
            if (v > first)
                second = first, first = v;
            else if (v > second)
                second = v;
        }
        sums[g] = size > 1 ? first + second : first;
    }
    __syncwarp();
    uint32_t open[MODEL_EXPERT_GROUPS_MAX / 32] = {};
    for (uint32_t n = 0; n < router.groups_chosen; n++) {
        uint64_t best = 0;
        for (uint32_t g = lane; g < router.groups; g += 32) {
            const uint64_t key = open[g / 32] >> g % 32 & 1 ? 0 : experts_key(sums[g], g);
            best = key > best ? key : best;
        }
        const uint32_t g = 0xffffffffu - (uint32_t)experts_largest(best);
        if (g < router.groups) open[g / 32] |= 1u << g % 32;
    }
    for (uint32_t i = lane; i < router.experts; i += 32) {
        const uint32_t g = i / size;
        if (!(open[g / 32] >> g % 32 & 1)) value[i] = __uint_as_float(0x7fc00000u);
    }
    __syncwarp();
}

/* Logits in device memory, as other kernels left them. */
struct experts_logits {
    const float *from;
    __device__ __forceinline__ float operator()(uint32_t i) const { return __ldcg(from + i); }
};
/* Scores of experts, what they are chosen by (NaN where they may not be), and the lane's largest score. By a
 * warp, or by `threads` threads, the caller `thread` among them. */
template <typename L>
__device__ __forceinline__ float experts_score(const struct model_router &router, const L &logits,
                                               const float *choice_bias, float *scratch, uint32_t thread,
                                               uint32_t threads)
{
    float *score = scratch, *value = scratch + router.experts, most = -INFINITY;
    for (uint32_t i = thread; i < router.experts; i += threads) {
        float s = logits(i);
        if (!(s == s)) s = -INFINITY;
        if (router.score == ROUTER_SIGMOID) s = 1.0f / (1.0f + expf(-s));
        score[i] = s, most = fmaxf(most, s);
        s += choice_bias ? choice_bias[i] : 0.0f;
        value[i] = s == s ? s : -INFINITY;
    }
    return most;
}
/* The weight of the lane's expert `mine`, lanes below `chosen`; by a whole warp. most: the largest score. */
__device__ __forceinline__ float experts_weigh(const struct model_router &router, const float *score,
                                               float most, uint32_t mine)
{
    const uint32_t n = router.experts, k = router.chosen, lane = threadIdx.x & 31;
    float w = lane < k ? score[mine] : 0.0f, sum;
    if (router.score == ROUTER_SIGMOID) {
        if (!router.normalise) return w * router.scale;
        sum = warp_sum(w);
        return w / (sum + 1e-20f) * router.scale;
    }
    if (most == -INFINITY) most = 0.0f;
    w = lane < k ? expf(w - most) : 0.0f;
    if (router.score == ROUTER_SOFTMAX && !router.normalise) {
        sum = 0;
        for (uint32_t i = lane; i < n; i += 32) sum += expf(score[i] - most);
    } else {
        sum = w;
    }
    sum = warp_sum(sum);
    return (sum > 0.0f ? w / sum : 1.0f / (float)k) * router.scale;
}

/* One token's choice by a whole warp: id[chosen] and weight[chosen], in shared memory, for all lanes to read
 * after a barrier. logits: in device memory. scratch: experts_scratch floats of the warp's own. */
__device__ __forceinline__ void experts_choose(const struct model_router &router, const float *logits,
                                               const float *choice_bias, float *scratch, uint32_t *id,
                                               float *weight)
{
    const uint32_t n = router.experts, k = router.chosen, lane = threadIdx.x & 31;
    float *value = scratch + n;
    const float most =
        experts_most(experts_score(router, experts_logits{logits}, choice_bias, scratch, lane, 32));
    __syncwarp();
    if (router.score == ROUTER_SIGMOID && router.groups > router.groups_chosen)
        experts_open_groups(router, value, scratch + 2 * n, lane);

    /* each lane's best; only the lane whose was taken looks again */
    const auto best_of_lane = [&]() {
        uint64_t best = 0;
        for (uint32_t i = lane; i < n; i += 32) {
            const float v = value[i];
            const uint64_t key = v == v ? experts_key(v, i) : 0;
            best = key > best ? key : best;
        }
        return best;
    };
    uint64_t best = best_of_lane();
    uint32_t mine = 0;
    for (uint32_t j = 0; j < k; j++) {
        const uint64_t key = experts_largest(best);
        /* none is left only where fewer than `chosen` were open, which launchers refuse */
        const uint32_t i = key ? 0xffffffffu - (uint32_t)key : 0;
        if (lane == j) mine = i;
        if (lane == i % 32) value[i] = __uint_as_float(0x7fc00000u), best = best_of_lane();
    }
    const float w = experts_weigh(router, scratch, most, mine);
    if (lane < k) id[lane] = mine, weight[lane] = w;
}

/* The same by a whole block of `threads`, a multiple of 32, for one token, sooner: an expert's place is how
 * many are better. For routers of few experts without groups. Weights are made only where `weigh`. */
static const uint32_t EXPERTS_RANKED_MAX = 256;
static __host__ __device__ inline bool experts_ranks(const struct model_router &router)
{
    return router.experts <= EXPERTS_RANKED_MAX && router.experts % 4 == 0 &&
           !(router.score == ROUTER_SIGMOID && router.groups > router.groups_chosen);
}
/* Scores and their order, by `threads` threads, whose caller meets them afterwards; scratch: experts_scratch
 * floats. */
template <typename L>
__device__ __forceinline__ void experts_order_all(const struct model_router &router, const L &logits,
                                                  const float *choice_bias, float *scratch, uint32_t threads)
{
    uint32_t *order = reinterpret_cast<uint32_t *>(scratch + router.experts); /* in place of the values */
    experts_score(router, logits, choice_bias, scratch, threadIdx.x, threads);
    for (uint32_t i = threadIdx.x; i < router.experts; i += threads)
        order[i] = experts_order(scratch[router.experts + i]);
}
/* id[chosen], by as many threads, whose caller meets them afterwards. */
__device__ __forceinline__ void experts_places(const struct model_router &router, const float *scratch,
                                               uint32_t *id, uint32_t threads)
{
    const uint32_t n = router.experts, k = router.chosen, part = threadIdx.x & 3;
    const uint32_t *order = reinterpret_cast<const uint32_t *>(scratch + n);
    /* four neighbours share an expert: every fourth quad of the others each */
    for (uint32_t base = 0; base < n; base += threads / 4) {
        const uint32_t i = base + threadIdx.x / 4, mine = i < n ? order[i] : 0;
        uint32_t better = 0;
        for (uint32_t q = part; q < n / 4; q += 4) {
            const uint4 v = reinterpret_cast<const uint4 *>(order)[q];
            const uint32_t other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) better += other[j] > mine || (other[j] == mine && 4 * q + j < i);
        }
        better += __shfl_xor_sync(0xffffffffu, better, 1);
        better += __shfl_xor_sync(0xffffffffu, better, 2);
        if (part == 0 && i < n && better < k) id[better] = i;
    }
}
/* weight[chosen], by a warp. */
__device__ __forceinline__ void experts_weigh_ranked(const struct model_router &router, const float *scratch,
                                                     const uint32_t *id, float *weight)
{
    const uint32_t n = router.experts, k = router.chosen, lane = threadIdx.x & 31;
    float most = -INFINITY;
    for (uint32_t i = lane; i < n; i += 32) most = fmaxf(most, scratch[i]);
    const float w = experts_weigh(router, scratch, experts_most(most), lane < k ? id[lane] : 0);
    if (lane < k) weight[lane] = w;
}
__device__ __forceinline__ void experts_rank(const struct model_router &router, const float *logits,
                                             const float *choice_bias, float *scratch, uint32_t *id,
                                             float *weight, uint32_t threads, bool weigh)
{
    experts_order_all(router, experts_logits{logits}, choice_bias, scratch, threads);
    __syncthreads();
    experts_places(router, scratch, id, threads);
    __syncthreads();
    if (weigh && threadIdx.x < 32) experts_weigh_ranked(router, scratch, id, weight);
}

/* ---- chunks: tiles of each expert's tokens ------------------------------------------------------------ */

/* end[e]: tiles of `each` pairs that experts up to e have, with first[] as struct gpuk_groups has it. By a
 * whole block; end: [experts] in shared memory, complete when this returns. */
__device__ __forceinline__ void experts_tiles(const uint32_t *first, uint32_t experts, uint32_t each,
                                              uint32_t *end)
{
    if (threadIdx.x < 32) {
        uint32_t before = 0;
        for (uint32_t base = 0; base < experts; base += 32) {
            const uint32_t e = base + threadIdx.x;
            uint32_t n = e < experts ? div_up(__ldcg(first + e + 1) - __ldcg(first + e), each) : 0;
#pragma unroll
            for (uint32_t distance = 1; distance < 32; distance <<= 1) n = add_of_lane_before(n, distance);
            if (e < experts) end[e] = before + n;
            before += __shfl_sync(0xffffffffu, n, 31);
        }
    }
    __syncthreads();
}
/* The expert of tile `tile`, which is one of them. */
__device__ __forceinline__ uint32_t experts_of_tile(const uint32_t *end, uint32_t experts, uint32_t tile)
{
    uint32_t low = 0, high = experts - 1; /* the first whose end is after it */
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (end[middle] > tile)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- launches (experts.cu) --------------------------------------------------------------------------- */

/* Few tokens: one format's kernel; zeros: it has none. */
struct experts_call {
    const struct gpuk_device *device;
    enum tensor_format format;
    struct experts_params params;
    void *workspace;
    uint32_t flags;
    void *stream;
};
struct experts_kernel {
    const char *name;
    bool (*takes)(const struct experts_call &call);
    int (*launch)(const struct experts_call &call, struct helm_err *err);
    int (*prepare)(const struct gpuk_device *device, struct helm_err *err);
};
typedef const struct experts_kernel experts_kernels[FORMAT_COUNT];
extern experts_kernels experts_once_kernels, experts_digits_kernels, experts_bulk_kernels,
    experts_packed_kernels, experts_plain_kernels;

/* Chunks' gate and up, or down. */
struct experts_chunk_params {
    experts_role role[2];
    const uint32_t *slot;
    const uint32_t *first, *pair; /* struct gpuk_groups */
    const void *x;                /* [token][cols]; of down: [place][cols] */
    void *out;                    /* [place][rows]: of: */
    enum dtype out_dtype;         /* down's is fp32 */
    uint64_t row_bytes;
    uint32_t experts, rows, cols, chosen;
    enum glu_kind glu;
    bool down;
};
/* Number i of what gate and up make. */
__device__ __forceinline__ void experts_store(const experts_chunk_params &p, uint64_t i, float v)
{
    if (p.out_dtype == DTYPE_F32)
        static_cast<float *>(p.out)[i] = v;
    else if (p.out_dtype == DTYPE_F16)
        static_cast<__half *>(p.out)[i] = element<__half>::store(v);
    else
        static_cast<__nv_bfloat16 *>(p.out)[i] = element<__nv_bfloat16>::store(v);
}
struct experts_chunk_call {
    const struct gpuk_device *device;
    enum tensor_format format;
    enum dtype dtype; /* of x */
    struct experts_chunk_params params;
    uint32_t tokens, flags;
    void *stream;
};
struct experts_chunk_kernel {
    const char *name;
    bool (*takes)(const struct experts_chunk_call &call);
    int (*launch)(const struct experts_chunk_call &call, struct helm_err *err);
    int (*prepare)(const struct gpuk_device *device, struct helm_err *err);
};
typedef const struct experts_chunk_kernel experts_chunk_kernels[FORMAT_COUNT];
extern experts_chunk_kernels experts_wide_kernels, experts_tensor_kernels, experts_each_kernels;

int gpuk_prepare_experts_share(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_router_logits(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_experts_route(const struct gpuk_device *device, struct helm_err *err);
/* HELM_E_LIMIT or HELM_E_UNSUPPORTED for a router that no kernel takes. */
int gpuk_check_router(const struct model_router *router, struct helm_err *err);
