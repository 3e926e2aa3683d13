/* Blocks of 32 values of a row as GGUF files have them: numbers of 4 or 5 bits and a scale, some with a smallest value.
 * See blocks.h. */
#ifndef HELM_COMMON_FORMATS_BLOCKS32_H
#define HELM_COMMON_FORMATS_BLOCKS32_H

#include <stdint.h>
#include <string.h>

#include "common/formats/convert.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

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

/* 16 bytes to 32 numbers: the low halves are the first 16, the high ones the others. */
static inline void block_nibbles(const uint8_t *restrict from, int8_t *restrict to, int less)
{
    for (int i = 0; i < 16; i++) to[i] = (int8_t)((from[i] & 15) - less);
    for (int i = 0; i < 16; i++) to[i + 16] = (int8_t)((from[i] >> 4) - less);
}
static inline void block_lookup(const uint8_t *restrict from, int8_t *restrict to, const int8_t table[16])
{
    for (int i = 0; i < 16; i++) to[i] = table[from[i] & 15];
    for (int i = 0; i < 16; i++) to[i + 16] = table[from[i] >> 4];
}

static inline void q4_0_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_nibbles(block + 2, number, 8);
}
static inline void q4_0_scales(const uint8_t *block, float *scale, float *least)
{
    scale[0] = block_half(block);
    least[0] = 0;
}

static inline void q4_1_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_nibbles(block + 4, number, 0);
}
static inline void q4_1_scales(const uint8_t *block, float *scale, float *least)
{
    scale[0] = block_half(block);
    least[0] = -block_half(block + 2);
}

/* The fifth bits: bit i of a word of 32 is number i's. */
static inline void block_fifth_bits(const uint8_t *restrict from, int8_t *restrict number)
{
    for (int byte = 0; byte < 4; byte++)
        for (int i = 0; i < 8; i++)
            number[byte * 8 + i] = (int8_t)(number[byte * 8 + i] + ((from[byte] >> i & 1) << 4));
}
static inline void q5_0_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_nibbles(block + 6, number, 16);
    block_fifth_bits(block + 2, number);
}
static inline void q5_0_scales(const uint8_t *block, float *scale, float *least)
{
    q4_0_scales(block, scale, least);
}

static inline void q5_1_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_nibbles(block + 8, number, 0);
    block_fifth_bits(block + 4, number);
}
static inline void q5_1_scales(const uint8_t *block, float *scale, float *least)
{
    q4_1_scales(block, scale, least);
}

static const int8_t iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
static inline void iq4_nl_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_lookup(block + 2, number, iq4_table);
}
static inline void iq4_nl_scales(const uint8_t *block, float *scale, float *least)
{
    q4_0_scales(block, scale, least);
}

/* Twice the values of E2M1, with half the scale. */
static const int8_t mxfp4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static inline void mxfp4_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_lookup(block + 1, number, mxfp4_table);
}
static inline void mxfp4_scales(const uint8_t *block, float *scale, float *least)
{
    const uint32_t e = block[0]; /* 2^(e - 128); below 2 subnormal */
    scale[0] = convert_bits_f32(e < 2 ? UINT32_C(0x200000) << e : (e - 1) << 23);
    least[0] = 0;
}

#endif
