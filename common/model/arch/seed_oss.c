/* Seed-OSS: a Llama with biases of q, k and v, and of o and the MLP where its configuration says so.
 *
 * Constant tables and pure functions; see arch.h.
 *
 * Models: Seed-OSS. */
#include "common/model/arch/usual.h"

static const struct arch_key keys_of_both[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
                                               SILU_KEY,
                                               QKV_BIAS_KEYS("attention_bias"),
                                               FLAG(o_bias, NAMED("attention_out_bias")),
                                               FLAG(mlp_bias, NAMED("mlp_bias")),
                                               END};

static const struct arch_name names[] = {{TENSOR_MLP_NORM, NULL, "post_attention_norm.weight"},
                                         {.role = TENSOR_NONE}};

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part *const parts[] = {&attention, &dense, NULL};

const struct arch arch_seed_oss = {.architecture = "SeedOssForCausalLM",
                                   .model_type = "seed_oss",
                                   .gguf = {"seed_oss"},
                                   .start = {ROPE_START(10000), .max_context = 524288, .norm_eps = 1e-6,
                                             .q_bias = true, .k_bias = true, .v_bias = true},
                                   .keys = keys_of_both,
                                   .names = names,
                                   USUAL_LAYERS,
                                   .layers = layers_without_window};
