/* The device's rates where one token's operations are chained. See measure/private.h; called by
 * measure/kernels.c.
 *
 * Chains of whole layers, attention over a page of cache included, of two shapes over the same weights: their
 * two times give bytes a second and what an operation costs beside them, attention as one of them. Then
 * attention alone, over a long context, of four and of two query heads a KV head. All are captured, as in a
 * step; what starting a chain costs is taken off. */
#include <math.h>
#include <stdlib.h>

#include "worker-gpu/measure/private.h"

#define LAYER_OPERATIONS (MEASURE_LAYER_OPS + 1)

static int issue_chain(const struct measure_work *w, struct helm_err *err)
{
    const struct op op = {.kind = OP_CHAIN, .as.chain = *w->chain};
    int rc = 0;
    for (uint32_t i = 0; i < w->rounds && !rc; i++) rc = device_run(w->m->device, &op, err);
    return rc;
}

static struct gpuk_chain_op attention_op(const struct measure *m, uint32_t layer, uint32_t heads)
{
    return (struct gpuk_chain_op){.kind = GPUK_CHAIN_ATTENTION,
                                  .attention = {.args = measure_attention_args(m, layer, heads),
                                                .out = m->kernels->a}};
}

/* Operation `index` of whole layers: attention is the second of each. */
static struct gpuk_chain_op layer_op(const struct measure *m, const struct measure_shape *s, uint32_t index)
{
    uint32_t layer = index / LAYER_OPERATIONS, op = index % LAYER_OPERATIONS;
    if (op == 1) return attention_op(m, layer % measure_kv_layers(m), MEASURE_HEADS);
    return (struct gpuk_chain_op){.kind = GPUK_CHAIN_LINEAR,
                                  .linear =
                                      measure_linear_args(m, s, layer * MEASURE_LAYER_OPS + op - (op > 1))};
}

/* A list on the device. */
struct list {
    void *memory;
    uint64_t bytes;
    struct gpuk_chain chain;
};

/* shape NULL: attention alone, of `heads` query heads. */
static int list_open(struct measure *m, const struct measure_shape *shape, uint32_t ops, uint32_t heads,
                     struct list *list, struct helm_err *err)
{
    struct device *d = m->device;
    *list = (struct list){0};
    struct gpuk_chain_op *op = calloc(ops, sizeof *op);
    if (!op) return helm_fail(err, HELM_E_NOMEM, "no memory for a chain of %u operations", ops);
    for (uint32_t i = 0; i < ops; i++) op[i] = shape ? layer_op(m, shape, i) : attention_op(m, i, heads);
    list->bytes = d->ask.chain_bytes(op, ops);
    int rc = device_alloc(d, DEVICE_WORKSPACE, list->bytes, &list->memory, err);
    if (!rc) rc = d->ask.chain_write(d, op, ops, list->memory, m->kernels->attention_work, &list->chain, err);
    free(op);
    return rc;
}

static void list_close(struct measure *m, struct list *list)
{
    device_free(m->device, DEVICE_WORKSPACE, list->bytes, list->memory);
}

int measure_chain_layers(struct measure *m, double launch, double *operation, struct helm_err *err)
{
    enum { LARGE, SMALL, COUNT };
    const struct measure_shape *const shape[COUNT] = {m->kernels->large, m->kernels->small};
    struct list list[COUNT] = {{.memory = NULL}};
    struct measure_work w[COUNT] = {{.m = m}};
    struct measure_amount amount[COUNT];
    struct measure_samples samples[COUNT], cost;
    int rc = measure_set_step(m, MEASURE_PAGE_TOKENS - 1, 1, err);
    for (int i = 0; i < COUNT && !rc; i++) {
        uint32_t layers = measure_layers_of(m, shape[i]), rounds = m->emulated ? 1 : 4;
        w[i] = (struct measure_work){
            .m = m, .issue = issue_chain, .tokens = 1, .rounds = rounds, .chain = &list[i].chain};
        amount[i].ops = LAYER_OPERATIONS * layers * rounds;
        amount[i].bytes = rounds * measure_ops_bytes(shape[i], m->format, MEASURE_LAYER_OPS * layers);
        rc = list_open(m, shape[i], LAYER_OPERATIONS * layers, MEASURE_HEADS, &list[i], err);
    }
    if (!rc) rc = measure_time_works(w, COUNT, true, samples, err);
    for (int i = 0; i < COUNT; i++) list_close(m, &list[i]);
    if (rc) return rc;
    for (int i = 0; i < COUNT; i++)
        for (uint32_t s = 0; s < samples[i].count; s++)
            samples[i].value[s] -= fmin(w[i].rounds * launch, samples[i].value[s] / 4);
    (void)measure_fit_operation(&amount[LARGE], &amount[SMALL], &samples[LARGE], &samples[SMALL],
                                MEASURE_OPERATION_LEAST, &cost);
    *operation = measure_median_of(&cost);
    measure_to_rate(&samples[LARGE], amount[LARGE].bytes, amount[LARGE].ops * *operation);
    measure_print(m, "gpu.chain_gemv", 0, &samples[LARGE]);
    measure_print(m, "gpu.chain_operation", 0, &cost);
    return 0;
}

/* `fixed`: seconds of a chain beside its operations. */
static int measure_attention(struct measure *m, const char *name, uint32_t heads, double fixed,
                             double operation, struct helm_err *err)
{
    struct list list = {.memory = NULL};
    struct measure_samples samples;
    uint32_t ops = measure_kv_layers(m);
    const struct measure_work w = {
        .m = m, .issue = issue_chain, .tokens = 1, .rounds = 1, .chain = &list.chain};
    int rc = list_open(m, NULL, ops, heads, &list, err);
    if (!rc) rc = measure_set_step(m, MEASURE_CONTEXT - 1, 1, err);
    if (!rc) rc = measure_time_works(&w, 1, true, &samples, err);
    list_close(m, &list);
    if (rc) return rc;
    measure_to_rate(&samples, measure_attention_bytes(m) * ops, fixed + operation * ops);
    measure_print(m, name, 0, &samples);
    return 0;
}

bool measure_chains_take(const struct measure *m)
{
    const struct measure_kernels *k = m->kernels;
    bool takes = !m->device->no_chains && k->small != k->large;
    for (uint32_t i = 0; takes && i < 2 * LAYER_OPERATIONS; i++) {
        const struct gpuk_chain_op op =
            layer_op(m, i < LAYER_OPERATIONS ? k->large : k->small, i % LAYER_OPERATIONS);
        takes = m->device->ask.chain_takes(m->device, &op);
    }
    return takes;
}

static int measure_both(struct measure *m, double launch, double operation, struct helm_err *err)
{
    int rc = measure_attention(m, "gpu.chain_attention", MEASURE_HEADS, launch, operation, err);
    return rc ? rc
              : measure_attention(m, "gpu.chain_attention_pair", MEASURE_HEADS_PAIR, launch, operation, err);
}

int measure_chains_run(struct measure *m, double launch, struct helm_err *err)
{
    double operation = 0;
    if (!measure_chains_take(m)) return 0;
    int rc = measure_chain_layers(m, launch, &operation, err);
    m->chain_operation = rc ? 0 : operation;
    return rc ? rc : measure_both(m, launch, operation, err);
}

int measure_chains_kv_run(struct measure *m, double launch, struct helm_err *err)
{
    return measure_chains_take(m) ? measure_both(m, launch, m->chain_operation, err) : 0;
}
