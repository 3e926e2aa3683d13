/* Shared by the kernels with activations of 8 bits; int8_ref.c has the definition. */
#pragma once

#include "common/formats/blocks.h"

#define INT8_BLOCK 32        /* activations that have one scale */
#define INT8_LEAST 0x1p-100f /* magnitudes below count as 0 */

/* As BLOCK_FORMATS, with Q8_0. NARROW: numbers of 6 bits and a sign at most. */
#define INT8_WIDE_FORMATS(X)   X(q8_0, Q8_0, 32, 34, 32) BLOCK_WIDE_FORMATS(X)
#define INT8_NARROW_FORMATS(X) BLOCK_NARROW_FORMATS(X) BLOCK_OTHER_FORMATS(X) BLOCK_READ_FORMATS(X)
#define INT8_PLAIN_FORMATS(X)  X(q8_0, Q8_0, 32, 34, 32) BLOCK_PLAIN_FORMATS(X)
#define INT8_FORMATS(X)        INT8_WIDE_FORMATS(X) INT8_NARROW_FORMATS(X)

#define INT8_NUMBER(format, FORMAT_NAME, values, bytes, group) INT8_##FORMAT_NAME,
enum { INT8_FORMATS(INT8_NUMBER) INT8_FORMAT_COUNT };

static inline void q8_0_scales(const uint8_t *block, float *scale, float *least)
{
    scale[0] = block_half(block);
    least[0] = 0;
}
