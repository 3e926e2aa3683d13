/* The decoder of blocks of few bits, over a format of blocks_formats.cuh or blocks_grids.cuh. See decode.cuh.
 *
 * A run, 32 neighbouring values, is one lane's unit of a tile. Its numbers stay bytes, four in a word, and
 * are multiplied by those of x (blocks_x.cuh) four at a time; its scales are applied to the sums. A piece is
 * 8 values of a run, 4 of its first and 4 of its last 16, which is what tensor cores' fragments and scales of
 * 16 values ask for; its numbers become fp32 by a byte permutation and a subtraction. */
#pragma once

#include "worker-gpu/kernels/formats/blocks_grids.cuh"
#include "worker-gpu/kernels/formats/blocks_x.cuh"
#include "worker-gpu/kernels/linear.cuh"

template <typename F> struct decode_block {
    typedef F format;
    static const bool TILES = true;
    typedef __nv_bfloat16 value; /* holds numbers as they are; what gpuk_expand writes is rounded to it */
    static const uint32_t VALUES = F::VALUES, BYTES = F::BYTES, RUNS = VALUES / 32;
    typedef block_words<1, false> any_words;
    typedef block_words<F::ALIGN, false> words;
    typedef block_words<F::ALIGN, true> shared_words;

    static __device__ __forceinline__ size_t bytes(uint32_t c) { return (size_t)(c / VALUES) * F::BYTES; }
    /* Number k of four as it is. */
    static __device__ __forceinline__ float exact(uint32_t four, uint32_t k)
    {
        return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540u | k)) - (float)(0x800000u + F::ZERO);
    }
    static __device__ __forceinline__ float number(const unsigned char *row, uint32_t c)
    {
        const any_words w(row + bytes(c) + F::ORIGIN);
        const uint32_t run = c % VALUES / 32, four = F::template four<0>(w, run, c % 32 / 4);
        const block_scales s = F::scales(w, run);
        const bool second = c % 32 >= 16;
        const float n = (float)(int)((four >> c % 4 * 8 & 255) - F::ZERO), least = s.least[second];
        return F::LEAST ? s.scale[second] * n - least : s.scale[second] * n;
    }

    /* ---- from device memory: a quarter of a run */

    struct piece {
        uint32_t four[2];
        block_scales scales;
    };
    static const uint32_t PIECE_VALUES = 8, PIECE_APART = 16;
    static const bool SCALED = true, LEAST = F::LEAST;
    static const uint32_t GROUPS = F::GROUPS;
    static __host__ __device__ __forceinline__ uint32_t piece_column(uint32_t c)
    {
        return (c & ~31u) + (c & 31u) / 2;
    }
    static bool takes_pieces(const struct gpuk_linear_args *args) { return gpuk_linear_begins(args); }
    static __device__ __forceinline__ piece piece_at(const unsigned char *row, uint32_t c)
    {
        const words w(row + bytes(c) + F::ORIGIN);
        const uint32_t run = c % VALUES / 32, i = c % 32 / 8;
        return {{F::template four<0>(w, run, i), F::template four<0>(w, run, i + 4)}, F::scales(w, run)};
    }
    static __device__ __forceinline__ void unpack(const piece &p, float *f)
    {
#pragma unroll
        for (uint32_t j = 0; j < PIECE_VALUES; j++) {
            const float n = exact(p.four[j / 4], j % 4);
            f[j] = p.scales.scale[j / 4] * n;
            if (LEAST) f[j] -= p.scales.least[j / 4];
        }
    }
    static __device__ __forceinline__ uint2 halves4(uint32_t four)
    {
        return make_uint2(element<value>::pack(exact(four, 0), exact(four, 1)),
                          element<value>::pack(exact(four, 2), exact(four, 3)));
    }
    static __device__ __forceinline__ uint4 halves(const piece &p)
    {
        const uint2 first = halves4(p.four[0]), second = halves4(p.four[1]);
        return make_uint4(first.x, first.y, second.x, second.y);
    }

    /* ---- of a tile in shared memory: a run, against x as whole numbers */

    static const bool LOOSE = F::BYTES % 16 != 0;
    static const uint32_t LINE_BYTES = 32 / RUNS * F::BYTES, LINE_QUADS = blocks_x::LINE_QUADS,
                          TILE = LINE_BYTES, TILE_LARGE = 2 * LINE_BYTES;
    static __device__ __forceinline__ uint32_t unit_offset(uint32_t lane)
    {
        return lane / RUNS * F::BYTES;
    }
    /* Adds a run's part to a row's sum, of the run's sums of products. Spelled out, as is what gemm_integer
     * does for several tokens: both have the same bits. (Times are powers of two, so where they are applied
     * makes no difference.) */
    static __device__ __forceinline__ void run_add(float &sum, const block_scales &s,
                                                   const blocks_x::sums sums[GROUPS], const blocks_x::run &x,
                                                   uint32_t run)
    {
        float products = __fmul_rn(s.scale[0], sums[0].total());
        if (GROUPS == 2) products = __fmaf_rn(s.scale[1], sums[GROUPS - 1].total(), products);
        sum = __fmaf_rn(__fmul_rn(products, F::whole_times(run)), x.scale, sum);
        if (!LEAST) return;
        const float all = GROUPS == 1 ? __fadd_rn(x.sum[0], x.sum[1]) : x.sum[0];
        sum = __fmaf_rn(-run_least(s, 0, run), all, sum);
        if (GROUPS == 2) sum = __fmaf_rn(-run_least(s, GROUPS - 1, run), x.sum[1], sum);
    }
    /* The amount subtracted for each of x, including the numbers' shortfall. */
    static __device__ __forceinline__ float run_least(const block_scales &s, uint32_t group, uint32_t run)
    {
        return __fmaf_rn(-s.scale[group], F::whole_zero(run), s.least[group]);
    }
    /* A lane's part of the sums of a line of two rows, of which `bytes` are there. */
    static __device__ __forceinline__ void line_add(const unsigned char *row_a, const unsigned char *row_b,
                                                    uint32_t bytes, const float4 *x, float &a, float &b)
    {
        const uint32_t lane = threadIdx.x & 31, run = lane % RUNS;
        if (unit_offset(lane) >= bytes) return;
        const shared_words wa(row_a + unit_offset(lane) + F::ORIGIN),
            wb(row_b + unit_offset(lane) + F::ORIGIN);
        block_scales scales_a, scales_b;
        F::scales_two(wa, wb, run, scales_a, scales_b);
        blocks_x::sums sums_a[GROUPS] = {}, sums_b[GROUPS] = {};
        const uint4 *digits = blocks_x::digits(x);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t four_a[4], four_b[4];
            F::whole(wa, run, half, four_a), F::whole(wb, run, half, four_b);
#pragma unroll
            for (uint32_t k = 0; k < blocks_x::DIGITS; k++) {
                const uint4 quad = digits[(2 * k + half) * 32];
                const uint32_t word[4] = {quad.x, quad.y, quad.z, quad.w}, g = half % GROUPS;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    sums_a[g].add(four_a[i], k, word[i]), sums_b[g].add(four_b[i], k, word[i]);
            }
        }
        const blocks_x::run x_run = blocks_x::run_of(x);
        run_add(a, scales_a, sums_a, x_run, run);
        run_add(b, scales_b, sums_b, x_run, run);
    }

    /* ---- for gpuk_expand: half a run a lane, 8 values of its first and 8 of its last 16, so that two lanes
     * store 32 bytes that belong together; twice, both loaded before either is stored */

    static const bool EXPANDS = true;
    static const uint32_t GROUP_ROWS = 1, TILE_VALUES = 2 * 512, EXPAND_BLOCKS = 4;
    static bool takes(const struct gpuk_expand_part &part)
    {
        return tensor_format_takes(part.format, part.rows, part.cols);
    }
    static bool aligned(const struct gpuk_expand_part &part)
    {
        return (uintptr_t)part.weight % F::ALIGN == 0;
    }
    static __device__ __forceinline__ void expand(const struct gpuk_expand_part &part, uint32_t row,
                                                  uint32_t tile, uint32_t lane)
    {
        const unsigned char *from = static_cast<const unsigned char *>(part.weight) + row * bytes(part.cols);
        value *to = static_cast<value *>(part.out) + (size_t)row * part.cols;
        const uint32_t half = lane % 2, first = tile * TILE_VALUES + lane / 2 * 32;
        uint32_t four[2][4];
        block_scales scales[2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t c = first + k * 512 < part.cols ? first + k * 512 : 0, run = c % VALUES / 32;
            const words w(from + bytes(c) + F::ORIGIN);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                four[k][i] = F::template four<0>(w, run, i / 2 * 4 + 2 * half + i % 2);
            scales[k] = F::scales(w, run);
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t c = first + k * 512;
            if (c >= part.cols) break;
#pragma unroll
            for (uint32_t group = 0; group < 2; group++) {
                float f[8];
#pragma unroll
                for (uint32_t j = 0; j < 8; j++) {
                    const float n = exact(four[k][group * 2 + j / 4], j % 4);
                    f[j] = scales[k].scale[group] * n;
                    if (LEAST) f[j] -= scales[k].least[group];
                }
                store8(to + c + group * 16 + half * 8, f);
            }
        }
    }
};
