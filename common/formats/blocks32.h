/* Blocks of 32 values of a row as GGUF files have them: numbers of 4 or 5 bits and a scale, some with a
 * smallest value. See blocks.h. Sixteen numbers at a time, in the compiler's vectors, which any x86-64
 * has. */
#pragma once

#ifdef __SSSE3__
#include <immintrin.h> /* a fifth of a second of the compiler's time */
#endif
#include <stdint.h>
#include <string.h>

#include "common/formats/convert.h"

typedef uint8_t block_bytes __attribute__((vector_size(16)));
typedef uint16_t block_words __attribute__((vector_size(16)));

static inline float block_half(const uint8_t *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
#ifdef __F16C__
    return _cvtsh_ss(half);
#else
    return convert_f16_f32(half);
#endif
}

static inline block_bytes block_load(const uint8_t *from)
{
    block_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return bytes;
}
static inline void block_store(int8_t *to, block_bytes number)
{
    memcpy(to, &number, sizeof number);
}
/* Each byte shifted down by `from` bits and masked. */
static inline block_bytes block_bits(block_bytes bytes, int from, uint8_t mask)
{
    return (block_bytes)((block_words)bytes >> from) & mask;
}
/* `value` where a byte has one of these bits, else 0. */
static inline block_bytes block_where(block_bytes bytes, block_bytes bits, uint8_t value)
{
    return (block_bytes)((bytes & bits) != 0) & value;
}
static inline block_bytes block_pick(block_bytes table, block_bytes index)
{
#ifdef __SSSE3__
    return (block_bytes)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#else
    block_bytes picked;
    for (int i = 0; i < 16; i++) picked[i] = table[index[i]];
    return picked;
#endif
}

/* 16 bytes to 32 numbers: the low halves are the first 16, the high ones the others. */
static inline void block_nibbles(const uint8_t *from, int8_t *to, uint8_t less)
{
    const block_bytes bytes = block_load(from);
    block_store(to, (bytes & 15) - less);
    block_store(to + 16, block_bits(bytes, 4, 15) - less);
}
static inline void block_lookup(const uint8_t *from, int8_t *to, const int8_t table[16])
{
    const block_bytes bytes = block_load(from), values = block_load((const uint8_t *)table);
    block_store(to, block_pick(values, bytes & 15));
    block_store(to + 16, block_pick(values, block_bits(bytes, 4, 15)));
}

static inline void q4_0_numbers(const uint8_t *block, int8_t *number)
{
    block_nibbles(block + 2, number, 8);
}
static inline void q4_0_scales(const uint8_t *block, float *scale, float *least)
{
    scale[0] = block_half(block);
    least[0] = 0;
}

static inline void q4_1_numbers(const uint8_t *block, int8_t *number)
{
    block_nibbles(block + 4, number, 0);
}
static inline void q4_1_scales(const uint8_t *block, float *scale, float *least)
{
    scale[0] = block_half(block);
    least[0] = -block_half(block + 2);
}

/* Numbers of 5 bits: bit i of the word at `high` is the fifth of number i. */
static inline void block_five_bits(const uint8_t *low, const uint8_t *high, int8_t *to, uint8_t less)
{
    static const uint8_t spread[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                       2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
    const block_bytes bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const block_bytes bytes = block_load(low);
    block_bytes word = {0};
    memcpy(&word, high, 4);
    block_store(to, (bytes & 15) + block_where(block_pick(word, block_load(spread)), bit, 16) - less);
    block_store(to + 16, block_bits(bytes, 4, 15) +
                             block_where(block_pick(word, block_load(spread + 16)), bit, 16) - less);
}
static inline void q5_0_numbers(const uint8_t *block, int8_t *number)
{
    block_five_bits(block + 6, block + 2, number, 16);
}
static inline void q5_0_scales(const uint8_t *block, float *scale, float *least)
{
    q4_0_scales(block, scale, least);
}

static inline void q5_1_numbers(const uint8_t *block, int8_t *number)
{
    block_five_bits(block + 8, block + 4, number, 0);
}
static inline void q5_1_scales(const uint8_t *block, float *scale, float *least)
{
    q4_1_scales(block, scale, least);
}

#define IQ4_CODES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
static const int8_t iq4_table[16] = {IQ4_CODES};
static inline void iq4_nl_numbers(const uint8_t *block, int8_t *number)
{
    block_lookup(block + 2, number, iq4_table);
}
static inline void iq4_nl_scales(const uint8_t *block, float *scale, float *least)
{
    q4_0_scales(block, scale, least);
}

/* Twice the values of E2M1, with half the scale. */
#define MXFP4_CODES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
static const int8_t mxfp4_table[16] = {MXFP4_CODES};
static inline void mxfp4_numbers(const uint8_t *block, int8_t *number)
{
    block_lookup(block + 1, number, mxfp4_table);
}
static inline void mxfp4_scales(const uint8_t *block, float *scale, float *least)
{
    const uint32_t e = block[0]; /* 2^(e - 128); below 2 subnormal */
    scale[0] = convert_bits_f32(e < 2 ? UINT32_C(0x200000) << e : (e - 1) << 23);
    least[0] = 0;
}
