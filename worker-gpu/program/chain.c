/* Chains of a program: which operations of one token make one, and their lists in device memory. See
 * program.h; lower_chains is called by program.c, gpu_program_write_chains by engine.c. */
#include <stdlib.h>
#include <string.h>

#include "worker-gpu/program/lower.h"

/* ---- lowering ---- */

/* Whether it is an operation of layers or head other than experts'. OP_GEMM_SMALL is of invariant plans. */
static bool is_operation(const struct gpu_entry *e)
{
    return e->op.kind == OP_GEMV || e->op.kind == OP_GEMM_SMALL || e->op.kind == OP_CONVOLVE ||
           e->op.kind == OP_DELTA || (e->op.kind == OP_ATTEND_DECODE && e->op.as.attention.fused);
}

static struct gpuk_chain_op operation_of(const struct gpu_entry *e)
{
    const struct op_attention *a = &e->op.as.attention;
    if (e->op.kind == OP_GEMV || e->op.kind == OP_GEMM_SMALL)
        return (struct gpuk_chain_op){.kind = GPUK_CHAIN_LINEAR, .linear = e->op.as.linear};
    if (e->op.kind == OP_CONVOLVE || e->op.kind == OP_DELTA)
        return (struct gpuk_chain_op){.kind = e->op.kind == OP_DELTA ? GPUK_CHAIN_DELTA : GPUK_CHAIN_CONVOLVE,
                                      .delta = e->op.as.delta};
    return (struct gpuk_chain_op){.kind = GPUK_CHAIN_ATTENTION,
                                  .attention = {.args = a->args, .out = a->out}};
}

/* Rows in the ring come and go, expanded ones too. */
static bool is_taken(const struct gpu_program *p, struct device *d, const struct gpu_entry *e)
{
    if (!is_operation(e) || e->slice) return false;
    const struct gpuk_attention *a = &e->op.as.attention.args;
    if (e->op.kind == OP_ATTEND_DECODE &&
        (p->attending != GPU_ATTENDS_USUALLY || a->order == GPUK_ORDER_ALONE))
        return false;
    /* one of samples, or of other bits than few tokens have */
    if (e->op.kind == OP_GEMM_SMALL && (e->op.count || !d->ask.chain_as_few(d, &e->op.as.linear)))
        return false;
    const struct gpuk_chain_op op = operation_of(e);
    return d->ask.chain_takes(d, &op);
}

/* Whether it is a product that chains have with the bits of few tokens, in an invariant plan's lists of one
 * token and of few alike. */
static bool is_as_few(struct device *d, const struct gpu_entry *e)
{
    return e->op.kind == OP_GEMM_SMALL && !e->slice && !e->op.count &&
           d->ask.chain_as_few(d, &e->op.as.linear);
}

void lower_attention_chained(struct lowering *low)
{
    struct gpu_program *p = low->program;
    struct device *d = low->source->device;
    const bool apart = p->attending == GPU_ATTENDS_APART;
    if (!low->source->plan->invariant || d->no_chains || p->tier == GPU_TIER_CHUNK ||
        (apart && p->tier == GPU_TIER_1)) /* its token is far */
        return;
    for (uint32_t i = 0; i + 1 < p->tail; i++) {
        struct gpu_entry *e = &p->entry[i];
        if (e->op.kind != OP_ATTEND_DECODE || !is_as_few(d, e + 1)) continue;
        if (!e->op.as.attention.args.k) continue; /* a chain takes the tokens' own cells from their keys */
        const struct gpuk_chain_op op = operation_of(e);
        if (!d->ask.chain_takes(d, &op)) continue;
        e->op.as.attention.args.order = apart ? GPUK_ORDER_CHAINED_NEAR : GPUK_ORDER_CHAINED;
        p->as_chained++;
    }
}

/* Whether the next operation's weights go together with those before it, `format`, which becomes its. */
static bool mixes(const struct gpuk_chain_op *op, enum tensor_format *format)
{
    const enum tensor_format own = gpuk_chain_format(op);
    if (own == FORMAT_COUNT) return true;
    if (*format != FORMAT_COUNT && !gpuk_chain_mixes(*format, own)) return false;
    *format = own;
    return true;
}

/* How many entries from `first` on make one chain: neighbours, of weights of formats that go together. */
static uint32_t run_of(const struct gpu_program *p, struct device *d, uint32_t first)
{
    enum tensor_format format = FORMAT_COUNT;
    uint32_t i = first;
    for (; i < p->tail && is_taken(p, d, &p->entry[i]); i++) {
        const struct gpuk_chain_op op = operation_of(&p->entry[i]);
        if (!mixes(&op, &format)) break;
    }
    return i - first;
}

/* Without chains, attention to a short context as in one: by many blocks. (Long ones have another
 * program.) */
static void attend_spread(struct gpu_program *p, struct device *d)
{
    for (uint32_t i = 0; i < p->tail && p->attending == GPU_ATTENDS_USUALLY; i++) {
        struct gpu_entry *e = &p->entry[i];
        struct gpuk_attention *a = &e->op.as.attention.args;
        if (e->op.kind != OP_ATTEND_DECODE || !e->op.as.attention.fused || a->order != GPUK_ORDER_TOGETHER)
            continue;
        const struct gpuk_chain_op op = operation_of(e);
        if (d->ask.chain_takes && d->ask.chain_takes(d, &op)) a->order = GPUK_ORDER_SPREAD;
    }
}

void lower_chains(struct lowering *low)
{
    struct gpu_program *p = low->program;
    struct device *d = low->source->device;
    /* mixtures have none: their operations are small, and kernels that begin early are faster than links */
    const bool mixture = low->source->model->config.router.experts > 0, chains = !d->no_chains && !mixture;
    if (p->tier != GPU_TIER_1) return;
    if (mixture && !d->no_chains) attend_spread(p, d);
    /* no more chains than half the entries */
    uint32_t capacity = p->count + p->count / 2 + 1, count = 0, tail = 0;
    struct gpu_entry *entry = malloc(capacity * sizeof *entry);
    if (!entry) {
        low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for a program of %u entries", capacity);
        return;
    }
    for (uint32_t i = 0; i < p->count;) {
        uint32_t run = i < p->tail && chains ? run_of(p, d, i) : 0;
        if (i == p->tail) tail = count;
        if (run >= 2) {
            struct gpu_entry *chain = &entry[count++];
            memset(chain, 0, sizeof *chain);
            chain->op.kind = OP_CHAIN;
            chain->layer = -1;
            chain->sub = GPU_SUB_ALL;
            chain->op.as.chain.count = run;
            p->chains++;
            p->chained += run;
        } else {
            p->unchained += is_operation(&p->entry[i]);
            run = 1;
        }
        memcpy(&entry[count], &p->entry[i], run * sizeof *entry);
        count += run;
        i += run;
    }
    p->tail = p->tail < p->count ? tail : count;
    free(p->entry);
    p->entry = entry;
    p->count = count;
    p->capacity = capacity;
}

/* ---- lists ---- */

int gpu_program_write_chains(const struct gpu_source *s, struct gpu_program *p, struct helm_err *err)
{
    const struct device_asked *ask = &s->device->ask;
    struct gpuk_chain_op *op = p->chains ? calloc(p->chained, sizeof *op) : NULL;
    /* the usual programs' lie first, without attention in chains the others' need less */
    const struct model_config *c = &s->model->config;
    const uint64_t usual = workspace_chain_bytes(c), list = workspace_chain_lists(c);
    uint64_t at = p->attending == GPU_ATTENDS_USUALLY ? 0 : usual;
    if (p->attending == GPU_ATTENDS_ASSISTED &&
        gpu_attends_apart(s->plan, GPU_TIER_1, arena_header_of(s->arena)->context_tokens - 1))
        at += list;
    const uint64_t room = p->attending == GPU_ATTENDS_USUALLY ? usual : at + list;
    int rc = 0;
    if (!p->chains) return 0;
    if (!op) return helm_fail(err, HELM_E_NOMEM, "no memory for chains of %u operations", p->chained);
    for (uint32_t i = 0; i < p->tail && !rc; i++) {
        struct gpu_entry *e = &p->entry[i];
        if (e->op.kind != OP_CHAIN) continue;
        uint32_t count = e->op.as.chain.count;
        for (uint32_t n = 0; n < count; n++) op[n] = operation_of(&e[1 + n]);
        uint64_t bytes = ask->chain_bytes(op, count);
        if (bytes > room - at)
            rc = helm_fail(err, HELM_E_INTERNAL, "%u chains of %u operations take more than %llu bytes",
                           p->chains, p->chained, (unsigned long long)room);
        if (!rc)
            rc = ask->chain_write(s->device, op, count, (char *)gpu_area(s->buffers, GPU_AREA_CHAINS) + at,
                                  gpu_attention_work(s, 1), &e->op.as.chain, err);
        at += bytes;
        i += count;
    }
    free(op);
    return rc;
}
