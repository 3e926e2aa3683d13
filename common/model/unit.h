/* Units: what a plan places. Half a layer each, numbered through the model; and the model's arithmetic as the
 * operations of each kind of unit.
 *
 * Between two units only the residual stream passes, so any cut there costs one hand-over. This file is the
 * only place that knows how units are numbered and which tensors and operations each kind has: planner,
 * loaders and lowering ask it. A new kind of unit is a part here, a row in arch.c and its operations. Pure
 * data and functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* The role of a tensor. Names in files: the table of roles (role.c) and the architecture's own (arch/). */
enum tensor_role {
    TENSOR_NONE,       /* 0, so that tables name only what is there */
    TENSOR_EMBED,      /* [vocab, hidden] */
    TENSOR_POSITIONS,  /* [positions, hidden]: learned, added to the embedding */
    TENSOR_FINAL_NORM, /* [hidden] */
    TENSOR_FINAL_NORM_BIAS,
    TENSOR_HEAD,      /* [vocab, hidden]; absent when tied */
    TENSOR_ATTN_NORM, /* [hidden]; from here on: one a layer */
    TENSOR_ATTN_NORM_BIAS,
    TENSOR_ATTN_OUT_NORM, /* [hidden]: of attention's output, before it is added */
    TENSOR_Q_GATE,        /* [heads * head_dim, hidden]: of attention's output */
    TENSOR_Q, /* [heads * head_dim, hidden]; with latent attention [heads * (nope + rope), hidden] */
    TENSOR_K, /* [kv_heads * head_dim, hidden] */
    TENSOR_V,
    TENSOR_O, /* [hidden, heads * head_dim] */
    TENSOR_Q_BIAS,
    TENSOR_K_BIAS,
    TENSOR_V_BIAS,
    TENSOR_O_BIAS,
    TENSOR_Q_NORM,
    TENSOR_K_NORM, /* [head_dim] */
    TENSOR_SINKS,  /* [heads]: a score that joins each head's softmax, of no position */
    /* of latent attention (model_latent), beside K, whose row is the latent and the shared rotated key, and
     * O */
    TENSOR_Q_A,      /* [q_rank, hidden] */
    TENSOR_Q_A_NORM, /* [q_rank] */
    TENSOR_Q_B,      /* [heads * (nope + rope), q_rank] */
    TENSOR_KV_NORM,  /* [rank]: of the latent */
    TENSOR_K_B,      /* [heads * rank, nope]: head by head */
    TENSOR_V_B,      /* [heads * value, rank] */
    /* of gated delta nets (model_delta) */
    TENSOR_DELTA_QKV,       /* [channels, hidden]: q and k of all key heads, v of all value heads */
    TENSOR_DELTA_Z,         /* [value_heads * value_dim, hidden]: the gate of the output */
    TENSOR_DELTA_ALPHA,     /* [value_heads, hidden]: what decays, */
    TENSOR_DELTA_BETA,      /* and how much is learned */
    TENSOR_DELTA_CONV,      /* [channels, conv] */
    TENSOR_DELTA_DECAY,     /* [value_heads] */
    TENSOR_DELTA_TIME_BIAS, /* [value_heads]: added to alpha */
    TENSOR_DELTA_NORM,      /* [value_dim] */
    TENSOR_DELTA_OUT,       /* [hidden, value_heads * value_dim] */
    TENSOR_MLP_NORM,        /* [hidden] */
    TENSOR_MLP_NORM_BIAS,
    TENSOR_MLP_OUT_NORM, /* [hidden]: of the MLP's output */
    TENSOR_LAYER_SCALE,  /* [1]: multiplies what the layer leaves */
    TENSOR_GATE,
    TENSOR_UP,   /* [intermediate, hidden] */
    TENSOR_DOWN, /* [hidden, intermediate] */
    TENSOR_GATE_BIAS,
    TENSOR_UP_BIAS,
    TENSOR_DOWN_BIAS,
    /* of a dense MLP that two processors compute (share.h): its first rows; the roles above are the
     * others' */
    TENSOR_OWN_GATE,
    TENSOR_OWN_UP,       /* [shared_intermediate, hidden] */
    TENSOR_OWN_DOWN,     /* [hidden, shared_intermediate] */
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
    /* of experts beside a dense MLP */
    TENSOR_ROUTER_NORM,      /* [hidden]: of the router's input */
    TENSOR_EXPERT_SCALE,     /* [experts]: multiplies the weights of those chosen */
    TENSOR_EXPERTS_NORM,     /* [hidden]: of the experts' input */
    TENSOR_EXPERTS_OUT_NORM, /* [hidden]: of the sum of the experts, */
    TENSOR_DENSE_OUT_NORM,   /* and of the dense MLP's output, before these are added to each other */
    /* of per-layer embeddings (model_config.per_layer): of the model, then of each layer */
    TENSOR_PER_LAYER_EMBED,    /* [vocab, layers * per_layer]: a row a token */
    TENSOR_PER_LAYER_PROJ,     /* [layers * per_layer, hidden]: of the embedding */
    TENSOR_PER_LAYER_NORM,     /* [per_layer]: of each layer's part of that product */
    TENSOR_PER_LAYER_GATE,     /* [per_layer, hidden] */
    TENSOR_PER_LAYER_OUT,      /* [hidden, per_layer] */
    TENSOR_PER_LAYER_OUT_NORM, /* [hidden]: of that, before it is added */
    /* of a layer that makes drafts: of the next token's embedding, of the hidden state, of both together */
    TENSOR_DRAFT_EMBED_NORM,  /* [hidden] */
    TENSOR_DRAFT_HIDDEN_NORM, /* [hidden] */
    TENSOR_DRAFT_PROJ,        /* [hidden, 2 * hidden] */
    TENSOR_DRAFT_OUT_NORM,    /* [hidden]: of what the layer leaves, before the head */
    TENSOR_ROLE_COUNT
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
    BUFFER_A,       /* attention output [heads * head_dim] */
    BUFFER_Q_LOW,   /* latent attention: Q_A's product [q_rank], */
    BUFFER_Q_HEADS, /* q before it meets the latent [heads * (nope + rope)], */
    BUFFER_VALUES,  /* the output in heads' own numbers [heads * value] */
    BUFFER_DELTA,   /* output of a gated delta net [value_heads * value_dim] */
    /* BUFFER_GATE's like for the shared expert, or for a shared MLP's first rows [shared_intermediate] */
    BUFFER_SHARED,
    BUFFER_SHARED_UP, /* likewise */
    BUFFER_PAIR,      /* of drafts: the normed embedding, then the normed hidden state [2 * hidden] */
    BUFFER_GATE,      /* [intermediate]; of experts [chosen][expert_intermediate] */
    BUFFER_UP,
    BUFFER_ROUTER, /* logits of the experts [experts] */
    BUFFER_CHOICE, /* ids of the chosen ones, then their weights: [2][chosen] */
    BUFFER_DOWN,   /* the addend of each chosen one, [chosen][hidden]; of several tokens */
    BUFFER_OUT,    /* a half's output that is normed before it is added; of drafts the next token's embedding
                      [hidden] */
    BUFFER_SUM,    /* the sum of the experts, where it is normed by itself [hidden] */
    BUFFER_Q_GATE, /* [heads * head_dim] */
    BUFFER_DELTA_QKV, /* [channels] */
    BUFFER_DELTA_Z,   /* [value_heads * value_dim] */
    BUFFER_DELTA_ALPHA,
    BUFFER_DELTA_BETA, /* [value_heads] */
    BUFFER_PER_LAYER,  /* [layers][per_layer]: what per-layer embeddings give each layer, for all of a step */
    BUFFER_LOGITS,     /* [vocab] */
};

enum math_kind {
    MATH_EMBED,  /* out = embedding row of the token */
    MATH_LINEAR, /* of each weight: out = weight * input + bias; gated: out[0] = activation(out[0]) * out[1]
                  */
    MATH_LINEAR_HEADS, /* of each head: out = its rows of the weight * the first numbers of its input; numbers
                          beyond these follow the product, as far as the output has room for them */
    MATH_ATTENTION, /* norm of each head of q and k, RoPE, append k and v to the cache, causal GQA attention
                       of q */
    MATH_ROUTE,     /* out = the experts chosen by router * input + bias[0], with bias[1] for the choice, and
                       their weights (router.h) */
    MATH_EXPERTS_GLU,  /* of each chosen expert: out = activation(its gate * input) * (its up * input) */
    MATH_EXPERTS_DOWN, /* out = the sum, in the order of choice, of weight * (the expert's down * its input);
                          or is added to out */
    MATH_WEIGH,        /* out *= sigmoid of (router * input) */
    MATH_ADD_NORMED,   /* out += norm of input, or of the sum of two normed inputs; not residual: in place */
    MATH_JOIN,         /* out = norm of `other` by other_norm, then norm of input by in_norm */
    MATH_RUNNING_MEAN, /* state += input; out = state / (position + 1): the sum of a sequence's inputs is its
                          state */
    MATH_PER_LAYER,    /* of each layer: out = (norm of in_scale * input + table_scale * the token's row of
                          weight) * out_scale */
    MATH_DELTA, /* the short convolution of q, k and v, then the gated delta rule of each v head, whose output
                   is normed and gated by z (common/cpu/kernels/delta.h); state: the last columns, and a
                   matrix of each v head */
    MATH_KINDS
};
/* State that a layer keeps of a sequence from step to step (docs/state.md). */
enum state_kind {
    STATE_NONE,
    STATE_PAGES,  /* K and V of each position: common/shared/kv_layout.h */
    STATE_WINDOW, /* of the last positions alone */
    STATE_FIXED,  /* a record of one size at every position: common/shared/state_layout.h */
    STATE_KINDS
};
const char *state_kind_name(enum state_kind kind);
enum norm_kind {
    NORM_RMS,          /* x / sqrt(mean(x^2) + eps) * w */
    NORM_RMS_ONE_PLUS, /* the same times 1 + w */
    NORM_LAYER,        /* (x - mean) / sqrt(variance + eps) * w + bias */
    NORM_KINDS
};
enum activation {
    ACTIVATION_NONE,
    ACTIVATION_SILU,
    ACTIVATION_CLAMPED, /* gate to at most 7, up to within 7; g * sigmoid(1.702 g) * (u + 1) */
    ACTIVATION_GELU_TANH,
    ACTIVATION_RELU,
    ACTIVATION_RELU_SQUARED,
    ACTIVATIONS
};
/* Which k head a v head has: v heads of one k head stand together (h / ratio), or the k heads take turns (h
 * mod k heads). */
enum head_order { HEADS_TOGETHER, HEADS_IN_TURN };
#define MATH_WEIGHTS_MAX 4
/* An operation is what its fields say: each is one thing, and 0 is "not there". Tables name what is there. */
struct math_op {
    enum math_kind kind;
    const char *name; /* "q k v" */
    enum model_buffer in;
    /* The norm of the input; its kind; its bias (NORM_LAYER) */
    enum tensor_role norm, norm_bias;
    enum norm_kind norm_kind;
    uint32_t weights;
    enum tensor_role weight[MATH_WEIGHTS_MAX], bias[MATH_WEIGHTS_MAX];
    enum model_buffer out[MATH_WEIGHTS_MAX];
    enum activation activation; /* of out[0] */
    bool gated;                 /* weights are gate and up, whose rows are used in pairs */
    bool residual;              /* adds to out */
    float in_scale, out_scale;  /* multiply the input, the output before it is added; 0: 1 */
    float table_scale;          /* PER_LAYER: of rows */
    enum model_buffer times;    /* LINEAR: its layer's part of this multiplies what the activation gives */
    float soft_cap;             /* out = cap * tanh(out / cap); 0: none */
    /* ADD_NORMED: a vector of one number, which multiplies out after that. Its input is the norm of `in` by
     * in_norm and that of `other` by other_norm, added; without `other` it is `in` itself */
    enum tensor_role out_factor, in_norm, other_norm;
    enum model_buffer other;
    /* and, in place alone: times 1 + growth * log(1 + floor(position / growth_context)); 0: as it is; filled
     * in */
    float growth;
    uint32_t growth_context;
    /* ATTENTION */
    enum tensor_role q_norm, k_norm; /* of each head */
    bool v_normed;                   /* each head of v has an RMS norm without a weight */
    bool v_is_k;                     /* v is k before its norm */
    enum tensor_role sinks;
    uint32_t rope;               /* which of the configuration's tables turns q and k */
    uint32_t rope_dims;          /* how many of a head's numbers turn; 0: all; filled in */
    bool no_rope;                /* none does */
    bool windowed;               /* of layers with a window, whose heads may be of another number and size */
    uint32_t kv_heads, head_dim; /* filled in */
    float score_scale;           /* of q * k; 0: 1 / sqrt(head_dim) */
    enum model_buffer output_gate; /* its sigmoid multiplies the output */
    bool other_cache;              /* k and v are those of another layer (model_cache_layer) */
    /* Values are the first so many numbers of keys, which k's norm is of; numbers from there on turn. 0: v
     * has its own, and the first numbers turn; filled in */
    uint32_t latent;
    /* LINEAR_HEADS: numbers of a head in the input, in the output; filled in */
    uint32_t head_in, head_out;
    /* DELTA: vectors, of all heads; in the order of the file */
    enum tensor_role conv, decay, time_bias, head_norm;
    enum head_order head_order;
    /* ROUTE, WEIGH: kept beside the matrices, as vectors are */
    enum tensor_role router;
    enum tensor_role expert_scale; /* ROUTE: multiplies the weights of the chosen experts */
    bool own_norm;                 /* EXPERTS_GLU: its norm is not its router's; filled in */
    /* EMBED: rows of positions, which are added; the row of position 0 */
    enum tensor_role positions;
    uint32_t position_first;
    /* RUNNING_MEAN, DELTA: bytes of its state, and where they lie in the layer's record; filled in */
    uint64_t state_bytes, state_at;
};
/* How many of `bias` mean something. A router, which is none of the weights, has two: of its product, of its
 * choice. */
static inline uint32_t math_biases(const struct math_op *op)
{
    return op->kind == MATH_ROUTE ? 2 : op->weights;
}
/* The factor of a position's numbers. */
float math_growth(float growth, uint32_t context, uint32_t position);
/* The tensors that an operation names, TENSOR_NONE left out: their number. */
#define MATH_ROLES_MAX (2 * MATH_WEIGHTS_MAX + 15)
uint32_t math_roles(const struct math_op *op, enum tensor_role roles[MATH_ROLES_MAX]);

#define STATE_ALIGN  64 /* of each operation's part of a record */
#define MATH_OPS_MAX 9
/* One kind of unit: its operations in order. */
struct math_part {
    const char *name; /* "sparse MLP" */
    enum unit_part part;
    struct math_op op[MATH_OPS_MAX];
    uint32_t ops;
    bool drafts;  /* of layers that make drafts (model_config.drafts) */
    bool experts; /* filled in: it has a router, */
    bool beside;  /* and matrices that are no expert's */
    bool attends; /* filled in: to pages or windows, of its own or of another layer's */
    /* Filled in from its operations: what it keeps of a sequence. Bytes of the record, of STATE_FIXED; else
     * 0 */
    enum state_kind state;
    uint64_t state_bytes;
    double read_part; /* filled in: of its experts' bytes, what one token reads; 1 where it has none */
};
#define MATH_PARTS_MAX 9 /* kinds of units of one architecture */
/* The numbers of kinds in architectures that have these; others follow. Layers that make drafts have kinds of
 * their own: MATH_PART_DRAFTS and one of these three. */
enum { MATH_PART_ATTENTION, MATH_PART_DENSE, MATH_PART_SPARSE, MATH_PART_DRAFTS };
/* The model: embed, then every layer's parts in order, then head. */
struct model_math {
    struct math_op embed, head;
    struct math_part part[MATH_PARTS_MAX];
    uint32_t parts;
    /* Before any layer: what each worker that computes MLP halves makes of the step's tokens, from x as embed
     * leaves it. No ops: nothing */
    struct math_part inputs;
    /* Drafts: what makes of x, after the last of the answer's layers, the hidden states that these begin
     * with; no ops: it is them. The layers that make drafts follow, then this head, without a norm of its
     * own: the layers' last operation is the norm. */
    struct math_part hidden_states;
    struct math_op draft_head;
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
    uint32_t kind;  /* which of math.part[] */
};
struct model;
/* Which of math.part[] a unit of the model is, and its operations. */
uint32_t model_unit_kind(const struct model *model, uint32_t unit);
const struct math_part *model_unit_math(const struct model *model, uint32_t unit);
/* Fills in model->unit from its tensors and operations; called once, when they are read. */
HELM_MUST_CHECK int model_units_build(struct model *model, struct helm_err *err);
