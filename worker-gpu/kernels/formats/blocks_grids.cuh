/* Blocks whose numbers are places in grids as kernels read them: common/formats/blocks_grid.h has the same in
 * plain C. The members of a format: blocks_formats.cuh.
 *
 * A grid is a table of selectors of a byte permutation, which takes four numbers out of one or two registers
 * of levels. IQ2_XXS and IQ2_XS have four bits a number, the third of them the sign: the second register is
 * the first one's negative. The other tables have entries of 16 bits, and signs are computed: what they lack
 * is places in L1, not instructions (larger tables, 4 tokens on an H200: IQ2_XXS 1.24 times as fast, IQ2_XS
 * 1.15, but IQ2_S 0.80, IQ3 0.72 to 0.83, IQ1 0.86 to 0.93). */
#pragma once

#include "common/formats/block_grids.h"
#include "worker-gpu/kernels/formats/blocks_formats.cuh"

/* Selectors of an entry's eight numbers of two bits: four in the lower half, four in the upper. */
static constexpr uint32_t grid_selectors(uint32_t entry)
{
    uint32_t selectors = 0;
    for (uint32_t i = 0; i < 8; i++) selectors |= (entry >> 2 * i & 3) << 4 * i;
    return selectors;
}
#define GRID_SELECTORS(entry) grid_selectors(entry),
#define GRID_ENTRY(entry)     entry,
static __device__ const uint32_t grid_iq2_xxs[] = {BLOCK_GRID_IQ2_XXS(GRID_SELECTORS)},
                                 grid_iq2_xs[] = {BLOCK_GRID_IQ2_XS(GRID_SELECTORS)};
static __device__ const uint16_t grid_iq2_s[] = {BLOCK_GRID_IQ2_S(GRID_ENTRY)},
                                 grid_iq3_xxs[] = {BLOCK_GRID_IQ3_XXS(GRID_ENTRY)},
                                 grid_iq3_s[] = {BLOCK_GRID_IQ3_S(GRID_ENTRY)},
                                 grid_iq1[] = {BLOCK_GRID_IQ1(GRID_ENTRY)};
#undef GRID_SELECTORS
#undef GRID_ENTRY

/* Third bits of the selectors of eight numbers by the seven signs that are stored: the eighth makes the count
 * of negative numbers even. */
struct grid_thirds {
    uint32_t of[128];
    constexpr grid_thirds() : of()
    {
        for (uint32_t seven = 0; seven < 128; seven++) {
            uint32_t parity = 0;
            for (uint32_t i = 0; i < 7; i++) {
                of[seven] |= (seven >> i & 1) << (4 * i + 2);
                parity ^= seven >> i & 1;
            }
            of[seven] |= parity << 30;
        }
    }
};
static __device__ const grid_thirds grid_even_thirds;

/* The first or second four of eight numbers: bytes of `levels` and of their negatives, with FLIP's bits
 * turned. */
template <uint32_t FLIP>
__device__ __forceinline__ uint32_t grid_pick(uint32_t levels, uint32_t selectors, uint32_t second)
{
    /* negatives of bytes; level 3 is 0 and unused */
    const uint32_t minus = ((levels ^ 0xffffffu) + 0x010101u) & 0xffffffu;
    return __byte_perm(levels ^ FLIP, minus ^ FLIP, second ? selectors >> 16 : selectors);
}
/* The entry's first or second four numbers of two bits each, as bytes of `levels`. */
__device__ __forceinline__ uint32_t grid_twos(uint32_t entry, uint32_t second, uint32_t levels)
{
    uint32_t four = entry >> 8 * second & 255;
    four = (four | four << 4) & 0x0f0fu;
    return __byte_perm(levels, 0, (four | four << 2) & 0x3333u);
}
/* Four magnitudes, none 0, with signs: bit k of the lowest four is the k-th number's. FLIP's bits turned. */
template <uint32_t FLIP> __device__ __forceinline__ uint32_t grid_signed(uint32_t magnitudes, uint32_t signs)
{
    const uint32_t ones = (signs & 15) * 0x00204081u & 0x01010101u;
    return ((magnitudes ^ ones * 255) + ones) ^ FLIP;
}
/* Four of eight signs of which seven are stored. */
__device__ __forceinline__ uint32_t grid_even_signs(uint32_t seven, uint32_t second)
{
    seven &= 127;
    return second ? seven >> 4 | (__popc(seven) & 1) << 3 : seven;
}
/* Times which a block's scale of scales is a group's scale: odd numbers. */
__device__ __forceinline__ float grid_odd(uint32_t count)
{
    return block_whole(2 * count + 1);
}
static const uint32_t GRID_IQ2 = (uint32_t)BLOCK_LEVELS_IQ2;

/* A format of grids says numbers<FLIP>(w, run, i): numbers 4 i .. 4 i + 3 of the run, FLIP's bits turned. */
#define GRID_NUMBERS                                                                                         \
    template <uint32_t FLIP, typename W>                                                                     \
    static __device__ __forceinline__ uint32_t numbers(const W &w, uint32_t run, uint32_t i)
#define BLOCK_GRID(BYTES_, ALIGN_, ORIGIN_, GROUPS_)                                                         \
    static const uint32_t VALUES = 256, BYTES = BYTES_, ALIGN = ALIGN_, ORIGIN = ORIGIN_, BITS = 8,          \
                          ZERO = 128, GROUPS = GROUPS_;                                                      \
    static const bool LEAST = false;                                                                         \
    BLOCK_SCALES_TWO                                                                                         \
    {                                                                                                        \
        a = scales(wa, run), b = scales(wb, run);                                                            \
    }                                                                                                        \
    BLOCK_FOUR                                                                                               \
    {                                                                                                        \
        return numbers<0x80808080u>(w, run, i);                                                              \
    }                                                                                                        \
    BLOCK_APART                                                                                              \
    BLOCK_WHOLE_OF(numbers<0>(w, run, i))

/* ---- 2 bits ---- */

struct block_iq2_xxs {
    GRID_NUMBERS
    {
        const uint32_t j = i / 2;
        return grid_pick<FLIP>(GRID_IQ2,
                               __ldg(grid_iq2_xxs + (w.word(8 * run, 0) >> 8 * j & 255)) |
                                   __ldg(grid_even_thirds.of + (w.word(8 * run, 1) >> 7 * j & 127)),
                               i % 2);
    }
    BLOCK_SCALES { return block_scale(block_half(w.half(-2)) * 0.125f * grid_odd(w.word(8 * run, 1) >> 28)); }
    BLOCK_GRID(66, 2, 2, 1)
};
/* Two groups' scales of 4 bits in byte `at` of a block. */
template <typename W> __device__ __forceinline__ block_scales grid_two_scales(const W &w, int at)
{
    const float d = block_half(w.half(-2)) * 0.125f;
    const uint32_t both = w.byte(at);
    return {{d * grid_odd(both & 15), d * grid_odd(both >> 4)}, {0, 0}};
}
struct block_iq2_xs {
    GRID_NUMBERS
    {
        const uint32_t place = w.word(8 * run, i / 4) >> i / 2 % 2 * 16 & 0xffffu;
        return grid_pick<FLIP>(GRID_IQ2,
                               __ldg(grid_iq2_xs + (place & 511)) | __ldg(grid_even_thirds.of + (place >> 9)),
                               i % 2);
    }
    BLOCK_SCALES { return grid_two_scales(w, 64 + (int)run); }
    BLOCK_GRID(74, 2, 2, 2)
};
struct block_iq2_s {
    GRID_NUMBERS
    {
        const uint32_t j = i / 2, low = w.word(4 * run, 0) >> 8 * j & 255,
                       high = w.byte(64 + (int)run) >> 2 * j & 3,
                       entry = __ldg(grid_iq2_s + (low | high << 8));
        return grid_signed<FLIP>(grid_twos(entry, i % 2, GRID_IQ2), w.word(32 + 4 * run, 0) >> 4 * i);
    }
    BLOCK_SCALES { return grid_two_scales(w, 72 + (int)run); }
    BLOCK_GRID(82, 2, 2, 2)
};

/* ---- 3 bits ---- */

struct block_iq3_xxs {
    GRID_NUMBERS
    {
        const uint32_t entry = __ldg(grid_iq3_xxs + (w.word(8 * run, i / 4) >> i % 4 * 8 & 255)),
                       levels = (uint32_t)BLOCK_LEVELS_IQ3_XXS, more = (uint32_t)(BLOCK_LEVELS_IQ3_XXS >> 32);
        return grid_signed<FLIP>(__byte_perm(levels, more, entry),
                                 grid_even_signs(w.word(64 + 4 * run, 0) >> 7 * (i / 2), i % 2));
    }
    BLOCK_SCALES
    {
        return block_scale(block_half(w.half(-2)) * 0.25f * grid_odd(w.word(64 + 4 * run, 0) >> 28));
    }
    BLOCK_GRID(98, 2, 2, 1)
};
struct block_iq3_s {
    GRID_NUMBERS
    {
        const uint32_t low = w.word(8 * run, i / 4) >> i % 4 * 8 & 255, high = w.byte(64 + (int)run) >> i & 1,
                       entry = __ldg(grid_iq3_s + (low | high << 8)), levels = (uint32_t)BLOCK_LEVELS_IQ3_S,
                       more = (uint32_t)(BLOCK_LEVELS_IQ3_S >> 32);
        return grid_signed<FLIP>(__byte_perm(levels, more, entry), w.word(72 + 4 * run, 0) >> 4 * i);
    }
    BLOCK_SCALES
    {
        return block_scale(block_half(w.half(-2)) *
                           grid_odd(w.byte(104 + (int)(run / 2)) >> run % 2 * 4 & 15));
    }
    BLOCK_GRID(110, 2, 2, 1)
};

/* ---- less than 2 bits ---- */

/* Eight times a number, and one added, or taken from it. */
template <uint32_t FLIP>
__device__ __forceinline__ uint32_t grid_eighths(uint32_t place, uint32_t second, bool less)
{
    return grid_twos(__ldg(grid_iq1 + place), second, (less ? 0x07fff7u : 0x0901f9u) ^ FLIP);
}
struct block_iq1_s {
    GRID_NUMBERS
    {
        const uint32_t j = i / 2, low = w.word(4 * run, 0) >> 8 * j & 255, rest = w.half(32 + 2 * (int)run);
        return grid_eighths<FLIP>(low | (rest >> 3 * j & 7) << 8, i % 2, rest & 0x8000u);
    }
    BLOCK_SCALES
    {
        return block_scale(block_half(w.half(-2)) * 0.125f * grid_odd(w.half(32 + 2 * (int)run) >> 12 & 7));
    }
    BLOCK_GRID(50, 2, 2, 1)
};
/* The scale of scales is the upper four bits of each 16 of scales. */
struct block_iq1_m {
    GRID_NUMBERS
    {
        const uint32_t j = i / 2, low = w.word(4 * run, 0) >> 8 * j & 255,
                       rest = w.half(32 + 2 * (int)run) >> 4 * j;
        return grid_eighths<FLIP>(low | (rest & 7) << 8, i % 2, rest & 8);
    }
    BLOCK_SCALES
    {
        const uint32_t a = w.word(48, 0), b = w.word(48, 1);
        const float d =
            0.125f * block_half((a >> 12 & 15) | (a >> 24 & 0xf0u) | (b >> 4 & 0xf00u) | (b >> 16 & 0xf000u));
        const uint32_t two = (run < 4 ? a : b) >> run % 4 / 2 * 16 >> run % 2 * 6;
        return {{d * grid_odd(two & 7), d * grid_odd(two >> 3 & 7)}, {0, 0}};
    }
    BLOCK_GRID(56, 4, 0, 2)
};
#undef BLOCK_GRID
#undef GRID_NUMBERS
#undef BLOCK_FOUR
#undef BLOCK_SCALES
#undef BLOCK_APART
#undef BLOCK_WHOLE
#undef BLOCK_WHOLE_OF
#undef BLOCK_SCALES_TWO
