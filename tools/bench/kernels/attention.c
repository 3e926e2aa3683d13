/* helm-bench-kernels --attention: one token's attention over a long context, by type of the KV cache.
 *
 * Called by tools/bench/helm_bench_kernels.c. Each thread has KV heads of its own, in pools that together exceed the
 * caches, and goes on through them from sample to sample. The types are measured in turn, so that a neighbour's load falls
 * on all of them; what is printed is the median. */
#include "tools/bench/kernels/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "common/cpu/kernels/attention.h"
#include "common/cpu/pool.h"
#include "common/measure/stats.h"

#define POSITIONS    4096u
#define HEADS        8u
#define LAYERS       16u /* of a thread: each has a context of its own */
#define SAMPLES      9
#define HEAD_DIM_MAX 256u
#define GROUP_MAX    8u

static const uint32_t shapes[][2] = {{128, 1}, {128, 4}, {128, 8}, {64, 4}, {256, 2}}; /* head_dim, group */
#define SHAPES (sizeof shapes / sizeof *shapes)

struct bench {
    struct kv_layout kv[KV_DTYPE_COUNT];
    char *pool[KV_DTYPE_COUNT]; /* [thread] */
    uint32_t pages[POSITIONS / KV_PAGE_TOKENS_DEFAULT];
    const struct attention_variant *variant;
    uint32_t group, threads;
    float q[GROUP_MAX * HEAD_DIM_MAX];
    void *scratch[POOL_THREADS_MAX];
};

static uint64_t pool_bytes(const struct kv_layout *kv)
{
    return kv_page_bytes(kv) * (POSITIONS / KV_PAGE_TOKENS_DEFAULT);
}

static void fill(struct bench *b, enum kv_dtype dtype, uint32_t thread)
{
    const struct kv_layout *kv = &b->kv[dtype];
    float x[HEAD_DIM_MAX];
    uint32_t random = thread * 2654435761u + 1;
    for (uint32_t i = 0; i < kv->head_dim; i++)
        x[i] = (float)((random = random * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
    for (uint32_t layer = 0; layer < kv->layers; layer++)
        for (uint32_t head = 0; head < 2 * HEADS; head++)
            for (uint32_t p = 0; p < POSITIONS; p++) {
                x[p % kv->head_dim] = -x[p % kv->head_dim];
                kv_append(kv, b->pool[dtype] + thread * pool_bytes(kv), b->pages, layer, head >= HEADS,
                          head % HEADS, p, x);
            }
}

static void attend(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct bench *b = ctx;
    const struct kv_layout *kv = &b->kv[b->variant->kv_dtype];
    float out[GROUP_MAX * HEAD_DIM_MAX];
    for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
        const struct attention_task task = {.q = b->q,
                                            .q_stride = b->group * kv->head_dim,
                                            .tokens = 1,
                                            .group = b->group,
                                            .kv_heads = 1,
                                            .start = POSITIONS - 1,
                                            .kv_last = POSITIONS,
                                            .scale = 1 / sqrtf((float)kv->head_dim),
                                            .kv = kv,
                                            .pool = b->pool[b->variant->kv_dtype] + chunk * pool_bytes(kv),
                                            .pages = b->pages,
                                            .layer = i / HEADS,
                                            .kv_head = i % HEADS,
                                            .out = out,
                                            .out_stride = b->group * kv->head_dim,
                                            .scratch = b->scratch[thread]};
        b->variant->attend(&task);
    }
}

static int open_shape(struct bench *b, uint32_t head_dim, struct helm_err *err)
{
    for (int d = 0; d < KV_DTYPE_COUNT; d++) {
        b->kv[d] = (struct kv_layout){.layers = LAYERS,
                                      .kv_heads = HEADS,
                                      .head_dim = head_dim,
                                      .page_tokens = KV_PAGE_TOKENS_DEFAULT,
                                      .dtype = (uint32_t)d};
        b->pool[d] = stats_map_huge(b->threads * pool_bytes(&b->kv[d]));
        if (!b->pool[d]) return helm_fail_errno(err, "no memory for a KV cache");
        for (uint32_t t = 0; t < b->threads; t++) fill(b, (enum kv_dtype)d, t);
    }
    return 0;
}
static void close_shape(struct bench *b)
{
    for (int d = 0; d < KV_DTYPE_COUNT; d++) {
        if (b->pool[d]) munmap(b->pool[d], b->threads * pool_bytes(&b->kv[d]));
        b->pool[d] = NULL;
    }
}

static void measure(struct bench *b, struct pool *pool, const struct attention_variant *const *variant,
                    size_t count)
{
    double seconds[KV_DTYPE_COUNT][SAMPLES];
    for (int s = -1; s < SAMPLES; s++) /* the first warms up */
        for (size_t i = 0; i < count; i++) {
            b->variant = variant[i];
            const uint64_t from = units_now_ns();
            pool_run_region(pool, attend, b, b->threads);
            if (s >= 0) seconds[i][s] = 1e-9 * (double)(units_now_ns() - from);
        }
    for (size_t i = 0; i < count; i++) {
        const struct kv_layout *kv = &b->kv[variant[i]->kv_dtype];
        const double positions =
            (double)b->threads * LAYERS * HEADS * POSITIONS / stats_quantile(seconds[i], SAMPLES, 0.5);
        printf("%-12s %-5s %8u %6u %12.1f %10.2f\n", variant[i]->name, kv_dtype_name(variant[i]->kv_dtype),
               kv->head_dim, b->group, 1e-6 * positions,
               1e-9 * positions * 2 * kv_cell_bytes(kv->dtype, kv->head_dim));
    }
}

static int bench_shapes(struct bench *b, const char *name, struct pool *pool, struct helm_err *err)
{
    size_t all, measured = 0;
    const struct attention_variant *const *table = attention_variants(&all);
    for (size_t s = 0; s < SHAPES; s++) {
        const int rc = open_shape(b, shapes[s][0], err);
        if (rc) return rc;
        b->group = shapes[s][1];
        for (size_t i = 0; i < all;) { /* variants of one name stand together */
            const struct attention_variant *same[KV_DTYPE_COUNT];
            size_t count = 0;
            for (const char *one = table[i]->name; i < all && strcmp(table[i]->name, one) == 0; i++)
                if (!(table[i]->features & ~cpu_features())) same[count++] = table[i];
            if (!count || (name ? strcmp(same[0]->name, name) != 0 : strcmp(same[0]->name, "ref") == 0))
                continue;
            measure(b, pool, same, count);
            measured += count;
        }
        close_shape(b);
    }
    if (!measured)
        return helm_fail(err, HELM_E_UNSUPPORTED, "no attention kernel \"%s\" here", name ? name : "any");
    return 0;
}

int bench_attention(const char *name, unsigned threads, const struct cpu_set *cpus, struct helm_err *err)
{
    static struct bench b; /* large */
    struct pool *pool = NULL;
    memset(&b, 0, sizeof b);
    b.threads = threads;
    for (uint32_t i = 0; i < POSITIONS / KV_PAGE_TOKENS_DEFAULT; i++) b.pages[i] = i;
    for (uint32_t i = 0; i < GROUP_MAX * HEAD_DIM_MAX; i++)
        b.q[i] = (float)(i * 2654435761u >> 8) * 0x1p-23f - 1;
    for (uint32_t t = 0; t < threads; t++) {
        b.scratch[t] = stats_map_huge(1u << 20);
        if (!b.scratch[t]) return helm_fail_errno(err, "no memory to attend in");
    }
    int rc = pool_create(threads, cpus->cpu, POOL_SPIN_US_DEFAULT, &pool, err);
    if (rc) return rc;
    printf("one token over %u positions, %u threads\n", POSITIONS, threads);
    printf("kernel       cache head_dim  group  Mpositions/s      GB/s\n");
    rc = bench_shapes(&b, name, pool, err);
    close_shape(&b);
    pool_destroy(pool);
    for (uint32_t t = 0; t < threads; t++) munmap(b.scratch[t], 1u << 20);
    return rc;
}
