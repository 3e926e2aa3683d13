/* Architectures as data: what a model's tensors are called, what shape they have, which exist, which
 * operations run.
 *
 * Private to common/model (config.c reads the defaults, checkpoint.c matches names). Adding an architecture
 * whose operations exist is adding a row; the readers of `struct model` do not change. Constant tables; no
 * state. */
#ifndef HELM_COMMON_MODEL_ARCH_H
#define HELM_COMMON_MODEL_ARCH_H

#include "common/model/model.h"

/* How sliding windows are spread over layers when config.json has no layer_types. */
enum arch_window {
    ARCH_WINDOW_NEVER,      /* the architecture has none (Llama) */
    ARCH_WINDOW_ALL,        /* `sliding_window` not null: every layer (Mistral) */
    ARCH_WINDOW_FROM_LAYER, /* only with use_sliding_window, from layer max_window_layers on (Qwen) */
};

struct arch {
    const char *architecture; /* as in "architectures" */
    const char *model_type;
    bool qk_norm;            /* norms on q and k heads */
    bool qkv_bias;           /* always has q, k, v biases, whatever config.json says */
    bool attention_bias_key; /* "attention_bias": true gives q, k, v and o a bias */
    bool mlp_bias_key;       /* "mlp_bias": true gives gate, up and down a bias */
    enum arch_window window;
    uint32_t default_context; /* max_position_embeddings when absent */
    uint32_t default_window;  /* sliding_window when absent (null means none) */
};

/* By name or by model_type; NULL when unknown. */
const struct arch *arch_find(const char *architecture);
const struct arch *arch_find_type(const char *model_type);
/* "LlamaForCausalLM, ..." for messages. */
const char *arch_names(char *text, size_t size);

/* Role and layer of a tensor's name in the file (layer -1 where the role has none), whether or not the
 * configuration has such a tensor. Returns false for a name no role has. */
bool arch_match_name(const char *name, enum tensor_role *role, int32_t *layer);
bool arch_match_gguf(const char *name, enum tensor_role *role, int32_t *layer);

/* What the inverse frequencies of a GGUF file are divided by. */
#define ARCH_ROPE_FACTORS "rope_freqs.weight"
/* Buffers that old files carry although they are computed ("...rotary_emb.inv_freq"). */
bool arch_ignores_name(const char *name);

/* True for roles that exist once a layer. */
bool arch_role_per_layer(enum tensor_role role);
/* True for roles stored with one dimension. */
bool arch_role_is_vector(enum tensor_role role);
/* "q_proj" and the like for tables, e.g. "self_attn.q_proj.weight". */
const char *arch_role_name(enum tensor_role role);

#endif
