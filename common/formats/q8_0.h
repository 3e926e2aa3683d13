/* Blocks of Q8_0, as GGUF files have them: 32 neighbouring values of a row as whole numbers of 8 bits and one
 * scale. Included by the format's row of the registry (q8_0.c) and by its kernels. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/formats/convert.h"

#define Q8_0_VALUES 32
#define Q8_0_BYTES  34 /* the scale as fp16, then the numbers; blocks are aligned to no more than 2 */

/* Value i of a row: scale times number, which fp32 holds without rounding. */
static inline float q8_0_value(const void *row, size_t i)
{
    const unsigned char *block = (const unsigned char *)row + i / Q8_0_VALUES * Q8_0_BYTES;
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    return convert_f16_f32(scale) * (float)(int8_t)block[sizeof scale + i % Q8_0_VALUES];
}
