/* Several tokens' products of blocks with activations of 8 bits, with AVX512-VNNI: int8_gemm.h on 16 rows a
 * vector. Included after lanes512.h by files that define the rest of what int8_gemm.h asks for. */
#pragma once

typedef __m512i ivec;
#define ivec_load      _mm512_loadu_si512
#define ivec_store     _mm512_storeu_si512
#define ivec_to_floats _mm512_cvtepi32_ps
#define ivec_of_floats _mm512_cvtps_epi32
#define PANELS         2
#define TOKENS         4

#include "common/cpu/kernels/int8_gemm_sizes.h"

INLINE ivec group_extra(const char *w, const size_t steps)
{
    ivec sum = _mm512_setzero_si512();
    UNROLL for (size_t i = 0; i < steps; i++) sum =
        _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)128), ivec_load(w + i * LANES * 4));
    return _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

INLINE void group_sums(ivec *sum, const char *w, size_t panel, const char *x, size_t stride,
                       const size_t steps, const size_t T, const enum tensor_format format)
{
    (void)format;
    UNROLL for (size_t i = 0; i < steps; i++)
    {
        ivec ws[PANELS];
        UNROLL for (size_t p = 0; p < PANELS; p++) ws[p] = ivec_load(w + p * panel + i * LANES * 4);
        UNROLL for (size_t t = 0; t < T; t++)
        {
            int four;
            memcpy(&four, x + t * stride + 4 * i, sizeof four);
            const ivec xs = _mm512_set1_epi32(four);
            UNROLL for (size_t p = 0; p < PANELS; p++) sum[t * PANELS + p] =
                _mm512_dpbusd_epi32(sum[t * PANELS + p], xs, ws[p]);
        }
    }
}

#define FEATURES_VNNI (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI)
#define BEATEN        CPU_AMX_BF16
