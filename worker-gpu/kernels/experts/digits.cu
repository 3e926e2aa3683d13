/* A few tokens' products with experts of blocks on the matrix unit (9.0 and later). See experts.h and
 * digits.cuh.
 *
 * One launch for all tokens and their experts, of which it learns on the device (experts/list.cuh). An item
 * of work comes in one stage of a ring that the copy engine fills: 16 rows of an expert's gate and up; or,
 * for down, the block's 16 rows of some experts in sequence, so that the sum over a token's experts, in order
 * of choice, is its own too. A matrix's 16 rows lie in one piece. A pair's sum is made of units of 256
 * columns, added up in order, and never depends on other pairs.
 *
 * Warps have one task each, and wait for others by barriers alone, so that items follow each other: one warp
 * asks for items; eight multiply, each some units of an item; one adds up an item's units and makes what
 * becomes of it. x of all tokens lies in shared memory as digits. Activations are too many: for down the
 * other warps make digits of those of the next item. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/formats/digits.cuh"
#include "worker-gpu/kernels/experts/launch.cuh"
#include "worker-gpu/kernels/experts/list.cuh"

/* Over the link whole lines of 128 bytes are asked for. */
static const uint32_t HOST_LINE = 128;
/* Warps by their tasks: those that multiply are the first. */
static const uint32_t MULTIPLY = 8, FINISH = MULTIPLY, ASK = FINISH + 1, VECTORS = ASK + 1, WARPS = 16;
static const uint32_t THREADS = WARPS * 32, PAIRS_MAX = GPUK_BATCH_MAX * MODEL_EXPERTS_CHOSEN_MAX,
                      LOADS = 8 /* quads of vectors that a thread has on the way */, TURNS = 2;
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

/* Barriers, 8 bytes each: a stage is full, or has been read; parts of an item, of the even and the odd ones,
 * are there, or have been read; likewise its activations. The other kinds lie after the stages'. */
struct digits_barriers {
    uint32_t at, stages;

    static __host__ __device__ uint32_t count(uint32_t stages) { return 2 * stages + 4 * TURNS; }
    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return at + 8 * stage; }
    __device__ __forceinline__ uint32_t read(uint32_t stage) const { return at + 8 * (stages + stage); }
    __device__ __forceinline__ uint32_t behind(uint32_t kind, uint32_t turn) const
    {
        return at + 8 * (2 * stages + kind * TURNS + turn);
    }
    __device__ __forceinline__ uint32_t parts_made(uint32_t turn) const { return behind(0, turn); }
    __device__ __forceinline__ uint32_t parts_read(uint32_t turn) const { return behind(1, turn); }
    __device__ __forceinline__ uint32_t x_made(uint32_t turn) const { return behind(2, turn); }
    __device__ __forceinline__ uint32_t x_read(uint32_t turn) const { return behind(3, turn); }
    __device__ __forceinline__ void open(uint32_t tiles) const
    {
        const uint32_t multiply = MULTIPLY * 32, vectors = (WARPS - VECTORS) * 32;
        for (uint32_t s = 0; s < stages; s++) barrier_open(full(s), tiles), barrier_open(read(s), multiply);
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            barrier_open(parts_made(turn), multiply), barrier_open(parts_read(turn), 32);
            barrier_open(x_made(turn), vectors), barrier_open(x_read(turn), multiply);
        }
        barriers_opened();
    }
};

/* Shared memory, in this order. */
struct digits_memory {
    unsigned char *ring; /* [stages][tiles][tile_bytes]; while the choice is made, its scratch */
    unsigned char *x;    /* [vectors, of down twice][vector_bytes] */
    uint64_t *barriers;
    float *parts;    /* [TURNS][matrix * units + unit][vectors][16] */
    float *squares;  /* [vectors][groups] */
    float *scale;    /* [vectors] */
    float *sums;     /* of down: [pairs][16] */
    uint32_t *token; /* [pairs] of a pair in order of experts */
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
        x = take((size_t)(q.of.down ? TURNS : 1) * q.vectors * q.vector_bytes);
        barriers = reinterpret_cast<uint64_t *>(take((size_t)digits_barriers::count(q.stages) * 8));
        parts = reinterpret_cast<float *>(take((size_t)TURNS * q.parts() * 4));
        squares = reinterpret_cast<float *>(take(q.of.norm ? (size_t)q.vectors * q.groups * 4 : 0));
        scale = reinterpret_cast<float *>(take(q.of.norm ? (size_t)q.vectors * 4 : 0));
        sums = reinterpret_cast<float *>(take(q.of.down ? (size_t)q.pairs * DIGITS_ROWS * 4 : 0));
        token = reinterpret_cast<uint32_t *>(take((size_t)q.pairs * 4));
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
    digits_barriers barriers;
    uint32_t experts, tokens, lane, warp;
    uint32_t step_expert, step_tile; /* from one of the block's gates to the next */

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
    __device__ __forceinline__ digits_item gates_of(uint32_t expert, uint32_t tile) const
    {
        return expert < experts ? digits_item{expert, expert + 1, tile} : digits_item{0, 0, 0};
    }
    __device__ __forceinline__ digits_item first_item() const
    {
        return p.down ? downs_from(0, blockIdx.x)
                      : gates_of(blockIdx.x / q.row_tiles, blockIdx.x % q.row_tiles);
    }
    __device__ __forceinline__ digits_item behind(const digits_item &item) const
    {
        if (item.none()) return item;
        if (p.down)
            return item.after < experts ? downs_from(item.after, item.tile)
                                        : downs_from(0, item.tile + gridDim.x);
        const uint32_t tile = item.tile + step_tile, over = tile >= q.row_tiles;
        return gates_of(item.first + step_expert + over, tile - over * q.row_tiles);
    }

    /* ---- weights ---- */

    /* Where tile j's matrix lies; its rows' first byte. */
    __device__ __forceinline__ const unsigned char *tile_of(const digits_item &item, uint32_t j,
                                                            uint32_t *slot) const
    {
        *slot = m.list.slot[p.down ? item.first + j : item.first];
        return p.role[p.down ? 0 : j].at(*slot) + (uint64_t)item.tile * DIGITS_ROWS * p.row_bytes;
    }
    /* Starts an item's copies, a lane a tile. */
    __device__ __forceinline__ void bring(const digits_item &item, uint32_t stage, uint32_t barrier) const
    {
        if (lane >= q.tiles) return;
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
    /* Asks for items from number `number` on, up to that of `end`; *item: the next. */
    __device__ __forceinline__ void ask(digits_item *item, uint32_t number, uint32_t end) const
    {
        const uint32_t ring = shared_address(m.ring);
        uint32_t stage = number % q.stages, turn = number / q.stages;
        for (; number < end && !item->none(); number++, *item = behind(*item)) {
            if (turn > 0) bulk_wait(barriers.read(stage), (turn - 1) & 1);
            bring(*item, ring + stage * q.stage_bytes(), barriers.full(stage));
            if (++stage == q.stages) stage = 0, turn++;
        }
    }

    /* ---- vectors ---- */

    /* Vector v: a token's x; for down the activations of pair `first` + v of the sorted list. */
    __device__ __forceinline__ const float *vector_of(uint32_t first, uint32_t v) const
    {
        return p.down ? p.x + (uint64_t)m.list.sorted[first + v] * p.cols : p.x + (uint64_t)v * p.x_stride;
    }
    /* Loads the thread's part of `count` vectors; groups go round `warps` warps, from group `base` on. */
    __device__ __forceinline__ void load(float4 v[LOADS], uint32_t first, uint32_t count, uint32_t base,
                                         uint32_t warps) const
    {
#pragma unroll
        for (uint32_t k = 0; k < LOADS; k++) {
            const uint32_t g = base + k * warps, f = g % q.groups * 32 + lane;
            v[k] = make_float4(0, 0, 0, 0);
            if (g < count * q.groups && f < p.cols / 4)
                v[k] = __ldcg(reinterpret_cast<const float4 *>(vector_of(first, g / q.groups)) + f);
        }
    }
    __device__ __forceinline__ void put(float4 v[LOADS], unsigned char *to, uint32_t count, uint32_t base,
                                        uint32_t warps) const
    {
#pragma unroll
        for (uint32_t k = 0; k < LOADS; k++) {
            const uint32_t g = base + k * warps, f = g % q.groups * 32 + lane;
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
    /* All groups from `base` on, of which the first are in v. */
    __device__ __forceinline__ void put_all(float4 v[LOADS], unsigned char *to, uint32_t first,
                                            uint32_t count, uint32_t base, uint32_t warps) const
    {
#pragma unroll 1
        for (;;) {
            put(v, to, count, base, warps);
            if ((base += LOADS * warps) >= count * q.groups) break;
            load(v, first, count, base, warps);
        }
    }
    /* By a warp, for itself. */
    __device__ __forceinline__ void scales_of_norm() const
    {
        for (uint32_t v = 0; v < tokens && p.norm; v++) {
            float squares = 0;
            for (uint32_t g = lane; g < q.groups; g += 32) squares += m.squares[v * q.groups + g];
            squares = warp_sum(squares);
            if (lane == 0) m.scale[v] = rsqrtf(squares / (float)p.cols + p.eps);
        }
        __syncwarp();
    }
    __device__ __forceinline__ uint32_t pairs_from(const digits_item &item) const
    {
        return m.list.begin[item.first];
    }
    __device__ __forceinline__ uint32_t pairs_of(const digits_item &item) const
    {
        return m.list.begin[item.after] - m.list.begin[item.first];
    }
    /* Activations of item after item. */
    __device__ __forceinline__ void make_vectors() const
    {
        const uint32_t warps = WARPS - VECTORS;
        uint32_t number = 0;
        for (digits_item item = first_item(); !item.none(); item = behind(item), number++) {
            const uint32_t turn = number % TURNS, before = number / TURNS;
            if (before > 0) bulk_wait(barriers.x_read(turn), (before - 1) & 1);
            float4 v[LOADS];
            load(v, pairs_from(item), pairs_of(item), warp - VECTORS, warps);
            put_all(v, m.x + (size_t)turn * q.vectors * q.vector_bytes, pairs_from(item), pairs_of(item),
                    warp - VECTORS, warps);
            barrier_arrive(barriers.x_made(turn));
        }
    }

    /* ---- products and sums ---- */

    /* The warp's units of an item. */
    __device__ __forceinline__ void multiply_item(const digits_item &item, const unsigned char *stage,
                                                  const unsigned char *x, float *parts) const
    {
        const uint32_t tiles = p.down ? item.after - item.first : 2, base = pairs_from(item);
        uint32_t j = warp / q.units, u = warp % q.units;
        const uint32_t step_j = MULTIPLY / q.units, step_u = MULTIPLY % q.units;
        while (j < tiles) {
            const uint32_t expert = p.down ? item.first + j : item.first, begin = m.list.begin[expert],
                           end = m.list.begin[expert + 1], run = u * DIGITS_RUNS, left = q.runs - run,
                           here = left < DIGITS_RUNS ? left : DIGITS_RUNS;
            uint32_t beside = 0;
            if (q.hosts) {
                uint32_t slot;
                const unsigned char *from = tile_of(item, j, &slot);
                if (slot & GPUK_SLOT_HOST) beside = (uint32_t)((size_t)from & (HOST_LINE - 1));
            }
            const unsigned char *weights =
                stage + j * q.tile_bytes + beside + run / (F::VALUES / 32) * F::BYTES;
            float *to = parts + ((p.down ? u : j * q.units + u) * q.vectors + (begin - base)) * DIGITS_ROWS;
            for (uint32_t at = begin; at < end; at += 2, to += 2 * DIGITS_ROWS) {
                const bool two = at + 1 < end;
                const uint32_t first = p.down ? at - base : m.token[at],
                               second = two ? p.down ? first + 1 : m.token[at + 1] : first;
                digits_unit<F>(weights, (uint32_t)p.row_bytes, run, here, x + (size_t)first * q.vector_bytes,
                               x + (size_t)second * q.vector_bytes, q.vector_runs, two, to);
            }
            j += step_j, u += step_u;
            if (u >= q.units) u -= q.units, j++;
        }
    }
    __device__ __forceinline__ void multiply() const
    {
        uint32_t stage = 0, turn_of_stage = 0, number = 0;
        for (digits_item item = first_item(); !item.none(); item = behind(item), number++) {
            const uint32_t turn = number % TURNS, before = number / TURNS;
            if (p.down) bulk_wait(barriers.x_made(turn), before & 1);
            if (before > 0) bulk_wait(barriers.parts_read(turn), (before - 1) & 1);
            bulk_wait(barriers.full(stage), turn_of_stage & 1);
            multiply_item(item, m.ring + (size_t)stage * q.stage_bytes(),
                          m.x + (p.down ? (size_t)turn * q.vectors * q.vector_bytes : 0),
                          m.parts + turn * q.parts());
            barrier_arrive(barriers.read(stage));
            barrier_arrive(barriers.parts_made(turn));
            if (p.down) barrier_arrive(barriers.x_read(turn));
            if (++stage == q.stages) stage = 0, turn_of_stage++;
        }
    }
    /* Finishes an item from its parts, a lane an output at a time. */
    __device__ __forceinline__ void finish_item(const digits_item &item, const float *parts) const
    {
        const uint32_t base = pairs_from(item), apart = q.vectors * DIGITS_ROWS,
                       all = pairs_of(item) * DIGITS_ROWS;
        for (uint32_t i = lane; i < all; i += 32) {
            const uint32_t r = i % DIGITS_ROWS, row = item.tile * DIGITS_ROWS + r,
                           at = base + i / DIGITS_ROWS, pair = m.list.sorted[at];
            if (row >= p.rows) continue;
            float a = 0, b = 0;
#pragma unroll 8
            for (uint32_t u = 0; u < q.units; u++) {
                a += parts[u * apart + i];
                if (!p.down) b += parts[(q.units + u) * apart + i];
            }
            if (p.norm) {
                const float scale = m.scale[m.token[at]];
                a = __fmul_rn(a, scale), b = __fmul_rn(b, scale);
            }
            const uint64_t bias = (uint64_t)m.list.id[pair] * p.rows + row;
            if (p.role[0].bias) a += p.role[0].bias[bias];
            if (p.down) {
                m.sums[pair * DIGITS_ROWS + r] = a;
                continue;
            }
            if (p.role[1].bias) b += p.role[1].bias[bias];
            p.out[(uint64_t)pair * p.rows + row] = glu_value(p.glu, a, b);
        }
    }
    /* Down's sums over experts: 16 rows of all tokens; by a warp. */
    __device__ __forceinline__ void add_up(uint32_t tile) const
    {
        const uint32_t r = lane % DIGITS_ROWS, row = tile * DIGITS_ROWS + r;
        for (uint32_t token = lane / DIGITS_ROWS; token < tokens && row < p.rows; token += 32 / DIGITS_ROWS) {
            const uint64_t at = (uint64_t)token * p.out_stride + row;
            const float before = p.residual ? __ldcg(p.residual + at) : 0.0f;
            float total = 0;
#pragma unroll 8
            for (uint32_t j = 0; j < p.choice.chosen; j++) {
                const uint32_t pair = token * p.choice.chosen + j;
                if (m.list.id[pair] != GPUK_SLOT_ABSENT)
                    total += m.list.weight[pair] * m.sums[pair * DIGITS_ROWS + r];
            }
            p.out[at] = before + total;
        }
    }
    __device__ __forceinline__ void finish() const
    {
        uint32_t number = 0;
        scales_of_norm();
        for (digits_item item = first_item(); !item.none(); item = behind(item), number++) {
            const uint32_t turn = number % TURNS;
            bulk_wait(barriers.parts_made(turn), number / TURNS & 1);
            finish_item(item, m.parts + turn * q.parts());
            barrier_arrive(barriers.parts_read(turn));
            if (!p.down || item.after < experts) continue;
            __syncwarp(); /* all experts' sums of these rows are there */
            add_up(item.tile);
            __syncwarp(); /* and have been read */
        }
        if (p.down && experts == 0)
            for (uint32_t tile = blockIdx.x; tile < q.row_tiles; tile += gridDim.x) add_up(tile);
    }
};

template <typename F>
__global__ void __launch_bounds__(THREADS, 1) experts_digits(const __grid_constant__ experts_digits_params q)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const experts_params &p = q.of;
    experts_digits_block<F> block = {q, p, {}, {}, 0, 0, threadIdx.x & 31, threadIdx.x >> 5, 0, 0};
    block.m.lay(shared, q);
    const digits_memory &m = block.m;
    block.barriers = {shared_address(m.barriers), q.stages};
    block.step_expert = gridDim.x / q.row_tiles, block.step_tile = gridDim.x % q.row_tiles;

    if (threadIdx.x == 0) block.barriers.open(q.tiles);
    wait_for_previous();
    let_next_start();
    const uint32_t tokens = experts_tokens(p), pairs = tokens * p.choice.chosen;
    block.tokens = tokens;
    float4 v[LOADS];
    if (!p.down) block.load(v, 0, tokens, block.warp, WARPS); /* on its way while the choice is made */
    if (p.routes) {
        m.list.route(p, tokens, reinterpret_cast<float *>(m.ring));
        bulk_after_stores(); /* the ring was the choice's scratch */
    }
    m.list.make(p, pairs);
    block.experts = *m.list.count;
    digits_item asked = block.first_item();
    if (block.warp == ASK) block.ask(&asked, 0, q.stages);
    if (threadIdx.x < block.experts && m.list.begin[threadIdx.x + 1] - m.list.begin[threadIdx.x] > q.vectors)
        __trap(); /* a token has an expert once: there is no room for what this one's pairs make */
    if (threadIdx.x < m.list.begin[block.experts])
        m.token[threadIdx.x] = m.list.sorted[threadIdx.x] / p.choice.chosen;
    if (!p.down) block.put_all(v, m.x, 0, tokens, block.warp, WARPS);
    __syncthreads();
    if (block.warp < MULTIPLY) {
        block.multiply();
    } else if (block.warp == FINISH) {
        block.finish();
    } else if (block.warp == ASK) {
        block.ask(&asked, q.stages, UINT32_MAX);
        if (p.ahead.weight) m.list.ask_ahead(p, block.lane, 32);
    } else if (p.down) {
        block.make_vectors();
    }
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
        const uint32_t fit = STAGE_BYTES / q->tile_bytes, busy = 2 * MULTIPLY / q->units,
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

/* How it is run; false: not here. A shape is taken with any number of tokens or with none, since a token has
 * the same bits among any others. */
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

template <typename D> struct digits_of {
    static constexpr experts_kernel kernel() { return {}; }
};
template <typename F> struct digits_of<decode_block<F>> {
    static constexpr experts_kernel kernel()
    {
        return experts_launcher<experts_digits_params, THREADS, shape_of<F>, experts_digits<F>>::named(
            "digits");
    }
};
#define DIGITS(D) digits_of<D>::kernel()
experts_kernels experts_digits_kernels = BY_FORMAT(DIGITS, {});
