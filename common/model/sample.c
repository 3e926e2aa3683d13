/* A model of some layers of another one. See sample.h. */
#include "common/model/sample.h"

#include <stdlib.h>
#include <string.h>

#include "common/model/checkpoint.h"

/* A list by layer, made one by the new layers. NULL stays NULL. */
static int gather(void *list, size_t size, const uint32_t *layer, uint32_t count, struct helm_err *err)
{
    char *from, *to = calloc(count, size);
    memcpy(&from, list, sizeof from);
    if (!from || !to) {
        free(to);
        return from ? helm_fail(err, HELM_E_NOMEM, "no memory for a list of %u layers", count) : 0;
    }
    for (uint32_t i = 0; i < count; i++) memcpy(to + i * size, from + layer[i] * size, size);
    free(from);
    memcpy(list, &to, sizeof to);
    return 0;
}

static void put(struct model *model, const struct model_tensor *from, int32_t layer)
{
    struct model_tensor *t = &model->tensors[model->tensor_count++];
    *t = *from;
    t->layer = layer;
    /* a tensor with a part for each layer has as many */
    if (layer < 0 && model_expected_shape(&model->config, t->role, -1, &t->rows, &t->cols))
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    else
        t->rows = from->rows, t->cols = from->cols;
    t->shard = 0;
    t->offset = model->weight_bytes;
    t->piece = t->piece_count = 0;
    model->weight_bytes += t->bytes;
    model->parameter_count += t->rows * t->cols;
    model->by_role[checkpoint_slot(&model->config, t->role, layer)] = model->tensor_count;
}

/* The tensors of no layer, then those of each layer. */
static int gather_tensors(struct model *model, const struct model *from, const uint32_t *layer,
                          uint32_t count, struct helm_err *err)
{
    uint64_t capacity = from->tensor_count;
    for (uint32_t t = 0; t < from->tensor_count; t++)
        for (uint32_t i = 0; i < count; i++) capacity += from->tensors[t].layer == (int32_t)layer[i];
    model->tensors = calloc(capacity, sizeof *model->tensors);
    model->by_role = calloc((size_t)TENSOR_ROLE_COUNT * (count + 1u), sizeof *model->by_role);
    if (!model->tensors || !model->by_role)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu tensors", (unsigned long long)capacity);
    for (uint32_t t = 0; t < from->tensor_count; t++)
        if (from->tensors[t].layer < 0) put(model, &from->tensors[t], -1);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t t = 0; t < from->tensor_count; t++)
            if (from->tensors[t].layer == (int32_t)layer[i]) put(model, &from->tensors[t], (int32_t)i);
    return 0;
}

int model_sample(struct model *model, const uint32_t *layer, uint32_t count, struct helm_err *err)
{
    struct model_config *c = &model->config;
    struct model from = *model; /* whose lists of tensors are let go at the end */
    int rc = count ? 0 : helm_fail(err, HELM_E_LIMIT, "a model of no layers");
    for (uint32_t i = 0; i < count && !rc; i++)
        if (layer[i] >= model_answer_layers(c))
            rc = helm_fail(err, HELM_E_LIMIT, "there is no layer %u of %u", layer[i], model_answer_layers(c));
    if (rc) {
        model_free(model);
        return rc;
    }
    model->tensors = NULL, model->by_role = NULL, model->unit = NULL, model->unit_tensor = NULL;
    model->tensor_count = model->piece_count = model->shard_count = 0;
    model->weight_bytes = model->parameter_count = 0;
    model->laid = NULL;
    free(model->pieces), free(model->shards);
    model->pieces = NULL, model->shards = NULL;
    rc = gather(&c->window, sizeof *c->window, layer, count, err);
    if (!rc) rc = gather(&c->recurrent, sizeof *c->recurrent, layer, count, err);
    if (!rc) rc = gather(&c->sparse, sizeof *c->sparse, layer, count, err);
    if (!rc) rc = gather(&c->reads, sizeof *c->reads, layer, count, err);
    if (!rc) rc = gather(&c->widths, sizeof *c->widths, layer, count, err);
    c->layers = count;
    c->drafts = 0;
    if (!rc) rc = gather_tensors(model, &from, layer, count, err);
    if (!rc) model_math_build(c, &model->math);
    if (!rc) rc = model_units_build(model, err);
    free(from.tensors);
    free(from.by_role);
    free(from.unit);
    free(from.unit_tensor);
    if (rc) model_free(model);
    return rc;
}

float model_sample_value(enum tensor_role role, uint32_t random)
{
    const float small = 0x1p-4f;
    switch (role) {
    case TENSOR_ROUTER:
        return (float)(int32_t)random * 0x1p-36f;
    case TENSOR_DELTA_DECAY: /* above 0 states would grow beyond all numbers */
        return -small;
    case TENSOR_LAYER_SCALE: /* of the embedding, too */
        return 1;
    default:
        return small;
    }
}
