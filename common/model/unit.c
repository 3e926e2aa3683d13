/* The table of units. See unit.h; called by the checkpoint readers in this folder. */
#include "common/model/unit.h"

#include <math.h>
#include <stdlib.h>

#include "common/model/arch.h"
#include "common/model/model.h"
#include "common/base/units.h"

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

/* ---- the arithmetic ---- */

const char *state_kind_name(enum state_kind kind)
{
    static const char *const names[STATE_KINDS] = {
        [STATE_NONE] = "none", [STATE_PAGES] = "pages", [STATE_WINDOW] = "window", [STATE_FIXED] = "fixed"};
    return names[kind];
}

uint32_t math_roles(const struct math_op *op, enum tensor_role roles[MATH_ROLES_MAX])
{
    const enum tensor_role single[] = {op->norm,    op->norm_bias,  op->q_norm,      op->k_norm,
                                       op->sinks,   op->router,     op->positions,   op->conv,
                                       op->decay,   op->time_bias,  op->head_norm,   op->out_factor,
                                       op->in_norm, op->other_norm, op->expert_scale};
    uint32_t count = 0;
    for (uint32_t w = 0; w < op->weights; w++) roles[count++] = op->weight[w];
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i] != TENSOR_NONE) roles[count++] = single[i];
    for (uint32_t w = 0; w < math_biases(op); w++)
        if (op->bias[w] != TENSOR_NONE) roles[count++] = op->bias[w];
    return count;
}

float math_growth(float growth, uint32_t context, uint32_t position)
{
    return growth != 0 ? 1 + growth * logf(1 + (float)(position / context)) : 1;
}

/* Takes out what the configuration has not. */
static void keep_existing(const struct model_config *config, struct math_op *op)
{
    enum tensor_role *optional[] = {&op->q_norm,  &op->k_norm,  &op->sinks,  &op->bias[0],
                                    &op->bias[1], &op->bias[2], &op->bias[3]};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (!model_role_exists(config, *optional[i])) *optional[i] = TENSOR_NONE;
}

/* Whether the configuration has what the operation is about: a layer with experts may have none that is
 * shared. */
static bool exists(const struct model_config *config, const struct math_op *op)
{
    const enum tensor_role role = op->weights ? op->weight[0] : op->router;
    if (op->kind == MATH_ADD_NORMED && op->norm == TENSOR_NONE) return config->q_growth != 0;
    return role == TENSOR_NONE || role == TENSOR_HEAD || model_role_exists(config, role);
}

/* The state of a sequence that an operation keeps. */
static enum state_kind state_of(const struct math_op *op)
{
    if (op->kind == MATH_ATTENTION) return op->other_cache ? STATE_NONE : STATE_PAGES;
    return op->state_bytes ? STATE_FIXED : STATE_NONE;
}

uint32_t model_cache_layer(const struct model_config *config, uint32_t layer)
{
    uint32_t from = layer;
    if (!model_reads_cache(config, layer)) return layer;
    while (from > 0 && (model_reads_cache(config, from) || !config->window[from] != !config->window[layer]))
        from--;
    return from;
}

uint32_t model_paged_layers(const struct model_config *config)
{
    const struct arch *arch = arch_of(config);
    uint32_t layers = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct math_part *part = arch->parts[arch->kind(config, l, UNIT_ATTENTION)];
        for (uint32_t i = 0; i < part->ops; i++) layers += state_of(&part->op[i]) == STATE_PAGES;
    }
    return layers;
}

/* Bytes of a running mean's state: as wide as the queries that it takes the mean of. */
static uint64_t running_mean_bytes(const struct model_config *config)
{
    return (uint64_t)config->heads * config->head_dim * sizeof(float);
}

uint64_t model_delta_matrices_at(const struct model_delta *delta)
{
    return round_up((uint64_t)(delta->conv - 1) * delta->channels * sizeof(float), STATE_ALIGN);
}

uint64_t model_delta_bytes(const struct model_delta *d)
{
    if (d->value_heads == 0) return 0;
    return model_delta_matrices_at(d) + (uint64_t)d->value_heads * d->key_dim * d->value_dim * sizeof(float);
}

bool model_is_input(const struct model *model, enum tensor_role role)
{
    enum tensor_role roles[MATH_ROLES_MAX];
    for (uint32_t i = 0; i < model->math.inputs.ops; i++)
        for (uint32_t k = math_roles(&model->math.inputs.op[i], roles); k-- > 0;)
            if (roles[k] == role) return true;
    return false;
}

static void build_state(const struct model_config *config, struct math_part *part, struct math_op *op)
{
    if (op->kind == MATH_RUNNING_MEAN) op->state_bytes = running_mean_bytes(config);
    if (op->kind == MATH_DELTA) {
        op->state_bytes = model_delta_bytes(&config->delta);
        op->head_order = config->delta.order;
    }
    op->state_at = part->state_bytes;
    part->state_bytes += round_up(op->state_bytes, STATE_ALIGN);
    if (state_of(op) != STATE_NONE) part->state = state_of(op);
}

static void build_heads(const struct model_config *config, struct math_op *op)
{
    const struct model_heads heads = model_heads_of(config, op->windowed);
    op->kv_heads = heads.kv_heads;
    op->head_dim = heads.head_dim;
    op->latent = config->latent.rank;
    if (config->rope[op->rope].dims != heads.head_dim) op->rope_dims = config->rope[op->rope].dims;
    if (op->score_scale == 0) op->score_scale = 1.0f / sqrtf((float)heads.head_dim);
}

/* A head's numbers that the weight multiplies, and those that turn and are left to attention. */
static void build_linear_heads(const struct model_config *config, struct math_op *op)
{
    const struct model_latent *latent = &config->latent;
    const bool to_latent = op->weight[0] == TENSOR_K_B;
    op->head_in = to_latent ? latent->nope + config->rope[0].dims : config->head_dim;
    op->head_out = to_latent ? config->head_dim : latent->value;
}

static void build_part(const struct model_config *config, const struct math_part *from, struct math_part *to)
{
    *to = *from;
    enum tensor_role routed = TENSOR_NONE; /* the norm of the router's input */
    to->ops = 0;
    to->read_part = 1;
    for (uint32_t i = 0; i < from->ops; i++) {
        if ((from->drafts && !config->drafts) || !exists(config, &from->op[i])) continue;
        to->op[to->ops] = from->op[i];
        to->experts |= from->op[i].kind == MATH_ROUTE;
        to->beside |= from->op[i].kind == MATH_LINEAR;
        to->attends |= from->op[i].kind == MATH_ATTENTION;
        struct math_op *op = &to->op[to->ops++];
        keep_existing(config, op);
        build_state(config, to, op);
        if (op->kind == MATH_ATTENTION) build_heads(config, op);
        if (op->kind == MATH_LINEAR_HEADS) build_linear_heads(config, op);
        if (op->kind == MATH_ADD_NORMED && op->norm == TENSOR_NONE) {
            op->growth = (float)config->q_growth;
            op->growth_context = config->rope[0].original_context;
        }
        if (op->kind == MATH_ROUTE) routed = op->norm;
        if (op->kind == MATH_EXPERTS_GLU) op->own_norm = op->norm != routed;
    }
    to->beside &= to->experts;
    if (to->experts && config->router.experts)
        to->read_part = (double)config->router.chosen / (double)config->router.experts;
}

void model_math_build(const struct model_config *config, struct model_math *math)
{
    const struct arch *arch = arch_of(config);
    *math = (struct model_math){.embed = *arch->embed, .head = *arch->head};
    while (arch->parts[math->parts]) {
        build_part(config, arch->parts[math->parts], &math->part[math->parts]);
        math->parts++;
    }
    if (arch->inputs && config->per_layer) build_part(config, arch->inputs, &math->inputs);
    if (arch->hidden_states) build_part(config, arch->hidden_states, &math->hidden_states);
    math->draft_head = math->head;
    math->draft_head.norm = math->draft_head.norm_bias = TENSOR_NONE;
    if (arch->fill) arch->fill(config, math);
}
