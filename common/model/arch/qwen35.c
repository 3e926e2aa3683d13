/* Qwen3.5 and Qwen3.6, their mixtures of experts, and Qwen3-Next: hybrids of gated delta nets and attention.
 *
 *   Qwen3.5      three gated delta nets, then one layer of attention; dense
 *   Qwen3.5-MoE  the same with experts, and one more that every token has with a weight of its own
 *   Qwen3-Next   the same as that; other tensors' names
 *
 * Attention's output has a gate, and a part of each head turns. A gated delta net keeps a matrix of each v
 * head and the last inputs of its convolution (common/cpu/kernels/delta.h). Published checkpoints of Qwen3.5
 * are the text part of a model with images, which is skipped. A layer after the last one makes drafts from
 * hidden states after the final norm. Constant tables and pure functions; see arch.h.
 *
 * Models: Qwen3.5, Qwen3.6, their mixtures, Qwen3-Next. */
#include <stdlib.h>
#include <string.h>

#include "common/model/arch/usual.h"

/* ---- keys ---- */

#define HYBRID_KEYS                                                                                          \
    SILU_KEY, FLAG(q_bias, NAMED("attention_bias")), FLAG(gated_attention, NAMED("attn_output_gate")),       \
        COUNT(rope[0].dims, MODEL_HEAD_DIM_MAX, KEY_NEEDED_IN_GGUF, GGUF("rope.dimension_count")),           \
        COUNT(full_attention_interval, MODEL_LAYERS_MAX, KEY_OPTIONAL, NAMED("full_attention_interval"),     \
              GGUF("full_attention_interval")),                                                              \
        COUNT(delta.key_heads, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("linear_num_key_heads"),                   \
              GGUF("ssm.group_count")),                                                                      \
        COUNT(delta.value_heads, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("linear_num_value_heads"),               \
              GGUF("ssm.time_step_rank")),                                                                   \
        COUNT(delta.key_dim, MODEL_DELTA_HEAD_MAX, KEY_NEEDED, NAMED("linear_key_head_dim"),                 \
              GGUF("ssm.state_size")),                                                                       \
        COUNT(delta.value_dim, MODEL_DELTA_HEAD_MAX, KEY_NEEDED_IN_CONFIG, NAMED("linear_value_head_dim")),  \
        COUNT(delta.inner, MODEL_HIDDEN_MAX, KEY_NEEDED_IN_GGUF, GGUF("ssm.inner_size")),                    \
        COUNT(delta.conv, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("linear_conv_kernel_dim"),                      \
              GGUF("ssm.conv_kernel"))
#define MIXTURE_KEYS                                                                                         \
    KEYS_WITHOUT_WIDTH(KEY_NEEDED_IN_CONFIG, KEY_NEEDED_IN_CONFIG), HYBRID_KEYS,                             \
        OR_NONE(intermediate, MODEL_INTERMEDIATE_MAX, NAMED("intermediate_size"),                            \
                GGUF("feed_forward_length")),                                                                \
        EXPERTS_KEYS("num_experts", "num_local_experts"),                                                    \
        EXPERT_WIDTH_KEY(KEY_NEEDED, "moe_intermediate_size"),                                               \
        OR_NONE(shared_intermediate, MODEL_INTERMEDIATE_MAX, .need = KEY_NEEDED,                             \
                NAMED("shared_expert_intermediate_size"), GGUF("expert_shared_feed_forward_length")),        \
        COUNT(sparse_step, MODEL_LAYERS_MAX, KEY_OPTIONAL, NAMED("decoder_sparse_step"))

static const struct arch_key dense_keys[] = {USUAL_KEYS(KEY_NEEDED_IN_CONFIG, KEY_NEEDED_IN_CONFIG),
                                             HYBRID_KEYS, END};
static const struct arch_key moe_keys[] = {MIXTURE_KEYS, END};
static const struct arch_key next_keys[] = {MIXTURE_KEYS, FLAG(router.normalise, NAMED("norm_topk_prob")),
                                            END};

/* ---- tensors ---- */

static const struct arch_name names[] = {{TENSOR_MLP_NORM, NULL, "post_attention_norm.weight"},
                                         {.role = TENSOR_NONE}};

/* The file's names of the drafts' layer: the rest of it is as in any other. */
static const struct arch_rename draft_names[] = {{"mtp.layers.0.", ""},
                                                 {"mtp.fc.", "eh_proj."},
                                                 {"mtp.pre_fc_norm_embedding.", "enorm."},
                                                 {"mtp.pre_fc_norm_hidden.", "hnorm."},
                                                 {"mtp.norm.", "shared_head.norm."},
                                                 {NULL, NULL}};

static const struct arch_vector vectors[] = {{TENSOR_ATTN_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_MLP_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_Q_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_K_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_FINAL_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_DRAFT_EMBED_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_DRAFT_HIDDEN_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_DRAFT_OUT_NORM, VECTOR_LESS_ONE},
                                             {TENSOR_DELTA_DECAY, VECTOR_LOGARITHM},
                                             {.role = TENSOR_NONE}};

/* Head by head, rows of q, then of its gate. */
static uint64_t head_rows(const struct model_config *c)
{
    return c->head_dim;
}
static uint64_t head_row(const struct model_config *c, uint32_t number, uint64_t row)
{
    return row / c->head_dim * 2 * c->head_dim + number * c->head_dim + row % c->head_dim;
}

/* k head by k head, rows of its q, its k, v of its v heads, z of these. */
static uint64_t qkvz_rows(const struct model_config *c)
{
    (void)c;
    return MODEL_DELTA_HEAD_UNIT;
}
static uint64_t qkvz_row(const struct model_config *c, uint32_t number, uint64_t row)
{
    const struct model_delta *d = &c->delta;
    const uint64_t key = d->key_dim, keys = key * d->key_heads,
                   values = (uint64_t)d->value_heads / d->key_heads * d->value_dim,
                   group = 2 * key + 2 * values;
    if (number == 1) return row / values * group + 2 * key + values + row % values; /* z */
    if (row >= 2 * keys) return (row - 2 * keys) / values * group + 2 * key + (row - 2 * keys) % values;
    return row % keys / key * group + row / keys * key + row % key;
}

/* k head by k head, rows of beta of its v heads, then of alpha. */
static uint64_t ba_rows(const struct model_config *c)
{
    return c->delta.value_heads / c->delta.key_heads;
}
static uint64_t ba_row(const struct model_config *c, uint32_t number, uint64_t row)
{
    const uint64_t rows = ba_rows(c);
    return row / rows * 2 * rows + number * rows + row % rows;
}

#define FUSED(...)                                                                                           \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
#define FUSED_ATTENTION                                                                                      \
    FUSED("self_attn.q_proj.weight", "attn_q.weight", FUSED_RUNS, FUSED_ROLES(TENSOR_Q, TENSOR_Q_GATE),      \
          head_rows, head_row)
#define FUSED_EXPERTS                                                                                        \
    FUSED("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", FUSED_RUNS,                                 \
          FUSED_ROLES(TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS), fused_expert_rows, fused_expert_row),         \
        FUSED("mlp.experts.down_proj", NULL, FUSED_RUNS, FUSED_ROLES(TENSOR_DOWN_EXPERTS), fused_down_rows,  \
              fused_same_row)
static const struct fused_tensor fused[] = {FUSED_ATTENTION, {.roles = 0}};
static const struct fused_tensor fused_moe[] = {FUSED_ATTENTION, FUSED_EXPERTS, {.roles = 0}};
static const struct fused_tensor fused_next[] = {
    FUSED_ATTENTION,
    FUSED_EXPERTS,
    {"linear_attn.in_proj_qkvz.weight", "ssm_in.weight", FUSED_RUNS,
     FUSED_ROLES(TENSOR_DELTA_QKV, TENSOR_DELTA_Z), qkvz_rows, qkvz_row},
    {"linear_attn.in_proj_ba.weight", "ssm_ba.weight", FUSED_RUNS,
     FUSED_ROLES(TENSOR_DELTA_BETA, TENSOR_DELTA_ALPHA), ba_rows, ba_row},
    {.roles = 0}};

/* ---- a layer ---- */

#define GATED_QKV                                                                                            \
    OP(MATH_LINEAR, "q gate k v", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 4,                    \
       .weight = {TENSOR_Q, TENSOR_Q_GATE, TENSOR_K, TENSOR_V},                                              \
       .out = {BUFFER_Q, BUFFER_Q_GATE, BUFFER_K, BUFFER_V})
#define GATED_ATTEND ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM, .output_gate = BUFFER_Q_GATE)
static const struct math_part attention = PART("attention", UNIT_ATTENTION, GATED_QKV, GATED_ATTEND, USUAL_O);
static const struct math_part delta =
    PART("gated delta net", UNIT_ATTENTION,
         OP(MATH_LINEAR, "qkv z alpha beta", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 4,
            .weight = {TENSOR_DELTA_QKV, TENSOR_DELTA_Z, TENSOR_DELTA_ALPHA, TENSOR_DELTA_BETA},
            .out = {BUFFER_DELTA_QKV, BUFFER_DELTA_Z, BUFFER_DELTA_ALPHA, BUFFER_DELTA_BETA}),
         OP(MATH_DELTA, "gated delta rule", .in = BUFFER_DELTA_QKV, .conv = TENSOR_DELTA_CONV,
            .decay = TENSOR_DELTA_DECAY, .time_bias = TENSOR_DELTA_TIME_BIAS, .head_norm = TENSOR_DELTA_NORM,
            .out = {BUFFER_DELTA}),
         OP(MATH_LINEAR, "out", .in = BUFFER_DELTA, .weights = 1, .weight = {TENSOR_DELTA_OUT},
            .out = {BUFFER_X}, .residual = true));
static const struct math_part dense = USUAL_DENSE;
static const struct math_part sparse = SHARED_SPARSE;
/* The layer that makes drafts: its input, then the layer as others are, then the norm in front of the
 * head. */
static const struct math_part draft_attention =
    DRAFT_PART("drafts' attention", UNIT_ATTENTION, DRAFT_INPUT, GATED_QKV, GATED_ATTEND, USUAL_O);
static const struct math_part draft_dense = USUAL_DRAFT_DENSE;
static const struct math_part draft_sparse =
    DRAFT_PART("drafts' MLP of experts", UNIT_MLP, SHARED_GATE_UP, SHARED_WEIGHT, USUAL_ROUTER,
               EXPERTS_GATE_UP(ACTIVATION_SILU), USUAL_EXPERTS_DOWN, SHARED_DOWN, DRAFT_OUTPUT);
enum { PART_DELTA = 2 * MATH_PART_DRAFTS };
static const struct math_part *const parts[] = {SPARSE_PARTS, DRAFT_PARTS, [PART_DELTA] = &delta, NULL};

/* ---- which layer is what ---- */

static uint32_t kind(const struct model_config *config, uint32_t layer, enum unit_part part)
{
    if (part == UNIT_ATTENTION && config->recurrent && config->recurrent[layer]) return PART_DELTA;
    return layers_usual_kind(config, layer, part);
}

/* Numbers of heads, and what follows from them. */
static int check_delta(const struct keys *keys, struct model_config *c, struct helm_err *err)
{
    struct model_delta *d = &c->delta;
    char a[KEYS_NAME_MAX], b[KEYS_NAME_MAX];
    if (d->value_heads % d->key_heads)
        return helm_fail(err, HELM_E_FORMAT, "'%s' %u is not a multiple of '%s' %u",
                         keys_name(keys, AT(delta.value_heads), a), d->value_heads,
                         keys_name(keys, AT(delta.key_heads), b), d->key_heads);
    if (keys->header && (d->inner % d->value_heads || d->inner / d->value_heads > MODEL_DELTA_HEAD_MAX))
        return helm_fail(err, HELM_E_FORMAT, "'%s' %u is no %u heads ('%s') of at most %u",
                         keys_name(keys, AT(delta.inner), a), d->inner, d->value_heads,
                         keys_name(keys, AT(delta.value_heads), b), MODEL_DELTA_HEAD_MAX);
    if (keys->header) d->value_dim = d->inner / d->value_heads;
    if (d->key_dim % MODEL_DELTA_HEAD_UNIT || d->value_dim % MODEL_DELTA_HEAD_UNIT)
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "heads of gated delta nets have %u and %u values; only multiples of %d are supported", d->key_dim,
            d->value_dim, MODEL_DELTA_HEAD_UNIT);
    if (d->conv != 4)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s' is %u; only 4 is supported",
                         keys_name(keys, AT(delta.conv), a), d->conv);
    const uint64_t channels = 2ull * d->key_heads * d->key_dim + (uint64_t)d->value_heads * d->value_dim;
    if (channels > MODEL_HIDDEN_MAX)
        return helm_fail(err, HELM_E_LIMIT, "gated delta nets have %llu channels, the limit is %u",
                         (unsigned long long)channels, MODEL_HIDDEN_MAX);
    d->channels = (uint32_t)channels;
    return 0;
}

static int hybrid_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    if (c->q_bias)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s': biases of attention are not supported here",
                         keys_name(keys, AT(q_bias), name));
    if (!c->gated_attention)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s': attention without a gate is not supported here",
                         keys_name(keys, AT(gated_attention), name));
    if (c->rope[0].dims > c->head_dim || c->rope[0].dims % 2)
        return helm_fail(err, HELM_E_FORMAT, "'%s' is %u, no even number of a head's %u values",
                         keys_name(keys, AT(rope[0].dims), name), c->rope[0].dims, c->head_dim);
    int rc = check_delta(keys, c, err);
    if (!rc) rc = layers_without_window(keys, c, err);
    return rc ? rc : layers_recurrent(keys, c, err);
}

static int moe_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    c->shared_weighed = c->shared_intermediate > 0;
    int rc = hybrid_layers(keys, c, err);
    if (!rc) rc = layers_with_experts(keys, c, "mlp_only_layers", err);
    for (uint32_t i = 0; i < c->layers && !rc; i++)
        if (!model_layer_sparse(c, i) && c->intermediate == 0)
            rc = helm_fail(err, HELM_E_FORMAT, "'%s' is missing, but layer %u has a dense MLP",
                           keys_name(keys, AT(intermediate), name), i);
    return rc;
}

/* Converters reorder v heads of these, so that a matrix times all k heads is repeated as a whole. */
static void reordered(struct model_config *c)
{
    c->delta.order = HEADS_IN_TURN;
}

/* GGUF files do not say it. */
static void next_gguf(struct model_config *c)
{
    c->router.normalise = true;
}

/* ---- the architectures ---- */

static const char *const skipped[] = {"model.visual.", "visual.", "mtp.", "model.mtp.", NULL};

#define START                                                                                                \
    ROPE_START(10000), .max_context = 32768, .norm_eps = 1e-6, .qk_norm = true, .gated_attention = true,     \
                       .partial_rope = true
#define LAYER                                                                                                \
    .names = names, .vectors = vectors, .skipped = skipped, .embed = &usual_embed, .head = &usual_head,      \
    .parts = parts, .kind = kind, .draft_names = draft_names, .hidden_states = &usual_hidden_states

const struct arch arch_qwen35 = {.architecture = "Qwen3_5ForCausalLM",
                                 .model_type = "qwen3_5_text",
                                 .outer = {"Qwen3_5ForConditionalGeneration"},
                                 .gguf = {"qwen35"},
                                 .start = {START},
                                 .gguf_start = reordered,
                                 .keys = dense_keys,
                                 .fused = fused,
                                 LAYER,
                                 .layers = hybrid_layers};
const struct arch arch_qwen35_moe = {.architecture = "Qwen3_5MoeForCausalLM",
                                     .model_type = "qwen3_5_moe_text",
                                     .outer = {"Qwen3_5MoeForConditionalGeneration"},
                                     .gguf = {"qwen35moe"},
                                     .start = {START,
                                               .router = ROUTER_START(ROUTER_SOFTMAX, .normalise = true)},
                                     .gguf_start = reordered,
                                     .keys = moe_keys,
                                     .fused = fused_moe,
                                     LAYER,
                                     .layers = moe_layers};
const struct arch arch_qwen3_next = {.architecture = "Qwen3NextForCausalLM",
                                     .model_type = "qwen3_next",
                                     .gguf = {"qwen3next"},
                                     .start = {START, .router = ROUTER_START(ROUTER_SOFTMAX)},
                                     .gguf_start = next_gguf,
                                     .keys = next_keys,
                                     .fused = fused_next,
                                     LAYER,
                                     .layers = moe_layers};
