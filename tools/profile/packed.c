/* What the CPU does with packed weights: one token's products with them, and unpacking. See profile_tool.h.
 *
 * The kernels and the pool are the worker's, over groups that lie in an arena as its own do. Their values are
 * of a normal distribution, like those of trained matrices: how often an exponent is not among a group's
 * seven is what unpacking takes time for. A few groups of each shape are packed and copied to all places:
 * packing gigabytes would take longer than all else here, and kernels read every byte wherever it comes from.
 */
#include <stdlib.h>
#include <string.h>

#include "common/cpu.h"
#include "common/packed.h"
#include "common/units.h"
#include "tools/profile/profile_tool.h"
#include "worker-cpu/kernels/packed_kernels.h"

#define PRODUCTS     4  /* of a layer: q k v; o; gate up; down */
#define VARIANTS     16 /* groups of a shape that differ; placed as if at random */
#define SHAPES_MAX   PRODUCTS
#define CHUNKS       4 /* of a product, a thread */
#define DEVIATION    0.02
#define TOUCH_BYTES  (16 * MIB)
#define ALIGN        64
#define SPLIT_VALUES 0.25F
#define TURN_STRIDE  8 /* a cache line each */

struct group {
    uint32_t at;    /* in the region, in PACKED_ALIGN bytes */
    uint32_t shape; /* whose variant it is */
};

/* Groups of as many columns, packed once. */
struct shape {
    uint32_t cols;
    void *packed[VARIANTS];
    uint32_t bytes[VARIANTS];
};

struct product {
    uint32_t first, groups; /* of all groups */
    uint32_t cols, chunks;
};

struct profile_packed {
    const struct packed_kernels *kernels;
    struct pool *pool;
    struct arena arena;
    bool open;
    char *region;
    uint64_t region_bytes, plain_bytes;
    struct shape shape[SHAPES_MAX];
    uint32_t shapes, cols_max;
    struct group *group;
    uint32_t groups;
    struct product *product;
    uint32_t products;
    float *x;
    float *split;         /* of each thread, x as the kernels read it: as the worker's threads make it, */
    uint64_t *split_turn; /* ... when they begin with a product */
    uint16_t *scratch;    /* of each thread, a group */
    uint64_t turn;        /* of the product, through all passes: from 1 on */
    /* of a pass */
    const struct product *now;
    uint32_t next;
    bool unpack;
};

/* ---- groups ---- */

static uint64_t random_of(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* About normal: the sum of four that are even. Near 0, where exponents are many, such a sum is as dense. */
static uint16_t weight_of(uint64_t *state)
{
    uint64_t bits = random_of(state);
    double sum = 0;
    uint32_t word;
    for (int i = 0; i < 4; i++) sum += (double)(bits >> (16 * i) & 0xffff) / 65536 - 0.5;
    float value = (float)(sum * DEVIATION * 1.7320508); /* such a sum deviates by 1 / sqrt(3) */
    memcpy(&word, &value, sizeof word);
    return (uint16_t)(word >> 16);
}

static int make_shape(struct shape *shape, uint32_t cols, struct helm_err *err)
{
    const uint32_t values = PACKED_ROWS * cols;
    uint64_t state = 88172645463325252u + cols;
    uint16_t *value = malloc(values * sizeof *value);
    int rc = value ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to pack weights in");
    shape->cols = cols;
    for (uint32_t v = 0; v < VARIANTS && !rc; v++) {
        struct packed_measure measure;
        for (uint32_t i = 0; i < values; i++) value[i] = weight_of(&state);
        packed_measure(value, values, &measure);
        shape->bytes[v] = measure.bytes;
        shape->packed[v] = aligned_alloc(PACKED_ALIGN, measure.bytes);
        rc = shape->packed[v] ? packed_write(&measure, value, values, shape->packed[v], err)
                              : helm_fail(err, HELM_E_NOMEM, "no memory to pack weights in");
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

static int add_product(struct profile_packed *p, uint32_t rows, uint32_t cols, uint64_t *at,
                       struct helm_err *err)
{
    struct product *product = &p->product[p->products++];
    uint32_t shape, threads = pool_threads(p->pool);
    int rc = shape_of(p, cols, &shape, err);
    if (rc) return rc;
    *product = (struct product){.first = p->groups, .groups = rows / PACKED_ROWS, .cols = cols};
    product->chunks = product->groups < CHUNKS * threads ? product->groups : CHUNKS * threads;
    for (uint32_t g = 0; g < product->groups; g++, p->groups++) {
        p->group[p->groups] = (struct group){.at = (uint32_t)(*at / PACKED_ALIGN), .shape = shape};
        *at += p->shape[shape].bytes[variant_of(p->groups)];
    }
    p->plain_bytes += (uint64_t)product->groups * PACKED_ROWS * cols * sizeof(uint16_t);
    if (cols > p->cols_max) p->cols_max = cols;
    return 0;
}

/* The products of a layer of this model. */
static void products_of(const struct model *model, uint32_t rows[PRODUCTS], uint32_t cols[PRODUCTS])
{
    static const enum tensor_role roles[PRODUCTS][3] = {{TENSOR_Q, TENSOR_K, TENSOR_V},
                                                        {TENSOR_O, TENSOR_NONE, TENSOR_NONE},
                                                        {TENSOR_GATE, TENSOR_UP, TENSOR_NONE},
                                                        {TENSOR_DOWN, TENSOR_NONE, TENSOR_NONE}};
    for (int i = 0; i < PRODUCTS; i++) {
        rows[i] = cols[i] = 0;
        for (int r = 0; r < 3; r++) {
            const struct model_tensor *t =
                roles[i][r] == TENSOR_NONE ? NULL : model_find(model, roles[i][r], 0);
            if (!t) continue;
            rows[i] += (uint32_t)t->rows;
            cols[i] = (uint32_t)t->cols;
        }
    }
}

/* ---- passes ---- */

static uint32_t first_group(const struct product *product, uint32_t chunk)
{
    return product->first + (uint32_t)((uint64_t)product->groups * chunk / product->chunks);
}

/* The pool hands chunks out like this. */
static uint32_t first_chunk(const struct profile_packed *p, const struct product *product, uint32_t thread)
{
    return (uint32_t)((uint64_t)product->chunks * thread / pool_threads(p->pool));
}

static const void *group_at(const struct profile_packed *p, uint32_t group)
{
    return p->region + (uint64_t)p->group[group].at * PACKED_ALIGN;
}

/* What a thread reads after the last group of a chunk. */
static const void *group_after(const struct profile_packed *p, uint32_t chunk, uint32_t thread)
{
    const struct product *product = p->now;
    if (chunk + 1 < first_chunk(p, product, thread + 1)) return group_at(p, first_group(product, chunk + 1));
    if (product + 1 == p->product + p->products) return NULL;
    return group_at(p, first_group(product + 1, first_chunk(p, product + 1, thread)));
}

static void pass_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct profile_packed *p = ctx;
    const struct product *product = p->now;
    const uint32_t last = first_group(product, chunk + 1);
    uint16_t *scratch = p->scratch + (size_t)thread * PACKED_ROWS * p->cols_max;
    float y[PACKED_ROWS], *split = p->split + (size_t)thread * p->cols_max;
    if (!p->unpack && p->split_turn[thread * TURN_STRIDE] != p->turn) {
        p->kernels->split(split, p->x, product->cols);
        p->split_turn[thread * TURN_STRIDE] = p->turn;
    }
    for (uint32_t g = first_group(product, chunk); g < last; g++) {
        const void *next = g + 1 < last ? group_at(p, g + 1) : group_after(p, chunk, thread);
        if (p->unpack)
            p->kernels->unpack(scratch, group_at(p, g), PACKED_ROWS, product->cols);
        else
            p->kernels->gemv(y, group_at(p, g), PACKED_ROWS, product->cols, split, next);
        __asm__ volatile("" : : "r"(y), "r"(scratch) : "memory"); /* they are wanted */
    }
}

static bool pass_next(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct profile_packed *p = ctx;
    (void)thread;
    if (p->next == p->products) return false;
    p->now = &p->product[p->next++];
    p->turn++;
    *job = (struct pool_job){.run = pass_chunk, .chunks = p->now->chunks};
    return true;
}

static double pass(struct profile_packed *p, bool unpack)
{
    double begin = profile_now_s();
    p->unpack = unpack;
    p->next = 0;
    pool_run(p->pool, pass_next, p);
    return profile_now_s() - begin;
}

double profile_packed_gemv(struct profile_packed *p)
{
    return pass(p, false);
}

double profile_packed_unpack(struct profile_packed *p)
{
    return pass(p, true);
}

uint64_t profile_packed_bytes(const struct profile_packed *p)
{
    return p->plain_bytes;
}

uint32_t profile_packed_products(const struct profile_packed *p)
{
    return p->products;
}

double profile_packed_part(const struct profile_packed *p)
{
    return (double)p->region_bytes / (double)p->plain_bytes;
}

/* ---- opening ---- */

struct fill {
    struct profile_packed *p;
    uint64_t pieces;
    uint32_t chunks;
    int state; /* 0: pages, 1: groups, 2: over */
};

static void touch_piece(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct profile_packed *p = ((struct fill *)ctx)->p;
    const struct arena_region *region = &arena_header_of(&p->arena)->region[ARENA_REGION_WEIGHTS];
    uint64_t at = chunk * TOUCH_BYTES, left = p->region_bytes - at, huge = 0, small = 0;
    (void)thread;
    arena_populate(&p->arena, region->offset + at, left < TOUCH_BYTES ? left : TOUCH_BYTES, &huge, &small);
}

static void copy_groups(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct fill *f = ctx;
    const struct profile_packed *p = f->p;
    uint32_t g = (uint32_t)((uint64_t)p->groups * chunk / f->chunks),
             last = (uint32_t)((uint64_t)p->groups * (chunk + 1) / f->chunks);
    (void)thread;
    for (; g < last; g++) {
        const struct shape *shape = &p->shape[p->group[g].shape];
        memcpy(p->region + (uint64_t)p->group[g].at * PACKED_ALIGN, shape->packed[variant_of(g)],
               shape->bytes[variant_of(g)]);
    }
}

static bool fill_next(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct fill *f = ctx;
    (void)thread;
    if (f->state == 2) return false;
    *job = f->state++ == 0 ? (struct pool_job){.run = touch_piece, .chunks = (uint32_t)f->pieces}
                           : (struct pool_job){.run = copy_groups, .chunks = f->chunks};
    return true;
}

static int make_region(struct profile_packed *p, int node, struct helm_err *err)
{
    const struct arena_spec spec = {
        .slots = 1,
        .context_tokens = 64,
        .step_tokens = 1,
        .hidden = 64,
        .vocab = 64,
        .kv = {.kv_heads = 1, .head_dim = 64, .page_tokens = 32, .dtype = DTYPE_F16, .elem_bytes = 2},
        .weight_bytes = p->region_bytes};
    int rc = arena_create(&spec, &p->arena, err);
    if (rc) return rc;
    p->open = true;
    p->region = arena_region_ptr(&p->arena, ARENA_REGION_WEIGHTS);
    const struct arena_region *region = &arena_header_of(&p->arena)->region[ARENA_REGION_WEIGHTS];
    if (node >= 0) rc = arena_bind(&p->arena, region->offset, region->bytes, node, err);
    if (rc) return rc;
    struct fill fill = {.p = p,
                        .pieces = (p->region_bytes + TOUCH_BYTES - 1) / TOUCH_BYTES,
                        .chunks = CHUNKS * pool_threads(p->pool)};
    pool_run(p->pool, fill_next, &fill);
    return 0;
}

static int make_buffers(struct profile_packed *p, struct helm_err *err)
{
    const size_t x = p->cols_max * sizeof *p->x, threads = pool_threads(p->pool), /* x: whole cache lines */
        group = (size_t)PACKED_ROWS * p->cols_max * sizeof *p->scratch;
    p->x = aligned_alloc(ALIGN, x);
    p->split = aligned_alloc(ALIGN, threads * x);
    p->split_turn = calloc(threads * TURN_STRIDE, sizeof *p->split_turn);
    p->scratch = aligned_alloc(ALIGN, threads * group);
    if (!p->x || !p->split || !p->split_turn || !p->scratch)
        return helm_fail(err, HELM_E_NOMEM, "no memory to measure packed weights");
    for (uint32_t c = 0; c < p->cols_max; c++) p->x[c] = c % 2 ? SPLIT_VALUES : -SPLIT_VALUES;
    memset(p->scratch, 0, threads * group);
    memset(p->split, 0, threads * x);
    return 0;
}

int profile_packed_open(const struct model *model, struct pool *pool, int node, uint64_t bytes,
                        struct profile_packed **out, struct helm_err *err)
{
    uint32_t rows[PRODUCTS], cols[PRODUCTS], groups = 0;
    uint64_t layer = 0, at = 0;
    const struct packed_kernels *kernels = packed_kernels_choose(cpu_features());
    *out = NULL;
    if (!kernels) return 0;
    products_of(model, rows, cols);
    for (int i = 0; i < PRODUCTS; i++) {
        if (rows[i] == 0 || rows[i] % PACKED_ROWS || cols[i] % PACKED_CPU_COLS) return 0;
        layer += (uint64_t)rows[i] * cols[i] * sizeof(uint16_t);
        groups += rows[i] / PACKED_ROWS;
    }
    const uint32_t layers = bytes < layer ? 1 : (uint32_t)(bytes / layer);
    struct profile_packed *p = calloc(1, sizeof *p);
    if (!p) return helm_fail(err, HELM_E_NOMEM, "no memory to measure packed weights");
    p->kernels = kernels;
    p->pool = pool;
    p->group = calloc((size_t)layers * groups, sizeof *p->group);
    p->product = calloc((size_t)layers * PRODUCTS, sizeof *p->product);
    int rc = p->group && p->product ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to measure packed weights");
    for (uint32_t l = 0; l < layers; l++)
        for (int i = 0; i < PRODUCTS && !rc; i++) rc = add_product(p, rows[i], cols[i], &at, err);
    p->region_bytes = at;
    if (!rc) rc = make_buffers(p, err);
    if (!rc) rc = make_region(p, node, err);
    if (rc)
        profile_packed_close(p);
    else
        *out = p;
    return rc;
}

void profile_packed_close(struct profile_packed *p)
{
    if (!p) return;
    if (p->open) arena_close(&p->arena);
    for (uint32_t s = 0; s < p->shapes; s++)
        for (uint32_t v = 0; v < VARIANTS; v++) free(p->shape[s].packed[v]);
    free(p->group);
    free(p->product);
    free(p->x);
    free(p->split);
    free(p->split_turn);
    free(p->scratch);
    free(p);
}
