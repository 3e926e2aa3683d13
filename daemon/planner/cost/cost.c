/* Prices of a step's units, by the rates of cost/rates.c. See cost.h; the equations are in
 * docs/planner-prices.md. Called by search.c, cost/plan.c and report/explain.c; owns nothing but the table
 * that it returns. */
#include "daemon/planner/cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/arch.h"
#include "daemon/planner/cost/attention.h"
#include "daemon/planner/cost/experts.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/cost/spent.h"

/* A captured step's slice of blocks has two operations beside its product: one waits for its arrival, one
 * sets its place free. */
#define OPERATIONS_OF_A_SLICE 2

/* `elsewhere`: positions of each row that another processor attends to. */
static void add_attention(const struct pricing *p, const struct device_rates *r, double window,
                          double elsewhere, struct spent *s)
{
    struct attention_price a;
    attention_price(p, r, window, elsewhere, &a);
    s->total += fmax(a.memory, a.compute);
    s->beside += fmax(a.beside, a.compute);
    *(a.compute > a.memory ? &s->compute : &s->memory) += fmax(a.memory, a.compute);
}

/* Bytes of a number of an activation: written as fp32 and read in 16 bits by a product; read and written by a
 * rotation. */
#define PASSED  (double)(sizeof(float) + sizeof(uint16_t))
#define ROTATED (2.0 * sizeof(float))

/* Norms, rotations and products of several tokens pass through memory on their own; one token's are in the
 * operations around them. */
static double activation_bytes(const struct pricing *p, uint32_t kind)
{
    const struct model_config *c = &p->model->config;
    double q = (double)c->heads * model_heads_most(c).head_dim, kv = (double)model_kv_width(c);
    if (p->tier == OP_TIER_ONE) return 0;
    if (p->model->math.part[kind]
            .experts) /* x gathered by expert, what is between the halves, and sums that are added up */
        return p->step->tokens *
               (PASSED * c->hidden + PASSED * c->shared_intermediate +
                c->router.chosen * (2 * PASSED * c->hidden + PASSED * c->expert_intermediate));
    return p->step->tokens *
           (PASSED * c->hidden +
            (p->model->math.part[kind].part == UNIT_MLP ? PASSED * c->intermediate : ROTATED * (q + 2 * kv)));
}

/* A packed matrix on the CPU. One token's products unpack it while they wait for its bytes. Several tokens'
 * multiply what each thread unpacked, and are no faster than plain ones. */
static void add_packed(const struct device_rates *r, double bytes, double parameters, double tokens,
                       struct spent *s)
{
    struct spent plain = {0};
    if (tokens > 1) spent_linear(r, bytes, parameters, tokens, &plain);
    const double work = tokens > 1 ? 2 * parameters * tokens / r->peak : 0,
                 total = fmax(plain.total, bytes / r->packed + work);
    s->total += total;
    s->beside += fmax(plain.beside, bytes / r->packed_beside + work);
    s->compute += work;
    s->memory += total - work;
}

/* A half layer's weights: what they take, and what the GPU's program has of them. */
struct weights {
    struct spent cpu, gpu, kernel;
    double products;               /* of the GPU */
    double slices;                 /* in which they cross the link, or are expanded */
    bool expands_home;             /* also at home in VRAM */
    bool blocks;                   /* some of them are: they are cut by what they expand to */
    double cpu_spread, gpu_spread; /* of the formats' rates, the widest */
    struct experts_parts experts;  /* what of all that is products with experts */
};

/* Weights of an operation that the GPU multiplies by together (program_run_end). */
struct run {
    const struct math_op *math;
    const struct model_tensor *const *tensor;
    uint32_t first, end; /* of tensor */
};

/* Bytes of a matrix's values as a chunk multiplies by them. */
static double expanded_bytes(const struct model_tensor *t)
{
    return (double)tensor_format_bytes(tensor_format_plain(tensor_format_product(t->format)), t->rows,
                                       t->cols);
}

/* Experts' matrices of a run, on the GPU: computed as they lie, in whatever format, of all of a chunk's
 * tokens at once. */
static void add_experts_gpu(const struct pricing *p, const struct run *run, struct weights *w)
{
    const struct model_config *c = &p->model->config;
    const double work = (double)c->router.chosen / (double)c->router.experts;
    struct device_rates r = p->experts[run->tensor[run->first]->format].kernel;
    const bool small = p->tier == OP_TIER_ONE && p->profile->gpu.chain_gemv.value > 0; /* small kernels */
    r.parts = 1;
    const double before = w->kernel.total;
    for (uint32_t i = run->first; i < run->end; i++) {
        const struct model_tensor *t = run->tensor[i];
        const double read = (double)t->bytes * analyse_read_part(c, t, p->step->tokens),
                     parameters = (double)t->rows * (double)t->cols * work;
        spent_linear(&r, read, parameters, p->step->tokens, &w->gpu);
        spent_linear(&r, read, parameters, p->step->tokens, &w->kernel);
        w->slices += slices_of(t->bytes, false);
        w->experts.bytes += read;
    }
    w->experts.gpu += w->kernel.total - before;
    spent_overhead(&r, (small ? OPERATIONS_OF_EXPERTS : 1) * product_of(&r), &w->gpu);
    spent_overhead(&r, product_of(&r), &w->kernel);
    w->experts.launches += product_of(&r);
    w->products++;
    w->blocks = true; /* slices have been counted */
}

/* Tokens of a GPU's product. In a chunk of an invariant plan they are multiples of GPU_STEADY_TOKENS, except
 * on a device whose products give a token the same bits whatever their size (worker-gpu/program/issue.c). */
static uint32_t product_tokens(const struct pricing *p)
{
    const uint32_t tokens = p->step->tokens, few = cost_rates_as_few(p);
    if (few) return few;
    if (!p->step->invariant || p->tier != OP_TIER_CHUNK) return tokens;
    if (p->profile->gpu.device != PROFILE_DEVICE_CUDA) return tokens;
    return (uint32_t)round_up(tokens, GPU_STEADY_TOKENS);
}

/* On the GPU, each time it is computed: a product, which in a chunk normalises its input anew, whatever the
 * run. */
static void add_run_gpu(const struct pricing *p, const struct run *run, struct weights *w)
{
    const enum tensor_format format = run->tensor[run->first]->format;
    const struct format_rates *with = &p->with[format];
    const double before = w->kernel.total;
    double expanded = 0;
    if (arch_role_of_experts(run->tensor[run->first]->role)) {
        add_experts_gpu(p, run, w);
        return;
    }
    for (uint32_t i = run->first; i < run->end; i++) {
        const struct model_tensor *t = run->tensor[i];
        const double parameters = (double)t->rows * (double)t->cols, stored = (double)t->bytes;
        expanded += expanded_bytes(t);
        spent_linear(&with->gpu, with->expands_home ? expanded_bytes(t) : stored, parameters,
                     product_tokens(p), &w->gpu);
        spent_linear(&with->kernel, with->expands ? expanded_bytes(t) : stored, parameters, product_tokens(p),
                     &w->kernel);
    }
    spent_overhead(&with->gpu, product_of(&with->gpu), &w->gpu);
    spent_overhead(&with->kernel, product_of(&with->kernel), &w->kernel);
    w->experts.beside += w->kernel.total - before; /* where the unit has experts, a shared one's */
    if (p->tier == OP_TIER_CHUNK && run->first > 0 && run->math->norm != TENSOR_NONE &&
        p->kernel.product <= 0) {
        spent_operations(&p->gpu, 1, &w->gpu);
        spent_operations(&p->kernel, 1, &w->kernel);
    }
    if (with->expands) {
        const double seconds = expanding_seconds(p, with->expand, expanded);
        if (with->expands_home) w->gpu.total += seconds, w->gpu.beside += seconds, w->gpu.memory += seconds;
        w->kernel.total += seconds, w->kernel.beside += seconds, w->kernel.memory += seconds;
    }
    w->products++;
    w->slices += slices_of((uint64_t)expanded, !tensor_format_is_plain(format));
    w->expands_home |= with->expands_home;
    w->blocks |= !tensor_format_is_plain(format);
    w->gpu_spread = fmax(w->gpu_spread, with->gpu_spread);
}

/* A matrix on the CPU, where all of an operation's are one region of the pool, whatever their formats. */
static void add_matrix_cpu(const struct pricing *p, uint32_t unit, const struct model_tensor *t,
                           struct weights *w)
{
    const struct model_config *c = &p->model->config;
    const bool packed = cost_rates_packed_cpu(p, unit), experts = arch_role_of_experts(t->role);
    const struct format_rates *with = experts ? &p->experts[t->format] : &p->with[t->format];
    const double bytes = (double)t->bytes * analyse_read_part(c, t, p->step->tokens),
                 work = experts ? (double)c->router.chosen / (double)c->router.experts : 1;
    const double parameters = (double)t->rows * (double)t->cols * work;
    struct spent both = {
        0}; /* of a unit in both memories, whose experts may be packed when those of the CPU alone are not */
    (packed ? add_packed : spent_linear)(&with->cpu, bytes, parameters, p->step->tokens, &w->cpu);
    w->cpu_spread = fmax(w->cpu_spread, with->cpu_spread);
    if (!experts) return;
    (cost_rates_packed_mixed(p, unit) ? add_packed : spent_linear)(&with->cpu, bytes, parameters,
                                                                   p->step->tokens, &both);
    w->experts.cpu += both.total;
    w->experts.cpu_beside += both.beside;
}

/* An operation's weights, of which the unit's next matrices are those that the model has. Returns how
 * many. */
static uint32_t add_operation(const struct pricing *p, uint32_t unit, const struct math_op *math, uint32_t at,
                              struct weights *w)
{
    const struct model_unit *u = &p->model->unit[unit];
    enum tensor_format format[MATH_WEIGHTS_MAX];
    struct run run = {.math = math, .tensor = u->tensor + at};
    uint32_t count = 0;
    for (uint32_t i = 0; i < math->weights; i++) {
        const struct model_tensor *t = at + count < u->matrix_count ? u->tensor[at + count] : NULL;
        format[i] = FORMAT_COUNT;
        if (!t || t->role != math->weight[i]) continue;
        format[count++] = t->format;
        add_matrix_cpu(p, unit, t, w);
    }
    for (; p->device && run.first < count; run.first = run.end) {
        run.end = program_run_end(math, format, run.first);
        if (run.end > count) run.end = count;
        add_run_gpu(p, &run, w);
    }
    return count;
}

/* Bytes that a token reads of a vector. A router is kept as fp32, and so are experts' biases, of which it
 * reads its own. */
static double vector_bytes(const struct model_tensor *t, double read_part)
{
    const double kept = (double)(t->rows * t->cols) * sizeof(float);
    if (t->role == TENSOR_ROUTER) return kept;
    return t->rows > 1 ? kept * read_part : (double)t->bytes;
}

static void add_weights(const struct pricing *p, uint32_t unit, struct weights *w)
{
    const struct model_unit *u = &p->model->unit[unit];
    const struct math_part *math = model_unit_math(p->model, unit);
    uint32_t at = 0;
    for (uint32_t i = 0; i < math->ops; i++) at += add_operation(p, unit, &math->op[i], at, w);
    for (; at < u->tensor_count; at++) {
        const double bytes = vector_bytes(u->tensor[at], math->read_part);
        spent_linear(&p->cpu, bytes, 0, p->step->tokens, &w->cpu);
        if (!p->device) continue;
        spent_linear(&p->gpu, bytes, 0, p->step->tokens, &w->gpu);
        spent_linear(&p->kernel, bytes, 0, p->step->tokens, &w->kernel);
    }
}

static void price_link(const struct pricing *p, uint32_t unit, double window, struct cost_unit *u)
{
    const struct profile_link *link = &p->profile->link;
    const struct cost_step *step = p->step;
    /* Copies wait in a queue, so only what starts after a pause pays the latency: once a unit. */
    u->link = (double)u->crossing / link->h2d.value + link->latency.value;
    u->link_beside = (double)u->crossing / p->link_beside + link->latency.value;
    if (unit_part(unit) == UNIT_MLP) return;
    const struct math_part *math = &p->model->math.part[model_unit_kind(p->model, unit)];
    if (math->state == STATE_FIXED) /* read and written in place, which the GPU waits for */
        u->borrow_gpu = step->rows * (double)math->state_bytes *
                        (1 / link->h2d.value + 1 / rate_or(&link->d2h, link->h2d.value));
    if (math->state != STATE_PAGES || step->kv.two) return; /* no pages are borrowed */
    double n = pricing_tokens_a_row(step), before = fmax(0, step->context - n);
    if (window > 0) before = fmin(before, window);
    u->borrow = step->rows * before * pricing_kv_bytes(p) / link->h2d.value +
                step->tokens * pricing_kv_bytes(p) / rate_or(&link->d2h, link->h2d.value) +
                (before > 0 ? 2 : 1) * link->latency.value;
}

/* A half layer on the GPU beside its products. */
static void add_rest(const struct pricing *p, const struct device_rates *r, uint32_t kind, double window,
                     struct spent *s)
{
    const struct model_config *c = &p->model->config;
    const struct part_operations *o = &p->part[kind];
    const bool attends = p->model->math.part[kind].attends; /* and rotates */
    const struct model_heads heads = model_heads_of(c, window > 0);
    double rotated = ROTATED * heads.head_dim * (c->heads + 2.0 * heads.kv_heads);
    spent_bytes(r, 2.0 * p->step->rows * (double)p->model->math.part[kind].state_bytes, r->read, s);
    if (attends) {
        add_attention(p, r, window, attention_elsewhere(p, window), s);
    }
    if (r->product > 0) { /* norms and activations are in it */
        spent_bytes(r, attends ? p->step->tokens * rotated : 0, r->read, s);
        spent_operations(r, o->others, s);
        return;
    }
    spent_bytes(r, activation_bytes(p, kind), r->read, s);
    spent_operations(r, o->gpu - o->products, s);
}

static bool unit_read_packed(const struct pricing *p, bool mlp)
{
    const struct model_config *c = &p->model->config;
    return cost_rates_reads_packed(p, mlp ? c->intermediate : c->heads * c->head_dim);
}

/* A unit that lies packed in VRAM: one token's operations are kernels of their own, each with whole matrices;
 * several tokens' expand and multiply it slice by slice. */
static double packed_in_vram(const struct pricing *p, bool mlp, uint64_t bytes, const struct spent *gpu,
                             const struct spent *kernel)
{
    double more = fmax(0, slices_of(bytes, true) - p->part[mlp ? UNIT_MLP : UNIT_ATTENTION].products);
    if (unit_read_packed(p, mlp)) return fmax(gpu->total, kernel->total) + longer_packed(p, (double)bytes);
    return fmax(gpu->total, kernel->total + p->kernel.parts * more * product_of(&p->kernel)) +
           expand_seconds(p, (double)bytes);
}

/* Experts that lie packed in VRAM. A separate kernel reads those of one or a few tokens, after one that
 * chooses. A chunk expands all of them. */
static double packed_experts_in_vram(const struct pricing *p, const struct weights *w, uint64_t bytes,
                                     double sliced)
{
    const double packed = p->profile->gpu.gemv_packed.value;
    if (p->tier == OP_TIER_CHUNK) return sliced + expand_seconds(p, (double)bytes);
    return w->kernel.total - w->experts.gpu + p->kernel.operation +
           w->experts.bytes / (packed > 0 ? packed : p->kernel.gemv);
}

/* Prices experts in packed slots by the same kernel, and direct reads by packed bytes. A chunk's are the
 * CPU's. */
static void pack_experts(const struct pricing *p, struct experts_parts *e)
{
    const double packed = p->profile->gpu.gemv_packed.value,
                 seconds = e->bytes / (packed > 0 ? packed : p->kernel.gemv);
    e->unit += seconds - e->gpu;
    e->gpu = seconds;
    e->bytes = (double)cost_crossing_bytes((uint64_t)e->bytes);
    e->cpu_all = p->tier == OP_TIER_CHUNK;
}

/* In slices: each beyond one a product is one more. */
static double in_slices(const struct pricing *p, const struct weights *w, double more)
{
    return fmax(w->gpu.total, w->kernel.total + p->kernel.parts * more * product_of(&p->kernel));
}

/* Measured seconds in VRAM, where there are some. Slices add as much as by rates; parts of experts are in
 * proportion. */
static void take_measured(const struct pricing *p, uint32_t unit, double window, struct cost_unit *u,
                          struct experts_parts *e)
{
    const double by_rates = u->gpu;
    measured_price_gpu(p, unit, attention_elsewhere(p, window), u);
    if (!u->gpu_measured) return;
    u->stream = fmax(u->gpu, u->stream + u->gpu - by_rates) * fmax(1, u->gpu_beside);
    const double times = by_rates > 0 ? u->gpu / by_rates : 1;
    e->unit *= times, e->gpu *= times, e->launches *= times, e->beside *= times;
}

/* The same of the CPU. */
static void take_measured_cpu(const struct pricing *p, uint32_t unit, struct cost_unit *u,
                              struct experts_parts *e)
{
    const double by_rates = u->cpu, beside = u->cpu_beside;
    measured_price(p, unit, u);
    if (!u->cpu_measured || by_rates <= 0 || beside <= 0) return;
    e->cpu *= u->cpu / by_rates, e->cpu_beside *= u->cpu_beside / beside;
}

#define SHARED_OPERATIONS                                                                                    \
    3 /* of the GPU: x to the lane, adding the CPU's sum, the launch of the chain after it */

/* An MLP of two processors, as a unit of the CPU: its rows' part of what all take, less operations; no less
 * than the GPU needs beside the hand-overs. Whatever the whole unit's prices come from, rates or programs,
 * the parts' do. */
static void price_shared(const struct pricing *p, uint32_t unit, struct cost_unit *u)
{
    const double own = analyse_own_part(p->analysed, unit, p->step->shared_rows),
                 once = p->part[model_unit_kind(p->model, unit)].cpu * p->cpu.operation,
                 gpu = own * u->gpu + SHARED_OPERATIONS * p->kernel.operation -
                       2 * p->profile->link.hand_over.value;
    u->shared = u->shared_beside = INFINITY;
    if (own <= 0 || !p->device) return;
    u->shared = fmax(once + (1 - own) * fmax(0, u->cpu - once), gpu);
    u->shared_beside = fmax(once + (1 - own) * fmax(0, u->cpu_beside - once), gpu);
}

/* A whole unit from disk: it is computed as one in memory once it has come. */
static void price_reading(const struct pricing *p, struct cost_unit *u)
{
    const double rate = p->profile->disk_read.value;
    u->read = rate > 0 ? (double)u->bytes / rate : INFINITY;
    u->disk = u->cpu;
    u->disk_wait = fmax(0, u->read - u->cpu);
}

static void price_unit(const struct pricing *p, uint32_t unit, struct cost_unit *u)
{
    const uint32_t kind = model_unit_kind(p->model, unit);
    const struct part_operations *o = &p->part[kind];
    const struct math_part *math = &p->model->math.part[kind];
    const bool mlp = unit_part(unit) == UNIT_MLP, attends = math->attends;
    double window = p->model->config.window ? p->model->config.window[unit_layer(unit)] : 0;
    struct weights w = {.products = 0};
    u->experts = math->experts;
    add_weights(p, unit, &w);
    const bool fixed = math->state == STATE_FIXED;
    if (attends) add_attention(p, &p->cpu, window, 0, &w.cpu);
    if (fixed) /* each row's is read and written */
        spent_bytes(&p->cpu, 2.0 * p->step->rows * (double)math->state_bytes, p->cpu.read, &w.cpu);
    spent_bytes(&p->cpu, activation_bytes(p, kind), p->cpu.read, &w.cpu);
    spent_operations(&p->cpu, o->cpu, &w.cpu);
    u->cpu = w.cpu.total;
    u->cpu_beside = w.cpu.beside;
    u->cpu_bound = spent_bound(&w.cpu);
    u->cpu_spread = w.cpu_spread;
    u->gpu_spread = w.gpu_spread;
    take_measured_cpu(p, unit, u, &w.experts);
    if (u->experts && p->step->experts.disk_slots) experts_price_disk(p, unit, &w.experts, u);
    if (!u->experts) price_reading(p, u);
    u->gpu_bound = "";
    u->gpu = u->stream = u->link = u->link_beside = u->borrow = INFINITY;
    if (!p->device) return;
    add_rest(p, &p->gpu, kind, window, &w.gpu);
    add_rest(p, &p->kernel, kind, window, &w.kernel);
    /* Between slices there are events: nothing to chain. */
    const double slices = w.blocks ? w.slices : slices_of(u->bytes, u->packed),
                 more = fmax(0, slices - w.products);
    u->gpu = u->gpu_packed && u->experts ? packed_experts_in_vram(p, &w, u->bytes, in_slices(p, &w, more))
             : u->gpu_packed             ? packed_in_vram(p, mlp, u->bytes, &w.gpu, &w.kernel)
             : w.expands_home            ? in_slices(p, &w, more)
                                         : w.gpu.total;
    u->gpu_bound = spent_bound(&w.gpu);
    u->stream = in_slices(p, &w, more);
    if (w.blocks && p->tier != OP_TIER_CHUNK)
        u->stream += OPERATIONS_OF_A_SLICE * slices * p->kernel.operation;
    w.experts.unit = w.kernel.total;
    take_measured(p, unit, window, u, &w.experts);
    u->stays = u->experts && p->tier != OP_TIER_CHUNK;
    if (u->packed)
        u->stream +=
            (unit_read_packed(p, mlp) ? COST_READ_PACKED_PART : 1) * expand_seconds(p, (double)u->bytes);
    u->borrow = 0;
    price_link(p, unit, window, u);
    if (attends && p->step->kv.two && !(window > 0 && p->step->kv.windows))
        attention_price_host(p, window, u);
    if (u->experts && cost_rates_packed_mixed(p, unit)) pack_experts(p, &w.experts);
    if (u->experts && p->step->experts.slots) experts_price(p, &w.experts, u);
    if (p->step->shared_rows) price_shared(p, unit, u);
}

static int check_step(const struct model *model, const struct cost_step *step, struct helm_err *err)
{
    if (step->tokens == 0 || step->rows == 0 || step->rows > step->tokens || step->samples > step->tokens)
        return helm_fail(err, HELM_E_LIMIT, "no step: %u tokens in %u rows, %u of them sampled", step->tokens,
                         step->rows, step->samples);
    if ((uint64_t)step->context * step->rows < step->tokens)
        return helm_fail(err, HELM_E_LIMIT,
                         "no step: %u tokens in %u rows attend to %u positions, not even to "
                         "themselves",
                         step->tokens, step->rows, step->context);
    if (model->config.layers == 0) return helm_fail(err, HELM_E_LIMIT, "a model without layers has no price");
    return 0;
}

/* Whether a half layer has the prices of another one: it has the same program, of as many bytes. */
static bool priced_alike(const struct pricing *p, uint32_t a, uint32_t b)
{
    const struct analyse_table *of = p->analysed;
    const uint32_t *const window = p->model->config.window; /* tests set it anew */
    if (of->signature[a] != of->signature[b] || (window && window[unit_layer(a)] != window[unit_layer(b)]) ||
        analyse_units_stored(of, a, a) != analyse_units_stored(of, b, b))
        return false;
    for (int h = 0; p->step->format && h < PLAN_HOMES; h++)
        if ((p->step->format[a][h] == FORMAT_BF16_PACKED) != (p->step->format[b][h] == FORMAT_BF16_PACKED))
            return false;
    return true;
}

#define KINDS_MAX 16 /* of units that prices are looked for among */

static int price_step(const struct model *model, const struct analyse_table *analysed,
                      const struct profile *profile, const struct cost_step *step, struct cost_table *table,
                      struct helm_err *err)
{
    struct pricing p = {.model = model, .profile = profile, .step = step, .analysed = analysed};
    uint32_t units = unit_count(model->config.layers);
    memset(table, 0, sizeof *table);
    int rc = check_step(model, step, err);
    if (!rc) rc = cost_rates_of(&p, err);
    if (rc) return rc;
    table->unit = malloc(units * sizeof *table->unit);
    if (!table->unit)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the prices of %u half layers", units);
    struct format_rates with[FORMAT_COUNT], experts[FORMAT_COUNT];
    const struct rates_size size = {step->tokens, p.tier};
    for (int f = 0; f < FORMAT_COUNT; f++) cost_rates_with(&p, (enum tensor_format)f, &size, &with[f]);
    p.with = with;
    p.experts = experts;
    if (model->config.router.experts) {
        rc = experts_rates(&p, experts, err);
        if (rc) {
            cost_table_free(table);
            return rc;
        }
    }
    if (p.device) p.link_beside = cost_rates_link(&p);
    table->units = unit_count(model_answer_layers(&model->config)); /* the search's and the simulation's */
    table->tokens = step->tokens;
    table->follows = p.tier != OP_TIER_CHUNK && step->tokens == step->rows && step->tokens == step->samples &&
                     !model->config.drafts;
    uint32_t kind[KINDS_MAX], kinds = 0; /* a unit of each of the last ones */
    for (uint32_t u = 0; u < units; u++) {
        struct cost_unit *unit = &table->unit[u];
        uint32_t k = 0;
        while (k < kinds && !priced_alike(&p, u, kind[k])) k++;
        if (k < kinds) {
            *unit = table->unit[kind[k]];
            continue;
        }
        kind[k < KINDS_MAX ? kinds++ : u % KINDS_MAX] = u;
        *unit = (struct cost_unit){.bytes = analyse_units_stored(analysed, u, u)};
        unit->packed = cost_rates_packed(&p, u, PLAN_HOME_STREAM);
        unit->crossing = unit->packed ? cost_crossing_bytes(unit->bytes) : unit->bytes;
        unit->cpu_packed = cost_rates_packed_cpu(&p, u);
        unit->gpu_packed = cost_rates_packed(&p, u, PLAN_HOME_GPU);
        price_unit(&p, u, unit);
    }
    for (uint32_t l = 0; l < model->config.layers; l++) {
        const uint32_t from = model_cache_layer(&model->config, l);
        if (from == l) continue;
        table->unit[unit_of(l, UNIT_ATTENTION)].together = true;
        table->unit[unit_of(from, UNIT_ATTENTION)].together = true;
    }
    price_embed(&p, analysed, &table->embed);
    price_head(&p, analysed, &table->head);
    price_rest(&p, table);
    return 0;
}

/* `times` passes through the layers that make drafts, as a step with these prices has them, onto the head. On
 * a GPU each is launched by the host. */
static void add_passes(const struct cost_table *from, uint32_t units, double times, struct cost_unit *head)
{
    head->gpu += times * from->embed.gpu;
    for (uint32_t u = from->units; u < units; u++) {
        head->cpu += times * from->unit[u].cpu;
        head->cpu_beside += times * from->unit[u].cpu_beside;
        head->gpu += times * from->unit[u].gpu;
    }
    head->stream = head->gpu;
}

/* All tokens of the step pass through the layers that make drafts. Then the head makes the first draft of
 * each row, and each further one takes a pass of one token a row. */
static int add_drafts(const struct model *model, const struct analyse_table *analysed,
                      const struct profile *profile, const struct cost_step *step, struct cost_table *table,
                      struct helm_err *err)
{
    const uint32_t units = unit_count(model->config.layers), rows = step->rows;
    struct cost_step one = *step;
    struct cost_table each = {0};
    struct cost_unit *head = &table->head;
    if (table->units == units) return 0;
    add_passes(table, units, 1, head);
    if (!step->drafts) return 0;
    one.tokens = one.samples = rows;
    const int rc = price_step(model, analysed, profile, &one, &each, err);
    if (rc) return rc;
    head->cpu += step->drafts * each.head.cpu;
    head->cpu_beside += step->drafts * each.head.cpu_beside;
    head->gpu += step->drafts * each.head.gpu;
    add_passes(&each, units, step->drafts - 1.0, head);
    cost_table_free(&each);
    return 0;
}

/* The second device's seconds: the first one's, unless the profile has rates of another device. */
static int add_second(const struct model *model, const struct analyse_table *analysed,
                      const struct profile *second, const struct cost_step *step, struct cost_table *table,
                      struct helm_err *err)
{
    const uint32_t units = unit_count(model->config.layers);
    struct cost_table own = {0};
    const int rc = second ? price_step(model, analysed, second, step, &own, err) : 0;
    const struct cost_table *from = second ? &own : table;
    if (rc) return rc;
    for (uint32_t u = 0; u < units; u++) table->unit[u].gpu1 = from->unit[u].gpu;
    table->embed.gpu1 = from->embed.gpu;
    table->head.gpu1 = from->head.gpu;
    cost_table_free(&own);
    return 0;
}

int cost_price(const struct model *model, const struct analyse_table *analysed, const struct profile *profile,
               const struct cost_step *step, struct cost_table *table, struct helm_err *err)
{
    int rc = price_step(model, analysed, profile, step, table, err);
    if (!rc) rc = add_drafts(model, analysed, profile, step, table, err);
    if (!rc) rc = add_second(model, analysed, profile->second, step, table, err);
    if (rc) cost_table_free(table);
    return rc;
}

void cost_table_free(struct cost_table *table)
{
    free(table->unit);
    memset(table, 0, sizeof *table);
}
