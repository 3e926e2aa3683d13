/* Units: what a plan places. Half a layer each, numbered through the model; and the model's arithmetic as the
 * operations of each kind of unit.
 *
 * Between two units only the residual stream passes, so any cut there costs one hand-over. This file is the
 * only place that knows how units are numbered and which tensors and operations each kind has: planner,
 * loaders and lowering ask it. A new kind of unit is a part here, a row in arch.c and its operations. Pure
 * data and functions. */
#ifndef HELM_COMMON_MODEL_UNIT_H
#define HELM_COMMON_MODEL_UNIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* What a tensor is for. The names in files are derived from these by the architecture's table (arch.c). */
enum tensor_role {
    TENSOR_EMBED,      /* [vocab, hidden] */
    TENSOR_FINAL_NORM, /* [hidden] */
    TENSOR_HEAD,       /* [vocab, hidden]; absent when tied */
    TENSOR_ATTN_NORM,  /* [hidden]; from here on: one a layer */
    TENSOR_Q,          /* [heads * head_dim, hidden] */
    TENSOR_K,          /* [kv_heads * head_dim, hidden] */
    TENSOR_V,
    TENSOR_O, /* [hidden, heads * head_dim] */
    TENSOR_Q_BIAS,
    TENSOR_K_BIAS,
    TENSOR_V_BIAS,
    TENSOR_O_BIAS,
    TENSOR_Q_NORM,
    TENSOR_K_NORM,   /* [head_dim] */
    TENSOR_SINKS,    /* [heads]: a score that joins each head's softmax, of no position */
    TENSOR_MLP_NORM, /* [hidden] */
    TENSOR_GATE,
    TENSOR_UP,   /* [intermediate, hidden] */
    TENSOR_DOWN, /* [hidden, intermediate] */
    TENSOR_GATE_BIAS,
    TENSOR_UP_BIAS,
    TENSOR_DOWN_BIAS,
    TENSOR_ROUTER,       /* [experts, hidden]; from here on: of sparse layers */
    TENSOR_ROUTER_BIAS,  /* [experts] */
    TENSOR_GATE_EXPERTS, /* [experts * expert_intermediate, hidden], expert by expert */
    TENSOR_UP_EXPERTS,
    TENSOR_DOWN_EXPERTS,      /* [experts * hidden, expert_intermediate] */
    TENSOR_GATE_EXPERTS_BIAS, /* [experts, expert_intermediate] */
    TENSOR_UP_EXPERTS_BIAS,
    TENSOR_DOWN_EXPERTS_BIAS, /* [experts, hidden] */
    TENSOR_CHOICE_BIAS,       /* [experts]: added to a router's scores for the choice alone */
    TENSOR_SHARED_GATE,       /* [shared_intermediate, hidden]; of the expert that every token has, too */
    TENSOR_SHARED_UP,
    TENSOR_SHARED_DOWN, /* [hidden, shared_intermediate] */
    TENSOR_SHARE, /* [hidden]: the sigmoid of its product with a token's input is that expert's weight */
    TENSOR_ROLE_COUNT,
    TENSOR_NONE = TENSOR_ROLE_COUNT
};

/* ---- numbering ---- */

enum unit_part { UNIT_ATTENTION, UNIT_MLP, UNIT_PARTS };
static inline const char *unit_part_name(enum unit_part part)
{
    static const char *const names[UNIT_PARTS] = {[UNIT_ATTENTION] = "attention", [UNIT_MLP] = "MLP"};
    return (unsigned)part < UNIT_PARTS ? names[part] : "unknown";
}

static inline uint32_t unit_count(uint32_t layers)
{
    return layers * UNIT_PARTS;
}
static inline uint32_t unit_of(uint32_t layer, enum unit_part part)
{
    return layer * UNIT_PARTS + (uint32_t)part;
}
static inline uint32_t unit_layer(uint32_t unit)
{
    return unit / UNIT_PARTS;
}
static inline enum unit_part unit_part(uint32_t unit)
{
    return (enum unit_part)(unit % UNIT_PARTS);
}
/* The part that a layer's tensor belongs to. */
enum unit_part unit_part_of_role(enum tensor_role role);

/* ---- operations ---- */

/* Buffers are logical, per token, fp32. */
enum model_buffer {
    BUFFER_NONE,
    BUFFER_X, /* residual stream [hidden] */
    BUFFER_H, /* normalised input [hidden] */
    BUFFER_Q, /* [heads * head_dim] */
    BUFFER_K, /* [kv_heads * head_dim] */
    BUFFER_V,
    BUFFER_A,         /* attention output [heads * head_dim] */
    BUFFER_SHARED,    /* of the shared expert what BUFFER_GATE is of others [shared_intermediate] */
    BUFFER_SHARED_UP, /* likewise */
    BUFFER_GATE,      /* [intermediate]; of experts [chosen][expert_intermediate] */
    BUFFER_UP,
    BUFFER_ROUTER, /* logits of the experts [experts] */
    BUFFER_CHOICE, /* ids of the chosen ones, then their weights: [2][chosen] */
    BUFFER_DOWN,   /* what each chosen one adds, [chosen][hidden]; of several tokens */
    BUFFER_LOGITS, /* [vocab] */
};

enum math_kind {
    MATH_EMBED, /* out = embedding row of the token */
    MATH_LINEAR, /* of each weight: out (+)= weight * input + bias; then, with swiglu, out[0] = silu(out[0]) * out[1] */
    MATH_ATTENTION, /* norm of each head of q and k, RoPE, append k and v to the cache, causal GQA attention of q */
    MATH_ROUTE, /* out = the experts chosen by router * input + bias[0], with bias[1] for the choice, and their weights
                   (router.h) */
    MATH_EXPERTS_GLU, /* of each chosen expert: out = glu(its gate * input, its up * input) */
    MATH_EXPERTS_DOWN, /* out += the sum, in the order of choice, of weight * (the expert's down * its input) */
    MATH_WEIGH,        /* out *= sigmoid of (router * input) */
};
#define MATH_WEIGHTS_MAX 3
struct math_op {
    enum math_kind kind;
    const char *name; /* "q k v" */
    enum model_buffer in;
    enum tensor_role norm; /* LINEAR: the input is rmsnorm(in) * norm; TENSOR_NONE: it is `in` */
    uint32_t weights;
    enum tensor_role weight[MATH_WEIGHTS_MAX], bias[MATH_WEIGHTS_MAX]; /* bias TENSOR_NONE: none */
    enum model_buffer out[MATH_WEIGHTS_MAX];
    bool accumulate;                 /* adds to out: the residual */
    bool swiglu;                     /* weights are gate and up, whose rows are used in pairs */
    enum tensor_role q_norm, k_norm; /* ATTENTION: of each head; TENSOR_NONE: none */
    enum tensor_role sinks;          /* ATTENTION: TENSOR_NONE: none */
    enum tensor_role router; /* ROUTE, WEIGH: kept beside the matrices, as vectors are; TENSOR_NONE: else */
};
/* How many of `bias` mean something. A router, which is none of the weights, has two: of its product, of its choice. */
static inline uint32_t math_biases(const struct math_op *op)
{
    return op->kind == MATH_ROUTE ? 2 : op->weights;
}
#define MATH_OPS_MAX 6
/* One kind of unit: its operations in order. */
struct math_part {
    struct math_op op[MATH_OPS_MAX];
    uint32_t ops;
    double read_part; /* of its experts' bytes, what one token reads; 1 where it has none */
};
/* The kinds of parts: those that every model has, by enum unit_part; and what a sparse layer's MLP is instead. */
enum { MATH_PART_SPARSE = UNIT_PARTS, MATH_PARTS };
/* The model: embed, then every layer's parts in order, then head. */
struct model_math {
    struct math_op embed, head;
    struct math_part part[MATH_PARTS];
};

/* ---- the table ---- */

struct model_tensor;
struct model_unit {
    enum unit_part part;
    uint32_t layer;
    /* Matrices in the order of use, then vectors (norms, biases). */
    const struct model_tensor *const *tensor;
    uint32_t tensor_count, matrix_count;
    uint64_t bytes; /* of all of them, as stored */
};
struct model;
/* Which of math.part[] a unit of the model is, and its operations. */
uint32_t model_unit_kind(const struct model *model, uint32_t unit);
const struct math_part *model_unit_math(const struct model *model, uint32_t unit);
/* Fills in model->unit from its tensors and operations; called once, when they are read. */
HELM_MUST_CHECK int model_units_build(struct model *model, struct helm_err *err);

#endif
