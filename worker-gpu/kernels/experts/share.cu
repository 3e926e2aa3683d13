/* Asking another processor for experts, and adding what it answers. See experts/share.h.
 *
 * Block 0 makes the choice and the list, the others copy x meanwhile. Where the kernel rings it is one block,
 * which copies x first: its stores are on their way to the host while it chooses. Sets of experts are bits in
 * shared memory, so that an expert's rank among the missing ones is a count of bits and the same in every
 * run. */
#include "worker-gpu/kernels/experts/experts.cuh"
#include "worker-gpu/kernels/experts/share.h"

/* A word in host memory: another processor that sees its value sees all that this thread saw stored before,
 * and the other way round. */
#ifdef HELM_CUDA_EMULATED
static void host_word_ring(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static uint32_t host_word_heard(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
#else
__device__ __forceinline__ void host_word_ring(uint32_t *word, uint32_t value)
{
    __threadfence_system();
    *static_cast<volatile uint32_t *>(word) = value;
}
__device__ __forceinline__ uint32_t host_word_heard(const uint32_t *word)
{
    const uint32_t value = *static_cast<const volatile uint32_t *>(word);
    __threadfence_system();
    return value;
}
#endif

static const uint32_t ASK_THREADS = 512, ASK_WARPS = ASK_THREADS / 32, ADD_THREADS = 256,
                      WORDS = MODEL_EXPERTS_MAX / 32;

struct ask_params {
    bool routes;
    struct model_router router;
    const float *logits, *choice_bias;
    struct gpuk_choice choice;
    const uint32_t *count, *table;
    const uint32_t *direct_permille;
    uint32_t tokens, experts, width, capacity;
    uint32_t *slot, *seen;
    const float *x;
    float *lane;
    uint32_t *bell, ticket;
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
        q.choice.weight[warp * chosen + lane] =
            weight[warp][lane] * (q.choice.scale ? q.choice.scale[id[warp][lane]] : 1.0f);
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
    const uint32_t permille = q.direct_permille ? __ldcg(q.direct_permille) : 0,
                   direct = (missing * permille + 500) / 1000;
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
    wait_for_previous();
    let_next_start();
    const uint32_t tokens = q.count && *q.count < q.tokens ? *q.count : q.tokens,
                   front = gridDim.x > 1; /* blocks that do not copy */
    const uint64_t all = (uint64_t)tokens * q.width, each = (uint64_t)(gridDim.x - front) * ASK_THREADS;
    if (blockIdx.x >= front)
        for (uint64_t i = (uint64_t)(blockIdx.x - front) * ASK_THREADS + threadIdx.x; i < all; i += each)
            q.lane[i] = __ldcg(q.x + i);
    if (blockIdx.x != 0) return;
    if (q.routes) ask_route(q, tokens, scratch);
    ask_list(q, tokens);
    if (!q.bell) return;
    __syncthreads(); /* all of the block's stores are in front of the word */
    if (threadIdx.x == 0) host_word_ring(q.bell, q.ticket);
}

struct add_params {
    const uint32_t *count;
    uint32_t tokens, width;
    const float *x, *sum;
    float *out;
    const uint32_t *bell;
    uint32_t ticket;
};

__global__ void __launch_bounds__(ADD_THREADS) add_kernel(const __grid_constant__ add_params q)
{
    wait_for_previous();
    let_next_start();
    const uint32_t token = blockIdx.x, i = blockIdx.y * ADD_THREADS + threadIdx.x;
    if (q.bell) {
        if (threadIdx.x == 0)
            while ((int32_t)(host_word_heard(q.bell) - q.ticket) < 0) word_late();
        __syncthreads();
    }
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
        a->experts > MODEL_EXPERTS_MAX || chosen == 0 || chosen > MODEL_EXPERTS_CHOSEN_MAX)
        return helm_fail(err, HELM_E_LIMIT, "asking for experts: %u tokens, %u of %u experts", tokens, chosen,
                         a->experts);
    if (tokens > a->capacity && a->router == NULL)
        tokens = a->capacity; /* capacity is what a step has at most */
    if (a->bell && !a->router)
        return helm_fail(err, HELM_E_USAGE, "asking for experts: a word to ring without a router");
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
    q.bell = a->bell, q.ticket = a->ticket;
    const size_t scratch =
        a->router ? (tokens < ASK_WARPS ? tokens : ASK_WARPS) * experts_scratch(*a->router) * sizeof(float)
                  : 0;
    const uint32_t copies = div_up(tokens * a->width, 4 * ASK_THREADS), most = 32;
    return gpuk_launch("asking for experts", ask_kernel,
                       dim3(a->bell ? 1 : 1 + (copies < most ? copies : most)), dim3(ASK_THREADS), scratch,
                       flags, stream, err, q);
}

extern "C" int gpuk_experts_add(const struct gpuk_experts_add *a, uint32_t tokens, const uint32_t *count,
                                uint32_t flags, void *stream, struct helm_err *err)
{
    if (tokens == 0 || a->width == 0)
        return helm_fail(err, HELM_E_LIMIT, "adding asked experts: %u tokens of %u numbers", tokens,
                         a->width);
    const add_params q = {count, tokens, a->width, a->x, a->sum, a->out, a->bell, a->ticket};
    return gpuk_launch("adding asked experts", add_kernel, dim3(tokens, div_up(a->width, ADD_THREADS)),
                       dim3(ADD_THREADS), 0, flags, stream, err, q);
}

int gpuk_prepare_experts_share(const struct gpuk_device *device, struct helm_err *err)
{
    int rc =
        gpuk_prepare("asking for experts", ask_kernel, (size_t)device->shared_bytes_max - (8 << 10), err);
    return rc ? rc : gpuk_prepare("adding asked experts", add_kernel, 0, err);
}
