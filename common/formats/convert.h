/* Scalar conversions between fp32 and the two 16-bit formats: what the reference and the tails of faster
 * kernels use.
 *
 * Included by the kernels and their tests. Static inline on purpose: every kernel file is compiled with its
 * own instruction set, so no code may be shared through the linker. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/formats/dtype.h"

static inline float convert_bits_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t convert_f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float convert_bf16_f32(uint16_t b)
{
    return convert_bits_f32((uint32_t)b << 16);
}

/* Round to nearest even; a NaN stays a (quiet) NaN. */
static inline uint16_t convert_f32_bf16(float f)
{
    uint32_t bits = convert_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float convert_f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31)
        return convert_bits_f32(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent) return convert_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = (float)mantissa * 0x1p-24f; /* subnormal: exact */
    return sign ? -magnitude : magnitude;
}

/* Round to nearest even; too large becomes infinite, too small subnormal or zero. */
static inline uint16_t convert_f32_f16(float f)
{
    uint32_t bits = convert_f32_bits(f), magnitude = bits & 0x7fffffffu;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (magnitude >= 0x38800000u) {                                  /* 2^-14: normal */
        uint32_t shifted = magnitude - (112u << 23);
        return (uint16_t)(sign | (shifted + 0xfffu + (shifted >> 13 & 1u)) >> 13);
    }
    /* Adding 0.5 puts the unit of the sum's last place at 2^-24, the subnormal's unit: the adder rounds. */
    float sum = convert_bits_f32(magnitude) + 0.5f;
    return (uint16_t)(sign | (convert_f32_bits(sum) - 0x3f000000u));
}

/* Element `i` of an array of `dtype` that need not be aligned beyond its elements. */
static inline float convert_load(const void *p, enum dtype dtype, size_t i)
{
    uint16_t half;
    float f;
    if (dtype == DTYPE_F32) {
        memcpy(&f, (const char *)p + i * 4, 4);
        return f;
    }
    memcpy(&half, (const char *)p + i * 2, 2);
    return dtype == DTYPE_BF16 ? convert_bf16_f32(half) : convert_f16_f32(half);
}
