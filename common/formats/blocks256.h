/* Blocks of 256 values of a row as GGUF files have them: numbers of 2 to 6 bits, a scale for each 16 or 32 of them and
 * one of the scales. See blocks.h. */
#ifndef HELM_COMMON_FORMATS_BLOCKS256_H
#define HELM_COMMON_FORMATS_BLOCKS256_H

#include "common/formats/blocks32.h"

/* 64 bytes to 256 numbers of 2 bits: of each half of them 32 bytes have four runs of 32. */
static inline void block_two_bits(const uint8_t *restrict from, int8_t *restrict to)
{
    for (int run = 0; run < 8; run++)
        for (int i = 0; i < 32; i++) to[run * 32 + i] = (int8_t)(from[run / 4 * 32 + i] >> run % 4 * 2 & 3);
}

static inline void q2_k_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_two_bits(block + 16, number);
}
static inline void q2_k_scales(const uint8_t *block, float *scale, float *least)
{
    const float d = block_half(block + 80), dmin = block_half(block + 82);
    for (int g = 0; g < 16; g++)
        scale[g] = d * (float)(block[g] & 15), least[g] = dmin * (float)(block[g] >> 4);
}

/* Bit `run` of byte i of the mask is the third bit of number i of the run. */
static inline void q3_k_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_two_bits(block + 32, number);
    for (int run = 0; run < 8; run++)
        for (int i = 0; i < 32; i++)
            number[run * 32 + i] = (int8_t)(number[run * 32 + i] + ((block[i] >> run & 1) << 2) - 4);
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

/* 8 scales and 8 smallest values of 6 bits in 12 bytes: of the first four of each whole in the first 8 bytes, whose
 * two upper bits are those of the others. */
static inline void q4_k_scales(const uint8_t *block, float *scale, float *least)
{
    const uint8_t *packed = block + 4;
    const float d = block_half(block), dmin = block_half(block + 2);
    for (int g = 0; g < 4; g++) {
        scale[g] = d * (float)(packed[g] & 63);
        least[g] = dmin * (float)(packed[g + 4] & 63);
        scale[g + 4] = d * (float)((packed[g + 8] & 15) + (packed[g] >> 6) * 16);
        least[g + 4] = dmin * (float)((packed[g + 8] >> 4) + (packed[g + 4] >> 6) * 16);
    }
}
/* 32 bytes to 64 numbers: the low halves are the first 32. */
static inline void block_four_bits(const uint8_t *restrict from, int8_t *restrict to)
{
    for (int pair = 0; pair < 4; pair++) {
        for (int i = 0; i < 32; i++) to[pair * 64 + i] = (int8_t)(from[pair * 32 + i] & 15);
        for (int i = 0; i < 32; i++) to[pair * 64 + 32 + i] = (int8_t)(from[pair * 32 + i] >> 4);
    }
}
static inline void q4_k_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_four_bits(block + 16, number);
}

static inline void q5_k_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    block_four_bits(block + 48, number);
    for (int run = 0; run < 8; run++)
        for (int i = 0; i < 32; i++)
            number[run * 32 + i] = (int8_t)(number[run * 32 + i] + ((block[16 + i] >> run & 1) << 4));
}
static inline void q5_k_scales(const uint8_t *block, float *scale, float *least)
{
    q4_k_scales(block, scale, least);
}

/* Of each half of the numbers 64 bytes have the four low bits: in their low halves the first two runs of 32. */
static inline void q6_k_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    for (int run = 0; run < 8; run++) {
        const uint8_t *low = block + run / 4 * 64 + run % 2 * 32, *high = block + 128 + run / 4 * 32;
        const int by = run % 4 / 2 * 4, high_by = run % 4 * 2;
        for (int i = 0; i < 32; i++)
            number[run * 32 + i] = (int8_t)((low[i] >> by & 15) + ((high[i] >> high_by & 3) << 4) - 32);
    }
}
static inline void q6_k_scales(const uint8_t *block, float *scale, float *least)
{
    const float d = block_half(block + 208);
    for (int g = 0; g < 16; g++) scale[g] = d * (float)(int8_t)block[192 + g], least[g] = 0;
}

static inline void iq4_xs_numbers(const uint8_t *restrict block, int8_t *restrict number)
{
    for (int run = 0; run < 8; run++) block_lookup(block + 8 + run * 16, number + run * 32, iq4_table);
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
