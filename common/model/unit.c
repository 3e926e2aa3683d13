/* The table of units. See unit.h; called by the checkpoint readers in this folder. */
#include "common/model/unit.h"

#include <stdlib.h>

#include "common/model/arch.h"
#include "common/model/model.h"

/* Appends a tensor to the unit's list if the model has it and the list has not. */
static void add_tensor(const struct model *model, struct model_unit *unit, const struct model_tensor **list,
                       enum tensor_role role)
{
    const struct model_tensor *tensor = model_find(model, role, (int32_t)unit->layer);
    if (!tensor) return;
    for (uint32_t i = 0; i < unit->tensor_count; i++)
        if (list[i] == tensor) return;
    list[unit->tensor_count++] = tensor;
    unit->bytes += tensor->bytes;
}

static void fill_unit(const struct model *model, struct model_unit *unit, const struct model_tensor **list)
{
    const struct math_part *math = model_unit_math(model, unit_of(unit->layer, unit->part));
    enum tensor_role roles[MATH_ROLES_MAX];
    unit->tensor = list;
    for (uint32_t i = 0; i < math->ops; i++)
        for (uint32_t w = 0; w < math->op[i].weights; w++)
            add_tensor(model, unit, list, math->op[i].weight[w]);
    unit->matrix_count = unit->tensor_count;
    for (uint32_t i = 0; i < math->ops; i++) {
        const uint32_t count = math_roles(&math->op[i], roles);
        for (uint32_t k = math->op[i].weights; k < count; k++) add_tensor(model, unit, list, roles[k]);
    }
}

unsigned model_formats(const struct model *model)
{
    const struct model_tensor *head = model_find(model, TENSOR_HEAD, -1);
    unsigned formats = head ? format_bit(head->format) : 0;
    for (uint32_t u = 0; u < unit_count(model->config.layers); u++)
        for (uint32_t i = 0; i < model->unit[u].matrix_count; i++)
            formats |= format_bit(model->unit[u].tensor[i]->format);
    return formats;
}

enum tensor_format model_main_format(const struct model *model)
{
    const struct model_tensor *head = model_find(model, TENSOR_HEAD, -1);
    uint64_t bytes[FORMAT_COUNT] = {0};
    enum tensor_format most = FORMAT_BF16;
    if (head) bytes[head->format] += head->bytes;
    for (uint32_t u = 0; u < unit_count(model->config.layers); u++)
        for (uint32_t i = 0; i < model->unit[u].matrix_count; i++)
            bytes[model->unit[u].tensor[i]->format] += model->unit[u].tensor[i]->bytes;
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (bytes[f] > bytes[most]) most = (enum tensor_format)f;
    return most;
}

uint32_t model_unit_kind(const struct model *model, uint32_t unit)
{
    if (model->unit) return model->unit[unit].kind;
    return arch_of(&model->config)->kind(&model->config, unit_layer(unit), unit_part(unit));
}

const struct math_part *model_unit_math(const struct model *model, uint32_t unit)
{
    return &model->math.part[model_unit_kind(model, unit)];
}

int model_units_build(struct model *model, struct helm_err *err)
{
    const uint32_t units = unit_count(model->config.layers);
    uint32_t (*const kind)(const struct model_config *, uint32_t, enum unit_part) =
        arch_of(&model->config)->kind;
    model->unit = calloc((size_t)units + 1, sizeof *model->unit);
    model->unit_tensor = calloc((size_t)model->tensor_count + 1, sizeof *model->unit_tensor);
    if (!model->unit || !model->unit_tensor)
        return helm_fail(err, HELM_E_NOMEM, "no memory for a table of %u units", units);
    const struct model_tensor **at = model->unit_tensor;
    for (uint32_t u = 0; u < units; u++) {
        struct model_unit *unit = &model->unit[u];
        unit->part = unit_part(u);
        unit->layer = unit_layer(u);
        unit->kind = unit->part == UNIT_MLP && model->shared && model->shared[unit->layer]
                         ? model->math.parts - 1
                         : kind(&model->config, unit->layer, unit->part);
        fill_unit(model, unit, at);
        at += unit->tensor_count;
    }
    return 0;
}
