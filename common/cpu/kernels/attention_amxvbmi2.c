/* Attention for AMX over a cache of bf16 or q8_0. The method stands in attention_amx.h. Called through the
 * table in common/cpu/kernels/attention.c. */
#define PARTS         1
#define VARIANT(name) attention_##name##_amxvbmi2
#include "common/cpu/kernels/attention_amx.h"
