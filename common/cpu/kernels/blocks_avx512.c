/* GGUF's blocks with AVX-512 and F16C: one token's products, rows decoded to fp32. Called through the table of
 * linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#define LANES 16
typedef __m512 lanes;
#define lanes_zero  _mm512_setzero_ps
#define lanes_load  _mm512_loadu_ps
#define lanes_store _mm512_storeu_ps
#define lanes_add   _mm512_add_ps
#define lanes_fma   _mm512_fmadd_ps
#define lanes_sum   _mm512_reduce_add_ps

INLINE lanes lanes_values(const int8_t *number, float scale, float least)
{
    const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)number)));
    return _mm512_fmsub_ps(wide, _mm512_set1_ps(scale), _mm512_set1_ps(least));
}
#include "common/cpu/kernels/blocks_lanes.h"

#define ROW(name_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                        \
    [BLOCK_##FORMAT_NAME] = {{.name = "avx512",                                                              \
                              .features = CPU_AVX2 | CPU_AVX512,                                             \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_ONE_TOKEN,                                                  \
                              .gemv = name_##_gemv,                                                          \
                              .streams = 1},                                                                 \
                             {.name = "avx512",                                                              \
                              .features = CPU_AVX2 | CPU_AVX512,                                             \
                              .format = FORMAT_##FORMAT_NAME,                                                \
                              .schedule = LINEAR_DECODE,                                                     \
                              .decode = name_##_decode}},
const struct linear_kernel blocks_avx512[BLOCK_FORMAT_COUNT][2] = {BLOCK_FORMATS(ROW)};
