/* Decode attention as an operation of a chain: one token, norm, rotation and append included.
 *
 * Included by chain/kernel.cuh, and by chain/attention.cu, which has a chain's bits for several tokens. The
 * work is cut into units (some query heads of one kv head, a piece of the context) that go round the blocks;
 * a unit has the whole block. Up to some length each query head is a unit of its own, in as many pieces as
 * there are blocks for: a lane's work on several heads takes longer than reading keys again from the L2. The
 * block that has the last piece of such a head takes the others' as words and merges them. A longer context
 * is merged by the last block to be ready, which takes two more trips through the L2. Keys and values of
 * earlier positions are there before the block waits for q, k and v: a unit's first positions in shared
 * memory, fetched while these are being computed, more in the L2. Those of the token itself never go through
 * the cache, since the block that appends them may be another. */
#pragma once

#include "worker-gpu/kernels/chain/chain.cuh"

static const uint32_t CHAIN_GROUP = 4;       /* query heads of a unit at most */
static const uint32_t CHAIN_ONE_PIECE = 512; /* visible positions up to which nothing is cut that the last
                                                block merges */
static const uint32_t CHAIN_PIECES = GPUK_CHAIN_PIECES, CHAIN_PIECE_LEAST = 16; /* pieces of a head that go as
                                                                   words; positions of one */
static const uint32_t CHAIN_ONE_HEAD = 2048; /* and up to which each query head reads for itself */
static const uint32_t CHAIN_PIECE_MIN = 128;
static const uint32_t CHAIN_ASK = 512; /* positions of a unit asked into the L2 ahead */

__device__ __forceinline__ attention_cut cut_of(const gpuk_attention &a, uint32_t position, bool words,
                                                uint32_t blocks)
{
    attention_cut c;
    c.end = position + 1;
    c.first = a.window && c.end > a.window ? c.end - a.window : 0;
    const uint32_t visible = c.end - c.first, group = a.heads / a.kv.layout.kv_heads;
    c.chunks = visible <= CHAIN_ONE_HEAD ? group : div_up(group, CHAIN_GROUP);
    c.heads = div_up(group, c.chunks); /* 3 and 2 of 5, not 4 and 1 */
    const uint32_t share = a.kv.layout.kv_heads * c.chunks;
    c.words = words && c.heads == 1;
    const uint32_t least = c.words ? CHAIN_PIECE_LEAST : CHAIN_PIECE_MIN;
    const uint32_t most = c.words ? CHAIN_PIECES : GPUK_SPLITS_MAX;
    uint32_t pieces = visible <= CHAIN_ONE_PIECE && !c.words ? 1 : blocks / share;
    if (pieces > div_up(visible, least)) pieces = div_up(visible, least);
    if (pieces > most) pieces = most;
    if (pieces < 1) pieces = 1;
    c.per_piece = div_up(visible, pieces);
    c.pieces = div_up(visible, c.per_piece);
    c.units = share * c.pieces;
    return c;
}

__device__ __forceinline__ attention_unit unit_of(const attention_cut &cut, uint32_t number)
{
    attention_unit u;
    u.share = number / cut.pieces, u.piece = number - u.share * cut.pieces;
    u.kv_head = u.share / cut.chunks, u.chunk = u.share - u.kv_head * cut.chunks;
    u.owner = u.piece == cut.pieces - 1;
    u.begin = cut.first + u.piece * cut.per_piece;
    u.end = u.owner ? cut.end - 1 : u.begin + cut.per_piece;
    return u;
}

/* How the lanes of a warp share positions, as in attention/decode.cu: 8 dimensions a lane. */
struct lane_place {
    uint32_t lanes, at_once, place,
        first_dim; /* of a position; positions of a warp; which; the lane's first */
};
__device__ __forceinline__ lane_place lane_place_of(uint32_t head_dim)
{
    const uint32_t lane = threadIdx.x & 31;
    lane_place p = {lanes_of(head_dim), 0, 0, 0};
    p.at_once = 32 / p.lanes, p.place = lane / p.lanes, p.first_dim = (lane & (p.lanes - 1)) * 8;
    return p;
}

/* The cut, and the block's first unit and its first pages, once for neighbours that are cut alike and read
 * the same page table. */
template <typename S> __device__ __forceinline__ void cut_once(const gpuk_attention &a, chain_token &token)
{
    const kv_layout &l = a.kv.layout;
    if (token.cut_heads == a.heads && token.cut_kv_heads == l.kv_heads && token.cut_window == a.window &&
        token.table == a.step.page_table)
        return;
    S::meet();
    const attention_cut cut = cut_of(a, token.position, token.words, gridDim.x);
    const attention_unit unit = unit_of(cut, blockIdx.x);
    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), *pages = a.step.page_table + token.line;
    for (uint32_t i = threadIdx.x; i < HELD_POSITIONS_MAX; i += S::THREADS)
        token.held_pages[i] = blockIdx.x < cut.units && unit.begin + i < unit.end
                                  ? pages[(unit.begin + i) >> page_shift]
                                  : GPUK_PAGE_ABSENT;
    if (threadIdx.x == 0) {
        token.pages = pages, token.table = a.step.page_table;
        token.page = token.counts ? pages[token.position >> page_shift] : GPUK_PAGE_ABSENT;
        token.cut = cut, token.unit = unit;
        token.cut_heads = a.heads, token.cut_kv_heads = l.kv_heads, token.cut_window = a.window;
    }
    S::meet();
}

/* Bytes of the keys and values a block holds. */
template <typename S> static constexpr uint32_t held_bytes()
{
    return HELD * 2 * S::THREADS * 16;
}
/* While the operation in front is running: what the block's first unit reads first comes into shared memory,
 * and some of the rest as far as the L2. A thread reads later what it has fetched itself. */
template <typename S>
__device__ __forceinline__ void chain_attention_ask(const chain_item &item, chain_token &token,
                                                    unsigned char *region)
{
    const gpuk_attention &a = item.attention.a;
    cut_once<S>(a, token);
    const attention_cut &cut = token.cut;
    if (blockIdx.x >= cut.units) return;
    const kv_layout &l = a.kv.layout;
    if (threadIdx.x < 2 * HEAD_STEPS) { /* the head norms' weights, 128 bytes a thread */
        const uint32_t d = 32 * (threadIdx.x & (HEAD_STEPS - 1));
        const float *norm = threadIdx.x < HEAD_STEPS ? a.q_norm : a.k_norm;
        if (norm && d < l.head_dim) ask_l2(norm + d);
    }
    const attention_unit &unit = token.unit;
    const uint32_t page_shift = 31 - __clz((int)l.page_tokens),
                   row_bytes = kv_number_bytes(l.dtype, l.head_dim);
    uint32_t begin = unit.begin;
    if (item.held_at && cut.heads == 1) {
        const lane_place lane = lane_place_of(l.head_dim);
        const uint32_t warp = threadIdx.x >> 5, step = S::WARPS * lane.at_once;
        const uint32_t to_values = l.kv_heads * (uint32_t)kv_head_bytes(&l);
        const uint32_t to = shared_address(region + item.held_at) + threadIdx.x * 16;
#pragma unroll
        for (uint32_t u = 0; u < HELD; u++) {
            const uint32_t i = u * step + warp * lane.at_once + lane.place;
            const uint32_t page = token.held_pages[i];
            const bool reads = page != GPUK_PAGE_ABSENT && lane.first_dim < l.head_dim;
            const unsigned char *row = reads ? kv_rows(a.kv, page, 0, unit.kv_head) +
                                                   ((unit.begin + i) & (l.page_tokens - 1)) * row_bytes +
                                                   lane.first_dim * 2
                                             : nullptr;
            copy16_async(to + (2 * u) * S::THREADS * 16, row, reads);
            copy16_async(to + (2 * u + 1) * S::THREADS * 16, row + to_values, reads);
        }
        begin += HELD * step;
    }
    const uint32_t lines = div_up(row_bytes, 128); /* of a key, or a value */
    const uint32_t end = begin + CHAIN_ASK < unit.end ? begin + CHAIN_ASK : unit.end;
    for (uint32_t i = threadIdx.x; begin < end && i < (end - begin) * 2 * lines; i += S::THREADS) {
        const uint32_t row = i / (2 * lines), line = i - row * 2 * lines, at = begin + row;
        const uint32_t page = token.pages[at >> page_shift], is_value = line >= lines;
        if (page == GPUK_PAGE_ABSENT) continue;
        const unsigned char *rows = kv_rows(a.kv, page, is_value, unit.kv_head);
        const uint32_t token = at & (l.page_tokens - 1);
        ask_l2(rows + token * row_bytes + (line - is_value * lines) * 128);
        if (!kv_dtype_is_plain(l.dtype) && line == is_value * lines && (token % 8 == 0 || row == 0))
            ask_l2(rows + kv_scales_at(&l) + token * kv_scale_bytes(l.dtype, l.head_dim));
    }
}

/* Floats of shared memory of a unit of g heads. */
static inline uint32_t chain_attention_floats(uint32_t warps, uint32_t g, uint32_t head_dim)
{
    const uint32_t floats = (warps + 1) * g * head_dim + 2 * head_dim + 2 * warps * g;
    const uint32_t pieces = (warps + 3) * head_dim + 2 * warps + (CHAIN_PIECES - 1) * (head_dim + 2);
    const uint32_t most = floats > pieces ? floats : pieces;
    return most > merge_floats(g) ? most : merge_floats(g);
}

/* Adds one more piece to the last piece's head. */
__device__ __forceinline__ void add_piece(head_sum &b, float most, float sum, float value)
{
    const float now = fmaxf(b.most, most), mine = rescale(b.most, now), theirs = rescale(most, now);
    b.sum = blend(b.sum, mine, sum, theirs);
    b.value = blend(b.value, mine, value, theirs);
    b.most = now;
}

/* One head's piece of several: its words to the block of the last piece, which merges them all in their
 * order. os, ms, ss as in finish_block; others: floats of shared memory for what comes. (Few values at a
 * time: what lives in registers here is spilled in the loops over long contexts.) */
template <typename S>
__device__ __forceinline__ void finish_words(const chain_item &item, uint32_t head, uint32_t piece,
                                             uint32_t pieces, const float *os, const float *ms,
                                             const float *ss, float *others, uint32_t tag)
{
    const decode_params &p = item.attention;
    const uint32_t head_dim = p.a.kv.layout.head_dim, stride = head_dim + 2;
    uint64_t *words = item.piece_words + (size_t)head * CHAIN_PIECES * stride;
    const bool last = piece + 1 == pieces;
    if (last) {
        const uint32_t count = piece * stride;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < count; i += 2 * S::THREADS) {
            const uint32_t k = i + S::THREADS < count ? i + S::THREADS : i;
            uint64_t a = word_get(words + i), b = word_get(words + k);
            while ((uint32_t)(a >> 32) != tag || (uint32_t)(b >> 32) != tag) {
                word_late();
                a = word_get(words + i), b = word_get(words + k);
            }
            others[i] = __uint_as_float((uint32_t)a), others[k] = __uint_as_float((uint32_t)b);
        }
        S::meet();
    }
#pragma unroll 1
    for (uint32_t d = threadIdx.x; d < head_dim; d += S::THREADS) {
        head_sum b = head_sum_of<1, S::WARPS>(0, d, head_dim, os, ms, ss);
        if (!last) {
            uint64_t *to = words + piece * stride;
            word_put(to + d, b.value, tag);
            if (d == 0) word_put(to + head_dim, b.most, tag), word_put(to + head_dim + 1, b.sum, tag);
            continue;
        }
#pragma unroll 1
        for (uint32_t i = 0; i < piece; i++) {
            const float *from = others + i * stride;
            add_piece(b, from[head_dim], from[head_dim + 1], from[d]);
        }
        put_out(p, head, d, b.value, b.most, b.sum);
    }
}

/* The same, as chain_attend asks for it. */
template <typename S> struct chain_pass {
    static const bool SEVERAL = false;
    const chain_item &item;
    const chain_token &token;
    uint32_t tag; /* of this operation */
    __device__ __forceinline__ void operator()(uint32_t head, uint32_t, const attention_unit &unit,
                                               const float *os, const float *ms, const float *ss,
                                               float *others) const
    {
        finish_words<S>(item, head, unit.piece, token.cut.pieces, os, ms, ss, others, tag);
    }
};

/* A lane's 8 dimensions of U keys and values on their way. */
template <typename C, int U> struct cache_rows {
    typename C::piece k[U], v[U];
    bool seen[U];
};

/* Which of a step's tokens (a chain: the only one, 0), and where in the region keys and values are held (0:
 * nowhere). */
struct attention_seat {
    uint32_t t, held_at;
};

/* The block's units of attention of a token. pass(head, heads, unit, os, ms, ss, others): a piece of several
 * of each of the unit's heads, os, ms and ss as in finish_block; for units of one head, or where it takes
 * several (Pass::SEVERAL). */
template <typename S, typename C, int G, typename Pass, typename Wait>
__device__ __forceinline__ void chain_attend(const decode_params &p, const attention_seat &seat,
                                             const chain_token &token, const attention_cut &cut,
                                             unsigned char *region, const Pass &pass, const Wait &wait)
{
    const int U = 2; /* positions of a lane in flight together, twice */
    const gpuk_attention &a = p.a;
    const kv_layout &l = a.kv.layout;
    const uint32_t head_dim = l.head_dim, warp = threadIdx.x >> 5;
    float *memory = reinterpret_cast<float *>(region), *qs = memory, *os = qs + G * head_dim;
    float *current = os + S::WARPS * G * head_dim, *ms = current + 2 * head_dim, *ss = ms + S::WARPS * G;
    const lane_place lane = lane_place_of(head_dim);
    const uint32_t lanes = lane.lanes, at_once = lane.at_once, place = lane.place, first_dim = lane.first_dim;
    const uint32_t step = S::WARPS * at_once, group = a.heads / l.kv_heads;
    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), page_mask = l.page_tokens - 1;
    const kv_steps<C> steps(l);
    const auto query = [&](int g, float *to) {
        const float4 *from = reinterpret_cast<const float4 *>(qs + g * head_dim + first_dim);
        const float4 zero = make_float4(0, 0, 0, 0);
        put4(to, first_dim < head_dim ? from[0] : zero);
        put4(to + 4, first_dim < head_dim ? from[1] : zero);
    };

    bool waited = false;
    for (uint32_t number = blockIdx.x; number < cut.units; number += gridDim.x) {
        const attention_unit unit = number == blockIdx.x ? token.unit : unit_of(cut, number);
        const uint32_t kv_head = unit.kv_head, end = unit.end;
        const uint32_t in_group = unit.chunk * cut.heads;
        const uint32_t head0 = kv_head * group + in_group;
        const uint32_t heads = group - in_group < cut.heads ? group - in_group : cut.heads;
        /* the lane's part of this kv head's keys, in page 0 */
        const uint64_t page_bytes = l.layers * 2 * steps.to_values;
        const unsigned char *pool_near = kv_rows(a.kv, 0, 0, kv_head) + first_dim * C::NUMBER_BYTES;
        const unsigned char *pool_host =
            kv_rows(a.kv, GPUK_PAGE_HOST, 0, kv_head) + first_dim * C::NUMBER_BYTES;
        const uint64_t to_scales =
            steps.scales_at - first_dim * C::NUMBER_BYTES + first_dim / KV_Q8_0_VALUES * 2;
        cache_rows<C, U> now;
        const auto load = [&](cache_rows<C, U> &to, uint32_t base) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                const uint32_t at = base + u * step + warp * at_once + place;
                const uint32_t page = at < end ? token.pages[at >> page_shift] : GPUK_PAGE_ABSENT;
                to.seen[u] = page != GPUK_PAGE_ABSENT;
                const bool reads = to.seen[u] && first_dim < head_dim;
                const unsigned char *rows = page & GPUK_PAGE_HOST
                                                ? pool_host + (page & ~GPUK_PAGE_HOST) * a.kv.host_stride
                                                : pool_near + page * page_bytes;
                const unsigned char *numbers = rows + (at & page_mask) * steps.number;
                const unsigned char *scales = rows + to_scales + (at & page_mask) * steps.scale;
                to.k[u] = reads ? C::load(numbers, scales, 0) : C::none();
                to.v[u] = reads ? C::load(numbers + steps.to_values, scales + steps.to_values, 0) : C::none();
            }
        };
        const bool held = G == 1 && seat.held_at && number == blockIdx.x;
        const uint32_t begin = held ? unit.begin + HELD * step : unit.begin;
        if (begin + warp * at_once < end) load(now, begin);
        if (waited)
            S::meet(); /* the unit before is through with the shared memory */
        else
            wait();
        waited = true;
        take_query<C, HEAD_STEPS, S>(p, seat.t, kv_head, head0, heads, token.position, token.pages,
                                     unit.owner, qs, os, current, unit.chunk == 0, &token.page);
        S::meet();

        attention_sums<G> sums; /* of usual heads: GPUK_CHAIN_HEAD_DIM_MAX */
        sums_open(sums);
        if constexpr (G == 1 && C::HOLDS) {
            const uint4 *from = reinterpret_cast<const uint4 *>(region + seat.held_at) + threadIdx.x;
#pragma unroll 1
            for (uint32_t u = 0; held && u < HELD && unit.begin + u * step + warp * at_once < end; u += U) {
                attention_cells<U> c;
#pragma unroll
                for (uint32_t j = 0; j < U; j++) {
                    c.seen[j] = token.held_pages[(u + j) * step + warp * at_once + place] != GPUK_PAGE_ABSENT;
                    C::unpack(from[2 * (u + j) * S::THREADS], c.k[j]);
                    C::unpack(from[(2 * (u + j) + 1) * S::THREADS], c.v[j]);
                    c.k_scale[j][0] = c.v_scale[j][0] = 1;
                }
                sums_add(sums, heads, lanes, c, query);
            }
        }
        for (uint32_t base = begin; base + warp * at_once < end; base += U * step) {
            attention_cells<U> c;
#pragma unroll
            for (int u = 0; u < U; u++) {
                c.seen[u] = now.seen[u];
                c.k_scale[u][0] = C::unpack(now.k[u], c.k[u]);
                c.v_scale[u][0] = C::unpack(now.v[u], c.v[u]);
            }
            if (base + U * step < end) load(now, base + U * step);
            sums_add(sums, heads, lanes, c, query);
        }
        if (unit.owner && warp == 0) {
            attention_cells<1> c;
            c.seen[0] = place == 0 && token.page != GPUK_PAGE_ABSENT;
            c.k_scale[0][0] = c.v_scale[0][0] = 1;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                c.k[0][j] = first_dim < head_dim ? current[first_dim + j] : 0.0f;
                c.v[0][j] = first_dim < head_dim ? current[head_dim + first_dim + j] : 0.0f;
            }
            sums_add(sums, heads, lanes, c, query);
        }
        sums_fold(sums, heads, lanes, first_dim, 1, head_dim, os, ms, ss);
        S::meet();
        if ((G == 1 || Pass::SEVERAL) && cut.words && cut.pieces > 1)
            pass(head0, heads, unit, os, ms, ss, ss + S::WARPS * G);
        else
            finish_block<G, S::WARPS, S>(p, seat.t, head0, heads, unit.piece, cut.pieces,
                                         p.counters + seat.t * a.heads + unit.share, os, ms, ss, memory);
    }
    if (!waited) wait();
}
