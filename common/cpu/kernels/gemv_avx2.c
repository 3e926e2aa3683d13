/* One token's products with single numbers, with AVX2, FMA and F16C. Called through the table of linear.c
 * after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define ENTRIES  linear_avx2_gemv
#include "common/cpu/kernels/gemv_plain.h"
