/* How fast the machine's memory can be read just now, with the threads that a worker uses. See bench.h.
 *
 * Called between cells. Owns a buffer past every cache on huge pages where the kernel gives them, first
 * touched by the threads that read it; or it reads memory of the caller. Each call has a pool of its own,
 * pinned one thread a core: its first thread is none of the caller's, which stays where it is. The loop
 * (streams, prefetch distance) is the fastest of several, tried once at the start. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cpu.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"
#include "client/bench/bench.h"
#include "common/measure/reader.h"
#include "common/measure/stats.h"

#define PIECE_BYTES  (2 * MIB)
#define PASS_S       0.04 /* one measurement takes about this long */
#define PASSES_MAX   4096
#define MEASUREMENTS 3
#define CHOICE_S     60.0 /* to look for the loop: as long as it takes */

struct read_limit {
    struct reader reader;
    char *own; /* NULL: the caller's memory is read */
    uint64_t bytes;
    uint32_t passes, threads;
    double gb_s;
    int rc;
    struct helm_err err;
    int cpu[]; /* threads */
};

static void touch_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct read_limit *limit = ctx;
    memset(limit->own + chunk * PIECE_BYTES, 1 + (int)thread % 100, PIECE_BYTES);
}

/* The first call prepares, all others measure. */
static void *pool_main(void *arg)
{
    struct read_limit *limit = arg;
    struct pool *pool = NULL;
    limit->rc = pool_create(limit->threads, limit->cpu, POOL_SPIN_US_DEFAULT, &pool, &limit->err);
    if (limit->rc) return NULL;
    (void)reader_pass(&limit->reader, pool); /* all threads are there now */
    if (!limit->passes) {
        if (limit->own) pool_run_region(pool, touch_chunk, limit, limit->reader.chunks);
        reader_choose(&limit->reader, pool, CHOICE_S);
        double passes = PASS_S / reader_pass(&limit->reader, pool);
        limit->passes = passes < 1 ? 1 : passes > PASSES_MAX ? PASSES_MAX : (uint32_t)passes;
    } else {
        double gb_s[MEASUREMENTS];
        for (int i = 0; i < MEASUREMENTS; i++) {
            uint64_t begin = units_now_ns();
            for (uint32_t pass = 0; pass < limit->passes; pass++) (void)reader_pass(&limit->reader, pool);
            gb_s[i] = reader_bytes(&limit->reader) * limit->passes / (double)(units_now_ns() - begin);
        }
        limit->gb_s = stats_quantile(gb_s, MEASUREMENTS, 0.5);
    }
    pool_destroy(pool);
    return NULL;
}

static int run(struct read_limit *limit, struct helm_err *err)
{
    pthread_t thread;
    int rc = pin_create_thread(&thread, -1, pool_main, limit, err);
    if (rc) return rc;
    pthread_join(thread, NULL);
    if (limit->rc) *err = limit->err;
    return limit->rc;
}

int read_limit_open(uint32_t threads, int node, const void *memory, uint64_t bytes, struct read_limit **out,
                    struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    struct read_limit *limit = calloc(1, sizeof *limit + threads * sizeof limit->cpu[0]);
    int rc = set && limit ? cpu_usable(node, set, err) : helm_fail(err, HELM_E_NOMEM, "no memory");
    *out = NULL;
    if (rc < 0) goto out;
    if (!(cpu_features() & CPU_AVX2)) {
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "measuring read bandwidth needs AVX2");
        goto out;
    }
    limit->threads = threads;
    /* cores first, then their siblings */
    for (uint32_t i = 0; i < threads; i++) limit->cpu[i] = set->cpu[i % (uint32_t)set->count];
    limit->bytes = bytes < PIECE_BYTES ? PIECE_BYTES : bytes;
    if (!memory) memory = limit->own = stats_map_huge(limit->bytes);
    reader_open(&limit->reader, memory, limit->bytes, PIECE_BYTES);
    rc = memory ? run(limit, err)
                : helm_fail_errno(err, "%llu bytes to measure reading", (unsigned long long)limit->bytes);
    if (rc) goto out;
    *out = limit;
    limit = NULL;
out:
    read_limit_close(&limit);
    free(set);
    return rc;
}

int read_limit_measure(struct read_limit *limit, double *gb_s, struct helm_err *err)
{
    int rc = run(limit, err);
    *gb_s = rc ? 0 : limit->gb_s;
    return rc;
}

void read_limit_close(struct read_limit **limit)
{
    if (!*limit) return;
    if ((*limit)->own) munmap((*limit)->own, (*limit)->bytes);
    free(*limit);
    *limit = NULL;
}
