/* A few tokens' products with experts of blocks on the matrix unit (9.0 and later). See experts.h and digits.cuh.
 *
 * One launch for all tokens and their experts, of which it learns on the device (experts_list.cuh). An item of work comes in one
 * stage of a ring that the copy engine fills: 16 rows of an expert's gate and up; or of down the block's 16 rows of some
 * experts one behind the other, so that the sum over a token's experts, in order of choice, is its own too. A matrix's 16 rows
 * lie in one piece. Warps share an item by units of 256 columns, whose parts of the sums all threads add up in order behind a
 * meeting, while the next items come. So a pair's sum never depends on other pairs.
 *
 * x of all tokens lies in shared memory as digits. Activations are too many: those of an item are made digits of while the one
 * before is multiplied. */
#include "worker-gpu/kernels/decode.cuh"
#include "worker-gpu/kernels/digits.cuh"
#include "worker-gpu/kernels/experts_list.cuh"

/* Over the link whole lines of 128 bytes are asked for. */
static const uint32_t HOST_LINE = 128;
static const uint32_t WARPS = 16, THREADS = WARPS * 32, PAIRS_MAX = GPUK_BATCH_MAX * MODEL_EXPERTS_CHOSEN_MAX,
                      LOADS = 6 /* quads of vectors that a thread has on the way */;
static_assert(PAIRS_MAX <= THREADS, "a thread sorts a pair");

struct experts_digits_params {
    struct experts_params of;
    uint32_t runs, units; /* of a row: runs of 32 columns, units of 8 runs */
    uint32_t row_tiles;   /* of an expert's matrix: 16 rows each */
    uint32_t tiles;       /* of a stage: a gate and an up, or downs of so many experts */
    uint32_t tile_bytes;  /* from one to the next */
    uint32_t stages;
    uint32_t vectors; /* of x that have room; of activations, for each of two items */
    uint32_t vector_runs, vector_bytes;
    uint32_t groups; /* of 32 float4 of a vector */
    uint32_t pairs;  /* tokens * chosen */
    bool hosts;      /* some experts may lie in host memory */

    __host__ __device__ uint32_t stage_bytes() const { return tiles * tile_bytes; }
    /* Parts of an item's sums. */
    __host__ __device__ uint32_t parts() const { return (of.down ? 1 : 2) * units * vectors * DIGITS_ROWS; }
};

/* Shared memory, in this order. */
struct digits_memory {
    unsigned char *ring; /* [stages][tiles][tile_bytes]; while the choice is made, its scratch */
    unsigned char *x;    /* [vectors, of down twice][vector_bytes] */
    uint64_t *barriers;  /* [stages] */
    float *parts;        /* [2][matrix * units + unit][vectors][16] */
    float *squares;      /* [vectors][groups] */
    float *scale;        /* [vectors] */
    float *sums;         /* of down: [pairs][16] */
    experts_list list;

    __host__ __device__ size_t lay(unsigned char *at, const experts_digits_params &q)
    {
        const unsigned char *from = at;
        const auto take = [&](size_t bytes) {
            unsigned char *part = at;
            at += (bytes + 15) / 16 * 16;
            return part;
        };
        ring = take((size_t)q.stages * q.stage_bytes());
        x = take((size_t)(q.of.down ? 2 : 1) * q.vectors * q.vector_bytes);
        barriers = reinterpret_cast<uint64_t *>(take((size_t)q.stages * 8));
        parts = reinterpret_cast<float *>(take((size_t)2 * q.parts() * 4));
        squares = reinterpret_cast<float *>(take(q.of.norm ? (size_t)q.vectors * q.groups * 4 : 0));
        scale = reinterpret_cast<float *>(take(q.of.norm ? (size_t)q.vectors * 4 : 0));
        sums = reinterpret_cast<float *>(take(q.of.down ? (size_t)q.pairs * DIGITS_ROWS * 4 : 0));
        at = list.lay(at, q.pairs);
        return (size_t)(at - from);
    }
};

/* Some experts, by their places in the list, and which 16 rows; none: the block's work is done. */
struct digits_item {
    uint32_t first, after, tile;
    __device__ __forceinline__ bool none() const { return first == after; }
};

template <typename F> struct experts_digits_block {
    const experts_digits_params &q;
    const experts_params &p;
    digits_memory m;
    uint32_t experts, lane, warp;

    /* ---- the block's work ---- */

    /* Experts of down from `first` on whose tiles and pairs have room. */
    __device__ __forceinline__ digits_item downs_from(uint32_t first, uint32_t tile) const
    {
        if (tile >= q.row_tiles || first >= experts) return {0, 0, 0};
        uint32_t after = first + 1;
        while (after < experts && after - first < q.tiles &&
               m.list.begin[after + 1] - m.list.begin[first] <= q.vectors)
            after++;
        return {first, after, tile};
    }
    /* Item number n of gates and ups. */
    __device__ __forceinline__ digits_item gates_of(uint32_t n) const
    {
        const uint32_t i = blockIdx.x + n * gridDim.x, expert = i / q.row_tiles;
        return expert < experts ? digits_item{expert, expert + 1, i % q.row_tiles} : digits_item{0, 0, 0};
    }
    __device__ __forceinline__ digits_item first_item() const
    {
        return p.down ? downs_from(0, blockIdx.x) : gates_of(0);
    }
    /* The one behind item number n. */
    __device__ __forceinline__ digits_item behind(const digits_item &item, uint32_t n) const
    {
        if (item.none()) return item;
        if (!p.down) return gates_of(n + 1);
        return item.after < experts ? downs_from(item.after, item.tile)
                                    : downs_from(0, item.tile + gridDim.x);
    }

    /* ---- weights ---- */

    /* Where tile j's matrix lies; its rows' first byte. */
    __device__ __forceinline__ const unsigned char *tile_of(const digits_item &item, uint32_t j,
                                                            uint32_t *slot) const
    {
        *slot = m.list.slot[p.down ? item.first + j : item.first];
        return p.role[p.down ? 0 : j].at(*slot) + (uint64_t)item.tile * DIGITS_ROWS * p.row_bytes;
    }
    /* Starts an item's copies, a lane a tile; by the first warp. */
    __device__ __forceinline__ void bring(const digits_item &item, uint32_t stage, uint32_t barrier) const
    {
        if (item.none() || lane >= q.tiles) return;
        if (p.down && item.first + lane >= item.after) {
            barrier_arrive(barrier);
            return;
        }
        uint32_t slot;
        const unsigned char *from = tile_of(item, lane, &slot);
        const uint32_t left = p.rows - item.tile * DIGITS_ROWS,
                       rows = left < DIGITS_ROWS ? left : DIGITS_ROWS,
                       line = slot & GPUK_SLOT_HOST ? HOST_LINE : 16,
                       beside = (uint32_t)((size_t)from & (line - 1)),
                       bytes = (beside + rows * (uint32_t)p.row_bytes + line - 1) & ~(line - 1);
        bulk_expect(barrier, bytes);
        bulk_copy(stage + lane * q.tile_bytes, from - beside, bytes, barrier);
    }

    /* ---- vectors ---- */

    /* Vector v: a token's x; of an item's activations that of the pair so far behind `first` in the sorted list. */
    __device__ __forceinline__ const float *vector_of(uint32_t first, uint32_t v) const
    {
        return p.down ? p.x + (uint64_t)m.list.sorted[first + v] * p.cols : p.x + (uint64_t)v * p.x_stride;
    }
    /* What the thread has of `count` vectors, from group `base` of all of theirs on. */
    __device__ __forceinline__ void load(float4 v[LOADS], uint32_t first, uint32_t count, uint32_t base) const
    {
#pragma unroll
        for (uint32_t k = 0; k < LOADS; k++) {
            const uint32_t g = base + k * WARPS + warp, f = g % q.groups * 32 + lane;
            v[k] = make_float4(0, 0, 0, 0);
            if (g < count * q.groups && f < p.cols / 4)
                v[k] = __ldcg(reinterpret_cast<const float4 *>(vector_of(first, g / q.groups)) + f);
        }
    }
    __device__ __forceinline__ void put(float4 v[LOADS], unsigned char *to, uint32_t count,
                                        uint32_t base) const
    {
#pragma unroll
        for (uint32_t k = 0; k < LOADS; k++) {
            const uint32_t g = base + k * WARPS + warp, f = g % q.groups * 32 + lane;
            if (g >= count * q.groups) break;
            if (p.norm) {
                const float squares = warp_sum(add_squares(0, v[k]));
                if (lane == 0) m.squares[g] = squares;
                if (f < p.cols / 4) {
                    const float4 n = __ldg(reinterpret_cast<const float4 *>(p.norm) + f);
                    v[k] = make_float4(v[k].x * n.x, v[k].y * n.y, v[k].z * n.z, v[k].w * n.w);
                }
            }
            digits_vector::put<F::GROUPS == 2>(to + (size_t)(g / q.groups) * q.vector_bytes, q.vector_runs, f,
                                               f < p.cols / 4, v[k]);
        }
    }
    /* The groups behind those that `load` and `put` have done from 0 on. */
    __device__ __forceinline__ void put_rest(unsigned char *to, uint32_t first, uint32_t count) const
    {
        for (uint32_t base = LOADS * WARPS; base < count * q.groups; base += LOADS * WARPS) {
            float4 v[LOADS];
            load(v, first, count, base), put(v, to, count, base);
        }
    }
    __device__ __forceinline__ void scales_of_norm(uint32_t tokens) const
    {
        __syncthreads();
        for (uint32_t v = warp; v < tokens; v += WARPS) {
            float squares = 0;
            for (uint32_t g = lane; g < q.groups; g += 32) squares += m.squares[v * q.groups + g];
            squares = warp_sum(squares);
            if (lane == 0) m.scale[v] = rsqrtf(squares / (float)p.cols + p.eps);
        }
    }
    /* The pairs of a place in the list, in an item of down counted from its first. */
    __device__ __forceinline__ uint32_t pairs_from(const digits_item &item) const
    {
        return m.list.begin[item.first];
    }
    __device__ __forceinline__ uint32_t pairs_of(const digits_item &item) const
    {
        return m.list.begin[item.after] - m.list.begin[item.first];
    }
    __device__ __forceinline__ uint32_t token_of(uint32_t at) const /* in `sorted` */
    {
        return m.list.sorted[at] / p.choice.chosen;
    }

    /* ---- products and sums ---- */

    __device__ __forceinline__ void multiply(const digits_item &item, const unsigned char *stage,
                                             const unsigned char *x, float *parts) const
    {
        const uint32_t tiles = p.down ? item.after - item.first : 2, base = pairs_from(item);
        for (uint32_t n = warp; n < tiles * q.units; n += WARPS) {
            const uint32_t j = n / q.units, u = n % q.units, expert = p.down ? item.first + j : item.first,
                           begin = m.list.begin[expert], end = m.list.begin[expert + 1],
                           run = u * DIGITS_RUNS, left = q.runs - run,
                           here = left < DIGITS_RUNS ? left : DIGITS_RUNS;
            uint32_t beside = 0;
            if (q.hosts) {
                uint32_t slot;
                const unsigned char *from = tile_of(item, j, &slot);
                if (slot & GPUK_SLOT_HOST) beside = (uint32_t)((size_t)from & (HOST_LINE - 1));
            }
            const unsigned char *weights =
                stage + j * q.tile_bytes + beside + run / (F::VALUES / 32) * F::BYTES;
            float *to = parts + ((p.down ? u : n) * q.vectors + (begin - base)) * DIGITS_ROWS;
            for (uint32_t at = begin; at < end; at += 2, to += 2 * DIGITS_ROWS) {
                const bool two = at + 1 < end;
                const uint32_t first = p.down ? at - base : token_of(at),
                               second = two ? p.down ? first + 1 : token_of(at + 1) : first;
                digits_unit<F>(weights, (uint32_t)p.row_bytes, run, here, x + (size_t)first * q.vector_bytes,
                               x + (size_t)second * q.vector_bytes, q.vector_runs, two, to);
            }
        }
    }
    /* What an item's parts make, a thread an output; all of its parts are there. */
    __device__ __forceinline__ void finish(const digits_item &item, const float *parts) const
    {
        const uint32_t base = pairs_from(item), apart = q.vectors * DIGITS_ROWS;
        for (uint32_t i = threadIdx.x; i < pairs_of(item) * DIGITS_ROWS; i += THREADS) {
            const uint32_t r = i % DIGITS_ROWS, row = item.tile * DIGITS_ROWS + r,
                           pair = m.list.sorted[base + i / DIGITS_ROWS];
            if (row >= p.rows) continue;
            float a = 0, b = 0;
            for (uint32_t u = 0; u < q.units; u++) a += parts[u * apart + i];
            for (uint32_t u = q.units; u < 2 * q.units && !p.down; u++) b += parts[u * apart + i];
            if (p.norm) {
                const float scale = m.scale[pair / p.choice.chosen];
                a = __fmul_rn(a, scale), b = __fmul_rn(b, scale);
            }
            const uint64_t bias = (uint64_t)m.list.id[pair] * p.rows + row;
            if (p.role[0].bias) a += p.role[0].bias[bias];
            if (p.down) {
                m.sums[pair * DIGITS_ROWS + r] = a;
                continue;
            }
            if (p.role[1].bias) b += p.role[1].bias[bias];
            p.out[(uint64_t)pair * p.rows + row] = experts_glu_of(p.glu, a, b);
        }
    }
    /* Of down: 16 rows of all tokens. */
    __device__ __forceinline__ void add_up(uint32_t tokens, uint32_t tile) const
    {
        const uint32_t r = threadIdx.x % DIGITS_ROWS, row = tile * DIGITS_ROWS + r;
        for (uint32_t token = threadIdx.x / DIGITS_ROWS; token < tokens && row < p.rows;
             token += THREADS / DIGITS_ROWS) {
            float total = 0;
            for (uint32_t j = 0; j < p.choice.chosen; j++) {
                const uint32_t pair = token * p.choice.chosen + j;
                if (m.list.id[pair] != GPUK_SLOT_ABSENT)
                    total += m.list.weight[pair] * m.sums[pair * DIGITS_ROWS + r];
            }
            const uint64_t at = (uint64_t)token * p.out_stride + row;
            p.out[at] = (p.residual ? __ldcg(p.residual + at) : 0.0f) + total;
        }
    }
};

template <typename F>
__global__ void __launch_bounds__(THREADS, 1) experts_digits(const __grid_constant__ experts_digits_params q)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const experts_params &p = q.of;
    experts_digits_block<F> block = {q, p, {}, 0, threadIdx.x & 31, threadIdx.x >> 5};
    block.m.lay(shared, q);
    const digits_memory &m = block.m;
    const uint32_t ring = shared_address(m.ring), barriers = shared_address(m.barriers);

    let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < q.stages; s++) barrier_open(barriers + 8 * s, q.tiles);
        barriers_opened();
    }
    wait_for_previous();
    const uint32_t tokens = experts_tokens(p);
    float4 v[LOADS];
    if (!p.down) block.load(v, 0, tokens, 0); /* on its way while the choice is made */
    if (p.routes) {
        m.list.route(p, tokens, reinterpret_cast<float *>(m.ring));
        bulk_after_stores(); /* the ring was the choice's scratch */
    }
    m.list.make(p, tokens * p.choice.chosen);
    block.experts = *m.list.count;

    digits_item item = block.first_item(), asked = item;
    uint32_t number = 0, asked_number = 0;
    const auto ask_next = [&](uint32_t stage) {
        if (block.warp == 0) block.bring(asked, ring + stage * q.stage_bytes(), barriers + 8 * stage);
        asked = block.behind(asked, asked_number++);
    };
    for (uint32_t s = 0; s < q.stages; s++) ask_next(s);
    if (!p.down || !item.none()) {
        const uint32_t first = p.down ? block.pairs_from(item) : 0,
                       count = p.down ? block.pairs_of(item) : tokens;
        if (p.down) block.load(v, first, count, 0);
        block.put(v, m.x, count, 0), block.put_rest(m.x, first, count);
    }
    if (p.norm) block.scales_of_norm(tokens);
    __syncthreads();

    uint32_t stage = 0, parity = 0, turn = 0;
    while (!item.none()) {
        const digits_item next = block.behind(item, number++);
        const uint32_t next_first = next.none() ? 0 : block.pairs_from(next),
                       next_count = next.none() ? 0 : block.pairs_of(next);
        const size_t room = (size_t)q.vectors * q.vector_bytes;
        float *parts = m.parts + turn * q.parts();
        if (p.down) block.load(v, next_first, next_count, 0);
        bulk_wait(barriers + 8 * stage, parity);
        block.multiply(item, m.ring + (size_t)stage * q.stage_bytes(), m.x + (p.down ? turn * room : 0),
                       parts);
        if (p.down) {
            unsigned char *to = m.x + (turn ^ 1) * room;
            block.put(v, to, next_count, 0), block.put_rest(to, next_first, next_count);
        }
        /* Sums and vectors are there, and the stage has been read. */
        __syncthreads();
        ask_next(stage);
        block.finish(item, parts);
        if (p.down && item.after == block.experts) {
            __syncthreads(); /* all experts' sums of these rows are there */
            block.add_up(tokens, item.tile);
        }
        if (++stage == q.stages) stage = 0, parity ^= 1;
        turn ^= 1;
        item = next;
    }
    if (p.down && block.experts == 0)
        for (uint32_t tile = blockIdx.x; tile < q.row_tiles; tile += gridDim.x) block.add_up(tokens, tile);
    if (p.ahead.weight) m.list.ask_ahead(p);
}

/* ---- launcher ------------------------------------------------------------------------------------- */

static const uint32_t STAGE_BYTES = 52 << 10, STAGES_MIN = 2, STAGES_MAX = 4, VECTORS_USUAL = 16;

/* How `tokens` tokens are run; false: there is no room. */
template <typename F>
static bool shape_for(const struct experts_call &call, uint32_t tokens, experts_digits_params *q,
                      uint32_t *blocks, size_t *shared)
{
    const struct gpuk_device *device = call.device;
    const struct experts_params &p = call.params;
    *q = {};
    q->of = p;
    q->runs = p.cols / 32, q->units = div_up(q->runs, DIGITS_RUNS),
    q->row_tiles = div_up(p.rows, DIGITS_ROWS);
    q->hosts = p.role[0].host != nullptr;
    q->tile_bytes = ((uint32_t)(DIGITS_ROWS * p.row_bytes) + 15) / 16 * 16 + (q->hosts ? 2 * HOST_LINE : 0);
    q->vector_runs = digits_vector::runs_of(p.cols), q->vector_bytes = digits_vector::bytes_of(p.cols);
    q->groups = div_up(p.cols / 4, 32);
    q->pairs = tokens * p.choice.chosen;
    q->tiles = 2, q->vectors = tokens;
    if (p.down) {
        const uint32_t fit = STAGE_BYTES / q->tile_bytes, busy = WARPS / q->units,
                       most = fit < busy ? fit : busy,
                       usual = VECTORS_USUAL < q->pairs ? VECTORS_USUAL : q->pairs;
        q->tiles = most == 0 ? 1 : most < q->pairs ? most : q->pairs;
        if (q->vectors < usual) q->vectors = usual;
    }
    const uint32_t all = p.down ? q->row_tiles : (q->pairs < p.experts ? q->pairs : p.experts) * q->row_tiles;
    *blocks = all < (uint32_t)device->sm_count ? all : (uint32_t)device->sm_count;
    const size_t scratch = p.routes ? (size_t)tokens * experts_scratch(p.router) * sizeof(float) : 0;
    for (;;) {
        for (q->stages = STAGES_MAX; q->stages >= STAGES_MIN; q->stages--) {
            digits_memory m;
            *shared = m.lay(nullptr, *q);
            if (*shared <= (size_t)device->shared_bytes_max &&
                (size_t)q->stages * q->stage_bytes() >= scratch)
                return true;
        }
        if (q->vectors <= tokens) return false;
        q->vectors = tokens;
    }
}

/* How it is run; false: not here. A shape is taken with any number of tokens or with none, since a token has the same bits
 * among any others. */
template <typename F>
static bool shape_of(const struct experts_call &call, experts_digits_params *q, uint32_t *blocks,
                     size_t *shared)
{
    const struct gpuk_device *device = call.device;
    const struct experts_params &p = call.params;
    size_t bits = (size_t)p.x | (size_t)p.norm;
    for (uint32_t r = 0; r < (p.down ? 1u : 2u); r++) bits |= (size_t)p.role[r].weight | p.role[r].stride;
    if (!device->bulk_copy || device->experts_digits < 0 || bits % 16 != 0 ||
        (!p.down && p.x_stride % 4 != 0))
        return false;
    return shape_for<F>(call, GPUK_BATCH_MAX, q, blocks, shared) &&
           shape_for<F>(call, p.tokens, q, blocks, shared);
}

template <typename F> static bool digits_takes(const struct experts_call &call)
{
    experts_digits_params q;
    uint32_t blocks;
    size_t shared;
    return shape_of<F>(call, &q, &blocks, &shared);
}
template <typename F> static int digits_launch(const struct experts_call &call, struct helm_err *err)
{
    experts_digits_params q;
    uint32_t blocks = 0;
    size_t shared = 0;
    shape_of<F>(call, &q, &blocks, &shared);
    return gpuk_launch("experts", experts_digits<F>, dim3(blocks), dim3(THREADS), shared, call.flags,
                       call.stream, err, q);
}
template <typename F> static int digits_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->bulk_copy) return HELM_OK;
    const int rc = gpuk_prepare("experts", experts_digits<F>, (size_t)device->shared_bytes_max, err);
    return rc ? rc : gpuk_prefer_shared("experts", experts_digits<F>, err);
}
template <typename D> struct digits_of {
    static constexpr experts_kernel kernel() { return {}; }
};
template <typename F> struct digits_of<decode_block<F>> {
    static constexpr experts_kernel kernel()
    {
        return {"digits", digits_takes<F>, digits_launch<F>, digits_prepare<F>};
    }
};
#define DIGITS(D) digits_of<D>::kernel()
experts_kernels experts_digits_kernels = BY_FORMAT(DIGITS, {});
