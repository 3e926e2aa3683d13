/* GGUF's blocks in plain C, the definition: what the fast kernels are compared with. Called through the table
 * of linear.c. */
#include "common/cpu/kernels/variants.h"
#include "common/formats/blocks.h"

#define FUNCTIONS(format, FORMAT_NAME, VALUES, BYTES, GROUP)                                                 \
    static void format##_decode(void *values, const void *w, size_t rows, size_t cols)                       \
    {                                                                                                        \
        const uint8_t *block = w;                                                                            \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX], *to = values;                                \
        int8_t number[VALUES];                                                                               \
        for (size_t at = 0; at < rows * cols; at += (VALUES), block += (BYTES)) {                            \
            format##_numbers(block, number);                                                                 \
            format##_scales(block, scale, least);                                                            \
            for (size_t i = 0; i < (VALUES); i++)                                                            \
                to[at + i] = scale[i / (GROUP)] * (float)number[i] - least[i / (GROUP)];                     \
        }                                                                                                    \
    }                                                                                                        \
    static void format##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,             \
                              const struct gemv_reads *reads)                                                \
    {                                                                                                        \
        const uint8_t *block = w;                                                                            \
        float value[VALUES];                                                                                 \
        (void)reads;                                                                                         \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            double sum = 0;                                                                                  \
            for (size_t c = 0; c < cols; c += (VALUES), block += (BYTES)) {                                  \
                format##_decode(value, block, 1, VALUES);                                                    \
                for (size_t i = 0; i < (VALUES); i++) sum += (double)value[i] * (double)x[c + i];            \
            }                                                                                                \
            y[r] = (float)sum;                                                                               \
        }                                                                                                    \
    }
BLOCK_FORMATS(FUNCTIONS)

#define ROW(format_name, FORMAT_NAME, VALUES, BYTES, GROUP)                                                  \
    [BLOCK_##FORMAT_NAME] = {{.name = "ref",                                                                 \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_ONE_TOKEN,                                                  \
                              .gemv = format_name##_gemv,                                                    \
                              .streams = 1},                                                                 \
                             {.name = "ref",                                                                 \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_DECODE,                                                     \
                              .decode = format_name##_decode,                                                \
                              .rows = FORMAT_F32}},
const struct linear_kernel blocks_ref[BLOCK_FORMAT_COUNT][2] = {BLOCK_FORMATS(ROW)};
