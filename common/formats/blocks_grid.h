/* Blocks of 256 values as GGUF files have them whose numbers are places in grids (block_grids.h): IQ2_XXS to
 * IQ1_M, of 1.6 to 3.4 bits a value. See blocks.h.
 *
 * Each format has, beside `numbers` and `scales` of blocks.h:
 *   entry(block, i)           the grid's numbers 8 i .. 8 i + 7 of a block, a byte each
 *   signs(block, run)         a bit for each number of a run of 32: of IQ2 and IQ3 it is negative, of IQ1 an
 *                             eighth is taken from it instead of added
 *   scale_numbers(block)      groups' scales as odd whole numbers, a byte each, times which scale_of(block)
 *                             is a group's scale */
#pragma once

#include <stdbool.h>

#include "common/formats/block_grids.h"
#include "common/formats/blocks256.h"

static inline uint16_t block_half_at(const uint8_t *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}
static inline uint32_t block_word_at(const uint8_t *from)
{
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

/* Four signs of eight numbers of which seven are stored each: the eighth makes the count of negative ones
 * even. */
static inline uint32_t block_even_signs(uint32_t sevens)
{
    const uint32_t bytes =
        (sevens & 0x7f) | (sevens & 0x3f80) << 1 | (sevens & 0x1fc000) << 2 | (sevens & 0xfe00000) << 3;
    uint32_t odd = bytes ^ bytes >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return bytes | (odd & 0x01010101u) << 7;
}
/* Twice each byte and one. */
static inline uint64_t block_odd(uint64_t bytes)
{
    return bytes << 1 | UINT64_C(0x0101010101010101);
}
/* The upper half of every `step`th of 32 or 64 bytes, eight of them. */
static inline uint64_t block_upper_halves(const uint8_t *from, int step)
{
    uint64_t all = 0;
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) all |= (uint64_t)(from[i * step] >> 4) << 8 * i;
    return all;
}
static inline block_bytes block_both(uint64_t low, uint64_t high)
{
    return (block_bytes)(block_pair){low, high};
}

/* A byte for each of 16 bits: all ones where the bit is set. */
static inline block_bytes block_mask16(uint32_t bits)
{
    const block_bytes bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const block_bytes all = block_both((bits & 255) * UINT64_C(0x0101010101010101),
                                       (bits >> 8 & 255) * UINT64_C(0x0101010101010101));
    return (block_bytes)((all & bit) != 0);
}

/* ---- 2 bits: grids of eight magnitudes ---- */

static inline uint64_t iq2_xxs_entry(const uint8_t *block, int i)
{
    return block_grid_iq2_xxs[block[2 + i / 4 * 8 + i % 4]];
}
static inline uint32_t iq2_xxs_signs(const uint8_t *block, int run)
{
    return block_even_signs(block_word_at(block + 6 + 8 * run));
}
static inline block_bytes iq2_xxs_scale_numbers(const uint8_t *block)
{
    return block_both(block_odd(block_upper_halves(block + 9, 8)), 0);
}
static inline float iq2_xxs_scale_of(const uint8_t *block)
{
    return block_half(block) * 0.125f;
}

/* Nine bits of a place and seven of signs. */
static inline uint64_t iq2_xs_entry(const uint8_t *block, int i)
{
    return block_grid_iq2_xs[block_half_at(block + 2 + 2 * i) & 511];
}
static inline uint32_t iq2_xs_signs(const uint8_t *block, int run)
{
    const uint8_t *at = block + 2 + 8 * run;
    const uint32_t low = block_word_at(at), high = block_word_at(at + 4);
    return block_even_signs((low >> 9 & 127) | (low >> 25) << 7 | (high >> 9 & 127) << 14 |
                            (high >> 25) << 21);
}
static inline block_bytes iq2_xs_scale_numbers(const uint8_t *block)
{
    return block_both(block_odd(block_spread_fours(block_word_at(block + 66))),
                      block_odd(block_spread_fours(block_word_at(block + 70))));
}
static inline float iq2_xs_scale_of(const uint8_t *block)
{
    return block_half(block) * 0.125f;
}

/* Two further bits of four places in a byte. */
static inline uint64_t iq2_s_entry(const uint8_t *block, int i)
{
    return block_grid_iq2_s[block[2 + i] | (block[66 + i / 4] >> i % 4 * 2 & 3) << 8];
}
static inline uint32_t iq2_s_signs(const uint8_t *block, int run)
{
    return block_word_at(block + 34 + 4 * run);
}
static inline block_bytes iq2_s_scale_numbers(const uint8_t *block)
{
    return iq2_xs_scale_numbers(block + 8);
}
static inline float iq2_s_scale_of(const uint8_t *block)
{
    return block_half(block) * 0.125f;
}

/* ---- 3 bits: grids of four magnitudes ---- */

static inline uint64_t iq3_xxs_entry(const uint8_t *block, int i)
{
    return block_join(block_grid_iq3_xxs[block[2 + 2 * i]], block_grid_iq3_xxs[block[3 + 2 * i]]);
}
static inline uint32_t iq3_xxs_signs(const uint8_t *block, int run)
{
    return block_even_signs(block_word_at(block + 66 + 4 * run));
}
static inline block_bytes iq3_xxs_scale_numbers(const uint8_t *block)
{
    return block_both(block_odd(block_upper_halves(block + 69, 4)), 0);
}
static inline float iq3_xxs_scale_of(const uint8_t *block)
{
    return block_half(block) * 0.25f;
}

/* A further bit of eight places in a byte. */
static inline uint64_t iq3_s_entry(const uint8_t *block, int i)
{
    const int high = block[66 + i / 4] >> i % 4 * 2;
    return block_join(block_grid_iq3_s[block[2 + 2 * i] | (high & 1) << 8],
                      block_grid_iq3_s[block[3 + 2 * i] | (high & 2) << 7]);
}
static inline uint32_t iq3_s_signs(const uint8_t *block, int run)
{
    return block_word_at(block + 74 + 4 * run);
}
static inline block_bytes iq3_s_scale_numbers(const uint8_t *block)
{
    return block_both(block_odd(block_spread_fours(block_word_at(block + 106))), 0);
}
static inline float iq3_s_scale_of(const uint8_t *block)
{
    return block_half(block);
}

/* ---- less than 2 bits: grids of eight numbers -1, 0 and 1 and an eighth ---- */

/* A word of a run has three further bits of its four places, three bits of its scale, and the eighth's
 * sign. */
static inline uint64_t iq1_s_entry(const uint8_t *block, int i)
{
    return block_grid_iq1[block[2 + i] | (block_half_at(block + 34 + i / 4 * 2) >> i % 4 * 3 & 7) << 8];
}
static inline uint32_t iq1_s_signs(const uint8_t *block, int run)
{
    return 0u - (uint32_t)(block[35 + 2 * run] >> 7);
}
static inline block_bytes iq1_s_scale_numbers(const uint8_t *block)
{
    return block_both(block_odd(block_upper_halves(block + 35, 2) & UINT64_C(0x0707070707070707)), 0);
}
static inline float iq1_s_scale_of(const uint8_t *block)
{
    return block_half(block) * 0.125f;
}

/* Half a byte of eight numbers has three further bits of their place and the eighth's sign. */
static inline uint64_t iq1_m_entry(const uint8_t *block, int i)
{
    return block_grid_iq1[block[i] | (block[32 + i / 2] >> i % 2 * 4 & 7) << 8];
}
static inline uint32_t iq1_m_signs(const uint8_t *block, int run)
{
    const uint32_t both = block_half_at(block + 32 + 2 * run), signs = both >> 3 & 0x1111;
    return ((signs & 1) | (signs & 0x10) << 4 | (signs & 0x100) << 8 | (signs & 0x1000) << 12) * 255;
}
/* Twelve of each 16 bits are four scales; the upper four are of the scale of scales. */
static inline uint64_t block_spread_threes(uint64_t twelves)
{
    const uint64_t all = (twelves & 0xfff) | (twelves & UINT64_C(0xfff0000)) << 16;
    return (all & UINT64_C(0x700000007)) | (all << 5 & UINT64_C(0x70000000700)) |
           (all << 10 & UINT64_C(0x7000000070000)) | (all << 15 & UINT64_C(0x700000007000000));
}
static inline block_bytes iq1_m_scale_numbers(const uint8_t *block)
{
    return block_both(block_odd(block_spread_threes(block_word_at(block + 48))),
                      block_odd(block_spread_threes(block_word_at(block + 52))));
}
static inline uint16_t iq1_m_half(const uint8_t *block)
{
    return (uint16_t)(block[49] >> 4 | (block[51] & 0xf0) | (block[53] & 0xf0) << 4 |
                      (block[55] & 0xf0) << 8);
}
static inline float iq1_m_scale_of(const uint8_t *block)
{
    return convert_f16_f32(iq1_m_half(block)) * 0.125f;
}

/* ---- all ---- */

/* ONES: an eighth is added instead of a sign. GROUPS: 8 or 16. */
#define BLOCK_GRID_FUNCTIONS(format, ONES, GROUPS)                                                           \
    static inline void format##_numbers(const uint8_t *block, int8_t *number)                                \
    {                                                                                                        \
        for (int run = 0; run < 8; run++) {                                                                  \
            const uint32_t signs = format##_signs(block, run);                                               \
            _Pragma("GCC unroll 2") for (int at = 0; at < 2; at++)                                           \
            {                                                                                                \
                const int i = 4 * run + 2 * at;                                                              \
                const block_bytes grid = block_both(format##_entry(block, i), format##_entry(block, i + 1)), \
                                  mask = block_mask16(signs >> 16 * at);                                     \
                block_store(number + 8 * i, (ONES) ? grid + (mask | 1) : (grid ^ mask) - mask);              \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static inline void format##_scales(const uint8_t *block, float *scale, float *least)                     \
    {                                                                                                        \
        const block_pair numbers = (block_pair)format##_scale_numbers(block);                                \
        const float by = format##_scale_of(block);                                                           \
        block_scaled8(scale, numbers[0], by);                                                                \
        if ((GROUPS) == 16) block_scaled8(scale + 8, numbers[1], by);                                        \
        memset(least, 0, (GROUPS) * sizeof *least);                                                          \
    }
BLOCK_GRID_FUNCTIONS(iq2_xxs, false, 8)
BLOCK_GRID_FUNCTIONS(iq2_xs, false, 16)
BLOCK_GRID_FUNCTIONS(iq2_s, false, 16)
BLOCK_GRID_FUNCTIONS(iq3_xxs, false, 8)
BLOCK_GRID_FUNCTIONS(iq3_s, false, 8)
BLOCK_GRID_FUNCTIONS(iq1_s, true, 8)
BLOCK_GRID_FUNCTIONS(iq1_m, true, 16)
