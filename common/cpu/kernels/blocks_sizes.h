/* Sizes of GGUF's blocks, Q8_0 among them, by format, which is a constant wherever these are inlined.
 * Included after lanes256.h or lanes512.h by kernels that take blocks apart. */
#pragma once

#include <stdbool.h>

#include "common/cpu/kernels/int8.h"
#include "common/formats/tensor_format.h"

/* A function of the format, RETURNED of its row in INT8_FORMATS, or of FP8's. */
#define BLOCK_CASE(FORMAT_NAME, RETURNED)                                                                    \
    case FORMAT_##FORMAT_NAME:                                                                               \
        return RETURNED;
#define BLOCK_SWITCH(format, CASE)                                                                           \
    switch (format) {                                                                                        \
        INT8_FORMATS(CASE)                                                                                   \
    default:                                                                                                 \
        __builtin_unreachable();                                                                             \
    }
#define SIZED_SWITCH(format, CASE)                                                                           \
    switch (format) {                                                                                        \
        INT8_FORMATS(CASE)                                                                                   \
        CASE(fp8, FP8, 128, 132, 128)                                                                        \
    default:                                                                                                 \
        __builtin_unreachable();                                                                             \
    }
INLINE size_t block_values(const enum tensor_format format){
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP) BLOCK_CASE(FORMAT_NAME, VALUES)
    SIZED_SWITCH(format, CASE)
#undef CASE
} INLINE size_t decode_bytes(size_t values, const enum tensor_format format){
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP) BLOCK_CASE(FORMAT_NAME, values / (VALUES) * (BYTES))
    SIZED_SWITCH(format, CASE)
#undef CASE
} INLINE size_t block_group(const enum tensor_format format){
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP) BLOCK_CASE(FORMAT_NAME, GROUP)
    BLOCK_SWITCH(format, CASE)
#undef CASE
}

/* Whether numbers are places in grids (common/formats/blocks_grid.h). */
INLINE bool is_grid(const enum tensor_format format)
{
    return format >= FORMAT_IQ2_XXS && format <= FORMAT_IQ1_M;
}

/* Whether it has smallest values, which are not zero. */
INLINE bool has_least(const enum tensor_format format)
{
    return format == FORMAT_Q4_1 || format == FORMAT_Q5_1 || format == FORMAT_Q2_K || format == FORMAT_Q4_K ||
           format == FORMAT_Q5_K;
}

/* Kernels take numbers without sign out of blocks: this much larger than those that scales are for. */
INLINE int number_less(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q3_K:
        return 4;
    case FORMAT_Q4_0:
        return 8;
    case FORMAT_IQ1_S:
    case FORMAT_IQ1_M:
        return 9;
    case FORMAT_MXFP4:
    case FORMAT_NVFP4:
        return 12;
    case FORMAT_IQ3_S:
        return 15;
    case FORMAT_Q5_0:
        return 16;
    case FORMAT_Q6_K:
        return 32;
    case FORMAT_IQ2_XXS:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
        return 43;
    case FORMAT_IQ3_XXS:
        return 62;
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS:
        return 127;
    case FORMAT_Q8_0:
        return 128;
    default:
        return 0;
    }
}
