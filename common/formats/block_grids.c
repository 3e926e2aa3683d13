/* Grids of formats of 1 to 3 bits as tables of bytes, which CPU kernels and the formats' reference read. See
 * block_grids.h; constant data. */
#include "common/formats/block_grids.h"

#define LEVELS4(levels, entry, bits, first)                                                                  \
    (BLOCK_LEVEL(levels, entry, bits, first) | BLOCK_LEVEL(levels, entry, bits, first + 1) |                 \
     BLOCK_LEVEL(levels, entry, bits, first + 2) | BLOCK_LEVEL(levels, entry, bits, first + 3))
#define OF_IQ2(entry)     LEVELS4(BLOCK_LEVELS_IQ2, entry, 2, 0) | LEVELS4(BLOCK_LEVELS_IQ2, entry, 2, 4),
#define OF_IQ1(entry)     LEVELS4(BLOCK_LEVELS_IQ1, entry, 2, 0) | LEVELS4(BLOCK_LEVELS_IQ1, entry, 2, 4),
#define OF_IQ3_XXS(entry) LEVELS4(BLOCK_LEVELS_IQ3_XXS, entry, 4, 0),
#define OF_IQ3_S(entry)   LEVELS4(BLOCK_LEVELS_IQ3_S, entry, 4, 0),

const uint64_t block_grid_iq2_xxs[256] = {BLOCK_GRID_IQ2_XXS(OF_IQ2)};
const uint64_t block_grid_iq2_xs[512] = {BLOCK_GRID_IQ2_XS(OF_IQ2)};
const uint64_t block_grid_iq2_s[1024] = {BLOCK_GRID_IQ2_S(OF_IQ2)};
const uint64_t block_grid_iq1[2048] = {BLOCK_GRID_IQ1(OF_IQ1)};
const uint32_t block_grid_iq3_xxs[256] = {BLOCK_GRID_IQ3_XXS(OF_IQ3_XXS)};
const uint32_t block_grid_iq3_s[512] = {BLOCK_GRID_IQ3_S(OF_IQ3_S)};

#define AS_IT_IS(entry) entry,
const uint16_t block_entries_iq2_s[1024] = {BLOCK_GRID_IQ2_S(AS_IT_IS)};
const uint16_t block_entries_iq1[2048] = {BLOCK_GRID_IQ1(AS_IT_IS)};

#define FIRST_HALF(entry)  (entry) & 255,
#define SECOND_HALF(entry) (entry) >> 8,
const uint8_t block_halves_iq2_xxs[2][256] = {{BLOCK_GRID_IQ2_XXS(FIRST_HALF)},
                                              {BLOCK_GRID_IQ2_XXS(SECOND_HALF)}};
const uint8_t block_halves_iq2_xs[2][512] = {{BLOCK_GRID_IQ2_XS(FIRST_HALF)},
                                             {BLOCK_GRID_IQ2_XS(SECOND_HALF)}};

#define SPREAD(entry)                                                                                        \
    (uint32_t)(((entry)&15) | ((entry) >> 4 & 15) << 8 | ((entry) >> 8 & 15) << 16 | ((entry) >> 12) << 24),
const uint32_t block_spread_iq2_s[1024] = {BLOCK_GRID_IQ2_S(SPREAD)};
const uint32_t block_spread_iq1[2048] = {BLOCK_GRID_IQ1(SPREAD)};

#define TWO(entry, bit)   (((entry) >> (bit)&7) | ((entry) >> ((bit) + 4) & 7) << 3)
#define FIRST_TWO(entry)  TWO(entry, 0),
#define SECOND_TWO(entry) TWO(entry, 8),
const uint8_t block_twos_iq3_xxs[2][256] = {{BLOCK_GRID_IQ3_XXS(FIRST_TWO)},
                                            {BLOCK_GRID_IQ3_XXS(SECOND_TWO)}};
const uint8_t block_twos_iq3_s[2][512] = {{BLOCK_GRID_IQ3_S(FIRST_TWO)}, {BLOCK_GRID_IQ3_S(SECOND_TWO)}};

#define EVEN(i) ((i) | (0x6996 >> (((i) ^ (i) >> 4) & 15) & 1) << 7)
#define EVEN8(i)                                                                                             \
    EVEN(i), EVEN((i) + 1), EVEN((i) + 2), EVEN((i) + 3), EVEN((i) + 4), EVEN((i) + 5), EVEN((i) + 6),       \
        EVEN((i) + 7)
#define EVEN32(i) EVEN8(i), EVEN8((i) + 8), EVEN8((i) + 16), EVEN8((i) + 24)
const uint8_t block_even[128] = {EVEN32(0), EVEN32(32), EVEN32(64), EVEN32(96)};
