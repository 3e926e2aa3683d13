/* OLMo 2 and 3: norms of what a half adds, none of its input; norms of q and k, all heads of one together.
 * OLMo 3 has three layers with a window to one without; where RoPE is scaled, windows' is not.
 *
 * GGUF files call both `olmo2`; a window tells OLMo 3. Constant tables and pure functions; see arch.h.
 *
 * Models: OLMo 2 and 3. */
#include <math.h>
#include <stdio.h>

#include "common/model/arch/usual.h"

/* ---- keys ---- */

#define OLMO_KEYS USUAL_KEYS(KEY_STATED, KEY_OPTIONAL), SILU_KEY, ATTENTION_BIAS_KEYS
static const struct arch_key olmo2_keys[] = {OLMO_KEYS, END};
static const struct arch_key olmo3_keys[] = {OLMO_KEYS,
                                             COUNT(sliding_window, MODEL_CONTEXT_MAX, KEY_NEEDED_IN_GGUF,
                                                   NAMED("sliding_window"), GGUF("attention.sliding_window")),
                                             REAL(rope[0].attention_factor, 1e-3, 1e6,
                                                  GGUF("rope.scaling.attn_factor")),
                                             END};

/* ---- tensors ---- */

static const struct arch_name names[] = {
    {TENSOR_ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight"},
    {TENSOR_MLP_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {TENSOR_MLP_NORM, "pre_feedforward_layernorm.weight", NULL}, /* there is none */
    {.role = TENSOR_NONE}};

/* ---- a layer ---- */

#define ATTENTION_OF(called, ...)                                                                            \
    PART(called, UNIT_ATTENTION,                                                                             \
         OP(MATH_LINEAR, "q k v", .in = BUFFER_X, .weights = 3, .weight = {TENSOR_Q, TENSOR_K, TENSOR_V},    \
            .bias = {TENSOR_Q_BIAS, TENSOR_K_BIAS, TENSOR_V_BIAS}, .out = {BUFFER_Q, BUFFER_K, BUFFER_V}),   \
         NORM_Q_K, ATTEND(__VA_ARGS__), USUAL_O_TO_OUT, ADD_NORMED("add o", TENSOR_ATTN_OUT_NORM))
enum { PART_WINDOW = MATH_PART_SPARSE };
static const struct math_part full = ATTENTION_OF("attention", .rope = 0);
static const struct math_part window = ATTENTION_OF("attention in a window", .rope = 1, .windowed = true);
static const struct math_part dense =
    PART("MLP", UNIT_MLP,
         OP(MATH_LINEAR, "gate up", .in = BUFFER_X, .weights = 2, .weight = {TENSOR_GATE, TENSOR_UP},
            .out = {BUFFER_GATE, BUFFER_UP}, .activation = ACTIVATION_SILU, .gated = true),
         TO_OUT("down", BUFFER_GATE, TENSOR_DOWN, TENSOR_NONE), ADD_NORMED("add down", TENSOR_MLP_OUT_NORM));
static const struct math_part *const parts[] = {
    [MATH_PART_ATTENTION] = &full, [MATH_PART_DENSE] = &dense, [PART_WINDOW] = &window, NULL};

static uint32_t kind(const struct model_config *c, uint32_t layer, enum unit_part part)
{
    if (part == UNIT_MLP) return MATH_PART_DENSE;
    return c->window && c->window[layer] ? PART_WINDOW : MATH_PART_ATTENTION;
}

/* ---- which layer is what ---- */

/* A window in all but every fourth layer. GGUF files may say the distance, or a flag for each layer. */
static int olmo3_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    snprintf(name, sizeof name, "%s.attention.sliding_window_pattern", keys->header ? keys->prefix : "");
    const struct gguf_value *pattern = keys->header ? gguf_find(keys->header, name) : NULL;
    int rc = layers_with_window(keys, c, 0, c->layers, 1, err);
    if (rc) return rc;
    if (pattern && (pattern->type == GGUF_STRING || pattern->type == GGUF_ARRAY ||
                    (pattern->array ? pattern->count < c->layers
                                    : gguf_number(pattern, 0) < 1 || fmod(gguf_number(pattern, 0), 1) != 0)))
        return helm_fail(err, HELM_E_FORMAT, "key '%s' is no number from 1, nor one for each of %u layers",
                         name, c->layers);
    const bool flags = pattern && pattern->array;
    for (uint32_t l = 0; l < c->layers && flags; l++)
        if (gguf_number(pattern, l) == 0) c->window[l] = 0;
    const double distance = pattern && !flags ? gguf_number(pattern, 0) : 4;
    if (!flags) layers_full_every(keys, c, (uint32_t)fmin(distance, MODEL_LAYERS_MAX + 1));
    const json_t *parameters = keys->json ? json_object_get(keys->json, "rope_parameters") : NULL;
    if (!json_object_get(parameters, "sliding_attention"))
        c->rope[1] = (struct rope_config){.kind = ROPE_DEFAULT,
                                          .theta = c->rope[0].theta,
                                          .factor = 1,
                                          .attention_factor = 1,
                                          .truncate = true};
    return 0;
}

/* ---- the architectures ---- */

#define OLMO                                                                                                 \
    .gguf = {"olmo2"}, .names = names, .embed = &usual_embed, .head = &usual_head, .parts = parts,           \
    .kind = kind
#define START                                                                                                \
    ROPE_START(500000), .max_context = 2048, .norm_eps = 1e-5, .qk_norm = true, .whole_norms = true,         \
                        .normed_outputs = true
const struct arch arch_olmo2 = {.architecture = "Olmo2ForCausalLM",
                                .model_type = "olmo2",
                                OLMO,
                                .start = {START},
                                .keys = olmo2_keys,
                                .layers = layers_without_window};
const struct arch arch_olmo3 = {
    .architecture = "Olmo3ForCausalLM",
    .model_type = "olmo3",
    OLMO,
    .gguf_told_by = "attention.sliding_window",
    .start = {START, .sliding_window = 4096,
              .rope[1] = {.theta = 500000, .factor = 1, .attention_factor = 1, .truncate = true}},
    .keys = olmo3_keys,
    .layers = olmo3_layers};
