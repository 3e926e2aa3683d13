/* Qwen2, Qwen3 and their mixtures of experts.
 *
 *   Qwen2      biases of q, k, v
 *   Qwen3      norms of the heads of q and k
 *   Qwen2-MoE  as Qwen2; experts, and one more that every token has with a weight of its own
 *   Qwen3-MoE  as Qwen3; experts
 *
 * Constant tables and pure functions; see arch.h.
 *
 * Models: Qwen2, Qwen2.5, Qwen3, Qwen2-MoE, Qwen3-MoE. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

#define WINDOW_KEYS                                                                                          \
    WINDOW_KEY(), FLAG(use_window, NAMED("use_sliding_window")),                                             \
        OR_NONE(window_layers, MODEL_CONTEXT_MAX, NAMED("max_window_layers"))
#define MOE_KEYS                                                                                             \
    EXPERTS_KEYS("num_experts", "num_local_experts"), FLAG(router.normalise, NAMED("norm_topk_prob")),       \
        COUNT(sparse_step, MODEL_LAYERS_MAX, KEY_OPTIONAL, NAMED("decoder_sparse_step"))

static const struct arch_key qwen2_keys[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL), SILU_KEY, WINDOW_KEYS,
                                             END};
static const struct arch_key qwen3_keys[] = {USUAL_KEYS(KEY_STATED, KEY_NEEDED_IN_CONFIG), SILU_KEY,
                                             ATTENTION_BIAS_KEYS, WINDOW_KEYS, END};
static const struct arch_key qwen2_moe_keys[] = {
    USUAL_KEYS(KEY_NEEDED_IN_CONFIG, KEY_OPTIONAL),
    SILU_KEY,
    QKV_BIAS_KEYS("qkv_bias"),
    WINDOW_KEYS,
    MOE_KEYS,
    EXPERT_WIDTH_KEY(KEY_NEEDED_IN_CONFIG, "moe_intermediate_size"),
    OR_NONE(shared_intermediate, MODEL_INTERMEDIATE_MAX, .need = KEY_STATED,
            NAMED("shared_expert_intermediate_size"), GGUF("expert_shared_feed_forward_length"),
            .null_is_zero = true),
    END};
static const struct arch_key qwen3_moe_keys[] = {USUAL_KEYS(KEY_NEEDED_IN_CONFIG, KEY_OPTIONAL),
                                                 SILU_KEY,
                                                 ATTENTION_BIAS_KEYS,
                                                 WINDOW_KEYS,
                                                 MOE_KEYS,
                                                 EXPERT_WIDTH_KEY(KEY_NEEDED, "moe_intermediate_size"),
                                                 END};

/* ---- a layer ---- */

static const struct math_part attention =
    PART("attention", UNIT_ATTENTION,
         OP(MATH_LINEAR, "q k v", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 3,
            .weight = {TENSOR_Q, TENSOR_K, TENSOR_V}, .bias = {TENSOR_Q_BIAS, TENSOR_K_BIAS, TENSOR_V_BIAS},
            .out = {BUFFER_Q, BUFFER_K, BUFFER_V}),
         OP(MATH_ATTENTION, "attention", .in = BUFFER_Q, .q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM,
            .out = {BUFFER_A}),
         OP(MATH_LINEAR, "o", .in = BUFFER_A, .weights = 1, .weight = {TENSOR_O}, .bias = {TENSOR_O_BIAS},
            .out = {BUFFER_X}, .residual = true));
static const struct math_part dense =
    PART("MLP", UNIT_MLP,
         OP(MATH_LINEAR, "gate up", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .weights = 2,
            .weight = {TENSOR_GATE, TENSOR_UP}, .out = {BUFFER_GATE, BUFFER_UP},
            .activation = ACTIVATION_SILU, .gated = true),
         OP(MATH_LINEAR, "down", .in = BUFFER_GATE, .weights = 1, .weight = {TENSOR_DOWN}, .out = {BUFFER_X},
            .residual = true));
static const struct math_part sparse = SHARED_SPARSE;
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

/* ---- which layer is what ---- */

/* A window from layer max_window_layers on, if any. */
static int dense_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    if (!c->use_window) c->sliding_window = 0;
    return layers_with_window(keys, c, c->window_layers, c->layers, 1, err);
}

/* A window in layers 0, 2, ... below max_window_layers, if any. Early GGUF files have one width for dense
 * MLPs, for all of a token's experts together, and for the shared one. */
static int qwen2_moe_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    if (!c->use_window) c->sliding_window = 0;
    if (keys->header && !c->shared_intermediate) c->shared_intermediate = c->intermediate;
    if (keys->header && !c->expert_intermediate) c->expert_intermediate = c->intermediate / c->router.chosen;
    c->shared_weighed = c->shared_intermediate > 0;
    int rc = layers_with_window(keys, c, 0, c->window_layers, 2, err);
    return rc ? rc : layers_with_experts(keys, c, "mlp_only_layers", err);
}

/* A window in every layer, if any. */
static int qwen3_moe_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    if (!c->use_window) c->sliding_window = 0;
    int rc = layers_with_window(keys, c, 0, c->layers, 1, err);
    return rc ? rc : layers_with_experts(keys, c, "mlp_only_layers", err);
}

/* GGUF files do not say it. */
static void qwen3_moe_gguf(struct model_config *c)
{
    c->router.normalise = true;
}

/* ---- the architectures ---- */

/* Qwen3-VL's language model is a Qwen3; drafts of later models. */
static const char *const skipped[] = {"model.visual.", "visual.", "mtp.", "model.mtp.", NULL};

#define START                                                                                                \
    ROPE_START(10000), .max_context = 32768, .norm_eps = 1e-6, .sliding_window = 4096, .window_layers = 28

const struct arch arch_qwen2 = {.architecture = "Qwen2ForCausalLM",
                                .model_type = "qwen2",
                                .gguf = {"qwen2"},
                                .start = {START, .q_bias = true, .k_bias = true, .v_bias = true},
                                .keys = qwen2_keys,
                                USUAL_LAYERS,
                                .layers = dense_layers};
const struct arch arch_qwen3 = {.architecture = "Qwen3ForCausalLM",
                                .model_type = "qwen3",
                                .outer = {"Qwen3VLForConditionalGeneration"},
                                .text_type = "qwen3_vl_text",
                                .gguf = {"qwen3"},
                                .start = {START, .qk_norm = true},
                                .keys = qwen3_keys,
                                .skipped = skipped,
                                USUAL_LAYERS,
                                .layers = dense_layers};
const struct arch arch_qwen2_moe = {.architecture = "Qwen2MoeForCausalLM",
                                    .model_type = "qwen2_moe",
                                    .gguf = {"qwen2moe"},
                                    .start = {START, .q_bias = true, .k_bias = true, .v_bias = true,
                                              .router = ROUTER_START(ROUTER_SOFTMAX)},
                                    .keys = qwen2_moe_keys,
                                    USUAL_LAYERS,
                                    .layers = qwen2_moe_layers};
const struct arch arch_qwen3_moe = {.architecture = "Qwen3MoeForCausalLM",
                                    .model_type = "qwen3_moe",
                                    .gguf = {"qwen3moe"},
                                    .start = {START, .qk_norm = true, .router = ROUTER_START(ROUTER_SOFTMAX)},
                                    .gguf_start = qwen3_moe_gguf,
                                    .keys = qwen3_moe_keys,
                                    .skipped = skipped,
                                    USUAL_LAYERS,
                                    .layers = qwen3_moe_layers};
