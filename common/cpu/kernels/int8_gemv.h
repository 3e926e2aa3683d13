/* Rows of one token with activations of 8 bits, of a few tokens with the same bits (gemv_chunks.h), and the
 * table of a file's kernels of them. Included after what gemv_chunks.h asks for but row_sum and has_two_sums,
 * and
 *   order_as         of the format that is its last argument
 *   NAME, FEATURES   of the kernels
 *   APART, BEATEN    theirs (linear.h), the latter of a format; none without it
 *   KERNELS          their table, by the formats' numbers in int8.h
 *   FORMATS          of which formats */
#pragma once

#include "common/cpu/kernels/variants.h"

INLINE bool has_two_sums(const enum tensor_format format)
{
    return has_least(format);
}
INLINE vec row_sum(vec total, vec least, const enum tensor_format format)
{
    return has_least(format) ? vec_add(total, least) : total;
}

#include "common/cpu/kernels/gemv_chunks.h"

#ifndef BEATEN
#define BEATEN(format) 0
#endif
#define FUNCTIONS(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                \
    static void format_##_order(float *to, const float *x, size_t cols)                                      \
    {                                                                                                        \
        order_as(to, x, cols, FORMAT_##FORMAT_NAME);                                                         \
    }                                                                                                        \
    static size_t format_##_ordered_bytes(size_t cols)                                                       \
    {                                                                                                        \
        return (cols + CHUNK(FORMAT_##FORMAT_NAME) - 1) / CHUNK(FORMAT_##FORMAT_NAME) *                      \
               chunk_x_bytes(FORMAT_##FORMAT_NAME);                                                          \
    }
FORMATS(GEMV_FUNCTIONS)
FORMATS(FUNCTIONS)

#define ROW(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                      \
    [INT8_##FORMAT_NAME] = {.name = NAME,                                                                    \
                            .features = FEATURES,                                                            \
                            .beaten = BEATEN(FORMAT_##FORMAT_NAME),                                          \
                            .inputs = LINEAR_INT8,                                                           \
                            .format = FORMAT_##FORMAT_NAME,                                                  \
                            .schedule = LINEAR_ONE_TOKEN,                                                    \
                            .gemv = format_##_gemv,                                                          \
                            .few = format_##_few,                                                            \
                            .apart = APART,                                                                  \
                            .streams = GEMV_STREAMS,                                                         \
                            .order = format_##_order,                                                        \
                            .ordered_bytes = format_##_ordered_bytes},
const struct linear_kernel KERNELS[INT8_FORMAT_COUNT] = {FORMATS(ROW)};
