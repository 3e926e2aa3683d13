/* Weights in shared memory as fragments of tensor cores: what products of many tokens with weights as they
 * lie share.
 *
 * Included by gemm_blocks.cu, experts/chunk.cu and wide.cuh. Which k an element of a fragment is does not
 * matter as long as A and B agree: a lane's 16 elements of two rows are 8 neighbours of a run of 32 columns,
 * from its place in its group of four on, and those of x beside them. Where the matrix unit itself reads x
 * from shared memory columns keep their order. */
#pragma once

#include "worker-gpu/kernels/formats/decode.cuh"

/* A lane's 8 values of two rows of blocks, of run `run` of the blocks at `row` and `eighth`: fragments A of
 * two k16, of the bf16 values that gpuk_expand writes. */
template <typename D>
__device__ __forceinline__ void fragments_of_blocks(const unsigned char *row, const unsigned char *eighth,
                                                    uint32_t run, uint32_t a[2][4])
{
    typedef typename D::format F;
    typedef typename D::shared_words words;
    const words wa(row + F::ORIGIN), wb(eighth + F::ORIGIN);
    const uint32_t place = threadIdx.x & 3;
    block_scales s[2];
    F::scales_two(wa, wb, run, s[0], s[1]);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const float scale = F::GROUPS == 1 || place < 2 ? s[r].scale[0] : s[r].scale[1],
                    least = F::GROUPS == 1 || place < 2 ? s[r].least[0] : s[r].least[1];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t four = F::template four<0>(r ? wb : wa, run, 2 * place + k);
            float f[4];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                f[j] = scale * D::exact(four, j);
                if (F::LEAST) f[j] -= least;
            }
            a[k][r] = element<__nv_bfloat16>::pack(f[0], f[1]);
            a[k][2 + r] = element<__nv_bfloat16>::pack(f[2], f[3]);
        }
    }
}
/* The same of two rows of 16-bit numbers, whose run begins at `row` and `eighth`. */
__device__ __forceinline__ void fragments_of_plain(const unsigned char *row, const unsigned char *eighth,
                                                   uint32_t a[2][4])
{
    const uint32_t at = (threadIdx.x & 3) * 16;
    const uint4 u = *reinterpret_cast<const uint4 *>(row + at),
                v = *reinterpret_cast<const uint4 *>(eighth + at);
    a[0][0] = u.x, a[0][1] = v.x, a[0][2] = u.y, a[0][3] = v.y;
    a[1][0] = u.z, a[1][1] = v.z, a[1][2] = u.w, a[1][3] = v.w;
}
/* The same two rows' values with the columns in order: fragments A of columns 0 .. 15 and of 16 .. 31 of the
 * run. */
template <typename D>
__device__ __forceinline__ void fragments_in_order(const unsigned char *row, const unsigned char *eighth,
                                                   uint32_t run, uint32_t a[2][4])
{
    const uint32_t place = threadIdx.x & 3;
    if constexpr (D::SCALED) {
        typedef typename D::format F;
        typedef typename D::shared_words words;
        const words wa(row + F::ORIGIN), wb(eighth + F::ORIGIN);
        const uint32_t first = place % 2 * 2; /* of a word's four numbers */
        block_scales s[2];
        F::scales_two(wa, wb, run, s[0], s[1]);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t k = i / 4, r = i % 2, half = i / 2 % 2;
            const uint32_t four = F::template four<0>(r ? wb : wa, run, 4 * k + 2 * half + place / 2);
            float f[2];
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                f[j] = s[r].scale[F::GROUPS == 1 ? 0 : k] * D::exact(four, first + j);
                if (F::LEAST) f[j] -= s[r].least[F::GROUPS == 1 ? 0 : k];
            }
            a[k][i % 4] = element<__nv_bfloat16>::pack(f[0], f[1]);
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            a[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>((i % 2 ? eighth : row) + run * 64 +
                                                                  i / 4 * 32 + i / 2 % 2 * 16 + place * 4);
    }
}
/* Adds their products with a run of the tokens' x, of which row `token` begins at from + token * PITCH, a
 * lane's part at its place: to sums of N times 8 tokens, as far as there are `tokens`. */
template <typename T, uint32_t N, uint32_t PITCH>
__device__ __forceinline__ void fragments_multiply(const uint32_t a[2][4], const unsigned char *from,
                                                   uint32_t tokens, float sums[N][4])
{
#pragma unroll
    for (uint32_t n = 0; n < N; n += 4) {
        if (n * 8 >= tokens) break;
        uint4 b[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) b[j] = *reinterpret_cast<const uint4 *>(from + (n + j) * 8 * PITCH);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            matrix_unit<T>::add(sums[n + j], a[0][0], a[0][1], a[0][2], a[0][3], b[j].x, b[j].y);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            matrix_unit<T>::add(sums[n + j], a[1][0], a[1][1], a[1][2], a[1][3], b[j].z, b[j].w);
    }
}
