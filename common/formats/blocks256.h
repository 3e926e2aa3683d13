/* Blocks of 256 values of a row as GGUF files have them: numbers of 2 to 6 bits, a scale for each 16 or 32 of
 * them and one of the scales. See blocks.h. */
#pragma once

#include "common/formats/blocks32.h"

/* Sixteen numbers after another: at `at` in their run of 32, of 8. Shifts become constants. */
#define BLOCK_SIXTEENS                                                                                       \
    _Pragma("GCC unroll 8") for (int run = 0; run < 8; run++)                                                \
        _Pragma("GCC unroll 2") for (int at = 0; at < 32; at += 16)

typedef uint64_t block_pair __attribute__((vector_size(16)));

/* Eight signed bytes times the scale of scales. */
static inline void block_scaled8(float *to, uint64_t numbers, float by)
{
#ifdef __AVX2__
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)numbers)));
    _mm256_storeu_ps(to, _mm256_mul_ps(wide, _mm256_set1_ps(by)));
#else
    for (int i = 0; i < 8; i++) to[i] = by * (float)(int8_t)(numbers >> 8 * i);
#endif
}
static inline void block_scaled(float *to, block_bytes numbers, float by)
{
    block_scaled8(to, ((block_pair)numbers)[0], by);
    block_scaled8(to + 8, ((block_pair)numbers)[1], by);
}
static inline uint64_t block_join(uint32_t low, uint32_t high)
{
    return low | (uint64_t)high << 32;
}

/* Eight halves of bytes to a byte each, the first byte's lower half first. */
static inline uint64_t block_spread_fours(uint64_t halves)
{
    halves = (halves | halves << 16) & UINT64_C(0x0000ffff0000ffff);
    halves = (halves | halves << 8) & UINT64_C(0x00ff00ff00ff00ff);
    return (halves | halves << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
}

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
    const block_bytes both = block_load(block);
    block_scaled(scale, both & 15, block_half(block + 80));
    block_scaled(least, block_bits(both, 4, 15), block_half(block + 82));
}

static inline void q3_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS block_store(number + run * 32 + at, block_two_bits(block + 32, run, at) +
                                                           block_further_bit(block, run, at, 4) - 4);
}
/* 16 scales of 6 bits in 12 bytes: four bits of two in each of the first 8, two bits of four in the
 * others. */
static inline block_bytes q3_k_scale_numbers(const uint8_t *block)
{
    uint64_t low;
    uint32_t high;
    memcpy(&low, block + 96, sizeof low);
    memcpy(&high, block + 104, sizeof high);
    const block_pair fours = {block_join((high & 0x03030303u) << 4, (high & 0x0c0c0c0cu) << 2),
                              block_join(high & 0x30303030u, (high & 0xc0c0c0c0u) >> 2)};
    const block_pair halves = {low & UINT64_C(0x0f0f0f0f0f0f0f0f), low >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)};
    return (block_bytes)(fours | halves) - 32;
}
static inline void q3_k_scales(const uint8_t *block, float *scale, float *least)
{
    block_scaled(scale, q3_k_scale_numbers(block), block_half(block + 108));
    memset(least, 0, 16 * sizeof *least);
}

static inline void q4_k_numbers(const uint8_t *block, int8_t *number)
{
    BLOCK_SIXTEENS block_store(number + run * 32 + at, block_four_bits(block + 16, run, at));
}
/* 8 scales and 8 smallest values of 6 bits in 12 bytes: of the first four of each whole in the first 8 bytes,
 * whose two upper bits are those of the others. */
static inline void q4_k_scales(const uint8_t *block, float *scale, float *least)
{
    uint32_t word[3];
    memcpy(word, block + 4, sizeof word);
    const uint32_t low = (word[2] & 0x0f0f0f0fu) | (word[0] >> 2 & 0x30303030u),
                   high = (word[2] >> 4 & 0x0f0f0f0fu) | (word[1] >> 2 & 0x30303030u);
    block_scaled8(scale, block_join(word[0] & 0x3f3f3f3fu, low), block_half(block));
    block_scaled8(least, block_join(word[1] & 0x3f3f3f3fu, high), block_half(block + 2));
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

/* Each half of the numbers has its four low bits in 64 bytes: the first two runs in the bytes' low halves. */
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
    block_scaled(scale, block_load(block + 192), block_half(block + 208));
    memset(least, 0, 16 * sizeof *least);
}

/* The matrix's scale as fp32; 16 scales, E4M3 without a sign (their lower seven bits, of which all are
 * numbers); runs as those of MXFP4. Files have other blocks, of 64 values (common/model/scaled.h). */
#define NVFP4_VALUES      256
#define NVFP4_BYTES       148
#define NVFP4_GROUP       16
#define NVFP4_SCALES      4
#define NVFP4_NUMBERS     20
#define NVFP4_FILE_VALUES 64 /* four scales, then halves of bytes */
#define NVFP4_FILE_BYTES  36
static inline void nvfp4_numbers(const uint8_t *block, int8_t *number)
{
    _Pragma("GCC unroll 8") for (int run = 0; run < 8; run++)
        block_lookup(block + NVFP4_NUMBERS + run * 16, number + run * 32, mxfp4_table);
}
/* E4M3's bits are those of an fp16 number 256 times smaller; half of it is for numbers that are twice as
 * large. */
static inline void nvfp4_scales(const uint8_t *block, float *scale, float *least)
{
    float by;
    memcpy(&by, block, sizeof by);
    for (int i = 0; i < 16; i++)
        scale[i] = convert_f16_f32((uint16_t)((block[NVFP4_SCALES + i] & 0x7f) << 7)) * (by * 128);
    memset(least, 0, 16 * sizeof *least);
}

static inline void iq4_xs_numbers(const uint8_t *block, int8_t *number)
{
    _Pragma("GCC unroll 8") for (int run = 0; run < 8; run++)
        block_lookup(block + 8 + run * 16, number + run * 32, iq4_table);
}
/* 8 scales of 6 bits: four bits of each in 4 bytes, two in 2. */
static inline uint64_t iq4_xs_scale_numbers(const uint8_t *block)
{
    uint32_t halves;
    uint16_t quarters;
    memcpy(&halves, block + 4, sizeof halves);
    memcpy(&quarters, block + 2, sizeof quarters);
    uint64_t high = quarters; /* spread to a byte each */
    high = (high | high << 24) & UINT64_C(0x000000ff000000ff);
    high = (high | high << 12) & UINT64_C(0x000f000f000f000f);
    high = (high | high << 6) & UINT64_C(0x0303030303030303);
    /* Less 32 in each byte: with its top bit set none borrows of its neighbour. */
    const uint64_t top = UINT64_C(0x8080808080808080);
    return (((block_spread_fours(halves) | high << 4) | top) - UINT64_C(0x2020202020202020)) ^ top;
}
static inline void iq4_xs_scales(const uint8_t *block, float *scale, float *least)
{
    block_scaled8(scale, iq4_xs_scale_numbers(block), block_half(block));
    memset(least, 0, 8 * sizeof *least);
}
