/* GGUF's blocks for one token with AVX-512: 64 neighbouring weights at a time as the 64 bytes of a vector. Lane l of
 * part b of them is weight 4 l + b: a shift of dwords brings its bits to where one instruction makes them a float. So x
 * is brought into that order once (blocks_order), and no byte is widened.
 *
 * Weights of 4 bits choose a value from a register of sixteen. Others stand as the top bits of their byte, with the
 * sign where they have one. Scales are applied to sums of a group, smallest values to sums of x.
 *
 * Included by blocks_avx512.c behind lanes512.h. `format` is a constant wherever these are inlined; `k` is which 64 of
 * the chunk of 256. */
#ifndef HELM_COMMON_CPU_KERNELS_BLOCKS_WORDS512_H
#define HELM_COMMON_CPU_KERNELS_BLOCKS_WORDS512_H

#include "common/cpu/kernels/blocks_sizes.h"

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
/* Of each byte the bits of the mask from b, the others from a. */
INLINE __m512i with_bits(__m512i a, __m512i b, uint8_t mask)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)mask), b, a, 0xca);
}
INLINE __m512i without_bits(__m512i a, __m512i b, uint8_t mask) /* of b the opposite bits */
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)mask), b, a, 0x3a);
}

/* The weights' bytes. `second`: the block behind `w`, of formats of 32 values; w itself where there is none. */
INLINE __m512i words_of(const uint8_t *w, const uint8_t *second, const size_t k,
                        const enum tensor_format format)
{
    const int pair = (int)(2 * (k % 2)), half = (int)(k / 2) * 32; /* of a half's four runs the first */
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
    case FORMAT_Q5_0:
    case FORMAT_Q5_1: {
        const size_t at = format == FORMAT_Q5_0 ? 2 : 4;
        uint32_t low, high;
        memcpy(&low, w + at, sizeof low);
        memcpy(&high, second + at, sizeof high);
        const __m512i fifth = _mm512_movm_epi8(low | (uint64_t)high << 32),
                      fours = _mm512_rolv_epi32(twice16(w + at + 4, second + at + 4), FOURS(3, 31, 3, 31));
        return format == FORMAT_Q5_0 ? without_bits(fours, fifth, 0x80) : with_bits(fours, fifth, 0x80);
    }
    case FORMAT_Q5_K: {
        const __m512i fours = _mm512_rolv_epi32(twice32(w + 48 + 32 * k), EIGHTS(3, 31));
        const int run = (int)(2 * k);
        return with_bits(fours, _mm512_sllv_epi32(twice32(w + 16), EIGHTS(7 - run, 6 - run)), 0x80);
    }
    case FORMAT_Q6_K: {
        const __m512i low = _mm512_loadu_si512(w + k / 2 * 64),
                      high = _mm512_xor_si512(twice32(w + 128 + half), _mm512_set1_epi8((char)0xaa));
        return with_bits(k % 2 ? _mm512_srli_epi32(low, 2) : _mm512_slli_epi32(low, 2),
                         _mm512_sllv_epi32(high, EIGHTS(6 - 2 * pair, 4 - 2 * pair)), 0xc0);
    }
    case FORMAT_Q3_K: {
        const __m512i twos =
            _mm512_rolv_epi32(twice32(w + 32 + half), EIGHTS((37 - 2 * pair) % 32, (35 - 2 * pair) % 32));
        const int run = (int)(2 * k);
        return without_bits(twos, _mm512_sllv_epi32(twice32(w), EIGHTS(7 - run, 6 - run)), 0x80);
    }
    case FORMAT_Q2_K:
        return _mm512_sllv_epi32(twice32(w + 16 + half), EIGHTS(6 - 2 * pair, 4 - 2 * pair));
    default:
        __builtin_unreachable();
    }
}

/* Part `b` of words as floats, which are whole numbers. */
INLINE vec words_part(__m512i words, const int b, const enum tensor_format format)
{
    static const int8_t iq4[16] = {IQ4_CODES}, mxfp4[16] = {MXFP4_CODES},
                        from_0[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                        from_8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const int8_t *code = NULL;
    int bits = 0;
    switch (format) {
    case FORMAT_Q4_K:
    case FORMAT_Q4_1:
        code = from_0;
        break;
    case FORMAT_Q4_0:
        code = from_8;
        break;
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS:
        code = iq4;
        break;
    case FORMAT_MXFP4:
        code = mxfp4;
        break;
    case FORMAT_Q2_K:
        bits = 2;
        break;
    case FORMAT_Q3_K:
        bits = 3;
        break;
    case FORMAT_Q6_K:
        bits = 6;
        break;
    default:
        bits = 5;
    }
    if (code) {
        const int h = 8 * b + 4;
        const __m512i index =
            _mm512_srlv_epi32(words, format == FORMAT_Q4_K ? EIGHTS(8 * b, h) : FOURS(8 * b, h, 8 * b, h));
        return _mm512_permutexvar_ps(index, block_numbers(code));
    }
    if (b < 3) words = _mm512_slli_epi32(words, (unsigned)(24 - 8 * b));
    const bool is_signed = format == FORMAT_Q6_K || format == FORMAT_Q3_K || format == FORMAT_Q5_0;
    return _mm512_cvtepi32_ps(is_signed ? _mm512_srai_epi32(words, (unsigned)(32 - bits))
                                        : _mm512_srli_epi32(words, (unsigned)(32 - bits)));
}

/* Scales of a chunk's groups, and smallest values of its sixteens. */
struct block_scales {
    vec scale, least;
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
        const vec all = vec_mul(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(number)),
                                _mm512_permutexvar_ps(FOURS(0, 1, 0, 1), _mm512_castps128_ps512(by)));
        const __m512i smallest = _mm512_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7, 12, 12, 13, 13, 14, 14, 15, 15);
        return (struct block_scales){all, _mm512_permutexvar_ps(smallest, all)};
    }
    case FORMAT_Q6_K:
        return (struct block_scales){vec_mul(block_numbers(w + 192), vec_set1(block_half(w + 208))),
                                     vec_zero()};
    case FORMAT_Q2_K: {
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)w));
        const __m512i low = _mm512_and_si512(both, _mm512_set1_epi32(15)), high = _mm512_srli_epi32(both, 4);
        return (struct block_scales){vec_mul(_mm512_cvtepi32_ps(low), vec_set1(block_half(w + 80))),
                                     vec_mul(_mm512_cvtepi32_ps(high), vec_set1(block_half(w + 82)))};
    }
    case FORMAT_Q3_K:
        q3_k_scales(w, scale, least);
        return (struct block_scales){_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(scale)),
                                                        _mm256_loadu_ps(scale + 8), 1),
                                     vec_zero()};
    case FORMAT_IQ4_XS:
        iq4_xs_scales(w, scale, least);
        return (struct block_scales){_mm512_castps256_ps512(_mm256_loadu_ps(scale)), vec_zero()};
    default:
        __builtin_unreachable();
    }
}

/* Of a chunk's scales those of the lanes of words `k`. */
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
    const size_t bytes = has_least(format) ? 4 : 2;
    memcpy(&a, w, bytes);
    if (second) memcpy(&b, second, bytes);
    const __m128 halves = _mm_cvtph_ps(_mm_cvtsi64_si128((long long)(a | (uint64_t)b << 32)));
    const vec all = _mm512_castps128_ps512(halves);
    return (struct block_scales){
        _mm512_permutexvar_ps(EIGHTS(0, 2), all),
        _mm512_permutexvar_ps(_mm512_setr_epi32(1, 1, 3, 3, 1, 1, 3, 3, 1, 1, 3, 3, 1, 1, 3, 3), all)};
}

#endif
