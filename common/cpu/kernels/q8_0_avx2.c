/* Q8_0 with AVX2, FMA and F16C. Called through the table of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define GEMV     q8_0_avx2_gemv
#define DECODE   q8_0_avx2_decode
#include "common/cpu/kernels/q8_0_simd.h"
