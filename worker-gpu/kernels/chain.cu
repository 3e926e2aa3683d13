/* Consecutive operations of one token in one launch: linear layers and decode attention.
 *
 * One block a multiprocessor stays for all operations. Each warp has a private ring of tiles of
 * weights in shared memory, filled by the bulk copy engine (as in gemv.cu); the walk that asks for tiles runs
 * on from operation to operation, so that copies never wait for data: while blocks finish rows, meet, load x
 * or compute attention, the ring goes on filling with the next operations' weights.
 * Between operations all blocks meet: one thread counts its block in (release) and waits for the count
 * (acquire). The counter only grows; a launch adds the same to it each time, so that its beginning is known
 * from any reading before a block's own last arrival. Everything that is written in a launch (x, q, k, v,
 * pieces of attention) is read past the L1.
 * Launchers below; worker-gpu/kernels.h says what they mean. */
#include "worker-gpu/kernels/chain.cuh"
#include "worker-gpu/kernels/chain_attention.cuh"

#include <vector>

static const uint32_t SLOTS_MAX = 8;

/* Blocks of 16 warps with tiles of 1 KB a row took 3 % longer on an H200 (and spilled registers). */
typedef chain_shape<8, 2048> chain_shaped;

struct chain_params {
    unsigned char *list;
    uint32_t count, linears, slots, region_bytes;
};

/* Shared memory: ring [warp][slot][2][tile], a region for x or attention, partial [2][PARTIAL_FLOATS],
 * squares [32], items [2], each warp's chain_weights, the token, barriers [warp][slot]. */
static size_t chain_shared_bytes(uint32_t slots, uint32_t region_bytes)
{
    return (size_t)chain_shaped::WARPS * slots * (2 * chain_shaped::TILE + 8) + region_bytes +
           (2 * PARTIAL_FLOATS + 32) * sizeof(float) + 2 * sizeof(chain_item) +
           chain_shaped::WARPS * sizeof(chain_weights) + sizeof(chain_token);
}

/* A warp's place in its ring. */
struct chain_ring {
    const unsigned char *at;
    uint32_t address, barrier, slots, slot, parity;
};

/* x into shared memory, times the norm's weights; the sum of squares stays in parts. The norm's weights are
 * taken into x's place before the wait. */
template <typename S, typename T, typename Wait>
__device__ __forceinline__ void take_x(const linear_params &p, float *x, float *squares, const Wait &wait)
{
    const uint32_t quads = p.cols / 4, batch = 4096 / S::THREADS; /* loads that are on their way together */
    float4 *x4 = reinterpret_cast<float4 *>(x), v[batch];
    const float4 *from = reinterpret_cast<const float4 *>(p.x);
    const float4 *norm = reinterpret_cast<const float4 *>(p.norm);
    const float4 none = make_float4(0, 0, 0, 0);
    for (uint32_t f0 = threadIdx.x; norm && f0 < quads; f0 += batch * S::THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < batch; j++)
            v[j] = f0 + j * S::THREADS < quads ? __ldg(norm + f0 + j * S::THREADS) : none;
#pragma unroll
        for (uint32_t j = 0; j < batch; j++)
            if (f0 + j * S::THREADS < quads) x4[x_place<T>(f0 + j * S::THREADS)] = v[j];
    }
    wait();
    float sum = 0;
    for (uint32_t f0 = threadIdx.x; f0 < quads; f0 += batch * S::THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < batch; j++)
            v[j] = f0 + j * S::THREADS < quads ? __ldcg(from + f0 + j * S::THREADS) : none;
#pragma unroll
        for (uint32_t j = 0; j < batch; j++) {
            const uint32_t f = f0 + j * S::THREADS;
            if (f >= quads) break;
            if (norm) {
                const float4 n = x4[x_place<T>(f)];
                sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
                v[j] = make_float4(v[j].x * n.x, v[j].y * n.y, v[j].z * n.z, v[j].w * n.w);
            }
            x4[x_place<T>(f)] = v[j];
        }
    }
    if (norm) {
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) squares[threadIdx.x >> 5] = sum;
    }
}
template <typename S> __device__ __forceinline__ float x_scale(const linear_params &p, const float *squares)
{
    if (!p.norm) return 1.0f;
    float sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < S::WARPS; w++) sum += squares[w];
    return rsqrtf(sum / (float)p.cols + p.eps);
}

/* The block's rows of one linear operation, x being in shared memory. The warp begins with tile `rest`, and
 * the tile it would go on with, counted from behind the last, is returned. */
template <typename S, typename T>
__device__ __forceinline__ uint32_t chain_rows(const chain_item &item, const float *x, const float *squares,
                                               float *partial, uint32_t &which, chain_ring &ring,
                                               ask_walk &ask, uint32_t rest)
{
    const linear_params &p = item.linear;
    const uint32_t lane = threadIdx.x & 31, chunks = item.where.chunks;
    const float4 *x4 = reinterpret_cast<const float4 *>(x);
    uint32_t first, pairs;
    share_of_block(item.where, first, pairs);
    /* a thread finishes one pair of a batch */
    const uint32_t fit = PARTIAL_FLOATS / 2 / chunks, batch_pairs = fit < S::THREADS ? fit : S::THREADS;
    tile_walk use = walk_to(rest, chunks);
    for (uint32_t batch = 0; batch < pairs; batch += batch_pairs, which ^= 1) {
        float *sums = partial + which * PARTIAL_FLOATS;
        const uint32_t end = batch + batch_pairs < pairs ? batch + batch_pairs : pairs;
        /* what will be added to this thread's rows is on its way while the products are computed */
        const uint32_t mine = batch + threadIdx.x, pair = first + mine * gridDim.x;
        float2 add = make_float2(0, 0);
        if (mine < end) add = linear_addends(p, pair, 0);
        while (use.pair < end) {
            bulk_wait(ring.barrier + 8 * ring.slot, ring.parity);
            float keep = tile_sums<T, S::TILE>(ring.at + (size_t)ring.slot * 2 * S::TILE,
                                               tile_length<S>(item.where, use.chunk),
                                               x4 + use.chunk * (S::TILE / (uint32_t)sizeof(T) / 4));
            __syncwarp(); /* the slot has been read: see gemv.cu */
            ask_tile<S>(ask, ring.address + ring.slot * 2 * S::TILE, ring.barrier + 8 * ring.slot);
            keep = tile_fold(keep);
            if ((lane & 15) == 0) sums[((use.pair - batch) * chunks + use.chunk) * 2 + (lane >> 4)] = keep;
            walk_round(use, item.where);
            if (++ring.slot == ring.slots) ring.slot = 0, ring.parity ^= 1;
        }
        __syncthreads();
        if (mine < end) { /* a batch has at most as many pairs as the block threads */
            const float2 *from = reinterpret_cast<const float2 *>(sums) + (mine - batch) * chunks;
            const float scale = x_scale<S>(p, squares);
            float a = 0, b = 0;
#pragma unroll 8
            for (uint32_t c = 0; c < chunks; c++) a += from[c].x, b += from[c].y;
            linear_store(p, pair, 0, a * scale + add.x, b * scale + add.y);
        }
    }
    return walk_rest(use, pairs, chunks);
}

template <typename S, typename T, typename C>
__global__ void __launch_bounds__(S::WARPS * 32, 1) chain_kernel(const __grid_constant__ chain_params q)
{
#if defined(HELM_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *region = reinterpret_cast<float *>(shared + (size_t)S::WARPS * q.slots * 2 * S::TILE);
    float *partial = reinterpret_cast<float *>(reinterpret_cast<unsigned char *>(region) + q.region_bytes);
    float *squares = partial + 2 * PARTIAL_FLOATS;
    chain_item *items = reinterpret_cast<chain_item *>(squares + 32);
    chain_weights *asked = reinterpret_cast<chain_weights *>(items + 2);
    chain_token *token = reinterpret_cast<chain_token *>(asked + S::WARPS);
    uint64_t *barriers = reinterpret_cast<uint64_t *>(token + 1);
    chain_header *header = reinterpret_cast<chain_header *>(q.list);
    const chain_weights *weights = reinterpret_cast<const chain_weights *>(q.list + CHAIN_HEADER_BYTES);
    const unsigned char *list = reinterpret_cast<const unsigned char *>(weights + q.linears);
    const auto fetch =
        [&](uint32_t number) { /* an operation on its way into its place */
                               if (threadIdx.x < sizeof(chain_item) / 16)
                                   copy16_async(shared_address(items + (number & 1)) + 16 * threadIdx.x,
                                                list + (size_t)number * sizeof(chain_item) + 16 * threadIdx.x,
                                                true);
                               copies_commit();
        };
    fetch(0);

    chain_ring ring;
    ring.at = shared + (size_t)warp * q.slots * 2 * S::TILE;
    ring.address = shared_address(ring.at);
    ring.barrier = shared_address(barriers + warp * q.slots);
    ring.slots = q.slots, ring.slot = 0, ring.parity = 0;
    if (lane == 0) bulk_barriers_open(ring.barrier, q.slots);
    __syncwarp();
    ask_walk ask;
    ask_open(ask, asked + warp, weights, q.linears, warp);
    for (uint32_t s = 0; s < q.slots; s++)
        ask_tile<S>(ask, ring.address + s * 2 * S::TILE, ring.barrier + 8 * s);

    if (threadIdx.x == 0) {
        const uint64_t a_launch = (uint64_t)gridDim.x * (q.count - 1);
        const uint64_t now = q.count > 1 ? meet_count(&header->counter) : 0;
        *token = {nullptr, q.count > 1 ? now - now % a_launch : 0, 0, false};
        if (header->attends && header->step.counts[0] > 0) {
            const gpuk_step &s = header->step;
            token->counts = true;
            token->position = s.position[0];
            token->pages = s.page_table + (size_t)s.row_slot[s.token_row[0]] * s.pages_per_slot;
        }
    }
    copies_wait<0>();
    __syncthreads();

    uint32_t rest = warp, which = 0;
    for (uint32_t number = 0; number < q.count; number++) {
        const chain_item &item = items[number & 1];
        const auto wait = [&] {
            if (number > 0) {
                if (threadIdx.x == 0) meet_wait(&header->counter, token->awaited);
                __syncthreads();
            }
            if (number + 1 < q.count) fetch(number + 1);
            if (number + 2 < q.count && blockIdx.x == number % gridDim.x &&
                128 * threadIdx.x < sizeof(chain_item))
                ask_l2(list + (size_t)(number + 2) * sizeof(chain_item) + 128 * threadIdx.x);
            /* the next norm's weights come from far: each block asks for some of them */
            const uint32_t line = 128 * (blockIdx.x + threadIdx.x * gridDim.x);
            if (line < item.next_norm_bytes)
                ask_l2(reinterpret_cast<const unsigned char *>(item.next_norm) + line);
        };
        if (item.kind == GPUK_CHAIN_LINEAR) {
            take_x<S, T>(item.linear, region, squares, wait);
            copies_wait<0>();
            __syncthreads();
            const chain_item &next = items[(number + 1) & 1];
            if (number + 1 < q.count && next.kind == GPUK_CHAIN_ATTENTION && token->counts)
                chain_attention_ask<S>(next.attention.a, *token);
            rest = chain_rows<S, T>(item, region, squares, partial, which, ring, ask, rest);
        } else if (token->counts) {
            const attention_cut cut = cut_of(item.attention.a, token->position);
            if (cut.heads == 1)
                chain_attend<S, C, 1>(item.attention, *token, cut, region, wait);
            else
                chain_attend<S, C, CHAIN_GROUP>(item.attention, *token, cut, region, wait);
        } else {
            wait();
        }
        copies_wait<0>();
        __syncthreads(); /* the block has stored its results, and is through with the shared memory */
        if (threadIdx.x == 0 && number + 1 < q.count) {
            meet_arrive(&header->counter);
            token->awaited += gridDim.x;
        }
    }
#endif
}

/* ---- launchers ------------------------------------------------------------------------------------- */

typedef void (*chain_function)(chain_params);
#define CHAIN(T)                                                                                             \
    {                                                                                                        \
        chain_kernel<chain_shaped, T, __nv_bfloat16>, chain_kernel<chain_shaped, T, __half>,                 \
            chain_kernel<chain_shaped, T, float>                                                             \
    }
static const chain_function kernels[DTYPE_COUNT][DTYPE_COUNT] = {CHAIN(__nv_bfloat16), CHAIN(__half),
                                                                 CHAIN(float)};

int gpuk_prepare_chain(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int i = 0; i < DTYPE_COUNT * DTYPE_COUNT && !rc && device->bulk_copy; i++)
        rc = gpuk_prepare("chain", kernels[i / DTYPE_COUNT][i % DTYPE_COUNT],
                          (size_t)device->shared_bytes_max, err);
    return rc;
}

/* Shared memory that an operation's x or attention takes; 0 when a chain cannot take the operation. */
static uint32_t region_of(const struct gpuk_chain_op *op)
{
    struct helm_err unused = {};
    if (op->kind == GPUK_CHAIN_LINEAR) {
        const struct gpuk_linear_args *a = &op->linear;
        struct linear_params params;
        if (gpuk_linear_params("chain", a, &params, &unused) || !gpuk_linear_aligned(a)) return 0;
        if (((size_t)a->x | (size_t)a->norm) % 16 != 0 || params.row_bytes > UINT32_MAX / 4) return 0;
        const uint32_t chunks = (uint32_t)((params.row_bytes + chain_shaped::TILE - 1) / chain_shaped::TILE);
        if (chunks > PARTIAL_FLOATS / 2) return 0;
        return chunks * (chain_shaped::TILE / (a->dtype == DTYPE_F32 ? 4 : 2)) * (uint32_t)sizeof(float);
    }
    if (op->kind != GPUK_CHAIN_ATTENTION) return 0;
    const struct gpuk_attention *a = &op->attention.args;
    if (gpuk_attention_check("chain", a, 1, &unused)) return 0;
    const struct kv_layout *l = &a->kv.layout;
    if (l->head_dim % 8 != 0 || ((size_t)a->kv.pool | (size_t)a->kv.pool_host) % 16 != 0) return 0;
    const uint32_t group = a->heads / l->kv_heads < CHAIN_GROUP ? a->heads / l->kv_heads : CHAIN_GROUP;
    /* a unit of two or three heads is laid out as one of CHAIN_GROUP */
    const uint32_t bytes =
        chain_attention_floats(chain_shaped::WARPS, group > 1 ? CHAIN_GROUP : 1, l->head_dim) * 4;
    return (bytes + 127) / 128 * 128;
}

extern "C" bool gpuk_chain_takes(const struct gpuk_device *device, const struct gpuk_chain_op *op)
{
    const uint32_t region = region_of(op);
    return device->bulk_copy && region > 0 &&
           chain_shared_bytes(2, region) <= (size_t)device->shared_bytes_max;
}

extern "C" size_t gpuk_chain_bytes(uint32_t count)
{
    return (CHAIN_HEADER_BYTES + (size_t)count * (sizeof(chain_weights) + sizeof(chain_item)) + 255) / 256 *
           256;
}

static struct chain_weights weights_of(const struct gpuk_linear_args *args, const struct linear_params *p,
                                       uint32_t blocks, uint32_t start)
{
    struct chain_weights w = {};
    const uint32_t row_bytes = (uint32_t)p->row_bytes;
    w.pair_bytes = args->swiglu ? row_bytes : 2 * row_bytes;
    for (uint32_t s = 0; s < GPUK_SEGMENTS_MAX; s++) {
        w.end[s] = UINT32_MAX;
        if (s >= (args->swiglu ? 1 : args->segments)) continue;
        const uint32_t before = s ? p->segment[s - 1].pair_end : 0;
        w.base[s] =
            (const unsigned char *)((uintptr_t)p->segment[s].weight - (uint64_t)before * w.pair_bytes);
        w.end[s] = p->segment[s].pair_end;
        if (!args->swiglu && p->segment[s].rows % 2) w.odd |= 1u << s;
    }
    w.to_second =
        args->swiglu ? (uintptr_t)p->segment[1].weight - (uintptr_t)p->segment[0].weight : row_bytes;
    w.chunks = (row_bytes + chain_shaped::TILE - 1) / chain_shaped::TILE;
    w.last_bytes = row_bytes - (w.chunks - 1) * chain_shaped::TILE;
    w.start = start;
    w.whole = p->pairs / blocks;
    w.extra = p->pairs % blocks;
    w.step_pairs = chain_shaped::WARPS / w.chunks;
    w.step_chunks = chain_shaped::WARPS % w.chunks;
    return w;
}

/* One token's step, the same for every attention operation. */
static bool same_step(const struct gpuk_step *a, const struct gpuk_step *b)
{
    return a->counts == b->counts && a->position == b->position && a->token_row == b->token_row &&
           a->row_slot == b->row_slot && a->page_table == b->page_table &&
           a->pages_per_slot == b->pages_per_slot;
}

extern "C" int gpuk_chain_write(const struct gpuk_device *device, const struct gpuk_chain_op *op,
                                uint32_t count, void *memory, void *attention_workspace, void *stream,
                                struct gpuk_chain *chain, struct helm_err *err)
{
    if (count == 0 || count > 1u << 20)
        return helm_fail(err, HELM_E_LIMIT, "chain: %u operations (1 to 2^20)", count);
    const uint32_t blocks = (uint32_t)device->sm_count;
    const size_t bytes = gpuk_chain_bytes(count);
    std::vector<uint64_t> image(bytes / sizeof(uint64_t) + 2);
    unsigned char *at = (unsigned char *)(((uintptr_t)image.data() + 15) / 16 * 16);
    struct chain_header *header = (struct chain_header *)at;
    struct chain_weights *weights = (struct chain_weights *)(at + CHAIN_HEADER_BYTES);
    uint32_t region = 128, linears = 0, start = 0;
    int dtype = -1, cache = -1;
    for (uint32_t i = 0; i < count; i++) {
        const bool is_linear = op[i].kind == GPUK_CHAIN_LINEAR;
        if (!gpuk_chain_takes(device, &op[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED, "chain: operation %u of %u (%s) cannot be part of one",
                             i, count, is_linear ? "linear" : "attention");
        const uint32_t needs = region_of(&op[i]);
        region = needs > region ? needs : region;
        linears += is_linear;
        int *all = is_linear ? &dtype : &cache;
        const int own = is_linear ? (int)op[i].linear.dtype : (int)op[i].attention.args.kv.layout.dtype;
        if (*all >= 0 && *all != own)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "chain: operation %u of %u (%s) has another dtype than those before it", i,
                             count, is_linear ? "linear" : "attention");
        *all = own;
    }
    struct chain_item *items = (struct chain_item *)(weights + linears);
    struct chain_weights *next = weights;
    for (uint32_t i = 0; i < count; i++) {
        struct chain_item *item = &items[i];
        item->kind = op[i].kind;
        if (op[i].kind == GPUK_CHAIN_LINEAR) {
            struct linear_params params;
            const int rc = gpuk_linear_params("chain", &op[i].linear, &params, err);
            if (rc) return rc;
            item->linear = params;
            item->where = *next++ = weights_of(&op[i].linear, &params, blocks, start);
            start = (uint32_t)(((uint64_t)start + params.pairs) % blocks);
        } else {
            item->attention =
                gpuk_decode_params(&op[i].attention.args, 1, true, op[i].attention.out, attention_workspace);
            if (!header->attends) header->step = op[i].attention.args.step;
            header->attends = 1;
            if (!same_step(&header->step, &op[i].attention.args.step))
                return helm_fail(err, HELM_E_UNSUPPORTED, "chain: operation %u of %u is of another step", i,
                                 count);
        }
        if (i + 1 < count && op[i + 1].kind == GPUK_CHAIN_LINEAR && op[i + 1].linear.norm) {
            item->next_norm = op[i + 1].linear.norm;
            item->next_norm_bytes = op[i + 1].linear.cols * (uint32_t)sizeof(float);
        }
    }
    uint32_t slots = device->gemv_slots > 0 ? (uint32_t)device->gemv_slots : SLOTS_MAX;
    if (slots > SLOTS_MAX) slots = SLOTS_MAX;
    while (slots > 1 && chain_shared_bytes(slots, region) > (size_t)device->shared_bytes_max) slots--;
    *chain = {};
    chain->list = memory;
    chain->count = count;
    chain->variant = (dtype < 0 ? 0 : dtype) * DTYPE_COUNT + (cache < 0 ? 0 : cache);
    chain->warps = chain_shaped::WARPS;
    chain->slots = slots;
    chain->shared_bytes = (uint32_t)chain_shared_bytes(slots, region);
    chain->blocks = blocks;
    chain->linears = linears;
    chain->region_bytes = region;
    cudaError_t code = cudaMemcpyAsync(memory, at, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize((cudaStream_t)stream);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, "chain: writing the list");
}

extern "C" int gpuk_chain_run(const struct gpuk_chain *chain, void *stream, struct helm_err *err)
{
    const struct chain_params p = {(unsigned char *)(uintptr_t)chain->list, chain->count, chain->linears,
                                   chain->slots, chain->region_bytes};
    return gpuk_launch("chain", kernels[chain->variant / DTYPE_COUNT][chain->variant % DTYPE_COUNT],
                       dim3(chain->blocks), dim3(chain->warps * 32), chain->shared_bytes, GPUK_TOGETHER,
                       stream, err, p);
}
