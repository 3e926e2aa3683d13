/* Gemma 3 and 4: four norms a layer, of which two are of what a half adds; a gated MLP by GELU; an embedding
 * times sqrt(hidden); five layers with a window to one without, each kind with a RoPE table of its own; a
 * tied head.
 *
 * Gemma 4 has heads of another size and number in layers without a window, where v may be k; v is normed;
 * scores are not scaled; a factor multiplies each layer's output; logits have a soft cap. Its experts
 * (26B-A4B) stand beside a dense MLP, each with norms of its own. In its small models (E2B, E4B) the last
 * layers read the cache of others before them, and have wider MLPs in E2B; each layer adds what it makes of
 * an embedding of its own of the token.
 *
 * Published config.json files of Gemma 3 leave out what transformers assumes of the architecture (heads,
 * vocabulary); those numbers are in `start`, and every tensor is held against them. Constant tables and pure
 * functions; see arch.h.
 *
 * Models: Gemma 3, Gemma 4 (E2B, E4B, 12B, 31B, 26B-A4B). */
#include <math.h>

#include "common/base/json.h"
#include "common/model/arch/usual.h"
#include "common/model/checkpoint.h"

/* ---- keys ---- */

static const struct arch_key gemma3_keys[] = {
    COUNT(intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED, NAMED("intermediate_size"),
          GGUF("feed_forward_length")),
    COUNT(layers, MODEL_LAYERS_MAX, KEY_NEEDED, NAMED("num_hidden_layers"), GGUF("block_count")),
    COUNT(hidden, MODEL_HIDDEN_MAX, KEY_NEEDED, NAMED("hidden_size"), GGUF("embedding_length")),
    COUNT(vocab, MODEL_VOCAB_MAX, KEY_OPTIONAL, NAMED("vocab_size")),
    COUNT(heads, MODEL_HEADS_MAX, KEY_NEEDED_IN_GGUF, NAMED("num_attention_heads"),
          GGUF("attention.head_count")),
    COUNT(kv_heads, MODEL_HEADS_MAX, KEY_NEEDED_IN_GGUF, NAMED("num_key_value_heads"),
          GGUF("attention.head_count_kv")),
    COUNT(head_dim, MODEL_HEAD_DIM_MAX, KEY_NEEDED_IN_GGUF, NAMED("head_dim"), GGUF("attention.key_length")),
    COUNT(max_context, MODEL_CONTEXT_MAX, KEY_NEEDED_IN_GGUF, NAMED("max_position_embeddings"),
          GGUF("context_length")),
    REAL(norm_eps, 1e-12, 1, NAMED("rms_norm_eps"), GGUF("attention.layer_norm_rms_epsilon"),
         .need = KEY_NEEDED_IN_GGUF),
    FLAG(tied_head, NAMED("tie_word_embeddings")),
    KEY(KEY_WORD, NAMED("hidden_activation", "hidden_act"), .words = "gelu_pytorch_tanh"),
    ATTENTION_BIAS_KEYS,
    COUNT(sliding_window, MODEL_CONTEXT_MAX, KEY_NEEDED, NAMED("sliding_window"),
          GGUF("attention.sliding_window")),
    COUNT(full_attention_interval, MODEL_LAYERS_MAX, KEY_OPTIONAL,
          NAMED("sliding_window_pattern", "_sliding_window_pattern"),
          GGUF("attention.sliding_window_pattern")),
    REAL(attention_scale, 1e-6, 1e6, NAMED("query_pre_attn_scalar")), /* whose root divides scores */
    REAL(rope[1].theta, 2, 1e12, NAMED("rope_local_base_freq"), GGUF("rope.freq_base_swa")),
    FIXED(0, NAMED("attn_logit_softcapping"), GGUF("attn_logit_softcapping"),
          .why = "a soft cap of attention's scores is not supported"),
    FIXED(0, NAMED("final_logit_softcapping"), GGUF("final_logit_softcapping"),
          .why = "a soft cap of logits is not supported"),
    END};

#define PER_LAYER_MAX 4096
/* head_dim and kv_heads are those of layers without a window. */
static const struct arch_key gemma4_keys[] = {
    COUNT(intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED_IN_CONFIG, NAMED("intermediate_size")),
    COUNT(layers, MODEL_LAYERS_MAX, KEY_NEEDED, NAMED("num_hidden_layers"), GGUF("block_count")),
    COUNT(hidden, MODEL_HIDDEN_MAX, KEY_NEEDED, NAMED("hidden_size"), GGUF("embedding_length")),
    COUNT(vocab, MODEL_VOCAB_MAX, KEY_NEEDED, NAMED("vocab_size")),
    COUNT(heads, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("num_attention_heads"), GGUF("attention.head_count")),
    COUNT(window_heads.kv_heads, MODEL_HEADS_MAX, KEY_NEEDED_IN_CONFIG, NAMED("num_key_value_heads")),
    COUNT(window_heads.head_dim, MODEL_HEAD_DIM_MAX, KEY_NEEDED, NAMED("head_dim"),
          GGUF("attention.key_length_swa")),
    COUNT(kv_heads, MODEL_HEADS_MAX, KEY_OPTIONAL, NAMED("num_global_key_value_heads")),
    COUNT(head_dim, MODEL_HEAD_DIM_MAX, KEY_NEEDED, NAMED("global_head_dim"), GGUF("attention.key_length")),
    COUNT(max_context, MODEL_CONTEXT_MAX, KEY_NEEDED_IN_GGUF, NAMED("max_position_embeddings"),
          GGUF("context_length")),
    REAL(norm_eps, 1e-12, 1, NAMED("rms_norm_eps"), GGUF("attention.layer_norm_rms_epsilon"),
         .need = KEY_NEEDED_IN_GGUF),
    FLAG(tied_head, NAMED("tie_word_embeddings")),
    FLAG(k_is_v, NAMED("attention_k_eq_v")),
    KEY(KEY_WORD, NAMED("hidden_activation", "hidden_act"), .words = "gelu_pytorch_tanh"),
    KEY(KEY_WORD, NAMED("use_bidirectional_attention"), .words = "vision"), /* of images alone */
    ATTENTION_BIAS_KEYS,
    COUNT(sliding_window, MODEL_CONTEXT_MAX, KEY_NEEDED, NAMED("sliding_window"),
          GGUF("attention.sliding_window")),
    REAL(rope[1].theta, 2, 1e12, GGUF("rope.freq_base_swa")),
    REAL(logit_cap, 0, 1e6, NAMED("final_logit_softcapping"), GGUF("final_logit_softcapping")),
    OR_NONE(router.experts, MODEL_EXPERTS_MAX, NAMED("num_experts"), .null_is_zero = true,
            GGUF("expert_count")),
    OR_NONE(router.chosen, MODEL_EXPERTS_CHOSEN_MAX, NAMED("top_k_experts"), .null_is_zero = true,
            GGUF("expert_used_count")),
    OR_NONE(expert_intermediate, MODEL_INTERMEDIATE_MAX, NAMED("moe_intermediate_size"), .null_is_zero = true,
            GGUF("expert_feed_forward_length")),
    OR_NONE(per_layer, PER_LAYER_MAX, NAMED("hidden_size_per_layer_input"),
            GGUF("embedding_length_per_layer_input")),
    OR_NONE(per_layer_vocab, MODEL_VOCAB_MAX, NAMED("vocab_size_per_layer_input")),
    OR_NONE(reading_layers, MODEL_LAYERS_MAX, NAMED("num_kv_shared_layers"),
            GGUF("attention.shared_kv_layers")),
    FLAG(reading_wide, NAMED("use_double_wide_mlp")),
    END};

/* ---- tensors ---- */

static const struct arch_name names[] = {
    {TENSOR_ROUTER, "router.proj.weight", NULL},
    {TENSOR_ATTN_OUT_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight"},
    {TENSOR_MLP_NORM, "pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {TENSOR_MLP_OUT_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {.role = TENSOR_NONE}};
static const struct arch_vector less_one[] = {
    {TENSOR_FINAL_NORM, VECTOR_LESS_ONE},    {TENSOR_ATTN_NORM, VECTOR_LESS_ONE},
    {TENSOR_ATTN_OUT_NORM, VECTOR_LESS_ONE}, {TENSOR_MLP_NORM, VECTOR_LESS_ONE},
    {TENSOR_MLP_OUT_NORM, VECTOR_LESS_ONE},  {TENSOR_Q_NORM, VECTOR_LESS_ONE},
    {TENSOR_K_NORM, VECTOR_LESS_ONE},        {.role = TENSOR_NONE}};
static const struct arch_vector over_root[] = {{TENSOR_ROUTER_NORM, VECTOR_OVER_ROOT}, {.role = TENSOR_NONE}};
static const struct fused_tensor fused[] = {{"experts.gate_up_proj", "ffn_gate_up_exps.weight", FUSED_RUNS,
                                             FUSED_ROLES(TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS),
                                             fused_expert_rows, fused_expert_row},
                                            {"experts.down_proj", NULL, FUSED_RUNS,
                                             FUSED_ROLES(TENSOR_DOWN_EXPERTS), fused_down_rows,
                                             fused_same_row},
                                            {.roles = 0}};
static const char *const skipped[] = {"vision_tower.",       "multi_modal_projector.",
                                      "model.vision_tower.", "model.multi_modal_projector.",
                                      "model.audio_tower.",  "model.embed_vision.",
                                      "model.embed_audio.",  NULL};

/* ---- a layer ---- */

#define ATTENTION_OF(called, products, ...)                                                                  \
    PART(called, UNIT_ATTENTION, products,                                                                   \
         ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM, __VA_ARGS__), USUAL_O_TO_OUT,              \
         ADD_NORMED("add o", TENSOR_ATTN_OUT_NORM))
#define GATE_UP                                                                                              \
    OP(MATH_LINEAR, "gate up", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .weights = 2,                        \
       .weight = {TENSOR_GATE, TENSOR_UP}, .out = {BUFFER_GATE, BUFFER_UP},                                  \
       .activation = ACTIVATION_GELU_TANH, .gated = true)
#define DOWN TO_OUT("down", BUFFER_GATE, TENSOR_DOWN, TENSOR_NONE)

static const struct math_part full = ATTENTION_OF("attention", USUAL_QKV, .rope = 0);
static const struct math_part window =
    ATTENTION_OF("attention in a window", USUAL_QKV, .rope = 1, .windowed = true);
static const struct math_part dense =
    PART("MLP", UNIT_MLP, GATE_UP, DOWN, ADD_NORMED("add down", TENSOR_MLP_OUT_NORM));
enum {
    PART_WINDOW = MATH_PART_SPARSE,
    PART_K_ALONE,
    PART_EXPERTS,
    PART_READS,
    PART_WINDOW_READS,
    PART_PER_LAYER
};
static const struct math_part *const gemma3_parts[] = {
    [MATH_PART_ATTENTION] = &full, [MATH_PART_DENSE] = &dense, [PART_WINDOW] = &window, NULL};

static const struct math_part full4 = ATTENTION_OF("attention", USUAL_QKV, .rope = 0, .v_normed = true);
static const struct math_part k_alone =
    ATTENTION_OF("attention",
                 OP(MATH_LINEAR, "q k", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 2,
                    .weight = {TENSOR_Q, TENSOR_K}, .bias = {TENSOR_Q_BIAS, TENSOR_K_BIAS},
                    .out = {BUFFER_Q, BUFFER_K}),
                 .rope = 0, .v_normed = true, .v_is_k = true);
static const struct math_part window4 =
    ATTENTION_OF("attention in a window", USUAL_QKV, .rope = 1, .windowed = true, .v_normed = true);
static const struct math_part dense4 =
    PART("MLP", UNIT_MLP, GATE_UP, DOWN,
         OP(MATH_ADD_NORMED, "add down", .in = BUFFER_OUT, .norm = TENSOR_MLP_OUT_NORM,
            .out_factor = TENSOR_LAYER_SCALE, .out = {BUFFER_X}, .residual = true));
/* The dense MLP first: experts' activations take the place of its own. */
static const struct math_part sparse4 =
    PART("MLP and experts", UNIT_MLP, GATE_UP, DOWN,
         OP(MATH_ROUTE, "router", .in = BUFFER_X, .norm = TENSOR_ROUTER_NORM, .router = TENSOR_ROUTER,
            .expert_scale = TENSOR_EXPERT_SCALE, .out = {BUFFER_CHOICE}),
         OP(MATH_EXPERTS_GLU, "experts' gate up", .in = BUFFER_X, .norm = TENSOR_EXPERTS_NORM, .weights = 2,
            .weight = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS}, .out = {BUFFER_GATE, BUFFER_UP},
            .activation = ACTIVATION_GELU_TANH, .gated = true),
         OP(MATH_EXPERTS_DOWN, "experts' down", .in = BUFFER_GATE, .weights = 1,
            .weight = {TENSOR_DOWN_EXPERTS}, .out = {BUFFER_SUM}),
         OP(MATH_ADD_NORMED, "add both", .in = BUFFER_OUT, .in_norm = TENSOR_DENSE_OUT_NORM,
            .other = BUFFER_SUM, .other_norm = TENSOR_EXPERTS_OUT_NORM, .norm = TENSOR_MLP_OUT_NORM,
            .out_factor = TENSOR_LAYER_SCALE, .out = {BUFFER_X}, .residual = true));
/* Layers that read another one's cache. */
#define Q_ALONE                                                                                              \
    OP(MATH_LINEAR, "q", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 1, .weight = {TENSOR_Q},       \
       .bias = {TENSOR_Q_BIAS}, .out = {BUFFER_Q})
#define READING_OF(called, ...)                                                                              \
    PART(called, UNIT_ATTENTION, Q_ALONE, ATTEND(.q_norm = TENSOR_Q_NORM, .other_cache = true, __VA_ARGS__), \
         USUAL_O_TO_OUT, ADD_NORMED("add o", TENSOR_ATTN_OUT_NORM))
static const struct math_part reads = READING_OF("attention, shared cache", .rope = 0);
static const struct math_part window_reads =
    READING_OF("attention in a window, shared", .rope = 1, .windowed = true);
/* After a dense MLP: a gate of the residual stream times the layer's part of the per-layer embeddings. */
static const struct math_part per_layer =
    PART("MLP and per-layer embedding", UNIT_MLP, GATE_UP, DOWN, ADD_NORMED("add down", TENSOR_MLP_OUT_NORM),
         OP(MATH_LINEAR, "per-layer gate", .in = BUFFER_X, .weights = 1, .weight = {TENSOR_PER_LAYER_GATE},
            .out = {BUFFER_GATE}, .activation = ACTIVATION_GELU_TANH, .times = BUFFER_PER_LAYER),
         TO_OUT("per-layer out", BUFFER_GATE, TENSOR_PER_LAYER_OUT, TENSOR_NONE),
         OP(MATH_ADD_NORMED, "add per-layer", .in = BUFFER_OUT, .norm = TENSOR_PER_LAYER_OUT_NORM,
            .out_factor = TENSOR_LAYER_SCALE, .out = {BUFFER_X}, .residual = true));
static const struct math_part inputs4 =
    PART("per-layer inputs", UNIT_PARTS,
         OP(MATH_LINEAR, "per-layer projection", .in = BUFFER_X, .weights = 1,
            .weight = {TENSOR_PER_LAYER_PROJ}, .out = {BUFFER_PER_LAYER}),
         OP(MATH_PER_LAYER, "per-layer embedding", .in = BUFFER_PER_LAYER, .norm = TENSOR_PER_LAYER_NORM,
            .weights = 1, .weight = {TENSOR_PER_LAYER_EMBED}, .out = {BUFFER_PER_LAYER}));
static const struct math_part *const gemma4_parts[] = {
    [MATH_PART_ATTENTION] = &full4,      [MATH_PART_DENSE] = &dense4,   [PART_WINDOW] = &window4,
    [PART_K_ALONE] = &k_alone,           [PART_EXPERTS] = &sparse4,     [PART_READS] = &reads,
    [PART_WINDOW_READS] = &window_reads, [PART_PER_LAYER] = &per_layer, NULL};
_Static_assert(sizeof gemma4_parts / sizeof *gemma4_parts <= MATH_PARTS_MAX + 1, "kinds of units");

static uint32_t kind(const struct model_config *config, uint32_t layer, enum unit_part part)
{
    const bool in_window = config->window && config->window[layer];
    if (part == UNIT_MLP && config->per_layer) return PART_PER_LAYER;
    if (part == UNIT_MLP) return model_layer_sparse(config, layer) ? PART_EXPERTS : MATH_PART_DENSE;
    if (model_reads_cache(config, layer)) return in_window ? PART_WINDOW_READS : PART_READS;
    if (in_window) return PART_WINDOW;
    return config->k_is_v ? PART_K_ALONE : MATH_PART_ATTENTION;
}

static void fill(const struct model_config *c, struct model_math *math)
{
    math->embed.out_scale = sqrtf((float)c->hidden);
    math->head.soft_cap = (float)c->logit_cap;
    for (uint32_t i = 0; i < math->inputs.ops; i++) {
        struct math_op *op = &math->inputs.op[i];
        if (op->kind != MATH_PER_LAYER) continue;
        op->in_scale = 1 / sqrtf((float)c->hidden);
        op->table_scale = sqrtf((float)c->per_layer);
        op->out_scale = (float)sqrt(0.5);
    }
    for (uint32_t p = 0; p < math->parts; p++)
        for (uint32_t i = 0; i < math->part[p].ops; i++)
            if (math->part[p].op[i].kind == MATH_ATTENTION)
                math->part[p].op[i].score_scale = (float)(1 / sqrt(c->attention_scale));
}

/* ---- which layer is what ---- */

/* A window in all but every sixth layer. No key of GGUF files says what divides scores: the model of 62
 * layers (27B) has another number than a head's size, as llama.cpp reads them. */
#define LAYERS_OF_27B 62
static int gemma3_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    bool both_ways = false;
    int rc =
        keys->json ? json_get_bool(keys->json, "use_bidirectional_attention", false, &both_ways, err) : 0;
    if (!rc && both_ways)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "'use_bidirectional_attention' is true: models of embeddings are not supported");
    if (!rc && keys->header)
        c->attention_scale = c->layers == LAYERS_OF_27B ? (double)c->hidden / c->heads : c->head_dim;
    if (!rc) rc = layers_with_window(keys, c, 0, c->layers, 1, err);
    if (!rc) layers_full_every(keys, c, c->full_attention_interval);
    return rc;
}

/* The widths of dense MLPs in a GGUF file: one number, or one for each layer. */
static int gemma4_widths(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    static const char key[] = "gemma4.feed_forward_length";
    const struct gguf_value *widths = gguf_find(keys->header, key);
    bool alike = true;
    if (!widths || widths->type == GGUF_STRING || widths->type == GGUF_ARRAY ||
        (widths->array && widths->count < c->layers))
        return helm_fail(err, HELM_E_FORMAT, "key '%s' is no number, nor one for each of %u layers", key,
                         c->layers);
    c->widths = calloc(c->layers, sizeof *c->widths);
    if (!c->widths) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", c->layers);
    for (uint32_t l = 0; l < c->layers; l++) {
        const double width = gguf_number(widths, widths->array ? l : 0);
        if (!(width >= 1 && width <= MODEL_INTERMEDIATE_MAX))
            return helm_fail(err, HELM_E_LIMIT, "key '%s' is %g for layer %u, not between 1 and %u", key,
                             width, l, MODEL_INTERMEDIATE_MAX);
        c->widths[l] = (uint32_t)width;
        if (c->widths[l] > c->intermediate) c->intermediate = c->widths[l];
        alike &= c->widths[l] == c->widths[0];
    }
    if (!alike) return 0;
    free(c->widths);
    c->widths = NULL;
    return 0;
}

/* GGUF files have the kv heads of each layer, and a flag for each that has a window. */
static int gemma4_gguf(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    const struct gguf_value *heads = gguf_find(keys->header, "gemma4.attention.head_count_kv"),
                            *flags = gguf_find(keys->header, "gemma4.attention.sliding_window_pattern");
    if (!flags || !flags->array || flags->type == GGUF_STRING || flags->type == GGUF_ARRAY ||
        flags->count < c->layers)
        return helm_fail(err, HELM_E_FORMAT,
                         "key 'gemma4.attention.sliding_window_pattern' is no list of flags, one for each of "
                         "%u layers",
                         c->layers);
    if (!heads || heads->type == GGUF_STRING || heads->type == GGUF_ARRAY ||
        (heads->array && heads->count < c->layers))
        return helm_fail(err, HELM_E_FORMAT,
                         "key 'gemma4.attention.head_count_kv' is no number, nor one for each of %u layers",
                         c->layers);
    static const char *const sizes[] = {"gemma4.rope.dimension_count_swa",
                                        "gemma4.attention.value_length_swa"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t size = c->window_heads.head_dim;
        int rc = gguf_get_u64(keys->header, sizes[i], false, 0, UINT32_MAX, &size, err);
        if (!rc && size != c->window_heads.head_dim)
            rc = helm_fail(err, HELM_E_UNSUPPORTED, "key '%s' is %llu, but heads in windows have %u values",
                           sizes[i], (unsigned long long)size, c->window_heads.head_dim);
        if (rc) return rc;
    }
    c->kv_heads = c->window_heads.kv_heads = 0;
    const int rc = gemma4_widths(keys, c, err);
    if (rc) return rc;
    for (uint32_t l = 0; l < c->layers; l++) {
        const double number = gguf_number(heads, heads->array ? l : 0);
        uint32_t *of = gguf_number(flags, l) != 0 ? &c->window_heads.kv_heads : &c->kv_heads;
        c->window[l] = gguf_number(flags, l) != 0 ? c->sliding_window : 0;
        if (!(number >= 1 && number <= MODEL_HEADS_MAX))
            return helm_fail(err, HELM_E_LIMIT,
                             "key 'gemma4.attention.head_count_kv' is %g for layer %u, not between 1 and %u",
                             number, l, MODEL_HEADS_MAX);
        if (*of && *of != (uint32_t)number)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "key 'gemma4.attention.head_count_kv' is %g for layer %u, another one of its kind "
                "has %u",
                number, l, *of);
        *of = (uint32_t)number;
    }
    if (!c->kv_heads || !c->window_heads.kv_heads)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "key 'gemma4.attention.sliding_window_pattern': %s of %u layers have a window",
                         c->kv_heads ? "none" : "all", c->layers);
    return 0;
}

/* GGUF files lack v where it is k: in all layers without a window, or in none of them. */
static int gemma4_tensors(const struct gguf_files *files, struct model_config *c, struct helm_err *err)
{
    int32_t first = -1;
    if (!gguf_files_tensor(files, ARCH_ROPE_FACTORS, NULL))
        return helm_fail(err, HELM_E_NOT_FOUND, "there is no vector '%s'", ARCH_ROPE_FACTORS);
    for (uint32_t l = 0; l < c->layers; l++) {
        char name[MODEL_NAME_MAX];
        if (c->window[l] || model_reads_cache(c, l)) continue;
        model_tensor_name(c, TENSOR_V, (int32_t)l, name);
        const bool none = !gguf_files_tensor(files, name, NULL);
        if (first >= 0 && none != c->k_is_v)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "there is %s '%s', but %s in layer %d, which has no window either",
                             none ? "no" : "a", name, none ? "one" : "none", first);
        if (first < 0) first = (int32_t)l;
        c->k_is_v = none;
    }
    return 0;
}

/* Layers that read another one's cache: each kind of them has a layer before them that has one. */
static int gemma4_reading(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    if (c->reading_layers >= c->layers)
        return helm_fail(err, HELM_E_LIMIT, "'%s' is %u of %u layers: one has to have a cache",
                         keys_name(keys, AT(reading_layers), name), c->reading_layers, c->layers);
    if (!c->reading_layers) return 0;
    c->reads = calloc(c->layers, sizeof *c->reads);
    if (!c->reads) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", c->layers);
    for (uint32_t l = c->layers - c->reading_layers; l < c->layers; l++) c->reads[l] = true;
    for (uint32_t l = c->layers - c->reading_layers; l < c->layers; l++) {
        const uint32_t from = model_cache_layer(c, l);
        if (!model_reads_cache(c, from) && !c->window[from] == !c->window[l]) continue;
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "'%s' is %u: layer %u has %s window, and no layer before these whose cache it could read",
            keys_name(keys, AT(reading_layers), name), c->reading_layers, l, c->window[l] ? "a" : "no");
    }
    if (!c->reading_wide) return 0;
    if (c->intermediate > MODEL_INTERMEDIATE_MAX / 2)
        return helm_fail(err, HELM_E_LIMIT, "'%s' is %u, and twice as many in %u layers, more than %u",
                         keys_name(keys, AT(intermediate), name), c->intermediate, c->reading_layers,
                         MODEL_INTERMEDIATE_MAX);
    c->widths = calloc(c->layers, sizeof *c->widths);
    if (!c->widths) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", c->layers);
    for (uint32_t l = 0; l < c->layers; l++)
        c->widths[l] = model_reads_cache(c, l) ? 2 * c->intermediate : c->intermediate;
    c->intermediate *= 2;
    return 0;
}

/* Per-layer embeddings: a row of each token, and no experts beside them. */
static int gemma4_per_layer(struct keys *keys, const struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    if (!c->per_layer) return 0;
    if (c->router.experts)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'%s' is %u: per-layer embeddings with experts are not supported",
                         keys_name(keys, AT(per_layer), name), c->per_layer);
    if (keys->json && c->per_layer_vocab != c->vocab)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'%s' is %u, but 'vocab_size' %u: each token has a row of per-layer embeddings",
                         keys_name(keys, AT(per_layer_vocab), name), c->per_layer_vocab, c->vocab);
    return 0;
}

/* All layers have experts, or none. */
static int gemma4_experts(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    bool experts = c->router.experts > 0;
    const int rc = keys->json ? json_get_bool(keys->json, "enable_moe_block", false, &experts, err) : 0;
    if (rc) return rc;
    if (!experts) {
        c->router = (struct model_router){0};
        c->expert_intermediate = 0;
        return 0;
    }
    if (!c->router.experts || !c->router.chosen || !c->expert_intermediate)
        return helm_fail(
            err, HELM_E_FORMAT,
            "layers have experts, but there are %u, of which a token has %u, of width %u: none is 0",
            c->router.experts, c->router.chosen, c->expert_intermediate);
    return layers_with_experts(keys, c, NULL, err);
}

/* A window in all layers but every sixth and the last. */
static int gemma4_windows(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    if (!json_is_object(json_object_get(keys->json, "rope_parameters")))
        return helm_fail(err, HELM_E_FORMAT, "'rope_parameters' is missing");
    if (!c->k_is_v) c->kv_heads = c->window_heads.kv_heads;
    layers_full_every(keys, c, c->full_attention_interval);
    if (c->window[c->layers - 1])
        return helm_fail(err, HELM_E_UNSUPPORTED, "'layer_types': the last layer has a window");
    return 0;
}

static int gemma4_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    int rc = layers_with_window(keys, c, 0, c->layers, 1, err);
    if (!rc) rc = gemma4_experts(keys, c, err);
    if (!rc) rc = (keys->json ? gemma4_windows : gemma4_gguf)(keys, c, err);
    if (!rc) rc = gemma4_per_layer(keys, c, err);
    if (!rc) rc = gemma4_reading(keys, c, err);
    if (rc) return rc;
    const struct model_heads *w = &c->window_heads;
    if (!w->kv_heads || !c->kv_heads)
        return helm_fail(err, HELM_E_FORMAT, "layers %s a window have 0 kv heads, not between 1 and %u",
                         c->kv_heads ? "with" : "without", MODEL_HEADS_MAX);
    if (w->head_dim % 2)
        return helm_fail(err, HELM_E_FORMAT, "heads of layers with a window have %u values, an odd number",
                         w->head_dim);
    if (c->heads % w->kv_heads || c->heads % c->kv_heads)
        return helm_fail(
            err, HELM_E_FORMAT,
            "%u heads are no multiple of %u kv heads in layers with a window, or of %u in others", c->heads,
            w->kv_heads, c->kv_heads);
    if (w->kv_heads == c->kv_heads && w->head_dim == c->head_dim) c->window_heads = (struct model_heads){0};
    c->attention_scale = 1; /* scores stay as they are */
    return 0;
}

/* ---- the architectures ---- */

static const struct math_op embed = USUAL_EMBED;
static const struct math_op head = USUAL_HEAD;

#define ROPES(full_theta, window_theta)                                                                      \
    .rope = {{.theta = (full_theta), .factor = 1, .attention_factor = 1, .truncate = true},                  \
             {.theta = (window_theta), .factor = 1, .attention_factor = 1, .truncate = true}}

const struct arch arch_gemma3 = {.architecture = "Gemma3ForCausalLM",
                                 .model_type = "gemma3_text",
                                 .outer = {"Gemma3ForConditionalGeneration"},
                                 .text_type = "gemma3",
                                 .gguf = {"gemma3"},
                                 .start = {ROPES(1e6, 1e4), .max_context = 131072, .norm_eps = 1e-6,
                                           .vocab = 262208, .heads = 8, .kv_heads = 4, .head_dim = 256,
                                           .attention_scale = 256, .qk_norm = true, .tied_head = true,
                                           .full_attention_interval = 6, .normed_outputs = true},
                                 .keys = gemma3_keys,
                                 .names = names,
                                 .vectors = less_one,
                                 .skipped = skipped,
                                 .embed = &embed,
                                 .head = &head,
                                 .parts = gemma3_parts,
                                 .kind = kind,
                                 .layers = gemma3_layers,
                                 .fill = fill};
const struct arch arch_gemma4 = {.architecture = "Gemma4ForCausalLM",
                                 .model_type = "gemma4_text",
                                 .outer = {"Gemma4ForConditionalGeneration",
                                           "Gemma4UnifiedForConditionalGeneration"},
                                 .text_type = "gemma4_unified_text",
                                 .gguf = {"gemma4"},
                                 .start = {ROPES(1e6, 1e4), .max_context = 131072, .norm_eps = 1e-6,
                                           .qk_norm = true, .tied_head = true, .full_attention_interval = 6,
                                           .normed_outputs = true,
                                           .router = ROUTER_START(ROUTER_SOFTMAX, .normalise = true)},
                                 .keys = gemma4_keys,
                                 .names = names,
                                 .fused = fused,
                                 .vectors = over_root,
                                 .skipped = skipped,
                                 .embed = &embed,
                                 .head = &head,
                                 .inputs = &inputs4,
                                 .parts = gemma4_parts,
                                 .kind = kind,
                                 .layers = gemma4_layers,
                                 .gguf_tensors = gemma4_tensors,
                                 .fill = fill};
