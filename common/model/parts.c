/* Large experts in parts. See parts.h. No state. */
#include "common/model/parts.h"

#include <stdlib.h>

/* The cut of a role's tensor. Gates and ups lie as they are: a part's rows are neighbours. */
static const struct {
    enum tensor_role role;
    enum tensor_cut cut;
} cuts[] = {
    {TENSOR_ROUTER, CUT_REPEATED},        {TENSOR_ROUTER_BIAS, CUT_REPEATED},
    {TENSOR_CHOICE_BIAS, CUT_REPEATED},   {TENSOR_EXPERT_SCALE, CUT_REPEATED},
    {TENSOR_GATE_EXPERTS_BIAS, CUT_NONE}, {TENSOR_UP_EXPERTS_BIAS, CUT_NONE},
    {TENSOR_DOWN_EXPERTS, CUT_COLUMNS},   {TENSOR_DOWN_EXPERTS_BIAS, CUT_FIRST},
};

/* ---- the choice ---- */

static uint64_t largest_expert(const struct model *model)
{
    static const enum tensor_role roles[] = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS, TENSOR_DOWN_EXPERTS};
    uint64_t largest = 0;
    for (uint32_t l = 0; l < model->config.layers; l++) {
        uint64_t bytes = 0;
        for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
            const struct model_tensor *t = model_find(model, roles[r], (int32_t)l);
            bytes += t ? t->bytes : 0;
        }
        if (bytes > largest) largest = bytes;
    }
    return largest / model->config.router.experts;
}

/* Experts of groups are chosen by the sum of a group's two best, which are of two experts. */
static bool in_groups(const struct model_router *router)
{
    return router->score == ROUTER_SIGMOID && router->groups > router->groups_chosen;
}

#define WHOLE_BLOCKS 256 /* values, of which every format has whole blocks */

uint32_t model_parts_wanted(const struct model *model)
{
    const struct model_config *c = &model->config;
    const uint32_t now = model_expert_parts(c);
    if (!c->router.experts || in_groups(&c->router)) return 1;
    const uint64_t inner = (uint64_t)c->expert_intermediate * now, bytes = largest_expert(model) * now;
    const uint32_t experts = c->router.experts / now, chosen = c->router.chosen / now;
    uint32_t parts = 1;
    while (bytes / parts > PARTS_EXPERT_BYTES && inner % (2 * parts * WHOLE_BLOCKS) == 0 &&
           2 * parts * experts <= PARTS_EXPERTS_MAX && 2 * parts * chosen <= PARTS_CHOSEN_MAX)
        parts *= 2;
    return parts;
}

/* ---- cutting ---- */

static int check(const struct model *model, uint32_t parts, struct helm_err *err)
{
    const struct model_config *c = &model->config;
    const uint32_t now = model_expert_parts(c), experts = c->router.experts / now,
                   chosen = c->router.chosen / now;
    const uint64_t inner = (uint64_t)c->expert_intermediate * now;
    if (!experts) return helm_fail(err, HELM_E_UNSUPPORTED, "experts in %u parts: there are none", parts);
    if (parts == 0 || inner % parts || (uint64_t)experts * parts > MODEL_EXPERTS_MAX ||
        (uint64_t)chosen * parts > MODEL_EXPERTS_CHOSEN_MAX || in_groups(&c->router))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%u of %u experts of %llu values cannot be computed in %u parts", chosen, experts,
                         (unsigned long long)inner, parts);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (t->role == TENSOR_DOWN_EXPERTS && !tensor_format_takes(t->format, t->rows, inner / parts))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "%s: rows of %llu values of %s cannot be cut into %u parts", t->name,
                             (unsigned long long)inner, tensor_format_name(t->format), parts);
    }
    return 0;
}

static void cut_tensor(struct model *model, struct model_tensor *t, enum tensor_cut cut)
{
    const struct model_config *c = &model->config;
    model->weight_bytes -= t->bytes;
    (void)model_expected_shape(c, t->role, t->layer, &t->rows, &t->cols);
    t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    t->cut = c->expert_parts > 1 ? cut : CUT_NONE;
    t->parts = c->expert_parts;
    t->part_rows = cut == CUT_COLUMNS ? c->hidden : 1;
    model->weight_bytes += t->bytes;
}

static void cut_config(struct model_config *c, uint32_t parts)
{
    struct model_router *r = &c->router;
    const uint32_t now = model_expert_parts(c);
    /* a sigmoid that is not normalised stays an expert's own */
    const bool shared = r->score != ROUTER_SIGMOID || r->normalise;
    if (shared) r->scale *= (float)parts / (float)now;
    r->experts = r->experts / now * parts;
    r->chosen = r->chosen / now * parts;
    c->expert_intermediate = c->expert_intermediate * now / parts;
    c->expert_parts = parts;
}

int model_cut_experts(struct model *model, uint32_t parts, struct helm_err *err)
{
    if (parts == model_expert_parts(&model->config)) return 0;
    int rc = check(model, parts, err);
    if (rc) return rc;
    cut_config(&model->config, parts);
    for (uint32_t i = 0; i < model->tensor_count; i++)
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++)
            if (model->tensors[i].role == cuts[k].role) cut_tensor(model, &model->tensors[i], cuts[k].cut);
    model_math_build(&model->config, &model->math);
    free(model->unit);
    free(model->unit_tensor);
    return model_units_build(model, err);
}

/* ---- where it lies ---- */

struct model_tensor parts_whole(const struct model_tensor *t)
{
    struct model_tensor whole = *t;
    whole.cut = CUT_NONE;
    if (t->cut == CUT_OF_ROWS || t->cut == CUT_OF_COLUMNS) {
        *(t->cut == CUT_OF_ROWS ? &whole.rows : &whole.cols) = t->cut_whole;
        whole.bytes = tensor_format_bytes(t->format, whole.rows, whole.cols);
        return whole;
    }
    if (t->cut == CUT_COLUMNS) {
        whole.rows /= t->parts;
        whole.cols *= t->parts;
    } else {
        whole.bytes /= t->parts;
        *(t->rows > 1 ? &whole.rows : &whole.cols) /= t->parts;
    }
    return whole;
}

struct parts_place parts_place_of(const struct model_tensor *t, uint64_t row)
{
    const uint64_t row_bytes = tensor_format_row_bytes(t->format, t->cols);
    if (t->cut == CUT_OF_ROWS)
        return (struct parts_place){.at = (t->cut_first + row) * row_bytes, .bytes = row_bytes};
    if (t->cut == CUT_OF_COLUMNS)
        return (struct parts_place){.at = row * tensor_format_row_bytes(t->format, t->cut_whole) +
                                          tensor_format_row_bytes(t->format, t->cut_first),
                                    .bytes = row_bytes};
    const uint64_t part = row / t->part_rows % t->parts,
                   whole = row / t->part_rows / t->parts * t->part_rows + row % t->part_rows,
                   bytes = t->bytes / (t->rows > 1 ? t->rows : t->cols);
    if (t->cut == CUT_COLUMNS)
        return (struct parts_place){.at = (whole * t->parts + part) * bytes, .bytes = bytes};
    return (struct parts_place){.at = whole * bytes, .bytes = bytes, .zero = t->cut == CUT_FIRST && part > 0};
}
