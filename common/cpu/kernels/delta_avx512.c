/* Gated delta nets with AVX-512. Called through the table of delta.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define NAME     "avx512"
#define FEATURES (CPU_AVX2 | CPU_AVX512)
#define VARIANT  delta_avx512
#include "common/cpu/kernels/delta_simd.h"
