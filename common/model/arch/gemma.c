/* Gemma 3: four norms a layer, of which two are of what a half adds; a gated MLP by GELU; an embedding times sqrt(hidden); five
 * layers with a window to one without, each kind with a RoPE table of its own; a tied head.
 *
 * Published config.json files leave out what transformers assumes of the architecture (heads, vocabulary); those numbers are in
 * `start`, and every tensor is held against them. Constant tables and pure functions; see arch.h. */
#include <math.h>

#include "common/base/json.h"
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key gemma3_keys[] = {
    COUNT(intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED, NAMED("intermediate_size"),
          GGUF("feed_forward_length")),
    COUNT(layers, MODEL_LAYERS_MAX, KEY_NEEDED, NAMED("num_hidden_layers"), GGUF("block_count")),
    COUNT(hidden, MODEL_HIDDEN_MAX, KEY_NEEDED, NAMED("hidden_size"), GGUF("embedding_length")),
    COUNT(vocab, MODEL_VOCAB_MAX, KEY_OPTIONAL, NAMED("vocab_size")),
    COUNT(heads, MODEL_HEADS_MAX, KEY_NEEDED_IN_GGUF, NAMED("num_attention_heads"),
          GGUF("attention.head_count")),
    COUNT(kv_heads, MODEL_HEADS_MAX, KEY_NEEDED_IN_GGUF, NAMED("num_key_value_heads"),
          GGUF("attention.head_count_kv")),
    COUNT(head_dim, MODEL_HEAD_DIM_MAX, KEY_NEEDED_IN_GGUF, NAMED("head_dim"), GGUF("attention.key_length")),
    COUNT(max_context, MODEL_CONTEXT_MAX, KEY_NEEDED_IN_GGUF, NAMED("max_position_embeddings"),
          GGUF("context_length")),
    REAL(norm_eps, 1e-12, 1, NAMED("rms_norm_eps"), GGUF("attention.layer_norm_rms_epsilon"),
         .need = KEY_NEEDED_IN_GGUF),
    FLAG(tied_head, NAMED("tie_word_embeddings")),
    KEY(KEY_WORD, NAMED("hidden_activation", "hidden_act"), .words = "gelu_pytorch_tanh"),
    ATTENTION_BIAS_KEYS,
    COUNT(sliding_window, MODEL_CONTEXT_MAX, KEY_NEEDED, NAMED("sliding_window"),
          GGUF("attention.sliding_window")),
    COUNT(full_attention_interval, MODEL_LAYERS_MAX, KEY_OPTIONAL,
          NAMED("sliding_window_pattern", "_sliding_window_pattern"),
          GGUF("attention.sliding_window_pattern")),
    REAL(attention_scale, 1e-6, 1e6, NAMED("query_pre_attn_scalar")), /* whose root divides scores */
    REAL(rope[1].theta, 2, 1e12, NAMED("rope_local_base_freq"), GGUF("rope.freq_base_swa")),
    FIXED(0, NAMED("attn_logit_softcapping"), GGUF("attn_logit_softcapping"),
          .why = "a soft cap of attention's scores is not supported"),
    FIXED(0, NAMED("final_logit_softcapping"), GGUF("final_logit_softcapping"),
          .why = "a soft cap of logits is not supported"),
    END};

/* ---- tensors ---- */

static const struct arch_name names[] = {
    {TENSOR_ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight"},
    {TENSOR_MLP_NORM, "pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {TENSOR_MLP_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {.role = TENSOR_NONE}};
static const struct arch_vector less_one[] = {
    {TENSOR_FINAL_NORM, VECTOR_LESS_ONE},    {TENSOR_ATTN_NORM, VECTOR_LESS_ONE},
    {TENSOR_ATTN_OUT_NORM, VECTOR_LESS_ONE}, {TENSOR_MLP_NORM, VECTOR_LESS_ONE},
    {TENSOR_MLP_OUT_NORM, VECTOR_LESS_ONE},  {TENSOR_Q_NORM, VECTOR_LESS_ONE},
    {TENSOR_K_NORM, VECTOR_LESS_ONE},        {.role = TENSOR_NONE}};
static const char *const skipped[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                      "model.multi_modal_projector.", NULL};

/* ---- a layer ---- */

#define TO_OUT(called, input, matrix, vector)                                                                \
    OP(MATH_LINEAR, called, .in = (input), .weights = 1, .weight = {matrix}, .bias = {vector},               \
       .out = {BUFFER_OUT})
#define ADD_NORMED(called, vector)                                                                           \
    OP(MATH_ADD_NORMED, called, .in = BUFFER_OUT, .norm = (vector), .out = {BUFFER_X}, .residual = true)
#define ATTENTION(called, table)                                                                             \
    PART(called, UNIT_ATTENTION, USUAL_QKV,                                                                  \
         ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM, .rope = (table)),                          \
         TO_OUT("o", BUFFER_A, TENSOR_O, TENSOR_O_BIAS), ADD_NORMED("add o", TENSOR_ATTN_OUT_NORM))

static const struct math_part full = ATTENTION("attention", 0);
static const struct math_part dense =
    PART("MLP", UNIT_MLP,
         OP(MATH_LINEAR, "gate up", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .weights = 2,
            .weight = {TENSOR_GATE, TENSOR_UP}, .out = {BUFFER_GATE, BUFFER_UP},
            .activation = ACTIVATION_GELU_TANH, .gated = true),
         TO_OUT("down", BUFFER_GATE, TENSOR_DOWN, TENSOR_NONE), ADD_NORMED("add down", TENSOR_MLP_OUT_NORM));
static const struct math_part window = ATTENTION("attention in a window", 1);
enum { PART_WINDOW = MATH_PART_SPARSE };
static const struct math_part *const parts[] = {
    [MATH_PART_ATTENTION] = &full, [MATH_PART_DENSE] = &dense, [PART_WINDOW] = &window, NULL};

static uint32_t kind(const struct model_config *config, uint32_t layer, enum unit_part part)
{
    if (part == UNIT_MLP) return MATH_PART_DENSE;
    return config->window && config->window[layer] ? PART_WINDOW : MATH_PART_ATTENTION;
}

static void fill(const struct model_config *c, struct model_math *math)
{
    math->embed.out_scale = sqrtf((float)c->hidden);
    for (uint32_t p = 0; p < math->parts; p++)
        for (uint32_t i = 0; i < math->part[p].ops; i++)
            if (math->part[p].op[i].kind == MATH_ATTENTION)
                math->part[p].op[i].score_scale = (float)(1 / sqrt(c->attention_scale));
}

/* ---- which layer is what ---- */

/* A window in all but every sixth layer. No key of GGUF files says what divides scores: the model of 62 layers (27B) has another
 * number than a head's size, as llama.cpp reads them. */
#define LAYERS_OF_27B 62
static int gemma3_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    bool both_ways = false;
    int rc =
        keys->json ? json_get_bool(keys->json, "use_bidirectional_attention", false, &both_ways, err) : 0;
    if (!rc && both_ways)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "'use_bidirectional_attention' is true: models of embeddings are not supported");
    if (!rc && keys->header)
        c->attention_scale = c->layers == LAYERS_OF_27B ? (double)c->hidden / c->heads : c->head_dim;
    if (!rc) rc = layers_with_window(keys, c, 0, c->layers, 1, err);
    if (rc || (keys->json && json_is_array(json_object_get(keys->json, "layer_types")))) return rc;
    for (uint32_t l = 0; l < c->layers; l++)
        if ((l + 1) % c->full_attention_interval == 0) c->window[l] = 0;
    return 0;
}

/* ---- the architectures ---- */

static const struct math_op embed = USUAL_EMBED;
static const struct math_op head = USUAL_HEAD;

#define ROPES(full_theta, window_theta)                                                                      \
    .rope = {{.theta = (full_theta), .factor = 1, .attention_factor = 1, .truncate = true},                  \
             {.theta = (window_theta), .factor = 1, .attention_factor = 1, .truncate = true}}

const struct arch arch_gemma3 = {.architecture = "Gemma3ForCausalLM",
                                 .model_type = "gemma3_text",
                                 .outer = {"Gemma3ForConditionalGeneration"},
                                 .text_type = "gemma3",
                                 .gguf = {"gemma3"},
                                 .start = {ROPES(1e6, 1e4), .max_context = 131072, .norm_eps = 1e-6,
                                           .vocab = 262208, .heads = 8, .kv_heads = 4, .head_dim = 256,
                                           .attention_scale = 256, .qk_norm = true, .tied_head = true,
                                           .full_attention_interval = 6, .normed_outputs = true},
                                 .keys = gemma3_keys,
                                 .names = names,
                                 .vectors = less_one,
                                 .skipped = skipped,
                                 .embed = &embed,
                                 .head = &head,
                                 .parts = parts,
                                 .kind = kind,
                                 .layers = gemma3_layers,
                                 .fill = fill};
