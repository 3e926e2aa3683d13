/* What a model costs: bytes by layer and operation, KV bytes by token, activation bytes by step.
 *
 * Called by ledger.c and planner/plan_cpu.c. Pure functions over a checked model; no weights are read. */
#ifndef HELM_DAEMON_PLANNER_ANALYSE_H
#define HELM_DAEMON_PLANNER_ANALYSE_H

#include <stdint.h>

#include "common/err.h"
#include "common/model/model.h"

/* Weights of one operation of a layer, as stored. */
struct analyse_op {
    enum model_op_kind kind;
    enum tensor_role weight;
    uint64_t bytes; /* weight and bias */
    uint64_t flops; /* for one token, attention's growth with the context not counted */
};

struct analyse_layer {
    struct analyse_op op[MODEL_OPS_MAX];
    uint32_t op_count;
    uint64_t bytes;
};

void analyse_layer(const struct model *model, uint32_t layer, struct analyse_layer *out);

struct analyse_totals {
    uint64_t layer_bytes;             /* all layers */
    uint64_t embed_bytes, head_bytes; /* head 0 when tied */
    uint64_t region_bytes;            /* in the arena's weights region: every tensor on a 64-byte boundary */
    uint64_t vector_bytes;            /* norms and biases as fp32, private to the worker */
    uint64_t token_bytes;             /* read from memory for one decoded token: layers and head */
};
void analyse_totals(const struct model *model, struct analyse_totals *out);

/* A worker's private buffers for a step of `step_tokens` tokens that samples `rows` of them: an estimate that
 * errs on the large side. */
uint64_t analyse_activation_bytes(const struct model_config *config, uint32_t step_tokens, uint32_t rows,
                                  uint32_t threads);

#endif
