/* Blocks of 256 values of a row as GGUF files have them: numbers of 2 to 6 bits, a scale for each 16 or 32 of them and
 * one of the scales. See blocks.h. */
#ifndef HELM_COMMON_FORMATS_BLOCKS256_H
#define HELM_COMMON_FORMATS_BLOCKS256_H

#include "common/formats/blocks32.h"

/* Sixteen numbers after another: at `at` in their run of 32, of 8. Shifts become constants. */
#define BLOCK_SIXTEENS                                                                                       \
    _Pragma("GCC unroll 8") for (int run = 0; run < 8; run++)                                                \
        _Pragma("GCC unroll 2") for (int at = 0; at < 32; at += 16)

/* 64 bytes have 256 numbers of 2 bits: of each half of them 32 bytes have four runs. */
static inline block_bytes block_two_bits(const uint8_t *from, int run, int at)
{
    return block_bits(block_load(from + run / 4 * 32 + at), run % 4 * 2, 3);
}
/* 32 bytes have 64 numbers of 4 bits: their low halves a run, their high halves the next. */
static inline block_bytes block_four_bits(const uint8_t *from, int run, int at)
{
    return block_bits(block_load(from + run / 2 * 32 + at), run % 2 * 4, 15);
}
/* 32 bytes have a further bit of all: bit `run` of byte i is that of number i of the run. */
static inline block_bytes block_further_bit(const uint8_t *from, int run, int at, uint8_t value)
{
    const block_bytes bit = (block_bytes){0} + (uint8_t)(1 << run);
    return block_where(block_load(from + at), bit, value);
}

static inline void q2_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS block_store(number + run * 32 + at, block_two_bits(block + 16, run, at));
}
static inline void q2_k_scales(const uint8_t *block, float *scale, float *least)
{
    const float d = block_half(block + 80), dmin = block_half(block + 82);
    for (int g = 0; g < 16; g++)
        scale[g] = d * (float)(block[g] & 15), least[g] = dmin * (float)(block[g] >> 4);
}

static inline void q3_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS block_store(number + run * 32 + at, block_two_bits(block + 32, run, at) +
                                                           block_further_bit(block, run, at, 4) - 4);
}
/* 16 scales of 6 bits in 12 bytes: four bits of two in each of the first 8, two bits of four in the others. */
static inline void q3_k_scales(const uint8_t *block, float *scale, float *least)
{
    const uint8_t *packed = block + 96;
    const float d = block_half(block + 108);
    for (int g = 0; g < 16; g++) {
        const int low = packed[g % 8] >> g / 8 * 4 & 15, high = packed[8 + g % 4] >> g / 4 * 2 & 3;
        scale[g] = d * (float)(low + high * 16 - 32);
        least[g] = 0;
    }
}

static inline void q4_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS block_store(number + run * 32 + at, block_four_bits(block + 16, run, at));
}
/* 8 scales and 8 smallest values of 6 bits in 12 bytes: of the first four of each whole in the first 8 bytes, whose
 * two upper bits are those of the others. */
static inline void q4_k_scales(const uint8_t *block, float *scale, float *least)
{
    const uint8_t *packed = block + 4;
    const float d = block_half(block), dmin = block_half(block + 2);
    uint32_t word[3];
    uint8_t six[16]; /* scales, then smallest values */
    memcpy(word, packed, sizeof word);
    const uint32_t all[4] = {word[0] & 0x3f3f3f3fu, (word[2] & 0x0f0f0f0fu) | (word[0] >> 2 & 0x30303030u),
                             word[1] & 0x3f3f3f3fu,
                             (word[2] >> 4 & 0x0f0f0f0fu) | (word[1] >> 2 & 0x30303030u)};
    memcpy(six, all, sizeof six);
    for (int g = 0; g < 8; g++) scale[g] = d * (float)six[g];
    for (int g = 0; g < 8; g++) least[g] = dmin * (float)six[8 + g];
}

static inline void q5_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS block_store(number + run * 32 + at, block_four_bits(block + 48, run, at) +
                                                           block_further_bit(block + 16, run, at, 16));
}
static inline void q5_k_scales(const uint8_t *block, float *scale, float *least)
{
    q4_k_scales(block, scale, least);
}

/* Of each half of the numbers 64 bytes have the four low bits: in their low halves the first two runs. */
static inline void q6_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS
    {
        const block_bytes low = block_load(block + run / 4 * 64 + run % 2 * 32 + at),
                          high = block_load(block + 128 + run / 4 * 32 + at);
        block_store(number + run * 32 + at,
                    block_bits(low, run % 4 / 2 * 4, 15) +
                        (block_bytes)((block_words)block_bits(high, run % 4 * 2, 3) << 4) - 32);
    }
}
static inline void q6_k_scales(const uint8_t *block, float *scale, float *least)
{
    const float d = block_half(block + 208);
    for (int g = 0; g < 16; g++) scale[g] = d * (float)(int8_t)block[192 + g], least[g] = 0;
}

static inline void iq4_xs_numbers(const uint8_t *block, int8_t *number)
{
    _Pragma("GCC unroll 8") for (int run = 0; run < 8; run++)
        block_lookup(block + 8 + run * 16, number + run * 32, iq4_table);
}
static inline void iq4_xs_scales(const uint8_t *block, float *scale, float *least)
{
    const float d = block_half(block);
    const int high = block[2] | block[3] << 8;
    for (int g = 0; g < 8; g++) {
        const int low = block[4 + g / 2] >> g % 2 * 4 & 15;
        scale[g] = d * (float)(low + (high >> 2 * g & 3) * 16 - 32);
        least[g] = 0;
    }
}

#endif
