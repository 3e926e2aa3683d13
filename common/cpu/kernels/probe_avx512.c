/* Best-case read and multiply loops with AVX-512. See probe.h. */
#include <immintrin.h>

#include "common/cpu/kernels/probe.h"

static inline __attribute__((always_inline)) uint64_t read_streams(const char *p, size_t each,
                                                                   const unsigned streams, size_t ahead)
{
    __m512i sum[PROBE_STREAMS_MAX];
#pragma GCC unroll 8
    for (unsigned s = 0; s < streams; s++) sum[s] = _mm512_setzero_si512();
    for (size_t i = 0; i + 128 <= each; i += 128) {
#pragma GCC unroll 8
        for (unsigned s = 0; s < streams; s++) {
            const char *at = p + s * each + i;
            if (ahead) {
                _mm_prefetch(at + ahead, _MM_HINT_T0);
                _mm_prefetch(at + ahead + 64, _MM_HINT_T0);
            }
            sum[s] = _mm512_add_epi64(sum[s], _mm512_loadu_si512(at));
            sum[s] = _mm512_add_epi64(sum[s], _mm512_loadu_si512(at + 64));
        }
    }
    __m512i all = sum[0];
#pragma GCC unroll 7
    for (unsigned s = 1; s < streams; s++) all = _mm512_add_epi64(all, sum[s]);
    uint64_t lane[8], total = 0; /* _mm512_reduce_add_epi64 adds signed numbers, which may not wrap */
    _mm512_storeu_si512(lane, all);
    for (unsigned i = 0; i < 8; i++) total += lane[i];
    return total;
}

uint64_t probe_avx512_read(const void *data, size_t bytes, unsigned streams, size_t ahead)
{
    size_t each = bytes / streams / 128 * 128;
    switch (streams) {
    case 1:
        return ahead ? read_streams(data, each, 1, ahead) : read_streams(data, each, 1, 0);
    case 2:
        return ahead ? read_streams(data, each, 2, ahead) : read_streams(data, each, 2, 0);
    case 4:
        return ahead ? read_streams(data, each, 4, ahead) : read_streams(data, each, 4, 0);
    default:
        return ahead ? read_streams(data, bytes / 8 / 128 * 128, 8, ahead)
                     : read_streams(data, bytes / 8 / 128 * 128, 8, 0);
    }
}

double probe_avx512_flops(size_t rounds)
{
    __m512 acc[16], x = _mm512_set1_ps(0x1p-20f);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) acc[i] = _mm512_setzero_ps();
    for (size_t n = 0; n < rounds; n++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) acc[i] = _mm512_fmadd_ps(x, x, acc[i]);
            /* Keeps the compiler from folding rounds together. */
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) __asm__ volatile("" : "+v"(acc[i]));
    }
    return (double)rounds * 16 * 32;
}
