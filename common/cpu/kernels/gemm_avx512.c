/* Several tokens with AVX-512 and F16C, activations and sums in fp32. Called through the table of linear.c
 * after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define NAME         "avx512"
#define FEATURES     (CPU_AVX2 | CPU_AVX512)
#define ENTRIES      linear_avx512_gemm
#define DOT_TOKENS   16
#define DOT_WIDE     6 /* tokens that share 4 rows: 24 sums in 32 registers */
#define OUTER_PANELS 4
#include "common/cpu/kernels/gemm_plain.h"
