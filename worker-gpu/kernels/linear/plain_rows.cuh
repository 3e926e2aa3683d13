/* Two rows of weights times one vector, by a warp: every format, shape and alignment, every device.
 *
 * Included by gemv_plain.cu and experts/plain.cu. Lanes load neighbouring pieces of both rows (decode.cuh), x
 * through the L1. */
#pragma once

#include "worker-gpu/kernels/formats/decode.cuh"

template <typename D>
__device__ __forceinline__ void add_pieces(const typename D::piece &wa, const typename D::piece &wb,
                                           const float *from, float &a, float &b)
{
    const uint32_t values = D::PIECE_VALUES;
    float fa[values], fb[values], x[values];
    D::unpack(wa, fa);
    D::unpack(wb, fb);
#pragma unroll
    for (uint32_t j = 0; j < values; j += 4)
        put4(x + j, *reinterpret_cast<const float4 *>(from + j / 4 * D::PIECE_APART));
#pragma unroll
    for (uint32_t j = 0; j < values; j++) a += fa[j] * x[j], b += fb[j] * x[j];
}
/* The sums of two rows over one vector, for all lanes. */
template <typename D, bool VECTOR>
__device__ __forceinline__ float2 two_rows(const unsigned char *row_a, const unsigned char *row_b,
                                           const float *x, uint32_t cols)
{
    const uint32_t lane = threadIdx.x & 31;
    float a = 0, b = 0;
    if constexpr (VECTOR) {
        const uint32_t values = D::PIECE_VALUES, step = 32 * values;
        uint32_t c = lane * values;
        for (; c + 3 * step < cols; c += 4 * step) {
            typename D::piece wa[4], wb[4]; /* eight loads in flight before the first is used */
#pragma unroll
            for (int j = 0; j < 4; j++)
                wa[j] = D::piece_at(row_a, c + j * step), wb[j] = D::piece_at(row_b, c + j * step);
#pragma unroll
            for (int j = 0; j < 4; j++) add_pieces<D>(wa[j], wb[j], x + D::piece_column(c) + j * step, a, b);
        }
        for (; c < cols; c += step)
            add_pieces<D>(D::piece_at(row_a, c), D::piece_at(row_b, c), x + D::piece_column(c), a, b);
    } else {
#pragma unroll 4
        for (uint32_t c = lane; c < cols; c += 32) {
            a += D::number(row_a, c) * x[c];
            b += D::number(row_b, c) * x[c];
        }
    }
    return make_float2(warp_sum(a), warp_sum(b));
}
