/* The CPU's rate with one token's experts. See profile_tool.h. Called by formats.c.
 *
 * Blocks are random, so it does not matter of which rows they are: a dense layer's gates, ups and downs are taken as those of
 * experts in Qwen3-30B-A3B's shape, side by side, of which each step chooses others. Entries, pieces and kernels are the
 * worker's. Each turn has a step of the engine's own program and one of a format's experts, milliseconds apart, so what else
 * goes on in the machine meets both alike. The engine's own step passes through all formats' weights: what the experts' step reads
 * next is in no cache and in no TLB, as where a model's experts are many times what a token reads. */
#include <stdlib.h>
#include <string.h>

#include "tools/profile/profile_tool.h"

#define ROWS        768  /* of an expert's gates and ups */
#define COLS        2048 /* of them, and its downs' rows */
#define CHOSEN      8    /* or all, where a layer has room for fewer */
#define TURNS_LEAST (PROFILE_SANITIZED ? 1 : 5)

/* The layers of one format, multiplied by with one kind of activations. */
struct part {
    uint32_t index; /* of the format */
    enum linear_inputs inputs;
    struct program program;
    struct profile_samples ratio; /* to the engine's own matrices of the format */
};

/* What run->experts points to while experts are measured. */
struct chosen {
    uint32_t experts, chosen, id[CHOSEN];
    float weight[CHOSEN], down[CHOSEN * COLS];
    uint64_t draws;
};

static struct engine *engine_of(const struct profile_experts *e)
{
    return &e->steps->local.engine;
}

static struct program *program_of(const struct profile_experts *e, enum linear_inputs inputs)
{
    return &engine_of(e)->programs[inputs].tier[0][OP_TIER_ONE];
}

/* As many experts as a layer's MLP has room for, its smallest matrix. */
static uint32_t experts_of(const struct profile_experts *e)
{
    static const enum tensor_role roles[] = {TENSOR_GATE, TENSOR_UP, TENSOR_DOWN};
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < 3; r++) {
        const struct tensor_matrix *m = weights_matrix(&engine_of(e)->weights, roles[r], 0);
        const uint64_t values = (uint64_t)m->rows * m->cols;
        if (values < least) least = values;
    }
    return (uint32_t)(least / ((uint64_t)ROWS * COLS));
}

static struct tensor_matrix taken_as(const struct tensor_matrix *m, uint32_t rows, uint32_t cols)
{
    struct tensor_matrix as = *m;
    as.rows = rows;
    as.cols = cols;
    as.bytes = tensor_format_bytes(m->format, rows, cols);
    return as;
}

static int lower(const struct profile_experts *e, const struct chosen *c, struct part *part,
                 struct helm_err *err)
{
    const struct engine *engine = engine_of(e);
    const struct program_source source = {.model = &engine->model,
                                          .plan = &engine->plan,
                                          .weights = &engine->weights,
                                          .kernels = &engine->kernels,
                                          .inputs = part->inputs,
                                          .act = &engine->act,
                                          .threads = engine->base.report.threads,
                                          .arena = engine->base.arena};
    const uint32_t layers = engine->model.config.layers, experts = c->experts;
    struct program_experts *list = calloc(layers, sizeof *list);
    uint32_t count = 0;
    if (!list) return helm_fail(err, HELM_E_NOMEM, "no memory to measure experts");
    for (uint32_t l = part->index; l < layers; l += e->formats)
        list[count++] = (struct program_experts){
            .layer = (int32_t)l,
            .experts = experts,
            .chosen = c->chosen,
            .gate = taken_as(weights_matrix(&engine->weights, TENSOR_GATE, (int32_t)l), experts * ROWS, COLS),
            .up = taken_as(weights_matrix(&engine->weights, TENSOR_UP, (int32_t)l), experts * ROWS, COLS),
            .down =
                taken_as(weights_matrix(&engine->weights, TENSOR_DOWN, (int32_t)l), experts * COLS, ROWS)};
    int rc = program_lower_experts(&source, list, count, &part->program, err);
    free(list);
    return rc;
}

/* What some steps' entries read, and for how long. */
struct read {
    double bytes, seconds;
};

/* Adds the last step's entries of these kinds in the format's layers. */
static void add_read(const struct profile_experts *e, uint32_t index, unsigned kinds, struct read *read)
{
    const struct program *p = engine_of(e)->run.program[0];
    double seconds = 0;
    uint32_t entries = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct program_entry *entry = &p->entry[i];
        if (entry->layer < 0 || (uint32_t)entry->layer % e->formats != index) continue;
        if (!(kinds >> entry->kind & 1)) continue;
        read->bytes += (double)entry->bytes;
        seconds += (double)e->steps->entry_ns[i] * 1e-9;
        entries++;
    }
    read->seconds += profile_steps_less(e->steps, seconds, entries);
}

/* Which ones the next step reads. */
static void choose(struct chosen *c)
{
    for (uint32_t k = 0; k < c->chosen; k++) {
        bool again = true;
        while (again) {
            c->draws = c->draws * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            c->id[k] = (uint32_t)(c->draws >> 33) % c->experts;
            again = false;
            for (uint32_t j = 0; j < k; j++) again |= c->id[j] == c->id[k];
        }
    }
}

/* One step: more would find what the one before it chose as well in the caches. */
static int read_experts(const struct profile_experts *e, const struct part *part, struct chosen *c,
                        struct read *read, struct helm_err *err)
{
    struct program *own = program_of(e, part->inputs), whole = *own;
    double spent;
    choose(c);
    *own = part->program;
    int rc = profile_steps_run(e->steps, 0, 1, &spent, err);
    if (!rc) add_read(e, part->index, PROFILE_KIND(OP_EXPERTS_GLU) | PROFILE_KIND(OP_EXPERTS_DOWN), read);
    *own = whole;
    return rc;
}

static int take_turns(const struct profile_experts *e, struct part *part, uint32_t count, struct chosen *c,
                      struct helm_err *err)
{
    const double end = profile_now_s() + e->seconds;
    int rc = 0;
    for (uint32_t turn = 0; !rc && (turn < TURNS_LEAST || profile_now_s() < end); turn++)
        for (uint32_t i = 0; i < count && !rc; i++) {
            struct read dense = {0}, experts = {0};
            double spent;
            (void)engine_use(engine_of(e), part[i].inputs);
            rc = profile_steps_run(e->steps, 0, 1, &spent, err);
            if (!rc) add_read(e, part[i].index, PROFILE_KIND(OP_LINEAR), &dense);
            if (!rc) rc = read_experts(e, &part[i], c, &experts, err);
            if (!rc)
                profile_samples_add(&part[i].ratio,
                                    experts.bytes / experts.seconds * dense.seconds / dense.bytes);
        }
    (void)engine_use(engine_of(e), LINEAR_EXACT);
    return rc;
}

static void put_values(const struct profile_experts *e, const struct part *part, uint32_t count,
                       struct profile *profile)
{
    for (uint32_t i = 0; i < count; i++) {
        struct profile_format *format = &profile->format[e->format[part[i].index]];
        const bool int8 = part[i].inputs == LINEAR_INT8;
        struct profile_value v = profile_samples_value(&part[i].ratio);
        const double rate = (int8 ? &format->cpu_int8_gemv : &format->cpu_gemv)->value;
        v.value *= rate, v.low *= rate, v.high *= rate;
        if (e->cached && v.source == PROFILE_MEASURED) v.source = PROFILE_ESTIMATE;
        *(int8 ? &format->cpu_int8_experts : &format->cpu_experts) = v;
    }
}

/* The engine's own run, with the router's choice and what a mixture's activations have. */
static int measure(const struct profile_experts *e, struct part *part, uint32_t count, struct chosen *c,
                   struct helm_err *err)
{
    struct engine *engine = engine_of(e);
    struct run_experts *x = &engine->run.experts, before = *x;
    float *down = engine->act.buffer[BUFFER_DOWN];
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < part[i].program.count; k++)
            if (part[i].program.entry[k].chunks > pieces) pieces = part[i].program.entry[k].chunks;
    x->left = calloc((size_t)pieces + 1, sizeof *x->left);
    x->id = c->id;
    x->weight = c->weight;
    engine->act.buffer[BUFFER_DOWN] = c->down;
    int rc = x->left ? take_turns(e, part, count, c, err)
                     : helm_fail(err, HELM_E_NOMEM, "no memory to measure experts");
    free(x->left);
    x->left = before.left;
    x->id = before.id;
    x->weight = before.weight;
    engine->act.buffer[BUFFER_DOWN] = down;
    return rc;
}

int profile_experts_measure(const struct profile_experts *e, struct profile *profile, struct helm_err *err)
{
    struct part *part = calloc((size_t)e->formats * LINEAR_INPUTS, sizeof *part);
    struct chosen *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    uint32_t count = 0;
    int rc = part && c ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to measure experts");
    if (!rc) {
        memset(c, 0, sizeof *c);
        c->experts = experts_of(e);
        c->chosen = c->experts < CHOSEN ? c->experts : CHOSEN;
        for (uint32_t k = 0; k < CHOSEN; k++) c->weight[k] = 1.0f / CHOSEN;
    }
    for (uint32_t i = 1; !rc && c->experts && i < e->formats; i++)
        for (int inputs = 0; inputs < LINEAR_INPUTS && !rc; inputs++) {
            if (inputs == LINEAR_INT8 && !e->int8[i]) continue;
            part[count] = (struct part){.index = i, .inputs = (enum linear_inputs)inputs};
            rc = lower(e, c, &part[count], err);
            if (!rc) count++;
        }
    if (!rc && count) rc = measure(e, part, count, c, err);
    if (!rc) put_values(e, part, count, profile);
    for (uint32_t i = 0; part && i < count; i++) program_free(&part[i].program);
    free(part);
    free(c);
    return rc;
}
