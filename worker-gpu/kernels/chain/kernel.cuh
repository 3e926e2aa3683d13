/* Consecutive operations of one token in one launch: linear layers and decode attention.
 *
 * One block a multiprocessor stays for all operations. It has a ring of tiles of weights in shared memory,
 * filled by the bulk copy engine. Some of its warps only ask for tiles; they walk on from operation to
 * operation, so that copies never wait for data: while the others finish rows, meet, load x or compute
 * attention, the ring goes on filling with the next operations' weights. The others take two to three times
 * less for a tile than memory does, so that they then catch up with it; asking stood in their way before.
 * Between operations all blocks meet: one thread counts its block in (release) and waits for the count
 * (acquire). The counter only grows; a launch adds the same to it each time, so that its beginning, and the
 * launch's number, are known from any reading before a block's own last arrival. Everything that is written
 * in a launch (x, q, k, v, pieces of attention) is read past the L1.
 *
 * Included by chain.cu. */
#pragma once

#include "worker-gpu/kernels/chain/chain.cuh"
#include "worker-gpu/kernels/chain/attention.cuh"
#include "worker-gpu/kernels/chain/delta.cuh"
#include "worker-gpu/kernels/chain/x.cuh"

struct chain_params {
    unsigned char *list;
    uint32_t count, meetings, linears, slots, askers, pitch, region_bytes, norm_bytes;
};

/* A tile of blocks in a function of its own: among everything else that the kernel does the compiler lets
 * products wait for one another. Places are bytes from the beginning of shared memory. */
template <typename D>
__device__ __noinline__ float2 chain_blocks(uint32_t tile_a, uint32_t tile_b, uint32_t bytes, uint32_t x)
{
    SHARED_DYNAMIC(unsigned char, shared);
    float2 sum;
    tile_add_as<D, chain_lines_of<D>::lines.within(chain_shaped::TILE), false>(
        {shared + tile_a, shared + tile_b}, bytes, reinterpret_cast<const float4 *>(shared + x), sum.x,
        sum.y);
    return sum;
}

/* A lane's part of the sums of the tile `at`, whose pair counts from the operation's first, in a slot. */
template <typename D>
__device__ __forceinline__ void chain_tile_of(const chain_weights &w, tile_place tile, tile_walk at,
                                              const float4 *x4, float &a, float &b)
{
    typedef chain_lines_of<D> L;
    const uint32_t bytes = tile_length(w, at.chunk);
    const float4 *with = x4 + at.chunk * L::quads(w.tile);
    if (D::LOOSE && w.loose) {
        const linear_pair rows = tile_rows(w, at.pair, at.chunk);
        tile.a += (size_t)rows.a & 15, tile.b += (size_t)rows.b & 15;
    }
    if constexpr (D::SCALED) {
        SHARED_DYNAMIC(unsigned char, shared);
        const float2 sum =
            chain_blocks<D>((uint32_t)(tile.a - shared), (uint32_t)(tile.b - shared), bytes,
                            (uint32_t)(reinterpret_cast<const unsigned char *>(with) - shared));
        a = sum.x, b = sum.y;
    } else {
#pragma unroll 1
        for (uint32_t from = 0; from < bytes; from += w.part) {
            const uint32_t some = bytes - from < w.part ? bytes - from : w.part;
            const float4 *x_part = with + L::quads(from);
            const tile_place part = {tile.a + from, tile.b + from};
            float more_a, more_b;
            if (some == L::PART)
                tile_add_as<D, L::PART, true>(part, some, x_part, more_a, more_b);
            else if (some == L::SMALL)
                tile_add_as<D, L::SMALL, true>(part, some, x_part, more_a, more_b);
            else
                tile_add_as<D, L::PART, false>(part, some, x_part, more_a, more_b);
            a += more_a, b += more_b;
        }
    }
}
template <typename D> struct chain_any_blocks {
    static const bool value = false;
};
template <> struct chain_any_blocks<decode_blocks> {
    static const bool value = true;
};
/* The same, of blocks of whatever format the operation says. */
template <typename D>
__device__ __forceinline__ void chain_tile(const chain_weights &w, tile_place tile, tile_walk at,
                                           const float4 *x4, float &a, float &b)
{
#define BLOCKS(name, NAME)                                                                                   \
    case FORMAT_##NAME:                                                                                      \
        return chain_tile_of<decode_##name>(w, tile, at, x4, a, b);
    if constexpr (chain_any_blocks<D>::value) {
        switch (w.format) {
            DECODE_BLOCKS(BLOCKS)
        }
    } else {
        chain_tile_of<D>(w, tile, at, x4, a, b);
    }
#undef BLOCKS
}

/* Where a block's rows are computed: x and places for sums in shared memory. */
struct chain_work {
    const float *x;
    chain_sums sums;
    uint32_t which; /* of the two halves of partial sums is next */
    uint32_t rest;  /* the tile that the warp goes on with, of the next operation with tiles */
    uint32_t tag;   /* of this operation's words */
};

/* The block's rows of one linear operation, x being in shared memory. beside(): once for each thread, when it
 * has some time. */
template <typename S, typename D, typename Beside>
__device__ __forceinline__ void chain_rows(const chain_item &item, chain_work &work, chain_ring &ring,
                                           const Beside &beside)
{
    const linear_params &p = item.linear;
    const uint32_t chunks = item.where.chunks;
    const float4 *x4 = reinterpret_cast<const float4 *>(work.x);
    uint32_t first, pairs;
    share_of_block(item.where, first, pairs);
    /* a thread finishes one pair of a batch */
    const uint32_t fit = CHAIN_SUMS / 2 / chunks, batch_pairs = fit < S::THREADS ? fit : S::THREADS;
    uint32_t tile = work.rest;
    tile_walk use = walk_to(tile, chunks);
    bool had_time = false;
    uint32_t batch = 0;
    do {
        float *sums = work.sums.partial + work.which * CHAIN_SUMS;
        const uint32_t end = batch + batch_pairs < pairs ? batch + batch_pairs : pairs;
        /* addends of this thread's rows are on their way while the products are computed */
        const uint32_t mine = batch + threadIdx.x, pair = first + mine * gridDim.x;
        float2 add = make_float2(0, 0);
        if (mine < end) add = linear_addends(p, pair, 0);
        const uint32_t from_tile = batch * chunks, end_tile = end * chunks;
        while (!had_time || tile < end_tile) {
            float sum[2 * TILES_FOLDED] = {0};
            const uint32_t begin = tile;
            /* not unrolled: code that is not at hand costs more than it saves */
#pragma unroll 1
            for (uint32_t i = 0; i < TILES_FOLDED; i++) {
#pragma unroll
                for (uint32_t j = 0; j < 2 * TILES_FOLDED - 2; j++) sum[j] = sum[j + 2];
                float &a = sum[2 * TILES_FOLDED - 2], &b = sum[2 * TILES_FOLDED - 1];
                a = b = 0;
                if (tile >= end_tile) continue;
                bulk_wait(ring.full + 8 * ring.slot, ring.parity);
                const unsigned char *from = ring.at + (size_t)ring.slot * 2 * ring.pitch;
                chain_tile<D>(item.where, {from, from + ring.pitch},
                              {first + use.pair * gridDim.x, use.chunk}, x4, a, b);
                __syncwarp(); /* all lanes have read the slot */
                barrier_arrive(ring.free + 8 * ring.slot);
                ring_next(ring, S::WARPS);
                tile += S::WARPS;
                use.pair += item.where.use_pairs, use.chunk += item.where.use_chunks;
                if (use.chunk >= chunks) use.chunk -= chunks, use.pair++;
            }
            const float total = tiles_fold(sum);
            const uint32_t of = begin + tiles_folded() / 2 * S::WARPS;
            if (tiles_fold_first() && of < end_tile) sums[(of - from_tile) * 2 + tiles_folded() % 2] = total;
            if (!had_time) beside();
            had_time = true;
        }
        S::meet();
        if (mine < end) { /* a batch has at most as many pairs as threads compute */
            const float2 *from = reinterpret_cast<const float2 *>(sums) + (mine - batch) * chunks;
            const float scale = x_scale<S>(p, work.sums.squares);
            float a = 0, b = 0;
#pragma unroll 8
            for (uint32_t c = 0; c < chunks; c++) a += from[c].x, b += from[c].y;
            linear_store(p, pair, 0, __fmaf_rn(a, scale, add.x), __fmaf_rn(b, scale, add.y));
        }
        work.which ^= 1;
    } while ((batch += batch_pairs) < pairs);
    work.rest = tile - pairs * chunks;
}

template <typename S, typename D, typename C>
__global__ void __launch_bounds__(S::LAUNCHED, 1) chain_kernel(const __grid_constant__ chain_params q)
{
#if defined(HELM_CUDA_EMULATED) || __CUDA_ARCH__ >= 900
    typedef typename chain_x_of<D>::decoder X;
    SHARED_DYNAMIC(unsigned char, shared);
    float *region = reinterpret_cast<float *>(shared + (size_t)q.slots * 2 * q.pitch);
    float4 *norm = reinterpret_cast<float4 *>(reinterpret_cast<unsigned char *>(region) + q.region_bytes);
    float *partial = reinterpret_cast<float *>(reinterpret_cast<unsigned char *>(norm) + q.norm_bytes);
    float *squares = partial + 2 * CHAIN_SUMS;
    chain_item *items = reinterpret_cast<chain_item *>(squares + 32);
    chain_weights *asked = reinterpret_cast<chain_weights *>(items + 2);
    chain_token *token = reinterpret_cast<chain_token *>(asked + S::ASKERS);
    uint64_t *barriers = reinterpret_cast<uint64_t *>(token + 1);
    chain_header *header = reinterpret_cast<chain_header *>(q.list);
    const chain_weights *weights = reinterpret_cast<const chain_weights *>(q.list + CHAIN_HEADER_BYTES);
    const unsigned char *list = reinterpret_cast<const unsigned char *>(weights + q.linears);
    const uint32_t warp = threadIdx.x >> 5;
    chain_ring ring;
    const bool asks = warp >= S::WARPS;
    ring_open(ring, shared, barriers, q.slots, q.pitch, asks ? warp - S::WARPS : warp);
    if (threadIdx.x == S::THREADS) ring_barriers_open(ring);
    __syncthreads();
    if (asks) {
        const uint32_t asker = warp - S::WARPS;
        if (asker < q.askers) ask_everything(ring, asked + asker, weights, q.linears, asker, q.askers);
        return;
    }
    const auto fetch =
        [&](uint32_t number) { /* an operation on its way into its place */
                               if (threadIdx.x < sizeof(chain_item) / 16)
                                   copy16_async(shared_address(items + (number & 1)) + 16 * threadIdx.x,
                                                list + (size_t)number * sizeof(chain_item) + 16 * threadIdx.x,
                                                true);
        };
    const auto fetch_norm = [&](const float *from, uint32_t quads) {
#pragma unroll 1
        for (uint32_t f = threadIdx.x; f < quads; f += S::THREADS)
            copy16_async(shared_address(norm) + 16 * f, from + 4 * f, true);
    };
    fetch(0);
    wait_for_previous();
    if (threadIdx.x == 0) {
        const uint64_t a_launch = (uint64_t)gridDim.x * q.meetings;
        const uint64_t now = q.meetings > 0 ? meet_count(&header->counter) : 0;
        token->pages = token->table = nullptr, token->line = 0,
        token->awaited = q.meetings > 0 ? now - now % a_launch : 0;
        token->tag = q.meetings > 0 ? (uint32_t)(now / a_launch) * q.count : 0;
        token->hurried = false, token->words = q.meetings > 0;
        token->position = 0, token->counts = false, token->cut_heads = 0;
        if (header->attends && header->step.counts[0] > 0) {
            const gpuk_step &s = header->step;
            token->counts = true;
            token->position = s.position[0];
            token->line = (size_t)s.row_slot[s.token_row[0]] * s.pages_per_slot;
        }
    }
    copies_commit();
    copies_wait<0>();
    S::meet();
    if (items[0].kind == GPUK_CHAIN_LINEAR && items[0].linear.norm) {
        fetch_norm(items[0].linear.norm, items[0].linear.cols / 4);
        copies_commit();
        copies_wait<0>();
        S::meet();
    }

    const auto hurry = [&](bool now) { /* how many tiles may be on their way */
                                       if (threadIdx.x != 0 || token->hurried == now) return;
                                       barrier_arrive(ring.hurry);
                                       bulk_wait(ring.hurry,
                                                 now ? 0 : 1); /* over already: for tools that miss a wait */
                                       token->hurried = now;
    };
    chain_work work = {region, {partial, squares}, 0, warp, 0};
    for (uint32_t number = 0; number < q.count; number++) {
        const chain_item &item = items[number & 1];
        const auto wait = [&] {
            if (item.flags & CHAIN_MEETS) {
                if (threadIdx.x == 0) meet_wait(&header->counter, token->awaited);
                S::meet();
            }
            if (number + 1 < q.count) fetch(number + 1);
            if (number + 2 < q.count && blockIdx.x == number % gridDim.x &&
                128 * threadIdx.x < sizeof(chain_item))
                ask_l2(list + (size_t)(number + 2) * sizeof(chain_item) + 128 * threadIdx.x);
        };
        work.tag = token->tag + number + 1;
        const auto rows = [&] {
            copies_wait<0>();
            S::meet();
            hurry(false);
            chain_rows<S, D>(item, work, ring, [&] {
                fetch_norm(item.next_norm, item.next_norm_quads);
                const chain_item &next = items[(number + 1) & 1];
                if (number + 1 < q.count && next.kind == GPUK_CHAIN_ATTENTION && token->counts)
                    chain_attention_ask<S>(next, *token, reinterpret_cast<unsigned char *>(region));
                copies_commit();
            });
        };
        if (item.kind == GPUK_CHAIN_LINEAR) {
            wait();
            copies_commit();
            if (!(item.flags & CHAIN_KEEPS_X)) take_x<S, X>(item.linear, norm, region, squares);
            rows();
        } else if (chain_is_delta(item.kind)) {
            if (item.kind == GPUK_CHAIN_CONVOLVE) chain_delta_ask<S>(item.delta);
            wait();
            copies_commit();
            if (item.kind == GPUK_CHAIN_CONVOLVE)
                chain_convolve<S>(item.delta);
            else
                chain_rule<S>(item.delta, region);
        } else if (token->counts) {
            cut_once<S>(item.attention.a, *token);
            const attention_cut &cut = token->cut;
            unsigned char *memory = reinterpret_cast<unsigned char *>(region);
            const attention_seat seat = {0, item.held_at};
            const chain_pass<S> pass = {item, *token, work.tag};
            if (cut.heads == 1)
                chain_attend<S, C, 1>(item.attention, seat, *token, cut, memory, pass, wait);
            else
                chain_attend<S, C, CHAIN_GROUP>(item.attention, seat, *token, cut, memory, pass, wait);
        } else {
            wait();
        }
        if (item.kind == GPUK_CHAIN_ATTENTION || chain_is_delta(item.kind)) {
            fetch_norm(item.next_norm, item.next_norm_quads);
            copies_commit();
        }
        S::meet(); /* the block has stored its results, and is through with the shared memory */
        if (threadIdx.x == 0 && number + 1 < q.count) {
            if (item.flags & CHAIN_ARRIVES) {
                meet_arrive(&header->counter);
                token->awaited += gridDim.x;
            }
            if (item.flags & CHAIN_HURRIES) hurry(true);
        }
        copies_wait<0>();
        S::meet(); /* the next operation's item is there */
    }
#endif
}

typedef void (*chain_function)(chain_params);
/* The kernels of one family, by enum kv_dtype. */
#define CHAIN_KERNELS(S, D)                                                                                  \
    {                                                                                                        \
        chain_kernel<S, D, kv_plain<__nv_bfloat16>>, chain_kernel<S, D, kv_plain<__half>>,                   \
            chain_kernel<S, D, kv_plain<float>>, chain_kernel<S, D, kv_q8_0>                                 \
    }
typedef const chain_function chain_functions[CHAIN_FAMILIES][KV_DTYPE_COUNT];
