/* Steps of the worker's own engine, and where their time goes. See profile_tool.h. Called by cpu.c and
 * formats.c.
 *
 * Nothing is imitated: programs, pool, kernels, arena and pages are those of helm-worker-cpu, in this
 * process. The engine notes the time of every entry of a step. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/random.h"
#include "common/base/units.h"
#include "common/formats/random_blocks.h"
#include "common/model/sample.h"
#include "tools/profile/profile_tool.h"

#define STEP_TOKENS 512
#define CONTEXT     4608
#define REGIONS     64 /* empty regions of the pool, one after another */
#define PIECE_BYTES MIB
#define LINEARS     4 /* of a decoded layer: q k v; o; gate up; down */

/* ---- the pool ---- */

struct empty {
    uint32_t left, chunks;
};

static void empty_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)ctx, (void)chunk, (void)thread;
}

static bool empty_next(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct empty *e = ctx;
    (void)thread;
    if (e->left-- == 0) return false;
    *job = (struct pool_job){.run = empty_chunk, .chunks = e->chunks};
    return true;
}

/* The cost of a region of the pool with nothing in it. */
static void measure_region(struct profile_steps *s)
{
    struct profile_samples samples = {.count = 0};
    struct pool *pool = s->local.engine.pool;
    for (int i = 0; i < 33; i++) {
        struct empty e = {.left = REGIONS, .chunks = 4 * pool_threads(pool)};
        double begin = units_now_s();
        pool_run(pool, empty_next, &e);
        if (i) profile_samples_add(&samples, (units_now_s() - begin) / REGIONS);
    }
    s->region_s = profile_samples_value(&samples).value;
}

double profile_steps_less(const struct profile_steps *s, double seconds, uint32_t regions)
{
    const double spent = regions * s->region_s;
    return spent < seconds / 4 ? seconds - spent : seconds * 0.75;
}

/* ---- opening ---- */

/* Entries of the longest program of layers. */
static uint32_t entries_of(const struct engine *engine)
{
    uint32_t most = 0;
    for (int i = 0; i < LINEAR_INPUTS * OP_TIER_COUNT; i++) {
        const struct step_programs *of = &engine->programs[i / OP_TIER_COUNT];
        const struct program *p = &of->tier[0][i % OP_TIER_COUNT];
        if (p->count > most) most = p->count;
        if (of->apart[0].count > most) most = of->apart[0].count;
    }
    return most;
}

/* Vectors have small values (common/model/sample.h). */
static void fill_vectors(struct profile_steps *s)
{
    const struct weights *w = &s->local.engine.weights;
    uint64_t random = RANDOM_SEED;
    for (uint32_t i = 0; i < w->vector_count; i++) {
        const struct model_tensor *t = placement_tensor(w->model, &w->vector_place[i]);
        float *at = w->vectors + w->vector_place[i].offset / sizeof *at;
        for (uint64_t n = 0; n < t->rows * t->cols; n++)
            at[n] = model_sample_value(t->role, (uint32_t)random_next(&random));
    }
}

int profile_steps_open_made(const struct profile_cpu_options *o, const struct profile_made *made,
                            struct profile_steps *s, struct helm_err *err)
{
    const struct local_options options = {.made = made->model,
                                          .kv_dtype = made->kv_dtype,
                                          .threads = o->threads,
                                          .node = &o->node,
                                          .slots = made->slots,
                                          .context_tokens = made->context_tokens,
                                          .step_tokens = made->step_tokens,
                                          .pages = made->pages,
                                          .invariant = o->invariant,
                                          .pin = true,
                                          .blank = true};
    if (sched_getaffinity(0, sizeof s->allowed, &s->allowed))
        CPU_ZERO(&s->allowed); /* more CPUs than it has room for: none is pinned to */
    const int rc = local_open(&options, &s->local, err);
    s->open = !rc;
    if (rc) return rc;
    fill_vectors(s);
    s->entries = entries_of(&s->local.engine);
    s->entry_ns = calloc(s->entries, sizeof *s->entry_ns);
    if (!s->entry_ns) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the CPU");
    measure_region(s);
    return 0;
}

int profile_steps_open(const struct profile_cpu_options *o, const struct profile_shape *shape,
                       enum kv_dtype kv_dtype, struct profile_steps *s, struct helm_err *err)
{
    struct model model = {0};
    const struct profile_made made = {.model = &model,
                                      .kv_dtype = kv_dtype,
                                      .slots = o->sequences ? o->sequences : 1,
                                      .context_tokens = CONTEXT,
                                      .step_tokens = STEP_TOKENS};
    const int rc = profile_shape_make(shape, &model, err);
    return rc ? rc : profile_steps_open_made(o, &made, s, err);
}

void profile_steps_close(struct profile_steps *s)
{
    if (s->open) local_close(&s->local);
    /* thread 0 of a pool is the caller, which has one CPU since */
    if (CPU_COUNT(&s->allowed)) (void)sched_setaffinity(0, sizeof s->allowed, &s->allowed);
    free(s->entry_ns);
}

int profile_steps_weights(struct profile_steps *s, char **weights, struct helm_err *err)
{
    const struct arena_region *region = &arena_header_of(&s->local.arena)->region[ARENA_REGION_WEIGHTS];
    *weights = arena_region_ptr(&s->local.arena, ARENA_REGION_WEIGHTS);
    if (mprotect(*weights, (size_t)region->bytes, PROT_READ | PROT_WRITE))
        return helm_fail_errno(err, "making the weights writable");
    return 0;
}

/* ---- random weights ---- */

struct fill {
    const struct tensor_matrix *matrix;
    const char *piece;
    uint64_t piece_bytes;
    char *data;
};

static void fill_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct fill *f = ctx;
    const uint64_t at = chunk * f->piece_bytes, left = f->matrix->bytes - at;
    (void)thread;
    memcpy(f->data + at, f->piece, left < f->piece_bytes ? left : f->piece_bytes);
}

/* All matrices of a format, or its embeddings, whose blocks are those of `piece`, over and over. */
static void fill_format(struct profile_steps *s, enum tensor_format format, bool embeddings,
                        const char *piece, uint64_t piece_bytes)
{
    const struct engine *engine = &s->local.engine;
    const void *embed = engine->weights.matrix[TENSOR_EMBED].data; /* a tied head's, too */
    for (uint32_t i = 0; i < (engine->model.config.layers + 1) * TENSOR_ROLE_COUNT; i++) {
        const struct tensor_matrix *m = &engine->weights.matrix[i];
        struct fill fill = {.matrix = m, .piece = piece, .piece_bytes = piece_bytes, .data = (char *)m->data};
        if (m->data && m->format == format && (m->data == embed) == embeddings)
            pool_run_region(engine->pool, fill_chunk, &fill,
                            (uint32_t)((m->bytes + piece_bytes - 1) / piece_bytes));
    }
}

int profile_steps_fill(struct profile_steps *s, unsigned formats, struct helm_err *err)
{
    char *weights, *piece = malloc(PIECE_BYTES);
    int rc = piece ? profile_steps_weights(s, &weights, err)
                   : helm_fail(err, HELM_E_NOMEM, "no memory for blocks to measure with");
    for (int f = 0; f < FORMAT_COUNT && !rc; f++) {
        if (!(formats & format_bit((enum tensor_format)f))) continue;
        const uint64_t block = tensor_format_of((enum tensor_format)f)->block_bytes,
                       bytes = PIECE_BYTES / block * block;
        random_blocks_fill((enum tensor_format)f, RANDOM_WEIGHTS, piece, bytes);
        fill_format(s, (enum tensor_format)f, false, piece, bytes);
        random_blocks_fill((enum tensor_format)f, RANDOM_EMBEDDINGS, piece, bytes);
        fill_format(s, (enum tensor_format)f, true, piece, bytes);
    }
    free(piece);
    return rc;
}

/* ---- steps ---- */

int profile_steps_run(struct profile_steps *s, uint32_t start, uint32_t tokens, double *seconds,
                      struct helm_err *err)
{
    const struct step_row row = {.slot = s->slot, .start = start, .count = tokens};
    return profile_steps_rows(s, &row, 1, seconds, err);
}

int profile_steps_rows(struct profile_steps *s, const struct step_row *rows, uint32_t count, double *seconds,
                       struct helm_err *err)
{
    const struct step_result *result;
    struct run *run = &s->local.engine.run;
    for (uint32_t i = 0; i < s->entries; i++) s->entry_ns[i] = UINT64_MAX;
    run->entry_ns[0] = s->entry_ns;
    double begin = units_now_s();
    int rc = local_step(&s->local, rows, count, &result, err);
    *seconds = units_now_s() - begin;
    run->entry_ns[0] = NULL;
    return rc;
}

double profile_steps_layer(const struct profile_steps *s, int32_t layer, unsigned kinds)
{
    const struct program *p = s->local.engine.run.program[0];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->entry[i].layer == layer && kinds >> p->entry[i].kind & 1) sum += s->entry_ns[i];
    return (double)sum * 1e-9;
}

double profile_steps_read(const struct profile_steps *s, const struct profile_shape *shape, uint32_t index)
{
    double seconds = 0, layers = 0;
    for (uint32_t l = index; l < shape->layers; l += shape->formats, layers++)
        seconds +=
            profile_steps_less(s, profile_steps_layer(s, (int32_t)l, PROFILE_KIND(OP_LINEAR)), LINEARS);
    return (double)shape->layer_bytes * profile_format_part(shape->format[index]) * layers / seconds;
}
