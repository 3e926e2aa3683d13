/* One token's x in shared memory as products with blocks of few bits take it (decode_blocks.cuh: line_add).
 *
 * A line is 1,024 columns: 32 runs of 32. The tensor cores multiply 8 runs at a time, one of each row of fragment A with
 * one of each column of fragment B, and only what lies on a diagonal is wanted. Diagonals of the four products differ,
 * so that each lane ends with one run's sums: run (product, row g), whose x is in column (g + 2 product) % 8, is that of
 * lane 4 g + (g / 2 + product) % 4. x is a high and a low f16 part, times a power of two for each run. */
#ifndef HELM_WORKER_GPU_KERNELS_BLOCKS_X_CUH
#define HELM_WORKER_GPU_KERNELS_BLOCKS_X_CUH

#include "worker-gpu/kernels/device.cuh"

/* What a run's sums of f16 products are multiplied by, and the sums of x of its halves before that. */
struct alignas(16) x_run {
    float factor, first, second, unused;
};
struct x_line {
    uint4 part[4][2][32]; /* [product][high, low][lane]: its fragment B of two instructions */
    x_run run[32];
};
static const uint32_t X_LINE_QUADS = sizeof(x_line) / 16;

/* A line's run: of blocks of 256 four neighbours meet in a row, which share words; of 32 those that lie 8 apart, whose
 * words lie in different banks. */
__host__ __device__ __forceinline__ uint32_t x_run_of(bool large, uint32_t product, uint32_t g)
{
    return large ? 4 * g + product : 8 * product + g;
}

/* Numbers of blocks are bytes in 16 bits: n * 2^-24 as f16. */
static const float X_NUMBER = 16777216.0f;

/* Stores float4 number f of x, unless !there; by a whole warp, whose lanes have neighbours from a multiple of 32 on. */
__device__ __forceinline__ void x_line_put(x_line *lines, uint32_t f, const float4 &v, bool there, bool large)
{
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int mask = 1; mask <= 4; mask <<= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    /* into [2^14, 2^15), where neither the power nor its inverse times X_NUMBER leaves fp32 */
    int power = 141 - (int)(__float_as_uint(most) >> 23);
    power = power > 126 ? 126 : power < -100 ? -100 : power;
    const float by = __uint_as_float((uint32_t)(127 + power) << 23),
                back = __uint_as_float((uint32_t)(127 - power) << 23) * X_NUMBER;
    const float e[4] = {v.x * by, v.z * by, v.y * by, v.w * by}; /* even ones, odd ones */
    uint32_t high[2], low[2];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float a, b, c, d;
        high[j] = element<__half>::pack(e[2 * j], e[2 * j + 1]);
        element<__half>::unpack(high[j], a, b);
        low[j] = element<__half>::pack(e[2 * j] - a, e[2 * j + 1] - b);
        element<__half>::unpack(low[j], c, d);
        sum += (a + b) + (c + d);
    }
#pragma unroll
    for (int mask = 1; mask <= 2; mask <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const float second = __shfl_xor_sync(0xffffffffu, sum, 4);
    if (!there) return;
    x_line *line = lines + f / 256;
    const uint32_t run = f / 8 % 32, product = large ? run % 4 : run / 8, g = large ? run / 4 : run % 8;
    const uint32_t lane = (g + 2 * product) % 8 * 4 + f % 4, half = f / 4 % 2;
    reinterpret_cast<uint2 *>(&line->part[product][0][lane])[half] = make_uint2(high[0], high[1]);
    reinterpret_cast<uint2 *>(&line->part[product][1][lane])[half] = make_uint2(low[0], low[1]);
    if (f % 8 == 0) line->run[run] = {back, sum * (1 / X_NUMBER), second * (1 / X_NUMBER), 0};
}

#endif
