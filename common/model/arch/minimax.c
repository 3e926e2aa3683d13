/* MiniMax-M2: norms of q and k, all heads of one together; a part of each head turns; experts chosen by a
 * sigmoid and a bias in every layer, none that every token has.
 *
 * Constant tables and pure functions; see arch.h.
 *
 * Models: MiniMax-M2. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

static const struct arch_key keys_of_both[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
                                               SILU_KEY,
                                               FLAG(qk_norm, NAMED("use_qk_norm")),
                                               KEY(KEY_WORD, NAMED("qk_norm_type"), .words = "per_layer"),
                                               COUNT(rope[0].dims, MODEL_HEAD_DIM_MAX, KEY_NEEDED_IN_GGUF,
                                                     NAMED("rotary_dim"), GGUF("rope.dimension_count")),
                                               EXPERTS_KEYS("num_local_experts", "num_experts"),
                                               EXPERT_WIDTH_KEY(KEY_NEEDED, "intermediate_size"),
                                               OR_NONE(shared_intermediate, MODEL_INTERMEDIATE_MAX,
                                                       NAMED("shared_intermediate_size")),
                                               FLAG(choice_bias, NAMED("use_routing_bias")),
                                               KEY(KEY_WORD, NAMED("scoring_func"), .words = "sigmoid"),
                                               FIXED(GGUF_SIGMOID, GGUF("expert_gating_func")),
                                               END};

/* ---- tensors ---- */

static const struct arch_name names[] = {
    {.role = TENSOR_ROUTER, .name = "block_sparse_moe.gate.weight"},
    {.role = TENSOR_CHOICE_BIAS, .name = "block_sparse_moe.e_score_correction_bias"},
    {.role = TENSOR_GATE_EXPERTS, .name = "block_sparse_moe.experts.*.w1.weight"},
    {.role = TENSOR_UP_EXPERTS, .name = "block_sparse_moe.experts.*.w3.weight"},
    {.role = TENSOR_DOWN_EXPERTS, .name = "block_sparse_moe.experts.*.w2.weight"},
    {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention =
    PART("attention", UNIT_ATTENTION, USUAL_QKV, NORM_Q_K, ATTEND(), USUAL_O);
static const struct math_part dense = NO_DENSE;
static const struct math_part sparse = USUAL_SPARSE(ACTIVATION_SILU);
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

/* ---- which layer is what ---- */

/* config.json may say each layer's kind of attention: 0 is linear. */
static int check_kinds(struct keys *keys, struct helm_err *err)
{
    const json_t *list = keys->json ? json_object_get(keys->json, "attn_type_list") : NULL;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_integer(json_array_get(list, i)) || json_integer_value(json_array_get(list, i)) != 1)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "'attn_type_list' entry %zu is not 1: linear attention is not supported", i);
    return 0;
}

static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    if (c->rope[0].dims % 2 || c->rope[0].dims > c->head_dim)
        return helm_fail(err, HELM_E_FORMAT, "'%s' is %u: no even number of %u numbers of a head",
                         keys_name(keys, AT(rope[0].dims), name), c->rope[0].dims, c->head_dim);
    if (!c->qk_norm || !c->choice_bias)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s' is false: models without it are not supported",
                         c->qk_norm ? "use_routing_bias" : "use_qk_norm");
    if (c->shared_intermediate)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'shared_intermediate_size' is %u: shared experts are not supported",
                         c->shared_intermediate);
    int rc = check_kinds(keys, err);
    if (!rc) rc = layers_without_window(keys, c, err);
    return rc ? rc : layers_with_experts(keys, c, NULL, err);
}

/* ---- the architecture ---- */

const struct arch arch_minimax_m2 = {.architecture = "MiniMaxM2ForCausalLM",
                                     .model_type = "minimax_m2",
                                     .gguf = {"minimax-m2"},
                                     .start = {ROPE_START(5000000), .max_context = 196608, .norm_eps = 1e-6,
                                               .partial_rope = true, .qk_norm = true, .whole_norms = true,
                                               .choice_bias = true,
                                               .router = ROUTER_START(ROUTER_SIGMOID, .normalise = true)},
                                     .keys = keys_of_both,
                                     .names = names,
                                     USUAL_LAYERS,
                                     .layers = layers};
