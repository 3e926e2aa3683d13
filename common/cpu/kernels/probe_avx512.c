/* Best-case read and multiply loops with AVX-512. See probe.h. */
#include "common/cpu/kernels/lanes512.h"

typedef __m512i whole;
#define whole_zero _mm512_setzero_si512
#define whole_add  _mm512_add_epi64
#define whole_load _mm512_loadu_si512

#define READ       probe_avx512_read
#define FLOPS      probe_avx512_flops
#define PROBE_SUMS 16
#define PROBE_KEEP "+v"
#include "common/cpu/kernels/probe_simd.h"
