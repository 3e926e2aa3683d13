/* GGUF's blocks with AVX2, FMA and F16C: one token's products, rows decoded to fp32. Called through the table of
 * linear.c after the CPU check. */
#include "common/cpu/kernels/lanes256.h"

#define LANES 8
typedef __m256 lanes;
#define lanes_zero  _mm256_setzero_ps
#define lanes_load  _mm256_loadu_ps
#define lanes_store _mm256_storeu_ps
#define lanes_add   _mm256_add_ps
#define lanes_fma   _mm256_fmadd_ps
#define lanes_sum   sum_lanes

INLINE lanes lanes_values(const int8_t *number, float scale, float least)
{
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)number)));
    return _mm256_fmsub_ps(wide, _mm256_set1_ps(scale), _mm256_set1_ps(least));
}
#include "common/cpu/kernels/blocks_lanes.h"

#define ROW(name_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                        \
    [BLOCK_##FORMAT_NAME] = {{.name = "avx2",                                                                \
                              .features = CPU_AVX2,                                                          \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_ONE_TOKEN,                                                  \
                              .gemv = name_##_gemv,                                                          \
                              .streams = 1},                                                                 \
                             {.name = "avx2",                                                                \
                              .features = CPU_AVX2,                                                          \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_DECODE,                                                     \
                              .decode = name_##_decode}},
const struct linear_kernel blocks_avx2[BLOCK_FORMAT_COUNT][2] = {BLOCK_FORMATS(ROW)};
