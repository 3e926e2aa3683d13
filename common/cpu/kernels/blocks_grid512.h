/* Numbers that are places in grids, 64 at a time as the bytes of a vector, without the memory's help for each place: a grid's
 * entries of 16 bits (common/formats/block_grids.h) are registers of 32 words, of which two permute as one, so 32 places are looked up
 * at once. IQ1's and IQ2_S's grids are too large for that: their entries are loaded one by one.
 *
 * Places and signs belong to a whole block. Inlined for each 64 of it, they are computed once. Included by
 * blocks_words512.h after blocks_grid_words.h. */
#ifndef HELM_COMMON_CPU_KERNELS_BLOCKS_GRID512_H
#define HELM_COMMON_CPU_KERNELS_BLOCKS_GRID512_H

#include "common/cpu/kernels/blocks_grid_words.h"

#define GRID_ENTRY(entry) entry,
static const uint16_t grid_iq2_xxs[256] = {BLOCK_GRID_IQ2_XXS(GRID_ENTRY)},
                      grid_iq2_xs[512] = {BLOCK_GRID_IQ2_XS(GRID_ENTRY)},
                      grid_iq3_xxs[256] = {BLOCK_GRID_IQ3_XXS(GRID_ENTRY)},
                      grid_iq3_s[512] = {BLOCK_GRID_IQ3_S(GRID_ENTRY)};
#undef GRID_ENTRY

INLINE bool is_looked_up(const enum tensor_format format)
{
    return !has_eighths(format) && format != FORMAT_IQ2_S;
}

/* Entries of 32 places. */
INLINE __m512i grid_look_up(const uint16_t *grid, const int entries, __m512i places)
{
    __m512i found[8];
    UNROLL for (int i = 0; i < entries / 64; i++) found[i] =
        _mm512_permutex2var_epi16(_mm512_loadu_si512(grid + 64 * i), places,
                                  _mm512_loadu_si512(grid + 64 * i + 32));
    UNROLL for (int bit = 64; bit < entries; bit *= 2)
    {
        const __mmask32 upper = _mm512_test_epi16_mask(places, _mm512_set1_epi16((short)bit));
        UNROLL for (int i = 0; i < entries / bit / 2; i++) found[i] =
            _mm512_mask_blend_epi16(upper, found[2 * i], found[2 * i + 1]);
    }
    return found[0];
}

/* 32 bytes as places. */
INLINE __m512i grid_bytes(const uint8_t *at)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)at));
}
/* Eight words of signs and scales: of each 28 bits are signs. */
INLINE __m256i grid_aux(const uint8_t *w, const enum tensor_format format)
{
    if (format == FORMAT_IQ3_XXS) return _mm256_loadu_si256((const void *)(w + 66));
    return _mm512_cvtepi64_epi32(_mm512_srli_epi64(_mm512_loadu_si512(w + 2), 32));
}

/* Entries of a block's numbers: of IQ2 its 32, of IQ3 half of its 64. */
INLINE __m512i grid_entries(const uint8_t *w, const int half, const enum tensor_format format)
{
    switch (format) {
    case FORMAT_IQ2_XXS:
        return grid_look_up(grid_iq2_xxs, 256,
                            _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(_mm512_loadu_si512(w + 2))));
    case FORMAT_IQ2_XS:
        return grid_look_up(grid_iq2_xs, 512,
                            _mm512_and_si512(_mm512_loadu_si512(w + 2), _mm512_set1_epi16(511)));
    case FORMAT_IQ3_XXS:
        return grid_look_up(grid_iq3_xxs, 256, grid_bytes(w + 2 + 32 * half));
    case FORMAT_IQ3_S: {
        const __m512i low = grid_bytes(w + 2 + 32 * half);
        return grid_look_up(grid_iq3_s, 512,
                            _mm512_or_si512(low,
                                            _mm512_maskz_set1_epi16(block_word_at(w + 66 + 4 * half), 256)));
    }
    default:
        __builtin_unreachable();
    }
}

/* Signs of 64 numbers. */
INLINE __mmask64 grid_mask(const uint8_t *w, const size_t k, const enum tensor_format format)
{
    uint64_t signs;
    if (format == FORMAT_IQ3_S) {
        memcpy(&signs, w + 74 + 8 * k, sizeof signs);
        return signs;
    }
    __m256i seven;
    if (format == FORMAT_IQ2_XS) {
        seven = _mm512_cvtepi16_epi8(_mm512_srli_epi16(_mm512_loadu_si512(w + 2), 9));
    } else {
        const __m256i aux = grid_aux(w, format), first = _mm256_set1_epi32(0x7f);
        seven = _mm256_and_si256(aux, first);
        UNROLL for (int b = 1; b < 4; b++) seven =
            _mm256_or_si256(seven,
                            _mm256_and_si256(_mm256_slli_epi32(aux, b), _mm256_slli_epi32(first, 8 * b)));
    }
    __m256i odd = _mm256_xor_si256(seven, _mm256_srli_epi32(seven, 4));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi32(odd, 2));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi32(odd, 1));
    const __m256i eight =
        _mm256_or_si256(seven, _mm256_slli_epi32(_mm256_and_si256(odd, _mm256_set1_epi8(1)), 7));
    const __m128i quarter = k < 2 ? _mm256_castsi256_si128(eight) : _mm256_extracti128_si256(eight, 1);
    return (__mmask64)(k % 2 ? _mm_extract_epi64(quarter, 1) : _mm_cvtsi128_si64(quarter));
}

/* Magnitudes of 64 numbers. */
INLINE __m512i grid_magnitudes(const uint8_t *w, const size_t k, const enum tensor_format format)
{
    if (format == FORMAT_IQ3_XXS || format == FORMAT_IQ3_S) {
        const __m512i all = grid_entries(w, (int)k / 2, format);
        const __m512i entry = _mm512_cvtepu16_epi32(k % 2 ? _mm512_extracti64x4_epi64(all, 1)
                                                          : _mm512_castsi512_si256(all)),
                      twos = _mm512_and_si512(_mm512_or_si512(entry, _mm512_slli_epi32(entry, 8)),
                                              _mm512_set1_epi32(0x00ff00ff)),
                      index = _mm512_and_si512(_mm512_or_si512(twos, _mm512_slli_epi32(twos, 4)),
                                               _mm512_set1_epi8(15));
        return _mm512_shuffle_epi8(_mm512_set1_epi64((long long)(format == FORMAT_IQ3_S
                                                                     ? BLOCK_LEVELS_IQ3_S
                                                                     : BLOCK_LEVELS_IQ3_XXS)),
                                   index);
    }
    const __m512i lanes =
        _mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5,
                                              5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7));
    const __m512i entry =
        _mm512_srlv_epi16(_mm512_permutexvar_epi16(_mm512_add_epi16(lanes, _mm512_set1_epi16((short)(8 * k))),
                                                   grid_entries(w, 0, format)),
                          _mm512_set1_epi64(0x000c000800040000));
    const __m512i index =
        _mm512_or_si512(_mm512_and_si512(entry, _mm512_set1_epi16(3)),
                        _mm512_and_si512(_mm512_slli_epi16(entry, 6), _mm512_set1_epi16(0x300)));
    return _mm512_shuffle_epi8(_mm512_set1_epi64((long long)BLOCK_LEVELS_IQ2), index);
}

#endif
