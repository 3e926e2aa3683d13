/* The architectures HELM knows, as tables: names and shapes by role, operations in order. See arch.h and
 * model.h.
 *
 * Called by the readers in this folder and, through model.h, by planners and workers. Constant data only. */
#include "common/model/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct arch_experts qwen3_experts = {.count_key = "num_experts",
                                                  .intermediate_key = "moe_intermediate_size",
                                                  .default_count = 128,
                                                  .default_chosen = 8,
                                                  .dense_keys = true,
                                                  .norm_key = true,
                                                  .score = ROUTER_SOFTMAX,
                                                  .glu = GLU_SILU};
/* Names of Mixtral's files and of gpt-oss's. Of the latter's gates and ups: what has both of them (fused.c). */
static const char *const mixtral_names[TENSOR_ROLE_COUNT] = {
    [TENSOR_ROUTER] = "block_sparse_moe.gate.weight",
    [TENSOR_GATE_EXPERTS] = "block_sparse_moe.experts.*.w1.weight",
    [TENSOR_UP_EXPERTS] = "block_sparse_moe.experts.*.w3.weight",
    [TENSOR_DOWN_EXPERTS] = "block_sparse_moe.experts.*.w2.weight",
};
static const char *const gpt_oss_names[TENSOR_ROLE_COUNT] = {
    [TENSOR_ROUTER] = "mlp.router.weight",
    [TENSOR_GATE_EXPERTS] = "mlp.experts.gate_up_proj",
    [TENSOR_UP_EXPERTS] = "mlp.experts.gate_up_proj",
    [TENSOR_DOWN_EXPERTS] = "mlp.experts.down_proj",
    [TENSOR_ROUTER_BIAS] = "mlp.router.bias",
    [TENSOR_GATE_EXPERTS_BIAS] = "mlp.experts.gate_up_proj_bias",
    [TENSOR_UP_EXPERTS_BIAS] = "mlp.experts.gate_up_proj_bias",
    [TENSOR_DOWN_EXPERTS_BIAS] = "mlp.experts.down_proj_bias",
};
static const char *const dots_names[TENSOR_ROLE_COUNT] = {
    [TENSOR_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
    [TENSOR_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
    [TENSOR_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",
};
static const char *const *const other_names[] = {mixtral_names, gpt_oss_names, dots_names};
#define OTHER_NAMES (sizeof other_names / sizeof *other_names)

static const struct arch_experts qwen2_experts = {.count_key = "num_experts",
                                                  .intermediate_key = "moe_intermediate_size",
                                                  .default_count = 60,
                                                  .default_chosen = 4,
                                                  .dense_keys = true,
                                                  .norm_key = true,
                                                  .score = ROUTER_SOFTMAX,
                                                  .glu = GLU_SILU,
                                                  .shared_key = "shared_expert_intermediate_size",
                                                  .default_shared = 5632,
                                                  .shared_weighed = true};
static const struct arch_experts dots_experts = {.count_key = "n_routed_experts",
                                                 .intermediate_key = "moe_intermediate_size",
                                                 .names = dots_names,
                                                 .norm_key = true,
                                                 .choice_bias = true,
                                                 .v3_keys = true,
                                                 .score = ROUTER_SIGMOID,
                                                 .glu = GLU_SILU,
                                                 .shared_count_key = "n_shared_experts"};
static const struct arch_experts mixtral_experts = {.count_key = "num_local_experts",
                                                    .intermediate_key = "intermediate_size",
                                                    .default_count = 8,
                                                    .default_chosen = 2,
                                                    .names = mixtral_names,
                                                    .score = ROUTER_SOFTMAX,
                                                    .glu = GLU_SILU};
static const struct arch_experts gpt_oss_experts = {.count_key = "num_local_experts",
                                                    .intermediate_key = "intermediate_size",
                                                    .default_count = 128,
                                                    .default_chosen = 4,
                                                    .names = gpt_oss_names,
                                                    .bias = true,
                                                    .mxfp4 = true,
                                                    .score = ROUTER_CHOSEN_SOFTMAX,
                                                    .glu = GLU_CLAMPED};

static const struct arch archs[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .attention_bias_key = true,
     .mlp_bias_key = true,
     .default_context = 2048},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .window = ARCH_WINDOW_ALL,
     .default_context = 131072,
     .default_window = 4096},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .qkv_bias = true,
     .window = ARCH_WINDOW_FROM_LAYER,
     .default_context = 32768,
     .default_window = 4096},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .qk_norm = true,
     .attention_bias_key = true,
     .window = ARCH_WINDOW_FROM_LAYER,
     .default_context = 32768,
     .default_window = 4096},
    {.architecture = "Qwen2MoeForCausalLM",
     .model_type = "qwen2_moe",
     .qkv_bias = true,
     .qkv_bias_key = true,
     .window = ARCH_WINDOW_EVERY_OTHER,
     .default_context = 32768,
     .default_window = 4096,
     .experts = &qwen2_experts},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .qk_norm = true,
     .attention_bias_key = true,
     .window = ARCH_WINDOW_USED,
     .default_context = 32768,
     .default_window = 4096,
     .experts = &qwen3_experts},
    {.architecture = "Dots1ForCausalLM",
     .model_type = "dots1",
     .qk_norm = true,
     .attention_bias_key = true,
     .window = ARCH_WINDOW_ON_FROM,
     .default_context = 2048,
     .default_window = 4096,
     .experts = &dots_experts},
    {.architecture = "MixtralForCausalLM",
     .model_type = "mixtral",
     .window = ARCH_WINDOW_ALL,
     .default_context = 131072,
     .experts = &mixtral_experts},
    {.architecture = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .attention_bias_key = true,
     .attention_bias_default = true,
     .sinks = true,
     .yarn = true,
     .window = ARCH_WINDOW_ALTERNATE,
     .default_context = 131072,
     .default_window = 128,
     .experts = &gpt_oss_experts},
};
#define ARCH_COUNT (sizeof archs / sizeof *archs)

/* A dimension of a tensor, in terms of the configuration. */
enum dim {
    DIM_ONE,
    DIM_VOCAB,
    DIM_HIDDEN,
    DIM_Q,
    DIM_KV,
    DIM_HEAD,
    DIM_HEADS,
    DIM_INTERMEDIATE,
    DIM_EXPERTS,        /* their number */
    DIM_EXPERT,         /* what is between the halves of one */
    DIM_EXPERTS_INNER,  /* rows of all experts' gates, */
    DIM_EXPERTS_HIDDEN, /* of all experts' downs */
    DIM_SHARED          /* what is between the halves of the shared one */
};

/* When a tensor or an operation exists. */
enum when {
    WHEN_ALWAYS,
    WHEN_UNTIED,
    WHEN_QK_NORM,
    WHEN_Q_BIAS,
    WHEN_K_BIAS,
    WHEN_V_BIAS,
    WHEN_O_BIAS,
    WHEN_MLP_BIAS,
    WHEN_SINKS,
    WHEN_DENSE, /* of a layer whose MLP is no mixture; also MLP_BIAS */
    WHEN_SPARSE,
    WHEN_EXPERTS_BIAS, /* from here on: also of those */
    WHEN_CHOICE_BIAS,
    WHEN_SHARED,
    WHEN_SHARED_WEIGHED
};

/* Indexed by role. Per-layer names stand after "model.layers.N."; a star stands for an expert's number. */
struct tensor_rule {
    const char *name;
    bool per_layer;
    enum dim rows, cols;
    enum when when;
};
static const struct tensor_rule tensor_rules[TENSOR_ROLE_COUNT] = {
    [TENSOR_EMBED] = {"model.embed_tokens.weight", false, DIM_VOCAB, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_FINAL_NORM] = {"model.norm.weight", false, DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_HEAD] = {"lm_head.weight", false, DIM_VOCAB, DIM_HIDDEN, WHEN_UNTIED},
    [TENSOR_ATTN_NORM] = {"input_layernorm.weight", true, DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_Q] = {"self_attn.q_proj.weight", true, DIM_Q, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_K] = {"self_attn.k_proj.weight", true, DIM_KV, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_V] = {"self_attn.v_proj.weight", true, DIM_KV, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_O] = {"self_attn.o_proj.weight", true, DIM_HIDDEN, DIM_Q, WHEN_ALWAYS},
    [TENSOR_Q_BIAS] = {"self_attn.q_proj.bias", true, DIM_ONE, DIM_Q, WHEN_Q_BIAS},
    [TENSOR_K_BIAS] = {"self_attn.k_proj.bias", true, DIM_ONE, DIM_KV, WHEN_K_BIAS},
    [TENSOR_V_BIAS] = {"self_attn.v_proj.bias", true, DIM_ONE, DIM_KV, WHEN_V_BIAS},
    [TENSOR_O_BIAS] = {"self_attn.o_proj.bias", true, DIM_ONE, DIM_HIDDEN, WHEN_O_BIAS},
    [TENSOR_Q_NORM] = {"self_attn.q_norm.weight", true, DIM_ONE, DIM_HEAD, WHEN_QK_NORM},
    [TENSOR_K_NORM] = {"self_attn.k_norm.weight", true, DIM_ONE, DIM_HEAD, WHEN_QK_NORM},
    [TENSOR_SINKS] = {"self_attn.sinks", true, DIM_ONE, DIM_HEADS, WHEN_SINKS},
    [TENSOR_MLP_NORM] = {"post_attention_layernorm.weight", true, DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_GATE] = {"mlp.gate_proj.weight", true, DIM_INTERMEDIATE, DIM_HIDDEN, WHEN_DENSE},
    [TENSOR_UP] = {"mlp.up_proj.weight", true, DIM_INTERMEDIATE, DIM_HIDDEN, WHEN_DENSE},
    [TENSOR_DOWN] = {"mlp.down_proj.weight", true, DIM_HIDDEN, DIM_INTERMEDIATE, WHEN_DENSE},
    [TENSOR_GATE_BIAS] = {"mlp.gate_proj.bias", true, DIM_ONE, DIM_INTERMEDIATE, WHEN_MLP_BIAS},
    [TENSOR_UP_BIAS] = {"mlp.up_proj.bias", true, DIM_ONE, DIM_INTERMEDIATE, WHEN_MLP_BIAS},
    [TENSOR_DOWN_BIAS] = {"mlp.down_proj.bias", true, DIM_ONE, DIM_HIDDEN, WHEN_MLP_BIAS},
    [TENSOR_ROUTER] = {"mlp.gate.weight", true, DIM_EXPERTS, DIM_HIDDEN, WHEN_SPARSE},
    [TENSOR_ROUTER_BIAS] = {"mlp.gate.bias", true, DIM_ONE, DIM_EXPERTS, WHEN_EXPERTS_BIAS},
    [TENSOR_GATE_EXPERTS] = {"mlp.experts.*.gate_proj.weight", true, DIM_EXPERTS_INNER, DIM_HIDDEN,
                             WHEN_SPARSE},
    [TENSOR_UP_EXPERTS] = {"mlp.experts.*.up_proj.weight", true, DIM_EXPERTS_INNER, DIM_HIDDEN, WHEN_SPARSE},
    [TENSOR_DOWN_EXPERTS] = {"mlp.experts.*.down_proj.weight", true, DIM_EXPERTS_HIDDEN, DIM_EXPERT,
                             WHEN_SPARSE},
    [TENSOR_GATE_EXPERTS_BIAS] = {"mlp.experts.*.gate_proj.bias", true, DIM_EXPERTS, DIM_EXPERT,
                                  WHEN_EXPERTS_BIAS},
    [TENSOR_UP_EXPERTS_BIAS] = {"mlp.experts.*.up_proj.bias", true, DIM_EXPERTS, DIM_EXPERT,
                                WHEN_EXPERTS_BIAS},
    [TENSOR_DOWN_EXPERTS_BIAS] = {"mlp.experts.*.down_proj.bias", true, DIM_EXPERTS, DIM_HIDDEN,
                                  WHEN_EXPERTS_BIAS},
    [TENSOR_CHOICE_BIAS] = {"mlp.gate.e_score_correction_bias", true, DIM_ONE, DIM_EXPERTS, WHEN_CHOICE_BIAS},
    [TENSOR_SHARED_GATE] = {"mlp.shared_expert.gate_proj.weight", true, DIM_SHARED, DIM_HIDDEN, WHEN_SHARED},
    [TENSOR_SHARED_UP] = {"mlp.shared_expert.up_proj.weight", true, DIM_SHARED, DIM_HIDDEN, WHEN_SHARED},
    [TENSOR_SHARED_DOWN] = {"mlp.shared_expert.down_proj.weight", true, DIM_HIDDEN, DIM_SHARED, WHEN_SHARED},
    [TENSOR_SHARE] = {"mlp.shared_expert_gate.weight", true, DIM_ONE, DIM_HIDDEN, WHEN_SHARED_WEIGHED},
};
#define LAYER_PREFIX "model.layers."

/* The same tensors in GGUF files. */
#define GGUF_PREFIX "blk."
static const char *const gguf_names[TENSOR_ROLE_COUNT] = {
    [TENSOR_EMBED] = "token_embd.weight",
    [TENSOR_FINAL_NORM] = "output_norm.weight",
    [TENSOR_HEAD] = "output.weight",
    [TENSOR_ATTN_NORM] = "attn_norm.weight",
    [TENSOR_Q] = "attn_q.weight",
    [TENSOR_K] = "attn_k.weight",
    [TENSOR_V] = "attn_v.weight",
    [TENSOR_O] = "attn_output.weight",
    [TENSOR_Q_BIAS] = "attn_q.bias",
    [TENSOR_K_BIAS] = "attn_k.bias",
    [TENSOR_V_BIAS] = "attn_v.bias",
    [TENSOR_O_BIAS] = "attn_output.bias",
    [TENSOR_Q_NORM] = "attn_q_norm.weight",
    [TENSOR_K_NORM] = "attn_k_norm.weight",
    [TENSOR_SINKS] = "attn_sinks.weight",
    [TENSOR_MLP_NORM] = "ffn_norm.weight",
    [TENSOR_GATE] = "ffn_gate.weight",
    [TENSOR_UP] = "ffn_up.weight",
    [TENSOR_DOWN] = "ffn_down.weight",
    [TENSOR_GATE_BIAS] = "ffn_gate.bias",
    [TENSOR_UP_BIAS] = "ffn_up.bias",
    [TENSOR_DOWN_BIAS] = "ffn_down.bias",
    [TENSOR_ROUTER] = "ffn_gate_inp.weight",
    [TENSOR_GATE_EXPERTS] = "ffn_gate_exps.weight",
    [TENSOR_UP_EXPERTS] = "ffn_up_exps.weight",
    [TENSOR_DOWN_EXPERTS] = "ffn_down_exps.weight",
    [TENSOR_ROUTER_BIAS] = "ffn_gate_inp.bias",
    [TENSOR_GATE_EXPERTS_BIAS] = "ffn_gate_exps.bias",
    [TENSOR_UP_EXPERTS_BIAS] = "ffn_up_exps.bias",
    [TENSOR_DOWN_EXPERTS_BIAS] = "ffn_down_exps.bias",
    [TENSOR_CHOICE_BIAS] = "exp_probs_b.bias",
    [TENSOR_SHARED_GATE] = "ffn_gate_shexp.weight",
    [TENSOR_SHARED_UP] = "ffn_up_shexp.weight",
    [TENSOR_SHARED_DOWN] = "ffn_down_shexp.weight",
    [TENSOR_SHARE] = "ffn_gate_inp_shexp.weight",
};
/* And of `gpt-oss`. */
static const char *const gguf_other_names[TENSOR_ROLE_COUNT] = {
    [TENSOR_MLP_NORM] = "post_attention_norm.weight",
};

const struct arch *arch_find(const char *architecture)
{
    for (size_t i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i].architecture, architecture) == 0) return &archs[i];
    return NULL;
}

const struct arch *arch_find_type(const char *model_type)
{
    for (size_t i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i].model_type, model_type) == 0) return &archs[i];
    return NULL;
}

const char *arch_names(char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < ARCH_COUNT && used < size; i++) {
        int n = snprintf(text + used, size - used, "%s%s", i ? ", " : "", archs[i].architecture);
        used += n > 0 ? (size_t)n : 0;
    }
    return text;
}

bool arch_role_per_layer(enum tensor_role role)
{
    return tensor_rules[role].per_layer;
}

bool arch_role_is_vector(enum tensor_role role)
{
    return tensor_rules[role].rows == DIM_ONE || tensor_rules[role].rows == DIM_EXPERTS;
}

bool model_tensor_is_vector(const struct model_tensor *tensor)
{
    return tensor->rows == 1 || arch_role_is_vector(tensor->role);
}

bool arch_role_of_experts(enum tensor_role role)
{
    return tensor_rules[role].rows == DIM_EXPERTS_INNER || tensor_rules[role].rows == DIM_EXPERTS_HIDDEN;
}

bool arch_role_of_one_row(enum tensor_role role)
{
    return role == TENSOR_SHARE;
}

uint32_t arch_role_rank(enum tensor_role role, bool gguf)
{
    const bool vector = tensor_rules[role].rows == DIM_ONE && (gguf || !arch_role_of_one_row(role));
    return gguf && arch_role_of_experts(role) ? 3 : vector ? 1 : 2;
}

const char *arch_role_name(enum tensor_role role)
{
    return tensor_rules[role].name;
}

/* "model.layers.12.rest" -> 12 and "rest". Exactly the digits that would be printed: no sign, no leading
 * zero. */
static const char *split_layer(const char *name, const char *before, int32_t *layer)
{
    size_t prefix = strlen(before);
    if (strncmp(name, before, prefix) != 0) return NULL;
    const char *digits = name + prefix;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 6 || digits[count] != '.' || (digits[0] == '0' && count > 1)) return NULL;
    *layer = (int32_t)strtol(digits, NULL, 10);
    return digits + count + 1;
}

const char *arch_layer_name(const char *name, int32_t *layer)
{
    return split_layer(name, LAYER_PREFIX, layer);
}

/* Another name of a role than what its rule and GGUF's table say, or NULL. */
static const char *other_name(enum tensor_role role, bool gguf, uint32_t number)
{
    if (gguf) return number == 0 ? gguf_other_names[role] : NULL;
    return number < OTHER_NAMES ? other_names[number][role] : NULL;
}

/* Whether `text` is the pattern, with a star or, as it would be printed, a number where that has its star. */
static bool match_pattern(const char *pattern, const char *text, int32_t *expert)
{
    const char *star = strchr(pattern, '*');
    *expert = -1;
    if (!star || strcmp(pattern, text) == 0) return strcmp(pattern, text) == 0;
    const size_t before = (size_t)(star - pattern);
    if (strncmp(pattern, text, before) != 0) return false;
    const char *digits = text + before;
    const size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 6 || (digits[0] == '0' && count > 1)) return false;
    *expert = (int32_t)strtol(digits, NULL, 10);
    return strcmp(star + 1, digits + count) == 0;
}

bool arch_match(const char *name, bool gguf, struct arch_name *what)
{
    int32_t number = -1;
    const char *rest = split_layer(name, gguf ? GGUF_PREFIX : LAYER_PREFIX, &number);
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        const char *tail = tensor_rules[r].per_layer ? rest : name;
        const char *own = gguf ? gguf_names[r] : tensor_rules[r].name;
        if (!tail) continue;
        bool found = match_pattern(own, tail, &what->expert);
        for (uint32_t i = 0; i < OTHER_NAMES && !found; i++) {
            const char *other = other_name((enum tensor_role)r, gguf, i);
            found = other && match_pattern(other, tail, &what->expert);
        }
        if (!found) continue;
        what->role = (enum tensor_role)r;
        what->layer = tensor_rules[r].per_layer ? number : -1;
        return true;
    }
    return false;
}

static bool match_name(bool gguf, const char *name, enum tensor_role *role, int32_t *layer)
{
    struct arch_name what;
    if (!arch_match(name, gguf, &what)) return false;
    *role = what.role;
    *layer = what.layer;
    return true;
}

bool arch_match_name(const char *name, enum tensor_role *role, int32_t *layer)
{
    return match_name(false, name, role, layer);
}

bool arch_match_gguf(const char *name, enum tensor_role *role, int32_t *layer)
{
    return match_name(true, name, role, layer);
}

bool arch_ignores_name(const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return length > tail && strcmp(name + length - tail, suffix) == 0;
}

/* In some layer. */
static bool holds(const struct model_config *config, enum when when)
{
    bool dense = !config->sparse, sparse = false;
    for (uint32_t l = 0; config->sparse && l < config->layers; l++) {
        dense |= !config->sparse[l];
        sparse |= config->sparse[l];
    }
    const bool value[] = {[WHEN_ALWAYS] = true,
                          [WHEN_UNTIED] = !config->tied_head,
                          [WHEN_QK_NORM] = config->qk_norm,
                          [WHEN_Q_BIAS] = config->q_bias,
                          [WHEN_K_BIAS] = config->k_bias,
                          [WHEN_V_BIAS] = config->v_bias,
                          [WHEN_O_BIAS] = config->o_bias,
                          [WHEN_SINKS] = config->sinks,
                          [WHEN_MLP_BIAS] = config->mlp_bias && dense,
                          [WHEN_DENSE] = dense,
                          [WHEN_SPARSE] = sparse,
                          [WHEN_EXPERTS_BIAS] = config->experts_bias && sparse,
                          [WHEN_CHOICE_BIAS] = config->choice_bias && sparse,
                          [WHEN_SHARED] = config->shared_intermediate && sparse,
                          [WHEN_SHARED_WEIGHED] =
                              config->shared_intermediate && config->shared_weighed && sparse};
    return value[when];
}

static uint64_t dim_of(const struct model_config *config, enum dim dim)
{
    const uint64_t value[] = {[DIM_ONE] = 1,
                              [DIM_VOCAB] = config->vocab,
                              [DIM_HIDDEN] = config->hidden,
                              [DIM_Q] = (uint64_t)config->heads * config->head_dim,
                              [DIM_KV] = (uint64_t)config->kv_heads * config->head_dim,
                              [DIM_HEAD] = config->head_dim,
                              [DIM_HEADS] = config->heads,
                              [DIM_INTERMEDIATE] = config->intermediate,
                              [DIM_EXPERTS] = config->router.experts,
                              [DIM_EXPERT] = config->expert_intermediate,
                              [DIM_EXPERTS_INNER] =
                                  (uint64_t)config->router.experts * config->expert_intermediate,
                              [DIM_EXPERTS_HIDDEN] = (uint64_t)config->router.experts * config->hidden,
                              [DIM_SHARED] = config->shared_intermediate};
    return value[dim];
}

bool model_expected_shape(const struct model_config *config, enum tensor_role role, uint64_t *rows,
                          uint64_t *cols)
{
    *rows = *cols = 0;
    if ((unsigned)role >= TENSOR_ROLE_COUNT || !holds(config, tensor_rules[role].when)) return false;
    *rows = dim_of(config, tensor_rules[role].rows);
    *cols = dim_of(config, tensor_rules[role].cols);
    return true;
}

bool model_expects(const struct model_config *config, enum tensor_role role, int32_t layer)
{
    const struct tensor_rule *rule = &tensor_rules[role];
    if ((layer >= 0) != rule->per_layer || !holds(config, rule->when)) return false;
    if (layer < 0 || !config->sparse) return true;
    if (rule->when == WHEN_SPARSE || rule->when >= WHEN_EXPERTS_BIAS) return config->sparse[layer];
    return !(rule->when == WHEN_DENSE || rule->when == WHEN_MLP_BIAS) || !config->sparse[layer];
}

uint32_t model_dense_width(const struct model_config *config)
{
    return holds(config, WHEN_DENSE) ? config->intermediate : 0;
}

uint32_t model_mlp_width(const struct model_config *config)
{
    const uint32_t dense = model_dense_width(config),
                   sparse = config->router.chosen * config->expert_intermediate;
    return dense > sparse ? dense : sparse;
}

uint32_t model_widest(const struct model_config *config)
{
    const uint64_t of[] = {config->hidden, (uint64_t)config->heads * config->head_dim, config->intermediate,
                           config->shared_intermediate};
    uint64_t widest = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) widest = of[i] > widest ? of[i] : widest;
    return (uint32_t)widest;
}

/* A role's own part of its name in the files of this configuration. */
static const char *own_name(const struct model_config *config, enum tensor_role role)
{
    const struct arch *arch = config ? arch_find(config->architecture) : NULL;
    const struct arch_experts *experts = arch ? arch->experts : NULL;
    if (config && config->gguf) {
        const bool other = experts && experts->names == gpt_oss_names && gguf_other_names[role];
        return other ? gguf_other_names[role] : gguf_names[role];
    }
    return experts && experts->names && experts->names[role] ? experts->names[role] : tensor_rules[role].name;
}

void model_tensor_name(const struct model_config *config, enum tensor_role role, int32_t layer,
                       char name[MODEL_NAME_MAX])
{
    const bool gguf = config && config->gguf;
    const char *own = own_name(config, role);
    if (tensor_rules[role].per_layer)
        snprintf(name, MODEL_NAME_MAX, "%s%d.%s", gguf ? GGUF_PREFIX : LAYER_PREFIX, layer, own);
    else
        snprintf(name, MODEL_NAME_MAX, "%s", own);
}

uint32_t model_tensor_parts(const struct model_config *config, enum tensor_role role)
{
    return strchr(own_name(config, role), '*') ? config->router.experts : 1;
}

void model_part_name(const struct model_config *config, enum tensor_role role, int32_t layer, uint32_t part,
                     char name[MODEL_NAME_MAX])
{
    char all[MODEL_NAME_MAX];
    model_tensor_name(config, role, layer, all);
    const char *star = strchr(all, '*');
    if (star)
        snprintf(name, MODEL_NAME_MAX, "%.*s%u%s", (int)(star - all), all, part, star + 1);
    else
        snprintf(name, MODEL_NAME_MAX, "%s", all);
}

uint32_t model_window(const struct model_config *config)
{
    uint32_t window = 0;
    for (uint32_t l = 0; config->window && l < config->layers && !window; l++) window = config->window[l];
    return window;
}

uint64_t model_kv_bytes_per_token(const struct model_config *config, uint32_t layers, enum kv_dtype kv_dtype)
{
    return 2u * (uint64_t)layers * config->kv_heads * kv_cell_bytes(kv_dtype, config->head_dim);
}
