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

/* What follows decodes `blocks` neighbouring blocks of a row, whose scales and smallest values are known, 32 values to `to`, the
 * next to to + step. */

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

INLINE vec part(const int8_t *number, const float *scale, const float *least, size_t group)
{
    return vec_fmsub(block_numbers(number), vec_set1(scale[group]), vec_set1(least[group]));
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
BLOCK_OTHER_FORMATS(BYTES_)

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

/* Scales of several blocks are taken apart before their numbers: the way from a scale's bits to what values are made with is
 * long, and those of several blocks hide each other's. */
#define RUN_VALUES 1024
#define RUN_ROWS   8

INLINE void fetch_block(const uint8_t *block, ptrdiff_t ahead, const size_t bytes)
{
    UNROLL for (size_t b = 0; b < bytes; b += 64)
        _mm_prefetch((const char *)((uintptr_t)block + (uintptr_t)ahead + b), _MM_HINT_T1);
}

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    INLINE void format_##_run_scales(const uint8_t *block, size_t blocks, ptrdiff_t ahead, float *scale,     \
                                     float *least)                                                           \
    {                                                                                                        \
        for (; blocks; blocks--, block += (BYTES)) {                                                         \
            fetch_block(block, ahead, BYTES);                                                                \
            format_##_scales(block, scale, least);                                                           \
            scale += (VALUES) / (GROUP);                                                                     \
            least += (VALUES) / (GROUP);                                                                     \
        }                                                                                                    \
    }                                                                                                        \
    static void format_##_decode(void *values, const void *w, size_t rows, size_t cols)                      \
    {                                                                                                        \
        float scale[RUN_VALUES / (GROUP)], least[RUN_VALUES / (GROUP)];                                      \
        const uint8_t *block = w;                                                                            \
        uint16_t *to = values;                                                                               \
        for (size_t left = rows * (cols / (VALUES)); left;) {                                                \
            const size_t run = left < RUN_VALUES / (VALUES) ? left : RUN_VALUES / (VALUES);                  \
            format_##_run_scales(block, run, GEMV_NEAR, scale, least);                                       \
            format_##_values(to, 32, block, run, scale, least);                                              \
            block += run * (BYTES), to += run * (VALUES), left -= run;                                       \
        }                                                                                                    \
    }                                                                                                        \
    INLINE void format_##_rows(uint16_t *tiles, const uint8_t *w, size_t row_bytes, size_t first,            \
                               size_t last, size_t cols, ptrdiff_t ahead)                                    \
    {                                                                                                        \
        float scale[RUN_ROWS][RUN_VALUES / (GROUP)], least[RUN_ROWS][RUN_VALUES / (GROUP)];                  \
        for (size_t c = 0; c < cols; c += RUN_VALUES) {                                                      \
            const size_t blocks = (cols - c < RUN_VALUES ? cols - c : RUN_VALUES) / (VALUES);                \
            const uint8_t *from = w + c / (VALUES) * (BYTES);                                                \
            for (size_t r = first; r < last; r++)                                                            \
                format_##_run_scales(from + r * row_bytes, blocks, ahead, scale[r - first],                  \
                                     least[r - first]);                                                      \
            for (size_t r = first; r < last; r++)                                                            \
                format_##_values(tiles + r / 16 * 16 * cols + c * 16 + r % 16 * 32, 512,                     \
                                 from + r * row_bytes, blocks, scale[r - first], least[r - first]);          \
        }                                                                                                    \
    }                                                                                                        \
    static void format_##_tiles(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols,      \
                                ptrdiff_t ahead)                                                             \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r += RUN_ROWS)                                                          \
            format_##_rows(tiles, w, row_bytes, r, rows - r < RUN_ROWS ? rows : r + RUN_ROWS, cols, ahead);  \
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
