/* Llama (2, 3) and Mistral, which differ in the window of attention and in what may have biases. In Ministral
 * 3 and Devstral 2, whose RoPE is YaRN's, q grows with each original context before its position.
 *
 * GGUF files call both `llama`, where a window tells Mistral; `mistral3` is Ministral 3, or a Mistral Small,
 * in which nothing grows. Constant tables and pure functions; see arch.h.
 *
 * Models: Llama 2 to 3.3, Mistral, Ministral 3, Devstral 2. */
#include <stdio.h>

#include "common/base/json.h"
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key llama_keys[] = {USUAL_KEYS(KEY_OPTIONAL, KEY_OPTIONAL), SILU_KEY,
                                             ATTENTION_BIAS_KEYS, FLAG(mlp_bias, NAMED("mlp_bias")), END};
#define MISTRAL_KEYS                                                                                         \
    USUAL_KEYS(KEY_STATED, KEY_OPTIONAL), SILU_KEY,                                                          \
        WINDOW_KEY(GGUF("attention.sliding_window"), .zero_is_none = true)
#define MULTIPLIER "rope.scaling.yarn_log_multiplier"
static const struct arch_key mistral_keys[] = {MISTRAL_KEYS, END};
static const struct arch_key ministral3_keys[] = {MISTRAL_KEYS,
                                                  REAL(q_growth, 0, 1e3, GGUF("attention.temperature_scale")),
                                                  KEY(KEY_WORD,
                                                      GGUF(MULTIPLIER)), /* ministral3_layers reads it */
                                                  END};

/* ---- a layer ---- */

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part growing =
    PART("attention", UNIT_ATTENTION, USUAL_QKV, GROW_Q, ATTEND(), USUAL_O);
static const struct math_part dense = USUAL_DENSE;
static const struct math_part *const parts[] = {&attention, &dense, NULL};
static const struct math_part *const ministral3_parts[] = {&growing, &dense, NULL};

/* ---- which layer is what ---- */

static int mistral_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    return layers_with_window(keys, c, 0, c->layers, 1, err);
}

/* YaRN's two multipliers cancel each other, which GGUF files say by one of them: the other is 1. */
static int ministral3_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    const json_t *rope = keys->json ? json_object_get(keys->json, "rope_parameters") : NULL;
    char name[KEYS_NAME_MAX];
    double multiplier = 0;
    int rc = rope ? json_get_double(rope, "llama_4_scaling_beta", false, 0, 1e3, &c->q_growth, err) : 0;
    snprintf(name, sizeof name, "%s." MULTIPLIER, keys->header ? keys->prefix : "");
    if (!rc && keys->header) rc = gguf_get_double(keys->header, name, false, -1e300, 1e300, &multiplier, err);
    if (rc) return rc;
    if (multiplier != 0 && multiplier != 1)
        return helm_fail(err, HELM_E_UNSUPPORTED, "key '%s' is %g; only 1 is supported", name, multiplier);
    if (multiplier != 0 && c->rope[0].kind == ROPE_YARN) c->rope[0].attention_factor = 1;
    if (c->q_growth != 0 && c->rope[0].kind != ROPE_YARN)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s' is %g: scaling attention by position needs YaRN",
                         keys->json ? "llama_4_scaling_beta" : keys_name(keys, AT(q_growth), name),
                         c->q_growth);
    return mistral_layers(keys, c, err);
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
#define MISTRAL                                                                                              \
    .outer = {"Mistral3ForConditionalGeneration"}, .gguf_interleaved = true, .skipped = skipped,             \
    .embed = &usual_embed, .head = &usual_head, .kind = layers_usual_kind
#define START ROPE_START(10000), .max_context = 131072, .norm_eps = 1e-6
const struct arch arch_mistral = {.architecture = "MistralForCausalLM",
                                  .model_type = "mistral",
                                  .gguf = {"llama"},
                                  .gguf_told_by = "attention.sliding_window",
                                  .start = {START, .sliding_window = 4096},
                                  .gguf_start = mistral_gguf,
                                  .keys = mistral_keys,
                                  .parts = parts,
                                  .layers = mistral_layers,
                                  MISTRAL};
const struct arch arch_ministral3 = {.architecture = "Ministral3ForCausalLM",
                                     .model_type = "ministral3",
                                     .gguf = {"mistral3"},
                                     .start = {START},
                                     .keys = ministral3_keys,
                                     .parts = ministral3_parts,
                                     .layers = ministral3_layers,
                                     MISTRAL};
