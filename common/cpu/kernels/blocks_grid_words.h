/* Scales of blocks of grids (common/formats/blocks_grid.h) by format, which is a constant wherever these are
 * inlined. Included by grids256.h and grids512.h. */
#pragma once

#include "common/cpu/kernels/blocks_sizes.h"

#define GRID_SWITCH(format, TYPE, OF)                                                                        \
    switch (format) {                                                                                        \
    case FORMAT_IQ2_XXS:                                                                                     \
        return (TYPE)iq2_xxs_##OF;                                                                           \
    case FORMAT_IQ2_XS:                                                                                      \
        return (TYPE)iq2_xs_##OF;                                                                            \
    case FORMAT_IQ2_S:                                                                                       \
        return (TYPE)iq2_s_##OF;                                                                             \
    case FORMAT_IQ3_XXS:                                                                                     \
        return (TYPE)iq3_xxs_##OF;                                                                           \
    case FORMAT_IQ3_S:                                                                                       \
        return (TYPE)iq3_s_##OF;                                                                             \
    case FORMAT_IQ1_S:                                                                                       \
        return (TYPE)iq1_s_##OF;                                                                             \
    case FORMAT_IQ1_M:                                                                                       \
        return (TYPE)iq1_m_##OF;                                                                             \
    default:                                                                                                 \
        __builtin_unreachable();                                                                             \
    }
INLINE __m128i grid_scale_numbers(const uint8_t *w, const enum tensor_format format){
    GRID_SWITCH(format, __m128i, scale_numbers(w))}
/* The scale of scales: a half times a number of the format. */
INLINE uint16_t grid_half(const uint8_t *w, const enum tensor_format format)
{
    return format == FORMAT_IQ1_M ? iq1_m_half(w) : block_half_at(w);
}
INLINE float grid_by(const enum tensor_format format)
{
    return format == FORMAT_IQ3_S ? 1 : format == FORMAT_IQ3_XXS ? 0.25f : 0.125f;
}
INLINE
float grid_scale(const uint8_t *w, const enum tensor_format format){GRID_SWITCH(format, float, scale_of(w))}
/* Whether an eighth is added to numbers or taken from them instead of a sign. */
INLINE bool has_eighths(const enum tensor_format format)
{
    return format == FORMAT_IQ1_S || format == FORMAT_IQ1_M;
}
