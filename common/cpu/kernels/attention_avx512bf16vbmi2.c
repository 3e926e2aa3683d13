/* Attention for AVX512-BF16 and VBMI over a cache of q8_0: one token's numbers become floats by a permutation
 * of bytes (CELL_BYTES, attention_cells.h), with the bits of attention_avx512bf16.c. The method stands in
 * attention_bf16.h. Called through the table in common/cpu/kernels/attention.c. */
#define CELL_BYTES    64
#define VARIANT(name) attention_##name##_avx512bf16vbmi2
#include "common/cpu/kernels/attention_bf16.h"
