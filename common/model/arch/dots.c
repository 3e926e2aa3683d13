/* dots.llm1: leading dense layers, then experts chosen by a sigmoid and a bias within groups, beside experts that every token
 * has with weight 1.
 *
 * Constant tables and pure functions; see arch.h. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

#define GGUF_SIGMOID 2 /* of key expert_gating_func */
static const struct arch_key keys_of_both[] = {
    USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
    SILU_KEY,
    ATTENTION_BIAS_KEYS,
    WINDOW_KEY(),
    OR_NONE(window_layers, MODEL_CONTEXT_MAX, NAMED("max_window_layers")),
    EXPERTS_KEYS("n_routed_experts", "num_local_experts", "num_experts"),
    EXPERT_WIDTH_KEY(KEY_NEEDED, "moe_intermediate_size"),
    OR_NONE(shared_experts, MODEL_INTERMEDIATE_MAX, .need = KEY_STATED, NAMED("n_shared_experts"),
            GGUF("expert_shared_count"), .null_is_zero = true),
    OR_NONE(leading_dense, MODEL_LAYERS_MAX, NAMED("first_k_dense_replace"),
            GGUF("leading_dense_block_count")),
    COUNT(router.groups, MODEL_EXPERT_GROUPS_MAX, KEY_OPTIONAL, NAMED("n_group"), GGUF("expert_group_count"),
          .zero_is_none = true),
    COUNT(router.groups_chosen, MODEL_EXPERT_GROUPS_MAX, KEY_OPTIONAL, NAMED("topk_group"),
          GGUF("expert_group_used_count"), .zero_is_none = true),
    FLAG(router.normalise, NAMED("norm_topk_prob"), GGUF("expert_weights_norm")),
    {.kind = KEY_FLOAT,
     .at = AT(router.scale),
     NAMED("routed_scaling_factor"),
     GGUF("expert_weights_scale"),
     .max = 1e6},
    FIXED(GGUF_SIGMOID, GGUF("expert_gating_func")),
    END};

static const struct arch_name names[] = {
    {.role = TENSOR_SHARED_GATE, .name = "mlp.shared_experts.gate_proj.weight"},
    {.role = TENSOR_SHARED_UP, .name = "mlp.shared_experts.up_proj.weight"},
    {.role = TENSOR_SHARED_DOWN, .name = "mlp.shared_experts.down_proj.weight"},
    {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention =
    PART("attention", UNIT_ATTENTION, USUAL_QKV, ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM),
         USUAL_O);
static const struct math_part dense = USUAL_DENSE;
static const struct math_part sparse =
    PART("MLP of experts", UNIT_MLP, SHARED_GATE_UP, USUAL_ROUTER, EXPERTS_GATE_UP(ACTIVATION_SILU),
         USUAL_EXPERTS_DOWN, SHARED_DOWN);
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

/* ---- which layer is what ---- */

/* A window from layer max_window_layers on. The shared experts are computed as one. */
static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    const uint64_t shared = (uint64_t)c->shared_experts * c->expert_intermediate;
    if (shared > MODEL_INTERMEDIATE_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'%s' makes shared experts of %llu, the limit is %u",
                         keys_name(keys, AT(shared_experts), name), (unsigned long long)shared,
                         MODEL_INTERMEDIATE_MAX);
    c->shared_intermediate = (uint32_t)shared;
    int rc = layers_with_window(keys, c, c->window_layers, c->layers, 1, err);
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
