/* The emulated device's kernels for mixtures of experts: experts.h to the letter, by router_choose, glu_of
 * and the CPU's fp32 products. See emulated.h. Called through the table of kernels.c, on the device's
 * thread. */
#include <string.h>

#include "common/formats/packed.h"
#include "worker-gpu/device/emulated/emulated.h"

static void choose(const struct model_router *router, const float *logits, const float *choice_bias,
                   uint32_t tokens, const struct gpuk_choice *out)
{
    for (uint32_t t = 0; t < tokens; t++)
        router_choose(router, logits + (size_t)t * router->experts, choice_bias, out->scale,
                      out->id + (size_t)t * out->chosen, out->weight + (size_t)t * out->chosen);
}

void emulated_run_route(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_route *c = &op->as.route;
    choose(&c->router, c->logits, c->choice_bias, emulated_count(op->count, op->tokens), &c->out);
}

/* ---- those of another processor ---- */

/* Which experts are missing of those that tokens chose. */
static uint32_t find_missing(struct emulated_math *math, const struct gpuk_experts_ask *a, uint32_t pairs,
                             bool *missing)
{
    uint32_t count = 0;
    memset(missing, 0, a->experts * sizeof *missing);
    for (uint32_t p = 0; p < pairs; p++) {
        const uint32_t e = a->choice.id[p];
        if (e >= a->experts) math->broken = "an expert that there is not";
        if (e >= a->experts || a->table[e] != GPUK_SLOT_ABSENT || missing[e]) continue;
        missing[e] = true;
        count++;
    }
    return count;
}

void emulated_run_experts_ask(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_experts_ask *a = &op->as.experts_ask;
    const uint32_t tokens = emulated_count(op->count, op->tokens), chosen = a->choice.chosen,
                   pairs = tokens * chosen;
    bool missing[MODEL_EXPERTS_MAX];
    if (a->router) choose(a->router, a->logits, a->choice_bias, tokens, &a->choice);
    const uint32_t permille = a->direct_permille ? *a->direct_permille : 0;
    uint32_t direct = (find_missing(math, a, pairs, missing) * permille + 500) / 1000;
    for (uint32_t e = 0; e < a->experts; e++) {
        const bool reads = missing[e] && direct > 0;
        a->slot[e] = reads ? GPUK_SLOT_HOST | e : a->table[e];
        if (reads) missing[e] = false, direct--;
    }
    memcpy(a->lane, a->x, (size_t)tokens * a->width * sizeof *a->lane);
    uint32_t *id = (uint32_t *)(void *)(a->lane + (size_t)a->capacity * a->width);
    for (uint32_t p = 0; p < pairs && !math->broken; p++) {
        id[p] = missing[a->choice.id[p]] ? a->choice.id[p] : GPUK_SLOT_ABSENT;
        if (a->seen) a->seen[p] = a->choice.id[p];
    }
    memcpy(id + (size_t)a->capacity * chosen, a->choice.weight, pairs * sizeof(float));
}

void emulated_run_experts_add(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_experts_add *a = &op->as.experts_add;
    (void)math;
    for (size_t i = 0, n = (size_t)emulated_count(op->count, op->tokens) * a->width; i < n; i++)
        a->out[i] = a->x[i] + a->sum[i];
}

/* The slot of an expert; false: it has none, or there is no such expert. */
static bool slot_of(struct emulated_math *math, const struct gpuk_experts *e, uint32_t expert, uint32_t *slot)
{
    if (expert >= e->experts) math->broken = "an expert that there is not";
    if (expert >= e->experts) return false;
    *slot = e->slot ? e->slot[expert] : expert;
    return *slot != GPUK_SLOT_ABSENT;
}

static const char *matrix_of(const struct gpuk_experts *e, uint32_t slot)
{
    return slot & GPUK_SLOT_HOST ? (const char *)e->host + (slot & ~GPUK_SLOT_HOST) * e->stride
                                 : (const char *)e->weight + slot * e->stride;
}

/* An expert's rows, in a slot or in host memory; of a packed matrix also all of them as they lie in VRAM. */
static struct gpuk_linear rows_of(const struct gpuk_experts *e, uint32_t expert, uint32_t slot)
{
    struct gpuk_linear rows = {.bias = e->bias ? e->bias + (size_t)expert * e->rows : NULL, .rows = e->rows};
    if (!tensor_format_of(e->format)->variable) {
        rows.weight = matrix_of(e, slot);
        return rows;
    }
    const char *table = e->host, *from = e->weight;
    if (e->slot) table = from - packed_groups_at(e->experts * e->rows); /* in front of the slots */
    rows.offset = (const uint32_t *)(const void *)table + (size_t)expert * e->rows / PACKED_ROWS;
    if (!e->slot)
        from += packed_at(rows.offset, 0);
    else if (slot & GPUK_SLOT_HOST)
        from = (const char *)e->host + packed_at(rows.offset, 0);
    else
        from += slot * e->stride;
    rows.weight = from;
    return rows;
}

/* y[token][row] of the matrix in a slot over x, all dense. */
static void multiply(struct emulated_math *math, const struct gpuk_experts *e, uint32_t expert,
                     const float *x, uint32_t tokens, float *y)
{
    uint32_t slot;
    if (!slot_of(math, e, expert, &slot)) return;
    struct gpuk_linear rows = rows_of(e, expert, slot);
    rows.out = y;
    const struct gpuk_linear_args args = {
        .format = e->format, .cols = e->cols, .segments = 1, .segment = {rows}, .x = x};
    emulated_linear(math, &args, tokens, e->cols, e->rows);
}

/* Holds a choice to what struct gpuk_choice says of it. */
static void check_choice(struct emulated_math *math, const struct gpuk_choice *c, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (const uint32_t *first = c->id + (size_t)t * c->chosen, *a = first; a < first + c->chosen; a++)
            for (const uint32_t *b = first; b < a; b++)
                if (*a == *b) math->broken = "a token that chose an expert twice";
}

/* Room for `tokens` rows of what is between gate and up. */
static float *ups_of(struct emulated_math *math, const struct gpuk_experts *e, uint32_t tokens)
{
    return emulated_scratch(math, SCRATCH_EXPERTS, (size_t)tokens * e->rows * sizeof(float));
}

static void combine(enum glu_kind glu, float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) gate[i] = glu_of(glu, gate[i], up[i]);
}

void emulated_experts_glu(struct emulated_math *math, const struct gpuk_experts_glu *c, uint32_t tokens)
{
    float *up = ups_of(math, &c->gate, 1),
          *x = emulated_scratch(math, SCRATCH_EXPERTS_X, c->gate.cols * sizeof *x);
    uint32_t slot;
    if (c->router) choose(c->router, c->logits, c->choice_bias, tokens, &c->choice);
    check_choice(math, &c->choice, tokens);
    for (uint32_t t = 0; t < tokens && up && x; t++) {
        memcpy(x, c->x + (size_t)t * c->x_stride, c->gate.cols * sizeof *x);
        if (c->norm) math->vector->rmsnorm(x, x, c->norm, c->gate.cols, c->eps);
        for (uint32_t j = 0; j < c->choice.chosen; j++) {
            const size_t pair = (size_t)t * c->choice.chosen + j;
            float *act = c->act + pair * c->gate.rows;
            if (!slot_of(math, &c->gate, c->choice.id[pair], &slot)) continue;
            multiply(math, &c->gate, c->choice.id[pair], x, 1, act);
            multiply(math, &c->up, c->choice.id[pair], x, 1, up);
            combine(c->glu, act, up, c->gate.rows);
        }
    }
}

void emulated_experts_down(struct emulated_math *math, const struct gpuk_experts_down *c, uint32_t tokens)
{
    const uint32_t rows = c->down.rows;
    float *y = ups_of(math, &c->down, 1),
          *sum = emulated_scratch(math, SCRATCH_EXPERTS_X, rows * sizeof *sum);
    uint32_t slot;
    check_choice(math, &c->choice, tokens);
    for (uint32_t t = 0; t < tokens && y && sum; t++) {
        memset(sum, 0, rows * sizeof *sum);
        for (uint32_t j = 0; j < c->choice.chosen; j++) {
            const size_t pair = (size_t)t * c->choice.chosen + j;
            if (!slot_of(math, &c->down, c->choice.id[pair], &slot)) continue;
            multiply(math, &c->down, c->choice.id[pair], c->act + pair * c->down.cols, 1, y);
            for (uint32_t r = 0; r < rows; r++) sum[r] += c->choice.weight[pair] * y[r];
        }
        float *out = c->out + (size_t)t * c->out_stride;
        const float *residual = c->residual ? c->residual + (size_t)t * c->out_stride : NULL;
        for (uint32_t r = 0; r < rows; r++) out[r] = (residual ? residual[r] : 0) + sum[r];
    }
}

/* ---- chunks ---- */

static bool is_absent(const struct op_experts_group *c, uint32_t expert)
{
    return c->slot && c->slot[expert] == GPUK_SLOT_ABSENT;
}

void emulated_run_experts_group(struct emulated_math *math, const struct op *op)
{
    const struct op_experts_group *c = &op->as.experts_group;
    const uint32_t pairs = emulated_count(op->count, op->tokens) * c->choice.chosen;
    uint32_t next[MODEL_EXPERTS_MAX];
    memset(c->out.first, 0, (c->experts + 1) * sizeof *c->out.first);
    for (uint32_t p = 0; p < pairs; p++) {
        if (c->choice.id[p] >= c->experts) math->broken = "an expert that there is not";
        if (c->choice.id[p] >= c->experts) return;
        c->out.first[c->choice.id[p] + 1] += !is_absent(c, c->choice.id[p]);
    }
    for (uint32_t e = 0; e < c->experts; e++) {
        next[e] = c->out.first[e];
        c->out.first[e + 1] += c->out.first[e];
    }
    for (uint32_t p = 0; p < pairs; p++) {
        c->out.place[p] = is_absent(c, c->choice.id[p]) ? GPUK_SLOT_ABSENT : next[c->choice.id[p]]++;
        if (c->out.place[p] != GPUK_SLOT_ABSENT) c->out.pair[c->out.place[p]] = p;
    }
}

static void glu_chunk(struct emulated_math *math, const struct gpuk_experts_glu_chunk *c)
{
    const uint32_t cols = c->gate.cols, rows = c->gate.rows;
    for (uint32_t e = 0; e < c->gate.experts; e++) {
        const uint32_t first = c->groups.first[e], count = c->groups.first[e + 1] - first;
        float *up = ups_of(math, &c->gate, 2 * count), *gate = up ? up + (size_t)count * rows : NULL;
        float *x = emulated_scratch(math, SCRATCH_EXPERTS_X, (size_t)count * cols * sizeof *x);
        if (!count || !x || !up) continue;
        for (uint32_t i = 0; i < count; i++) {
            const size_t token = c->groups.pair[first + i] / c->chosen;
            math->vector->load(x + (size_t)i * cols,
                               (const char *)c->x + token * cols * dtype_bytes(c->dtype), c->dtype, cols);
        }
        multiply(math, &c->gate, e, x, count, gate);
        multiply(math, &c->up, e, x, count, up);
        combine(c->glu, gate, up, (size_t)count * rows);
        emulated_store(math, c->act, (size_t)first * rows, c->act_dtype, gate, (size_t)count * rows);
    }
}

static void down_chunk(struct emulated_math *math, const struct gpuk_experts_down_chunk *c)
{
    const uint32_t cols = c->down.cols;
    for (uint32_t e = 0; e < c->down.experts; e++) {
        const uint32_t first = c->groups.first[e], count = c->groups.first[e + 1] - first;
        float *x = emulated_scratch(math, SCRATCH_EXPERTS_X, (size_t)count * cols * sizeof *x);
        if (!count || !x) continue;
        math->vector->load(x, (const char *)c->act + (size_t)first * cols * dtype_bytes(c->dtype), c->dtype,
                           (size_t)count * cols);
        multiply(math, &c->down, e, x, count, c->sums + (size_t)first * c->down.rows);
    }
}

void emulated_run_experts_glu(struct emulated_math *math, const struct op *op)
{
    const struct op_experts_glu *c = &op->as.experts_glu;
    if (c->is_chunk)
        glu_chunk(math, &c->chunk);
    else
        emulated_experts_glu(math, &c->few, emulated_count(op->count, op->tokens));
}

void emulated_run_experts_down(struct emulated_math *math, const struct op *op)
{
    const struct op_experts_down *c = &op->as.experts_down;
    if (c->is_chunk)
        down_chunk(math, &c->chunk);
    else
        emulated_experts_down(math, &c->few, emulated_count(op->count, op->tokens));
}

void emulated_run_experts_sum(struct emulated_math *math, const struct op *op)
{
    const struct op_experts_sum *c = &op->as.experts_sum;
    float *sum = emulated_scratch(math, SCRATCH_EXPERTS_X, c->rows * sizeof *sum);
    for (uint32_t t = 0, n = emulated_count(op->count, op->tokens); t < n && sum; t++) {
        memset(sum, 0, c->rows * sizeof *sum);
        for (uint32_t j = 0; j < c->choice.chosen; j++) {
            const size_t pair = (size_t)t * c->choice.chosen + j;
            const float *y = c->sums + (size_t)c->groups.place[pair] * c->rows;
            if (c->groups.place[pair] == GPUK_SLOT_ABSENT) continue;
            for (uint32_t r = 0; r < c->rows; r++) sum[r] += c->choice.weight[pair] * y[r];
        }
        const size_t to = (size_t)t * c->out_stride;
        if (c->residual) math->vector->add(sum, c->residual + to, c->rows);
        memcpy(c->out + to, sum, c->rows * sizeof *sum);
    }
}

size_t emulated_experts_workspace(uint32_t tokens, uint32_t chosen, uint32_t cols)
{
    return (size_t)tokens * chosen * cols * sizeof(float); /* as a GPU's: for the ledger */
}
