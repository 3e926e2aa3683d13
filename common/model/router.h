/* Which experts a token is computed by, and with which weights: the definition that all processors follow.
 *
 * Called by the CPU worker and the emulated device for every token of a sparse layer, and by tests, which
 * hold the CUDA kernel against it. Pure data and functions; thread-safe. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MODEL_EXPERTS_MAX        1024
#define MODEL_EXPERTS_CHOSEN_MAX 32
#define MODEL_EXPERT_GROUPS_MAX  64

/* Scoring of a router's logits. */
enum router_score {
    ROUTER_SOFTMAX,        /* probabilities over all experts; the largest are chosen (Qwen3-MoE, Mixtral) */
    ROUTER_CHOSEN_SOFTMAX, /* the largest logits are chosen; softmax over these alone (gpt-oss) */
    ROUTER_SIGMOID, /* a sigmoid of each; chosen by it plus a bias, within the best groups (DeepSeek-V3) */
};

/* The activation of an expert's gate g and up u. */
enum glu_kind {
    GLU_SILU,    /* silu(g) * u */
    GLU_CLAMPED, /* g to at most 7, u to within 7; g * sigmoid(1.702 g) * (u + 1) (gpt-oss) */
    GLU_GELU,    /* gelu by tanh of g, times u (Gemma) */
};
#define GLU_CLAMP 7.0f
#define GLU_ALPHA 1.702f
/* gelu(g) = g * sigmoid(2 * ROOT * (g + CUBE * g^3)) */
#define GELU_ROOT 0.7978845608028654f
#define GELU_CUBE 0.044715f

struct model_router {
    enum router_score score;
    uint32_t experts, chosen; /* chosen <= experts, MODEL_EXPERTS_CHOSEN_MAX */
    bool normalise;           /* the chosen weights are divided by their sum */
    float scale;              /* multiplies the weights, after normalising; 1: none */
    /* SIGMOID: experts lie in `groups` equal groups, of which `groups_chosen` are looked at: those whose two
     * largest scores have the largest sum. 1 and 1: all. */
    uint32_t groups, groups_chosen;
};

/* Chooses for one token. logits: [experts]. choice_bias: [experts], added to scores for the choice alone, or
 * NULL. scale: [experts], multiplies the weights of those chosen, or NULL. id, weight: [chosen], the largest
 * first; of equal ones the lower id first. A logit that is not a number counts as the least. Sums are fp32,
 * in the order of id (softmax over all) or of choice. */
void router_choose(const struct model_router *router, const float *logits, const float *choice_bias,
                   const float *scale, uint32_t *id, float *weight);

/* One value of an expert's activation. */
float glu_of(enum glu_kind kind, float gate, float up);
