/* The weight that a token gives the expert that every token has beside those it chooses.
 *
 * Called by the CPU worker and the emulated device, whose definition it is; tests hold the CUDA kernel
 * against it. Pure; thread-safe. */
#pragma once

#include <stdint.h>

/* sigmoid(x . weight), of a token's normed input. */
float weigh_of(const float *x, const float *weight, uint32_t width);
