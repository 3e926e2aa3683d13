/* One token: a call's rows are read as several long streams, because one core draws the memory's full
 * bandwidth only with enough lines in flight; what is fetched past a stream's end is what the thread reads
 * next.
 *
 * Included after lanes256.h or lanes512.h by files that define, of their format (a constant wherever it is
 * inlined):
 *   GEMV_STREAMS                          how many streams
 *   size_t decode_bytes(values, format)   bytes of neighbouring values of a row, whole blocks of them
 *   gemv_rows                             declared here: `S` rows, row_stride rows apart; every row is summed
 *                                         in the same order whatever S is */
#pragma once

#include "common/cpu/kernels/variants.h"
#include "common/formats/tensor_format.h"

/* Where streams fetch: `near` and `far` bytes ahead, and past their ends, which are `left` bytes from the
 * row's beginning, `jump` bytes further and next_stride bytes from each other: what this thread reads next.
 */
struct gemv_path {
    uintptr_t near, far, left, jump, next_stride;
};

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format);

/* Places to fetch while the streams, `stride` bytes apart, are at `to` of their rows. */
struct gemv_ahead {
    uintptr_t near, near_stride, far, far_stride;
};
INLINE struct gemv_ahead gemv_ahead(const struct gemv_path *path, uintptr_t begin, size_t to, size_t stride)
{
    const bool near_on = to + path->near < path->left, far_on = to + path->far < path->left;
    return (struct gemv_ahead){.near = begin + to + path->near + (near_on ? 0 : path->jump),
                               .near_stride = near_on ? stride : path->next_stride,
                               .far = begin + to + path->far + (far_on ? 0 : path->jump),
                               .far_stride = far_on ? stride : path->next_stride};
}
INLINE void gemv_fetch(struct gemv_ahead ahead, size_t s, size_t bytes, const bool two_levels)
{
    UNROLL for (size_t i = 0; i < bytes; i += 64)
    {
        if (two_levels) _mm_prefetch((const char *)(ahead.far + s * ahead.far_stride + i), _MM_HINT_T1);
        _mm_prefetch((const char *)(ahead.near + s * ahead.near_stride + i), _MM_HINT_T0);
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
