/* One token's x for products with blocks: whole numbers, so that products of four weights are one
 * instruction.
 *
 * Included by decode_blocks.cuh. A run of 32 numbers of x has a power of two for a scale, and each number is
 * that many times a whole one of 22 bits and a sign (an error of 2^-22 of the run's largest at most), which
 * lies as DIGITS bytes with signs: of 1, 256 and 65,536. Sums of products in a run are exact. A run with an
 * infinite number or one that is none has NaN for a scale.
 *
 * In shared memory a line, what 32 lanes meet at once, is for each digit the runs' first 16 bytes, then their
 * last 16, then a blocks_x_run of each. */
#pragma once

#include "worker-gpu/kernels/tile.cuh"

struct blocks_x {
    static const uint32_t DIGITS = 3, LINE_QUADS = (2 * DIGITS + 1) * 32; /* quads: 16 bytes */

    struct alignas(16) run {
        float scale, sum[2], unused; /* sums of its first 16 numbers and of the others */
    };
    static __device__ __forceinline__ const uint4 *digits(const float4 *line)
    {
        return reinterpret_cast<const uint4 *>(line) + (threadIdx.x & 31);
    }
    static __device__ __forceinline__ run run_of(const float4 *line)
    {
        return reinterpret_cast<const run *>(line + 64 * DIGITS)[threadIdx.x & 31];
    }

    /* Four neighbours of x as whole numbers: a word of each digit; their run's scale, and the sums of its
     * first (the others, in the lanes of these) 16 numbers, then of the others. */
    struct four {
        uint32_t digit[DIGITS];
        float scale, sum, last;
    };
    /* By a whole warp, whose lanes have neighbours, the first a run's first. */
    static __device__ __forceinline__ four four_of(const float4 &v)
    {
        const uint32_t magnitude = 0x7fffffffu, infinite = 0x7f800000u;
        const uint32_t all = 0xffffffffu;
        uint32_t most = max(max(__float_as_uint(v.x) & magnitude, __float_as_uint(v.y) & magnitude),
                            max(__float_as_uint(v.z) & magnitude, __float_as_uint(v.w) & magnitude));
#pragma unroll
        for (int mask = 1; mask < 8; mask <<= 1) most = max(most, __shfl_xor_sync(all, most, mask));
        /* 2^e of the largest's exponent; of smaller ones than 2^-105 the scale stays a normal number */
        const uint32_t power = max(most & infinite, 22u << 23);
        const float scale = __uint_as_float(power < infinite ? power - (21u << 23) : 0x7fc00000u),
                    inverse = __uint_as_float((275u << 23) - power);
        /* 1.5 * 2^23 + n has n in its low bits; digits with a sign are those of a number 0x8080 larger, less
         * 128 */
        const float centre = 12582912.0f;
        const uint32_t off = 0x4b400000u - 0x8080u;
        const uint32_t a = __float_as_uint(__fmaf_rn(v.x, inverse, centre)) - off,
                       b = __float_as_uint(__fmaf_rn(v.y, inverse, centre)) - off,
                       c = __float_as_uint(__fmaf_rn(v.z, inverse, centre)) - off,
                       d = __float_as_uint(__fmaf_rn(v.w, inverse, centre)) - off;
        int sum = (int)(a + b + c + d - 4 * 0x8080u);
        sum += __shfl_xor_sync(all, sum, 1);
        sum += __shfl_xor_sync(all, sum, 2);
        const int last = __shfl_xor_sync(all, sum, 4);
        const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140),
                       high = __byte_perm(__byte_perm(a, b, 0x0062), __byte_perm(c, d, 0x0062), 0x5410);
        return {{__byte_perm(ab, cd, 0x5410) ^ 0x80808080u, __byte_perm(ab, cd, 0x7632) ^ 0x80808080u, high},
                scale,
                scale * (float)sum,
                scale * (float)last};
    }
    /* Quad f of x, v, to its place in the lines from x4 on. Lanes after the end, whole runs, are not
     * `there`. */
    static __device__ __forceinline__ void put(float4 *x4, uint32_t f, bool there, const float4 &v)
    {
        const four of = four_of(v);
        if (!there) return;
        const uint32_t lane = (f & 255) / 8, i = f & 7;
        float4 *line = x4 + f / 256 * LINE_QUADS;
        uint32_t *to = reinterpret_cast<uint32_t *>(line + i / 4 * 32 + lane) + i % 4;
        to[0] = of.digit[0], to[64 * 4] = of.digit[1], to[128 * 4] = of.digit[2];
        if (i == 0) line[64 * DIGITS + lane] = make_float4(of.scale, of.sum, of.last, 0);
    }

    /* All of x, times the weights of the norm, if there is one; returns the thread's part of the sum of
     * squares then, else 0. By whole warps. */
    static __device__ __forceinline__ float put_all(const float *x, const float *norm, uint32_t cols,
                                                    float4 *x4, uint32_t thread, uint32_t threads)
    {
        const uint32_t quads = cols / 4;
        float squares = 0;
#pragma unroll 4
        for (uint32_t f = thread; (f & ~31u) < quads; f += threads) {
            const bool there = f < quads;
            float4 v = make_float4(0, 0, 0, 0);
            if (there) {
                v = __ldcg(reinterpret_cast<const float4 *>(x) + f);
                if (norm) {
                    const float4 n = __ldg(reinterpret_cast<const float4 *>(norm) + f);
                    squares = add_squares(squares, v);
                    v = make_float4(v.x * n.x, v.y * n.y, v.z * n.z, v.w * n.w);
                }
            }
            put(x4, f, there, v);
        }
        return squares;
    }

    /* Sums of products of each digit, of one row. */
    struct sums {
        int of[DIGITS];

        __device__ __forceinline__ void add(uint32_t four, uint32_t digit, uint32_t x)
        {
            of[digit] = __dp4a((int)four, (int)x, of[digit]);
        }
        __device__ __forceinline__ float total() const
        {
            return __fmaf_rn((float)of[2], 65536.0f, (float)(of[1] * 256 + of[0]));
        }
    };
};
