/* The decoder of Q8_0 (common/formats/q8_0.h): blocks of 32 numbers of 8 bits behind a scale in fp16. See decode.cuh.
 *
 * Blocks have 34 bytes, so every other one stands two bytes beside the words of memory. Both kinds are read as whole
 * words and put straight in registers. A number becomes fp32 by a byte permutation and a subtraction; the scale is
 * applied to the sum of a block's products. */
#ifndef HELM_WORKER_GPU_KERNELS_DECODE_Q8_0_CUH
#define HELM_WORKER_GPU_KERNELS_DECODE_Q8_0_CUH

#include "worker-gpu/kernels/linear.cuh"

struct decode_q8_0 {
    typedef __nv_bfloat16
        value; /* holds numbers of 8 bits as they are; what gpuk_expand writes is rounded to it */
    static const uint32_t VALUES = 32, BYTES = 34;

    static __device__ __forceinline__ size_t bytes(uint32_t c) { return (size_t)c / VALUES * BYTES; }
    static __device__ __forceinline__ float scale_of(uint32_t half)
    {
        float low, high;
        element<__half>::unpack(half, low, high);
        return low;
    }
    static __device__ __forceinline__ float number(const unsigned char *row, uint32_t c)
    {
        const unsigned char *block = row + bytes(c);
        return scale_of(__ldg(reinterpret_cast<const uint16_t *>(block))) *
               (float)(int8_t)__ldg(block + 2 + c % VALUES);
    }
    /* Four numbers as fp32: 2^23 + 128 + n is exact. */
    static __device__ __forceinline__ void numbers(uint32_t four, float *f)
    {
        const uint32_t plus_128 = four ^ 0x80808080u;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            f[i] = __uint_as_float(__byte_perm(plus_128, 0x4b000000u, 0x7540u | i)) - 8388736.0f;
    }
    /* Four bytes from two bytes into `low` on, where the block begins with a word; else the word `high`. */
    static __device__ __forceinline__ uint32_t straight(uint32_t low, uint32_t high, bool beside)
    {
        return __byte_perm(low, high, beside ? 0x7654u : 0x5432u);
    }

    /* ---- from device memory: 8 numbers, a quarter of a block */

    struct piece {
        uint32_t numbers[2], scale;
    };
    static const uint32_t PIECE_VALUES = 8;
    static const bool SCALED = true;
    static bool takes_pieces(const struct gpuk_linear_args *args)
    {
        size_t bits = 0;
        for (uint32_t s = 0; s < args->segments; s++) bits |= (size_t)args->segment[s].weight;
        return bits % 2 == 0;
    }
    static __device__ __forceinline__ piece piece_at(const unsigned char *row, uint32_t c)
    {
        const unsigned char *block = row + bytes(c);
        const bool beside = ((size_t)block & 2) != 0;
        const unsigned char *at = block + c % VALUES + (beside ? 2 : 0);
        const uint32_t *word = reinterpret_cast<const uint32_t *>(at);
        const uint32_t first = __ldg(word), second = __ldg(word + 1),
                       third = beside ? 0 : __ldg(reinterpret_cast<const uint16_t *>(at + 8));
        piece p;
        p.scale = __ldg(reinterpret_cast<const uint16_t *>(block));
        p.numbers[0] = beside ? first : __byte_perm(first, second, 0x5432u);
        p.numbers[1] = beside ? second : __byte_perm(second, third, 0x5432u);
        return p;
    }
    static __device__ __forceinline__ void unpack(const piece &p, float *f)
    {
        const float by = scale(p);
        numbers(p.numbers[0], f);
        numbers(p.numbers[1], f + 4);
#pragma unroll
        for (uint32_t i = 0; i < PIECE_VALUES; i++) f[i] *= by;
    }
    static __device__ __forceinline__ uint4 halves(const piece &p)
    {
        float f[PIECE_VALUES];
        numbers(p.numbers[0], f);
        numbers(p.numbers[1], f + 4);
        return make_uint4(element<value>::pack(f[0], f[1]), element<value>::pack(f[2], f[3]),
                          element<value>::pack(f[4], f[5]), element<value>::pack(f[6], f[7]));
    }
    static __device__ __forceinline__ float scale(const piece &p)
    {
        return scale_of(p.scale);
    }

    /* ---- of a tile in shared memory: a block */

    struct unit {
        uint32_t word[9];
        bool beside;
    };
    static const uint32_t UNIT_BYTES = BYTES, UNIT_VALUES = VALUES, TILE = 32 * BYTES;
    /* Rows are of whole 16 bytes, so that a block that begins with a word has another behind it. */
    static __device__ __forceinline__ unit unit_at(const unsigned char *tile)
    {
        unit u;
        u.beside = ((size_t)tile & 2) != 0;
        const uint32_t *from = reinterpret_cast<const uint32_t *>(tile - (u.beside ? 2 : 0));
#pragma unroll
        for (uint32_t i = 0; i < 9; i++) u.word[i] = from[i];
        return u;
    }
    static __device__ __forceinline__ unit unit_none()
    {
        return {};
    }
    static __device__ __forceinline__ void unit_add(const unit &wa, const unit &wb, const float4 *from,
                                                    float2 &a, float2 &b)
    {
        float2 sa = make_float2(0, 0), sb = make_float2(0, 0);
#pragma unroll
        for (uint32_t j = 0; j < UNIT_VALUES / 4; j++) {
            const float4 x = from[j * 32];
            float fa[4], fb[4];
            numbers(straight(wa.word[j], wa.word[j + 1], wa.beside), fa);
            numbers(straight(wb.word[j], wb.word[j + 1], wb.beside), fb);
            sa.x += fa[0] * x.x, sa.y += fa[1] * x.y, sa.x += fa[2] * x.z, sa.y += fa[3] * x.w;
            sb.x += fb[0] * x.x, sb.y += fb[1] * x.y, sb.x += fb[2] * x.z, sb.y += fb[3] * x.w;
        }
        const float scale_a = scale_of(wa.beside ? wa.word[0] >> 16 : wa.word[0] & 0xffffu),
                    scale_b = scale_of(wb.beside ? wb.word[0] >> 16 : wb.word[0] & 0xffffu);
        a.x += scale_a * sa.x, a.y += scale_a * sa.y;
        b.x += scale_b * sb.x, b.y += scale_b * sb.y;
    }

    /* ---- for gpuk_expand: 32 pieces of a row at a time, four times */

    static const bool EXPANDS = true;
    static const uint32_t GROUP_ROWS = 1, TILE_VALUES = 4 * 32 * PIECE_VALUES;
    static bool takes(const struct gpuk_expand_part &part)
    {
        return tensor_format_takes(FORMAT_Q8_0, part.rows, part.cols);
    }
    static bool aligned(const struct gpuk_expand_part &part)
    {
        return (uintptr_t)part.weight % 2 == 0;
    }
    static __device__ __forceinline__ void expand(const struct gpuk_expand_part &part, uint32_t row,
                                                  uint32_t tile, uint32_t lane)
    {
        const unsigned char *from = static_cast<const unsigned char *>(part.weight) + row * bytes(part.cols);
        value *to = static_cast<value *>(part.out) + (size_t)row * part.cols;
        const uint32_t first = tile * TILE_VALUES + lane * PIECE_VALUES, step = 32 * PIECE_VALUES;
        piece p[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (first + i * step < part.cols) p[i] = piece_at(from, first + i * step);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float f[PIECE_VALUES];
            if (first + i * step >= part.cols) break;
            unpack(p[i], f);
            store8(to + first + i * step, f);
        }
    }
};

#endif
