/* Decoder of single numbers for AVX2's schedules: 8 neighbouring values of a row as fp32. Included by files
 * compiled with AVX2, FMA and F16C; `format` is a constant wherever these are inlined. */
#ifndef HELM_COMMON_CPU_KERNELS_DECODE_AVX2_H
#define HELM_COMMON_CPU_KERNELS_DECODE_AVX2_H

#include "common/cpu/kernels/lanes256.h"
#include "common/formats/convert.h"
#include "common/formats/tensor_format.h"

/* Of `values` neighbouring ones. */
INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    return values * (format == FORMAT_F32 ? 4 : 2);
}

/* Values i .. i + 7 of a row. */
INLINE __m256 decode_values(const char *row, size_t i, const enum tensor_format format)
{
    if (format == FORMAT_F32) return _mm256_loadu_ps((const float *)(const void *)(row + i * 4));
    __m128i half = _mm_loadu_si128((const void *)(row + i * 2));
    if (format == FORMAT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE float decode_value(const char *row, size_t i, const enum tensor_format format)
{
    return convert_load(row, (enum dtype)format, i);
}

#endif
