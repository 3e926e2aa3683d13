/* One token, values decoded to fp32 a vector at a time and summed as they are; see gemv_streams.h.
 *
 * Included after lanes256.h or lanes512.h and a decoder, which defines of its format (a constant wherever it
 * is inlined):
 *   size_t decode_bytes(values, format)        bytes of neighbouring values of a row, whole blocks of them
 *   vec decode_part(row, i, left, format)      values i .. i + LANES - 1 as fp32, those from `left` on as 0;
 *                                              i is a multiple of LANES
 * Blocks are of 8 * LANES values or a part of that. */
#pragma once

/* Measured on one Zen 5 core, which reads 45 GB/s with plain loads, AVX-512, bf16 at 12288 / 4096 columns: 3
 * streams 2 KiB ahead 41.8 / 42.6 GB/s, 2 streams 39.4 / 41.4, 4 streams 38.2 / 39.9, 1 stream 31 / 40; two
 * cores together are limited by memory (50 GB/s) long before that. 128 columns an iteration beat 32 by 4
 * %. */
#define GEMV_STREAMS 3
#define GEMV_BLOCK   ((size_t)8 * LANES)
#include "common/cpu/kernels/gemv_streams.h"

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format);
    const uintptr_t begin = (uintptr_t)w;
    vec even[GEMV_STREAMS], odd[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) even[s] = odd[s] = vec_zero();
    size_t c = 0;
    for (; c + GEMV_BLOCK <= cols; c += GEMV_BLOCK) {
        const size_t to = decode_bytes(c, format);
        const struct gemv_ahead ahead = gemv_ahead(path, begin, to, stride);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *at = w + s * stride + to;
            gemv_fetch(ahead, s, decode_bytes(GEMV_BLOCK, format), two_levels);
            UNROLL for (size_t i = 0; i < GEMV_BLOCK; i += 2 * LANES)
            {
                even[s] = vec_fmadd(decode_part(at, i, LANES, format), vec_load(x + c + i), even[s]);
                odd[s] =
                    vec_fmadd(decode_part(at, i + LANES, LANES, format), vec_load(x + c + i + LANES), odd[s]);
            }
        }
    }
    for (; c + 2 * LANES <= cols; c += 2 * LANES) {
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *row = w + s * stride;
            even[s] = vec_fmadd(decode_part(row, c, LANES, format), vec_load(x + c), even[s]);
            odd[s] = vec_fmadd(decode_part(row, c + LANES, LANES, format), vec_load(x + c + LANES), odd[s]);
        }
    }
    for (; c < cols; c += LANES) {
        const size_t left = cols - c;
        const vec xs = vec_load_part(x + c, left);
        UNROLL for (size_t s = 0; s < S; s++) even[s] =
            vec_fmadd(decode_part(w + s * stride, c, left, format), xs, even[s]);
    }
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] = vec_reduce_add(vec_add(even[s], odd[s]));
}
