/* Weights of blocks for products of whole numbers with AVX512: 64 at a time as the 64 bytes of a vector,
 * without sign. Included after lanes512.h. `format` is a constant wherever these are inlined; `k` is which 64
 * of a chunk of 256. */
#pragma once

INLINE vec block_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

#include "common/cpu/kernels/blocks_words512.h"

/* 64 weights as whole numbers without sign; `second` as words_of says. Q4_K's second 32 are 16 times as large
 * where `uneven`. */
INLINE __m512i bytes_of(const uint8_t *w, const uint8_t *second, const size_t k, const bool uneven,
                        const enum tensor_format format)
{
    static const int8_t iq4[16] = {IQ4_CODES}, mxfp4[16] = {MXFP4_CODES};
    if (format == FORMAT_Q8_0) {
        const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(w + 2)));
        return _mm512_xor_si512(_mm512_inserti64x4(low, _mm256_loadu_si256((const void *)(second + 2)), 1),
                                _mm512_set1_epi8((char)0x80));
    }
    const __m512i words = words_of(w, second, k, format);
    if (format == FORMAT_Q4_K)
        return uneven ? _mm512_and_si512(words, EIGHTS(0x0f0f0f0f, (int)0xf0f0f0f0))
                      : _mm512_and_si512(_mm512_srlv_epi32(words, EIGHTS(0, 4)), _mm512_set1_epi8(15));
    if (!IS_TABLE(format)) return _mm512_and_si512(words, _mm512_set1_epi8((char)weight_bits(format)));
    const __m512i index = _mm512_and_si512(_mm512_srlv_epi32(words, FOURS(0, 4, 0, 4)), _mm512_set1_epi8(15));
    if (format == FORMAT_Q4_0 || format == FORMAT_Q4_1) return index;
    const __m128i code =
        _mm_add_epi8(_mm_loadu_si128(
                         (const void *)(format == FORMAT_MXFP4 || format == FORMAT_NVFP4 ? mxfp4 : iq4)),
                     _mm_set1_epi8((char)number_less(format)));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(code), index);
}
