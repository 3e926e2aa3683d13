/* Best-case read and multiply loops on vectors of any width. Included once by probe_avx2.c and
 * probe_avx512.c, which define READ and FLOPS (their functions of probe.h), PROBE_SUMS (as many as registers
 * hold), PROBE_KEEP (how assembler names such a register), and of whole numbers: the type whole, whole_zero,
 * whole_add, whole_load. */
#include "common/cpu/kernels/probe.h"

INLINE uint64_t read_streams(const char *p, size_t each, const unsigned streams, size_t ahead)
{
    whole sum[PROBE_STREAMS_MAX];
    UNROLL for (unsigned s = 0; s < streams; s++) sum[s] = whole_zero();
    for (size_t i = 0; i + 128 <= each; i += 128) {
        UNROLL for (unsigned s = 0; s < streams; s++)
        {
            const char *at = p + s * each + i;
            if (ahead) {
                _mm_prefetch(at + ahead, _MM_HINT_T0);
                _mm_prefetch(at + ahead + 64, _MM_HINT_T0);
            }
            UNROLL for (size_t part = 0; part < 128; part += sizeof(whole)) sum[s] =
                whole_add(sum[s], whole_load((const void *)(at + part)));
        }
    }
    uint64_t lane[sizeof(whole) / 8], total = 0; /* reduce_add adds signed numbers, which may not wrap */
    for (unsigned s = 0; s < streams; s++) {
        memcpy(lane, &sum[s], sizeof lane);
        for (size_t i = 0; i < sizeof(whole) / 8; i++) total += lane[i];
    }
    return total;
}

uint64_t READ(const void *data, size_t bytes, unsigned streams, size_t ahead)
{
#define READ_CASE(n)                                                                                         \
    case n:                                                                                                  \
        return ahead ? read_streams(data, bytes / n / 128 * 128, n, ahead)                                   \
                     : read_streams(data, bytes / n / 128 * 128, n, 0)
    switch (streams) {
        READ_CASE(1);
        READ_CASE(2);
        READ_CASE(4);
    default:
        READ_CASE(8);
    }
}

double FLOPS(size_t rounds)
{
    vec acc[PROBE_SUMS], x = vec_set1(0x1p-20f);
    UNROLL for (int i = 0; i < PROBE_SUMS; i++) acc[i] = vec_zero();
    for (size_t n = 0; n < rounds; n++) {
        UNROLL for (int i = 0; i < PROBE_SUMS; i++) acc[i] = vec_fmadd(x, x, acc[i]);
        /* Keeps the compiler from folding rounds together. */
        UNROLL for (int i = 0; i < PROBE_SUMS; i++) __asm__ volatile("" : PROBE_KEEP(acc[i]));
    }
    return (double)rounds * PROBE_SUMS * 2 * LANES;
}
