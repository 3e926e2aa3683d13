/* The decoder of FP8 (common/formats/fp8.h): numbers of E4M3, 128 of which have a scale. See decode.cuh. Its
 * numbers are none that products of whole ones take, so it has the schedules that any values have (gemv_plain
 * and the like), and of many tokens the library's product with what it is expanded to. */
#pragma once

#include "common/formats/fp8.h"
#include "worker-gpu/kernels/formats/blocks_words.cuh"
#include "worker-gpu/kernels/linear.cuh"

struct decode_fp8 {
    typedef float value; /* no tensor core's: schedules of 16-bit values leave it out */
    static const bool TILES = false, SCALED = false;

    static __device__ __forceinline__ size_t bytes(uint32_t c)
    {
        return (size_t)(c / FP8_VALUES) * FP8_BYTES;
    }
    /* Bytes 0 and 1 of `two`, in 16 bits each: as fp16 they are 256 times smaller. */
    static __device__ __forceinline__ void numbers(uint32_t two, float &a, float &b)
    {
        element<__half>::unpack((two & 0x007f007fu) << 7 | (two & 0x00800080u) << 8, a, b);
        a *= 256, b *= 256;
    }
    static __device__ __forceinline__ float number(const unsigned char *row, uint32_t c)
    {
        const unsigned char *block = row + bytes(c);
        float n, none;
        numbers(__ldg(block + 4 + c % FP8_VALUES), n, none);
        return n * __ldg(reinterpret_cast<const float *>(block));
    }

    /* ---- from device memory: 8 neighbours */

    struct piece {
        uint32_t four[2];
        float scale;
    };
    static const uint32_t PIECE_VALUES = 8, PIECE_APART = 4;
    static __host__ __device__ __forceinline__ uint32_t piece_column(uint32_t c) { return c; }
    static bool takes_pieces(const struct gpuk_linear_args *args) { return gpuk_linear_begins(args); }
    static __device__ __forceinline__ piece piece_at(const unsigned char *row, uint32_t c)
    {
        const unsigned char *block = row + bytes(c);
        const uint32_t *four = reinterpret_cast<const uint32_t *>(block + 4 + c % FP8_VALUES);
        return {{__ldg(four), __ldg(four + 1)}, __ldg(reinterpret_cast<const float *>(block))};
    }
    static __device__ __forceinline__ void unpack(const piece &p, float *f)
    {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            numbers(__byte_perm(p.four[i], 0, 0x4140), f[4 * i], f[4 * i + 1]);
            numbers(__byte_perm(p.four[i], 0, 0x4342), f[4 * i + 2], f[4 * i + 3]);
        }
#pragma unroll
        for (uint32_t i = 0; i < PIECE_VALUES; i++) f[i] *= p.scale;
    }

    /* ---- for gpuk_expand: to bf16, rounded */

    static const bool EXPANDS = true;
    static const uint32_t GROUP_ROWS = 1, TILE_VALUES = 32 * PIECE_VALUES, EXPAND_BLOCKS = 4;
    static bool takes(const struct gpuk_expand_part &part)
    {
        return tensor_format_takes(part.format, part.rows, part.cols);
    }
    static bool aligned(const struct gpuk_expand_part &part)
    {
        return (uintptr_t)part.weight % 4 == 0;
    }
    static __device__ __forceinline__ void expand(const struct gpuk_expand_part &part, uint32_t row,
                                                  uint32_t tile, uint32_t lane)
    {
        const uint32_t c = tile * TILE_VALUES + lane * PIECE_VALUES;
        if (c >= part.cols) return;
        float f[PIECE_VALUES];
        unpack(piece_at(static_cast<const unsigned char *>(part.weight) + row * bytes(part.cols), c), f);
        store8(static_cast<__nv_bfloat16 *>(part.out) + (size_t)row * part.cols + c, f);
    }
};
