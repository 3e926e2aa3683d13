/* The CPU's attention in a GPU's layers, to cells that lie in the arena alone (worker-cpu/program/execute.h).
 * See profile_tool.h. Called by helm_profile.c.
 *
 * Layers of the 8B shape are cut and computed as in such a step, one region after another, with queries that
 * are always there. Its context's pages lie anywhere in a pool that exceeds the caches; all of it is read
 * each time. */
#include <string.h>

#include "common/base/units.h"
#include "common/measure/stats.h"
#include "tools/profile/profile_tool.h"
#include "worker-cpu/program/execute.h"

enum {
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    LAYERS_LEAST = 8,
    LAYERS_MOST = 32,
    SCRATCH_BYTES = 1 << 20
};
#define LAYER_BYTES (32 * MIB) /* of cells, or a little less */
#define STEPS       9
#define STEPS_QUICK 3

struct attend {
    struct run run;
    struct kernel_set kernels;
    struct model_config config;
    struct arena_header header;
    struct arena arena;
    struct batch_row row;
    struct program_entry entry[LAYERS_MOST];
    struct lane *query, *partial;
    uint32_t *pages;
    char *pool;
    size_t pool_bytes, lane_bytes;
    uint32_t layers, layer;
    double begin_s; /* of the layer that is computed */
    struct profile_samples
        samples; /* bytes a second, a layer each: one that was disturbed does not count in the median */
    struct helm_err err;
    int rc;
};

/* As execute.c walks it: the GPU's part is a store. */
static bool next_layer(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct attend *a = ctx;
    (void)thread;
    if (a->layer && !a->rc) a->rc = assist_end(a->run.entry, &a->err);
    const double now = units_now_s();
    if (a->layer) profile_samples_add(&a->samples, (double)a->pool_bytes / a->layers / (now - a->begin_s));
    a->begin_s = now;
    if (a->rc || a->layer == a->layers) return false;
    const struct program_entry *e = &a->entry[a->layer++];
    atomic_store_explicit(&a->query->bell.value, e->ticket, memory_order_release);
    a->rc = assist_begin(&a->run, e, &a->err);
    if (a->rc) return false;
    a->run.entry = e;
    *job = assist_job(&a->run, e);
    return true;
}

static void scatter_pages(struct attend *a, uint32_t count)
{
    uint32_t random = 1;
    for (uint32_t i = 0; i < count; i++) a->pages[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        const uint32_t j = (random = random * 1664525u + 1013904223u) % (i + 1), page = a->pages[i];
        a->pages[i] = a->pages[j];
        a->pages[j] = page;
    }
}

/* Memory and what a step reads of it. */
static int open_memory(struct attend *a, uint64_t caches, enum kv_dtype dtype, struct helm_err *err)
{
    struct run *run = &a->run;
    const uint64_t past = PROFILE_CACHES_LEAST * caches;
    run->kv = (struct kv_layout){.kv_heads = KV_HEADS,
                                 .head_dim = HEAD_DIM,
                                 .page_tokens = KV_PAGE_TOKENS_DEFAULT,
                                 .dtype = dtype};
    const uint32_t pages = (uint32_t)(LAYER_BYTES / kv_layer_bytes(&run->kv));
    const uint64_t layers = past / LAYER_BYTES + 1;
    a->layers = layers < LAYERS_LEAST ? LAYERS_LEAST : layers > LAYERS_MOST ? LAYERS_MOST : (uint32_t)layers;
    run->kv.layers = a->layers;
    a->pool_bytes = (size_t)pages * kv_page_bytes(&run->kv);
    a->lane_bytes = lane_bytes(ARENA_KV_TOKENS, HEADS * (HEAD_DIM + 2));
    a->pool = stats_map_huge(a->pool_bytes);
    a->query = stats_map_huge(a->lane_bytes);
    a->partial = stats_map_huge(a->lane_bytes);
    a->pages = malloc(pages * sizeof *a->pages);
    if (!a->pool || !a->query || !a->partial || !a->pages)
        return helm_fail(err, HELM_E_NOMEM, "no memory to measure attention in");
    memset(a->pool, 0x11, a->pool_bytes); /* small numbers in every type */
    for (size_t i = 0; i < HEADS * HEAD_DIM; i++)
        a->query->data[i] = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-23f - 1;
    scatter_pages(a, pages);
    a->row = (struct batch_row){.pages = a->pages,
                                .start = pages * KV_PAGE_TOKENS_DEFAULT,
                                .count = 1,
                                .direct_from = pages * KV_PAGE_TOKENS_DEFAULT};
    return 0;
}

static int open_run(struct attend *a, const struct profile_cpu_options *o, enum kv_dtype dtype,
                    struct helm_err *err)
{
    struct run *run = &a->run;
    struct cpu_set *set = malloc(sizeof *set);
    int rc =
        set ? cpu_usable(o->node, set, err) : helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    a->config = (struct model_config){.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    a->header.vram_page_count = 1;
    a->arena.base = &a->header;
    run->arena = &a->arena;
    run->config = &a->config;
    run->kernels = &a->kernels;
    run->kv_heads_group = HEADS / KV_HEADS;
    run->kv_pool = a->pool;
    run->batch.row_count = 1;
    run->row[0].in = &a->row;
    run->peer_wait_ms = 1000;
    run->threads = rc ? 1 : o->threads ? o->threads : (uint32_t)set->suggested;
    run->thread = aligned_alloc(64, run->threads * sizeof *run->thread);
    if (!rc && !run->thread) rc = helm_fail(err, HELM_E_NOMEM, "no memory to measure attention in");
    if (run->thread) memset(run->thread, 0, run->threads * sizeof *run->thread);
    for (uint32_t t = 0; t < run->threads && !rc; t++) {
        run->thread[t].scratch = stats_map_huge(SCRATCH_BYTES);
        if (!run->thread[t].scratch) rc = helm_fail(err, HELM_E_NOMEM, "no memory to measure attention in");
    }
    for (uint32_t l = 0; l < a->layers; l++)
        a->entry[l] = (struct program_entry){.kind = OP_ATTEND_HOST,
                                             .layer = (int32_t)l,
                                             .kv_layer = l,
                                             .ticket = l + 1,
                                             .last = l + 1 == a->layers,
                                             .lane = a->query,
                                             .answer = a->partial};
    if (!rc) rc = attention_choose(dtype, cpu_features(), NULL, &a->kernels.attention, err);
    if (!rc) rc = assist_create(run, err);
    if (!rc)
        rc = pool_create(run->threads, run->threads <= (uint32_t)set->count ? set->cpu : NULL,
                         POOL_SPIN_US_DEFAULT, &run->pool, err);
    free(set);
    return rc;
}

static void attend_close(struct attend *a)
{
    struct run *run = &a->run;
    if (run->pool) pool_destroy(run->pool);
    assist_destroy(run);
    for (uint32_t t = 0; run->thread && t < run->threads; t++)
        if (run->thread[t].scratch) munmap(run->thread[t].scratch, SCRATCH_BYTES);
    free(run->thread);
    if (a->pool) munmap(a->pool, a->pool_bytes);
    if (a->query) munmap(a->query, a->lane_bytes);
    if (a->partial) munmap(a->partial, a->lane_bytes);
    free(a->pages);
    free(a);
}

int profile_attend_measure(const struct profile_cpu_options *options, enum kv_dtype dtype,
                           struct profile_value *value, struct helm_err *err)
{
    struct attend *a = calloc(1, sizeof *a);
    cpu_set_t allowed;
    if (!a) return helm_fail(err, HELM_E_NOMEM, "no memory to measure attention in");
    const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    int rc = open_memory(a, options->caches, dtype, err);
    if (!rc) rc = open_run(a, options, dtype, err);
    for (int i = -1; i < (options->quick ? STEPS_QUICK : STEPS) && !rc; i++) { /* the first warms up */
        a->layer = 0;
        if (i == 0) a->samples.count = 0;
        pool_run(a->run.pool, next_layer, a);
        if (a->rc) *err = a->err;
        rc = a->rc;
        if (!rc) lane_release(a->partial);
    }
    *value = profile_samples_value(&a->samples);
    attend_close(a);
    if (known) (void)sched_setaffinity(0, sizeof allowed, &allowed); /* it was thread 0 */
    return rc;
}
