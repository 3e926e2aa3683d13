/* One token's products with single numbers, with AVX-512 and F16C. Called through the table of linear.c after
 * the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define ENTRIES  linear_avx512_gemv
#include "common/cpu/kernels/gemv_plain.h"
