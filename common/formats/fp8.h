/* Blocks of FP8: 128 neighbouring values of a row as numbers of E4M3 and one scale, of checkpoints whose
 * scales are of blocks of rows and columns or of whole matrices (common/model/scaled.h). Included by the
 * format's row of the registry (fp8.c) and by its kernels. */
#pragma once

#include "common/formats/convert.h"

#define FP8_VALUES 128
#define FP8_BYTES  132 /* the scale as fp32, then the numbers */

/* A sign, four bits of exponent and three of mantissa: as fp16 the same bits are 256 times smaller. All are
 * taken for numbers, 0x7f and 0xff, which are none, too: a checkpoint with such is refused. */
static inline float fp8_number(uint8_t bits)
{
    return convert_f16_f32((uint16_t)((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * 256;
}
static inline float fp8_scale(const void *block)
{
    float scale;
    memcpy(&scale, block, sizeof scale);
    return scale;
}
/* Value i of a row: number times scale, rounded once. */
static inline float fp8_value(const void *row, size_t i)
{
    const unsigned char *block = (const unsigned char *)row + i / FP8_VALUES * FP8_BYTES;
    return fp8_number(block[sizeof(float) + i % FP8_VALUES]) * fp8_scale(block);
}
