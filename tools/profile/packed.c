/* Packed weights for helm-profile's CPU engine: the same layers again, in packed matrices. See
 * profile_tool.h.
 *
 * The measured steps are of the worker's own programs, lowered over these matrices: they take the place of
 * the engine's programs for a step (profile_packed_swap). Values are of a normal distribution, like those of
 * trained matrices: how often an exponent is not among a group's seven is what unpacking takes time for. A
 * few groups of each shape are packed and copied to all places: packing gigabytes would take longer than all
 * else here, and kernels read every byte wherever it comes from. */
#include <stdlib.h>
#include <string.h>

#include "common/plan/placement.h"
#include "common/formats/packed.h"
#include "common/base/random.h"
#include "tools/profile/profile_tool.h"

#define VARIANTS   16 /* groups of a shape that differ; placed as if at random */
#define SHAPES_MAX TENSOR_ROLE_COUNT
#define PIECE      64 /* groups that a thread copies at a time */
#define DEVIATION  0.02

/* Groups of as many columns, packed once. */
struct shape {
    uint32_t cols;
    void *packed[VARIANTS];
    uint32_t bytes[VARIANTS];
};

struct group {
    uint64_t at;    /* in the region */
    uint32_t shape; /* whose variant it is */
};

struct profile_packed {
    struct engine *engine; /* borrowed */
    uint32_t layers;       /* with places of their own */
    struct arena arena;
    bool open;
    char *region;
    uint64_t region_bytes, plain_bytes;
    struct shape shape[SHAPES_MAX];
    uint32_t shapes;
    struct group *group;
    uint32_t groups;
    uint32_t *offset; /* tables of all matrices */
    uint32_t offsets;
    struct weights weights; /* the engine's, with another table of matrices, which is owned */
    struct step_programs programs;
};

/* ---- groups ---- */

/* About normal: the sum of four that are even. Near 0, where exponents are many, such a sum is as dense. */
static uint16_t weight_of(uint64_t *state)
{
    uint64_t bits = random_next(state);
    double sum = 0;
    uint32_t word;
    for (int i = 0; i < 4; i++) sum += (double)(bits >> (16 * i) & 0xffff) / 65536 - 0.5;
    float value = (float)(sum * DEVIATION * 1.7320508); /* such a sum deviates by 1 / sqrt(3) */
    memcpy(&word, &value, sizeof word);
    return (uint16_t)(word >> 16);
}

static int no_memory(struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOMEM, "no memory to measure packed weights");
}

static int make_shape(struct shape *shape, uint32_t cols, struct helm_err *err)
{
    const uint32_t values = PACKED_ROWS * cols;
    uint64_t state = RANDOM_SEED + cols;
    uint16_t *value = malloc(values * sizeof *value);
    int rc = value ? 0 : no_memory(err);
    shape->cols = cols;
    for (uint32_t v = 0; v < VARIANTS && !rc; v++) {
        struct packed_measure measure;
        for (uint32_t i = 0; i < values; i++) value[i] = weight_of(&state);
        packed_measure(value, values, &measure);
        shape->bytes[v] = measure.bytes;
        shape->packed[v] = aligned_alloc(PACKED_ALIGN, measure.bytes);
        rc = shape->packed[v] ? packed_write(&measure, value, values, shape->packed[v], err) : no_memory(err);
    }
    free(value);
    return rc;
}

static int shape_of(struct profile_packed *p, uint32_t cols, uint32_t *index, struct helm_err *err)
{
    for (*index = 0; *index < p->shapes; ++*index)
        if (p->shape[*index].cols == cols) return 0;
    return make_shape(&p->shape[p->shapes++], cols, err);
}

static uint32_t variant_of(uint32_t group)
{
    return (group * UINT32_C(2654435761)) >> 28;
}
_Static_assert(VARIANTS == 16, "variant_of has four bits");

/* ---- matrices ---- */

static struct tensor_matrix *matrix_of(struct profile_packed *p, uint32_t layer, uint32_t role)
{
    return &p->weights.matrix[(size_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}

/* Adds it after all others; its data is the table of offsets until it is placed. */
static int add_matrix(struct profile_packed *p, struct tensor_matrix *m, struct helm_err *err)
{
    const uint32_t groups = packed_groups(m->rows);
    const uint64_t first = p->region_bytes + packed_groups_at(m->rows);
    uint32_t shape, *offset = p->offset + p->offsets;
    int rc = shape_of(p, m->cols, &shape, err);
    if (rc) return rc;
    p->plain_bytes += m->bytes;
    uint64_t at = first;
    for (uint32_t g = 0; g < groups; g++, p->groups++) {
        offset[g] = (uint32_t)((at - first) / PACKED_ALIGN);
        p->group[p->groups] = (struct group){.at = at, .shape = shape};
        at += p->shape[shape].bytes[variant_of(p->groups)];
    }
    offset[groups] = (uint32_t)((at - first) / PACKED_ALIGN);
    m->format = FORMAT_BF16_PACKED;
    m->data = offset;
    m->bytes = at - p->region_bytes;
    p->region_bytes = at;
    p->offsets += groups + 1;
    return 0;
}

/* A table like the engine's, in which the matrices of the first layers are packed: how large they are. */
static int add_matrices(struct profile_packed *p, struct helm_err *err)
{
    const uint32_t roles = TENSOR_ROLE_COUNT;
    size_t groups = 0, count = (size_t)(p->engine->model.config.layers + 1) * roles;
    int rc = 0;
    p->weights.matrix = malloc(count * sizeof *p->weights.matrix);
    if (!p->weights.matrix) return no_memory(err);
    memcpy(p->weights.matrix, p->engine->weights.matrix, count * sizeof *p->weights.matrix);
    for (uint32_t l = 0; l < p->layers; l++)
        for (uint32_t r = 0; r < roles; r++) groups += packed_groups(matrix_of(p, l, r)->rows) + 1;
    p->group = calloc(groups, sizeof *p->group);
    p->offset = calloc(groups, sizeof *p->offset);
    if (!p->group || !p->offset) return no_memory(err);
    for (uint32_t l = 0; l < p->layers; l++)
        for (uint32_t r = 0; r < roles && !rc; r++)
            if (matrix_of(p, l, r)->data) rc = add_matrix(p, matrix_of(p, l, r), err);
    return rc;
}

/* Where they are; those of further layers are where those of the first ones are. */
static void place_matrices(struct profile_packed *p)
{
    char *at = p->region;
    for (uint32_t l = 0; l < p->engine->model.config.layers; l++)
        for (uint32_t r = 0; r < TENSOR_ROLE_COUNT; r++) {
            struct tensor_matrix *m = matrix_of(p, l, r);
            if (!m->data) continue;
            if (l >= p->layers) {
                *m = *matrix_of(p, l % p->layers, r);
                continue;
            }
            memcpy(at, m->data, packed_offsets_bytes(m->rows));
            m->data = at;
            at += m->bytes;
        }
}

/* ---- the region ---- */

static void copy_groups(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct profile_packed *p = ctx;
    uint32_t g = chunk * PIECE, last = p->groups - g < PIECE ? p->groups : g + PIECE;
    (void)thread;
    for (; g < last; g++) {
        const struct shape *shape = &p->shape[p->group[g].shape];
        memcpy(p->region + p->group[g].at, shape->packed[variant_of(g)], shape->bytes[variant_of(g)]);
    }
}

static int make_region(struct profile_packed *p, struct helm_err *err)
{
    const int node = p->engine->base.report.node;
    struct pool *pool = p->engine->pool;
    const struct arena_spec spec = {
        .slots = 1,
        .context_tokens = 64,
        .step_tokens = 1,
        .hidden = 64,
        .vocab = 64,
        .kv = {.kv_heads = 1, .head_dim = 64, .page_tokens = 32, .dtype = DTYPE_F16},
        .weight_bytes = p->region_bytes};
    int rc = arena_create(&spec, &p->arena, err);
    if (rc) return rc;
    p->open = true;
    p->region = arena_region_ptr(&p->arena, ARENA_REGION_WEIGHTS);
    const struct arena_region *region = &arena_header_of(&p->arena)->region[ARENA_REGION_WEIGHTS];
    if (node >= 0) rc = arena_bind(&p->arena, region->offset, region->bytes, node, err);
    if (rc) return rc;
    struct engine_touched touched = {.arena = &p->arena, .offset = region->offset, .bytes = p->region_bytes};
    engine_touch(pool, &touched);
    pool_run_region(pool, copy_groups, p, (p->groups + PIECE - 1) / PIECE);
    return 0;
}

/* ---- programs ---- */

static int lower(struct profile_packed *p, struct helm_err *err)
{
    struct engine *engine = p->engine;
    struct program_source source = {.model = &engine->model,
                                    .plan = &engine->plan,
                                    .weights = &p->weights,
                                    .kernels = &engine->kernels,
                                    .act = &engine->act,
                                    .threads = engine->base.report.threads,
                                    .arena = engine->base.arena};
    int rc = 0;
    p->programs.plan = &engine->plan;
    for (int t = 0; t < OP_TIER_COUNT && !rc; t++)
        if (program_tier_occurs(&engine->plan, 0, (enum op_tier)t))
            rc = program_lower(&source, 0, (enum op_tier)t, &p->programs.tier[0][t], err);
    if (!rc && !engine->plan.invariant) rc = program_apart(&source, 0, &source.apart, err);
    if (!rc && source.apart) rc = program_lower(&source, 0, OP_TIER_FEW, &p->programs.apart[0], err);
    return rc ? rc : engine_prepare(engine, &p->programs, err);
}

static void swap(struct program *a, struct program *b)
{
    const struct program program = *a;
    *a = *b;
    *b = program;
}

void profile_packed_swap(struct profile_packed *p)
{
    struct step_programs *own = &p->engine->programs[LINEAR_EXACT];
    for (int t = 0; t < OP_TIER_COUNT; t++) swap(&own->tier[0][t], &p->programs.tier[0][t]);
    swap(&own->apart[0], &p->programs.apart[0]);
}

/* ---- opening ---- */

/* Whether the CPU computes with all matrices of layers packed. */
static bool takes_packed(const struct engine *engine)
{
    bool link[UNIT_PARTS * MODEL_LAYERS_MAX], cpu[UNIT_PARTS * MODEL_LAYERS_MAX],
        takes = engine->kernels.linear[LINEAR_EXACT][FORMAT_BF16_PACKED].one != NULL;
    placement_packing(&engine->model, link, cpu);
    for (uint32_t u = 0; u < unit_count(engine->model.config.layers); u++) takes &= cpu[u];
    return takes;
}

int profile_packed_open(struct engine *engine, uint32_t layers, struct profile_packed **out,
                        struct helm_err *err)
{
    *out = NULL;
    if (!takes_packed(engine)) return 0;
    struct profile_packed *p = calloc(1, sizeof *p);
    if (!p) return no_memory(err);
    p->engine = engine;
    p->layers = layers;
    p->weights = engine->weights;
    p->weights.matrix = NULL;
    int rc = add_matrices(p, err);
    if (!rc) rc = make_region(p, err);
    if (!rc) {
        place_matrices(p);
        rc = lower(p, err);
    }
    if (rc)
        profile_packed_close(p);
    else
        *out = p;
    return rc;
}

uint64_t profile_packed_bytes(const struct profile_packed *p)
{
    return p->region_bytes;
}

double profile_packed_part(const struct profile_packed *p)
{
    return (double)p->region_bytes / (double)p->plain_bytes;
}

void profile_packed_close(struct profile_packed *p)
{
    if (!p) return;
    if (p->open) arena_close(&p->arena);
    for (uint32_t s = 0; s < p->shapes; s++)
        for (uint32_t v = 0; v < VARIANTS; v++) free(p->shape[s].packed[v]);
    for (int t = 0; t < OP_TIER_COUNT; t++) program_free(&p->programs.tier[0][t]);
    program_free(&p->programs.apart[0]);
    free(p->group);
    free(p->offset);
    free(p->weights.matrix);
    free(p);
}
