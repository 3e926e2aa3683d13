/* GGUF's blocks (common/formats/blocks.h): one token's products, rows decoded to fp32. A block's numbers are unpacked
 * to bytes, which stay in L1; each becomes its exact value on its way into the sum.
 *
 * Included behind lanes256.h or lanes512.h by files that define
 *   vec block_numbers(const void *at)    LANES numbers of 8 bits as floats
 *   NAME, FEATURES                       of the kernels
 *   KERNELS                              their table, by the formats' numbers in blocks.h
 * and may define NIBBLES, the gemvs of BLOCK_NIBBLE_FORMATS in their own way. */
#ifndef HELM_COMMON_CPU_KERNELS_BLOCKS_SIMD_H
#define HELM_COMMON_CPU_KERNELS_BLOCKS_SIMD_H

#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    INLINE vec format_##_part(const int8_t *number, const float *scale, const float *least, size_t i)        \
    {                                                                                                        \
        return vec_fmsub(block_numbers(number + i), vec_set1(scale[i / (GROUP)]),                            \
                         vec_set1(least[i / (GROUP)]));                                                      \
    }                                                                                                        \
    static void format_##_decode(void *values, const void *w, size_t rows, size_t cols)                      \
    {                                                                                                        \
        const uint8_t *block = w;                                                                            \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX], *to = values;                                \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (size_t at = 0; at < rows * cols; at += (VALUES), block += (BYTES)) {                            \
            format_##_numbers(block, number);                                                                \
            format_##_scales(block, scale, least);                                                           \
            UNROLL for (size_t i = 0; i < (VALUES); i += LANES)                                              \
                vec_store(to + at + i, format_##_part(number, scale, least, i));                             \
        }                                                                                                    \
    }
BLOCK_FORMATS(FUNCTIONS)

#define GEMV(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        const size_t near = reads ? reads->near : GEMV_NEAR;                                                 \
        const uint8_t *block = w;                                                                            \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];                                              \
        _Alignas(64) int8_t number[VALUES];                                                                  \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            vec sum[2] = {vec_zero(), vec_zero()};                                                           \
            for (size_t c = 0; c < cols; c += (VALUES), block += (BYTES)) {                                  \
                UNROLL for (size_t b = 0; b < (BYTES); b += 64)                                              \
                    _mm_prefetch((const char *)((uintptr_t)block + near + b), _MM_HINT_T0);                  \
                format_##_numbers(block, number);                                                            \
                format_##_scales(block, scale, least);                                                       \
                UNROLL for (size_t i = 0; i < (VALUES); i += LANES) sum[i / LANES % 2] =                     \
                    vec_fmadd(format_##_part(number, scale, least, i), vec_load(x + c + i),                  \
                              sum[i / LANES % 2]);                                                           \
            }                                                                                                \
            y[r] = vec_reduce_add(vec_add(sum[0], sum[1]));                                                  \
        }                                                                                                    \
    }
BLOCK_OTHER_FORMATS(GEMV)
#ifndef NIBBLES
BLOCK_NIBBLE_FORMATS(GEMV)
#else
NIBBLES
#endif

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [BLOCK_##FORMAT_NAME] = {{.name = NAME,                                                                  \
                              .features = FEATURES,                                                          \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_ONE_TOKEN,                                                  \
                              .gemv = format_##_gemv,                                                        \
                              .streams = 1},                                                                 \
                             {.name = NAME,                                                                  \
                              .features = FEATURES,                                                          \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_DECODE,                                                     \
                              .decode = format_##_decode}},
const struct linear_kernel KERNELS[BLOCK_FORMAT_COUNT][2] = {BLOCK_FORMATS(ROW)};

#endif
