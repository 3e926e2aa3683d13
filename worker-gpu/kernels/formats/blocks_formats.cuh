/* Blocks of few bits as kernels read them: common/formats/blocks32.h and blocks256.h have the same in plain
 * C. Included by blocks_grids.cuh, which has those of places in grids.
 *
 * A format's block is runs of 32 neighbouring values. A format says:
 *   VALUES, BYTES   of a block
 *   ALIGN           what its blocks' bytes are a multiple of: 1, 2, 4 or 16
 *   ORIGIN          byte from which on its fields are whole words away (block_words)
 *   BITS, ZERO      of a number as a byte, which is that much more than the number
 *   LEAST, GROUPS   whether values have a least; scales of a run, 1 or 2
 *   four<UP>(w, run, i)   numbers 4 i .. 4 i + 3 of the run as bytes, UP bits to the left
 *   apart(w, run, i)  the same as two words of 16-bit numbers, even ones and odd ones, each times(run) as
 *                     large
 *   whole(w, run, half, to)  four words of the run's first or last 16 numbers as bytes with a sign; a value
 *                            is
 *                   scale * (whole_times(run) * byte + whole_zero(run)) - least
 *   whole_four(w, run, i)  word i of these eight
 *   ALONG           whether neighbours of these come from neighbouring words; whole_two(w, run, i) is 2 i and
 *                   2 i + 1 then
 *   scales(w, run); scales_two(wa, wb, run, a, b) of two rows at once
 * Bytes at(x) of w are ORIGIN less than in the block's definition. */
#pragma once

#include "worker-gpu/kernels/formats/blocks_words.cuh"

#define BLOCK_FOUR                                                                                           \
    template <int UP, typename W>                                                                            \
    static __device__ __forceinline__ uint32_t four(const W &w, uint32_t run, uint32_t i)
/* The numbers as 16-bit ones, even ones and odd ones, each `times` as large. */
#define BLOCK_APART                                                                                          \
    static __device__ __forceinline__ float times(uint32_t)                                                  \
    {                                                                                                        \
        return BLOCK_NUMBER;                                                                                 \
    }                                                                                                        \
    template <typename W>                                                                                    \
    static __device__ __forceinline__ uint2 apart(const W &w, uint32_t run, uint32_t i)                      \
    {                                                                                                        \
        return bytes_apart<ZERO>(four<0>(w, run, i));                                                        \
    }
/* The numbers as bytes with a sign: small ones as they are, others less ZERO, as far up in their bytes as
 * they go. */
#define BLOCK_WHOLE_OF(NUMBERS)                                                                              \
    static const bool ALONG = false;                                                                         \
    static const int WHOLE_UP = LEAST ? 0 : 8 - (int)BITS;                                                   \
    static_assert(LEAST ? BITS < 8 && ZERO == 0 : ZERO == 1 << (BITS - 1), "");                              \
    static __device__ __forceinline__ float whole_times(uint32_t)                                            \
    {                                                                                                        \
        return 1.0f / (1 << WHOLE_UP);                                                                       \
    }                                                                                                        \
    static __device__ __forceinline__ float whole_zero(uint32_t)                                             \
    {                                                                                                        \
        return 0;                                                                                            \
    }                                                                                                        \
    template <typename W>                                                                                    \
    static __device__ __forceinline__ uint32_t whole_four(const W &w, uint32_t run, uint32_t i)              \
    {                                                                                                        \
        return NUMBERS;                                                                                      \
    }                                                                                                        \
    template <typename W>                                                                                    \
    static __device__ __forceinline__ void whole(const W &w, uint32_t run, uint32_t half, uint32_t to[4])    \
    {                                                                                                        \
        _Pragma("unroll") for (uint32_t i = 0; i < 4; i++) to[i] = whole_four(w, run, half * 4 + i);         \
    }
#define BLOCK_WHOLE BLOCK_WHOLE_OF(four<WHOLE_UP>(w, run, i) ^ (LEAST ? 0 : 0x80808080u))
#define BLOCK_SCALES_TWO                                                                                     \
    template <typename W>                                                                                    \
    static __device__ __forceinline__ void scales_two(const W &wa, const W &wb, uint32_t run,                \
                                                      block_scales &a, block_scales &b)
#define BLOCK_SCALES                                                                                         \
    template <typename W> static __device__ __forceinline__ block_scales scales(const W &w, uint32_t run)

/* The same bits of each byte, `right` bits up, moved to the bottom and UP from there. */
template <int UP> __device__ __forceinline__ uint32_t block_bits(uint32_t four, int right, uint32_t mask)
{
    return block_turned(four, UP - right) & (mask << UP);
}

/* ---- 32 values ---- */

/* 16 bytes have the first 16 numbers in their low halves, the others in their high ones. */
template <int UP> __device__ __forceinline__ uint32_t block_nibbles(uint32_t four, uint32_t i)
{
    return block_bits<UP>(four, i < 4 ? 0 : 4, 0x0f0f0f0fu);
}
/* Bit n of `bits` is the fifth of number n. */
template <int UP> __device__ __forceinline__ uint32_t block_fifth(uint32_t bits, uint32_t i)
{
    return ((bits >> 4 * i & 15) * 0x02040810u & 0x10101010u) << UP;
}

struct block_q8_0 {
    static const uint32_t VALUES = 32, BYTES = 34, ALIGN = 2, ORIGIN = 2, BITS = 8, ZERO = 128, GROUPS = 1;
    static const bool LEAST = false;
    BLOCK_FOUR { return (void)run, w.word(0, i) ^ 0x80808080u; }
    BLOCK_SCALES { return (void)run, block_scale(block_half(w.half(-2))); }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_q4_0 {
    static const uint32_t VALUES = 32, BYTES = 18, ALIGN = 2, ORIGIN = 2, BITS = 4, ZERO = 8, GROUPS = 1;
    static const bool LEAST = false;
    BLOCK_FOUR { return (void)run, block_nibbles<UP>(w.word(0, i % 4), i); }
    BLOCK_SCALES { return (void)run, block_scale(block_half(w.half(-2))); }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_q4_1 {
    static const uint32_t VALUES = 32, BYTES = 20, ALIGN = 4, ORIGIN = 0, BITS = 4, ZERO = 0, GROUPS = 1;
    static const bool LEAST = true;
    BLOCK_FOUR { return (void)run, block_nibbles<UP>(w.word(4, i % 4), i); }
    BLOCK_SCALES { return (void)run, block_scale(block_half(w.half(0)), -block_half(w.half(2))); }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_q5_0 {
    static const uint32_t VALUES = 32, BYTES = 22, ALIGN = 2, ORIGIN = 2, BITS = 5, ZERO = 16, GROUPS = 1;
    static const bool LEAST = false;
    BLOCK_FOUR
    {
        return (void)run, block_nibbles<UP>(w.word(4, i % 4), i) | block_fifth<UP>(w.word(0, 0), i);
    }
    BLOCK_SCALES { return (void)run, block_scale(block_half(w.half(-2))); }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_q5_1 {
    static const uint32_t VALUES = 32, BYTES = 24, ALIGN = 4, ORIGIN = 0, BITS = 5, ZERO = 0, GROUPS = 1;
    static const bool LEAST = true;
    BLOCK_FOUR
    {
        return (void)run, block_nibbles<UP>(w.word(8, i % 4), i) | block_fifth<UP>(w.word(4, 0), i);
    }
    BLOCK_SCALES { return (void)run, block_scale(block_half(w.half(0)), -block_half(w.half(2))); }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
/* iq4_table of blocks32.h, each 128 more. */
__device__ __forceinline__ block_table block_iq4_table()
{
    return {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}};
}
struct block_iq4_nl {
    static const uint32_t VALUES = 32, BYTES = 18, ALIGN = 2, ORIGIN = 2, BITS = 8, ZERO = 128, GROUPS = 1;
    static const bool LEAST = false;
    BLOCK_FOUR { return (void)run, block_lookup(block_iq4_table(), w.word(0, i % 4), i >= 4); }
    BLOCK_SCALES { return (void)run, block_scale(block_half(w.half(-2))); }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_mxfp4 {
    static const uint32_t VALUES = 32, BYTES = 17, ALIGN = 1, ORIGIN = 1, BITS = 5, ZERO = 16, GROUPS = 1;
    static const bool LEAST = false;
    BLOCK_FOUR
    {
        /* mxfp4_table, each 16 more */
        const block_table t = {{0x13121110u << UP, 0x1c181614u << UP, 0x0d0e0f10u << UP, 0x04080a0cu << UP}};
        return (void)run, block_lookup(t, w.word(0, i % 4), i >= 4);
    }
    BLOCK_SCALES
    {
        const uint32_t e = w.byte(-1); /* 2^(e - 128); below 2 subnormal */
        return (void)run, block_scale(__uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23));
    }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};

/* ---- 256 values ---- */

/* 8 scales and leasts of 6 bits after d and dmin. */
template <typename W> __device__ __forceinline__ block_scales block_scales_k(const W &w, uint32_t run)
{
    const uint32_t by = run % 4 * 8, d = w.head(0), a = w.head(1) >> by, b = w.head(2) >> by,
                   c = w.head(3) >> by;
    const uint32_t scale = run < 4 ? a & 63 : (c & 15) | (a >> 2 & 0x30),
                   least = run < 4 ? b & 63 : (c >> 4 & 15) | (b >> 2 & 0x30);
    float dd, dmin;
    element<__half>::unpack(d, dd, dmin);
    return block_scale(dd * block_whole(scale), dmin * block_whole(least));
}
/* Two rows at once, a byte each: scale and least of a, of b. */
template <typename W>
__device__ __forceinline__ void block_scales_two_k(const W &wa, const W &wb, uint32_t run, block_scales &a,
                                                   block_scales &b)
{
    const uint32_t byte = run % 4, both = byte | (byte + 4) << 4;
    uint32_t head_a[4], head_b[4];
    wa.four(0, 0, head_a), wb.four(0, 0, head_b);
    const uint32_t low = __byte_perm(__byte_perm(head_a[1], head_a[2], both),
                                     __byte_perm(head_b[1], head_b[2], both), 0x5410),
                   high = __byte_perm(head_a[3], head_b[3], byte * 0x1111 + 0x4400);
    const uint32_t more = (high & 0x000f000fu) | (high >> 4 & 0x0f000f00u) | (low >> 2 & 0x30303030u),
                   four = run < 4 ? low & 0x3f3f3f3fu : more;
    float d, dmin;
    element<__half>::unpack(head_a[0], d, dmin);
    a = block_scale(d * block_byte(four, 0), dmin * block_byte(four, 1));
    element<__half>::unpack(head_b[0], d, dmin);
    b = block_scale(d * block_byte(four, 2), dmin * block_byte(four, 3));
}
struct block_q4_k {
    static const uint32_t VALUES = 256, BYTES = 144, ALIGN = 16, ORIGIN = 0, BITS = 4, ZERO = 0, GROUPS = 1;
    static const bool LEAST = true;
    BLOCK_FOUR { return block_bits<UP>(w.word(16 + run / 2 * 32, i), (int)(run % 2 * 4), 0x0f0f0f0fu); }
    BLOCK_SCALES { return block_scales_k(w, run); }
    BLOCK_SCALES_TWO { block_scales_two_k(wa, wb, run, a, b); }
    static __device__ __forceinline__ float times(uint32_t run) { return (run % 2 ? 16 : 1) * BLOCK_NUMBER; }
    template <typename W> static __device__ __forceinline__ uint2 apart(const W &w, uint32_t run, uint32_t i)
    {
        const uint32_t word = w.word(16 + run / 2 * 32, i), mask = run % 2 ? 0x00f000f0u : 0x000f000fu;
        return make_uint2(block_halves<0>(word & mask), block_halves<0>(word >> 8 & mask));
    }
    /* high halves of bytes stay where they are, less 8 */
    static __device__ __forceinline__ float whole_times(uint32_t run) { return run % 2 ? 1.0f / 16 : 1.0f; }
    static __device__ __forceinline__ float whole_zero(uint32_t run) { return run % 2 ? 8.0f : 0.0f; }
    static const bool ALONG = true;
    template <typename W>
    static __device__ __forceinline__ uint2 whole_two(const W &w, uint32_t run, uint32_t i)
    {
        const uint32_t mask = run % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu, flip = run % 2 ? 0x80808080u : 0;
        const uint2 two = w.two(16 + run / 2 * 32, i);
        return make_uint2((two.x & mask) ^ flip, (two.y & mask) ^ flip);
    }
    template <typename W>
    static __device__ __forceinline__ void whole(const W &w, uint32_t run, uint32_t half, uint32_t to[4])
    {
        const uint32_t mask = run % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu, flip = run % 2 ? 0x80808080u : 0;
        w.four(16 + run / 2 * 32, half, to);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) to[i] = (to[i] & mask) ^ flip;
    }
};
struct block_q5_k {
    static const uint32_t VALUES = 256, BYTES = 176, ALIGN = 16, ORIGIN = 0, BITS = 5, ZERO = 0, GROUPS = 1;
    static const bool LEAST = true;
    BLOCK_FOUR
    {
        return block_bits<UP>(w.word(48 + run / 2 * 32, i), (int)(run % 2 * 4), 0x0f0f0f0fu) |
               block_bits<UP + 4>(w.word(16, i), (int)run, 0x01010101u);
    }
    BLOCK_SCALES { return block_scales_k(w, run); }
    BLOCK_SCALES_TWO { block_scales_two_k(wa, wb, run, a, b); }
    BLOCK_APART
    static __device__ __forceinline__ float whole_times(uint32_t) { return 1; }
    static __device__ __forceinline__ float whole_zero(uint32_t) { return 0; }
    static const bool ALONG = true;
    template <typename W>
    static __device__ __forceinline__ uint2 whole_two(const W &w, uint32_t run, uint32_t i)
    {
        const uint2 two = w.two(48 + run / 2 * 32, i), fifth = w.two(16, i);
        const int right = (int)(run % 2 * 4), of_fifth = (int)run;
        return make_uint2(block_bits<0>(two.x, right, 0x0f0f0f0fu) |
                              block_bits<4>(fifth.x, of_fifth, 0x01010101u),
                          block_bits<0>(two.y, right, 0x0f0f0f0fu) |
                              block_bits<4>(fifth.y, of_fifth, 0x01010101u));
    }
    template <typename W>
    static __device__ __forceinline__ void whole(const W &w, uint32_t run, uint32_t half, uint32_t to[4])
    {
        uint32_t fifth[4];
        w.four(48 + run / 2 * 32, half, to), w.four(16, half, fifth);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            to[i] = block_bits<0>(to[i], (int)(run % 2 * 4), 0x0f0f0f0fu) |
                    block_bits<4>(fifth[i], (int)run, 0x01010101u);
    }
};
/* Each half of the numbers has its low bits in 64 bytes and its high bits in 32. */
struct block_q6_k {
    static const uint32_t VALUES = 256, BYTES = 210, ALIGN = 2, ORIGIN = 0, BITS = 6, ZERO = 32, GROUPS = 2;
    static const bool LEAST = false;
    BLOCK_FOUR
    {
        return block_bits<UP>(w.word(run / 4 * 64 + run % 2 * 32, i), (int)(run % 4 / 2 * 4), 0x0f0f0f0fu) |
               block_bits<UP + 4>(w.word(128 + run / 4 * 32, i), (int)(run % 4 * 2), 0x03030303u);
    }
    BLOCK_SCALES
    {
        const float d = block_half(w.half(208));
        const uint32_t two = w.half(192 + 2 * (int)run) ^ 0x8080u;
        return {{d * (block_whole(two & 255) - 128), d * (block_whole(two >> 8) - 128)}, {0, 0}};
    }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_q3_k {
    static const uint32_t VALUES = 256, BYTES = 110, ALIGN = 2, ORIGIN = 0, BITS = 3, ZERO = 4, GROUPS = 2;
    static const bool LEAST = false;
    BLOCK_FOUR
    {
        return block_bits<UP>(w.word(32 + run / 4 * 32, i), (int)(run % 4 * 2), 0x03030303u) |
               block_bits<UP + 2>(w.word(0, i), (int)run, 0x01010101u);
    }
    BLOCK_SCALES
    {
        /* scale g: 4 bits of byte g % 8, 2 of byte 8 + g % 4; the run's are 2 run and 2 run + 1 */
        const uint32_t low = w.half(96 + 2 * (int)(run % 4)) >> run / 4 * 4 & 0x0f0fu,
                       high = w.half(104 + 2 * (int)(run % 2)) >> run / 2 * 2 & 0x0303u,
                       two = low | high << 4;
        const float d = block_half(w.half(108));
        return {{d * (block_whole(two & 255) - 32), d * (block_whole(two >> 8) - 32)}, {0, 0}};
    }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_q2_k {
    static const uint32_t VALUES = 256, BYTES = 84, ALIGN = 4, ORIGIN = 0, BITS = 2, ZERO = 0, GROUPS = 2;
    static const bool LEAST = true;
    BLOCK_FOUR { return block_bits<UP>(w.word(16 + run / 4 * 32, i), (int)(run % 4 * 2), 0x03030303u); }
    BLOCK_SCALES
    {
        const uint32_t two = w.half(2 * (int)run);
        float d, dmin;
        element<__half>::unpack(w.word(80, 0), d, dmin);
        return {{d * block_whole(two & 15), d * block_whole(two >> 8 & 15)},
                {dmin * block_whole(two >> 4 & 15), dmin * block_whole(two >> 12)}};
    }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
/* The matrix's scale; 16 scales of E4M3 without a sign, which as fp16 is 256 times smaller; runs as those of
 * MXFP4. */
struct block_nvfp4 {
    static const uint32_t VALUES = 256, BYTES = 148, ALIGN = 4, ORIGIN = 0, BITS = 5, ZERO = 16, GROUPS = 2;
    static const bool LEAST = false;
    BLOCK_FOUR
    {
        /* mxfp4_table, each 16 more */
        const block_table t = {{0x13121110u << UP, 0x1c181614u << UP, 0x0d0e0f10u << UP, 0x04080a0cu << UP}};
        return block_lookup(t, w.word(20 + run * 16, i % 4), i >= 4);
    }
    BLOCK_SCALES
    {
        const float by = __uint_as_float(w.word(0, 0)) * 128.0f;
        const uint32_t two = w.half(4 + 2 * (int)run);
        return {{block_half((two & 0x7fu) << 7) * by, block_half((two & 0x7f00u) >> 1) * by}, {0, 0}};
    }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
struct block_iq4_xs {
    static const uint32_t VALUES = 256, BYTES = 136, ALIGN = 4, ORIGIN = 0, BITS = 8, ZERO = 128, GROUPS = 1;
    static const bool LEAST = false;
    BLOCK_FOUR { return block_lookup(block_iq4_table(), w.word(8 + run * 16, i % 4), i >= 4); }
    BLOCK_SCALES
    {
        const uint32_t low = w.byte(4 + (int)(run / 2)) >> run % 2 * 4 & 15, high = w.half(2) >> 2 * run & 3;
        return block_scale(block_half(w.half(0)) * (block_whole(low | high << 4) - 32));
    }
    BLOCK_SCALES_TWO { a = scales(wa, run), b = scales(wb, run); }
    BLOCK_APART
    BLOCK_WHOLE
};
