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

/* The operations of a pre-norm decoder with gated MLP. A bias role that the configuration lacks becomes
 * TENSOR_NONE when the list is built. */
struct op_rule {
    struct model_op op;
    enum when when;
};
static const struct op_rule prologue_rules[] = {
    {{OP_EMBED, BUFFER_NONE, BUFFER_NONE, BUFFER_X, TENSOR_EMBED, TENSOR_NONE, false}, WHEN_ALWAYS},
};
static const struct op_rule layer_rules[] = {
    {{OP_RMSNORM, BUFFER_X, BUFFER_NONE, BUFFER_H, TENSOR_ATTN_NORM, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_H, BUFFER_NONE, BUFFER_Q, TENSOR_Q, TENSOR_Q_BIAS, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_H, BUFFER_NONE, BUFFER_K, TENSOR_K, TENSOR_K_BIAS, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_H, BUFFER_NONE, BUFFER_V, TENSOR_V, TENSOR_V_BIAS, false}, WHEN_ALWAYS},
    {{OP_HEAD_NORM, BUFFER_Q, BUFFER_NONE, BUFFER_Q, TENSOR_Q_NORM, TENSOR_NONE, false}, WHEN_QK_NORM},
    {{OP_HEAD_NORM, BUFFER_K, BUFFER_NONE, BUFFER_K, TENSOR_K_NORM, TENSOR_NONE, false}, WHEN_QK_NORM},
    {{OP_ROPE, BUFFER_Q, BUFFER_NONE, BUFFER_Q, TENSOR_NONE, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_ROPE, BUFFER_K, BUFFER_NONE, BUFFER_K, TENSOR_NONE, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_ATTENTION, BUFFER_Q, BUFFER_NONE, BUFFER_A, TENSOR_NONE, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_A, BUFFER_NONE, BUFFER_X, TENSOR_O, TENSOR_O_BIAS, true}, WHEN_ALWAYS},
    {{OP_RMSNORM, BUFFER_X, BUFFER_NONE, BUFFER_H, TENSOR_MLP_NORM, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_H, BUFFER_NONE, BUFFER_GATE, TENSOR_GATE, TENSOR_GATE_BIAS, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_H, BUFFER_NONE, BUFFER_UP, TENSOR_UP, TENSOR_UP_BIAS, false}, WHEN_ALWAYS},
    {{OP_SWIGLU, BUFFER_GATE, BUFFER_UP, BUFFER_GATE, TENSOR_NONE, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_GATE, BUFFER_NONE, BUFFER_X, TENSOR_DOWN, TENSOR_DOWN_BIAS, true}, WHEN_ALWAYS},
};
static const struct op_rule epilogue_rules[] = {
    {{OP_RMSNORM, BUFFER_X, BUFFER_NONE, BUFFER_H, TENSOR_FINAL_NORM, TENSOR_NONE, false}, WHEN_ALWAYS},
    {{OP_LINEAR, BUFFER_H, BUFFER_NONE, BUFFER_LOGITS, TENSOR_HEAD, TENSOR_NONE, false}, WHEN_ALWAYS},
};
#define COUNT(a) ((uint32_t)(sizeof(a) / sizeof *(a)))
_Static_assert(COUNT(layer_rules) <= MODEL_OPS_MAX, "one layer's operations fit the graph");

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
static const char *split_layer(const char *name, int32_t *layer)
{
    size_t prefix = strlen(LAYER_PREFIX);
    if (strncmp(name, LAYER_PREFIX, prefix) != 0) return NULL;
    const char *digits = name + prefix;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 6 || digits[count] != '.' || (digits[0] == '0' && count > 1)) return NULL;
    *layer = (int32_t)strtol(digits, NULL, 10);
    return digits + count + 1;
}

bool arch_match_name(const char *name, enum tensor_role *role, int32_t *layer)
{
    int32_t number = -1;
    const char *rest = split_layer(name, &number);
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        const char *tail = tensor_rules[r].per_layer ? rest : name;
        if (!tail || strcmp(tail, tensor_rules[r].name) != 0) continue;
        *role = (enum tensor_role)r;
        *layer = tensor_rules[r].per_layer ? number : -1;
        return true;
    }
    return false;
}

bool arch_ignores_name(const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return length > tail && strcmp(name + length - tail, suffix) == 0;
}

static bool holds(const struct model_config *config, enum when when)
{
    switch (when) {
    case WHEN_ALWAYS:
        return true;
    case WHEN_UNTIED:
        return !config->tied_head;
    case WHEN_QK_NORM:
        return config->qk_norm;
    case WHEN_Q_BIAS:
        return config->q_bias;
    case WHEN_K_BIAS:
        return config->k_bias;
    case WHEN_V_BIAS:
        return config->v_bias;
    case WHEN_O_BIAS:
        return config->o_bias;
    case WHEN_MLP_BIAS:
        return config->mlp_bias;
    }
    return false;
}

static uint64_t dim_of(const struct model_config *config, enum dim dim)
{
    switch (dim) {
    case DIM_ONE:
        return 1;
    case DIM_VOCAB:
        return config->vocab;
    case DIM_HIDDEN:
        return config->hidden;
    case DIM_Q:
        return (uint64_t)config->heads * config->head_dim;
    case DIM_KV:
        return (uint64_t)config->kv_heads * config->head_dim;
    case DIM_HEAD:
        return config->head_dim;
    case DIM_INTERMEDIATE:
        return config->intermediate;
    }
    return 0;
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
    (void)config; /* every architecture in the table names its tensors alike */
    if (tensor_rules[role].per_layer)
        snprintf(name, MODEL_NAME_MAX, LAYER_PREFIX "%d.%s", layer, tensor_rules[role].name);
    else
        snprintf(name, MODEL_NAME_MAX, "%s", tensor_rules[role].name);
}

static uint32_t build(const struct model_config *config, const struct op_rule *rules, uint32_t count,
                      struct model_op *ops)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!holds(config, rules[i].when)) continue;
        struct model_op op = rules[i].op;
        if (op.bias != TENSOR_NONE && !holds(config, tensor_rules[op.bias].when)) op.bias = TENSOR_NONE;
        ops[used++] = op;
    }
    return used;
}

void model_graph_build(const struct model_config *config, struct model_graph *graph)
{
    memset(graph, 0, sizeof *graph);
    graph->prologue_count = build(config, prologue_rules, COUNT(prologue_rules), graph->prologue);
    graph->layer_count = build(config, layer_rules, COUNT(layer_rules), graph->layer);
    graph->epilogue_count = build(config, epilogue_rules, COUNT(epilogue_rules), graph->epilogue);
}

size_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

const char *dtype_name(enum dtype dtype)
{
    static const char *const names[DTYPE_COUNT] = {"bf16", "f16", "f32"};
    return (unsigned)dtype < DTYPE_COUNT ? names[dtype] : "unknown";
}

uint64_t model_kv_bytes_per_token(const struct model_config *config, uint32_t layers, enum dtype kv_dtype)
{
    return 2u * (uint64_t)layers * config->kv_heads * config->head_dim * dtype_bytes(kv_dtype);
}
