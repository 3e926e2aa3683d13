/* Attention for AMX over a cache of f16, whose numbers and what they are multiplied with are taken in two
 * parts. The method stands in attention_amx.h. Called through the table in common/cpu/kernels/attention.c. */
#define PARTS         2
#define VARIANT(name) attention_##name##_parts_amxvbmi2
#include "common/cpu/kernels/attention_amx.h"
