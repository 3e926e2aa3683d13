/* Best-case read and multiply loops with AVX2. See probe.h. */
#include <immintrin.h>

#include "common/cpu/kernels/probe.h"

static inline __attribute__((always_inline)) uint64_t read_streams(const char *p, size_t each,
                                                                   const unsigned streams, size_t ahead)
{
    __m256i sum[PROBE_STREAMS_MAX];
#pragma GCC unroll 8
    for (unsigned s = 0; s < streams; s++) sum[s] = _mm256_setzero_si256();
    for (size_t i = 0; i + 128 <= each; i += 128) {
#pragma GCC unroll 8
        for (unsigned s = 0; s < streams; s++) {
            const char *at = p + s * each + i;
            if (ahead) {
                _mm_prefetch(at + ahead, _MM_HINT_T0);
                _mm_prefetch(at + ahead + 64, _MM_HINT_T0);
            }
            for (unsigned part = 0; part < 4; part++)
                sum[s] = _mm256_add_epi64(sum[s], _mm256_loadu_si256((const void *)(at + part * 32)));
        }
    }
    uint64_t total = 0;
#pragma GCC unroll 8
    for (unsigned s = 0; s < streams; s++)
        total += (uint64_t)_mm256_extract_epi64(sum[s], 0) + (uint64_t)_mm256_extract_epi64(sum[s], 1) +
                 (uint64_t)_mm256_extract_epi64(sum[s], 2) + (uint64_t)_mm256_extract_epi64(sum[s], 3);
    return total;
}

uint64_t probe_avx2_read(const void *data, size_t bytes, unsigned streams, size_t ahead)
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

double probe_avx2_flops(size_t rounds)
{
    __m256 acc[12], x = _mm256_set1_ps(0x1p-20f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) acc[i] = _mm256_setzero_ps();
    for (size_t n = 0; n < rounds; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm256_fmadd_ps(x, x, acc[i]);
            /* Keeps the compiler from folding rounds together. */
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) __asm__ volatile("" : "+x"(acc[i]));
    }
    return (double)rounds * 12 * 16;
}
