/* helm-bench-kernels --attend-host: steps of the CPU worker's attention for a GPU's layers (worker-cpu/program/assist.h),
 * of the shape of an 8B model, whose queries are always there already.
 *
 * Called by tools/bench/helm_bench_kernels.c. A step goes through layers that together exceed the caches, each cut and
 * handed over as in the worker, and its limit is the best plain read loop over the same memory, cut among the threads.
 * Both are the median of samples taken in turn. */
#include "tools/bench/kernels/assist.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/cpu/kernels/probe.h"
#include "common/measure/stats.h"
#include "worker-cpu/program/assist.h"

enum { HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128, LAYERS = 12, SAMPLES = 9, STREAMS = 4, KERNELS_MOST = 8 };

struct bench {
    struct run run;
    struct kernel_set kernels;
    struct model_config config;
    struct arena_header header;
    struct arena arena;
    struct batch_row row[ARENA_KV_TOKENS];
    struct program_entry entry[LAYERS];
    struct lane *query, *partial;
    uint32_t *pages; /* of all rows, one after the other */
    char *pool;
    size_t pool_bytes;
    uint32_t layer;
    probe_read_fn *read;
    _Atomic uint64_t sink;
    struct helm_err err;
    int rc;
};

struct shape {
    enum kv_dtype dtype;
    uint32_t page_tokens, positions, rows;
};

static const struct shape shapes[] = {{KV_F16, 32, 4096, 1},   {KV_F16, 32, 16384, 1},
                                      {KV_F16, 256, 16384, 1}, {KV_F16, 32, 4096, 4},
                                      {KV_Q8_0, 32, 16384, 1}, {KV_BF16, 32, 16384, 1},
                                      {KV_F16, 32, 1024, 1},   {KV_F16, 32, 8192, 8},
                                      {KV_Q8_0, 32, 4096, 1},  {KV_Q8_0, 32, 32768, 1},
                                      {KV_Q8_0, 32, 8192, 8}};

static void read_part(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct bench *b = ctx;
    const size_t part = b->pool_bytes / b->run.threads / 4096 * 4096;
    (void)thread;
    atomic_fetch_add(&b->sink, b->read(b->pool + chunk * part, part, STREAMS, 0));
}

/* As execute.c walks it: the GPU's part is a store. */
static bool next_layer(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct bench *b = ctx;
    (void)thread;
    if (b->layer && !b->rc) b->rc = assist_end(b->run.entry, &b->err);
    if (b->rc || b->layer == LAYERS) return false;
    const struct program_entry *e = &b->entry[b->layer++];
    atomic_store_explicit(&b->query->bell.value, e->ticket, memory_order_release);
    b->rc = assist_begin(&b->run, e, &b->err);
    if (b->rc) return false;
    b->run.entry = e;
    *job = assist_job(&b->run, e);
    return true;
}

static double attend_once(struct bench *b)
{
    const uint64_t from = units_now_ns();
    b->layer = 0;
    pool_run(b->run.pool, next_layer, b);
    lane_release(b->partial);
    return 1e-9 * (double)(units_now_ns() - from);
}

static double read_once(struct bench *b)
{
    const uint64_t from = units_now_ns();
    pool_run_region(b->run.pool, read_part, b, b->run.threads);
    return 1e-9 * (double)(units_now_ns() - from);
}

static int open_shape(struct bench *b, const struct shape *shape, struct helm_err *err)
{
    const uint32_t pages = shape->positions / shape->page_tokens;
    struct run *run = &b->run;
    run->kv = (struct kv_layout){.layers = LAYERS,
                                 .kv_heads = KV_HEADS,
                                 .head_dim = HEAD_DIM,
                                 .page_tokens = shape->page_tokens,
                                 .dtype = shape->dtype};
    b->pool_bytes = (size_t)pages * shape->rows * kv_page_bytes(&run->kv);
    b->pool = stats_map_huge(b->pool_bytes);
    b->pages = malloc((size_t)pages * shape->rows * sizeof *b->pages);
    if (!b->pool || !b->pages) return helm_fail_errno(err, "no memory for a KV cache");
    memset(b->pool, 0x11, b->pool_bytes); /* small numbers in every type */
    run->kv_pool = b->pool;
    run->batch.row_count = shape->rows;
    for (uint32_t i = 0; i < pages * shape->rows; i++) b->pages[i] = i;
    uint32_t random = 1;
    for (uint32_t i = pages * shape->rows - 1; i > 0; i--) { /* as a pool that has been used gives them */
        const uint32_t other = (random = random * 1664525u + 1013904223u) % (i + 1), page = b->pages[i];
        b->pages[i] = b->pages[other];
        b->pages[other] = page;
    }
    for (uint32_t r = 0; r < shape->rows; r++) {
        b->row[r] = (struct batch_row){.pages = b->pages + r * pages,
                                       .start = shape->positions,
                                       .count = 1,
                                       .direct_from = shape->positions,
                                       .token_first = r};
        run->row[r].in = &b->row[r];
    }
    return 0;
}

static void close_shape(struct bench *b)
{
    if (b->pool) munmap(b->pool, b->pool_bytes);
    free(b->pages);
    b->pool = NULL;
    b->pages = NULL;
}

/* The kernels that read a type of cache: all but the definition, or that of a name. */
static size_t kernels_of(enum kv_dtype dtype, const char *name,
                         const struct attention_variant *kernel[KERNELS_MOST])
{
    size_t count, found = 0;
    const struct attention_variant *const *table = attention_variants(&count);
    for (size_t i = 0; i < count && found < KERNELS_MOST; i++)
        if (table[i]->kv_dtype == dtype && !(table[i]->features & ~cpu_features()) &&
            (name ? strcmp(table[i]->name, name) == 0 : strcmp(table[i]->name, "ref") != 0))
            kernel[found++] = table[i];
    return found;
}

static int measure(struct bench *b, const struct shape *shape, const char *name, struct helm_err *err)
{
    const struct attention_variant *kernel[KERNELS_MOST];
    const size_t kernels = kernels_of(shape->dtype, name, kernel);
    double attend[KERNELS_MOST][SAMPLES], read[SAMPLES];
    int rc = open_shape(b, shape, err);
    for (int s = -1; s < SAMPLES && !rc; s++) { /* the first warms up */
        for (size_t k = 0; k < kernels && !rc; k++) {
            b->kernels.attention = kernel[k];
            const double seconds = attend_once(b);
            if (s >= 0) attend[k][s] = seconds;
            rc = b->rc;
        }
        const double seconds = read_once(b);
        if (s >= 0) read[s] = seconds;
        if (rc) *err = b->err;
    }
    const double limit = rc ? 0 : stats_quantile(read, SAMPLES, 0.5);
    for (size_t k = 0; k < kernels && !rc; k++) {
        const double one = stats_quantile(attend[k], SAMPLES, 0.5);
        printf("%-5s %-12s %6u %9u %5u %12.1f %10.2f %10.2f %6.1f %%\n", kv_dtype_name(shape->dtype),
               kernel[k]->name, shape->page_tokens, shape->positions, shape->rows, 1e6 * one / LAYERS,
               1e-9 * (double)b->pool_bytes / one, 1e-9 * (double)b->pool_bytes / limit, 100 * limit / one);
    }
    close_shape(b);
    return rc;
}

static int open_bench(struct bench *b, unsigned threads, const struct cpu_set *cpus, struct helm_err *err)
{
    struct run *run = &b->run;
    b->config = (struct model_config){.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    b->header.vram_page_count = 1;
    b->arena.base = &b->header;
    b->read = cpu_features() & CPU_AVX512 ? probe_avx512_read : probe_avx2_read;
    const size_t lane = lane_bytes(ARENA_KV_TOKENS, HEADS * (HEAD_DIM + 2));
    b->query = stats_map_huge(lane);
    b->partial = stats_map_huge(lane);
    run->arena = &b->arena;
    run->config = &b->config;
    run->kernels = &b->kernels;
    run->kv_heads_group = HEADS / KV_HEADS;
    run->threads = threads;
    run->peer_wait_ms = 1000;
    run->thread = aligned_alloc(64, threads * sizeof *run->thread);
    if (!b->query || !b->partial || !run->thread) return helm_fail(err, HELM_E_NOMEM, "no memory");
    memset(run->thread, 0, threads * sizeof *run->thread);
    for (uint32_t t = 0; t < threads; t++) {
        run->thread[t].scratch = stats_map_huge(1u << 20);
        if (!run->thread[t].scratch) return helm_fail_errno(err, "no memory to attend in");
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        b->entry[l] = (struct program_entry){.kind = OP_ATTEND_HOST,
                                             .layer = (int32_t)l,
                                             .kv_layer = l,
                                             .ticket = l + 1,
                                             .last = l + 1 == LAYERS,
                                             .lane = b->query,
                                             .answer = b->partial};
    for (uint32_t i = 0; i < ARENA_KV_TOKENS * HEADS * HEAD_DIM; i++)
        b->query->data[i] = (float)(i * 2654435761u >> 8) * 0x1p-23f - 1;
    int rc = assist_create(run, err);
    return rc ? rc : pool_create(threads, cpus->cpu, POOL_SPIN_US_DEFAULT, &run->pool, err);
}

int bench_assist(const char *name, unsigned threads, const struct cpu_set *cpus, struct helm_err *err)
{
    static struct bench b; /* large */
    int rc = open_bench(&b, threads, cpus, err);
    if (!rc) {
        printf("%d of %d heads of %d, %d layers, %u threads\n", KV_HEADS, HEADS, HEAD_DIM, LAYERS, threads);
        printf("cache kernel         page positions  rows   us a layer  GB/s read      limit   ratio\n");
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !rc; s++)
        rc = measure(&b, &shapes[s], name, err);
    pool_destroy(b.run.pool);
    assist_destroy(&b.run);
    return rc;
}
