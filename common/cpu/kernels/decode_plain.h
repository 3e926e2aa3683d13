/* Decoder of single numbers: LANES neighbouring values of a row as fp32. Included after lanes256.h or
 * lanes512.h; `format` is a constant wherever these are inlined. */
#pragma once

#include "common/formats/tensor_format.h"

/* Bytes of `values` neighbouring numbers. */
INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    return values * (format == FORMAT_F32 ? 4 : 2);
}

/* Values i .. i + LANES - 1 of a row, `left` of them that count. */
INLINE vec decode_part(const char *row, size_t i, size_t left, const enum tensor_format format)
{
    return lanes_widen(row, i, left, (enum dtype)format);
}
