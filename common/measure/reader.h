/* Plain reads of memory by the threads of a pool: what this machine's memory gives just now, beside which
 * helm-profile and the helm-bench programs set what they measure.
 *
 * Chunks are taken as the worker's pool takes them, so a preempted thread holds up one chunk only. The memory
 * is the caller's, touched already and only read. */
#pragma once

#include "common/cpu/kernels/probe.h"
#include "common/cpu/pool.h"

struct reader {
    const char *data;
    size_t chunk_bytes;
    uint32_t chunks;
    probe_read_fn *read;
    unsigned streams;
    size_t ahead;
    _Atomic uint64_t sink;
};
/* With one stream and nothing fetched ahead; a rest of less than a chunk is left out. */
void reader_open(struct reader *reader, const void *data, uint64_t bytes, size_t chunk_bytes);
/* Searches for about `seconds` for the fastest loop: number of streams and prefetch distance. */
void reader_choose(struct reader *reader, struct pool *pool, double seconds);
/* One pass over all of it: seconds. The caller is the pool's thread 0. */
double reader_pass(struct reader *reader, struct pool *pool);
static inline double reader_bytes(const struct reader *reader)
{
    return (double)reader->chunks * (double)reader->chunk_bytes;
}
