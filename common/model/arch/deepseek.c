/* DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash: latent attention (struct model_latent), leading dense layers,
 * then experts beside one that every token has with weight 1.
 *
 *   DeepSeek-V2     experts chosen by softmax, not renormalised; q straight from the input in V2-Lite
 *   DeepSeek-V3     also R1: by a sigmoid and a bias, within groups
 *   GLM-4.7-Flash   as DeepSeek-V3, whose name its GGUF files have
 *
 * The key of a position is its latent, normed, then the key that all heads share, rotated, neighbours
 * together: rows lie interleaved in files. A head's q meets the latent through its rows of K_B; its output,
 * the mean of latents, goes through its rows of V_B. Both are parts of one tensor in files, of which K_B's
 * lie turned (FUSED_HEADS); newer GGUF files have them apart.
 *
 * DeepSeek-V3's and GLM-4.7-Flash's layer after the last one makes drafts, from hidden states after the final
 * norm and after its own. Constant tables and pure functions; see arch.h.
 *
 * Models: DeepSeek-V2-Lite, V3 and R1, GLM-4.7-Flash. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/arch/usual.h"

/* ---- keys ---- */

#define LATENT_MAX 8192
#define MULTIPLIER "rope.scaling.yarn_log_multiplier"
/* nope: of GGUF files with the numbers that turn, which latent_layers takes off. */
#define LATENT_KEYS                                                                                          \
    COUNT(intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED, NAMED("intermediate_size"),                      \
          GGUF("feed_forward_length")),                                                                      \
        COUNT(layers, MODEL_LAYERS_MAX, KEY_NEEDED, NAMED("num_hidden_layers"), GGUF("block_count")),        \
        COUNT(hidden, MODEL_HIDDEN_MAX, KEY_NEEDED, NAMED("hidden_size"), GGUF("embedding_length")),         \
        COUNT(vocab, MODEL_VOCAB_MAX, KEY_NEEDED, NAMED("vocab_size")),                                      \
        COUNT(heads, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("num_attention_heads"),                              \
              GGUF("attention.head_count")),                                                                 \
        COUNT(max_context, MODEL_CONTEXT_MAX, KEY_NEEDED_IN_GGUF, NAMED("max_position_embeddings"),          \
              GGUF("context_length")),                                                                       \
        REAL(norm_eps, 1e-12, 1, NAMED("rms_norm_eps"), GGUF("attention.layer_norm_rms_epsilon"),            \
             .need = KEY_NEEDED_IN_GGUF),                                                                    \
        FLAG(tied_head, NAMED("tie_word_embeddings")),                                                       \
        OR_NONE(draft_layers, MODEL_LAYERS_MAX, NAMED("num_nextn_predict_layers"),                           \
                GGUF("nextn_predict_layers"), .zero_is_none = true),                                         \
        COUNT(latent.rank, LATENT_MAX, KEY_NEEDED, NAMED("kv_lora_rank"), GGUF("attention.kv_lora_rank")),   \
        OR_NONE(latent.q_rank, LATENT_MAX, NAMED("q_lora_rank"), GGUF("attention.q_lora_rank"),              \
                .null_is_zero = true, .need = KEY_STATED),                                                   \
        COUNT(latent.nope, MODEL_HEAD_DIM_MAX, KEY_NEEDED, NAMED("qk_nope_head_dim"),                        \
              GGUF("attention.key_length_mla", "attention.key_length")),                                     \
        COUNT(latent.value, MODEL_HEAD_DIM_MAX, KEY_NEEDED, NAMED("v_head_dim"),                             \
              GGUF("attention.value_length_mla", "attention.value_length")),                                 \
        COUNT(rope[0].dims, MODEL_HEAD_DIM_MAX, KEY_NEEDED, NAMED("qk_rope_head_dim"),                       \
              GGUF("rope.dimension_count")),                                                                 \
        KEY(KEY_WORD, GGUF(MULTIPLIER)), /* latent_layers reads it */                                        \
        FIXED(1, NAMED("moe_layer_freq")), FLAG(o_bias, NAMED("attention_bias")), SILU_KEY

static const struct arch_key v2_keys[] = {LATENT_KEYS, GROUPED_EXPERTS_KEYS("n_routed_experts"),
                                          KEY(KEY_WORD, NAMED("scoring_func"), .words = "softmax"),
                                          FIXED(GGUF_SOFTMAX, GGUF("expert_gating_func")), END};
static const struct arch_key v3_keys[] = {LATENT_KEYS,
                                          SIGMOID_EXPERTS_KEYS("n_routed_experts", "num_local_experts"),
                                          KEY(KEY_WORD, NAMED("scoring_func"), .words = "sigmoid"), END};

/* ---- tensors ---- */

static const struct arch_name names[] = {{TENSOR_K, "self_attn.kv_a_proj_with_mqa.weight",
                                          "attn_kv_a_mqa.weight"},
                                         SHARED_EXPERTS_NAMES,
                                         {.role = TENSOR_NONE}};

static uint64_t value_rows(const struct model_config *c)
{
    return c->latent.value;
}
/* Each head has the rows that make keys of the latent, then those that make values. */
static uint64_t value_row(const struct model_config *c, uint32_t number, uint64_t row)
{
    const uint64_t rows = c->latent.value;
    (void)number;
    return row / rows * (c->latent.nope + rows) + c->latent.nope + row % rows;
}
static const struct fused_tensor fused[] = {{"self_attn.kv_b_proj.weight", "attn_kv_b.weight", FUSED_HEADS,
                                             FUSED_ROLES(TENSOR_K_B, TENSOR_V_B), value_rows, value_row},
                                            {.roles = 0}};

/* ---- a layer ---- */

#define K_TO_LATENT                                                                                          \
    OP(MATH_LINEAR_HEADS, "q to latent", .in = BUFFER_Q_HEADS, .weights = 1, .weight = {TENSOR_K_B},         \
       .out = {BUFFER_Q})
#define LATENT_TO_V                                                                                          \
    OP(MATH_LINEAR_HEADS, "values", .in = BUFFER_A, .weights = 1, .weight = {TENSOR_V_B},                    \
       .out = {BUFFER_VALUES})
#define O_OF_VALUES                                                                                          \
    OP(MATH_LINEAR, "o", .in = BUFFER_VALUES, .weights = 1, .weight = {TENSOR_O}, .out = {BUFFER_X},         \
       .residual = true)
#define LATENT_ATTEND K_TO_LATENT, ATTEND(.k_norm = TENSOR_KV_NORM), LATENT_TO_V, O_OF_VALUES
#define STRAIGHT                                                                                             \
    OP(MATH_LINEAR, "q kv", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 2,                          \
       .weight = {TENSOR_Q, TENSOR_K}, .out = {BUFFER_Q_HEADS, BUFFER_K}),                                   \
        LATENT_ATTEND
#define NARROWED                                                                                             \
    OP(MATH_LINEAR, "q a kv", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 2,                        \
       .weight = {TENSOR_Q_A, TENSOR_K}, .out = {BUFFER_Q_LOW, BUFFER_K}),                                   \
        OP(MATH_LINEAR, "q b", .in = BUFFER_Q_LOW, .norm = TENSOR_Q_A_NORM, .weights = 1,                    \
           .weight = {TENSOR_Q_B}, .out = {BUFFER_Q_HEADS}),                                                 \
        LATENT_ATTEND
static const struct math_part attention = PART("latent attention", UNIT_ATTENTION, STRAIGHT);
static const struct math_part narrowed = PART("latent attention", UNIT_ATTENTION, NARROWED);
static const struct math_part dense = USUAL_DENSE;
static const struct math_part sparse = BESIDE_SPARSE;
static const struct math_part draft_attention =
    DRAFT_PART("drafts' latent attention", UNIT_ATTENTION, DRAFT_INPUT, STRAIGHT);
static const struct math_part draft_narrowed =
    DRAFT_PART("drafts' latent attention", UNIT_ATTENTION, DRAFT_INPUT, NARROWED);
static const struct math_part draft_dense = USUAL_DRAFT_DENSE;
static const struct math_part draft_sparse = BESIDE_DRAFT_SPARSE;
enum { PART_NARROWED = 2 * MATH_PART_DRAFTS, PART_DRAFT_NARROWED };
static const struct math_part *const parts[] = {
    SPARSE_PARTS, DRAFT_PARTS, [PART_NARROWED] = &narrowed, [PART_DRAFT_NARROWED] = &draft_narrowed, NULL};

static uint32_t kind(const struct model_config *config, uint32_t layer, enum unit_part part)
{
    if (part == UNIT_ATTENTION && config->latent.q_rank)
        return layer >= model_answer_layers(config) ? PART_DRAFT_NARROWED : PART_NARROWED;
    return layers_usual_kind(config, layer, part);
}

/* Scores are divided by the root of a head's own size. */
static void fill(const struct model_config *c, struct model_math *math)
{
    const double scale = rope_score_factor(&c->rope[0]) / sqrt(c->latent.nope + c->rope[0].dims);
    for (uint32_t p = 0; p < math->parts; p++)
        for (uint32_t i = 0; i < math->part[p].ops; i++)
            if (math->part[p].op[i].kind == MATH_ATTENTION) math->part[p].op[i].score_scale = (float)scale;
}

/* ---- which layer is what ---- */

/* GLM-4.7-Flash may list its layers, of which only the first ones may be dense. */
static int read_layer_types(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    bool *first;
    uint32_t leading = 0;
    int rc = layers_listed(keys, c, "mlp_layer_types", "sparse", "dense", &first, err);
    if (rc || !first) return rc;
    while (leading < c->layers && first[leading]) leading++;
    for (uint32_t i = leading; i < c->layers && !rc; i++)
        if (first[i])
            rc = helm_fail(err, HELM_E_UNSUPPORTED,
                           "'mlp_layer_types' entry %u is 'dense': only the first layers may be so", i);
    c->leading_dense = leading;
    free(first);
    return rc;
}

/* GGUF files: a head's size is with the numbers that turn; YaRN's multiplier of scores is a tenth of
 * config.json's, and that of cos and sin cancels it. */
static int finish_gguf(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    double multiplier = 0;
    if (c->latent.nope <= c->rope[0].dims)
        return helm_fail(err, HELM_E_FORMAT, "'%s' is %u, of which %u numbers turn",
                         keys_name(keys, AT(latent.nope), name), c->latent.nope, c->rope[0].dims);
    c->latent.nope -= c->rope[0].dims;
    snprintf(name, sizeof name, "%s." MULTIPLIER, keys->prefix);
    const int rc = gguf_get_double(keys->header, name, false, 0, 1e3, &multiplier, err);
    if (rc || multiplier == 0 || c->rope[0].kind != ROPE_YARN) return rc;
    c->rope[0].mscale_all = 10 * multiplier;
    c->rope[0].attention_factor = 1;
    return 0;
}

/* Flags of config.json that may be there if they say the usual. */
static int check_flags(struct keys *keys, const struct model_config *c, struct helm_err *err)
{
    bool interleaved = true;
    const int rc = keys->json ? json_get_bool(keys->json, "rope_interleave", false, &interleaved, err) : 0;
    if (rc) return rc;
    if (!interleaved)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'rope_interleave' is false: only neighbours that turn together are supported");
    if (c->o_bias)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'attention_bias' is true: biases of latent attention are not supported");
    return 0;
}

static int latent_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    if (c->rope[0].kind != ROPE_DEFAULT && c->rope[0].kind != ROPE_YARN)
        return helm_fail(err, HELM_E_UNSUPPORTED, "RoPE type '%s' with latent attention is not supported",
                         rope_kind_name(c->rope[0].kind));
    if (c->router.score == ROUTER_SOFTMAX && c->router.groups > 1)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'%s' is %u: a choice by softmax within groups is not supported (DeepSeek-V2-Lite "
                         "has 1)",
                         keys_name(keys, AT(router.groups), name), c->router.groups);
    if (c->latent.q_rank > c->hidden) /* it is normed where inputs are */
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s' is %u, more than 'hidden_size', %u",
                         keys_name(keys, AT(latent.q_rank), name), c->latent.q_rank, c->hidden);
    int rc = keys->header ? finish_gguf(keys, c, err) : check_flags(keys, c, err);
    if (!rc) rc = read_layer_types(keys, c, err);
    if (!rc) rc = layers_without_window(keys, c, err);
    if (!rc) rc = layers_shared_experts(keys, c, err);
    return rc ? rc : layers_with_experts(keys, c, NULL, err);
}

/* ---- the architectures ---- */

/* As llama.cpp reads files that do not say it. */
static void gguf_start(struct model_config *c)
{
    c->router.normalise = false;
}

#define LATENT                                                                                               \
    .gguf_interleaved = true, .interleaved = true, .names = names, .fused = fused, .embed = &usual_embed,    \
    .head = &usual_head, .parts = parts, .kind = kind, .fill = fill, .layers = latent_layers, USUAL_DRAFTS
const struct arch arch_deepseek_v2 = {.architecture = "DeepseekV2ForCausalLM",
                                      .model_type = "deepseek_v2",
                                      .gguf = {"deepseek2"},
                                      .start = {ROPE_START(10000), .max_context = 2048, .norm_eps = 1e-6,
                                                .router = ROUTER_START(ROUTER_SOFTMAX)},
                                      .keys = v2_keys,
                                      LATENT};
const struct arch arch_deepseek_v3 = {.architecture = "DeepseekV3ForCausalLM",
                                      .model_type = "deepseek_v3",
                                      .gguf = {"deepseek2"},
                                      .gguf_told_by = "expert_gating_func",
                                      .gguf_told_is = GGUF_SIGMOID,
                                      .start = {ROPE_START(10000), .max_context = 4096, .norm_eps = 1e-6,
                                                .choice_bias = true,
                                                .router = ROUTER_START(ROUTER_SIGMOID, .normalise = true)},
                                      .gguf_start = gguf_start,
                                      .keys = v3_keys,
                                      LATENT};
const struct arch arch_glm4_moe_lite = {.architecture = "Glm4MoeLiteForCausalLM",
                                        .model_type = "glm4_moe_lite",
                                        .start = {ROPE_START(10000), .max_context = 202752, .norm_eps = 1e-5,
                                                  .leading_dense = 1, .choice_bias = true,
                                                  .router = ROUTER_START(ROUTER_SIGMOID, .normalise = true)},
                                        .keys = v3_keys,
                                        LATENT};
