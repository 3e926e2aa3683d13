/* Which experts tokens are computed by, and the pairs (token, expert) of a chunk in order of experts; and the
 * sum of what a chunk's experts made. See experts.h.
 *
 * Launchers below; called by the CUDA device and tests. A choice is a warp's work. Groups are made without
 * atomics: each expert's block counts the pairs in front of its own, so that order and bits never change from
 * run to run. */
#include "worker-gpu/kernels/experts/experts.cuh"

static const uint32_t ROUTE_WARPS = 4, GROUP_THREADS = 512, GROUP_WARPS = GROUP_THREADS / 32,
                      SUM_THREADS = 256;

/* ---- the choice ----------------------------------------------------------------------------------- */

struct route_params {
    struct model_router router;
    const uint32_t *count;
    uint32_t tokens;
    const float *logits, *choice_bias;
    struct gpuk_choice out;
};

__global__ void __launch_bounds__(ROUTE_WARPS * 32) route_kernel(const __grid_constant__ route_params q)
{
    SHARED_DYNAMIC(float, scratch);
    __shared__ uint32_t id[ROUTE_WARPS][MODEL_EXPERTS_CHOSEN_MAX];
    __shared__ float weight[ROUTE_WARPS][MODEL_EXPERTS_CHOSEN_MAX];
    wait_for_previous();
    let_next_start();
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
                   token = blockIdx.x * (blockDim.x / 32) + warp;
    if (token >= q.tokens || (q.count && token >= *q.count)) return;
    experts_choose(q.router, q.logits + (size_t)token * q.router.experts, q.choice_bias,
                   scratch + warp * experts_scratch(q.router), id[warp], weight[warp]);
    __syncwarp();
    if (lane >= q.router.chosen) return;
    q.out.id[(size_t)token * q.router.chosen + lane] = id[warp][lane];
    q.out.weight[(size_t)token * q.router.chosen + lane] =
        weight[warp][lane] * (q.out.scale ? q.out.scale[id[warp][lane]] : 1.0f);
}

/* ---- groups --------------------------------------------------------------------------------------- */

struct group_params {
    const uint32_t *id, *slot, *count;
    uint32_t experts, chosen, tokens;
    struct gpuk_groups out;
};

__device__ __forceinline__ uint32_t warp_count(uint32_t v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

/* Block e places the pairs of expert e. A warp has neighbours, counts them first and places them when it
 * knows how many are in front. */
__global__ void __launch_bounds__(GROUP_THREADS) group_kernel(const __grid_constant__ group_params q)
{
    __shared__ uint32_t absent[MODEL_EXPERTS_MAX / 32], before_of[GROUP_WARPS], less_of[GROUP_WARPS];
    wait_for_previous();
    let_next_start();
    const uint32_t e = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
                   tokens = q.count && *q.count < q.tokens ? *q.count : q.tokens, pairs = tokens * q.chosen,
                   each = div_up(pairs, 32 * GROUP_WARPS) * 32, begin = warp * each,
                   end = begin + each < pairs ? begin + each : pairs;
    for (uint32_t i = threadIdx.x; i < div_up(q.experts, 32) * 32; i += GROUP_THREADS) {
        const uint32_t bits =
            __ballot_sync(0xffffffffu, experts_slot(q.slot, q.experts, i) == GPUK_SLOT_ABSENT);
        if (lane == 0) absent[i / 32] = bits;
    }
    __syncthreads();
    const bool gone = absent[e / 32] >> e % 32 & 1;
    uint32_t less = 0, mine = 0; /* pairs of experts in front; its own */
#pragma unroll 8
    for (uint32_t i = begin + lane; i < end; i += 32) {
        const uint32_t id = __ldcg(q.id + i);
        less += id < e && !(absent[id / 32] >> id % 32 & 1);
        mine += id == e && !gone;
    }
    less = warp_count(less), mine = warp_count(mine);
    if (lane == 0) less_of[warp] = less, before_of[warp] = mine;
    __syncthreads();
    uint32_t first = 0, all = 0, at = 0;
    for (uint32_t w = 0; w < GROUP_WARPS; w++) {
        if (w == warp) at = all;
        first += less_of[w], all += before_of[w];
    }
    at += first;
    if (threadIdx.x == 0) q.out.first[e] = first;
    if (threadIdx.x == 0 && e + 1 == q.experts) q.out.first[q.experts] = first + all;
#pragma unroll 4
    for (uint32_t base = begin; base < end; base += 32) {
        const uint32_t i = base + lane, id = i < end ? __ldcg(q.id + i) : 0xffffffffu;
        const uint32_t same = __ballot_sync(0xffffffffu, id == e);
        if (id == e) {
            const uint32_t place = at + __popc(same & ((1u << lane) - 1));
            q.out.place[i] = gone ? GPUK_SLOT_ABSENT : place;
            if (!gone) q.out.pair[place] = i;
        }
        if (i < end && e == 0 && id >= q.experts) q.out.place[i] = GPUK_SLOT_ABSENT; /* no expert's */
        at += gone ? 0 : __popc(same);
    }
}

/* ---- the sum -------------------------------------------------------------------------------------- */

struct sum_params {
    const float *weight, *sums;
    const uint32_t *place, *count;
    uint32_t chosen, rows, out_stride;
    const float *residual;
    float *out;
};

__device__ __forceinline__ float sum_times(float sum, float weight, float v)
{
    return sum + weight * v;
}
__device__ __forceinline__ float4 sum_times(const float4 &sum, float weight, const float4 &v)
{
    return make_float4(sum.x + weight * v.x, sum.y + weight * v.y, sum.z + weight * v.z,
                       sum.w + weight * v.w);
}
/* V: rows that a thread adds up, one or four neighbours. */
template <typename V>
__global__ void __launch_bounds__(SUM_THREADS) sum_kernel(const __grid_constant__ sum_params q)
{
    __shared__ uint32_t place[MODEL_EXPERTS_CHOSEN_MAX];
    __shared__ float weight[MODEL_EXPERTS_CHOSEN_MAX];
    wait_for_previous();
    let_next_start();
    const uint32_t token = blockIdx.x, each = sizeof(V) / sizeof(float),
                   row = (blockIdx.y * SUM_THREADS + threadIdx.x) * each;
    if (q.count && token >= *q.count) return;
    if (threadIdx.x < q.chosen) {
        const uint64_t pair = (uint64_t)token * q.chosen + threadIdx.x;
        place[threadIdx.x] = __ldcg(q.place + pair), weight[threadIdx.x] = __ldcg(q.weight + pair);
    }
    __syncthreads();
    if (row >= q.rows) return;
    V sum = {};
#pragma unroll 8
    for (uint32_t j = 0; j < q.chosen; j++)
        if (place[j] != GPUK_SLOT_ABSENT)
            sum = sum_times(sum, weight[j],
                            __ldcg(reinterpret_cast<const V *>(q.sums + (uint64_t)place[j] * q.rows + row)));
    const uint64_t at = (uint64_t)token * q.out_stride + row;
    if (q.residual) sum = sum_times(__ldcg(reinterpret_cast<const V *>(q.residual + at)), 1.0f, sum);
    *reinterpret_cast<V *>(q.out + at) = sum;
}

/* ---- launchers ------------------------------------------------------------------------------------ */

int gpuk_check_router(const struct model_router *router, struct helm_err *err)
{
    const uint32_t n = router->experts, groups = router->groups ? router->groups : 1;
    if (n == 0 || n > MODEL_EXPERTS_MAX || router->chosen == 0 || router->chosen > n ||
        router->chosen > MODEL_EXPERTS_CHOSEN_MAX)
        return helm_fail(err, HELM_E_LIMIT, "router: %u of %u experts (at most %d of %d)", router->chosen, n,
                         MODEL_EXPERTS_CHOSEN_MAX, MODEL_EXPERTS_MAX);
    if (router->score > ROUTER_SIGMOID)
        return helm_fail(err, HELM_E_UNSUPPORTED, "router: scores of kind %d", (int)router->score);
    if (router->score == ROUTER_SIGMOID && groups > router->groups_chosen &&
        (groups > MODEL_EXPERT_GROUPS_MAX || n % groups != 0 || router->groups_chosen == 0 ||
         (uint64_t)n / groups * router->groups_chosen < router->chosen))
        return helm_fail(err, HELM_E_LIMIT,
                         "router: %u of %u experts within %u of %u groups (at most %d, equal ones)",
                         router->chosen, n, router->groups_chosen, groups, MODEL_EXPERT_GROUPS_MAX);
    return HELM_OK;
}

static int check_tokens(const char *what, uint32_t tokens, struct helm_err *err)
{
    if (tokens == 0 || tokens > 1u << 19) /* 2^24 pairs */
        return helm_fail(err, HELM_E_LIMIT, "%s: %u tokens (1 to 2^19)", what, tokens);
    return HELM_OK;
}

extern "C" int gpuk_route(const struct model_router *router, const uint32_t *count, uint32_t tokens,
                          const float *logits, const float *choice_bias, const struct gpuk_choice *out,
                          uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check_tokens("route", tokens, err);
    if (!rc) rc = gpuk_check_router(router, err);
    if (rc) return rc;
    const uint32_t warps = tokens < ROUTE_WARPS ? tokens : ROUTE_WARPS;
    const route_params q = {*router, count, tokens, logits, choice_bias, *out};
    return gpuk_launch("route", route_kernel, dim3(div_up(tokens, warps)), dim3(warps * 32),
                       warps * experts_scratch(*router) * sizeof(float), flags, stream, err, q);
}

extern "C" int gpuk_experts_group(const struct gpuk_choice *choice, uint32_t experts, const uint32_t *slot,
                                  const uint32_t *count, uint32_t tokens, const struct gpuk_groups *out,
                                  uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check_tokens("groups", tokens, err);
    if (rc) return rc;
    if (experts == 0 || experts > MODEL_EXPERTS_MAX || choice->chosen == 0 ||
        choice->chosen > MODEL_EXPERTS_CHOSEN_MAX)
        return helm_fail(err, HELM_E_LIMIT, "groups: %u of %u experts", choice->chosen, experts);
    const group_params q = {choice->id, slot, count, experts, choice->chosen, tokens, *out};
    return gpuk_launch("groups", group_kernel, dim3(experts), dim3(GROUP_THREADS), 0, flags, stream, err, q);
}

extern "C" int gpuk_experts_sum(const struct gpuk_choice *choice, const struct gpuk_groups *groups,
                                const float *sums, uint32_t rows, const uint32_t *count, uint32_t tokens,
                                const float *residual, float *out, uint32_t out_stride, uint32_t flags,
                                void *stream, struct helm_err *err)
{
    int rc = check_tokens("sum of experts", tokens, err);
    if (rc) return rc;
    if (rows == 0 || out_stride < rows)
        return helm_fail(err, HELM_E_USAGE, "sum of experts: rows of %u numbers, %u apart", rows, out_stride);
    const sum_params q = {choice->weight, sums,       groups->place, count, choice->chosen,
                          rows,           out_stride, residual,      out};
    const bool four = (((size_t)sums | (size_t)residual | (size_t)out) % 16 | rows % 4 | out_stride % 4) == 0;
    return gpuk_launch("sum of experts", four ? sum_kernel<float4> : sum_kernel<float>,
                       dim3(tokens, div_up(rows, SUM_THREADS * (four ? 4 : 1))), dim3(SUM_THREADS), 0, flags,
                       stream, err, q);
}

int gpuk_prepare_experts_route(const struct gpuk_device *, struct helm_err *err)
{
    int rc = gpuk_prepare("route", route_kernel, 0, err);
    if (!rc) rc = gpuk_prepare("groups", group_kernel, 0, err);
    if (!rc) rc = gpuk_prepare("sum of experts", sum_kernel<float>, 0, err);
    return rc ? rc : gpuk_prepare("sum of experts", sum_kernel<float4>, 0, err);
}
