/* One token's products of grids' blocks with activations of 8 bits, with AVX512-VNNI and VBMI: grids512.h has
 * the numbers in the order of int8_gemv512.h. Included after lanes512.h by files that define GRID_GATHERS,
 * and NAME, KERNELS, FORMATS and BEATEN for int8_gemv.h. */
#pragma once

#include "common/cpu/kernels/grids512.h"
#define FEATURES (FEATURES_VNNI | CPU_AVX512_VBMI2)
#include "common/cpu/kernels/int8_gemv512.h"

INLINE void take_rows(__m512i number[][4], struct row_scales *scales, const uint8_t *w, size_t stride,
                      const size_t blocks, const size_t S, const enum tensor_format format)
{
    vec scale[GEMV_STREAMS];
    (void)blocks;
    grid_rows_at(number, scale, w, stride, S, format);
    UNROLL for (size_t s = 0; s < S; s++) scales[s] = (struct row_scales){scale[s], vec_zero()};
}
