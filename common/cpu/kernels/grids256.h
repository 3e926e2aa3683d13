/* Places in grids (common/formats/blocks_grid.h) with AVX2: 32 neighbouring numbers at a time. Signs of a
 * whole block, and places that are more than a byte, are made of its bytes at once; then entries are loaded
 * one by one.
 *
 * Included by blocks_words256.h. `format` is a constant wherever these are inlined. */
#pragma once

#include "common/cpu/kernels/blocks_grid_words.h"

/* A block's runs of 32 numbers share this. */
struct grid_block {
    __m256i signs; /* a bit for each number, in order; of IQ1, a byte of ones or zeros for each eight */
    _Alignas(32) uint16_t place[64];
};

INLINE __m256i grid_load32(const uint8_t *at)
{
    return _mm256_loadu_si256((const void *)at);
}
INLINE __m256i grid_bytes16(const uint8_t *at)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)at));
}

/* Signs of eight of which seven are in the low bits of each byte. */
INLINE __m256i grid_even(__m256i bytes)
{
    const __m256i four = _mm256_set1_epi8(15), seven = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)),
                  odd = _mm256_broadcastsi128_si256(
                      _mm_set_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i low = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, four)),
                  high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), four));
    return _mm256_or_si256(seven, _mm256_xor_si256(low, high));
}
/* Four times seven bits of 32 to bytes; others remain above them. */
INLINE __m256i grid_sevens(__m256i words)
{
    __m256i bytes = _mm256_and_si256(words, _mm256_set1_epi32(0x7f));
    UNROLL for (int b = 1; b < 4; b++) bytes =
        _mm256_or_si256(bytes,
                        _mm256_and_si256(_mm256_slli_epi32(words, b), _mm256_set1_epi32(0x7f << 8 * b)));
    return bytes;
}

INLINE __m256i grid_signs(const uint8_t *w, const enum tensor_format format)
{
    switch (format) {
    case FORMAT_IQ2_XXS: {
        const __m256 low = _mm256_castsi256_ps(grid_load32(w + 2)),
                     high = _mm256_castsi256_ps(grid_load32(w + 34));
        const __m256i words = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd));
        return grid_even(grid_sevens(_mm256_permute4x64_epi64(words, 0xd8)));
    }
    case FORMAT_IQ2_XS: {
        const __m256i bytes = _mm256_packus_epi16(_mm256_srli_epi16(grid_load32(w + 2), 9),
                                                  _mm256_srli_epi16(grid_load32(w + 34), 9));
        return grid_even(_mm256_permute4x64_epi64(bytes, 0xd8));
    }
    case FORMAT_IQ3_XXS:
        return grid_even(grid_sevens(grid_load32(w + 66)));
    case FORMAT_IQ2_S:
        return grid_load32(w + 34);
    case FORMAT_IQ3_S:
        return grid_load32(w + 74);
    case FORMAT_IQ1_S:
        return _mm256_srai_epi32(_mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)(w + 34))), 31);
    case FORMAT_IQ1_M: {
        const __m128i all = _mm_loadu_si128((const void *)(w + 32)), high = _mm_srli_epi16(all, 4);
        const __m256i eight = _mm256_set1_epi8(8),
                      both = _mm256_set_m128i(_mm_unpackhi_epi8(all, high), _mm_unpacklo_epi8(all, high));
        return _mm256_cmpeq_epi8(_mm256_and_si256(both, eight), eight);
    }
    default:
        __builtin_unreachable();
    }
}

/* Places that are more than a byte: sixteen of them, the `h`th. Bytes or words with further bits are repeated
 * in words and multiplied, so that those of `bits` are a place's. */
INLINE bool grid_has_words(const enum tensor_format format)
{
    return format != FORMAT_IQ2_XXS && format != FORMAT_IQ3_XXS;
}
INLINE __m256i grid_places(const uint8_t *w, const int h, const enum tensor_format format)
{
#define BYTES_TWICE(a, b) _mm256_set_m128i(BYTES_EIGHT(b), BYTES_EIGHT(a))
#define BYTES_EIGHT(a)    _mm_set_epi16(W_FOUR((a) + 1), W_FOUR(a))
#define W_FOUR(a)         W(a), W(a), W(a), W(a)
#define W(byte)           (short)(0x8000 | (byte))
#define BYTES_FOUR(a)                                                                                        \
    _mm_set_epi16(W((a) + 3), W((a) + 3), W((a) + 2), W((a) + 2), W((a) + 1), W((a) + 1), W(a), W(a))
#define WORDS_EIGHT(a) _mm_set_epi16(V((a) + 1), V((a) + 1), V((a) + 1), V((a) + 1), V(a), V(a), V(a), V(a))
#define V(word)        (short)((2 * (word) + 1) << 8 | 2 * (word))
    const int at = format == FORMAT_IQ1_M ? 0 : 2;
    __m256i high;
    int bits;
    switch (format) {
    case FORMAT_IQ2_XS:
        return _mm256_and_si256(grid_load32(w + 2 + 32 * h), _mm256_set1_epi16(511));
    case FORMAT_IQ3_S: {
        const __m256i bit = _mm256_set_epi16((short)0x8000, 0x4000, 0x2000, 0x1000, 0x800, 0x400, 0x200,
                                             0x100, 0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1);
        high = _mm256_and_si256(_mm256_set1_epi16((short)block_half_at(w + 66 + 2 * h)), bit);
        high = _mm256_cmpeq_epi16(high, bit);
        bits = 0x100;
        break;
    }
    case FORMAT_IQ2_S: {
        const __m256i all = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const void *)(w + 66)));
        high = _mm256_mullo_epi16(_mm256_shuffle_epi8(all, BYTES_TWICE(4 * h, 4 * h + 2)),
                                  _mm256_set1_epi64x(0x0004001000400100));
        bits = 0x300;
        break;
    }
    case FORMAT_IQ1_S: {
        const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(w + 34))),
                      words = _mm256_shuffle_epi8(all, _mm256_set_m128i(WORDS_EIGHT(4 * h + 2),
                                                                        WORDS_EIGHT(4 * h)));
        high = _mm256_blend_epi16(_mm256_mullo_epi16(words, _mm256_set1_epi64x(0x0000000400200100)),
                                  _mm256_srli_epi16(words, 1), 0x88);
        bits = 0x700;
        break;
    }
    default: { /* IQ1_M */
        const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(w + 32)));
        high = _mm256_mullo_epi16(_mm256_shuffle_epi8(all, _mm256_set_m128i(BYTES_FOUR(8 * h + 4),
                                                                            BYTES_FOUR(8 * h))),
                                  _mm256_set1_epi32(0x00100100));
        bits = 0x700;
    }
    }
    return _mm256_or_si256(grid_bytes16(w + at + 16 * h),
                           _mm256_and_si256(high, _mm256_set1_epi16((short)bits)));
#undef BYTES_TWICE
#undef BYTES_EIGHT
#undef W_FOUR
#undef BYTES_FOUR
#undef WORDS_EIGHT
#undef V
#undef W
}

INLINE void grid_open(struct grid_block *b, const uint8_t *w, const enum tensor_format format)
{
    b->signs = grid_signs(w, format);
    UNROLL for (int h = 0; h < 4; h++)
    {
        if (h >= (format == FORMAT_IQ3_S ? 4 : 2)) continue;
        if (grid_has_words(format))
            _mm256_store_si256((__m256i *)(void *)b->place + h, grid_places(w, h, format));
    }
    if (grid_has_words(format))
        __asm__("" : "+m"(b->place)); /* the compiler would take places out of a register one by one */
}

/* Entries of a run: four of eight numbers, eight of four. */
INLINE __m256i grid_entries(const struct grid_block *b, const uint8_t *w, const int r,
                            const enum tensor_format format)
{
    const uint8_t *low = w + 2 + 8 * r;
    const uint16_t *at = b->place + (format == FORMAT_IQ3_S ? 8 : 4) * r;
#define FOURS(grid, from)                                                                                    \
    _mm256_setr_epi64x((long long)(grid)[(from)[0]], (long long)(grid)[(from)[1]],                           \
                       (long long)(grid)[(from)[2]], (long long)(grid)[(from)[3]])
#define EIGHTS(grid, from)                                                                                   \
    _mm256_setr_epi32((int)(grid)[(from)[0]], (int)(grid)[(from)[1]], (int)(grid)[(from)[2]],                \
                      (int)(grid)[(from)[3]], (int)(grid)[(from)[4]], (int)(grid)[(from)[5]],                \
                      (int)(grid)[(from)[6]], (int)(grid)[(from)[7]])
    switch (format) {
    case FORMAT_IQ2_XXS:
        return FOURS(block_grid_iq2_xxs, low);
    case FORMAT_IQ2_XS:
        return FOURS(block_grid_iq2_xs, at);
    case FORMAT_IQ2_S:
        return FOURS(block_grid_iq2_s, at);
    case FORMAT_IQ3_XXS:
        return EIGHTS(block_grid_iq3_xxs, low);
    case FORMAT_IQ3_S:
        return EIGHTS(block_grid_iq3_s, at);
    default:
        return FOURS(block_grid_iq1, at);
    }
#undef FOURS
#undef EIGHTS
}

/* 32 numbers, increased by number_less. */
INLINE __m256i grid_words(const struct grid_block *b, const uint8_t *w, const int r,
                          const enum tensor_format format)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201),
                  byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303),
                  less = _mm256_set1_epi8((char)number_less(format)), grid = grid_entries(b, w, r, format);
    const __m256i signs =
        _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(b->signs, _mm256_set1_epi32(r)), byte);
    if (has_eighths(format)) {
        const __m256i eighth = _mm256_or_si256(signs, _mm256_set1_epi8(1));
        return _mm256_add_epi8(grid, _mm256_add_epi8(less, eighth));
    }
    const __m256i mask = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bit), bit);
    return _mm256_add_epi8(_mm256_xor_si256(grid, mask), _mm256_sub_epi8(less, mask));
}
