/* How prefill attention on tensor cores is cut, and the tiles of the KV cache in shared memory: keys or
 * values of KEYS positions of a head.
 *
 * prefill_shape a kernel's numbers prefill_cells<S> a block's way through its tiles, one a cell type
 * (kv_cell.cuh). Rows of shared memory are swizzled by
 *                   16-byte units (tile_unit), of the type that queries have. Keys, then values, of a tile:
 *   ask(base)           the tile from position `base` on is next: its pages are looked up while others are
 *                       computed with
 *   fetch<VALUES>(...)  starts copying its keys or its values
 *   settle<VALUES>(...) the thread's own copies that have come become rows; nothing where copies are rows
 *     already */
#pragma once

#include "worker-gpu/kernels/attention/kv_cell.cuh"

/* HEAD: numbers of a head. KEYS: positions of a tile. WARPS: of 16 queries each; of heads of 512 numbers two
 * warps (SIDES) share 16 queries, each with WIDE of the numbers. STAGES: slots of the ring, each for keys or
 * values of a tile. BLOCKS: of a multiprocessor at a time, for which registers are to suffice. HELD: queries
 * stay in registers; otherwise they are read from shared memory for each tile. */
template <typename CELL, int HEAD_, int KEYS_, int WARPS_, int STAGES_, int BLOCKS_, bool HELD_>
struct prefill_shape {
    typedef CELL C;
    typedef typename C::query T;
    static const int HEAD = HEAD_, KEYS = KEYS_, WARPS = WARPS_, BLOCKS = BLOCKS_;
    static const bool HELD = HELD_, IN_PLACE = C::HOLDS;
    static const int SIDES = HEAD > 256 ? 2 : 1, WIDE = HEAD / SIDES, ROWS = 16 * WARPS;
    static const uint32_t THREADS = 32 * WARPS * SIDES;
    /* copies that are not in place are settled into one of two slots, and the next ones take their place */
    static const int STAGES = IN_PLACE ? STAGES_ : 2, AHEAD = IN_PLACE ? STAGES - 1 : 2;
    /* bytes: of a slot; of the ring, with what is not in place after it, then scores on their way between
     * sides */
    static const uint32_t SLOT = KEYS * HEAD * 2, RING = SLOT * STAGES + (IN_PLACE ? 0 : SLOT),
                          EXCHANGE = SIDES > 1 ? THREADS *KEYS / 2 * 4 : 0;
    static const uint32_t QUERIES = ROWS * HEAD * 2, Q_BYTES = HELD ? 0 : QUERIES,
                          BYTES = Q_BYTES + RING + EXCHANGE;
    static_assert(!HELD || QUERIES <= RING, "queries wait in the ring");
    static_assert(GPU_PREFILL_TILE % KEYS == 0 && KEYS % 16 == 0, "pieces are whole tiles");
};

/* Byte offset of 16-byte unit `unit` of row `row` of a tile: neither copies nor ldmatrix meet bank
 * conflicts. */
template <int HEAD> __device__ __forceinline__ uint32_t tile_unit(uint32_t row, uint32_t unit)
{
    return row * (HEAD * 2) + ((unit ^ (row & 7)) << 4);
}

/* The place `units` units, an even number, further than `place` in its row: tiles begin at multiples of 128
 * bytes, so a few bits turn. Four places of a row are computed, all others are constants away from these. */
__device__ __forceinline__ uint32_t units_further(uint32_t place, uint32_t units)
{
    return (place ^ (units & 7) << 4) + (units / 8 << 7);
}

/* A sequence's cells of one head: zeros from position `end` on. */
struct tile_source {
    const gpuk_kv &kv;
    const uint32_t *pages;
    uint32_t kv_head, end;
};

/* A warp's rows of a tile; a lane knows where row lane % ROWS is. */
template <typename S> struct tile_rows {
    static const uint32_t ROWS = S::KEYS / (S::THREADS / 32);
    static_assert(ROWS >= 1 && ROWS <= 32, "a lane a row");
    uint32_t base, page, shift;
    const unsigned char *rows; /* of its page */

    __device__ __forceinline__ uint32_t first() const { return threadIdx.x / 32 * ROWS; }
    __device__ __forceinline__ uint32_t position() const { return base + first() + threadIdx.x % ROWS; }
    __device__ __forceinline__ void ask(const tile_source &s, uint32_t from)
    {
        base = from;
        page = position() < s.end ? s.pages[position() >> shift] : 0;
    }
    __device__ __forceinline__ void go(const tile_source &s)
    {
        rows = (const unsigned char *)s.kv.pool;
        if (position() < s.end) rows = kv_rows(s.kv, page, 0, s.kv_head);
    }
    __device__ __forceinline__ static const unsigned char *of(const unsigned char *at, uint32_t row)
    {
        return (const unsigned char *)__shfl_sync(0xffffffffu, (uint64_t)at, (int)row);
    }
};

template <typename S, typename C = typename S::C> struct prefill_cells;

template <typename S, typename T> struct prefill_cells<S, kv_plain<T>> {
    static const uint32_t UNITS = S::HEAD / 8, TIMES = tile_rows<S>::ROWS * UNITS / 32;
    tile_rows<S> at;
    uint64_t to_values;

    __device__ __forceinline__ void open(const tile_source &s)
    {
        at.shift = 31 - __clz((int)s.kv.layout.page_tokens);
        to_values = kv_steps<kv_plain<T>>(s.kv.layout).to_values;
    }
    __device__ __forceinline__ void ask(const tile_source &s, uint32_t base) { at.ask(s, base); }
    /* To the rows at `slot`, an address in shared memory. */
    template <bool VALUES>
    __device__ __forceinline__ void fetch(const tile_source &s, uint32_t slot, uint32_t)
    {
        const uint32_t lane = threadIdx.x & 31;
        if constexpr (!VALUES) {
            at.go(s);
            at.rows += (size_t)(at.position() & ((1u << at.shift) - 1)) * (S::HEAD * sizeof(T));
        }
        const unsigned char *mine = at.rows + (VALUES ? to_values : 0);
#pragma unroll
        for (uint32_t i = 0; i < TIMES; i++) {
            const uint32_t row = (i * 32 + lane) / UNITS, unit = (i * 32 + lane) % UNITS;
            copy16_async(slot + tile_unit<S::HEAD>(at.first() + row, unit),
                         tile_rows<S>::of(mine, row) + unit * 16, at.base + at.first() + row < s.end);
        }
    }
    template <bool VALUES>
    __device__ __forceinline__ void settle(const unsigned char *, unsigned char *) const
    {
    }
};

/* Numbers come as they lie, beside the slots, and scales into registers; a thread makes rows of what it has
 * fetched itself, rounded to fp16. */
template <typename S> struct prefill_cells<S, kv_q8_0> {
    static const uint32_t UNITS = S::HEAD / 16, ROWS = tile_rows<S>::ROWS, TIMES = (ROWS * UNITS + 31) / 32,
                          BYTES = S::KEYS * S::HEAD;
    static_assert(ROWS * UNITS % 32 == 0, "whole copies of a warp");
    tile_rows<S> at;
    uint16_t scale[2][TIMES];

    __device__ __forceinline__ void open(const tile_source &s)
    {
        at.shift = 31 - __clz((int)s.kv.layout.page_tokens);
    }
    __device__ __forceinline__ void ask(const tile_source &s, uint32_t base) { at.ask(s, base); }
    /* To `raw`: keys, and values after them. */
    template <bool VALUES> __device__ __forceinline__ void fetch(const tile_source &s, uint32_t, uint32_t raw)
    {
        const uint32_t lane = threadIdx.x & 31, tokens = 1u << at.shift;
        const kv_steps<kv_q8_0> steps(s.kv.layout);
        if constexpr (!VALUES) at.go(s);
#pragma unroll
        for (uint32_t i = 0; i < TIMES; i++) {
            const uint32_t row = (i * 32 + lane) / UNITS, unit = (i * 32 + lane) % UNITS;
            const uint32_t position = at.base + at.first() + row, token = position & (tokens - 1);
            const bool valid = position < s.end;
            const unsigned char *rows = tile_rows<S>::of(at.rows, row) + (VALUES ? steps.to_values : 0);
            copy16_async(raw + (VALUES ? BYTES : 0) + (at.first() + row) * S::HEAD + unit * 16,
                         rows + (size_t)token * S::HEAD + unit * 16, valid);
            scale[VALUES][i] =
                valid ? kv_q8_0::scale_at(rows + steps.scales_at + (size_t)token * steps.scale, unit * 16)
                      : (uint16_t)0;
        }
    }
    /* 16 numbers to two units of a row. */
    static __device__ __forceinline__ void put(unsigned char *rows, uint32_t row, uint32_t unit,
                                               const uint4 &numbers, float scale)
    {
        const uint32_t word[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
        uint32_t pair[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            pair[i] = element<__half>::pack(scale * q8_float(word[i / 2], i % 2 * 2),
                                            scale * q8_float(word[i / 2], i % 2 * 2 + 1));
        *reinterpret_cast<uint4 *>(rows + tile_unit<S::HEAD>(row, 2 * unit)) =
            make_uint4(pair[0], pair[1], pair[2], pair[3]);
        *reinterpret_cast<uint4 *>(rows + tile_unit<S::HEAD>(row, 2 * unit + 1)) =
            make_uint4(pair[4], pair[5], pair[6], pair[7]);
    }
    template <bool VALUES>
    __device__ __forceinline__ void settle(const unsigned char *raw, unsigned char *slot) const
    {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll
        for (uint32_t i = 0; i < TIMES; i++) {
            const uint32_t row = at.first() + (i * 32 + lane) / UNITS, unit = (i * 32 + lane) % UNITS;
            put(slot, row, unit,
                *reinterpret_cast<const uint4 *>(raw + (VALUES ? BYTES : 0) + row * S::HEAD + unit * 16),
                q8_scale(scale[VALUES][i]));
        }
    }
};
