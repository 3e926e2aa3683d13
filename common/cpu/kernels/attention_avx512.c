/* Attention for AVX-512 (F, BW, VL, DQ): 16 lanes, fp32 arithmetic whatever the cache holds.
 *
 * Called through the table in common/cpu/kernels/attention.c. Pure; works in the task's scratch. The method
 * stands in attention_simd.h, the register-blocked products in attention_tile_f32.h. */
#include "common/cpu/kernels/attention_kernels.h"
#include "common/cpu/kernels/lanes512.h"

#define TILE_VECS 4 /* 6 x 4 accumulators, 4 keys' vectors and a broadcast: 29 of 32 registers */
#include "common/cpu/kernels/attention_tile_f32.h"
#define VARIANT(name) attention_##name##_avx512
#include "common/cpu/kernels/attention_simd.h"
