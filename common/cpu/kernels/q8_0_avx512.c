/* Q8_0 with AVX-512 and F16C. Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define GEMV     q8_0_avx512_gemv
#define DECODE   q8_0_avx512_decode
#include "common/cpu/kernels/q8_0_simd.h"
