/* Grids of formats of 1 to 3 bits as tables of bytes, which CPU kernels and the formats' reference read. See block_grids.h;
 * constant data. */
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
