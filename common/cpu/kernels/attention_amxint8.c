/* Attention for AMX over a cache of q8_0, whose numbers are operands of one token's products as they lie. The
 * methods stand in attention_few_amx.h and, of many queries, in attention_amx.h. Called through the table in
 * common/cpu/kernels/attention.c. */
#define PARTS 1
#define TILED
#define VARIANT(name) attention_##name##_amxint8
#include "common/cpu/kernels/attention_amx.h"
