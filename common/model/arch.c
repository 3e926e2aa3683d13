/* The architectures HELM knows, as tables: names and shapes by role, operations in order. See arch.h and
 * model.h.
 *
 * Called by the readers in this folder and, through model.h, by planners and workers. Constant data only. */
#include "common/model/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
};
#define ARCH_COUNT (sizeof archs / sizeof *archs)

/* A dimension of a tensor, in terms of the configuration. */
enum dim { DIM_ONE, DIM_VOCAB, DIM_HIDDEN, DIM_Q, DIM_KV, DIM_HEAD, DIM_INTERMEDIATE };

/* When a tensor or an operation exists. */
enum when {
    WHEN_ALWAYS,
    WHEN_UNTIED,
    WHEN_QK_NORM,
    WHEN_Q_BIAS,
    WHEN_K_BIAS,
    WHEN_V_BIAS,
    WHEN_O_BIAS,
    WHEN_MLP_BIAS
};

/* Indexed by role. Per-layer names stand after "model.layers.N.". */
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
    [TENSOR_MLP_NORM] = {"post_attention_layernorm.weight", true, DIM_ONE, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_GATE] = {"mlp.gate_proj.weight", true, DIM_INTERMEDIATE, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_UP] = {"mlp.up_proj.weight", true, DIM_INTERMEDIATE, DIM_HIDDEN, WHEN_ALWAYS},
    [TENSOR_DOWN] = {"mlp.down_proj.weight", true, DIM_HIDDEN, DIM_INTERMEDIATE, WHEN_ALWAYS},
    [TENSOR_GATE_BIAS] = {"mlp.gate_proj.bias", true, DIM_ONE, DIM_INTERMEDIATE, WHEN_MLP_BIAS},
    [TENSOR_UP_BIAS] = {"mlp.up_proj.bias", true, DIM_ONE, DIM_INTERMEDIATE, WHEN_MLP_BIAS},
    [TENSOR_DOWN_BIAS] = {"mlp.down_proj.bias", true, DIM_ONE, DIM_HIDDEN, WHEN_MLP_BIAS},
};
#define LAYER_PREFIX "model.layers."

/* The same tensors in GGUF files. */
#define GGUF_PREFIX "blk."
static const char *const gguf_names[TENSOR_ROLE_COUNT] = {
    [TENSOR_EMBED] = "token_embd.weight",   [TENSOR_FINAL_NORM] = "output_norm.weight",
    [TENSOR_HEAD] = "output.weight",        [TENSOR_ATTN_NORM] = "attn_norm.weight",
    [TENSOR_Q] = "attn_q.weight",           [TENSOR_K] = "attn_k.weight",
    [TENSOR_V] = "attn_v.weight",           [TENSOR_O] = "attn_output.weight",
    [TENSOR_Q_BIAS] = "attn_q.bias",        [TENSOR_K_BIAS] = "attn_k.bias",
    [TENSOR_V_BIAS] = "attn_v.bias",        [TENSOR_O_BIAS] = "attn_output.bias",
    [TENSOR_Q_NORM] = "attn_q_norm.weight", [TENSOR_K_NORM] = "attn_k_norm.weight",
    [TENSOR_MLP_NORM] = "ffn_norm.weight",  [TENSOR_GATE] = "ffn_gate.weight",
    [TENSOR_UP] = "ffn_up.weight",          [TENSOR_DOWN] = "ffn_down.weight",
    [TENSOR_GATE_BIAS] = "ffn_gate.bias",   [TENSOR_UP_BIAS] = "ffn_up.bias",
    [TENSOR_DOWN_BIAS] = "ffn_down.bias",
};

/* The operations of a pre-norm decoder with gated MLP. Norms and biases that the configuration lacks become
 * TENSOR_NONE when the list is built. */
static const struct model_math decoder_math = {
    .embed = {.kind = MATH_EMBED,
              .name = "embedding",
              .norm = TENSOR_NONE,
              .q_norm = TENSOR_NONE,
              .k_norm = TENSOR_NONE,
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
                                     .q_norm = TENSOR_NONE,
                                     .k_norm = TENSOR_NONE,
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
                                     .out = {BUFFER_A}},
                                    {.kind = MATH_LINEAR,
                                     .name = "o",
                                     .in = BUFFER_A,
                                     .norm = TENSOR_NONE,
                                     .q_norm = TENSOR_NONE,
                                     .k_norm = TENSOR_NONE,
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
                               .q_norm = TENSOR_NONE,
                               .k_norm = TENSOR_NONE,
                               .weights = 2,
                               .weight = {TENSOR_GATE, TENSOR_UP},
                               .bias = {TENSOR_GATE_BIAS, TENSOR_UP_BIAS},
                               .out = {BUFFER_GATE, BUFFER_UP},
                               .swiglu = true},
                              {.kind = MATH_LINEAR,
                               .name = "down",
                               .in = BUFFER_GATE,
                               .norm = TENSOR_NONE,
                               .q_norm = TENSOR_NONE,
                               .k_norm = TENSOR_NONE,
                               .weights = 1,
                               .weight = {TENSOR_DOWN},
                               .bias = {TENSOR_DOWN_BIAS},
                               .out = {BUFFER_X},
                               .accumulate = true}}},
    .head = {.kind = MATH_LINEAR,
             .name = "head",
             .in = BUFFER_X,
             .norm = TENSOR_FINAL_NORM,
             .q_norm = TENSOR_NONE,
             .k_norm = TENSOR_NONE,
             .weights = 1,
             .weight = {TENSOR_HEAD},
             .bias = {TENSOR_NONE},
             .out = {BUFFER_LOGITS}},
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
    return tensor_rules[role].rows == DIM_ONE;
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

static bool match_name(bool gguf, const char *name, enum tensor_role *role, int32_t *layer)
{
    int32_t number = -1;
    const char *rest = split_layer(name, gguf ? GGUF_PREFIX : LAYER_PREFIX, &number);
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        const char *tail = tensor_rules[r].per_layer ? rest : name;
        if (!tail || strcmp(tail, gguf ? gguf_names[r] : tensor_rules[r].name) != 0) continue;
        *role = (enum tensor_role)r;
        *layer = tensor_rules[r].per_layer ? number : -1;
        return true;
    }
    return false;
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

static bool holds(const struct model_config *config, enum when when)
{
    const bool value[] = {
        [WHEN_ALWAYS] = true,           [WHEN_UNTIED] = !config->tied_head, [WHEN_QK_NORM] = config->qk_norm,
        [WHEN_Q_BIAS] = config->q_bias, [WHEN_K_BIAS] = config->k_bias,     [WHEN_V_BIAS] = config->v_bias,
        [WHEN_O_BIAS] = config->o_bias, [WHEN_MLP_BIAS] = config->mlp_bias};
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
                              [DIM_INTERMEDIATE] = config->intermediate};
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

void model_tensor_name(const struct model_config *config, enum tensor_role role, int32_t layer,
                       char name[MODEL_NAME_MAX])
{
    const bool gguf = config && config->gguf;
    const char *own = gguf ? gguf_names[role] : tensor_rules[role].name;
    if (tensor_rules[role].per_layer)
        snprintf(name, MODEL_NAME_MAX, "%s%d.%s", gguf ? GGUF_PREFIX : LAYER_PREFIX, layer, own);
    else
        snprintf(name, MODEL_NAME_MAX, "%s", own);
}

/* Sets what the configuration has not to TENSOR_NONE. */
static void keep_existing(const struct model_config *config, struct math_op *op)
{
    enum tensor_role *optional[] = {&op->q_norm, &op->k_norm, &op->bias[0], &op->bias[1], &op->bias[2]};
    for (uint32_t i = 0; i < 2 + op->weights; i++)
        if (*optional[i] != TENSOR_NONE && !holds(config, tensor_rules[*optional[i]].when))
            *optional[i] = TENSOR_NONE;
}

void model_math_build(const struct model_config *config, struct model_math *math)
{
    *math = decoder_math;
    for (int p = 0; p < UNIT_PARTS; p++)
        for (uint32_t i = 0; i < math->part[p].ops; i++) keep_existing(config, &math->part[p].op[i]);
}

/* By whose operations it is used. */
enum unit_part unit_part_of_role(enum tensor_role role)
{
    for (int p = 0; p < UNIT_PARTS; p++)
        for (uint32_t i = 0; i < decoder_math.part[p].ops; i++) {
            const struct math_op *op = &decoder_math.part[p].op[i];
            if (op->norm == role || op->q_norm == role || op->k_norm == role) return (enum unit_part)p;
            for (uint32_t w = 0; w < op->weights; w++)
                if (op->weight[w] == role || op->bias[w] == role) return (enum unit_part)p;
        }
    return UNIT_PARTS;
}

uint64_t model_kv_bytes_per_token(const struct model_config *config, uint32_t layers, enum kv_dtype kv_dtype)
{
    return 2u * (uint64_t)layers * config->kv_heads * kv_cell_bytes(kv_dtype, config->head_dim);
}
