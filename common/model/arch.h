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
    ARCH_WINDOW_USED,       /* only with use_sliding_window, every layer (Qwen3-MoE) */
    ARCH_WINDOW_ALTERNATE,  /* layers 0, 2, ... (gpt-oss) */
    ARCH_WINDOW_EVERY_OTHER, /* only with use_sliding_window, layers 0, 2, ... below max_window_layers (Qwen2-MoE) */
    ARCH_WINDOW_ON_FROM, /* from layer max_window_layers on (dots.llm1) */
};

/* A mixture of experts: what config.json calls its numbers, and what is fixed. */
struct arch_experts {
    const char *count_key;                  /* number of experts */
    const char *intermediate_key;           /* of one expert */
    uint32_t default_count, default_chosen; /* 0: config.json says it */
    const char *const *names; /* by role, what its tensors are called where not as Qwen3's; NULL: as those */
    bool dense_keys;          /* decoder_sparse_step and mlp_only_layers say which layers are dense */
    bool norm_key;            /* norm_topk_prob says whether weights are normalised; else they are */
    bool bias;                /* of router and experts */
    bool mxfp4;               /* config.json's quantization_config may say that their matrices are MXFP4 */
    bool choice_bias;         /* of the choice alone */
    bool
        v3_keys; /* first_k_dense_replace, n_group, topk_group, routed_scaling_factor, as DeepSeek-V3 has them */
    /* What is between the halves of the shared expert, or how many of the others it is as wide as; NULL, NULL: none */
    const char *shared_key, *shared_count_key;
    uint32_t default_shared;
    bool shared_weighed; /* it has a weight for each token; else 1 */
    enum router_score score;
    enum glu_kind glu;
};

struct arch {
    const char *architecture; /* as in "architectures" */
    const char *model_type;
    bool qk_norm;            /* norms on q and k heads */
    bool qkv_bias;           /* always has q, k, v biases, whatever config.json says; */
    bool qkv_bias_key;       /* unless "qkv_bias" is false */
    bool attention_bias_key; /* "attention_bias": true gives q, k, v and o a bias */
    bool attention_bias_default;
    bool mlp_bias_key; /* "mlp_bias": true gives gate, up and down a bias */
    bool sinks;        /* attention has */
    bool yarn;         /* is made with it: that must be stated */
    enum arch_window window;
    uint32_t default_context;           /* max_position_embeddings when absent */
    uint32_t default_window;            /* sliding_window when absent (null means none) */
    const struct arch_experts *experts; /* NULL: dense */
};

/* By name or by model_type; NULL when unknown. */
const struct arch *arch_find(const char *architecture);
const struct arch *arch_find_type(const char *model_type);
/* "LlamaForCausalLM, ..." for messages. */
const char *arch_names(char *text, size_t size);

/* What a tensor's name in a file says, whether or not the configuration has such a tensor. */
struct arch_name {
    enum tensor_role role;
    int32_t layer;  /* -1 where the role has none */
    int32_t expert; /* whose it is; -1: of all, or of none */
};
/* Returns false for a name no role has. A role that safetensors files have a tensor of for each expert is also matched with
 * a star for the number: the name of all of them together. */
bool arch_match(const char *name, bool gguf, struct arch_name *what);
/* What follows "model.layers.N." in a name, and that number; NULL: it does not begin so. */
const char *arch_layer_name(const char *name, int32_t *layer);
/* Role and layer alone, of safetensors' names. */
bool arch_match_name(const char *name, enum tensor_role *role, int32_t *layer);
bool arch_match_gguf(const char *name, enum tensor_role *role, int32_t *layer);

/* What the inverse frequencies of a GGUF file are divided by. */
#define ARCH_ROPE_FACTORS "rope_freqs.weight"
/* Buffers that old files carry although they are computed ("...rotary_emb.inv_freq"). */
bool arch_ignores_name(const char *name);

/* True for roles that exist once a layer. */
bool arch_role_per_layer(enum tensor_role role);
/* True for roles that workers keep as fp32 beside their matrices: norms, biases, routers. */
bool arch_role_is_vector(enum tensor_role role);
/* Dimensions of its tensor in a file: 3 of experts' in GGUF files; else 1 or 2. */
uint32_t arch_role_rank(enum tensor_role role, bool gguf);
bool arch_role_of_experts(enum tensor_role role);
/* A vector that files have also as a matrix of one row. */
bool arch_role_of_one_row(enum tensor_role role);
/* "q_proj" and the like for tables, e.g. "self_attn.q_proj.weight". */
const char *arch_role_name(enum tensor_role role);

#endif
