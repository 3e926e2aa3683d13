/* Blocks decoded to bf16, rounded, for the kernels of many tokens that round activations to bf16: to rows,
 * and to tiles, called by gemm_amx.c. Shared by the files of blocks and of grids.
 *
 * Included after lanes512.h by files that define NAME and FEATURES of their rows and
 *   format_values(to, step, block, blocks, scale, least)   of each of their formats: decodes `blocks`
 *                                                          neighbouring blocks of a row, whose scales and
 *                                                          smallest values are known, 32 values to `to`, the
 *                                                          next to to + step */
#pragma once

#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"
#include "common/formats/q8_0.h"

INLINE vec block_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

INLINE vec part(const int8_t *number, const float *scale, const float *least, size_t group)
{
    return vec_fmsub(block_numbers(number), vec_set1(scale[group]), vec_set1(least[group]));
}
/* Scales of several blocks are taken apart before their numbers: the way from a scale's bits to what values
 * are made with is long, and those of several blocks hide each other's. */
#define RUN_VALUES  1024
#define TILE_VALUES 256 /* of a row of tiles */

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
    static void format_##_row(uint16_t *to, const uint8_t *block, size_t cols, ptrdiff_t ahead)              \
    {                                                                                                        \
        float scale[TILE_VALUES / (GROUP)], least[TILE_VALUES / (GROUP)];                                    \
        for (; cols >= TILE_VALUES; cols -= TILE_VALUES) {                                                   \
            format_##_run_scales(block, TILE_VALUES / (VALUES), ahead, scale, least);                        \
            format_##_values(to, 512, block, TILE_VALUES / (VALUES), scale, least);                          \
            block += TILE_VALUES / (VALUES) * (BYTES), to += TILE_VALUES * 16;                               \
        }                                                                                                    \
        for (; cols; cols -= (VALUES), block += (BYTES), to += (VALUES)*16) {                                \
            format_##_run_scales(block, 1, ahead, scale, least);                                             \
            format_##_values(to, 512, block, 1, scale, least);                                               \
        }                                                                                                    \
    }                                                                                                        \
    void format_##_tiles(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols,             \
                         ptrdiff_t ahead)                                                                    \
    {                                                                                                        \
        for (size_t r = 0; r < rows; r++)                                                                    \
            format_##_row((uint16_t *)tiles + r / 16 * 16 * cols + r % 16 * 32,                              \
                          (const uint8_t *)w + r * row_bytes, cols, ahead);                                  \
    }
#define ENTRY(id, function)                                                                                  \
    {                                                                                                        \
        .name = NAME, .features = FEATURES, .format = id, .schedule = LINEAR_DECODE, .decode = function,     \
        .rows = FORMAT_BF16                                                                                  \
    }
