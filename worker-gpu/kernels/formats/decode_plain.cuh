/* The decoder of single numbers, in sequence: bf16, f16, f32. See decode.cuh. */
#pragma once

#include "worker-gpu/kernels/linear.cuh"

template <typename T> struct decode_plain {
    typedef T value;
    static const bool TILES = true;
    static const bool EXPANDS = false;

    static __device__ __forceinline__ size_t bytes(uint32_t c) { return (size_t)c * sizeof(T); }
    static __device__ __forceinline__ float number(const unsigned char *row, uint32_t c)
    {
        return element<T>::load(reinterpret_cast<const T *>(row)[c]);
    }

    /* ---- from device memory: 16 bytes */

    typedef uint4 piece;
    static const uint32_t PIECE_VALUES = 16 / sizeof(T), PIECE_APART = 4;
    static const bool SCALED = false;
    static __host__ __device__ __forceinline__ uint32_t piece_column(uint32_t c) { return c; }
    static bool takes_pieces(const struct gpuk_linear_args *args) { return gpuk_linear_aligned(args); }
    static __device__ __forceinline__ piece piece_at(const unsigned char *row, uint32_t c)
    {
        return load_weight16(row + bytes(c));
    }
    static __device__ __forceinline__ void unpack(const piece &p, float *f) { unpack16<T>(p, f); }
    static __device__ __forceinline__ uint4 halves(const piece &p) { return p; }

    /* ---- of a tile in shared memory: 16 bytes */

    typedef uint4 unit;
    static const bool LOOSE = false;
    static const uint32_t UNIT_VALUES = 16 / sizeof(T), LINE_BYTES = 512, LINE_QUADS = 8 * UNIT_VALUES,
                          TILE = 1024, TILE_LARGE = 2048;
    static __device__ __forceinline__ uint32_t unit_offset(uint32_t lane) { return lane * 16; }
    static __device__ __forceinline__ unit unit_at(const unsigned char *line, uint32_t lane)
    {
        return *reinterpret_cast<const uint4 *>(line + unit_offset(lane));
    }
    static __device__ __forceinline__ unit unit_none() { return make_uint4(0, 0, 0, 0); }
    /* The sums of two rows against x, whose float4 number j lies at from[32 * j]; even and odd columns apart,
     * for shorter chains of additions. */
    static __device__ __forceinline__ void unit_add(const unit &wa, const unit &wb, const float4 *from,
                                                    float2 &a, float2 &b)
    {
        float fa[UNIT_VALUES], fb[UNIT_VALUES], fx[UNIT_VALUES];
#pragma unroll
        for (uint32_t j = 0; j < UNIT_VALUES; j += 4) put4(fx + j, from[j * 8]);
        unpack16<T>(wa, fa);
        unpack16<T>(wb, fb);
#pragma unroll
        for (uint32_t j = 0; j < UNIT_VALUES; j += 2) {
            a.x += fa[j] * fx[j], a.y += fa[j + 1] * fx[j + 1];
            b.x += fb[j] * fx[j], b.y += fb[j + 1] * fx[j + 1];
        }
    }
};
