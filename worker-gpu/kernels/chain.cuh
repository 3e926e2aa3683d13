/* A chain of operations as it lies in device memory, and a warp's walk over the tiles of all its weights.
 *
 * Included by chain.cu and chain_attention.cuh. The list (gpuk_chain_write) is one piece of memory:
 * chain_header, chain_weights of each linear operation in order, chain_item of each operation. */
#ifndef HELM_WORKER_GPU_KERNELS_CHAIN_CUH
#define HELM_WORKER_GPU_KERNELS_CHAIN_CUH

#include "worker-gpu/kernels/attention_decode.cuh"
#include "worker-gpu/kernels/linear.cuh"
#include "worker-gpu/kernels/tile.cuh"

/* A block's warps, and the bytes of one row of a tile, which is that of a pair of rows. */
template <uint32_t W, uint32_t B> struct chain_shape {
    static const uint32_t WARPS = W, THREADS = W * 32, TILE = B;
};

/* Where the tiles of one linear operation lie. Pairs go round the blocks, from block `start` on: what one
 * operation leaves over, the next one's blocks take up, so that no block has more to do for long. */
struct alignas(16) chain_weights {
    const unsigned char *base[GPUK_SEGMENTS_MAX]; /* pair p's first row begins at base + p * pair_bytes */
    uint64_t to_second;                           /* from there to its second row */
    uint32_t pair_bytes;
    uint32_t end[GPUK_SEGMENTS_MAX]; /* pairs of this and the matrices before it */
    uint32_t chunks, last_bytes;     /* tiles of a row; bytes of the last */
    uint32_t odd;                    /* bit s: the last pair of matrix s has one row */
    uint32_t start;
    uint32_t whole, extra;            /* pairs of every block; blocks from the start that have one more */
    uint32_t step_pairs, step_chunks; /* a block's warps' tiles on */
};

struct alignas(16) chain_item {
    uint32_t kind; /* enum gpuk_chain_kind */
    uint32_t next_norm_bytes;
    const float *next_norm; /* of the linear operation behind this one */
    chain_weights where;    /* linear */
    union {
        linear_params linear;
        decode_params attention;
    };
};

struct chain_header {
    uint64_t counter; /* blocks that came to a meeting, of all launches; alone in its line */
    uint32_t unused[30];
    gpuk_step step; /* of the attention operations */
    uint32_t attends;
};
static const size_t CHAIN_HEADER_BYTES = 256;
static_assert(sizeof(chain_header) <= CHAIN_HEADER_BYTES, "the lists begin behind the header");
static_assert(sizeof(chain_weights) == 80 && sizeof(chain_item) % 16 == 0, "copied 16 bytes at a time");

/* The token's place, the same for all attention operations of a chain. */
struct chain_token {
    const uint32_t *pages; /* its sequence's line of the page table */
    uint64_t awaited;      /* what the blocks' counter must come to; thread 0's */
    uint32_t position;
    bool counts; /* false: the step has no token, attention does nothing */
};

/* A block's share of an operation's pairs: first, first + gridDim.x, ... */
__device__ __forceinline__ void share_of_block(const chain_weights &w, uint32_t &first, uint32_t &pairs)
{
    first = blockIdx.x >= w.start ? blockIdx.x - w.start : blockIdx.x + gridDim.x - w.start;
    pairs = w.whole + (first < w.extra ? 1 : 0);
}
/* As many tiles on as the block has warps. */
__device__ __forceinline__ void walk_round(tile_walk &at, const chain_weights &w)
{
    at.pair += w.step_pairs;
    at.chunk += w.step_chunks;
    if (at.chunk >= w.chunks) at.chunk -= w.chunks, at.pair++;
}
/* The block's tile number `tile`. */
__device__ __forceinline__ tile_walk walk_to(uint32_t tile, uint32_t chunks)
{
    tile_walk to = {0, tile};
    while (to.chunk >= chunks) to.chunk -= chunks, to.pair++;
    return to;
}
/* How far beyond the block's last tile the walk is: where it begins in the next operation. */
__device__ __forceinline__ uint32_t walk_rest(const tile_walk &at, uint32_t pairs, uint32_t chunks)
{
    return (at.pair - pairs) * chunks + at.chunk;
}

/* The next tile a warp asks for: it walks from operation to operation, whatever the block is doing. */
struct ask_walk {
    chain_weights *w; /* the operation's, the warp's own in shared memory: start and whole are first and pairs
                         of the block's share */
    const chain_weights *end; /* of the list's */
    uint32_t left;            /* operations behind this one */
    tile_walk at;             /* at.pair >= w->whole: there is nothing more */
};
/* Goes on to the next operation when the walk is through with this one. */
__device__ __forceinline__ void ask_settle(ask_walk &k)
{
    const uint32_t words = sizeof(chain_weights) / 16, lane = threadIdx.x & 31;
    while (k.at.pair >= k.w->whole && k.left > 0) {
        const uint32_t rest = walk_rest(k.at, k.w->whole, k.w->chunks);
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
                                         uint32_t count, uint32_t warp)
{
    k.w = own, k.end = records + count, k.left = count;
    k.at = {0, warp};
    if ((threadIdx.x & 31) == 0) own->chunks = 1 << 16, own->whole = 0;
    __syncwarp();
    ask_settle(k);
}
/* First bytes of tile `at` of both rows; the second NULL where there is none. */
template <typename S> __device__ __forceinline__ linear_pair tile_rows(const ask_walk &k, tile_walk at)
{
    const uint32_t pair = k.w->start + at.pair * gridDim.x;
    const uint32_t s = (pair >= k.w->end[0] ? 1 : 0) + (pair >= k.w->end[1] ? 1 : 0);
    const unsigned char *base = s == 0 ? k.w->base[0] : s == 1 ? k.w->base[1] : k.w->base[2];
    const unsigned char *a = base + (uint64_t)pair * k.w->pair_bytes + (uint64_t)at.chunk * S::TILE;
    const uint32_t end = s == 0 ? k.w->end[0] : s == 1 ? k.w->end[1] : k.w->end[2];
    const bool alone = (k.w->odd >> s & 1) && pair + 1 == end;
    return {a, alone ? nullptr : a + k.w->to_second};
}
template <typename S> __device__ __forceinline__ uint32_t tile_length(const chain_weights &w, uint32_t chunk)
{
    return chunk + 1 == w.chunks ? w.last_bytes : S::TILE;
}
/* Starts the copy of the tile the walk is at (one lane) and goes on. */
template <typename S> __device__ __forceinline__ void ask_tile(ask_walk &k, uint32_t slot, uint32_t barrier)
{
    if (k.at.pair >= k.w->whole) return;
    if ((threadIdx.x & 31) == 0) {
        const linear_pair rows = tile_rows<S>(k, k.at);
        const uint32_t bytes = tile_length<S>(*k.w, k.at.chunk);
        bulk_expect(barrier, rows.b ? 2 * bytes : bytes);
        bulk_copy(slot, rows.a, bytes, barrier);
        if (rows.b) bulk_copy(slot + S::TILE, rows.b, bytes, barrier);
    }
    walk_round(k.at, *k.w);
    if (k.at.pair >= k.w->whole) ask_settle(k);
}

#endif
