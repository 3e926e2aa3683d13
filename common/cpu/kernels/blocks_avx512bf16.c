/* GGUF's blocks and Q8_0 decoded to bf16, rounded, for the kernels of many tokens that round activations to
 * bf16: to rows, called through the table of linear.c after the CPU check, and to tiles, called by
 * gemm_amx.c.
 *
 * Sixteen values of numbers of 4 bits are a register of words, from which a permutation chooses; others are
 * unpacked to bytes, which stay in L1. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/blocks_bf16.h"

/* Sixteen values twice, as words. A power of two of MXFP4 may be below what the instruction keeps. */
INLINE __m512i nibble_values(const int8_t *code, float scale, float least, const bool tiny)
{
    const vec value = vec_fmsub(block_numbers(code), vec_set1(scale), vec_set1(least));
    return _mm512_broadcast_i64x4(tiny ? vec_to_bf16(value) : (__m256i)_mm512_cvtneps_pbh(value));
}

/* 32 values of 16 bytes: low halves, then high ones. */
INLINE void store_halves16(uint16_t *to, const uint8_t *from, __m512i values)
{
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)from));
    const __m512i index = _mm512_inserti64x4(_mm512_castsi256_si512(words), _mm256_srli_epi16(words, 4), 1);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(index, values));
}

/* Blocks with numbers of 4 bits, `at` bytes into a block; in groups of 32. */
#define NIBBLES(format_, VALUES, BYTES, AT, TINY, ...)                                                       \
    INLINE void format_##_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,       \
                                 const float *scale, const float *least)                                     \
    {                                                                                                        \
        static const int8_t code[16] = {__VA_ARGS__};                                                        \
        for (; blocks; blocks--, block += (BYTES))                                                           \
            UNROLL for (size_t g = 0; g < (VALUES) / 32; g++, to += step)                                    \
                store_halves16(to, block + (AT) + 16 * g, nibble_values(code, *scale++, *least++, TINY));    \
    }
#define FROM_0 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
NIBBLES(q4_0, 32, 18, 2, false, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
NIBBLES(q4_1, 32, 20, 4, false, FROM_0)
NIBBLES(iq4_nl, 32, 18, 2, false, IQ4_CODES)
NIBBLES(iq4_xs, 256, 136, 8, false, IQ4_CODES)
NIBBLES(mxfp4, 32, 17, 1, true, MXFP4_CODES)

/* 32 bytes have two groups, whose values stand side by side in one register. */
INLINE void q4_k_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,
                        const float *scale, const float *least)
{
    static const int8_t code[16] = {FROM_0};
    const vec number = block_numbers(code);
    const __m512i half = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
    for (; blocks; blocks--, block += 144)
        UNROLL for (size_t g = 0; g < 8; g += 2, scale += 2, least += 2, to += 2 * step)
        {
            const __m512i values =
                (__m512i)_mm512_cvtne2ps_pbh(vec_fmsub(number, vec_set1(scale[1]), vec_set1(least[1])),
                                             vec_fmsub(number, vec_set1(scale[0]), vec_set1(least[0])));
            const __m512i words =
                _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(block + 16 + g / 2 * 32)));
            _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_and_si512(words, half), values));
            _mm512_store_si512(to + step,
                               _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(words, 4), second),
                                                        values));
        }
}

#define BYTES_(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                   \
    INLINE void format_##_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,       \
                                 const float *scale, const float *least)                                     \
    {                                                                                                        \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (; blocks;                                                                                       \
             blocks--, block += (BYTES), scale += (VALUES) / (GROUP), least += (VALUES) / (GROUP)) {         \
            format_##_numbers(block, number);                                                                \
            UNROLL for (size_t i = 0; i < (VALUES); i += 32, to += step)                                     \
            {                                                                                                \
                const vec low = part(number + i, scale, least, i / (GROUP)),                                 \
                          high = part(number + i + 16, scale, least, (i + 16) / (GROUP));                    \
                _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));                             \
            }                                                                                                \
        }                                                                                                    \
    }
BYTES_(q5_0, Q5_0, 32, 22, 32)
BYTES_(q5_1, Q5_1, 32, 24, 32)
BYTES_(q2_k, Q2_K, 256, 84, 16)
BYTES_(q3_k, Q3_K, 256, 110, 16)
BYTES_(q5_k, Q5_K, 256, 176, 32)

/* The matrix's scale is fp32, so values may be below what the instruction keeps. */
INLINE void nvfp4_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,
                         const float *scale, const float *least)
{
    (void)least;
    for (; blocks; blocks--, block += NVFP4_BYTES)
        UNROLL for (size_t g = 0; g < 8; g++, scale += 2, to += step)
        {
            const __m128i bytes = _mm_loadu_si128((const void *)(block + NVFP4_NUMBERS + 16 * g)),
                          four = _mm_set1_epi8(15), codes = _mm_loadu_si128((const void *)mxfp4_table);
            const __m128i low = _mm_shuffle_epi8(codes, _mm_and_si128(bytes, four)),
                          high = _mm_shuffle_epi8(codes, _mm_and_si128(_mm_srli_epi16(bytes, 4), four));
            const vec first = vec_mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)), vec_set1(scale[0])),
                      second = vec_mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high)), vec_set1(scale[1]));
            _mm256_store_si256((void *)to, vec_to_bf16(first));
            _mm256_store_si256((void *)(to + 16), vec_to_bf16(second));
        }
}

/* 64 bytes have the low four bits of 128 numbers, 32 the upper two: of the first two groups of 32, then of
 * the others. */
INLINE void q6_k_half(int8_t *number, const uint8_t *low, const uint8_t *high)
{
    const __m512i four = _mm512_set1_epi8(15), two = _mm512_set1_epi8(0x30), bits = _mm512_loadu_si512(low),
                  both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)high)),
                  up = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1),
                  down = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
    enum { either = 0xf8 }; /* a | b & c; a number that is part of an instruction is no variable for clang */
    const __m512i first = _mm512_ternarylogic_epi64(_mm512_and_si512(bits, four), _mm512_sllv_epi16(both, up),
                                                    two, either),
                  second = _mm512_ternarylogic_epi64(_mm512_and_si512(_mm512_srli_epi16(bits, 4), four),
                                                     _mm512_srlv_epi16(both, down), two, either);
    _mm512_store_si512(number, _mm512_sub_epi8(first, _mm512_set1_epi8(32)));
    _mm512_store_si512(number + 64, _mm512_sub_epi8(second, _mm512_set1_epi8(32)));
}

INLINE void q6_k_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,
                        const float *scale, const float *least)
{
    _Alignas(64) int8_t number[256];
    (void)least;
    for (; blocks; blocks--, block += 210) {
        q6_k_half(number, block, block + 128);
        q6_k_half(number + 128, block + 64, block + 160);
        UNROLL for (size_t i = 0; i < 256; i += 32, scale += 2, to += step) _mm512_store_si512(
            to, (__m512i)_mm512_cvtne2ps_pbh(vec_mul(block_numbers(number + i + 16), vec_set1(scale[1])),
                                             vec_mul(block_numbers(number + i), vec_set1(scale[0]))));
    }
}

INLINE void q8_0_values(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks,
                        const float *scale, const float *least)
{
    (void)least;
    for (; blocks; blocks--, block += Q8_0_BYTES, to += step) {
        const vec by = vec_set1(*scale++);
        _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(vec_mul(block_numbers(block + 18), by),
                                                            vec_mul(block_numbers(block + 2), by)));
    }
}

/* Reads the scales that q4_k_scales and q5_k_scales read, eight and eight at once: beside tile products the
 * port that shuffles is the one that is wanted, so this does so three times. */
INLINE void k_scales(const uint8_t *block, float *scale, float *least)
{
    uint32_t both, low, high, last;
    memcpy(&both, block, sizeof both);
    memcpy(&low, block + 4, sizeof low);
    memcpy(&high, block + 8, sizeof high);
    memcpy(&last, block + 12, sizeof last);
    /* Scales 0 to 3, 4 to 7, smallest values 0 to 3, 4 to 7: six bits, or four and the two upper ones of the
     * first. */
    const __m128i first = _mm_mask_set1_epi32(_mm_set1_epi32((int)low), 12, (int)high),
                  six = _mm_setr_epi32(0x3f3f3f3f, 0x30303030, 0x3f3f3f3f, 0x30303030),
                  four = _mm_setr_epi32(0, 0x0f0f0f0f, 0, 0x0f0f0f0f),
                  a = _mm_and_si128(_mm_srlv_epi32(first, _mm_setr_epi32(0, 2, 0, 2)), six),
                  b = _mm_srlv_epi32(_mm_set1_epi32((int)last), _mm_setr_epi32(0, 0, 0, 4)),
                  number = _mm_ternarylogic_epi32(a, b, four, 0xf8); /* a | b & four */
    const __m512 by = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)both)));
    const vec all =
        vec_mul(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(number)),
                _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), by));
    _mm256_storeu_ps(scale, _mm512_castps512_ps256(all));
    _mm256_storeu_ps(least, _mm512_extractf32x8_ps(all, 1));
}

#define q4_k_scales k_scales
#define q5_k_scales k_scales
#define NAME        "avx512-bf16"
#define FEATURES    (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16)
INT8_PLAIN_FORMATS(FUNCTIONS)

#define TILES(format_, FORMAT_NAME, VALUES, BYTES, GROUP) [INT8_##FORMAT_NAME] = format_##_tiles,
blocks_tiles_fn *const blocks_tiles[INT8_FORMAT_COUNT] = {INT8_FORMATS(TILES)};

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [BLOCK_##FORMAT_NAME] = ENTRY(FORMAT_##FORMAT_NAME, format_##_decode),
const struct linear_kernel blocks_avx512bf16[BLOCK_FORMAT_COUNT] = {BLOCK_PLAIN_FORMATS(ROW)};
const struct linear_kernel q8_0_avx512bf16_decode = ENTRY(FORMAT_Q8_0, q8_0_decode);
