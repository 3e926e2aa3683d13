/* SmolLM3: a Llama, in which nothing turns in every fourth layer.
 *
 * These layers have the second table of RoPE, whose frequencies are 0, so that each worker computes them as
 * the others. Constant tables and pure functions; see arch.h.
 *
 * Models: SmolLM3. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key keys_of_both[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
                                               SILU_KEY,
                                               ATTENTION_BIAS_KEYS,
                                               FLAG(mlp_bias, NAMED("mlp_bias")),
                                               FLAG(use_window, NAMED("use_sliding_window")),
                                               COUNT(full_attention_interval, MODEL_LAYERS_MAX, KEY_OPTIONAL,
                                                     NAMED("no_rope_layer_interval")),
                                               END};

/* ---- a layer ---- */

enum { ROPE_TURNING, ROPE_STILL };
enum { PART_STILL = MATH_PART_SPARSE };
static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part still =
    PART("attention without RoPE", UNIT_ATTENTION, USUAL_QKV, ATTEND(.rope = ROPE_STILL), USUAL_O);
static const struct math_part dense = USUAL_DENSE;
static const struct math_part *const parts[] = {
    [MATH_PART_ATTENTION] = &attention, [MATH_PART_DENSE] = &dense, [PART_STILL] = &still, NULL};

static bool turns(const struct model_config *c, uint32_t layer)
{
    return (layer + 1) % c->full_attention_interval != 0;
}

static uint32_t kind(const struct model_config *c, uint32_t layer, enum unit_part part)
{
    if (part == UNIT_MLP) return MATH_PART_DENSE;
    return turns(c, layer) ? MATH_PART_ATTENTION : PART_STILL;
}

/* ---- which layer is what ---- */

/* config.json may also list the layers: 1 where heads turn. Other lists than every n-th are refused. */
static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    const json_t *list = keys->json ? json_object_get(keys->json, "no_rope_layers") : NULL;
    if (c->use_window)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'use_sliding_window' is true: windows in layers without RoPE are not supported");
    if (list && !json_is_null(list) && json_array_size(list) < c->layers)
        return helm_fail(err, HELM_E_MISMATCH,
                         "'no_rope_layers' is no list of %u entries, one for each layer", c->layers);
    for (uint32_t l = 0; l < c->layers && json_array_size(list); l++) {
        const json_t *item = json_array_get(list, l);
        if (!json_is_integer(item) || json_integer_value(item) != turns(c, l))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "'no_rope_layers' entry %u is not %d: only every %u-th layer without RoPE "
                             "('no_rope_layer_interval') is supported",
                             l, turns(c, l), c->full_attention_interval);
    }
    c->rope[ROPE_STILL] = (struct rope_config){.kind = ROPE_PART,
                                               .theta = c->rope[0].theta,
                                               .factor = 1,
                                               .attention_factor = 1};
    return layers_without_window(keys, c, err);
}

/* ---- the architecture ---- */

const struct arch arch_smollm3 = {.architecture = "SmolLM3ForCausalLM",
                                  .model_type = "smollm3",
                                  .gguf = {"smollm3"},
                                  .gguf_interleaved = true,
                                  .start = {ROPE_START(2000000), .max_context = 32768, .norm_eps = 1e-6,
                                            .full_attention_interval = 4, .tied_head = true},
                                  .keys = keys_of_both,
                                  .embed = &usual_embed,
                                  .head = &usual_head,
                                  .parts = parts,
                                  .kind = kind,
                                  .layers = layers};
