/* Which of a lane's 32 values of a packed tile (common/packed.h) are escapes, and where in the tile's list
 * they stand.
 *
 * Included by expand.cu and gemv_packed.cu. Lists are in order of values, and a lane has four runs of 8 in
 * them: one scan over the warp counts all four, a byte each. */
#ifndef HELM_WORKER_GPU_KERNELS_PACKED_ESCAPES_CUH
#define HELM_WORKER_GPU_KERNELS_PACKED_ESCAPES_CUH

#include "worker-gpu/kernels/device.cuh"

/* Bit 8 * k + 2 * i + half for each escape: the lane's values in order. codes: u[4] of common/packed.h; what
 * is above the codes of a half does not matter. */
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

/* What the number of an escape among its lane's must be increased by to be its place in the tile's list, for
 * each run k a half of a word. */
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

#endif
