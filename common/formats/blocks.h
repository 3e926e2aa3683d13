/* Formats of GGUF files whose blocks are numbers of a few bits with scales: value i of a block is
 *   scale[i / group] * number[i] - least[i / group]
 * where the product is exact in fp32, so that a value is rounded once at most. `numbers` and `scales` of a
 * format take a block apart; that is all that a kernel needs of it. Included by the formats' rows of the
 * registry (blocks.c) and by their kernels, each compiled with its own instruction set. */
#pragma once

#include "common/formats/blocks256.h"
#include "common/formats/blocks32.h"
#include "common/formats/blocks_grid.h"

#define BLOCK_VALUES_MAX 256
#define BLOCK_GROUPS_MAX 16

/* A row: name, name in files, values and bytes of a block, values of a group. First the formats whose numbers
 * are halves of bytes, or index a table by them; WIDE: numbers of 8 bits. */
#define BLOCK_WIDE_FORMATS(X)                                                                                \
    X(iq4_nl, IQ4_NL, 32, 18, 32)                                                                            \
    X(iq4_xs, IQ4_XS, 256, 136, 32)
#define BLOCK_NARROW_FORMATS(X)                                                                              \
    X(q4_0, Q4_0, 32, 18, 32)                                                                                \
    X(q4_1, Q4_1, 32, 20, 32)                                                                                \
    X(q4_k, Q4_K, 256, 144, 32)                                                                              \
    X(mxfp4, MXFP4, 32, 17, 32)
#define BLOCK_NIBBLE_FORMATS(X) BLOCK_NARROW_FORMATS(X) BLOCK_WIDE_FORMATS(X)
#define BLOCK_OTHER_FORMATS(X)                                                                               \
    X(q5_0, Q5_0, 32, 22, 32)                                                                                \
    X(q5_1, Q5_1, 32, 24, 32)                                                                                \
    X(q2_k, Q2_K, 256, 84, 16)                                                                               \
    X(q3_k, Q3_K, 256, 110, 16)                                                                              \
    X(q5_k, Q5_K, 256, 176, 32)                                                                              \
    X(q6_k, Q6_K, 256, 210, 16)
/* Scales that are numbers of 8 bits themselves, times one of the matrix; which quantize.c does not write. */
#define BLOCK_FLOAT_FORMATS(X) X(nvfp4, NVFP4, NVFP4_VALUES, NVFP4_BYTES, NVFP4_GROUP)
/* Those whose numbers are places in grids, which quantize.c does not write. LARGE: in grids of 1,024 or 2,048
 * entries. */
#define BLOCK_GRID_1024_FORMATS(X) X(iq2_s, IQ2_S, 256, 82, 16)
#define BLOCK_GRID_2048_FORMATS(X)                                                                           \
    X(iq1_s, IQ1_S, 256, 50, 32)                                                                             \
    X(iq1_m, IQ1_M, 256, 56, 16)
#define BLOCK_LARGE_GRID_FORMATS(X) BLOCK_GRID_1024_FORMATS(X) BLOCK_GRID_2048_FORMATS(X)
#define BLOCK_GRID_FORMATS(X)                                                                                \
    X(iq2_xxs, IQ2_XXS, 256, 66, 32)                                                                         \
    X(iq2_xs, IQ2_XS, 256, 74, 16)                                                                           \
    BLOCK_GRID_1024_FORMATS(X)                                                                               \
    X(iq3_xxs, IQ3_XXS, 256, 98, 32)                                                                         \
    X(iq3_s, IQ3_S, 256, 110, 32)                                                                            \
    BLOCK_GRID_2048_FORMATS(X)
#define BLOCK_WRITTEN_FORMATS(X) BLOCK_NIBBLE_FORMATS(X) BLOCK_OTHER_FORMATS(X)
#define BLOCK_PLAIN_FORMATS(X)   BLOCK_WRITTEN_FORMATS(X) BLOCK_FLOAT_FORMATS(X)
#define BLOCK_READ_FORMATS(X)    BLOCK_FLOAT_FORMATS(X) BLOCK_GRID_FORMATS(X)
#define BLOCK_FORMATS(X)         BLOCK_WRITTEN_FORMATS(X) BLOCK_READ_FORMATS(X)

#define BLOCK_NUMBER(format, FORMAT_NAME, values, bytes, group) BLOCK_##FORMAT_NAME,
enum { BLOCK_FORMATS(BLOCK_NUMBER) BLOCK_FORMAT_COUNT };
