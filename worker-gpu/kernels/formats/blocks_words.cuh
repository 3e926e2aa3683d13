/* Words and small numbers of blocks of few bits (common/formats/blocks.h), for their decoders.
 *
 * A block's fields are read as whole words wherever the block begins: blocks of 2, 18 or 210 bytes stand
 * beside the words of memory, and two neighbouring words are put straight in registers. Numbers stay bytes,
 * four in a word, until a byte permutation makes each an fp32 number. */
#pragma once

#include "worker-gpu/kernels/device.cuh"

/* A block from `origin` on, in device memory or (SHARED) in shared memory, at multiples of ALIGN bytes. Words
 * of device memory without any of the block's bytes are not read. */
template <uint32_t ALIGN, bool SHARED> struct block_words {
    static_assert(ALIGN == 1 || ALIGN == 2 || ALIGN == 4 || ALIGN == 16, "");
    const unsigned char *base;
    uint32_t beside; /* bits from the word's first to the block's */

    __device__ __forceinline__ explicit block_words(const unsigned char *origin) : base(origin), beside(0)
    {
        if (ALIGN < 4) beside = (uint32_t)((size_t)origin & 3) * 8, base = origin - beside / 8;
    }
    template <typename T> static __device__ __forceinline__ T load(const unsigned char *at)
    {
        if constexpr (SHARED) return *reinterpret_cast<const T *>(at);
        return __ldg(reinterpret_cast<const T *>(at));
    }
    /* Word i of those from byte `at` on, which is a multiple of 4. */
    __device__ __forceinline__ uint32_t word(uint32_t at, uint32_t i) const
    {
        const uint32_t low = load<uint32_t>(base + at + 4 * i);
        if constexpr (ALIGN >= 4) return low;
        const uint32_t high = SHARED || beside ? load<uint32_t>(base + at + 4 * i + 4) : 0;
        return __funnelshift_r(low, high, beside);
    }
    /* Words 2 i and 2 i + 1 of those from byte `at` on, which is a multiple of 8. */
    __device__ __forceinline__ uint2 two(uint32_t at, uint32_t i) const
    {
        if constexpr (ALIGN == 16) return load<uint2>(base + at + 8 * i);
        return make_uint2(word(at, 2 * i), word(at, 2 * i + 1));
    }
    /* The words of 16 bytes, all of them wanted, the half's of those from byte `at` on. */
    __device__ __forceinline__ void four(uint32_t at, uint32_t half, uint32_t to[4]) const
    {
        if constexpr (ALIGN == 16) {
            const uint4 quad = load<uint4>(base + at + 16 * half);
            to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) to[i] = word(at, half * 4 + i);
        }
    }
    /* Word i of the first 16 bytes, of which all are wanted. */
    __device__ __forceinline__ uint32_t head(uint32_t i) const
    {
        if constexpr (ALIGN != 16) return word(0, i);
        return of_four(0, i);
    }
    __device__ __forceinline__ uint32_t of_four(uint32_t at, uint32_t i) const
    {
        const uint4 four = load<uint4>(base + at);
        return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
    }
    /* One byte; 16 bits, at an even distance. */
    __device__ __forceinline__ uint32_t byte(int at) const
    {
        return load<unsigned char>(base + (int)(beside / 8) + at);
    }
    __device__ __forceinline__ uint32_t half(int at) const
    {
        if constexpr (ALIGN >= 2) return load<uint16_t>(base + (int)(beside / 8) + at);
        return byte(at) | byte(at + 1) << 8;
    }
};

/* A scale in fp16. */
__device__ __forceinline__ float block_half(uint32_t bits)
{
    float low, high;
    element<__half>::unpack(bits, low, high);
    return low;
}
/* A small whole number as fp32, without the slow conversion: 2^23 + n is exact. */
__device__ __forceinline__ float block_whole(uint32_t n)
{
    return __uint_as_float(0x4b000000u | n) - 8388608.0f;
}
/* Byte k of four. */
__device__ __forceinline__ float block_byte(uint32_t four, uint32_t k)
{
    return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440u | k)) - 8388608.0f;
}
/* Bits turned to the left (or right, where negative), those of every byte at once: a mask takes what came
 * from its neighbour. */
__device__ __forceinline__ uint32_t block_turned(uint32_t four, int left)
{
    return __funnelshift_l(four, four, (uint32_t)left);
}
/* The low four bits' (or the high four bits') bytes of a table of 16, of the four bytes of `pairs`. */
struct block_table {
    uint32_t word[4];
};
__device__ __forceinline__ uint32_t block_lookup(const block_table &t, uint32_t pairs, bool high)
{
    const uint32_t of_eight = pairs & 0x77777777u, which = ((pairs & 0x88888888u) >> 1) | 0x32103210u;
    const uint32_t first = __byte_perm(__byte_perm(t.word[0], t.word[1], of_eight),
                                       __byte_perm(t.word[2], t.word[3], of_eight), which),
                   second = __byte_perm(__byte_perm(t.word[0], t.word[1], of_eight >> 16),
                                        __byte_perm(t.word[2], t.word[3], of_eight >> 16), which >> 16);
    return __byte_perm(first, second, high ? 0x7531u : 0x6420u);
}

/* Two numbers in 16 bits each, ZERO more than they are, to f16 that are BLOCK_NUMBER times as large: n in 16
 * bits is n * 2^-24 without more ado. But tensor cores align products by the exponents of what they are given
 * and drop what is far below, and of such an f16, which is no more than its last bits, 17 bits of the sums
 * would be right. */
static const float BLOCK_NUMBER = 1.0f / 512;
template <uint32_t ZERO> __device__ __forceinline__ uint32_t block_halves(uint32_t two)
{
    const uint32_t least = ZERO == 0    ? 0
                           : ZERO == 4  ? 0xa000u /* f16 of -ZERO / 512 */
                           : ZERO == 8  ? 0xa400u
                           : ZERO == 12 ? 0xa600u
                           : ZERO == 16 ? 0xa800u
                           : ZERO == 32 ? 0xac00u
                                        : 0xb400u;
    static_assert(ZERO == 0 || ZERO == 4 || ZERO == 8 || ZERO == 12 || ZERO == 16 || ZERO == 32 ||
                      ZERO == 128,
                  "");
    return halves_fma(two, 0x78007800u, least * 0x00010001u);
}
/* Four numbers as bytes: even ones, odd ones. */
template <uint32_t ZERO> __device__ __forceinline__ uint2 bytes_apart(uint32_t four)
{
    return make_uint2(block_halves<ZERO>(__byte_perm(four, 0, 0x4240)),
                      block_halves<ZERO>(__byte_perm(four, 0, 0x4341)));
}

/* A run's scales: values are scale * number - least, of its first 16 and its last 16 numbers. */
struct block_scales {
    float scale[2], least[2];
};
/* One for all 32. */
__device__ __forceinline__ block_scales block_scale(float scale, float least = 0)
{
    return {{scale, scale}, {least, least}};
}
