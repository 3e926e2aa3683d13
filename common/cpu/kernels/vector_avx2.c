/* Elementwise operations with AVX2, FMA and F16C. Called through the table of common/cpu/kernels/vector.c
 * after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define VARIANT  vector_avx2
#include "common/cpu/kernels/vector_simd.h"
