/* Attention for AVX512-BF16. The method stands in attention_bf16.h. Called through the table in
 * common/cpu/kernels/attention.c. */
#define VARIANT(name) attention_##name##_avx512bf16
#include "common/cpu/kernels/attention_bf16.h"
