/* Decoder of single numbers for AVX-512's schedules: 16 neighbouring values of a row as fp32. Included by files
 * compiled with AVX-512 and F16C; `format` is a constant wherever these are inlined. */
#ifndef HELM_COMMON_CPU_KERNELS_DECODE_AVX512_H
#define HELM_COMMON_CPU_KERNELS_DECODE_AVX512_H

#include "common/cpu/kernels/lanes512.h"
#include "common/formats/tensor_format.h"

/* Of `values` neighbouring ones. */
INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    return values * (format == FORMAT_F32 ? 4 : 2);
}

/* Values i .. i + 15 of a row, and those of them that the mask has. */
INLINE __m512 decode_values(const char *row, size_t i, const enum tensor_format format)
{
    if (format == FORMAT_F32) return _mm512_loadu_ps(row + i * 4);
    __m256i half = _mm256_loadu_si256((const void *)(row + i * 2));
    if (format == FORMAT_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __m512 decode_tail(const char *row, size_t i, __mmask16 mask, const enum tensor_format format)
{
    if (format == FORMAT_F32) return _mm512_maskz_loadu_ps(mask, row + i * 4);
    __m256i half = _mm256_maskz_loadu_epi16(mask, row + i * 2);
    if (format == FORMAT_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#endif
