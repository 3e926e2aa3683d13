/* Mixtral: Mistral with experts instead of the MLP.
 *
 * GGUF files call it `llama`; its experts tell it. Constant tables and pure functions; see arch.h.
 *
 * Models: Mixtral. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key keys_of_both[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
                                               SILU_KEY,
                                               WINDOW_KEY(GGUF("attention.sliding_window"),
                                                          .zero_is_none = true),
                                               EXPERTS_KEYS("num_local_experts", "num_experts"),
                                               COUNT(expert_intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED,
                                                     NAMED("intermediate_size"), GGUF("feed_forward_length")),
                                               END};

static const struct arch_name names[] = {
    {.role = TENSOR_ROUTER, .name = "block_sparse_moe.gate.weight"},
    {.role = TENSOR_GATE_EXPERTS, .name = "block_sparse_moe.experts.*.w1.weight"},
    {.role = TENSOR_UP_EXPERTS, .name = "block_sparse_moe.experts.*.w3.weight"},
    {.role = TENSOR_DOWN_EXPERTS, .name = "block_sparse_moe.experts.*.w2.weight"},
    {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part dense = NO_DENSE;
static const struct math_part sparse = USUAL_SPARSE(ACTIVATION_SILU);
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    int rc = layers_with_window(keys, c, 0, c->layers, 1, err);
    return rc ? rc : layers_with_experts(keys, c, NULL, err);
}

const struct arch arch_mixtral = {.architecture = "MixtralForCausalLM",
                                  .model_type = "mixtral",
                                  .gguf = {"llama"},
                                  .gguf_told_by = "expert_count",
                                  .gguf_interleaved = true,
                                  .start = {ROPE_START(1000000), .max_context = 131072, .norm_eps = 1e-5,
                                            .router = ROUTER_START(ROUTER_SOFTMAX, .normalise = true)},
                                  .keys = keys_of_both,
                                  .names = names,
                                  USUAL_LAYERS,
                                  .layers = layers};
