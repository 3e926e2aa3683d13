/* Llama (2, 3) and Mistral, which differ in the window of attention and in what may have biases.
 *
 * GGUF files call both `llama`; a window tells Mistral. Constant tables and pure functions; see arch.h. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key llama_keys[] = {USUAL_KEYS(KEY_OPTIONAL, KEY_OPTIONAL), SILU_KEY,
                                             ATTENTION_BIAS_KEYS, FLAG(mlp_bias, NAMED("mlp_bias")), END};
static const struct arch_key mistral_keys[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL), SILU_KEY,
                                               WINDOW_KEY(GGUF("attention.sliding_window"),
                                                          .zero_is_none = true),
                                               END};

/* ---- a layer ---- */

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part *const parts[] = {&attention, &dense, NULL};

/* ---- which layer is what ---- */

static int mistral_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    return layers_with_window(keys, c, 0, c->layers, 1, err);
}

/* The default is config.json's alone. */
static void mistral_gguf(struct model_config *c)
{
    c->sliding_window = 0;
}

/* ---- the architectures ---- */

const struct arch arch_llama = {.architecture = "LlamaForCausalLM",
                                .model_type = "llama",
                                .gguf = {"llama"},
                                .gguf_interleaved = true,
                                .start = {ROPE_START(10000), .max_context = 2048, .norm_eps = 1e-6},
                                .keys = llama_keys,
                                USUAL_LAYERS,
                                .layers = layers_without_window};

/* Mistral Small 3.1 and later have a part for images. */
static const char *const skipped[] = {"vision_tower.", "model.vision_tower.", "multi_modal_projector.",
                                      "model.multi_modal_projector.", NULL};
const struct arch arch_mistral = {.architecture = "MistralForCausalLM",
                                  .model_type = "mistral",
                                  .outer = {"Mistral3ForConditionalGeneration"},
                                  .gguf = {"llama", "mistral3"},
                                  .gguf_told_by = "attention.sliding_window",
                                  .gguf_interleaved = true,
                                  .start = {ROPE_START(10000), .max_context = 131072, .norm_eps = 1e-6,
                                            .sliding_window = 4096},
                                  .gguf_start = mistral_gguf,
                                  .keys = mistral_keys,
                                  .skipped = skipped,
                                  USUAL_LAYERS,
                                  .layers = mistral_layers};
