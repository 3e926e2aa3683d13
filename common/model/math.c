/* The operations that a model's parts consist of, in order. See model.h and unit.h.
 *
 * Called when a checkpoint has been read, and by code that asks which part of a layer a tensor belongs to. Constant
 * table; no state. */
#include "common/model/model.h"

/* The operations of a pre-norm decoder with gated MLP. Norms and biases that the configuration lacks become
 * TENSOR_NONE when the list is built. */
/* For an operation that is neither attention nor by a router. */
#define NO_SPECIAL_ROLES                                                                                     \
    .q_norm = TENSOR_NONE, .k_norm = TENSOR_NONE, .sinks = TENSOR_NONE, .router = TENSOR_NONE
static const struct model_math decoder_math = {
    .embed = {.kind = MATH_EMBED,
              .name = "embedding",
              .norm = TENSOR_NONE,
              NO_SPECIAL_ROLES,
              .weights = 1,
              .weight = {TENSOR_EMBED},
              .bias = {TENSOR_NONE},
              .out = {BUFFER_X}},
    .part[UNIT_ATTENTION] = {.ops = 3,
                             .read_part = 1,
                             .op = {{.kind = MATH_LINEAR,
                                     .name = "q k v",
                                     .in = BUFFER_X,
                                     .norm = TENSOR_ATTN_NORM,
                                     NO_SPECIAL_ROLES,
                                     .weights = 3,
                                     .weight = {TENSOR_Q, TENSOR_K, TENSOR_V},
                                     .bias = {TENSOR_Q_BIAS, TENSOR_K_BIAS, TENSOR_V_BIAS},
                                     .out = {BUFFER_Q, BUFFER_K, BUFFER_V}},
                                    {.kind = MATH_ATTENTION,
                                     .name = "attention",
                                     .in = BUFFER_Q,
                                     .norm = TENSOR_NONE,
                                     .q_norm = TENSOR_Q_NORM,
                                     .k_norm = TENSOR_K_NORM,
                                     .sinks = TENSOR_SINKS,
                                     .router = TENSOR_NONE,
                                     .out = {BUFFER_A}},
                                    {.kind = MATH_LINEAR,
                                     .name = "o",
                                     .in = BUFFER_A,
                                     .norm = TENSOR_NONE,
                                     NO_SPECIAL_ROLES,
                                     .weights = 1,
                                     .weight = {TENSOR_O},
                                     .bias = {TENSOR_O_BIAS},
                                     .out = {BUFFER_X},
                                     .accumulate = true}}},
    .part[UNIT_MLP] = {.ops = 2,
                       .read_part = 1,
                       .op = {{.kind = MATH_LINEAR,
                               .name = "gate up",
                               .in = BUFFER_X,
                               .norm = TENSOR_MLP_NORM,
                               NO_SPECIAL_ROLES,
                               .weights = 2,
                               .weight = {TENSOR_GATE, TENSOR_UP},
                               .bias = {TENSOR_GATE_BIAS, TENSOR_UP_BIAS},
                               .out = {BUFFER_GATE, BUFFER_UP},
                               .swiglu = true},
                              {.kind = MATH_LINEAR,
                               .name = "down",
                               .in = BUFFER_GATE,
                               .norm = TENSOR_NONE,
                               NO_SPECIAL_ROLES,
                               .weights = 1,
                               .weight = {TENSOR_DOWN},
                               .bias = {TENSOR_DOWN_BIAS},
                               .out = {BUFFER_X},
                               .accumulate = true}}},
    /* The choice and all gates read the same input, by the same norm, before anything is added to it. Choice, gates and
     * downs of experts stand together, as chains have them. */
    .part[MATH_PART_SPARSE] = {.ops = 6,
                               .read_part = 1, /* model_math_build */
                               .op = {{.kind = MATH_LINEAR,
                                       .name = "shared expert's gate up",
                                       .in = BUFFER_X,
                                       .norm = TENSOR_MLP_NORM,
                                       NO_SPECIAL_ROLES,
                                       .weights = 2,
                                       .weight = {TENSOR_SHARED_GATE, TENSOR_SHARED_UP},
                                       .bias = {TENSOR_NONE, TENSOR_NONE},
                                       .out = {BUFFER_SHARED, BUFFER_SHARED_UP},
                                       .swiglu = true},
                                      {.kind = MATH_WEIGH,
                                       .name = "shared expert's weight",
                                       .in = BUFFER_X,
                                       .norm = TENSOR_MLP_NORM,
                                       .q_norm = TENSOR_NONE,
                                       .k_norm = TENSOR_NONE,
                                       .sinks = TENSOR_NONE,
                                       .router = TENSOR_SHARE,
                                       .out = {BUFFER_SHARED}},
                                      {.kind = MATH_ROUTE,
                                       .name = "router",
                                       .in = BUFFER_X,
                                       .norm = TENSOR_MLP_NORM,
                                       .q_norm = TENSOR_NONE,
                                       .k_norm = TENSOR_NONE,
                                       .sinks = TENSOR_NONE,
                                       .router = TENSOR_ROUTER,
                                       .bias = {TENSOR_ROUTER_BIAS, TENSOR_CHOICE_BIAS},
                                       .out = {BUFFER_CHOICE}},
                                      {.kind = MATH_EXPERTS_GLU,
                                       .name = "experts' gate up",
                                       .in = BUFFER_X,
                                       .norm = TENSOR_MLP_NORM,
                                       NO_SPECIAL_ROLES,
                                       .weights = 2,
                                       .weight = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS},
                                       .bias = {TENSOR_GATE_EXPERTS_BIAS, TENSOR_UP_EXPERTS_BIAS},
                                       .out = {BUFFER_GATE, BUFFER_UP},
                                       .swiglu = true},
                                      {.kind = MATH_EXPERTS_DOWN,
                                       .name = "experts' down",
                                       .in = BUFFER_GATE,
                                       .norm = TENSOR_NONE,
                                       NO_SPECIAL_ROLES,
                                       .weights = 1,
                                       .weight = {TENSOR_DOWN_EXPERTS},
                                       .bias = {TENSOR_DOWN_EXPERTS_BIAS},
                                       .out = {BUFFER_X},
                                       .accumulate = true},
                                      {.kind = MATH_LINEAR,
                                       .name = "shared expert's down",
                                       .in = BUFFER_SHARED,
                                       .norm = TENSOR_NONE,
                                       NO_SPECIAL_ROLES,
                                       .weights = 1,
                                       .weight = {TENSOR_SHARED_DOWN},
                                       .bias = {TENSOR_NONE},
                                       .out = {BUFFER_X},
                                       .accumulate = true}}},
    .head = {.kind = MATH_LINEAR,
             .name = "head",
             .in = BUFFER_X,
             .norm = TENSOR_FINAL_NORM,
             NO_SPECIAL_ROLES,
             .weights = 1,
             .weight = {TENSOR_HEAD},
             .bias = {TENSOR_NONE},
             .out = {BUFFER_LOGITS}},
};

/* Sets what the configuration has not to TENSOR_NONE. */
static void keep_existing(const struct model_config *config, struct math_op *op)
{
    enum tensor_role *optional[] = {&op->q_norm,  &op->k_norm,  &op->sinks,
                                    &op->bias[0], &op->bias[1], &op->bias[2]};
    uint64_t rows, cols;
    for (uint32_t i = 0; i < 3 + math_biases(op); i++)
        if (*optional[i] != TENSOR_NONE && !model_expected_shape(config, *optional[i], &rows, &cols))
            *optional[i] = TENSOR_NONE;
}

/* Whether the configuration has what the operation is about: the shared expert's may have none. */
static bool exists(const struct model_config *config, const struct math_op *op)
{
    const enum tensor_role role = op->kind == MATH_WEIGH ? op->router : op->weight[0];
    uint64_t rows, cols;
    if (op->in != BUFFER_SHARED && op->out[0] != BUFFER_SHARED) return true;
    return model_expected_shape(config, role, &rows, &cols);
}

void model_math_build(const struct model_config *config, struct model_math *math)
{
    *math = decoder_math;
    for (int p = 0; p < MATH_PARTS; p++) {
        struct math_part *part = &math->part[p];
        part->ops = 0;
        for (uint32_t i = 0; i < decoder_math.part[p].ops; i++)
            if (exists(config, &decoder_math.part[p].op[i]))
                part->op[part->ops++] = decoder_math.part[p].op[i];
        for (uint32_t i = 0; i < part->ops; i++) keep_existing(config, &part->op[i]);
    }
    if (config->router.experts)
        math->part[MATH_PART_SPARSE].read_part =
            (double)config->router.chosen / (double)config->router.experts;
}

/* By whose operations it is used. */
enum unit_part unit_part_of_role(enum tensor_role role)
{
    for (int p = 0; p < MATH_PARTS; p++)
        for (uint32_t i = 0; i < decoder_math.part[p].ops; i++) {
            const struct math_op *op = &decoder_math.part[p].op[i];
            const enum unit_part part = p == MATH_PART_SPARSE ? UNIT_MLP : (enum unit_part)p;
            if (op->norm == role || op->q_norm == role || op->k_norm == role || op->router == role ||
                op->sinks == role)
                return part;
            for (uint32_t w = 0; w < op->weights; w++)
                if (op->weight[w] == role) return part;
            for (uint32_t w = 0; w < math_biases(op); w++)
                if (op->bias[w] == role) return part;
        }
    return UNIT_PARTS;
}
