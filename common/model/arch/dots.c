/* dots.llm1: leading dense layers, then experts chosen by a sigmoid and a bias within groups, beside experts
 * that every token has with weight 1.
 *
 * Constant tables and pure functions; see arch.h.
 *
 * Models: dots.llm1. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key keys_of_both[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
                                               SILU_KEY,
                                               ATTENTION_BIAS_KEYS,
                                               WINDOW_KEY(),
                                               OR_NONE(window_layers, MODEL_CONTEXT_MAX,
                                                       NAMED("max_window_layers")),
                                               SIGMOID_EXPERTS_KEYS("n_routed_experts", "num_local_experts",
                                                                    "num_experts"),
                                               END};

static const struct arch_name names[] = {SHARED_EXPERTS_NAMES, {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention = HEADS_NORMED_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part sparse = BESIDE_SPARSE;
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

/* ---- which layer is what ---- */

/* A window from layer max_window_layers on. */
static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    int rc = layers_with_window(keys, c, c->window_layers, c->layers, 1, err);
    if (!rc) rc = layers_shared_experts(keys, c, err);
    return rc ? rc : layers_with_experts(keys, c, NULL, err);
}

/* GGUF files do not say a window. */
static void gguf_start(struct model_config *c)
{
    c->sliding_window = 0;
}

const struct arch arch_dots1 = {.architecture = "Dots1ForCausalLM",
                                .model_type = "dots1",
                                .gguf = {"dots1"},
                                .start = {ROPE_START(10000), .max_context = 2048, .norm_eps = 1e-6,
                                          .qk_norm = true, .choice_bias = true, .sliding_window = 4096,
                                          .window_layers = 62, .router = ROUTER_START(ROUTER_SIGMOID)},
                                .gguf_start = gguf_start,
                                .keys = keys_of_both,
                                .names = names,
                                USUAL_LAYERS,
                                .layers = layers};
