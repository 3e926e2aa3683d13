/* gpt-oss: attention with sinks, a window in every second layer; experts with biases and a clamped
 * activation, whose matrices are MXFP4 in published files.
 *
 * Constant tables and pure functions; see arch.h.
 *
 * Models: gpt-oss. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key keys_of_both[] = {
    USUAL_KEYS(KEY_STATED, KEY_NEEDED_IN_CONFIG),
    SILU_KEY,
    ATTENTION_BIAS_KEYS,
    WINDOW_KEY(GGUF("attention.sliding_window"), .zero_is_none = true),
    EXPERTS_KEYS("num_local_experts", "num_experts"),
    COUNT(expert_intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED, NAMED("intermediate_size"),
          GGUF("expert_feed_forward_length", "feed_forward_length")),
    FIXED((double)GLU_CLAMP, NAMED("swiglu_limit")),
    FIXED((double)GLU_ALPHA, NAMED("swiglu_alpha")),
    END};

/* ---- tensors ---- */

static const struct arch_name names[] = {
    {.role = TENSOR_MLP_NORM, .gguf = "post_attention_norm.weight"},
    {.role = TENSOR_ROUTER, .name = "mlp.router.weight"},
    {.role = TENSOR_ROUTER_BIAS, .name = "mlp.router.bias"},
    /* of gates and ups: what has both of them */
    {.role = TENSOR_GATE_EXPERTS, .name = "mlp.experts.gate_up_proj"},
    {.role = TENSOR_UP_EXPERTS, .name = "mlp.experts.gate_up_proj"},
    {.role = TENSOR_DOWN_EXPERTS, .name = "mlp.experts.down_proj"},
    {.role = TENSOR_GATE_EXPERTS_BIAS, .name = "mlp.experts.gate_up_proj_bias"},
    {.role = TENSOR_UP_EXPERTS_BIAS, .name = "mlp.experts.gate_up_proj_bias"},
    {.role = TENSOR_DOWN_EXPERTS_BIAS, .name = "mlp.experts.down_proj_bias"},
    {.role = TENSOR_NONE}};

static const struct fused_tensor fused[] = {
    {"mlp.experts.gate_up_proj_blocks", NULL, FUSED_BLOCKS,
     FUSED_ROLES(TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS)},
    {"mlp.experts.gate_up_proj_scales", NULL, FUSED_SCALES,
     FUSED_ROLES(TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS)},
    {"mlp.experts.gate_up_proj", NULL, FUSED_COLUMNS, FUSED_ROLES(TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS)},
    {"mlp.experts.gate_up_proj_bias", NULL, FUSED_IN_TURN,
     FUSED_ROLES(TENSOR_GATE_EXPERTS_BIAS, TENSOR_UP_EXPERTS_BIAS)},
    {"mlp.experts.down_proj_blocks", NULL, FUSED_BLOCKS, FUSED_ROLES(TENSOR_DOWN_EXPERTS)},
    {"mlp.experts.down_proj_scales", NULL, FUSED_SCALES, FUSED_ROLES(TENSOR_DOWN_EXPERTS)},
    {"mlp.experts.down_proj", NULL, FUSED_COLUMNS, FUSED_ROLES(TENSOR_DOWN_EXPERTS)},
    {"mlp.experts.down_proj_bias", NULL, FUSED_IN_TURN, FUSED_ROLES(TENSOR_DOWN_EXPERTS_BIAS)},
    {.roles = 0}};

/* ---- a layer ---- */

static const struct math_part attention =
    PART("attention", UNIT_ATTENTION, USUAL_QKV, ATTEND(.sinks = TENSOR_SINKS), USUAL_O);
static const struct math_part dense = NO_DENSE;
static const struct math_part sparse = USUAL_SPARSE(ACTIVATION_CLAMPED);
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

/* ---- which layer is what ---- */

/* Layers 0, 2, ... have a window, all have experts. */
static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    if (c->rope[0].kind != ROPE_YARN)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "a %s without RoPE scaling of type 'yarn' ('rope_scaling' or 'rope_parameters')",
                         keys->arch->architecture);
    int rc = layers_with_window(keys, c, 0, c->layers, 2, err);
    return rc ? rc : layers_with_experts(keys, c, NULL, err);
}

/* No key of GGUF files says that YaRN's range is not rounded to whole dimensions; a window is there by its
 * key alone. */
static void gguf_start(struct model_config *c)
{
    c->rope[0].truncate = false;
    c->sliding_window = 0;
}

const struct arch arch_gpt_oss = {.architecture = "GptOssForCausalLM",
                                  .model_type = "gpt_oss",
                                  .gguf = {"gpt-oss"},
                                  .start = {ROPE_START(150000), .max_context = 131072, .norm_eps = 1e-5,
                                            .q_bias = true, .k_bias = true, .v_bias = true, .o_bias = true,
                                            .sinks = true, .experts_bias = true, .sliding_window = 128,
                                            .router = ROUTER_START(ROUTER_CHOSEN_SOFTMAX, .normalise = true)},
                                  .gguf_start = gguf_start,
                                  .keys = keys_of_both,
                                  .names = names,
                                  .fused = fused,
                                  USUAL_LAYERS,
                                  .layers = layers};
