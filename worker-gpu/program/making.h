/* Inside lowering: what math.c (linears, ends, the walk) and attention.c share of making entries.
 *
 * For each kind of operation there is one function, make_..., that fills in its arguments; math.c's table
 * finds it. */
#pragma once

#include "worker-gpu/program/lower.h"

/* The context in which an operation is made. */
struct making {
    const struct lower_at *at;
    enum op_kind kind;
    const struct piece *piece; /* LINEAR */
    uint32_t sub;              /* GPU_SUB_ALL in the decode tiers */
    enum dtype normed;         /* of the piece before: what a chunk's normalised input is left in */
    uint32_t bias;             /* ADD_BIAS: which of the operation's */
    float *x_out;              /* where the residual stream goes */
};

static inline enum op_tier making_tier(const struct lowering *low)
{
    const enum gpu_tier tier = low->program->tier;
    /* one token of an invariant plan has the kernels of a few, and chains that have their bits */
    if (tier == GPU_TIER_1) return low->source->plan->invariant ? OP_TIER_FEW : OP_TIER_ONE;
    return tier == GPU_TIER_CHUNK ? OP_TIER_CHUNK : OP_TIER_FEW;
}

/* Row 0 of a sub-chunk in an array of rows of `width` numbers of `elem` bytes. */
static inline char *making_row(void *base, uint32_t sub, uint64_t width, uint64_t elem)
{
    return (char *)base + (sub == GPU_SUB_ALL ? 0 : sub) * (uint64_t)GPU_SUB_TOKENS * width * elem;
}

/* Where a buffer's rows are. */
struct place {
    char *at;
    uint32_t stride; /* in numbers, from token to token */
    enum dtype dtype;
};
struct place making_place(const struct lowering *low, const struct making *m, enum model_buffer buffer);

/* Type of a chunk's input when it is multiplied by the operation's weights from number `first` on. */
static inline enum dtype making_dtype(const struct lowering *low, const struct math_op *math, uint32_t first,
                                      int32_t layer)
{
    return tensor_format_product(gpu_matrix_of(low->source->weights, math->weight[first], layer)->format);
}

static inline const float *making_vector(const struct lowering *low, const struct making *m,
                                         enum tensor_role role)
{
    return gpu_vector_of(low->source->weights, role, m->at->layer);
}

/* KV heads of the layer. */
static inline struct model_heads making_heads(const struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    return model_heads_of(c, m->at->layer >= 0 && c->window && c->window[m->at->layer]);
}

static inline struct op *making_op(struct lowering *low, const struct making *m)
{
    struct gpu_entry *e = lower_add(low, m->kind, m->at->layer);
    e->sub = m->sub;
    return &e->op;
}

/* ---- ends.c ---- */

/* Inputs of each layer by a table; rows of the embedding; the rows that are sampled; logits' soft cap; the
 * greedy token. */
void make_per_layer(struct lowering *low, const struct making *m);
void make_embed(struct lowering *low, const struct making *m);
void make_join(struct lowering *low, const struct making *m); /* of drafts */
void make_gather(struct lowering *low, const struct making *m);
void make_soft_cap(struct lowering *low, const struct making *m);
void make_argmax(struct lowering *low, const struct making *m);

/* ---- experts.c ---- */

/* A router's logits; the choice; the shared expert's weight; a chunk's groups; a piece of the experts'
 * matrices; the sum of a chunk's. */
void make_router(struct lowering *low, const struct making *m);
void make_route(struct lowering *low, const struct making *m);
void make_weigh(struct lowering *low, const struct making *m);
void make_experts_group(struct lowering *low, const struct making *m);
void make_experts_glu(struct lowering *low, const struct making *m);
void make_experts_down(struct lowering *low, const struct making *m);
void make_experts_sum(struct lowering *low, const struct making *m);
/* Where a layer's experts lie in both memories: what the CPU is asked for, with the choice; its answer. */
bool making_mixed(const struct lowering *low, const struct making *m);
void make_experts_ask(struct lowering *low, const struct making *m);
void make_experts_add(struct lowering *low, const struct making *m);

/* ---- attention.c ---- */

/* Operations with a fixed state. */
void make_running_mean(struct lowering *low, const struct making *m);
void make_delta(struct lowering *low, const struct making *m);

/* Kinds that attention's math becomes: as usual, or with hand-overs to the CPU in layers that it attends to a
 * part of. */
uint32_t making_attention_ops(const struct lowering *low, const struct making *m,
                              enum op_kind kinds[PROGRAM_OPS_MAX]);
void make_rope_append(struct lowering *low, const struct making *m);
void make_attend_decode(struct lowering *low, const struct making *m);
void make_attend_prefill(struct lowering *low, const struct making *m);
void make_kv_query(struct lowering *low, const struct making *m);
void make_attend_merge(struct lowering *low, const struct making *m);
/* A chunk's attention with two tiers: over all sub-chunks at once. */
void make_whole_attention(struct lowering *low, struct making *m);
