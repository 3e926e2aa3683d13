/* Elementwise operations with AVX-512 and F16C. Called through the table of common/cpu/kernels/vector.c after
 * the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define VARIANT  vector_avx512
#include "common/cpu/kernels/vector_simd.h"
