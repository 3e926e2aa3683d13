/* What a model costs. See analyse.h. Called by ledger.c and plan_cpu.c; pure. */
#include "daemon/planner/analyse.h"

#include <string.h>

#include "common/sampling.h"

#define WEIGHT_ALIGN 64

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static const struct model_tensor *find_or_null(const struct model *model, enum tensor_role role,
                                               int32_t layer)
{
    return role == TENSOR_NONE ? NULL : model_find(model, role, layer);
}

void analyse_layer(const struct model *model, uint32_t layer, struct analyse_layer *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < model->graph.layer_count; i++) {
        const struct model_op *op = &model->graph.layer[i];
        const struct model_tensor *weight = find_or_null(model, op->weight, (int32_t)layer);
        const struct model_tensor *bias = find_or_null(model, op->bias, (int32_t)layer);
        struct analyse_op *a = &out->op[out->op_count++];
        a->kind = op->kind;
        a->weight = op->weight;
        a->bytes = (weight ? weight->bytes : 0) + (bias ? bias->bytes : 0);
        if (op->kind == OP_LINEAR && weight) a->flops = 2 * weight->rows * weight->cols;
        out->bytes += a->bytes;
    }
}

void analyse_totals(const struct model *model, struct analyse_totals *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        out->region_bytes += round_up(t->bytes, WEIGHT_ALIGN);
        if (t->rows == 1) out->vector_bytes += round_up(t->cols * sizeof(float), WEIGHT_ALIGN);
        if (t->layer >= 0)
            out->layer_bytes += t->bytes;
        else if (t->role == TENSOR_EMBED)
            out->embed_bytes += t->bytes;
        else if (t->role == TENSOR_HEAD)
            out->head_bytes += t->bytes;
    }
    out->token_bytes = out->layer_bytes + (out->head_bytes ? out->head_bytes : out->embed_bytes);
}

uint64_t analyse_activation_bytes(const struct model_config *c, uint32_t step_tokens, uint32_t rows,
                                  uint32_t threads)
{
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    /* x, h, q, attention output, k, v, gate, up: one of each a token; inputs of linears are packed once more.
     */
    uint64_t token_floats = 3ull * c->hidden + 3 * q + 2 * kv + 3ull * c->intermediate;
    uint64_t widest = q > c->intermediate ? q : c->intermediate;
    uint64_t thread_bytes = (uint64_t)1 << 20; /* stacks and partial results */
    return (uint64_t)step_tokens * token_floats * sizeof(float) + 4 * widest * sizeof(float) * 64 +
           (uint64_t)rows * c->vocab * sizeof(float) + sampling_scratch_bytes(c->vocab) * threads +
           thread_bytes * threads;
}
