/* One token: a chunk's rows are read as several long streams, because one core draws the memory's full bandwidth
 * only with enough lines in flight.
 *
 * Included behind lanes256.h or lanes512.h and a decoder, which defines of its format (a constant wherever it is
 * inlined):
 *   size_t decode_bytes(values, format)        bytes of neighbouring values of a row, whole blocks of them
 *   vec decode_part(row, i, left, format)      values i .. i + LANES - 1 as fp32, those from `left` on as 0;
 *                                              i is a multiple of LANES
 * Blocks are of 8 * LANES values or a part of that. */
#ifndef HELM_COMMON_CPU_KERNELS_GEMV_SIMD_H
#define HELM_COMMON_CPU_KERNELS_GEMV_SIMD_H

#include "common/cpu/kernels/variants.h"

/* Measured on one Zen 5 core, which reads 45 GB/s with plain loads, AVX-512, bf16 at 12288 / 4096 columns: 3 streams
 * 2 KiB ahead 41.8 / 42.6 GB/s, 2 streams 39.4 / 41.4, 4 streams 38.2 / 39.9, 1 stream 31 / 40; two cores together
 * are limited by memory (50 GB/s) long before that. 128 columns an iteration beat 32 by 4 %. */
#define GEMV_STREAMS 3
#define GEMV_BLOCK   ((size_t)8 * LANES)

/* Where streams fetch: `near` and `far` bytes ahead, and past their ends, which are `left` bytes from the
 * row's beginning, `jump` bytes further and next_stride bytes from each other: what this thread reads next.
 */
struct gemv_path {
    uintptr_t near, far, left, jump, next_stride;
};

/* `S` rows, `row_stride` rows apart; every row is summed in the same order whatever S is. */
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
        const bool near_on = to + path->near < path->left, far_on = to + path->far < path->left;
        const uintptr_t near_at = begin + to + path->near + (near_on ? 0 : path->jump),
                        near_stride = near_on ? stride : path->next_stride,
                        far_at = begin + to + path->far + (far_on ? 0 : path->jump),
                        far_stride = far_on ? stride : path->next_stride;
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *at = w + s * stride + to;
            UNROLL for (size_t i = 0; i < decode_bytes(GEMV_BLOCK, format); i += 64)
            {
                if (two_levels) _mm_prefetch((const char *)(far_at + s * far_stride + i), _MM_HINT_T1);
                _mm_prefetch((const char *)(near_at + s * near_stride + i), _MM_HINT_T0);
            }
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

INLINE void gemv_streams(float *y, const char *w, const float *x, size_t rows, size_t cols,
                         const struct gemv_reads *reads, const bool two_levels,
                         const enum tensor_format format)
{
    const size_t row_bytes = decode_bytes(cols, format), each = rows / GEMV_STREAMS, run = each * row_bytes;
    const char *rest = w + run * GEMV_STREAMS, *end = w + rows * row_bytes;
    struct gemv_path path = {.near = reads->near, .far = reads->far, .left = run, .next_stride = run};
    if (reads->next) {
        path.jump = (uintptr_t)reads->next - (uintptr_t)(w + run);
        path.next_stride = reads->next_stride;
    }
    for (size_t r = 0; r < each; r++, path.left -= row_bytes)
        gemv_rows(y + r, each, w + r * row_bytes, x, cols, &path, GEMV_STREAMS, two_levels, format);
    if (reads->next) path.jump = (uintptr_t)reads->next - (uintptr_t)end;
    path.left = (size_t)(end - rest);
    for (size_t r = each * GEMV_STREAMS; r < rows; r++, path.left -= row_bytes)
        gemv_rows(y + r, 1, w + r * row_bytes, x, cols, &path, 1, two_levels, format);
}

INLINE void gemv(float *y, const char *w, const float *x, size_t rows, size_t cols,
                 const struct gemv_reads *reads, const enum tensor_format format)
{
    static const struct gemv_reads plain = {.near = GEMV_NEAR};
    if (!reads) reads = &plain;
    if (reads->far)
        gemv_streams(y, w, x, rows, cols, reads, true, format);
    else
        gemv_streams(y, w, x, rows, cols, reads, false, format);
}

#endif
