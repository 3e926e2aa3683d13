/* The decoder of packed bf16 (common/formats/packed.h): a tile as a warp's lanes see it. See decode.cuh.
 *
 * A lane loads three words of codes and four times 8 signs and mantissas, and builds pairs of values by a
 * shift and two masks. Escapes are a few in a hundred: each lane counts those of each of its runs, and sums
 * over the warp say where in the tile's list they stand. gpuk_expand stores a tile of device memory; what
 * gemv_groups does with tiles in shared memory is in linear/packed_step.cuh. */
#pragma once

#include "worker-gpu/kernels/device.cuh"

extern "C" {
#include "common/formats/packed.h"
}

/* ---- groups and tiles ------------------------------------------------------------------------------ */

static __host__ __device__ __forceinline__ uint32_t up_to_align(uint32_t bytes)
{
    return (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
static __device__ __forceinline__ uint32_t tiles_of(uint32_t values)
{
    return (values + PACKED_TILE - 1) / PACKED_TILE;
}
/* Bytes of a coded group before its records. */
static __device__ __forceinline__ uint32_t head_of(uint32_t values)
{
    return up_to_align((uint32_t)sizeof(struct packed_header) + (tiles_of(values) + 1) * 4);
}
/* Whether a group of `units` is stored raw: it is coded only if that is smaller, so its size says which it is
 * before its header is here. */
static __device__ __forceinline__ bool is_raw(uint32_t units, uint32_t values)
{
    return units == (PACKED_ALIGN + up_to_align(values * 2)) / PACKED_ALIGN;
}
/* A group's base where the exponents of a pair of values stand. */
static __device__ __forceinline__ uint32_t base_of_pair(uint32_t base)
{
    return base * (1u << 7 | 1u << 23);
}

/* A lane's share of a record: u[i] of common/formats/packed.h, and the bytes of each of its four runs. Bits
 * above the codes of a half do not matter. */
struct tile_words {
    uint32_t codes[4];
    uint2 rest[4];
};
/* SHARED: the record lies in shared memory, else in device memory that no kernel writes. */
template <bool SHARED>
static __device__ __forceinline__ tile_words load_words(const unsigned char *record, uint32_t lane)
{
    tile_words w;
    const uint32_t *code = reinterpret_cast<const uint32_t *>(record) + lane;
    const unsigned char *rest = record + PACKED_CODE_BYTES + lane * 8;
#pragma unroll
    for (uint32_t i = 0; i < 3; i++) w.codes[i] = SHARED ? code[i * 32] : __ldg(code + i * 32);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint2 *from = reinterpret_cast<const uint2 *>(rest + k * 256);
        w.rest[k] = SHARED ? *from : __ldg(from);
    }
    w.codes[3] =
        (w.codes[0] >> 12 & 0x000f000fu) | (w.codes[1] >> 8 & 0x00f000f0u) | (w.codes[2] >> 4 & 0x0f000f00u);
    return w;
}

/* Factors that bring codes of run k to where exponents stand. A product with a number unknown to the compiler
 * is one instruction with the sum after it, on another unit of a multiprocessor than masks. */
static __constant__ uint32_t CODE_SHIFT[3] = {1u << 7, 1u << 4, 1u << 1};

/* Pair i of run k. */
static __device__ __forceinline__ uint32_t words_pair(const tile_words &w, uint32_t base2, uint32_t k,
                                                      uint32_t i)
{
    const uint32_t two = __byte_perm(i < 2 ? w.rest[k].x : w.rest[k].y, 0, i & 1 ? 0x3322 : 0x1100),
                   exponents = k == 3 ? (w.codes[i] >> 2 & 0x03800380u) + base2
                                      : (w.codes[i] & 0x00070007u << 3 * k) * CODE_SHIFT[k] + base2;
    return exponents | (two & 0x807f807fu);
}

/* ---- escapes ------------------------------------------------------------------------------------------
 *
 * Which of a lane's 32 values are escapes, and where in the tile's list they stand. Lists are in order of
 * values, and a lane has four runs of 8 in them: one scan over the warp counts all four, a byte each. */

/* Bit 8 * k + 2 * i + half for each escape: the lane's values in order. codes: u[4] of
 * common/formats/packed.h; what is above the codes of a half does not matter. */
static __device__ __forceinline__ uint32_t escape_mask(const uint32_t codes[4])
{
    uint32_t mask = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t e = codes[i] & codes[i] >> 1 & codes[i] >> 2; /* bits 16 * half + 3 * k, and others */
        e = (e & 0x0249u) | (e >> 15 & 0x0492u);               /* 3 * k + half */
        e = (e | e << 10) & 0x001b001bu;                       /* of k = 2, 3: 16 + 3 * (k - 2) + half */
        mask |= ((e | e << 5) & 0x03030303u) << 2 * i;
    }
    return mask;
}

/* An escape's number among its lane's, increased by this, is its place in the tile's list; half a word for
 * each run k. */
struct escape_ranks {
    uint32_t low, high;
};
/* By the whole warp. */
static __device__ __forceinline__ escape_ranks rank_escapes(uint32_t mask, uint32_t lane)
{
    uint32_t count = mask - (mask >> 1 & 0x55555555u);
    count = (count & 0x33333333u) + (count >> 2 & 0x33333333u);
    count = (count + (count >> 4)) & 0x0f0f0f0fu; /* of each run, at most 8 */
    uint32_t sum = count;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t before = __shfl_sync(0xffffffffu, sum, (int)((lane - distance) & 31));
        if (lane >= distance) sum += before;
    }
    /* of lanes before: at most 248, so that bytes are right even where a whole run of escapes overflowed */
    const uint32_t before = sum - count, last_before = __shfl_sync(0xffffffffu, before, 31),
                   last_count = __shfl_sync(0xffffffffu, count, 31);
    const uint32_t own = count * 0x01010100u; /* of the lane's runs before */
    const uint32_t all_low = __byte_perm(last_before, 0, 0x4140) + __byte_perm(last_count, 0, 0x4140),
                   all_high = __byte_perm(last_before, 0, 0x4342) + __byte_perm(last_count, 0, 0x4342),
                   two = (all_low & 0xffffu) + (all_low >> 16);
    escape_ranks ranks;
    ranks.low = __byte_perm(before, 0, 0x4140) - __byte_perm(own, 0, 0x4140) + (all_low << 16);
    ranks.high =
        __byte_perm(before, 0, 0x4342) - __byte_perm(own, 0, 0x4342) + two * 0x00010001u + (all_high << 16);
    return ranks;
}

/* ---- the same for lists of at most 255 ------------------------------------------------------------- */

/* Bit 16 * (i / 2) + 4 * k + 2 * (i % 2) + half for each escape: in order of values within each run. */
static __device__ __forceinline__ uint32_t escape_mask_runs(const uint32_t codes[4])
{
    uint32_t two[4]; /* bits 3 * k + half, and others */
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t e = codes[i] & codes[i] >> 1 & codes[i] >> 2; /* bits 16 * half + 3 * k, and others */
        two[i] = (e & 0x0249u) | (e >> 15 & ~0x0249u);
    }
    uint32_t four[2]; /* bits 4 * k + 2 * (i % 2) + half, and others above 15 */
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        uint32_t e = __byte_perm(two[2 * j], two[2 * j + 1], 0x5410); /* i % 2 in halves */
        e = (e & 0x00ff00ffu) | (e << 2 & 0xff00ff00u);               /* k = 2, 3 two up */
        e = (e & 0x03030303u) | (e << 1 & 0xfcfcfcfcu);               /* k = 1, 3 one up */
        four[j] = (e & 0x3333u) | (e >> 14 & ~0x3333u);
    }
    return __byte_perm(four[0], four[1], 0x5410);
}
/* For each run, a byte each: where in the tile's list the lane's last escape of it stands, and one more. By
 * the whole warp. */
static __device__ __forceinline__ uint32_t escape_ends(uint32_t mask)
{
    uint32_t count = mask - (mask >> 1 & 0x55555555u);
    count = (count & 0x33333333u) + (count >> 2 & 0x33333333u);
    count += count >> 16; /* nibbles: of each run, at most 8 */
    count = __byte_perm(count, 0, 0x4140);
    count = (count | count << 4) & 0x0f0f0f0fu;
    uint32_t sum = count;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) sum = add_of_lane_before(sum, distance);
    return sum + __shfl_sync(0xffffffffu, sum, 31) * 0x01010100u; /* of runs before */
}

/* ---- places -------------------------------------------------------------------------------------- */

/* Place in the list of the lane's escape number `n`, which is `bit` of the mask. */
static __device__ __forceinline__ uint32_t escape_rank(const escape_ranks &ranks, uint32_t bit, uint32_t n)
{
    return n + ((bit < 16 ? ranks.low : ranks.high) >> (bit & 8) * 2 & 0xffffu);
}
/* Its place in the tile. */
static __device__ __forceinline__ uint32_t escape_place(uint32_t bit, uint32_t lane)
{
    return bit / 8 * 256 + lane * 8 + bit % 8;
}

/* ---- expansion -------------------------------------------------------------------------------------- */

/* The first `here` of a tile's values as they are. */
static __device__ __forceinline__ void copy_raw(const uint16_t *from, uint32_t here, uint32_t lane,
                                                uint16_t *to)
{
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t place = k * 256 + lane * 8;
        if (place + 8 <= here)
            *reinterpret_cast<uint4 *>(to + place) = __ldg(reinterpret_cast<const uint4 *>(from + place));
        else
            for (uint32_t i = place; i < here; i++) to[i] = __ldg(from + i);
    }
}

/* Stores a run of a lane: whole, or the first values of it. */
static __device__ __forceinline__ void store_run(uint16_t *to, uint32_t place, uint32_t here,
                                                 const uint32_t pair[4])
{
    if (place + 8 <= here) {
        *reinterpret_cast<uint4 *>(to + place) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (place + i < here) to[place + i] = (uint16_t)(pair[i / 2] >> (i & 1) * 16);
}

struct decode_bf16_packed {
    static const bool EXPANDS = true;
    static const uint32_t GROUP_ROWS = PACKED_ROWS, TILE_VALUES = PACKED_TILE, EXPAND_BLOCKS = 6;
    static bool takes(const struct gpuk_expand_part &part)
    {
        return packed_takes(DTYPE_BF16, part.rows, part.cols);
    }
    static bool aligned(const struct gpuk_expand_part &part)
    {
        return part.offset && (uintptr_t)part.weight % 16 == 0 &&
               (uintptr_t)part.offset % sizeof(uint32_t) == 0;
    }
    /* Each value is stored as if nothing were an escape, then escapes over it: by the same thread, so after
     * it. */
    static __device__ __forceinline__ void expand(const struct gpuk_expand_part &part, uint32_t group,
                                                  uint32_t tile, uint32_t lane)
    {
        const uint32_t left = part.rows - group * PACKED_ROWS;
        const uint32_t values = (left < PACKED_ROWS ? left : PACKED_ROWS) * part.cols;
        if (tile * PACKED_TILE >= values) return; /* of a last group with fewer rows */
        const uint32_t here = values - tile * PACKED_TILE;
        const uint32_t at = __ldg(part.offset + group), units = __ldg(part.offset + group + 1) - at;
        const unsigned char *packed = static_cast<const unsigned char *>(part.weight) +
                                      (size_t)(at - __ldg(part.offset)) * PACKED_ALIGN;
        uint16_t *out = static_cast<uint16_t *>(part.out) + (size_t)group * PACKED_ROWS * part.cols +
                        (size_t)tile * PACKED_TILE;

        if (is_raw(units, values)) {
            copy_raw(reinterpret_cast<const uint16_t *>(packed + PACKED_ALIGN) + (size_t)tile * PACKED_TILE,
                     here, lane, out);
            return;
        }
        const uint32_t head = head_of(values);
        const unsigned char *record = packed + head + (size_t)tile * PACKED_TILE_BYTES,
                            *rest = record + PACKED_CODE_BYTES;
        const tile_words words = load_words<false>(record, lane);
        const uint32_t base2 = base_of_pair(__ldg(packed + offsetof(struct packed_header, base)));
        const uint32_t start =
            __ldg(reinterpret_cast<const uint32_t *>(packed + sizeof(struct packed_header)) + tile);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t pair[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) pair[i] = words_pair(words, base2, k, i);
            store_run(out, k * 256 + lane * 8, here, pair);
        }

        const uint32_t mask = escape_mask(words.codes);
        const escape_ranks ranks = rank_escapes(mask, lane);
        const unsigned char *escape = packed + head + (size_t)tiles_of(values) * PACKED_TILE_BYTES + start;
        __syncwarp(); /* stores of other types stay after those above, for the compiler too */
        uint32_t n = 0;
        for (uint32_t left = mask; left; left &= left - 1, n++) {
            const uint32_t bit = (uint32_t)__ffs((int)left) - 1, place = escape_place(bit, lane);
            const uint32_t byte = __ldg(rest + place), exponent = __ldg(escape + escape_rank(ranks, bit, n));
            out[place] = (uint16_t)((byte & 0x80) << 8 | exponent << 7 | (byte & 0x7f));
        }
    }
};
