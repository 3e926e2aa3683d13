/* GGUF's blocks for one token with AVX2: 32 neighbouring weights at a time as the 32 bytes of a vector, whole
 * numbers without sign in their low bits. Included by blocks_avx2.c and int8_gemv_avx2.c after lanes256.h.
 * `format` is a constant wherever these are inlined. */
#pragma once

#include "common/cpu/kernels/grids256.h"

/* Whether numbers take whole bytes. */
#define IS_TABLE(format)                                                                                     \
    ((format) == FORMAT_IQ4_NL || (format) == FORMAT_IQ4_XS || (format) == FORMAT_MXFP4 ||                   \
     (format) == FORMAT_NVFP4)

/* The bits of a byte that are its number, once others are masked. */
INLINE int number_bits(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q2_K:
        return 0x03;
    case FORMAT_Q3_K:
        return 0x07;
    case FORMAT_Q5_0:
    case FORMAT_Q5_1:
    case FORMAT_Q5_K:
        return 0x1f;
    case FORMAT_Q6_K:
        return 0x3f;
    default:
        return IS_TABLE(format) ? 0xff : is_grid(format) ? 0x7f : 0x0f;
    }
}

INLINE __m256i load32(const uint8_t *at)
{
    return _mm256_loadu_si256((const void *)at);
}
/* 16 bytes' low halves, then their high ones; other bits remain above them. */
INLINE __m256i halves16(const uint8_t *at)
{
    return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)at)),
                             _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
}
INLINE __m256i masked(__m256i bytes, int bits)
{
    return _mm256_and_si256(bytes, _mm256_set1_epi8((char)bits));
}
/* Bits `from` on of each byte at bit `to`: those that stay within it. */
INLINE __m256i moved(__m256i bytes, const int from, const int to)
{
    return from < to ? _mm256_slli_epi32(bytes, to - from) : _mm256_srli_epi32(bytes, from - to);
}
INLINE __m256i joined(__m256i low, int low_bits, __m256i high, int high_bits)
{
    return _mm256_or_si256(masked(low, low_bits), masked(high, high_bits));
}
INLINE __m256i chosen(__m256i index, const int8_t code[16], int less)
{
    const __m128i values = _mm_add_epi8(_mm_loadu_si128((const void *)code), _mm_set1_epi8((char)less));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), masked(index, 15));
}

/* The bytes of run `r` of a block; `grid`: what was opened of one of grids. */
INLINE __m256i words_of(const uint8_t *w, const struct grid_block *grid, const int r,
                        const enum tensor_format format)
{
    static const int8_t mxfp4[16] = {MXFP4_CODES};
    const int less = number_less(format), fourth = r % 4;
    if (is_grid(format)) return grid_words(grid, w, r, format);
    switch (format) {
    case FORMAT_Q4_K:
        return moved(load32(w + 16 + r / 2 * 32), r % 2 * 4, 0);
    case FORMAT_Q5_K:
        return joined(moved(load32(w + 48 + r / 2 * 32), r % 2 * 4, 0), 0x0f, moved(load32(w + 16), r, 4),
                      0x10);
    case FORMAT_Q6_K:
        return joined(moved(load32(w + r / 4 * 64 + r % 2 * 32), fourth / 2 * 4, 0), 0x0f,
                      moved(load32(w + 128 + r / 4 * 32), 2 * fourth, 4), 0x30);
    case FORMAT_Q3_K:
        return joined(moved(load32(w + 32 + r / 4 * 32), 2 * fourth, 0), 0x03, moved(load32(w), r, 2), 0x04);
    case FORMAT_Q2_K:
        return moved(load32(w + 16 + r / 4 * 32), 2 * fourth, 0);
    case FORMAT_Q4_0:
        return halves16(w + 2);
    case FORMAT_Q4_1:
        return halves16(w + 4);
    case FORMAT_IQ4_NL:
        return chosen(halves16(w + 2), iq4_table, less);
    case FORMAT_IQ4_XS:
        return chosen(halves16(w + 8 + 16 * r), iq4_table, less);
    case FORMAT_MXFP4:
        return chosen(halves16(w + 1), mxfp4, less);
    case FORMAT_NVFP4:
        return chosen(halves16(w + NVFP4_NUMBERS + 16 * r), mxfp4, less);
    case FORMAT_Q5_0:
    case FORMAT_Q5_1: {
        const size_t at = format == FORMAT_Q5_0 ? 2 : 4;
        const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201),
                      byte =
                          _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        int high;
        memcpy(&high, w + at, sizeof high);
        const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(high), byte),
                      fifth = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
        return joined(halves16(w + at + 4), 0x0f, fifth, 0x10);
    }
    default:
        __builtin_unreachable();
    }
}
