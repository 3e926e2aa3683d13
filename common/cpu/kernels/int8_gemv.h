/* The table of a file's kernels of one token with activations of 8 bits. Included behind
 *   gemv, order_as                       of the format that is their last argument
 *   CHUNK, size_t chunk_x_bytes(format)  columns that x is ordered by, and their bytes
 *   NAME, FEATURES                       of the kernels
 *   KERNELS                              their table, by the formats' numbers in int8.h */
#ifndef HELM_COMMON_CPU_KERNELS_INT8_GEMV_H
#define HELM_COMMON_CPU_KERNELS_INT8_GEMV_H

#include "common/cpu/kernels/variants.h"

#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    static void format_##_order(float *to, const float *x, size_t cols)                                      \
    {                                                                                                        \
        order_as(to, x, cols, FORMAT_##FORMAT_NAME);                                                         \
    }                                                                                                        \
    static size_t format_##_ordered_bytes(size_t cols)                                                       \
    {                                                                                                        \
        return (cols + CHUNK - 1) / CHUNK * chunk_x_bytes(FORMAT_##FORMAT_NAME);                             \
    }                                                                                                        \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        gemv(y, w, x, rows, cols, reads, FORMAT_##FORMAT_NAME);                                              \
    }
INT8_FORMATS(FUNCTIONS)

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [INT8_##FORMAT_NAME] = {.name = NAME,                                                                    \
                            .features = FEATURES,                                                            \
                            .inputs = LINEAR_INT8,                                                           \
                            .format = FORMAT_##FORMAT_NAME,                                                  \
                            .schedule = LINEAR_ONE_TOKEN,                                                    \
                            .gemv = format_##_gemv,                                                          \
                            .streams = GEMV_STREAMS,                                                         \
                            .order = format_##_order,                                                        \
                            .ordered_bytes = format_##_ordered_bytes},
const struct linear_kernel KERNELS[INT8_FORMAT_COUNT] = {INT8_FORMATS(ROW)};

#endif
