/* Best-case multiply loop with vdpbf16ps. See probe.h. */
#include <immintrin.h>

#include "common/cpu/kernels/probe.h"

double probe_avx512bf16_flops(size_t rounds)
{
    __m512 acc[16];
    const __m512bh x = (__m512bh)_mm512_set1_epi32(0x35803580); /* 2^-20 twice */
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) acc[i] = _mm512_setzero_ps();
    for (size_t n = 0; n < rounds; n++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) acc[i] = _mm512_dpbf16_ps(acc[i], x, x);
            /* Keeps the compiler from folding rounds together. */
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) __asm__ volatile("" : "+v"(acc[i]));
    }
    return (double)rounds * 16 * 64;
}
