/* The device's rates of attention, by the kernels that steps use and by the cache's type. See
 * measure/private.h; called by measure/kernels.c. The weights' memory serves as KV cache. One token's
 * attention is captured, over enough layers to exceed the caches; a chunk's is put into the queue. */
#include <math.h>

#include "worker-gpu/measure/private.h"

#define KV_PART 0.4 /* of the time of f16's values, for each of another type's */

uint32_t measure_kv_layers(const struct measure *m)
{
    const struct kv_layout one = {.layers = 1,
                                  .kv_heads = MEASURE_KV_HEADS,
                                  .head_dim = MEASURE_HEAD_DIM,
                                  .page_tokens = MEASURE_PAGE_TOKENS,
                                  .dtype = m->kv};
    uint64_t layers = m->weight_bytes / (kv_page_bytes(&one) * MEASURE_PAGES);
    return layers > MEASURE_KV_LAYERS ? MEASURE_KV_LAYERS : (uint32_t)layers;
}

struct gpuk_attention measure_attention_args(const struct measure *m, uint32_t layer, uint32_t heads)
{
    const struct measure_kernels *k = m->kernels;
    return (struct gpuk_attention){.step = k->step,
                                   .kv = {.layout = {.layers = measure_kv_layers(m),
                                                     .kv_heads = MEASURE_KV_HEADS,
                                                     .head_dim = MEASURE_HEAD_DIM,
                                                     .page_tokens = MEASURE_PAGE_TOKENS,
                                                     .dtype = m->kv},
                                          .pool = measure_room(m),
                                          .layer = layer},
                                   .heads = heads,
                                   .scale = 1.0f / sqrtf((float)MEASURE_HEAD_DIM),
                                   .q_norm = k->norm, /* of a head, as in Qwen3 */
                                   .k_norm = k->norm,
                                   .eps = 1e-6f,
                                   .rope_table = k->rope_table,
                                   .q = k->qkv,
                                   .k = k->qkv + MEASURE_HEADS * MEASURE_HEAD_DIM,
                                   .v = k->qkv + (MEASURE_HEADS + MEASURE_KV_HEADS) * MEASURE_HEAD_DIM,
                                   .q_stride = (MEASURE_HEADS + 2 * MEASURE_KV_HEADS) * MEASURE_HEAD_DIM,
                                   .kv_stride = (MEASURE_HEADS + 2 * MEASURE_KV_HEADS) * MEASURE_HEAD_DIM};
}

double measure_attention_bytes(const struct measure *m)
{
    return 2.0 * MEASURE_CONTEXT * MEASURE_KV_HEADS * kv_cell_bytes(m->kv, MEASURE_HEAD_DIM);
}

static struct op attend_prefill(const struct measure_work *w, uint32_t layer)
{
    const struct measure_kernels *k = w->m->kernels;
    return (struct op){.kind = OP_ATTEND_PREFILL,
                       .tokens = w->tokens,
                       .workspace = k->matmul_work,
                       .as.attention = {.args = measure_attention_args(w->m, layer, w->heads),
                                        .q = k->q,
                                        .out = k->a,
                                        .out_dtype = DTYPE_BF16,
                                        .rows = 1}};
}

static struct op attend_decode(const struct measure_work *w, uint32_t layer)
{
    const struct measure_kernels *k = w->m->kernels;
    return (struct op){.kind = OP_ATTEND_DECODE,
                       .tokens = 1,
                       .workspace = k->attention_work,
                       .as.attention = {.args = measure_attention_args(w->m, layer, w->heads),
                                        .fused = true,
                                        .out = k->a}};
}

static int issue_attention(const struct measure_work *w, struct helm_err *err)
{
    uint32_t layers = measure_kv_layers(w->m);
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        const struct op op = w->tokens == 1 ? attend_decode(w, i % layers) : attend_prefill(w, i % layers);
        rc = device_run(w->m->device, &op, err);
    }
    return rc;
}

/* A chunk of `tokens` queries of `heads` heads after a context: gpu.attention_flops, and a point of
 * gpu.attention_rows where there is one. */
static int measure_chunk(struct measure *m, uint32_t tokens, uint32_t heads, const char *name, uint32_t x,
                         struct helm_err *err)
{
    struct measure_samples samples;
    const struct measure_work w = {.m = m,
                                   .issue = issue_attention,
                                   .tokens = tokens,
                                   .heads = heads,
                                   .ops = m->emulated ? 1 : measure_kv_layers(m),
                                   .start = MEASURE_CONTEXT / 2 - tokens};
    int rc = measure_set_step(m, w.start, tokens, err);
    if (!rc) rc = measure_time_works(&w, 1, false, &samples, err);
    if (rc) return rc;
    double pairs = tokens * (w.start + (tokens + 1) / 2.0); /* of a query and a position that it sees */
    measure_to_rate(&samples, 4.0 * heads * MEASURE_HEAD_DIM * pairs * w.ops, 0);
    measure_print(m, name, x, &samples);
    if (!x && m->kv == KV_F16) measure_print(m, "gpu.attention_rows", tokens * heads, &samples);
    return 0;
}

/* gpu.attention */
static int measure_one(struct measure *m, double operation, struct helm_err *err)
{
    struct measure_samples samples;
    struct device *d = m->device;
    const struct measure_kernels *k = m->kernels;
    struct measure_work w = {.m = m,
                             .issue = issue_attention,
                             .tokens = 1,
                             .heads = MEASURE_HEADS,
                             .ops = measure_kv_layers(m),
                             .start = MEASURE_CONTEXT - 1};
    if (w.ops == 0)
        return helm_fail(err, HELM_E_CAPACITY, "no room on the device for a cache of %d positions",
                         MEASURE_CONTEXT);
    int rc = d->ops->clear(d, DEVICE_COMPUTE, k->attention_work, k->attention_work_bytes, err);
    if (!rc) rc = measure_set_step(m, w.start, 1, err);
    if (!rc) rc = measure_time_works(&w, 1, true, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples, measure_attention_bytes(m) * w.ops, operation * w.ops);
    measure_print(m, "gpu.attention", 0, &samples);
    return 0;
}

/* ---- a cache in host memory ---- */

static struct kv_layout direct_layout(const struct measure *m)
{
    struct kv_layout l = {.layers = 1,
                          .kv_heads = MEASURE_KV_HEADS,
                          .head_dim = MEASURE_HEAD_DIM,
                          .page_tokens = MEASURE_PAGE_TOKENS,
                          .dtype = m->kv};
    const uint64_t layers = m->host_bytes / (kv_page_bytes(&l) * MEASURE_PAGES);
    l.layers = layers > MEASURE_KV_LAYERS ? MEASURE_KV_LAYERS : (uint32_t)layers;
    return l;
}

/* Layers' parts of pages lie as the arena's do, with other layers' between them. */
static int issue_direct(const struct measure_work *w, struct helm_err *err)
{
    const struct kv_layout host = direct_layout(w->m);
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        struct op op = attend_decode(w, 0);
        op.as.attention.args.kv.pool_host = w->m->host + i % host.layers * kv_layer_bytes(&host);
        op.as.attention.args.kv.host_stride = kv_page_bytes(&host);
        rc = device_run(w->m->device, &op, err);
    }
    return rc;
}

/* gpu.attention_direct: all pages but the last, to which the token is appended. */
static int measure_direct(struct measure *m, double operation, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    const struct kv_layout host = direct_layout(m);
    struct measure_samples samples;
    const struct measure_work w = {.m = m,
                                   .issue = issue_direct,
                                   .tokens = 1,
                                   .heads = MEASURE_HEADS,
                                   .ops = m->emulated && host.layers ? 1 : host.layers};
    if (w.ops == 0) return 0; /* too little host memory for a cache */
    int rc = measure_set_step(m, MEASURE_CONTEXT - 1, 1, err);
    if (rc) return rc;
    for (uint32_t i = 0; i + 1 < MEASURE_PAGES; i++) k->block_host->page_table[i] |= GPUK_PAGE_HOST;
    rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, k->block, k->block_host,
                     sizeof *k->block_host, err);
    if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
    if (!rc) rc = measure_time_works(&w, 1, true, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples,
                    (double)(MEASURE_PAGES - 1) / MEASURE_PAGES * measure_attention_bytes(m) * w.ops,
                    operation * w.ops);
    measure_print(m, "gpu.attention_direct", 0, &samples);
    return 0;
}

static uint32_t most_tokens(const struct measure *m)
{
    return m->emulated ? 32 : MEASURE_TOKENS_MAX;
}

int measure_attention_run(struct measure *m, double operation, struct helm_err *err)
{
    static const struct {
        uint32_t tokens, heads;
    } few[] = {{32, MEASURE_HEADS_PAIR}, {64, MEASURE_HEADS}, {128, MEASURE_HEADS}, {256, MEASURE_HEADS}};
    const uint32_t most = most_tokens(m);
    int rc = measure_one(m, operation, err);
    if (!rc) rc = measure_direct(m, operation, err);
    for (size_t i = 0; i < sizeof few / sizeof *few && !rc; i++)
        if (few[i].tokens * few[i].heads < most * MEASURE_HEADS)
            rc = measure_chunk(m, few[i].tokens, few[i].heads, "gpu.attention_rows",
                               few[i].tokens * few[i].heads, err);
    return rc ? rc : measure_chunk(m, most, MEASURE_HEADS, "gpu.attention_flops", 0, err);
}

/* The same of a cache of q8_0: one token's, in host memory and in chains too, and a chunk's. */
int measure_kv_run(struct measure *m, double operation, struct helm_err *err)
{
    const double budget_s = m->budget_s;
    m->budget_s = measure_budget_s(m) * KV_PART;
    m->kv = KV_Q8_0;
    int rc = measure_one(m, operation, err);
    if (!rc) rc = measure_direct(m, operation, err);
    if (!rc) rc = measure_chunk(m, most_tokens(m), MEASURE_HEADS, "gpu.attention_flops", 0, err);
    if (!rc) rc = measure_chains_kv_run(m, operation, err);
    m->kv = KV_F16;
    m->budget_s = budget_s;
    return rc;
}
