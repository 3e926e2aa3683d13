/* Rows of one token with activations of 8 bits, and the table of a file's kernels of them. Included behind
 *   order_as, add_chunk                  of the format that is their last argument; add_chunk takes some blocks of 32
 *                                        columns of S rows, all of a chunk's or a row's last ones
 *   CHUNK, size_t chunk_x_bytes(format)  columns that x is ordered by, and their bytes
 *   NAME, FEATURES                       of the kernels
 *   KERNELS                              their table, by the formats' numbers in int8.h */
#ifndef HELM_COMMON_CPU_KERNELS_INT8_GEMV_H
#define HELM_COMMON_CPU_KERNELS_INT8_GEMV_H

#include "common/cpu/kernels/variants.h"

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format), chunk_bytes = decode_bytes(CHUNK, format);
    const uint8_t *at = (const uint8_t *)w;
    const char *xs = (const char *)x;
    vec total[GEMV_STREAMS], least[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) total[s] = least[s] = vec_zero();
    size_t c = 0;
    for (; c + CHUNK <= cols; c += CHUNK, at += chunk_bytes, xs += chunk_x_bytes(format)) {
        const struct gemv_ahead ahead = gemv_ahead(path, (uintptr_t)w, decode_bytes(c, format), stride);
        UNROLL for (size_t s = 0; s < S; s++) gemv_fetch(ahead, s, chunk_bytes, two_levels);
        add_chunk(total, least, at, stride, xs, 8, S, format);
    }
    if (block_values(format) < CHUNK && c < cols)
        add_chunk(total, least, at, stride, xs, (cols - c) / INT8_BLOCK, S, format);
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] =
        vec_reduce_add(has_least(format) ? vec_add(total[s], least[s]) : total[s]);
}

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
