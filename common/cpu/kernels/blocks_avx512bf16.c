/* GGUF's blocks and Q8_0 decoded to bf16, rounded, for the kernels of many tokens that round activations to bf16: to rows,
 * called through the table of linear.c after the CPU check, and to tiles, called by gemm_amx.c.
 *
 * Sixteen values of numbers of 4 bits are a register of words, from which a permutation chooses; others are unpacked to
 * bytes, which stay in L1. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"
#include "common/formats/q8_0.h"

INLINE vec block_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

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

/* What follows decodes `blocks` neighbouring blocks of a row, 32 values to `to`, the next to to + step. */

INLINE void fetch_ahead(const uint8_t *block, const size_t bytes)
{
    UNROLL for (size_t b = 0; b < bytes; b += 64)
        _mm_prefetch((const char *)((uintptr_t)block + GEMV_NEAR + b), _MM_HINT_T0);
}

/* Blocks with numbers of 4 bits, `at` bytes into a block; in groups of 32. `pairs`: 32 bytes have two groups. */
#define NIBBLES(format_, VALUES, BYTES, AT, PAIRS, TINY, ...)                                                \
    INLINE void format_##_blocks(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks)       \
    {                                                                                                        \
        static const int8_t code[16] = {__VA_ARGS__};                                                        \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];                                              \
        for (; blocks; blocks--, block += (BYTES), to += (VALUES) / 32 * step) {                             \
            fetch_ahead(block, BYTES);                                                                       \
            format_##_scales(block, scale, least);                                                           \
            UNROLL for (size_t g = 0; g < (VALUES) / 32; g++)                                                \
            {                                                                                                \
                const __m512i table = nibble_values(code, scale[g], least[g], TINY);                         \
                if (!(PAIRS)) {                                                                              \
                    store_halves16(to + step * g, block + (AT) + 16 * g, table);                             \
                    continue;                                                                                \
                }                                                                                            \
                const __m512i words =                                                                        \
                    _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(block + (AT) + g / 2 * 32)));     \
                _mm512_store_si512(to + step * g,                                                            \
                                   _mm512_permutexvar_epi16(g % 2 ? _mm512_srli_epi16(words, 4) : words,     \
                                                            table));                                         \
            }                                                                                                \
        }                                                                                                    \
    }
#define FROM_0 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
NIBBLES(q4_0, 32, 18, 2, false, false, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
NIBBLES(q4_1, 32, 20, 4, false, false, FROM_0)
NIBBLES(q4_k, 256, 144, 16, true, false, FROM_0)
NIBBLES(iq4_nl, 32, 18, 2, false, false, IQ4_CODES)
NIBBLES(iq4_xs, 256, 136, 8, false, false, IQ4_CODES)
NIBBLES(mxfp4, 32, 17, 1, false, true, MXFP4_CODES)

INLINE vec part(const int8_t *number, const float *scale, const float *least, size_t group)
{
    return vec_fmsub(block_numbers(number), vec_set1(scale[group]), vec_set1(least[group]));
}
#define BYTES_(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                   \
    INLINE void format_##_blocks(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks)       \
    {                                                                                                        \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];                                              \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (; blocks; blocks--, block += (BYTES), to += (VALUES) / 32 * step) {                             \
            fetch_ahead(block, BYTES);                                                                       \
            format_##_numbers(block, number);                                                                \
            format_##_scales(block, scale, least);                                                           \
            UNROLL for (size_t i = 0; i < (VALUES); i += 32)                                                 \
            {                                                                                                \
                const vec low = part(number + i, scale, least, i / (GROUP)),                                 \
                          high = part(number + i + 16, scale, least, (i + 16) / (GROUP));                    \
                _mm512_store_si512(to + i / 32 * step, (__m512i)_mm512_cvtne2ps_pbh(high, low));             \
            }                                                                                                \
        }                                                                                                    \
    }
BLOCK_OTHER_FORMATS(BYTES_)

INLINE void q8_0_blocks(uint16_t *to, const size_t step, const uint8_t *block, size_t blocks)
{
    for (; blocks; blocks--, block += Q8_0_BYTES, to += step) {
        fetch_ahead(block, 1);
        const vec scale = vec_set1(block_half(block));
        _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(vec_mul(block_numbers(block + 18), scale),
                                                            vec_mul(block_numbers(block + 2), scale)));
    }
}

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    static void format_##_decode(void *values, const void *w, size_t rows, size_t cols)                      \
    {                                                                                                        \
        format_##_blocks(values, 32, w, rows *(cols / (VALUES)));                                            \
    }                                                                                                        \
    static void format_##_tiles(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols)      \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r++)                                                                    \
            format_##_blocks((uint16_t *)tiles + r / 16 * 16 * cols + r % 16 * 32, 512,                      \
                             (const uint8_t *)w + r * row_bytes, cols / (VALUES));                           \
    }
INT8_FORMATS(FUNCTIONS)

#define TILES(format_, FORMAT_NAME, VALUES, BYTES, GROUP) [INT8_##FORMAT_NAME] = format_##_tiles,
blocks_tiles_fn *const blocks_tiles[INT8_FORMAT_COUNT] = {INT8_FORMATS(TILES)};

#define ENTRY(id, function)                                                                                  \
    {                                                                                                        \
        .name = "avx512-bf16", .features = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, .format = id,            \
        .schedule = LINEAR_DECODE, .decode = function, .rows = FORMAT_BF16                                   \
    }
#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [BLOCK_##FORMAT_NAME] = ENTRY(FORMAT_##FORMAT_NAME, format_##_decode),
const struct linear_kernel blocks_avx512bf16[BLOCK_FORMAT_COUNT] = {BLOCK_FORMATS(ROW)};
const struct linear_kernel q8_0_avx512bf16_decode = ENTRY(FORMAT_Q8_0, q8_0_decode);
