/* Gated delta nets with AVX2, FMA. Called through the table of delta.c after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define VARIANT  delta_avx2
#include "common/cpu/kernels/delta_simd.h"
