/* The CPU's work with weights: the worker's own engine over a model that exists only for this. See
 * profile_tool.h.
 *
 * Nothing is imitated: programs, pool, kernels, arena and pages are those of helm-worker-cpu, in this
 * process. The engine notes the time of every entry of a step. One token's time is sampled by whole steps:
 * they are what is forecast, and on a machine that others use, too, most layers alone are lucky, while hardly
 * a step is. With many tokens at once a layer takes as long as that, and is a sample of its own; but what
 * slows such a machine lasts for longer than a step, so each number of tokens is visited several times.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/node.h"
#include "common/base/cgroup.h"
#include "common/base/units.h"
#include "common/formats/random_blocks.h"
#include "tools/profile/profile_tool.h"

#define LONG         (PROFILE_SANITIZED ? 1024 : 4096) /* positions that one query attends to */
#define CHUNK_START  1024                              /* positions before a chunk */
#define FILL_BYTES   (16 * MIB)
#define READ_CHUNK   (256 * KIB)
#define LINEARS      4 /* of a decoded layer: q k v; o; gate up; down */
#define GEMV_S       2.0
#define LINEAR_S     0.6  /* of steps of each number of tokens, all visits together */
#define LINEAR_QUICK 0.25 /* seconds, the same in a hurry */
#define VISITS       3
#define STEP_S_MOST  5.0 /* a step expected to take longer is left out */

/* In an order in which those that are left out, because they would take too long or the time is over, are
 * between others. */
static const uint32_t token_counts[] = {2, 16, 128, 512, 8, 64, 32, 4, 256};
#define TOKEN_COUNTS (sizeof token_counts / sizeof *token_counts)
/* Counts that formats are compared at (formats.c): a brief profile has no others. */
static bool is_brief_count(uint32_t tokens)
{
    return tokens == 4 || tokens == 32 || tokens == 128;
}
/* Steps of one number of tokens. */
struct many {
    uint32_t tokens;
    double spent_s, step_s;                   /* of all of them (0: none), of the last one */
    struct profile_samples linear, attention; /* operations a second, alone */
};

struct profile_cpu_run {
    const struct profile_progress *progress;
    bool quick, brief;
    uint64_t caches; /* as struct profile_cpu_options */
    struct profile_steps steps;
    uint64_t weight_bytes; /* of the layers */
    struct reader reader;
    struct profile_packed *packed;     /* NULL: packed weights cannot be measured here */
    struct profile_samples gemv[2][2]; /* [packed][beside copies]: bytes of plain weights a second */
    struct profile_samples read[2];    /* [beside copies] */
    struct profile_samples operation;
    struct profile_samples once; /* seconds of a step beside its entries */
    struct many many[TOKEN_COUNTS];
    double params;  /* of a layer's matrices */
    bool cached[2]; /* [packed]: so few weights that caches hold a part of them that counts */
};

/* ---- steps ---- */

/* (Programs over packed weights have the same entries.) */
static int step(struct profile_cpu_run *r, bool packed, uint32_t start, uint32_t tokens, double *seconds,
                struct helm_err *err)
{
    if (packed) profile_packed_swap(r->packed);
    int rc = profile_steps_run(&r->steps, start, tokens, seconds, err);
    if (packed) profile_packed_swap(r->packed);
    return rc;
}

static uint32_t layers_of(const struct profile_cpu_run *r)
{
    return r->steps.local.engine.model.config.layers;
}

/* Seconds of all layers' entries of these kinds. */
static double layers_s(const struct profile_cpu_run *r, unsigned kinds)
{
    double sum = 0;
    for (uint32_t l = 0; l < layers_of(r); l++) sum += profile_steps_layer(&r->steps, (int32_t)l, kinds);
    return sum;
}

/* That the planner counts for a layer of one token. */
static double layer_operations(const struct profile_cpu_run *r)
{
    const struct math_part *part = r->steps.local.engine.model.math.part;
    return program_part_count(&part[UNIT_ATTENTION], PROCESSOR_CPU, OP_TIER_ONE) +
           program_part_count(&part[UNIT_MLP], PROCESSOR_CPU, OP_TIER_ONE);
}

static double layer_bytes(const struct profile_cpu_run *r)
{
    return (double)r->weight_bytes / layers_of(r);
}

/* ---- weights ---- */

struct fill {
    char *at;
    uint64_t bytes;
};

static void fill_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct fill *f = ctx;
    const uint64_t at = (uint64_t)chunk * FILL_BYTES;
    (void)thread;
    random_numbers_fill(f->at + at, f->bytes - at < FILL_BYTES ? f->bytes - at : FILL_BYTES, chunk);
}

/* The holes were read as zeros, which some processors multiply with less power. */
static int fill_weights(struct profile_cpu_run *r, struct helm_err *err)
{
    struct fill f = {.bytes = r->steps.local.engine.weights.host.region_bytes};
    int rc = profile_steps_weights(&r->steps, &f.at, err);
    if (rc) return rc;
    pool_run_region(r->steps.local.engine.pool, fill_chunk, &f,
                    (uint32_t)((f.bytes + FILL_BYTES - 1) / FILL_BYTES));
    return 0;
}

/* ---- opening ---- */

/* All layers once more, or as many as a third of what memory is left holds. */
static int open_packed(struct profile_cpu_run *r, struct helm_err *err)
{
    struct cgroup_memory memory;
    int rc = node_read_memory(r->steps.local.engine.base.report.node, &memory, err);
    if (rc) return rc;
    uint64_t layers = memory.available_bytes / 3 / (r->weight_bytes / layers_of(r));
    if (layers > layers_of(r)) layers = layers_of(r);
    if (layers == 0) {
        profile_say(r->progress, "CPU: no memory for packed weights: they are not measured");
        return 0;
    }
    rc = profile_packed_open(&r->steps.local.engine, (uint32_t)layers, &r->packed, err);
    if (!rc && r->packed)
        r->cached[true] = profile_packed_bytes(r->packed) < PROFILE_CACHES_LEAST * r->caches;
    return rc;
}

static int open_engine(struct profile_cpu_run *r, const struct profile_cpu_options *o, struct helm_err *err)
{
    struct cgroup_memory memory;
    struct profile_shape shape = {0};
    char size[UNITS_TEXT];
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    (void)sched_getaffinity(0, sizeof allowed,
                            &allowed); /* more CPUs than it has room for: none is counted */
    uint32_t cpus = o->threads ? o->threads : (uint32_t)CPU_COUNT(&allowed);
    uint64_t wanted = profile_weights_past(o->caches, cpus, o->quick);
    int rc = node_read_memory(o->node, &memory, err);
    if (!rc) rc = profile_shape_choose(wanted, memory.available_bytes / 3, &shape, err);
    if (rc) return rc;
    profile_say(r->progress, "CPU: loading %s of weights, %u layers of the %s shape",
                units_format_size(shape.layers * shape.layer_bytes, size), shape.layers, shape.size);
    rc = profile_steps_open(o, &shape, KV_F16, &r->steps, err);
    r->weight_bytes = shape.layers * shape.layer_bytes;
    r->params = (double)shape.layer_bytes / 2;
    if (!rc) rc = fill_weights(r, err);
    if (!rc && !o->brief) rc = open_packed(r, err);
    if (rc || r->weight_bytes >= PROFILE_CACHES_LEAST * r->caches) return rc;
    r->cached[false] = true;
    profile_say(r->progress,
                "CPU: %s is all that memory allows, less than %d times the caches: rates are estimates",
                units_format_size(r->weight_bytes, size), PROFILE_CACHES_LEAST);
    return 0;
}

int profile_cpu_open(const struct profile_cpu_options *options, struct profile_cpu_run **out,
                     struct helm_err *err)
{
    struct profile_cpu_run *r = aligned_alloc(64, (sizeof *r + 63) / 64 * 64);
    *out = NULL;
    if (!r) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the CPU");
    memset(r, 0, sizeof *r);
    r->progress = options->progress;
    r->quick = options->quick;
    r->brief = options->brief;
    r->caches = options->caches;
    int rc = open_engine(r, options, err);
    if (rc) {
        profile_cpu_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void profile_cpu_close(struct profile_cpu_run *r)
{
    if (!r) return;
    profile_packed_close(r->packed);
    profile_steps_close(&r->steps);
    free(r);
}

/* ---- values ---- */

/* The value of a rate of memory: an estimate where the weights fit the caches. */
static struct profile_value memory_value(const struct profile_cpu_run *r, bool packed,
                                         const struct profile_samples *samples)
{
    struct profile_value v = profile_samples_value(samples);
    if (r->cached[packed] && v.source == PROFILE_MEASURED) v.source = PROFILE_ESTIMATE;
    return v;
}

/* How far copies are that flow beside this, if any do. With `samples`: and what they made of the time since
 * *last. */
static int look_at_copies(const struct profile_company *company, struct profile_copied *last,
                          struct profile_samples *samples, struct helm_err *err)
{
    if (!company) return 0;
    struct profile_copied now;
    int rc = profile_device_copied(company->device, &now, err);
    if (rc) return rc;
    if (samples && now.at_s > last->at_s)
        profile_samples_add(samples, (now.bytes - last->bytes) / (now.at_s - last->at_s));
    *last = now;
    return 0;
}

/* One step of one token, which counts. */
static int one_step(struct profile_cpu_run *r, bool packed, bool beside, struct helm_err *err)
{
    const struct run *run = &r->steps.local.engine.run;
    const double layers = layers_of(r);
    double spent = 0;
    int rc = step(r, packed, 0, 1, &spent, err);
    if (rc) return rc;
    const double linear = layers_s(r, PROFILE_KIND(OP_LINEAR)) / layers,
                 rest = layers_s(r, PROFILE_KIND(OP_NORM) | PROFILE_KIND(OP_ROPE_APPEND) |
                                        PROFILE_KIND(OP_ATTEND)) /
                        layers;
    profile_samples_add(&r->gemv[packed][beside],
                        layer_bytes(r) / profile_steps_less(&r->steps, linear, LINEARS));
    if (packed) return 0;
    profile_samples_add(&r->once, spent - (double)(run->linear_ns + run->attention_ns) * 1e-9);
    if (!beside)
        profile_samples_add(&r->operation, (rest + LINEARS * r->steps.region_s) / layer_operations(r));
    return 0;
}

static double read_rate(struct profile_cpu_run *r)
{
    return reader_bytes(&r->reader) / reader_pass(&r->reader, r->steps.local.engine.pool);
}

/* Steps of one token in turns: with plain weights, a pass of plain reading, with packed weights. All
 * see the same minute of a machine that others use, too, and each finds the others' memory in the caches. */
static int measure_gemv(struct profile_cpu_run *r, double seconds, struct profile_company *company,
                        struct helm_err *err)
{
    struct profile_copied copied = {.bytes = 0};
    double end = units_now_s() + seconds, spent = 0;
    int rc = step(r, false, 0, 1, &spent, err);
    if (!rc) rc = look_at_copies(company, &copied, NULL, err);
    for (uint32_t steps = 0; !rc && (steps < 3 || units_now_s() < end); steps++) {
        rc = one_step(r, false, company != NULL, err);
        if (!rc) rc = look_at_copies(company, &copied, company ? &company->plain : NULL, err);
        if (!rc) profile_samples_add(&r->read[company != NULL], read_rate(r));
        if (!rc) rc = look_at_copies(company, &copied, company ? &company->read : NULL, err);
        if (rc || !r->packed) continue;
        rc = one_step(r, true, company != NULL, err);
        if (!rc) rc = look_at_copies(company, &copied, company ? &company->packed : NULL, err);
    }
    return rc;
}

int profile_cpu_gemv(struct profile_cpu_run *r, double seconds, struct profile_company *company,
                     struct profile_cpu *cpu, struct helm_err *err)
{
    int rc = measure_gemv(r, seconds, company, err);
    if (rc) return rc;
    cpu->gemv = memory_value(r, false, &r->gemv[false][false]);
    cpu->gemv_beside = memory_value(r, false, &r->gemv[false][true]);
    cpu->gemv_packed = memory_value(r, true, &r->gemv[true][false]);
    cpu->gemv_packed_beside = memory_value(r, true, &r->gemv[true][true]);
    cpu->operation = profile_samples_value(&r->operation);
    profile_table_put(&cpu->read, cpu->threads, memory_value(r, false, &r->read[false]));
    cpu->read_beside = memory_value(r, false, &r->read[true]);
    return 0;
}

static int measure_attention(struct profile_cpu_run *r, struct profile_cpu *cpu, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    const struct model_config *c = &r->steps.local.engine.model.config;
    const double bytes = 2.0 * LONG * c->kv_heads * c->head_dim * 2, layers = layers_of(r);
    int rc = 0;
    for (uint32_t i = 0; i < (r->quick || profile_late(r->progress) ? 6 : 17) && !rc; i++) {
        double spent = 0;
        rc = step(r, false, LONG - 1, 1, &spent, err);
        if (i == 0 || rc) continue;
        profile_samples_add(&samples,
                            bytes / profile_steps_less(&r->steps,
                                                       layers_s(r, PROFILE_KIND(OP_ATTEND)) / layers, 1));
    }
    cpu->attention = profile_samples_value(&samples);
    return rc;
}

/* One step of m->tokens tokens. *rate: operations a second of all its linears. With `counts` its layers
 * become samples. */
static int many_step(struct profile_cpu_run *r, struct many *m, bool packed, bool counts, double *rate,
                     struct helm_err *err)
{
    const struct model_config *c = &r->steps.local.engine.model.config;
    const double n = m->tokens, flops = 2 * r->params * n;
    const double pairs = n * (CHUNK_START + (n + 1) / 2); /* of a query and a position that it sees */
    double seconds = 0;
    int rc = step(r, packed, CHUNK_START, m->tokens, &m->step_s, err);
    if (rc) return rc;
    m->spent_s += m->step_s;
    for (uint32_t l = 0; l < layers_of(r); l++) {
        double linear = profile_steps_layer(&r->steps, (int32_t)l,
                                            PROFILE_KIND(OP_LINEAR) | PROFILE_KIND(OP_NORM)),
               attend = profile_steps_layer(&r->steps, (int32_t)l, PROFILE_KIND(OP_ATTEND));
        seconds += linear;
        if (!counts) continue;
        profile_samples_add(&m->linear, flops / linear);
        profile_samples_add(&m->attention, 4.0 * c->heads * c->head_dim * pairs / attend);
    }
    *rate = flops * layers_of(r) / seconds;
    return 0;
}

/* Puts the result of its steps so far: a point of cpu.linear, and for the most tokens cpu.attention_flops. */
static void many_put(const struct many *m, struct profile_cpu *cpu)
{
    profile_table_put(&cpu->linear, m->tokens, profile_samples_value(&m->linear));
    if (cpu->linear.count && m->tokens >= cpu->linear.point[cpu->linear.count - 1].x)
        cpu->attention_flops = profile_samples_value(&m->attention);
}

/* Steps until all visits together have taken so long; the first visit makes one, however long it takes. */
static int visit(struct profile_cpu_run *r, struct many *m, double until_s, struct profile_cpu *cpu,
                 struct helm_err *err)
{
    double rate;
    int rc = 0;
    while (!rc && (m->spent_s <= 0 || m->spent_s + m->step_s <= until_s))
        rc = many_step(r, m, false, true, &rate, err);
    if (!rc) many_put(m, cpu);
    return rc;
}

static int measure_linear(struct profile_cpu_run *r, struct profile_cpu *cpu, struct helm_err *err)
{
    const double most_s = r->quick ? LINEAR_QUICK : LINEAR_S;
    int rc = 0;
    for (uint32_t v = 0; v < VISITS; v++)
        for (size_t i = 0; i < TOKEN_COUNTS && !rc; i++) {
            struct many *m = &r->many[i];
            m->tokens = token_counts[i];
            if (r->brief && !is_brief_count(m->tokens)) continue;
            double rate = profile_table_at(&cpu->linear, m->tokens).value;
            double seconds = rate > 0 ? 2 * r->params * layers_of(r) * m->tokens / rate : 0;
            if (v > 0 ? m->spent_s <= 0 : seconds > STEP_S_MOST) continue;
            if ((v > 0 || i > 2) && profile_late(r->progress)) continue;
            rc = visit(r, m, most_s * (v + 1) / VISITS, cpu, err);
            if (!rc && v == 0)
                profile_say(r->progress, "CPU: %u tokens at once, %.4g GFLOP/s", m->tokens,
                            profile_table_at(&cpu->linear, m->tokens).value * 1e-9);
        }
    return rc;
}

int profile_cpu_measure(struct profile_cpu_run *r, struct profile *profile, struct helm_err *err)
{
    struct profile_cpu *cpu = &profile->cpu;
    const struct engine *engine = &r->steps.local.engine;
    const struct engine_report *report = &engine->base.report;
    profile_cpu_name(cpu->name);
    cpu->threads = report->threads;
    cpu->l3_bytes = r->caches;
    cpu->weight_bytes = r->weight_bytes;
    for (uint32_t i = 0; i < report->reduced_count; i++)
        profile_say(r->progress, "CPU: %s", report->reduced[i]);
    reader_open(&r->reader, arena_region_ptr(&r->steps.local.arena, ARENA_REGION_WEIGHTS),
                engine->weights.host.region_bytes, READ_CHUNK);
    reader_choose(&r->reader, engine->pool, r->quick ? 0.2 : 1.5);
    int rc = profile_cpu_gemv(r, r->quick ? 0.4 : GEMV_S, NULL, cpu, err);
    if (rc) return rc;
    profile_say(r->progress, "CPU: %u threads read %.4g GB/s; one token, %s: %.4g GB/s", cpu->threads,
                profile_table_at(&cpu->read, cpu->threads).value * 1e-9, report->kernels,
                cpu->gemv.value * 1e-9);
    if (r->packed)
        profile_say(r->progress, "CPU: packed to %.3f, one token %.4g GB/s of plain weights",
                    profile_packed_part(r->packed), cpu->gemv_packed.value * 1e-9);
    struct profile_value once = profile_samples_value(&r->once), *sum = &profile->step;
    *sum = (struct profile_value){sum->value + once.value, sum->low + once.low, sum->high + once.high,
                                  PROFILE_ESTIMATE};
    rc = measure_attention(r, cpu, err);
    return rc ? rc : measure_linear(r, cpu, err);
}
