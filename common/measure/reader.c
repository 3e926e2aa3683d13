/* Plain reads of memory by the threads of a pool. See reader.h. */
#include "common/measure/reader.h"

#include <stdatomic.h>

#include "common/base/cpu.h"
#include "common/base/units.h"

/* For processors without AVX2. */
static uint64_t plain_read(const void *data, size_t bytes, unsigned streams, size_t ahead)
{
    const uint64_t *at = data;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    (void)streams, (void)ahead;
    for (size_t i = 0; i + 4 <= bytes / 8; i += 4) a ^= at[i], b ^= at[i + 1], c ^= at[i + 2], d ^= at[i + 3];
    return a ^ b ^ c ^ d;
}

static void read_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct reader *r = ctx;
    (void)thread;
    uint64_t sum = r->read(r->data + chunk * r->chunk_bytes, r->chunk_bytes, r->streams, r->ahead);
    if (sum == 1) atomic_fetch_add_explicit(&r->sink, sum, memory_order_relaxed);
}

void reader_open(struct reader *r, const void *data, uint64_t bytes, size_t chunk_bytes)
{
    unsigned features = cpu_features();
    *r = (struct reader){.data = data,
                         .chunk_bytes = chunk_bytes,
                         .chunks = (uint32_t)(bytes / chunk_bytes),
                         .read = features & CPU_AVX512 ? probe_avx512_read
                                 : features & CPU_AVX2 ? probe_avx2_read
                                                       : plain_read,
                         .streams = 1};
}

double reader_pass(struct reader *r, struct pool *pool)
{
    uint64_t begin = units_now_ns();
    pool_run_region(pool, read_chunk, r, r->chunks);
    return (double)(units_now_ns() - begin) * 1e-9;
}

void reader_choose(struct reader *r, struct pool *pool, double seconds)
{
    static const size_t ahead[] = {0, 2048};
    unsigned best_streams = 1;
    size_t best_ahead = 0;
    double least = 0;
    uint64_t end = units_now_ns() + (uint64_t)(seconds * 1e9);
    for (unsigned streams = 1; streams <= PROBE_STREAMS_MAX; streams *= 2)
        for (size_t a = 0; a < sizeof ahead / sizeof *ahead; a++) {
            if (least > 0 && units_now_ns() > end) break;
            r->streams = streams;
            r->ahead = ahead[a];
            double first = reader_pass(r, pool), second = reader_pass(r, pool);
            double shorter = first < second ? first : second;
            if (least > 0 && shorter >= least) continue;
            least = shorter;
            best_streams = streams;
            best_ahead = ahead[a];
        }
    r->streams = best_streams;
    r->ahead = best_ahead;
}
