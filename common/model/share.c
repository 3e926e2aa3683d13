/* Cutting dense MLPs between two processors. See share.h. No state. */
#include "common/model/share.h"

#include <stdlib.h>
#include <string.h>

#include "common/model/checkpoint.h"

/* The tensors of an MLP, whole and in part; gate and up are cut by rows, down by columns. */
static const struct {
    enum tensor_role whole, own;
    enum tensor_cut cut;
} parts[] = {{TENSOR_GATE, TENSOR_OWN_GATE, CUT_OF_ROWS},
             {TENSOR_UP, TENSOR_OWN_UP, CUT_OF_ROWS},
             {TENSOR_DOWN, TENSOR_OWN_DOWN, CUT_OF_COLUMNS}};
#define PARTS (sizeof parts / sizeof *parts)

enum tensor_role share_role_of(enum tensor_role role)
{
    for (size_t i = 0; i < PARTS; i++)
        if (parts[i].own == role) return parts[i].whole;
    return role;
}

static enum tensor_role own_role_of(enum tensor_role role)
{
    size_t i = 0;
    while (parts[i].whole != role) i++;
    return parts[i].own;
}

/* ---- what can be cut ---- */

static bool is_gate_up(const struct math_op *op)
{
    return op->kind == MATH_LINEAR && op->gated && op->weights == 2 && op->weight[0] == TENSOR_GATE &&
           op->weight[1] == TENSOR_UP && op->bias[0] == TENSOR_NONE && op->bias[1] == TENSOR_NONE &&
           op->out[0] == BUFFER_GATE && op->out[1] == BUFFER_UP;
}

static bool is_down(const struct math_op *op)
{
    return op->kind == MATH_LINEAR && op->weights == 1 && op->weight[0] == TENSOR_DOWN &&
           op->bias[0] == TENSOR_NONE && op->in == BUFFER_GATE && op->out[0] == BUFFER_X && op->residual &&
           (op->out_scale == 0 || op->out_scale == 1);
}

bool share_takes_layer(const struct model *model, uint32_t layer)
{
    const struct math_part *part = model_unit_math(model, unit_of(layer, UNIT_MLP));
    return model->config.router.experts == 0 && part->ops == 2 && is_gate_up(&part->op[0]) &&
           is_down(&part->op[1]);
}

bool share_takes_rows(const struct model *model, uint32_t layer, uint32_t rows)
{
    for (size_t i = 0; i < PARTS; i++) {
        const struct model_tensor *t = model_find(model, parts[i].whole, (int32_t)layer);
        const bool by_rows = parts[i].cut == CUT_OF_ROWS;
        const uint64_t all = by_rows ? t->rows : t->cols;
        if (rows == 0 || rows >= all || t->cut != CUT_NONE) return false;
        if (!by_rows && (!tensor_format_takes(t->format, t->rows, rows) ||
                         !tensor_format_takes(t->format, t->rows, all - rows)))
            return false;
    }
    return true;
}

/* ---- cutting ---- */

/* The whole one becomes the rest; the first rows, or columns, are another one. */
static struct model_tensor cut_tensor(struct model_tensor *t, enum tensor_cut cut, uint32_t rows)
{
    struct model_tensor own = *t;
    uint64_t *const rest = cut == CUT_OF_ROWS ? &t->rows : &t->cols;
    own.role = own_role_of(t->role);
    own.cut = t->cut = cut;
    own.cut_whole = t->cut_whole = *rest;
    own.cut_first = 0;
    t->cut_first = rows;
    *rest -= rows;
    *(cut == CUT_OF_ROWS ? &own.rows : &own.cols) = rows;
    t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    own.bytes = tensor_format_bytes(own.format, own.rows, own.cols);
    return own;
}

/* The same product with the first rows' matrices. */
static struct math_op own_op(const struct math_op *op, const char *name)
{
    struct math_op own = *op;
    own.name = name;
    for (uint32_t w = 0; w < op->weights; w++) own.weight[w] = own_role_of(op->weight[w]);
    if (is_down(op)) {
        own.in = BUFFER_SHARED;
    } else {
        own.out[0] = BUFFER_SHARED;
        own.out[1] = BUFFER_SHARED_UP;
    }
    return own;
}

/* Both read x before anything is added to it. */
static int add_part(struct model *model, uint32_t layer, struct helm_err *err)
{
    const struct math_part *whole = model_unit_math(model, unit_of(layer, UNIT_MLP));
    struct math_part *part = &model->math.part[model->math.parts];
    if (model->math.parts == MATH_PARTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "layer %u: more than %d kinds of half layers", layer,
                         MATH_PARTS_MAX);
    *part = *whole;
    part->name = "shared MLP";
    part->op[1] = own_op(&whole->op[0], "own gate up");
    part->op[2] = whole->op[1];
    part->op[3] = own_op(&whole->op[1], "own down");
    part->ops = 4;
    model->math.parts++;
    return 0;
}

/* Layers of one kind: they have one part in the end. */
static int check(const struct model *model, const bool *shared, uint32_t rows, uint32_t *layers,
                 struct helm_err *err)
{
    uint32_t first = model->config.layers;
    *layers = 0;
    if (model->shared) return helm_fail(err, HELM_E_INTERNAL, "a model's MLPs are cut a second time");
    for (uint32_t l = 0; l < model->config.layers; l++) {
        if (!shared[l]) continue;
        if (first == model->config.layers) first = l;
        if (!share_takes_layer(model, l) ||
            model_unit_kind(model, unit_of(l, UNIT_MLP)) != model_unit_kind(model, unit_of(first, UNIT_MLP)))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "layer %u: only a dense MLP of gate, up and down without biases, and without a "
                             "norm of its output, can have 'shared' as home",
                             l);
        if (!share_takes_rows(model, l, rows)) {
            const struct model_tensor *down = model_find(model, TENSOR_DOWN, (int32_t)l);
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "layer %u: its MLP of %llu rows cannot be shared at row %u: not both parts of "
                             "%s are whole blocks of %s",
                             l, (unsigned long long)down->cols, rows, down->name,
                             tensor_format_name(down->format));
        }
        ++*layers;
    }
    return 0;
}

static void *copied(const void *from, size_t bytes, size_t room)
{
    void *to = calloc(1, room ? room : 1);
    if (to && bytes) memcpy(to, from, bytes);
    return to;
}

int model_share_copy(const struct model *whole, const bool *shared, uint32_t rows, struct model *cut,
                     struct helm_err *err)
{
    const uint32_t layers = whole->config.layers;
    const size_t slots = (size_t)TENSOR_ROLE_COUNT * (layers + 1u);
    uint32_t count, first = 0;
    *cut = (struct model){0};
    int rc = check(whole, shared, rows, &count, err);
    if (rc) return rc;
    *cut = *whole;
    cut->unit = NULL;
    cut->unit_tensor = NULL;
    cut->tensors = copied(whole->tensors, whole->tensor_count * sizeof *whole->tensors,
                          (whole->tensor_count + PARTS * count) * sizeof *whole->tensors);
    cut->by_role = copied(whole->by_role, slots * sizeof *whole->by_role, slots * sizeof *whole->by_role);
    cut->shared = copied(shared, layers * sizeof *shared, layers * sizeof *shared);
    if (!cut->tensors || !cut->by_role || !cut->shared)
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the tensors of %u shared MLPs", count);
    while (count && !shared[first]) first++;
    cut->unit = whole->unit; /* asked for the kind of its layers */
    if (!rc && count) rc = add_part(cut, first, err);
    cut->unit = NULL;
    cut->config.shared_intermediate = count ? rows : whole->config.shared_intermediate;
    for (uint32_t l = 0; l < layers && !rc; l++)
        for (size_t i = 0; i < PARTS && shared[l]; i++) {
            const size_t at = checkpoint_slot(&cut->config, parts[i].whole, (int32_t)l);
            const struct model_tensor own =
                cut_tensor(&cut->tensors[cut->by_role[at] - 1], parts[i].cut, rows);
            cut->tensors[cut->tensor_count++] = own;
            cut->by_role[checkpoint_slot(&cut->config, own.role, (int32_t)l)] = cut->tensor_count;
        }
    if (!rc) rc = model_units_build(cut, err);
    if (rc) model_share_free(cut);
    return rc;
}

void model_share_free(struct model *cut)
{
    free(cut->tensors);
    free(cut->by_role);
    free(cut->shared);
    free(cut->unit);
    free(cut->unit_tensor);
    *cut = (struct model){0};
}

int model_share(struct model *model, const bool *shared, uint32_t rows, struct helm_err *err)
{
    struct model cut, old = *model;
    int rc = model_share_copy(model, shared, rows, &cut, err);
    if (rc) return rc;
    *model = cut;
    model_share_free(&old);
    return 0;
}
