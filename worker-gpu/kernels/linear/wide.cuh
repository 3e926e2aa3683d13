/* Weights as they lie times some tokens, by the matrix instructions of warpgroups (9.0, sm_90a): the loop of
 * experts/wide.cu and gemm_wide.cu.
 *
 * Included by these two, which say first how many warpgroups a block has (WIDE_GROUPS): four keep a
 * multiprocessor's schedulers busier while they decode, two have registers for twice as many tokens. A block
 * stays and takes items in turn: 64 rows of weights a warpgroup, 128 or 256 rows of x, some or all of the
 * columns. A step is 64 columns: x comes into one of four places in shared memory as the matrix unit reads
 * it, columns of weights come with it, in units of more. Bytes of the step after next are asked for before a
 * step is multiplied, across items, too. Each warp decodes fragments of its 16 rows, 32 columns at a time, to
 * registers, while the products with the 32 before are at work: a weight is decoded once for all of an item's
 * tokens, and x passes no register. Every sum is taken in the order of columns, whatever tokens are beside a
 * token.
 *
 * Templates are over a decoder (decode.cuh) and over work W, which says what the items are:
 *   items                    how many
 *   x, cols, row_bytes       [row of x][cols], and a row of weights
 *   rows, two                of a matrix; an item's rows are of two matrices, 8 and 8 in turn
 *   item(index, item)        by all threads
 *   source(item, token)      which row of x
 *   store(item, sums)        a lane's sums[n][4 j + 2 r + i]: of token 64 n + 8 j + 2 (lane % 4) + i, and of
 *                            rows lane / 4 and 8 more (r) of the warp's 16 */
#pragma once

#include "worker-gpu/kernels/linear/fragments.cuh"

static_assert(WIDE_GROUPS == 2 || WIDE_GROUPS == 4, "");
static const uint32_t WIDE_THREADS = WIDE_GROUPS * 128, WIDE_ROWS = WIDE_GROUPS * 64,
                      WIDE_TOKENS = 512 / WIDE_GROUPS, WIDE_STEP = 64, WIDE_STAGES = 4, WIDE_AHEAD = 2,
                      WIDE_STEPS_MIN = WIDE_AHEAD + 1;
static const uint32_t WIDE_X_BYTES = WIDE_TOKENS * WIDE_STEP * 2,
                      WIDE_EIGHT = 1024 /* bytes of eight tokens */,
                      WIDE_W_MOST =
                          (219 << 10) - WIDE_STAGES * WIDE_X_BYTES /* for weights, of what a block has */;

/* The same in all lanes, as the compiler is to know: in registers that a warp has one of. */
__device__ __forceinline__ uint32_t warp_uniform(uint32_t v)
{
    return __shfl_sync(0xffffffffu, v, 0);
}

struct wide_item {
    const unsigned char *weight, *second; /* of the matrices: row 0; the same where there is one */
    uint32_t row;                         /* the tile's first, of each matrix */
    uint32_t first, steps;                /* of its columns: the first is a unit's; at least WIDE_STEPS_MIN */
    uint32_t begin, tokens;
    uint32_t owner; /* an expert, or a part */
};

/* Columns of a unit, how many have room, a row's bytes, and from row to row in shared memory: 16 bytes and a
 * multiple of 32, so that 8 rows' words lie in banks of their own. */
template <typename D, bool BLOCKS = D::SCALED> struct wide_unit {
    static const uint32_t COLUMNS = 256, BYTES = COLUMNS / D::VALUES * D::format::BYTES,
                          ALIGN = D::format::ALIGN,
                          PITCH = (BYTES + (D::LOOSE ? TILE_SLACK : 0) + 15) / 32 * 32 + 16,
                          ROOMS = PITCH * WIDE_ROWS * 3 <= WIDE_W_MOST ? 3 : 2;
};
template <typename D> struct wide_unit<D, false> {
    static const uint32_t COLUMNS = WIDE_STEP, ROOMS = WIDE_STAGES,
                          BYTES = COLUMNS * sizeof(typename D::value), ALIGN = 16, PITCH = BYTES + 16;
};

template <typename D, typename W> struct wide_loop {
    typedef typename D::value value;
    typedef wide_unit<D> unit;
    static const uint32_t STEPS = unit::COLUMNS / WIDE_STEP, W_BYTES = WIDE_ROWS * unit::PITCH,
                          SHARED = WIDE_EIGHT /* to begin where eight tokens do */ +
                                   WIDE_STAGES * WIDE_X_BYTES + unit::ROOMS * W_BYTES;

    /* Whether items of so many steps may follow each other: a unit of one step leaves no time between the use
     * of the unit before it and the copies of the unit after it, which go to the same room where there are
     * two. */
    static bool takes_steps(uint32_t steps)
    {
        return steps >= WIDE_STEPS_MIN && (unit::ROOMS > 2 || steps % STEPS != 1);
    }

    /* Where copies are: an item, its step, and the places in shared memory. */
    struct walk {
        wide_item item;
        uint32_t index, step, stage, room, parity;
        bool there;
    };

    const W &work;
    unsigned char *x, *w;
    uint32_t *source; /* [2][WIDE_TOKENS] rows of x, of two items in turn */

    __device__ __forceinline__ wide_loop(const W &of, unsigned char *shared, uint32_t *sources)
        : work(of), x(shared + (WIDE_EIGHT - shared_address(shared) % WIDE_EIGHT) % WIDE_EIGHT),
          w(x + WIDE_STAGES * WIDE_X_BYTES), source(sources)
    {
    }

    /* ---- copies */

    /* Where unit `u` of local row `row` begins; of rows that are not there, the last one's. */
    __device__ __forceinline__ const unsigned char *row_at(const wide_item &item, uint32_t row,
                                                           uint32_t u) const
    {
        const uint32_t local = work.two ? row / 16 * 8 + row % 8 : row, last = work.rows - 1,
                       r = item.row + local < last ? item.row + local : last;
        return (row & 8 ? item.second : item.weight) + r * work.row_bytes + (uint64_t)u * unit::BYTES;
    }
    __device__ __forceinline__ void bring_x(const walk &k) const
    {
        const uint32_t quad = threadIdx.x % 8, first = threadIdx.x / 8, pass = WIDE_THREADS / 8,
                       to = shared_address(x) + k.stage * WIDE_X_BYTES + first * 128 +
                            (quad ^ (first & 7)) * 16,
                       all = div_up(k.item.tokens, 64) * 64;
        const uint32_t *from = source + k.parity * WIDE_TOKENS;
        const value *column =
            static_cast<const value *>(work.x) + (k.item.first + k.step) * WIDE_STEP + quad * 8;
#pragma unroll 2
        for (uint32_t t = 0; t < all; t += pass) {
            const bool there = t + first < k.item.tokens;
            copy16_async(to + t * 128, column + (there ? (uint64_t)from[t + first] * work.cols : 0), there);
        }
    }
    /* Each warp brings its 16 rows. */
    __device__ __forceinline__ void bring_w(const walk &k) const
    {
        const uint32_t to = shared_address(w) + k.room * W_BYTES, lane = threadIdx.x & 31,
                       warp = threadIdx.x >> 5, quads = D::SCALED ? unit::PITCH / 16 : unit::BYTES / 16,
                       u = (k.item.first + k.step) / STEPS;
        const uint64_t before = (uint64_t)u * unit::BYTES, left = work.row_bytes - before;
        const uint32_t bytes = left < unit::BYTES ? (uint32_t)left : unit::BYTES;
        for (uint32_t i = lane; i < 16 * quads; i += 32) {
            const uint32_t row = warp * 16 + i / quads, quad = i % quads;
            const tile_window from = tile_window_of(row_at(k.item, row, u), bytes);
            if (quad * 16 < from.bytes)
                copy16_async(to + row * unit::PITCH + quad * 16, from.from + quad * 16, true);
        }
    }
    __device__ __forceinline__ void bring(const walk &k) const
    {
        if (k.there && k.step % STEPS == 0) bring_w(k);
        if (k.there) bring_x(k);
        copies_commit();
    }
    /* An item's rows of x; they may be used after the block's next meeting. */
    __device__ __forceinline__ void open(walk &k) const
    {
        k.there = k.index < work.items;
        if (!k.there) return;
        work.item(k.index, k.item);
        if (threadIdx.x < k.item.tokens)
            source[k.parity * WIDE_TOKENS + threadIdx.x] = work.source(k.item, threadIdx.x);
    }
    __device__ __forceinline__ void next(walk &k) const
    {
        if (!k.there) return;
        k.stage = (k.stage + 1) % WIDE_STAGES;
        if (++k.step == k.item.steps) k.step = 0, k.index += gridDim.x, k.parity ^= 1, open(k);
        if (k.step % STEPS == 0) k.room = (k.room + 1) % unit::ROOMS;
    }

    /* ---- products */

    template <uint32_t N>
    __device__ __forceinline__ void multiply(const wide_item &item, uint32_t step, uint32_t stage,
                                             uint32_t room, float sums[N][32]) const
    {
        const uint32_t row = (threadIdx.x >> 5) * 16 + (threadIdx.x & 31) / 4,
                       u = (item.first + step) / STEPS, columns = shared_address(x) + stage * WIDE_X_BYTES;
        const unsigned char *at = w + room * W_BYTES + row * unit::PITCH, *eighth = at + 8 * unit::PITCH;
        if (D::SCALED && D::LOOSE) {
            at += (size_t)row_at(item, row, u) & 15;
            eighth += (size_t)row_at(item, row + 8, u) & 15;
        }
        uint32_t a[2][2][4]; /* of 32 columns each: one is at work while the other is decoded */
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            if constexpr (D::SCALED) {
                const uint32_t runs = D::VALUES / 32, run = step % STEPS * 2 + r,
                               before = run / runs * D::format::BYTES;
                fragments_in_order<D>(at + before, eighth + before, run % runs, a[r]);
            } else {
                fragments_in_order<D>(at, eighth, r, a[r]);
            }
            warpgroup_begin();
#pragma unroll
            for (uint32_t k = 0; k < 2; k++)
#pragma unroll
                for (uint32_t n = 0; n < N; n++)
                    warpgroup_unit<value>::add(sums[n], a[r][k],
                                               warpgroup_columns(columns + n * 8 * WIDE_EIGHT + r * 64 +
                                                                 k * 32));
            warpgroup_commit();
            warpgroup_wait<1>(); /* the 32 columns before are done: their fragments may be written */
        }
    }
    /* Computes an item of up to 64 N tokens while the next ones are copied. */
    template <uint32_t N>
    __device__ __forceinline__ void run_as(walk &ahead, const wide_item &item, uint32_t &stage,
                                           uint32_t &room) const
    {
        float sums[N][32];
        const uint32_t steps = warp_uniform(item.steps);
        stage = warp_uniform(stage), room = warp_uniform(room);
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) sums[n][i] = 0;
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            copies_wait<WIDE_AHEAD - 1>();
            bulk_after_stores(); /* the matrix unit reads past the threads' own order */
            /* all have this step's, and the products of two steps before have been read by all: there goes
             * what is next */
            __syncthreads();
            bring(ahead);
            next(ahead);
            multiply<N>(item, step, stage, room, sums);
            stage = (stage + 1) % WIDE_STAGES;
            if ((step + 1) % STEPS == 0 || step + 1 == steps) room = (room + 1) % unit::ROOMS;
        }
        warpgroup_wait<0>();
#pragma unroll
        for (uint32_t n = 0; n < N; n++) warpgroup_take(sums[n]);
        work.template store<N>(item, sums);
    }
    __device__ __forceinline__ void run() const
    {
        walk ahead = {};
        ahead.index = blockIdx.x;
        open(ahead);
        __syncthreads();
        for (uint32_t i = 0; i < WIDE_AHEAD; i++) {
            bring(ahead);
            next(ahead);
        }
        uint32_t stage = 0, room = 0;
        while (ahead.there) {
            /* fewer steps are asked for ahead than an item has: the copies are in the item that is next */
            const wide_item item = ahead.item;
            const uint32_t tiles = warp_uniform(div_up(item.tokens, 64));
            if (tiles == 1)
                run_as<1>(ahead, item, stage, room);
            else if (tiles == 2 || WIDE_GROUPS == 4)
                run_as<2>(ahead, item, stage, room);
            else if constexpr (WIDE_GROUPS == 2) {
                if (tiles == 3)
                    run_as<3>(ahead, item, stage, room);
                else
                    run_as<4>(ahead, item, stage, room);
            }
        }
    }
};
