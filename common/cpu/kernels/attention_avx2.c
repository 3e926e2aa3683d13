/* Attention for AVX2 + FMA + F16C: 8 lanes, fp32 arithmetic whatever the cache holds.
 *
 * Called through the table in common/cpu/kernels/attention.c. Pure; works in the task's scratch. The method
 * stands in attention_simd.h, the register-blocked products in attention_tile_f32.h. */
#include "common/cpu/kernels/attention_kernels.h"
#include "common/cpu/kernels/lanes256.h"

#define TILE_VECS 2 /* 6 x 2 accumulators, 2 keys' vectors and a broadcast: 15 of 16 registers */
#include "common/cpu/kernels/attention_tile_f32.h"
#define VARIANT(name) attention_##name##_avx2
#include "common/cpu/kernels/attention_simd.h"
