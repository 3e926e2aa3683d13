/* A chain of operations as it lies in device memory, and the warps that bring all its weights.
 *
 * Included by chain.cu and chain/attention.cuh. The list (gpuk_chain_write) is one piece of memory:
 * chain_header, chain_weights of each linear operation in order, chain_item of each operation. */
#pragma once

#include "worker-gpu/kernels/attention/decode.cuh"
#include "worker-gpu/kernels/chain/chains.h"
#include "worker-gpu/kernels/delta/delta.cuh"
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/tile.cuh"

/* A block's warps: W that compute, P that ask for weights. B: bytes of one row of a tile, which is that of a
 * pair of rows, at most; C: of what a warp has in registers of it at once. A tile costs waiting for it and
 * setting it free, so a row has as few as leave the ring well filled. */
template <uint32_t W, uint32_t P, uint32_t B, uint32_t C> struct chain_shape {
    static_assert(W % P == 0, "a slot of the ring has one warp that asks and one that computes");
    static const uint32_t WARPS = W, THREADS = W * 32, ASKERS = P, LAUNCHED = (W + P) * 32, TILE = B,
                          PART = C;
    /* those that compute, as a team (attention/decode.cuh) */
    static __device__ __forceinline__ uint32_t threads() { return THREADS; }
    static __device__ __forceinline__ void meet() { threads_meet(1, THREADS); }
};

/* Where the tiles of one linear operation lie. Pairs go round the blocks, from block `start` on: what one
 * operation leaves over, the next one's blocks take up, so that no block has more to do for long. */
struct alignas(16) chain_weights {
    const unsigned char *base[GPUK_SEGMENTS_MAX]; /* pair p's first row begins at base + p * pair_bytes */
    uint64_t to_second;                           /* from there to its second row */
    uint32_t pair_bytes;
    uint32_t end[GPUK_SEGMENTS_MAX]; /* pairs of this and the matrices before it */
    uint32_t chunks, last_bytes;     /* tiles of a row; bytes of the last */
    uint32_t tile, part; /* bytes of the other tiles, in lines of chain_lines; of the parts that they are
                            multiplied in */
    uint32_t odd;        /* bit s: the last pair of matrix s has one row */
    uint32_t start;
    uint32_t whole, extra;          /* pairs of every block; blocks from the start that have one more */
    uint32_t ask_pairs, ask_chunks; /* as many tiles on as warps ask */
    uint32_t use_pairs, use_chunks; /* and as warps that compute take */
    uint32_t format;
    uint32_t loose; /* tiles that do not begin on 16 bytes */
};
/* Flags of an item. Blocks meet only before an operation that reads what others stored, or stores over what
 * others read, since they met last (chain/meetings.cu). */
enum {
    CHAIN_MEETS = 1,   /* in front of it */
    CHAIN_ARRIVES = 2, /* after it, since the next one's blocks meet */
    CHAIN_KEEPS_X = 4, /* its x in shared memory is that of the operation in front */
    CHAIN_HURRIES = 8  /* the next one takes x */
};
struct alignas(16) chain_item {
    uint32_t kind; /* enum gpuk_chain_kind */
    uint32_t next_norm_quads;
    const float *next_norm; /* of the linear operation after this one */
    uint32_t held_at;       /* attention: where in the region keys and values are held; 0: nowhere */
    uint64_t *piece_words;  /* attention: [head][GPUK_CHAIN_PIECES][head_dim + 2], for all of the chain */
    uint32_t flags;
    chain_weights where; /* linear */
    union {
        linear_params linear;
        decode_params attention;
        delta_params delta;
    };
};

struct chain_header {
    uint64_t counter; /* blocks that came to a meeting, of all launches; alone in its line */
    uint32_t unused[30];
    gpuk_step step; /* of the attention operations, which may differ in their page tables */
    uint32_t attends;
};
static const size_t CHAIN_HEADER_BYTES = 256;
static_assert(sizeof(chain_header) <= CHAIN_HEADER_BYTES, "the lists begin behind the header");
static_assert(sizeof(chain_weights) % 16 == 0 && sizeof(chain_item) % 16 == 0, "copied 16 bytes at a time");

/* Positions of a block's first unit of attention whose keys and values it fetches into shared memory while q,
 * k and v are being computed: HELD of each lane. */
static const uint32_t HELD = 4, HELD_POSITIONS_MAX = 256;

/* How a token's attention is cut; the same in every block. */
struct attention_cut {
    uint32_t first, end; /* positions it sees */
    uint32_t heads;      /* of a unit at most */
    uint32_t chunks;     /* of a kv head's query heads */
    uint32_t pieces, per_piece, units;
    bool words; /* pieces go to the last one's block as words */
};
/* A unit's place. */
struct attention_unit {
    uint32_t share;          /* which heads, of all blocks' */
    uint32_t kv_head, chunk; /* of the kv head's query heads */
    uint32_t piece, begin, end;
    bool owner; /* the piece ends with the token's own position, which is not read: end is before it */
};
/* The token's place, the same for all attention operations of a chain. */
struct alignas(16) chain_token {
    const uint32_t *pages; /* its sequence's line of a page table, */
    const uint32_t *table; /* of this one: the last operation's that was cut */
    size_t line;           /* entries of a table in front of the line */
    uint64_t awaited;      /* the count that the blocks' counter must reach; thread 0's */
    uint32_t position;
    bool counts; /* false: the step has no token, attention does nothing */
    attention_cut
        cut; /* and the block's first unit, for attention of cut_heads heads and window cut_window */
    attention_unit unit;
    uint32_t cut_heads, cut_kv_heads, cut_window; /* heads 0: not cut yet */
    bool words;                                   /* tags differ from launch to launch: with a meeting */
    bool hurried;                                 /* the ring's barrier says so; thread 0's */
    uint32_t tag;  /* of operation 0 of this launch; the others' are that and their number */
    uint32_t page; /* of the position */
    uint32_t held_pages[HELD_POSITIONS_MAX]; /* of the unit's first positions */
};

/* A block's share of an operation's pairs: first, first + gridDim.x, ... */
__device__ __forceinline__ void share_of_block(const chain_weights &w, uint32_t &first, uint32_t &pairs)
{
    first = blockIdx.x >= w.start ? blockIdx.x - w.start : blockIdx.x + gridDim.x - w.start;
    pairs = w.whole + (first < w.extra ? 1 : 0);
}
/* The block's tile number `tile`. */
__device__ __forceinline__ tile_walk walk_to(uint32_t tile, uint32_t chunks)
{
    tile_walk to = {0, tile};
    while (to.chunk >= chunks) to.chunk -= chunks, to.pair++;
    return to;
}

/* The ring: the block's tiles, numbered through all operations, go round its slots. Computing warp w takes
 * the tiles w, w + WARPS, ...; asking warp p of n fetches p, p + n, ... as the slots become free. A slot has
 * two barriers: it is full, it is free. */
struct chain_ring {
    const unsigned char *at;
    uint32_t address, full, free; /* shared memory; a byte's, barriers' */
    uint32_t hurry; /* a barrier whose phase says whether few tiles may be on their way: 1, 3, ... */
    uint32_t pitch; /* from a tile's first row to its second: half a slot */
    uint32_t slots, slot, parity; /* the warp's next */
};
__device__ __forceinline__ void ring_open(chain_ring &ring, unsigned char *tiles, uint64_t *barriers,
                                          uint32_t slots, uint32_t pitch, uint32_t first)
{
    ring.pitch = pitch;
    ring.at = tiles, ring.address = shared_address(tiles);
    ring.full = shared_address(barriers), ring.free = ring.full + 8 * slots,
    ring.hurry = ring.free + 8 * slots;
    ring.slots = slots, ring.slot = first, ring.parity = 0;
}
/* Makes the barriers; the block meets after it. All lanes of a warp arrive (tile.cuh says why). */
__device__ __forceinline__ void ring_barriers_open(const chain_ring &ring)
{
    bulk_barriers_open(ring.full, ring.slots);
    for (uint32_t s = 0; s < ring.slots; s++) barrier_open(ring.free + 8 * s, WARP_ARRIVALS);
    barrier_open(ring.hurry, 1);
    barriers_opened();
}
__device__ __forceinline__ void ring_next(chain_ring &ring, uint32_t tiles)
{
    ring.slot += tiles;
    if (ring.slot >= ring.slots) ring.slot -= ring.slots, ring.parity ^= 1;
}

/* With many tiles on their way every other access to memory waits 2 to 4 us in the same queues instead of
 * one: results, counters, x. From the end of an operation's rows to the next one's x a block asks for less at
 * a time, which still keeps memory as busy as the ring has room. */
static const uint32_t CHAIN_FLIGHT = 80 << 10, CHAIN_FLIGHT_HURRY = 20 << 10; /* bytes */
/* Tiles of `row` bytes a row that are so many bytes: as many of each asking warp, and fewer than there are
 * slots. */
__device__ __forceinline__ uint32_t chain_tiles_of(uint32_t bytes, uint32_t row, uint32_t askers,
                                                   uint32_t slots)
{
    const uint32_t each = bytes / (2 * row * askers), most = slots / askers - 1;
    return (each < 1 ? 1 : each < most ? each : most) * askers;
}

/* The next tile an asking warp fetches: it walks from operation to operation, whatever the block is doing. */
struct ask_walk {
    chain_weights *w; /* the operation's, the warp's own in shared memory: start and whole are first and pairs
                         of the block's share */
    const chain_weights *end; /* of the list's */
    uint32_t left;            /* operations after this one */
    tile_walk at;             /* at.pair >= w->whole: there is nothing more */
};
/* Goes on to the next operation when the walk is through with this one. */
__device__ __forceinline__ void ask_settle(ask_walk &k)
{
    const uint32_t words = sizeof(chain_weights) / 16, lane = threadIdx.x & 31;
    while (k.at.pair >= k.w->whole && k.left > 0) {
        /* how far beyond the operation's last tile the walk is */
        const uint32_t rest = (k.at.pair - k.w->whole) * k.w->chunks + k.at.chunk;
        __syncwarp();
        const chain_weights *next = k.end - k.left--;
        if (lane < words)
            reinterpret_cast<uint4 *>(k.w)[lane] = __ldg(reinterpret_cast<const uint4 *>(next) + lane);
        if (lane == 0 && k.left > 0) ask_l2(next + 1); /* from memory by the time it is wanted */
        __syncwarp();
        uint32_t first, pairs;
        share_of_block(*k.w, first, pairs);
        __syncwarp();
        if (lane == 0) k.w->start = first, k.w->whole = pairs;
        __syncwarp();
        k.at = walk_to(rest, k.w->chunks);
    }
}
__device__ __forceinline__ void ask_open(ask_walk &k, chain_weights *own, const chain_weights *records,
                                         uint32_t count, uint32_t first)
{
    k.w = own, k.end = records + count, k.left = count;
    k.at = {0, first};
    if ((threadIdx.x & 31) == 0) own->chunks = 1 << 16, own->whole = 0;
    __syncwarp();
    ask_settle(k);
}
/* First bytes of tile `chunk` of both rows of pair `pair`; the second NULL where there is none. */
__device__ __forceinline__ linear_pair tile_rows(const chain_weights &w, uint32_t pair, uint32_t chunk)
{
    const uint32_t s = (pair >= w.end[0] ? 1 : 0) + (pair >= w.end[1] ? 1 : 0) + (pair >= w.end[2] ? 1 : 0);
    const unsigned char *base = s < 2 ? (s == 0 ? w.base[0] : w.base[1]) : s == 2 ? w.base[2] : w.base[3];
    const unsigned char *a = base + (uint64_t)pair * w.pair_bytes + (uint64_t)chunk * w.tile;
    const uint32_t end = s < 2 ? (s == 0 ? w.end[0] : w.end[1]) : s == 2 ? w.end[2] : w.end[3];
    const bool alone = (w.odd >> s & 1) && pair + 1 == end;
    return {a, alone ? nullptr : a + w.to_second};
}
__device__ __forceinline__ uint32_t tile_length(const chain_weights &w, uint32_t chunk)
{
    return chunk + 1 == w.chunks ? w.last_bytes : w.tile;
}
/* Starts the copy of the tile the walk is at (one lane) and goes on. */
__device__ __forceinline__ void ask_tile(ask_walk &k, uint32_t slot, uint32_t pitch, uint32_t full)
{
    const chain_weights &w = *k.w;
    const uint32_t pair = w.start + k.at.pair * gridDim.x;
    if ((threadIdx.x & 31) == 0) {
        const linear_pair rows = tile_rows(w, pair, k.at.chunk);
        const uint32_t bytes = tile_length(w, k.at.chunk);
        const tile_window a = tile_window_of(rows.a, bytes), b = tile_window_of(rows.b, bytes);
        bulk_expect(full, rows.b ? a.bytes + b.bytes : a.bytes);
        bulk_copy(slot, a.from, a.bytes, full);
        if (rows.b) bulk_copy(slot + pitch, b.from, b.bytes, full);
    }
    k.at.pair += w.ask_pairs;
    k.at.chunk += w.ask_chunks;
    if (k.at.chunk >= w.chunks) k.at.chunk -= w.chunks, k.at.pair++;
    if (k.at.pair >= w.whole) ask_settle(k);
}
/* An asking warp's life. The first round finds every slot free. */
__device__ __forceinline__ void ask_everything(chain_ring &ring, chain_weights *own,
                                               const chain_weights *records, uint32_t count, uint32_t number,
                                               uint32_t askers)
{
    ask_walk ask;
    ask_open(ask, own, records, count, number);
    const uint32_t usual = chain_tiles_of(CHAIN_FLIGHT, ring.pitch, askers, ring.slots),
                   few = chain_tiles_of(CHAIN_FLIGHT_HURRY, ring.pitch, askers, ring.slots);
    uint32_t asked = 0; /* tiles */
    for (bool first = true;; first = false) {
        const uint32_t round = ring.parity;
        while (ring.parity == round && ask.at.pair < ask.w->whole) {
            if (!first) bulk_wait(ring.free + 8 * ring.slot, round ^ 1);
            /* at most `most` tiles in flight: an earlier one must have arrived */
            const uint32_t most = bulk_over(ring.hurry, 0) ? few : usual;
            if (asked >= most) {
                const bool wraps = ring.slot < most;
                bulk_wait(ring.full + 8 * (ring.slot + (wraps ? ring.slots : 0) - most), round ^ wraps);
            }
            asked += askers;
            __syncwarp(); /* no lane waits for a phase that others have passed */
            ask_tile(ask, ring.address + ring.slot * 2 * ring.pitch, ring.pitch, ring.full + 8 * ring.slot);
            ring_next(ring, askers);
        }
        if (ask.at.pair >= ask.w->whole) return;
    }
}

/* ---- what chain.cu and chain/list.cu share ------------------------------------------------------------ */

typedef chain_shape<8, 4, 4096, 2560> chain_shaped;
/* Warps that request tiles of `pitch` bytes a row. Between operations at least one tile of each is in
 * flight. */
static inline uint32_t chain_askers(uint32_t pitch)
{
    return pitch < 4096 ? chain_shaped::ASKERS : chain_shaped::ASKERS / 2;
}

/* A line: what a warp reads at once of a row. The bytes of tiles are whole lines, those that registers hold
 * the same ones in any kernel of the format. */
struct chain_lines {
    uint32_t bytes, x_values, x_bytes; /* of x that it meets; 0: no chain takes the format */
    bool loose;                        /* rows begin anywhere */
    /* Bytes of the largest tile in a slot of `most` bytes. */
    __host__ __device__ constexpr uint32_t within(uint32_t most) const
    {
        return (most - (loose ? TILE_SLACK : 0)) / bytes * bytes;
    }
};
template <typename D> struct chain_lines_of {
    static constexpr chain_lines lines = {D::LINE_BYTES, D::SCALED ? 1024 : 4 * D::LINE_QUADS,
                                          16 * D::LINE_QUADS, D::LOOSE};
    static constexpr uint32_t PART = lines.within(chain_shaped::PART), SMALL = lines.within(2048);
    /* float4s of x that whole lines meet */
    static __device__ __forceinline__ uint32_t quads(uint32_t bytes)
    {
        if constexpr (D::LINE_BYTES % D::LINE_QUADS == 0) return bytes / (D::LINE_BYTES / D::LINE_QUADS);
        return bytes / D::LINE_BYTES * D::LINE_QUADS;
    }
};

template <> struct chain_lines_of<decode_fp8> { /* chains take none of it */
    static constexpr chain_lines lines = {};
};

/* How x lies for a format: for all formats of blocks alike. */
template <typename D> struct chain_x_of {
    typedef D decoder;
};
template <> struct chain_x_of<decode_blocks> {
    typedef decode_q8_0 decoder;
};
/* Formats that one kernel takes. */
enum { CHAIN_BLOCKS = FORMAT_F32 + 1, CHAIN_FAMILIES };
static inline int chain_family(enum tensor_format format)
{
    return tensor_format_is_plain(format) ? (int)format : (int)CHAIN_BLOCKS;
}

static const uint32_t CHAIN_SUMS = 768; /* sums of tiles that wait for the end of their rows */

/* Shared memory: ring [slot][2][pitch], a region for x or attention, the next norm's weights, partial
 * [2][CHAIN_SUMS], squares [32], items [2], each asking warp's chain_weights, the token, barriers [2][slot]
 * and that of haste. */
static inline size_t chain_shared_bytes(uint32_t slots, uint32_t pitch, uint32_t region_bytes,
                                        uint32_t norm_bytes)
{
    return (size_t)slots * (2 * pitch + 16) + 32 + region_bytes + norm_bytes +
           (2 * CHAIN_SUMS + 32) * sizeof(float) + 2 * sizeof(chain_item) +
           chain_shaped::ASKERS * sizeof(chain_weights) + sizeof(chain_token);
}
