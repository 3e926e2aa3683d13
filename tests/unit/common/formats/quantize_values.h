/* The values that quantizers are held to, here and where the reference's errors were measured: the same on
 * every machine, since only sums and products make them. */
#pragma once

#include <stdint.h>

#define QUANTIZE_ROWS 32
#define QUANTIZE_COLS 1024

/* Kind 0: near a normal distribution, sums of twelve; kind 1: its cube, whose largest value is thirty times
 * its mean. */
static inline void quantize_fill(float *value, int kind)
{
    uint32_t seed = 2463534242u;
    for (int i = 0; i < QUANTIZE_ROWS * QUANTIZE_COLS; i++) {
        float sum = 0;
        for (int k = 0; k < 12; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) * 0x1p-24f - 0.5f;
        }
        value[i] = (kind ? sum * sum * sum : sum) * 0.02f;
    }
}
