/* Asking another processor for experts, and adding what it answers. See experts_share.h.
 *
 * Block 0 makes the choice and the list, the others copy x meanwhile. Sets of experts are bits in shared memory, so that an
 * expert's rank among the missing ones is a count of bits and the same in every run. */
#include "worker-gpu/kernels/experts.cuh"
#include "worker-gpu/kernels/experts_share.h"

static const uint32_t ASK_THREADS = 512, ASK_WARPS = ASK_THREADS / 32, ADD_THREADS = 256,
                      WORDS = MODEL_EXPERTS_MAX / 32;

struct ask_params {
    bool routes;
    struct model_router router;
    const float *logits, *choice_bias;
    struct gpuk_choice choice;
    const uint32_t *count, *table;
    uint32_t tokens, experts, direct_permille, width, capacity;
    uint32_t *slot, *seen;
    const float *x;
    float *lane;
};

/* The choice of all tokens, into device memory: a warp a token, or all for one. */
static __device__ void ask_route(const ask_params &q, uint32_t tokens, float *scratch)
{
    __shared__ uint32_t id[ASK_WARPS][MODEL_EXPERTS_CHOSEN_MAX];
    __shared__ float weight[ASK_WARPS][MODEL_EXPERTS_CHOSEN_MAX];
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, chosen = q.router.chosen;
    if (tokens == 1 && experts_ranks(q.router))
        experts_rank(q.router, q.logits, q.choice_bias, scratch, id[0], weight[0], ASK_THREADS, true);
    else if (warp < tokens)
        experts_choose(q.router, q.logits + (size_t)warp * q.experts, q.choice_bias,
                       scratch + warp * experts_scratch(q.router), id[warp], weight[warp]);
    __syncwarp();
    if (warp < tokens && lane < chosen) {
        q.choice.id[warp * chosen + lane] = id[warp][lane];
        q.choice.weight[warp * chosen + lane] = weight[warp][lane];
    }
    __syncthreads(); /* the block's own stores are seen by it */
}

static __device__ void ask_list(const ask_params &q, uint32_t tokens)
{
    __shared__ uint32_t wanted[WORDS], before[WORDS], missing;
    const uint32_t pairs = tokens * q.choice.chosen, words = div_up(q.experts, 32);
    for (uint32_t w = threadIdx.x; w < words; w += ASK_THREADS) wanted[w] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs; i += ASK_THREADS) {
        const uint32_t id = q.choice.id[i];
        if (experts_slot(q.table, q.experts, id) == GPUK_SLOT_ABSENT && id < q.experts)
            atomicOr(&wanted[id / 32], 1u << id % 32);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < words; w++) before[w] = sum, sum += __popc(wanted[w]);
        missing = sum;
    }
    __syncthreads();
    const uint32_t direct = (missing * q.direct_permille + 500) / 1000;
    const auto rank_of = [&](uint32_t e) {
        return before[e / 32] + __popc(wanted[e / 32] & ((1u << e % 32) - 1));
    };
    for (uint32_t e = threadIdx.x; e < q.experts; e += ASK_THREADS) {
        const bool is_missing = wanted[e / 32] >> e % 32 & 1;
        q.slot[e] = is_missing && rank_of(e) < direct ? GPUK_SLOT_HOST | e : __ldcg(q.table + e);
    }
    uint32_t *id_out = reinterpret_cast<uint32_t *>(q.lane + (size_t)q.capacity * q.width);
    float *weight_out = reinterpret_cast<float *>(id_out + (size_t)q.capacity * q.choice.chosen);
    for (uint32_t i = threadIdx.x; i < pairs; i += ASK_THREADS) {
        const uint32_t id = q.choice.id[i];
        const bool asked = id < q.experts && (wanted[id / 32] >> id % 32 & 1) && rank_of(id) >= direct;
        id_out[i] = asked ? id : GPUK_SLOT_ABSENT;
        weight_out[i] = q.choice.weight[i];
        if (q.seen) q.seen[i] = id;
    }
}

__global__ void __launch_bounds__(ASK_THREADS) ask_kernel(const __grid_constant__ ask_params q)
{
    SHARED_DYNAMIC(float, scratch);
    let_next_start();
    wait_for_previous();
    const uint32_t tokens = q.count && *q.count < q.tokens ? *q.count : q.tokens;
    if (blockIdx.x == 0) {
        if (q.routes) ask_route(q, tokens, scratch);
        ask_list(q, tokens);
        return;
    }
    const uint64_t all = (uint64_t)tokens * q.width, each = (uint64_t)(gridDim.x - 1) * ASK_THREADS;
    for (uint64_t i = (uint64_t)(blockIdx.x - 1) * ASK_THREADS + threadIdx.x; i < all; i += each)
        q.lane[i] = __ldcg(q.x + i);
}

struct add_params {
    const uint32_t *count;
    uint32_t tokens, width;
    const float *x, *sum;
    float *out;
};

__global__ void __launch_bounds__(ADD_THREADS) add_kernel(const __grid_constant__ add_params q)
{
    let_next_start();
    wait_for_previous();
    const uint32_t token = blockIdx.x, i = blockIdx.y * ADD_THREADS + threadIdx.x;
    if ((q.count && token >= *q.count) || i >= q.width) return;
    const uint64_t at = (uint64_t)token * q.width + i;
    q.out[at] = __ldcg(q.x + at) + __ldcv(q.sum + at); /* of this step's answer, nothing that a cache had */
}

/* ---- launchers ------------------------------------------------------------------------------------ */

extern "C" int gpuk_experts_ask(const struct gpuk_experts_ask *a, uint32_t tokens, const uint32_t *count,
                                uint32_t flags, void *stream, struct helm_err *err)
{
    const uint32_t chosen = a->choice.chosen;
    int rc = a->router ? gpuk_check_router(a->router, err) : HELM_OK;
    if (rc) return rc;
    if (tokens == 0 || tokens > (a->router ? GPUK_BATCH_MAX : 1u << 19) || a->experts == 0 ||
        a->experts > MODEL_EXPERTS_MAX || chosen == 0 || chosen > MODEL_EXPERTS_CHOSEN_MAX ||
        a->direct_permille > 1000)
        return helm_fail(err, HELM_E_LIMIT, "asking for experts: %u tokens, %u of %u experts, %u of 1,000",
                         tokens, chosen, a->experts, a->direct_permille);
    if (tokens > a->capacity && a->router == NULL)
        tokens = a->capacity; /* capacity is what a step has at most */
    if (a->router && (a->router->experts != a->experts || a->router->chosen != chosen))
        return helm_fail(err, HELM_E_USAGE, "asking for experts: a router of %u of %u, %u of %u experts",
                         a->router->chosen, a->router->experts, chosen, a->experts);
    ask_params q = {};
    q.routes = a->router != NULL;
    if (a->router) q.router = *a->router;
    q.logits = a->logits, q.choice_bias = a->choice_bias, q.choice = a->choice, q.count = count,
    q.table = a->table;
    q.tokens = tokens, q.experts = a->experts, q.direct_permille = a->direct_permille, q.width = a->width;
    q.capacity = a->capacity, q.slot = a->slot, q.seen = a->seen, q.x = a->x, q.lane = a->lane;
    const size_t scratch =
        a->router ? (tokens < ASK_WARPS ? tokens : ASK_WARPS) * experts_scratch(*a->router) * sizeof(float)
                  : 0;
    const uint32_t copies = div_up(tokens * a->width, 4 * ASK_THREADS), most = 32;
    return gpuk_launch("asking for experts", ask_kernel, dim3(1 + (copies < most ? copies : most)),
                       dim3(ASK_THREADS), scratch, flags, stream, err, q);
}

extern "C" int gpuk_experts_add(const struct gpuk_experts_add *a, uint32_t tokens, const uint32_t *count,
                                uint32_t flags, void *stream, struct helm_err *err)
{
    if (tokens == 0 || a->width == 0)
        return helm_fail(err, HELM_E_LIMIT, "adding asked experts: %u tokens of %u numbers", tokens,
                         a->width);
    const add_params q = {count, tokens, a->width, a->x, a->sum, a->out};
    return gpuk_launch("adding asked experts", add_kernel, dim3(tokens, div_up(a->width, ADD_THREADS)),
                       dim3(ADD_THREADS), 0, flags, stream, err, q);
}

int gpuk_prepare_experts_share(const struct gpuk_device *device, struct helm_err *err)
{
    int rc =
        gpuk_prepare("asking for experts", ask_kernel, (size_t)device->shared_bytes_max - (8 << 10), err);
    return rc ? rc : gpuk_prepare("adding asked experts", add_kernel, 0, err);
}
