/* The decoder of blocks of few bits, over a format of blocks_formats.cuh. See decode.cuh.
 *
 * Tensor cores multiply numbers as they lie: a byte n in 16 bits is the f16 n * 2^-24, with no conversion, and fp32 sums
 * of products of 32 neighbouring values, a run, are what its scale is applied to. What numbers as bytes are too large by,
 * or the values' least, is taken off by the run's sum of x. A piece is 8 values of a run, 4 of its first and 4 of its
 * last 16, which is what fragments and scales of 16 values ask for. */
#ifndef HELM_WORKER_GPU_KERNELS_DECODE_BLOCKS_CUH
#define HELM_WORKER_GPU_KERNELS_DECODE_BLOCKS_CUH

#include "worker-gpu/kernels/blocks_formats.cuh"
#include "worker-gpu/kernels/blocks_x.cuh"
#include "worker-gpu/kernels/linear.cuh"

template <typename F> struct decode_block {
    typedef F format;
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
        const uint32_t run = c % VALUES / 32, four = F::four(w, run, c % 32 / 4);
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
        return {{F::four(w, run, i), F::four(w, run, i + 4)}, F::scales(w, run)};
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

    /* ---- of a tile in shared memory: 1,024 columns of two rows */

    static const bool LOOSE = F::BYTES % 16 != 0;
    static const uint32_t LINE_BYTES = 32 / RUNS * F::BYTES, LINE_QUADS = X_LINE_QUADS, TILE = LINE_BYTES,
                          TILE_LARGE = 2 * LINE_BYTES;
    static const bool LARGE = RUNS > 1;
    /* The block of a line's run; which of the block's runs it is. */
    static __device__ __forceinline__ shared_words block_of(const unsigned char *row, uint32_t run)
    {
        return shared_words(row + run / RUNS * F::BYTES + F::ORIGIN);
    }
    /* The sum of a run's values times x, of the sums of its numbers times x. */
    static __device__ __forceinline__ float run_sum(const block_scales &s, float times, const float *sums,
                                                    const x_run &x)
    {
        const float of_x[2] = {GROUPS == 1 ? x.first + x.second : x.first, x.second};
        float total = 0;
#pragma unroll
        for (uint32_t h = 0; h < GROUPS; h++) {
            const float sum = sums[h] * times;
            if (LEAST) total += s.scale[h] * sum - s.least[h] * of_x[h];
            if (!LEAST) total += s.scale[h] * (sum - (float)F::ZERO * of_x[h]);
        }
        return total * x.factor;
    }
    /* A lane's part of the sums of two rows, of which `bytes` are there; by the whole warp. Without a branch, and with
     * sums of x's two parts apart, so that few instructions wait for one another. */
    static __device__ __forceinline__ void line_add(const unsigned char *row_a, const unsigned char *row_b,
                                                    uint32_t bytes, const float4 *x, float &a, float &b)
    {
        const x_line *line = reinterpret_cast<const x_line *>(x);
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, mine = (t - g / 2) & 3,
                       own = x_run_of(LARGE, mine, g);
        float sum[4][2][GROUPS][4] = {}, own_a[GROUPS], own_b[GROUPS];
        uint4 parts[4][2];
#pragma unroll
        for (uint32_t product = 0; product < 4; product++)
#pragma unroll
            for (uint32_t part = 0; part < 2; part++) parts[product][part] = line->part[product][part][lane];
        const x_run with = line->run[own];
        block_scales scales_a, scales_b;
        F::scales_two(block_of(row_a, own), block_of(row_b, own), own % RUNS, scales_a, scales_b);
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            uint2 u[4], v[4];
#pragma unroll
            for (uint32_t product = 0; product < 4; product++) {
                const uint32_t run = x_run_of(LARGE, product, g), of_block = LARGE ? g % 2 * 4 + product : 0;
                u[product] = F::apart(block_of(row_a, run), of_block, t + 4 * h);
                v[product] = F::apart(block_of(row_b, run), of_block, t + 4 * h);
            }
#pragma unroll
            for (uint32_t product = 0; product < 4; product++)
#pragma unroll
                for (uint32_t part = 0; part < 2; part++) {
                    const uint4 &xs = parts[product][part];
                    const uint2 &u2 = u[product], &v2 = v[product];
                    matrix_unit<__half>::add(sum[product][part][h % GROUPS], u2.x, v2.x, u2.y, v2.y,
                                             h ? xs.z : xs.x, h ? xs.w : xs.y);
                }
        }
#pragma unroll
        for (uint32_t product = 0; product < 4; product++)
#pragma unroll
            for (uint32_t h = 0; h < GROUPS; h++) {
                const float *high = sum[product][0][h], *low = sum[product][1][h];
                const float sum_a = g & 1 ? high[1] + low[1] : high[0] + low[0],
                            sum_b = g & 1 ? high[3] + low[3] : high[2] + low[2];
                if (product == 0 || product == mine) own_a[h] = sum_a, own_b[h] = sum_b;
            }
        const float times = 1 / F::times(own % RUNS);
        const bool there = own < bytes / F::BYTES * RUNS;
        a += there ? run_sum(scales_a, times, own_a, with) : 0;
        b += there ? run_sum(scales_b, times, own_b, with) : 0;
    }

    /* ---- for gpuk_expand: half a run a lane, 8 values of its first and 8 of its last 16, so that two lanes store 32
     * bytes that belong together; twice, both loaded before either is stored */

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
            for (uint32_t i = 0; i < 4; i++) four[k][i] = F::four(w, run, i / 2 * 4 + 2 * half + i % 2);
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

#endif
