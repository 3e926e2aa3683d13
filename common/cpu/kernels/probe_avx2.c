/* Best-case read and multiply loops with AVX2. See probe.h. */
#include "common/cpu/kernels/lanes256.h"

typedef __m256i whole;
#define whole_zero _mm256_setzero_si256
#define whole_add  _mm256_add_epi64
#define whole_load _mm256_loadu_si256

#define READ       probe_avx2_read
#define FLOPS      probe_avx2_flops
#define PROBE_SUMS 12
#define PROBE_KEEP "+x"
#include "common/cpu/kernels/probe_simd.h"
