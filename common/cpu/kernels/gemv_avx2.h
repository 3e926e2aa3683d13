/* One token with AVX2 and FMA: the schedule of gemv_avx512.h at half the width.
 *
 * Included behind lanes256.h and a decoder, which defines of its format (a constant wherever it is inlined):
 *   size_t decode_bytes(values, format)            bytes of neighbouring values of a row, whole blocks of them
 *   __m256 decode_values(row, i, format)           values i .. i + 7 as fp32; i is a multiple of 8
 *   float decode_value(row, i, format)             value i
 * Blocks are of 64 values or a part of that. */
#ifndef HELM_COMMON_CPU_KERNELS_GEMV_AVX2_H
#define HELM_COMMON_CPU_KERNELS_GEMV_AVX2_H

#include "common/cpu/kernels/variants.h"

#define GEMV_STREAMS 3
#define GEMV_BLOCK   64 /* columns an iteration */

/* As in gemv_avx512.h. */
struct gemv_path {
    uintptr_t near, far, left, jump, next_stride;
};

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format);
    const uintptr_t begin = (uintptr_t)w;
    __m256 even[GEMV_STREAMS], odd[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) even[s] = odd[s] = _mm256_setzero_ps();
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
            UNROLL for (size_t i = 0; i < GEMV_BLOCK; i += 16)
            {
                even[s] = _mm256_fmadd_ps(decode_values(at, i, format), _mm256_loadu_ps(x + c + i), even[s]);
                odd[s] =
                    _mm256_fmadd_ps(decode_values(at, i + 8, format), _mm256_loadu_ps(x + c + i + 8), odd[s]);
            }
        }
    }
    for (; c + 16 <= cols; c += 16) {
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const char *row = w + s * stride;
            even[s] = _mm256_fmadd_ps(decode_values(row, c, format), _mm256_loadu_ps(x + c), even[s]);
            odd[s] = _mm256_fmadd_ps(decode_values(row, c + 8, format), _mm256_loadu_ps(x + c + 8), odd[s]);
        }
    }
    UNROLL for (size_t s = 0; s < S; s++)
    {
        float sum = sum_lanes(_mm256_add_ps(even[s], odd[s]));
        for (size_t i = c; i < cols; i++) sum += decode_value(w + s * stride, i, format) * x[i];
        y[s * row_stride] = sum;
    }
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
