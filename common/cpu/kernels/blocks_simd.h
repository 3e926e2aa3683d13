/* GGUF's blocks (common/formats/blocks.h): rows decoded to fp32, and the table of a file's kernels. A block's
 * numbers are unpacked to bytes, which stay in L1; each becomes its exact value on its way out.
 *
 * Included after lanes256.h or lanes512.h by files that define
 *   vec block_numbers(const void *at)    LANES numbers of 8 bits as floats
 *   GEMV_FUNCTIONS                       gemv_chunks.h
 *   NAME, FEATURES, STREAMS              of the kernels
 *   ORDER(format), ORDERED_BYTES         the order of x that their gemvs take, or NULL
 *   KERNELS                              their tables, by the formats' numbers in blocks.h: of one token,
 *                                        decoding
 *   FORMATS                              those with kernels of one token */
#pragma once

#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    INLINE vec format_##_part(const int8_t *number, const float *scale, const float *least, size_t i)        \
    {                                                                                                        \
        return vec_fmsub(block_numbers(number + i), vec_set1(scale[i / (GROUP)]),                            \
                         vec_set1(least[i / (GROUP)]));                                                      \
    }                                                                                                        \
    static void format_##_decode(void *values, const void *w, size_t rows, size_t cols)                      \
    {                                                                                                        \
        const uint8_t *block = w;                                                                            \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX], *to = values;                                \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (size_t at = 0; at < rows * cols; at += (VALUES), block += (BYTES)) {                            \
            format_##_numbers(block, number);                                                                \
            format_##_scales(block, scale, least);                                                           \
            UNROLL for (size_t i = 0; i < (VALUES); i += LANES)                                              \
                vec_store(to + at + i, format_##_part(number, scale, least, i));                             \
        }                                                                                                    \
    }
FORMATS(GEMV_FUNCTIONS)
BLOCK_FORMATS(FUNCTIONS)

#define ONE(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [BLOCK_##FORMAT_NAME] = {.name = NAME,                                                                   \
                             .features = FEATURES,                                                           \
                             .format = FORMAT_##FORMAT_NAME,                                                 \
                             .schedule = LINEAR_ONE_TOKEN,                                                   \
                             .gemv = format_##_gemv,                                                         \
                             .few = format_##_few,                                                           \
                             .apart = 4,                                                                     \
                             .streams = STREAMS,                                                             \
                             .order = ORDER(FORMAT_##FORMAT_NAME),                                           \
                             .ordered_bytes = ORDERED_BYTES},
#define DECODE(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                   \
    [BLOCK_##FORMAT_NAME] = {.name = NAME,                                                                   \
                             .features = FEATURES,                                                           \
                             .format = FORMAT_##FORMAT_NAME,                                                 \
                             .schedule = LINEAR_DECODE,                                                      \
                             .decode = format_##_decode,                                                     \
                             .rows = FORMAT_F32},
const struct linear_kernel KERNELS[2][BLOCK_FORMAT_COUNT] = {{FORMATS(ONE)}, {BLOCK_FORMATS(DECODE)}};
