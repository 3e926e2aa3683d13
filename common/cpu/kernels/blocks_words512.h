/* GGUF's blocks for one token with AVX-512: 64 neighbouring weights at a time as the 64 bytes of a vector.
 * Lane l of part b of them is weight 4 l + b, in byte b of the dword. So x is brought into that order once
 * (blocks_avx512.c), and no byte is widened.
 *
 * A weight is a whole number without sign in some bits of its byte. A mask and a conversion make it a float,
 * 256^b times too large, which x in its order makes good: a power of two rounds nothing. Weights that stand
 * for values of a table choose from a register of sixteen. Scales are applied to sums of a group; what
 * numbers are too large by, and smallest values, to sums of x.
 *
 * Included by blocks_avx512.c after lanes512.h. `format` is a constant wherever these are inlined; `k` is
 * which 64 of the chunk of 256. */
#pragma once

#include "common/cpu/kernels/blocks_sizes.h"

/* Formats whose weights choose from a table. */
#define IS_TABLE(format)                                                                                     \
    ((format) == FORMAT_Q4_0 || (format) == FORMAT_Q4_1 || (format) == FORMAT_IQ4_NL ||                      \
     (format) == FORMAT_IQ4_XS || (format) == FORMAT_MXFP4 || (format) == FORMAT_NVFP4)

/* A constant by the lane's run of eight, or by its run of four. */
#define EIGHTS(a, b)      _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b)
#define FOURS(a, b, c, d) _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d)

/* 32 bytes twice; 16 bytes of each of two places twice. */
INLINE __m512i twice32(const uint8_t *at)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)at));
}
INLINE __m512i twice16(const uint8_t *low, const uint8_t *high)
{
    return _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)low)), 0xff00,
                                       _mm_loadu_si128((const void *)high));
}
/* Each byte's bits of the mask from b, the others from a. */
INLINE __m512i with_bits(__m512i a, __m512i b, uint8_t mask)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)mask), b, a, 0xca);
}
/* The weights' bytes. `second`: the block after `w`, of formats of 32 values; w itself where there is
 * none. */
INLINE __m512i words_of(const uint8_t *w, const uint8_t *second, const size_t k,
                        const enum tensor_format format)
{
    const int run = (int)(2 * k), pair = run % 4; /* the first of two runs of 32, and of the half's four */
    const size_t half = k / 2 * 32;
    switch (format) {
    case FORMAT_Q4_K:
        return twice32(w + 16 + 32 * k);
    case FORMAT_IQ4_XS:
        return twice16(w + 8 + 32 * k, w + 24 + 32 * k);
    case FORMAT_Q4_0:
    case FORMAT_IQ4_NL:
        return twice16(w + 2, second + 2);
    case FORMAT_Q4_1:
        return twice16(w + 4, second + 4);
    case FORMAT_MXFP4:
        return twice16(w + 1, second + 1);
    case FORMAT_NVFP4:
        return twice16(w + NVFP4_NUMBERS + 32 * k, w + NVFP4_NUMBERS + 16 + 32 * k);
    case FORMAT_Q5_0:
    case FORMAT_Q5_1: {
        const size_t at = format == FORMAT_Q5_0 ? 2 : 4;
        uint32_t low, high;
        memcpy(&low, w + at, sizeof low);
        memcpy(&high, second + at, sizeof high);
        const __m512i fours = twice16(w + at + 4, second + at + 4);
        return with_bits(_mm512_srlv_epi32(fours, FOURS(0, 4, 0, 4)),
                         _mm512_movm_epi8(low | (uint64_t)high << 32), 0x10);
    }
    case FORMAT_Q5_K:
        return with_bits(_mm512_srlv_epi32(twice32(w + 48 + 32 * k), EIGHTS(0, 4)),
                         _mm512_rolv_epi32(twice32(w + 16), EIGHTS(36 - run, 35 - run)), 0x10);
    case FORMAT_Q6_K: {
        const __m512i low = _mm512_loadu_si512(w + k / 2 * 64);
        return with_bits(k % 2 ? _mm512_srli_epi32(low, 4) : low,
                         _mm512_rolv_epi32(twice32(w + 128 + half), EIGHTS(36 - 2 * pair, 34 - 2 * pair)),
                         0x30);
    }
    case FORMAT_Q3_K:
        return with_bits(_mm512_srlv_epi32(twice32(w + 32 + half), EIGHTS(2 * pair, 2 * pair + 2)),
                         _mm512_rolv_epi32(twice32(w), EIGHTS(34 - run, 33 - run)), 0x04);
    case FORMAT_Q2_K:
        return _mm512_srlv_epi32(twice32(w + 16 + half), EIGHTS(2 * pair, 2 * pair + 2));
    default:
        __builtin_unreachable();
    }
}

/* The bits of a byte of words that are its weight. Q4_K's second run has the high ones, which its scales make
 * good. */
INLINE unsigned weight_bits(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q4_K:
        return 0x0f;
    case FORMAT_Q5_0:
    case FORMAT_Q5_1:
    case FORMAT_Q5_K:
        return 0x1f;
    case FORMAT_Q6_K:
        return 0x3f;
    case FORMAT_Q3_K:
        return 0x07;
    case FORMAT_Q2_K:
        return 0x03;
    default:
        return 0; /* of a table */
    }
}

/* The factor of sums of x beside scales or smallest values; 0: none. */
INLINE float least_factor(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q4_1:
    case FORMAT_Q5_1:
        return 1;
    case FORMAT_Q2_K:
    case FORMAT_Q4_K:
    case FORMAT_Q5_K:
        return -1;
    case FORMAT_Q3_K:
        return -4;
    case FORMAT_Q5_0:
        return -16;
    case FORMAT_Q6_K:
        return -32;
    default:
        return 0;
    }
}

/* Part `b` of words as floats. */
INLINE vec words_part(__m512i words, const int b, const enum tensor_format format)
{
    static const int8_t iq4[16] = {IQ4_CODES}, mxfp4[16] = {MXFP4_CODES},
                        from_0[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                        from_8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const unsigned bits = weight_bits(format) << 8 * b;
    if (!IS_TABLE(format)) {
        const __m512i mask =
            format == FORMAT_Q4_K ? EIGHTS((int)bits, (int)(bits << 4)) : _mm512_set1_epi32((int)bits);
        return _mm512_cvtepu32_ps(_mm512_and_si512(words, mask));
    }
    const int8_t *code = format == FORMAT_Q4_1                              ? from_0
                         : format == FORMAT_Q4_0                            ? from_8
                         : format == FORMAT_MXFP4 || format == FORMAT_NVFP4 ? mxfp4
                                                                            : iq4;
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, FOURS(8 * b, 8 * b + 4, 8 * b, 8 * b + 4)),
                                 block_numbers(code));
}

/* Scales of a chunk's groups, and smallest values of its sixteens. */
struct block_scales {
    vec scale, least; /* least: as sums of x lie, those of 32 for Q4_K and Q5_K */
};
INLINE struct block_scales scales_of(const uint8_t *w, const enum tensor_format format)
{
    float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];
    switch (format) {
    case FORMAT_Q4_K:
    case FORMAT_Q5_K: { /* scales 0 to 3, smallest 0 to 3, scales 4 to 7, smallest 4 to 7 */
        uint32_t both, last;
        uint64_t first;
        memcpy(&both, w, sizeof both);
        memcpy(&first, w + 4, sizeof first);
        memcpy(&last, w + 12, sizeof last);
        const __m128i a = _mm_srlv_epi32(_mm_set1_epi64x((long long)first), _mm_setr_epi32(0, 0, 2, 2)),
                      b = _mm_srlv_epi32(_mm_set1_epi32((int)last), _mm_setr_epi32(0, 0, 0, 4)),
                      six = _mm_setr_epi32(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030),
                      four = _mm_setr_epi32(0, 0, 0x0f0f0f0f, 0x0f0f0f0f);
        const __m128i number = _mm_ternarylogic_epi32(_mm_and_si128(a, six), b, four, 0xf8);
        const __m128 by = _mm_cvtph_ps(_mm_cvtsi32_si128((int)both));
        vec all = vec_mul(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(number)),
                          _mm512_permutexvar_ps(FOURS(0, 1, 0, 1), _mm512_castps128_ps512(by)));
        const float high = 1.0f / 16;
        if (format == FORMAT_Q4_K)
            all = vec_mul(all, _mm512_setr_ps(1, high, 1, high, 1, 1, 1, 1, 1, high, 1, high, 1, 1, 1, 1));
        return (struct block_scales){all, all};
    }
    case FORMAT_Q6_K: {
        const vec all = vec_mul(block_numbers(w + 192), vec_set1(block_half(w + 208)));
        return (struct block_scales){all, all};
    }
    case FORMAT_Q2_K: {
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w));
        const __m512i low = _mm512_and_si512(both, _mm512_set1_epi32(15)), high = _mm512_srli_epi32(both, 4);
        return (struct block_scales){vec_mul(_mm512_cvtepi32_ps(low), vec_set1(block_half(w + 80))),
                                     vec_mul(_mm512_cvtepi32_ps(high), vec_set1(block_half(w + 82)))};
    }
    case FORMAT_Q3_K: {
        q3_k_scales(w, scale, least);
        const vec all =
            _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(scale)), _mm256_loadu_ps(scale + 8), 1);
        return (struct block_scales){all, all};
    }
    case FORMAT_NVFP4: {
        const __m256i seven =
            _mm256_and_si256(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(w + NVFP4_SCALES))),
                             _mm256_set1_epi16(0x7f));
        float by;
        memcpy(&by, w, sizeof by);
        const vec all = vec_mul(_mm512_cvtph_ps(_mm256_slli_epi16(seven, 7)), vec_set1(by * 128));
        return (struct block_scales){all, all};
    }
    case FORMAT_IQ4_XS:
        iq4_xs_scales(w, scale, least);
        return (struct block_scales){_mm512_castps256_ps512(_mm256_loadu_ps(scale)), vec_zero()};
    default:
        __builtin_unreachable();
    }
}

/* Those of a chunk's scales that belong to the lanes of words `k`. */
INLINE vec scales_part(vec all, const size_t k, const enum tensor_format format)
{
    const int two = (int)(2 * k), four = (int)(4 * k), past = two < 4 ? two : two + 4;
    switch (format) {
    case FORMAT_Q4_K:
    case FORMAT_Q5_K:
        return _mm512_permutexvar_ps(EIGHTS(past, past + 1), all);
    case FORMAT_IQ4_XS:
        return _mm512_permutexvar_ps(EIGHTS(two, two + 1), all);
    default:
        return _mm512_permutexvar_ps(FOURS(four, four + 1, four + 2, four + 3), all);
    }
}

/* The same of two blocks of 32 values, `second` NULL: of one, with zeros for the other. */
INLINE struct block_scales scales_of_pair(const uint8_t *w, const uint8_t *second,
                                          const enum tensor_format format)
{
    uint32_t a = 0, b = 0;
    if (format == FORMAT_MXFP4) {
        float of_a, of_b = 0, none;
        mxfp4_scales(w, &of_a, &none);
        if (second) mxfp4_scales(second, &of_b, &none);
        const __m128 both = _mm_unpacklo_ps(_mm_set_ss(of_a), _mm_set_ss(of_b));
        return (struct block_scales){_mm512_permutexvar_ps(EIGHTS(0, 1), _mm512_castps128_ps512(both)),
                                     vec_zero()};
    }
    const size_t bytes = format == FORMAT_Q4_1 || format == FORMAT_Q5_1 ? 4 : 2;
    memcpy(&a, w, bytes);
    if (second) memcpy(&b, second, bytes);
    const __m128 halves = _mm_cvtph_ps(_mm_cvtsi64_si128((long long)(a | (uint64_t)b << 32)));
    const vec all = _mm512_castps128_ps512(halves);
    const int i = bytes == 4 ? 1 : 0, j = i + 2;
    const __m512i twos = _mm512_setr_epi32(i, i, j, j, i, i, j, j, i, i, j, j, i, i, j, j);
    return (struct block_scales){_mm512_permutexvar_ps(EIGHTS(0, 2), all), _mm512_permutexvar_ps(twos, all)};
}
