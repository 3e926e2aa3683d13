/* Products with GGUF's blocks (common/formats/blocks.h) a vector of lanes at a time: a block's numbers are unpacked to
 * bytes, which stay in L1; each becomes its exact value in fp32 on its way into the sum. Included by blocks_avx2.c and
 * blocks_avx512.c behind LANES, `lanes`, and on them
 *   lanes lanes_zero(), lanes_load(float *), lanes_add(a, b), lanes_fma(a, b, c)     a * b + c
 *   void lanes_store(float *, lanes)
 *   lanes lanes_values(const int8_t *, float scale, float least)                     number * scale - least
 *   float lanes_sum(lanes) */
#ifndef HELM_COMMON_CPU_KERNELS_BLOCKS_LANES_H
#define HELM_COMMON_CPU_KERNELS_BLOCKS_LANES_H

#include <immintrin.h>

#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"

#define BLOCKS_SUMS 2

/* `format`'s functions, its kernels, both called NAME. */
#define BLOCKS_FUNCTIONS(format, FORMAT_NAME, VALUES, BYTES, GROUP)                                          \
    static void format##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,             \
                              const struct gemv_reads *reads)                                                \
    {                                                                                                        \
        const size_t near = reads ? reads->near : GEMV_NEAR;                                                 \
        const uint8_t *block = w;                                                                            \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];                                              \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            lanes sum[BLOCKS_SUMS];                                                                          \
            UNROLL for (size_t s = 0; s < BLOCKS_SUMS; s++) sum[s] = lanes_zero();                           \
            for (size_t c = 0; c < cols; c += (VALUES), block += (BYTES)) {                                  \
                UNROLL for (size_t b = 0; b < (BYTES); b += 64)                                              \
                    _mm_prefetch((const char *)((uintptr_t)block + near + b), _MM_HINT_T0);                  \
                format##_numbers(block, number);                                                             \
                format##_scales(block, scale, least);                                                        \
                UNROLL for (size_t i = 0; i < (VALUES); i += LANES) sum[i / LANES % BLOCKS_SUMS] =           \
                    lanes_fma(lanes_values(number + i, scale[i / (GROUP)], least[i / (GROUP)]),              \
                              lanes_load(x + c + i), sum[i / LANES % BLOCKS_SUMS]);                          \
            }                                                                                                \
            y[r] = lanes_sum(lanes_add(sum[0], sum[1]));                                                     \
        }                                                                                                    \
    }                                                                                                        \
    static void format##_decode(void *values, const void *w, size_t rows, size_t cols)                       \
    {                                                                                                        \
        const uint8_t *block = w;                                                                            \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX], *to = values;                                \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (size_t at = 0; at < rows * cols; at += (VALUES), block += (BYTES)) {                            \
            format##_numbers(block, number);                                                                 \
            format##_scales(block, scale, least);                                                            \
            UNROLL for (size_t i = 0; i < (VALUES); i += LANES)                                              \
                lanes_store(to + at + i, lanes_values(number + i, scale[i / (GROUP)], least[i / (GROUP)]));  \
        }                                                                                                    \
    }
BLOCK_FORMATS(BLOCKS_FUNCTIONS)

#endif
