/* Several tokens with AVX2, FMA and F16C, activations and sums in fp32. Called through the table of linear.c
 * after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#define NAME         "avx2"
#define FEATURES     CPU_AVX2
#define ENTRIES      linear_avx2_gemm
#define DOT_TOKENS   8
#define DOT_WIDE     3 /* tokens that share 4 rows: 12 sums in 16 registers */
#define OUTER_PANELS 2
#include "common/cpu/kernels/gemm_plain.h"
