/* A few tokens' products with experts by bulk copies (9.0 and later). See experts.h.
 *
 * One launch for all tokens and their experts, of which it learns on the device. A block first makes the list
 * of pairs (token, chosen) in order of experts, so that the rows of an expert are read once for all tokens
 * that chose it. A unit of work is two rows: gate's and up's of one output of an expert, or neighbours of one
 * expert's down. Units go round the warps; each warp streams its own through a private ring that the copy
 * engine fills, a tile at a time (tile.cuh), and multiplies a tile with the vectors of all the pairs that
 * want it. A pair's sum is made in one warp in order of columns, and never depends on other pairs.
 *
 * A block's share of gate and up is neighbouring units of all experts'; its share of down is some rows of
 * every expert, so that the sum over a token's experts, in order of choice, is its own too. Where the vectors
 * of all pairs of a block have no room in shared memory, it works in rounds of some pairs. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/experts/launch.cuh"
#include "worker-gpu/kernels/experts/list.cuh"
#include "worker-gpu/kernels/tile.cuh"

/* Over the link whole lines of 128 bytes are asked for: rows that begin and end within a line took twice as
 * long. */
static const uint32_t HOST_LINE = 128;
static const uint32_t WARPS = 16, THREADS = WARPS * 32, PAIRS_MAX = GPUK_BATCH_MAX * MODEL_EXPERTS_CHOSEN_MAX;
static_assert(PAIRS_MAX <= THREADS, "a thread sorts a pair");

struct experts_bulk_params {
    struct experts_params of;
    uint32_t slots, pitch; /* of each warp's ring; bytes from a tile's first row to its second */
    uint32_t chunks;       /* tiles of a row */
    uint32_t vectors;      /* that have room */
    uint32_t vector_quads; /* of one */
    uint32_t groups;       /* of 32 float4 of a vector */
    uint32_t pairs;        /* tokens * chosen */
    bool hosts;            /* some experts may lie in host memory */
    uint32_t rows_most;    /* of down, of a block */

    /* Sums that a warp brings to an end together, those of all vectors of a unit at least. */
    __host__ __device__ uint32_t done_most() const { return vectors > 32 ? 64 : 32; }
};

/* Bytes of a tile's row at most. */
template <typename D> __host__ __device__ constexpr uint32_t tile_of()
{
    return D::SCALED ? D::TILE_LARGE : D::TILE;
}

/* Where a unit's rows begin; b NULL: there is none. */
struct alignas(16) bulk_rows {
    const unsigned char *a, *b;
};
/* Marks a unit's rows that lie in host memory, in the first one's address, which has no such bit. */
static const uint64_t HOST_ROWS = 1ull << 63;
/* Sums of a unit with a vector, and of which. */
struct alignas(16) bulk_sum {
    float sum[2];
    uint32_t unit, vector;
};

/* Shared memory, in this order. */
template <typename D> struct bulk_memory {
    unsigned char *ring; /* [WARPS][slots][2][pitch]; while the choice is made, its scratch */
    float4 *x;           /* [vectors][vector_quads] */
    uint64_t *barriers;  /* [WARPS][slots] */
    bulk_sum *done;      /* [WARPS][done_most] sums that wait for others */
    float *squares;      /* [vectors][groups] */
    float *scale;        /* [vectors] */
    float *sums;         /* of down: [pairs][rows_most] */
    experts_list list;
    bulk_rows *rows; /* [WARPS][32] of a warp's units, from every 32nd of them on */

    __host__ __device__ size_t lay(unsigned char *at, const experts_bulk_params &q)
    {
        const unsigned char *from = at;
        const auto take = [&](size_t bytes) {
            unsigned char *part = at;
            at += (bytes + 15) / 16 * 16;
            return part;
        };
        ring = take((size_t)WARPS * q.slots * 2 * q.pitch);
        x = reinterpret_cast<float4 *>(take((size_t)q.vectors * q.vector_quads * 16));
        barriers = reinterpret_cast<uint64_t *>(take((size_t)WARPS * q.slots * 8));
        done = reinterpret_cast<bulk_sum *>(take((size_t)WARPS * q.done_most() * sizeof *done));
        squares = reinterpret_cast<float *>(take((size_t)q.vectors * q.groups * 4));
        scale = reinterpret_cast<float *>(take((size_t)q.vectors * 4));
        sums = reinterpret_cast<float *>(take((size_t)q.pairs * q.rows_most * 4));
        at = list.lay(at, q.pairs);
        rows = reinterpret_cast<bulk_rows *>(take(WARPS * 32 * sizeof *rows));
        return (size_t)(at - from);
    }
};

/* Some pairs, and the units of a block for them. */
struct bulk_round {
    uint32_t from, after; /* in `sorted` */
    uint32_t expert;      /* the first one's place in the list of experts */
    uint32_t unit_first,
        units; /* of gate and up: expert * rows + row; of down: (expert - `expert`) * pairs of rows */
};
/* A unit's place. */
struct bulk_unit {
    uint32_t expert, row; /* the expert's place in the list; the first row */
};

template <typename D> struct experts_bulk_block {
    const experts_bulk_params &q;
    const experts_params &p;
    bulk_memory<D> m;
    uint32_t row_first, row_pairs; /* of down: the block's rows */
    uint32_t lane, warp;

    /* ---- the block's work ---- */

    /* Whole experts from list place `expert` on whose pairs have room, at least one; of one that has more, a
     * part. */
    __device__ __forceinline__ bulk_round round_of(uint32_t from, uint32_t expert, uint32_t last,
                                                   uint32_t unit_first, uint32_t unit_end) const
    {
        bulk_round r = {from, m.list.begin[expert + 1], expert, 0, 0};
        uint32_t end = expert;
        while (end < last && m.list.begin[end + 2] - from <= q.vectors) r.after = m.list.begin[++end + 1];
        if (r.after - from > q.vectors) r.after = from + q.vectors;
        if (p.down) {
            r.units = (end - expert + 1) * row_pairs;
            return r;
        }
        const uint32_t low = expert * p.rows, high = (end + 1) * p.rows;
        r.unit_first = unit_first > low ? unit_first : low;
        r.units = (unit_end < high ? unit_end : high) - r.unit_first;
        return r;
    }
    __device__ __forceinline__ bulk_unit unit_of(const bulk_round &r, uint32_t u) const
    {
        if (p.down) return {r.expert + u / row_pairs, row_first + u % row_pairs * 2};
        return {(r.unit_first + u) / p.rows, (r.unit_first + u) % p.rows};
    }
    /* Whether a tile is two whole rows of down: over the link one long copy is more than two short ones. */
    __device__ __forceinline__ bool is_pair() const { return p.down && q.chunks == 1; }
    __device__ __forceinline__ bool has_second(const bulk_unit &unit) const
    {
        return !p.down || unit.row + 1 < p.rows;
    }
    __device__ __forceinline__ uint32_t tile_bytes(uint32_t chunk) const
    {
        const uint64_t left = p.row_bytes - (uint64_t)chunk * tile_of<D>();
        return left < tile_of<D>() ? (uint32_t)left : tile_of<D>();
    }
    /* Rows with what is beside them in their first and last `line` bytes. */
    static __device__ __forceinline__ tile_window window_of(const unsigned char *from, uint32_t bytes,
                                                            uint32_t line)
    {
        const uint32_t beside = (uint32_t)((size_t)from & (line - 1));
        return {from - beside, (beside + bytes + line - 1) & ~(line - 1)};
    }
    /* Starts the copy of tile `chunk` of the warp's unit number `n`, if there is one; the whole warp, tile by
     * tile. */
    __device__ __forceinline__ void bring(const bulk_round &r, uint32_t n, uint32_t chunk, uint32_t slot,
                                          uint32_t barrier) const
    {
        if (n * WARPS + warp >= r.units) return;
        bulk_rows *rows = m.rows + warp * 32;
        if (chunk == 0 && n % 32 == 0) { /* a lane a unit: divisions are slow */
            __syncwarp();
            const uint32_t u = (n + lane) * WARPS + warp;
            if (u < r.units) {
                const bulk_unit unit = unit_of(r, u);
                const uint32_t at = m.list.slot[unit.expert];
                const uint64_t row = unit.row * p.row_bytes;
                const unsigned char *a = p.role[0].at(at) + row;
                rows[lane] = {a + (at & GPUK_SLOT_HOST ? HOST_ROWS : 0), !p.down ? p.role[1].at(at) + row
                                                                         : has_second(unit) ? a + p.row_bytes
                                                                                            : nullptr};
            }
            __syncwarp();
        }
        if (lane != 0) return;
        bulk_rows from = rows[n % 32];
        const uint32_t line = (uint64_t)from.a & HOST_ROWS ? HOST_LINE : 16;
        from.a = (const unsigned char *)((uint64_t)from.a & ~HOST_ROWS);
        if (is_pair()) { /* one copy of both rows, which are neighbours */
            const tile_window both = window_of(from.a, (uint32_t)p.row_bytes * (from.b ? 2 : 1), line);
            bulk_expect(barrier, both.bytes);
            bulk_copy(slot, both.from, both.bytes, barrier);
            return;
        }
        const uint32_t bytes = tile_bytes(chunk);
        const uint64_t at = (uint64_t)chunk * tile_of<D>();
        const tile_window a = window_of(from.a + at, bytes, line),
                          b = from.b ? window_of(from.b + at, bytes, line) : tile_window{nullptr, 0};
        bulk_expect(barrier, a.bytes + b.bytes);
        bulk_copy(slot, a.from, a.bytes, barrier);
        if (b.bytes) bulk_copy(slot + q.pitch, b.from, b.bytes, barrier);
    }
    /* Where a tile's rows lie in its slot: matrices begin on 16 bytes, rows wherever they do. */
    __device__ __forceinline__ tile_place tile_at(const bulk_unit &unit, uint32_t chunk,
                                                  const unsigned char *slot) const
    {
        const uint32_t row = (uint32_t)p.row_bytes, at = unit.row * row + chunk * tile_of<D>(),
                       expert = q.hosts ? m.list.slot[unit.expert] : 0;
        uint32_t a = D::LOOSE ? at & 15 : 0, b = D::LOOSE ? (p.down ? at + row : at) & 15 : 0;
        if (expert & GPUK_SLOT_HOST) { /* matrices begin on no line */
            a = ((uint32_t)(size_t)p.role[0].at(expert) + at) & (HOST_LINE - 1);
            b = p.down ? (a + row) & (HOST_LINE - 1)
                       : ((uint32_t)(size_t)p.role[1].at(expert) + at) & (HOST_LINE - 1);
        }
        if (is_pair()) return {slot + a, slot + a + row};
        return {slot + a, slot + q.pitch + b};
    }

    /* ---- vectors ---- */

    __device__ __forceinline__ const float *vector_of(uint32_t at) const /* in `sorted` */
    {
        const uint32_t pair = m.list.sorted[at];
        return p.x + (p.down ? (uint64_t)pair * p.cols : (uint64_t)(pair / p.choice.chosen) * p.x_stride);
    }
    __device__ __forceinline__ void put_x(const bulk_round &r) const
    {
        const uint32_t all = (r.after - r.from) * q.groups, quads = p.cols / 4;
        for (uint32_t base = warp; base < all; base += 4 * WARPS) {
            float4 v[4];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                const uint32_t g = base + k * WARPS, f = g % q.groups * 32 + lane;
                v[k] = make_float4(0, 0, 0, 0);
                if (g < all && f < quads)
                    v[k] = __ldcg(reinterpret_cast<const float4 *>(vector_of(r.from + g / q.groups)) + f);
            }
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                const uint32_t g = base + k * WARPS, f = g % q.groups * 32 + lane;
                if (g >= all) break;
                float4 *to = m.x + (size_t)(g / q.groups) * q.vector_quads;
                if (p.norm) {
                    const float squares = warp_sum(add_squares(0, v[k]));
                    if (lane == 0) m.squares[g] = squares;
                    if (f < quads) {
                        const float4 n = __ldg(reinterpret_cast<const float4 *>(p.norm) + f);
                        v[k] = make_float4(v[k].x * n.x, v[k].y * n.y, v[k].z * n.z, v[k].w * n.w);
                    }
                }
                if constexpr (D::SCALED)
                    blocks_x::put(to, f, f < quads, v[k]);
                else if (f < quads)
                    to[x_place<D>(f)] = v[k];
            }
        }
        __syncthreads();
        if (!p.norm) return;
        for (uint32_t v = warp; v < r.after - r.from; v += WARPS) {
            float squares = 0;
            for (uint32_t g = lane; g < q.groups; g += 32) squares += m.squares[v * q.groups + g];
            squares = warp_sum(squares);
            if (lane == 0) m.scale[v] = rsqrtf(squares / (float)p.cols + p.eps);
        }
        __syncthreads();
    }

    /* ---- sums ---- */

    /* Finishes the first `count` sums of the warp's; by the whole warp. */
    __device__ __forceinline__ void finish(const bulk_round &r, uint32_t count) const
    {
        __syncwarp(); /* all sums are there */
        for (uint32_t i = lane; i < count; i += 32) {
            const bulk_sum &done = m.done[warp * q.done_most() + i];
            const bulk_unit unit = unit_of(r, done.unit);
            const uint32_t pair = m.list.sorted[r.from + done.vector];
            float a = done.sum[0], b = done.sum[1];
            if (p.norm) a = __fmul_rn(a, m.scale[done.vector]), b = __fmul_rn(b, m.scale[done.vector]);
            const uint64_t bias = (uint64_t)m.list.expert[unit.expert] * p.rows + unit.row;
            if (p.role[0].bias) a += p.role[0].bias[bias];
            if (p.down) {
                float *to = m.sums + pair * q.rows_most + (unit.row - row_first);
                to[0] = a;
                if (has_second(unit)) to[1] = b + (p.role[0].bias ? p.role[0].bias[bias + 1] : 0.0f);
            } else {
                if (p.role[1].bias) b += p.role[1].bias[bias];
                p.out[(uint64_t)pair * p.rows + unit.row] = glu_value(p.glu, a, b);
            }
        }
        __syncwarp(); /* and have been read */
    }
    __device__ __forceinline__ void add_up(uint32_t tokens) const
    {
        const uint32_t rows = p.rows - row_first < 2 * row_pairs ? p.rows - row_first : 2 * row_pairs;
        for (uint32_t i = threadIdx.x; i < tokens * rows; i += THREADS) {
            const uint32_t token = i / rows, row = i % rows;
            float total = 0;
            for (uint32_t j = 0; j < p.choice.chosen; j++) {
                const uint32_t pair = token * p.choice.chosen + j;
                if (m.list.id[pair] != GPUK_SLOT_ABSENT)
                    total += m.list.weight[pair] * m.sums[pair * q.rows_most + row];
            }
            const uint64_t at = (uint64_t)token * p.out_stride + row_first + row;
            p.out[at] = (p.residual ? __ldcg(p.residual + at) : 0.0f) + total;
        }
    }
};

template <typename D>
__global__ void __launch_bounds__(THREADS, 2) experts_bulk(const __grid_constant__ experts_bulk_params q)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const experts_params &p = q.of;
    experts_bulk_block<D> block = {q, p, {}, 0, 0, threadIdx.x & 31, threadIdx.x >> 5};
    block.m.lay(shared, q);
    const bulk_memory<D> &m = block.m;
    const uint32_t lane = block.lane, warp = block.warp;
    const uint32_t ring = shared_address(m.ring) + warp * q.slots * 2 * q.pitch,
                   barriers = shared_address(m.barriers) + warp * q.slots * 8;
    const unsigned char *ring_at = m.ring + (size_t)warp * q.slots * 2 * q.pitch;
    bulk_sum *done = m.done + warp * q.done_most();

    if (lane == 0) bulk_barriers_open(barriers, q.slots);
    __syncwarp();
    wait_for_previous();
    let_next_start();
    const uint32_t tokens = experts_tokens(p), pairs = tokens * p.choice.chosen;
    if (p.routes) {
        m.list.route(p, tokens, reinterpret_cast<float *>(m.ring));
        bulk_after_stores(); /* the ring was the choice's scratch */
    }
    m.list.make(p, pairs);
    const uint32_t experts = *m.list.count;

    /* the block's share: of all experts' rows, or some rows of every expert */
    uint32_t unit_first = 0, unit_end = 0, expert = 0, last = 0;
    if (p.down) {
        const uint32_t all = div_up(p.rows, 2), first = (uint32_t)((uint64_t)all * blockIdx.x / gridDim.x);
        block.row_first = 2 * first;
        block.row_pairs = (uint32_t)((uint64_t)all * (blockIdx.x + 1) / gridDim.x) - first;
        last = experts - 1;
    } else {
        const uint64_t all = (uint64_t)experts * p.rows;
        unit_first = (uint32_t)(all * blockIdx.x / gridDim.x);
        unit_end = (uint32_t)(all * (blockIdx.x + 1) / gridDim.x);
        expert = unit_first / p.rows;
        last = unit_end > unit_first ? (unit_end - 1) / p.rows : 0;
    }
    const bool works = experts > 0 && (p.down ? block.row_pairs > 0 : unit_end > unit_first);
    uint32_t slot = 0, parity = 0;
    for (uint32_t from = works ? m.list.begin[expert] : 0, after = works ? m.list.begin[last + 1] : 0;
         from < after;) {
        const bulk_round r = block.round_of(from, expert, last, unit_first, unit_end);
        uint32_t ask = 0, ask_chunk = 0, waiting = 0;
        const auto ask_next = [&](uint32_t into) {
            block.bring(r, ask, ask_chunk, ring + into * 2 * q.pitch, barriers + 8 * into);
            if (++ask_chunk == q.chunks) ask_chunk = 0, ask++;
        };
        for (uint32_t k = 0, into = slot; k < q.slots; k++) {
            ask_next(into);
            if (++into == q.slots) into = 0;
        }
        block.put_x(r);
        for (uint32_t u = warp; u < r.units; u += WARPS) {
            const bulk_unit unit = block.unit_of(r, u);
            /* its pairs in this round */
            const uint32_t begin = m.list.begin[unit.expert], end = m.list.begin[unit.expert + 1],
                           first = begin > r.from ? begin - r.from : 0,
                           behind = (end < r.after ? end : r.after) - r.from;
            if (waiting + behind - first > q.done_most()) block.finish(r, waiting), waiting = 0;
            for (uint32_t chunk = 0; chunk < q.chunks; chunk++) {
                bulk_wait(barriers + 8 * slot, parity);
                const tile_place tile = block.tile_at(unit, chunk, ring_at + (size_t)slot * 2 * q.pitch);
                const uint32_t bytes = block.tile_bytes(chunk),
                               line = chunk * (tile_of<D>() / D::LINE_BYTES) * D::LINE_QUADS;
                for (uint32_t v = first; v < behind; v++) {
                    const float sum = tile_fold(
                        tile_sums<D, tile_of<D>()>(tile, bytes, m.x + (size_t)v * q.vector_quads + line));
                    bulk_sum *to = done + waiting + (v - first);
                    if ((lane & 15) == 0) to->sum[lane / 16] = chunk ? to->sum[lane / 16] + sum : sum;
                    if (lane == 0) to->unit = u, to->vector = v;
                }
                /* Every lane has taken sums of what every other read, so the slot may be filled again; the
                 * barrier says the order to tools that look for races. */
                __syncwarp();
                ask_next(slot);
                if (++slot == q.slots) slot = 0, parity ^= 1;
            }
            waiting += behind - first;
        }
        block.finish(r, waiting);
        if (p.ahead.weight && r.after == after) m.list.ask_ahead(p, threadIdx.x, THREADS);
        from = r.after;
        while (expert < last && m.list.begin[expert + 1] <= from) expert++;
        __syncthreads(); /* all are through with the vectors */
    }
    if (p.down) block.add_up(tokens);
}

/* ---- launcher ------------------------------------------------------------------------------------- */

static const uint32_t RING_BYTES = 72 << 10, SLOTS_MIN = 2, SLOTS_MAX = 8, VECTORS_MAX = 64;

template <typename D> static size_t bytes_of(const experts_bulk_params &q)
{
    bulk_memory<D> m;
    return m.lay(nullptr, q);
}

/* How it is run; false: not here. */
template <typename D>
static bool shape_of(const struct experts_call &call, experts_bulk_params *q, uint32_t *blocks,
                     size_t *shared)
{
    const struct gpuk_device *device = call.device;
    const struct experts_params &p = call.params;
    size_t bits = (size_t)p.x | (size_t)p.norm;
    for (uint32_t r = 0; r < (p.down ? 1u : 2u); r++) bits |= (size_t)p.role[r].weight | p.role[r].stride;
    if (!D::LOOSE) bits |= p.row_bytes;
    if (!device->bulk_copy || bits % 16 != 0 || p.cols % 4 != 0 || (!p.down && p.x_stride % 4 != 0))
        return false;
    *q = {};
    q->of = p;
    const uint32_t tile = tile_of<D>(), sms = (uint32_t)device->sm_count, chosen = p.choice.chosen,
                   row = p.row_bytes < tile ? (uint32_t)p.row_bytes : tile;
    q->chunks = (uint32_t)((p.row_bytes + tile - 1) / tile);
    q->hosts = p.role[0].host != nullptr;
    /* a window is longer by what is beside its ends; that of two rows is one */
    const uint32_t slack = q->hosts   ? (p.down && q->chunks == 1 ? HOST_LINE : 2 * HOST_LINE)
                           : D::LOOSE ? TILE_SLACK
                                      : 0;
    q->pitch = (row + slack + 15) / 16 * 16;
    q->vector_quads = (uint32_t)((p.row_bytes + D::LINE_BYTES - 1) / D::LINE_BYTES) * D::LINE_QUADS;
    q->groups = div_up(p.cols / 4, 32);
    q->pairs = p.tokens * chosen;
    /* down's sums of a block have at most 32 KiB */
    const uint32_t row_pairs = div_up(p.rows, 2), most = (32 << 10) / (q->pairs * 8),
                   least = div_up(row_pairs, most);
    *blocks = p.down ? (sms > least ? sms : least) : sms;
    if (p.down && *blocks > row_pairs) *blocks = row_pairs;
    q->rows_most = p.down ? 2 * div_up(row_pairs, *blocks) : 0;
    /* pairs that a block has: of every expert, or of those that its share of the rows may touch */
    const uint32_t experts = q->pairs < p.experts ? q->pairs : p.experts,
                   touched = div_up((uint32_t)(((uint64_t)experts * p.rows + sms - 1) / sms), p.rows) + 1;
    uint32_t wanted =
        p.down ? q->pairs : (touched < experts ? touched : experts) * (p.tokens > 4 ? 4 : p.tokens);
    if (wanted > q->pairs) wanted = q->pairs;
    if (wanted > VECTORS_MAX) wanted = VECTORS_MAX;
    uint32_t slots = RING_BYTES / (WARPS * 2 * q->pitch);
    slots = slots < SLOTS_MIN ? SLOTS_MIN : slots > SLOTS_MAX ? SLOTS_MAX : slots;
    /* two blocks to a multiprocessor, where there is room: the next launch's begins meanwhile */
    const size_t whole = (size_t)device->shared_bytes_max, half = half_shared(device);
    const size_t scratch = p.routes ? (size_t)p.tokens * experts_scratch(p.router) * sizeof(float) : 0;
    const auto fits = [&](uint32_t s, uint32_t vectors, size_t limit) {
        q->slots = s, q->vectors = vectors;
        *shared = bytes_of<D>(*q);
        return *shared <= limit && (size_t)WARPS * q->slots * 2 * q->pitch >= scratch;
    };
    for (uint32_t s = slots; s >= SLOTS_MIN; s--)
        if (fits(s, wanted, half)) return true;
    /* fewer vectors mean rounds, between which the ring's bytes keep memory busy */
    for (const uint32_t s : {slots, SLOTS_MIN})
        for (uint32_t vectors = wanted; vectors > 0; vectors--)
            if (fits(s, vectors, whole)) return true;
    return false;
}

template <typename D> static constexpr experts_kernel bulk_of()
{
    if constexpr (D::TILES)
        return experts_launcher<experts_bulk_params, THREADS, shape_of<D>, experts_bulk<D>>::named("bulk");
    return {};
}
#define BULK(D) bulk_of<D>()
experts_kernels experts_bulk_kernels = BY_FORMAT(BULK, {});
