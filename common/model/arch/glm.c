/* GLM-4.5, 4.6 and 4.7: a part of each head turns; biases of q, k and v; norms of heads in some; leading dense layers, then experts
 * chosen by a sigmoid and a bias, beside one that every token has with weight 1.
 *
 * The layer of drafts after the last one is skipped. Constant tables and pure functions; see arch.h. */
#include "common/model/arch/usual.h"
#include "common/model/gguf_model.h"

/* ---- keys ---- */

static const struct arch_key moe_keys[] = {USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
                                           SILU_KEY,
                                           QKV_BIAS_KEYS("attention_bias"),
                                           FLAG(qk_norm, NAMED("use_qk_norm")),
                                           COUNT(rope[0].dims, MODEL_HEAD_DIM_MAX, KEY_NEEDED_IN_GGUF,
                                                 GGUF("rope.dimension_count")),
                                           SIGMOID_EXPERTS_KEYS("n_routed_experts", "num_local_experts",
                                                                "num_experts"),
                                           END};

/* ---- tensors ---- */

static const struct arch_name moe_names[] = {{TENSOR_MLP_NORM, NULL, "post_attention_norm.weight"},
                                             SHARED_EXPERTS_NAMES,
                                             {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention =
    PART("attention", UNIT_ATTENTION, USUAL_QKV, ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM),
         USUAL_O);
static const struct math_part dense = USUAL_DENSE;
static const struct math_part sparse = BESIDE_SPARSE;
static const struct math_part *const parts[] = {SPARSE_PARTS, NULL};

/* ---- which layer is what ---- */

static int moe_layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    int rc = layers_without_window(keys, c, err);
    if (!rc) rc = layers_shared_experts(keys, c, err);
    return rc ? rc : layers_with_experts(keys, c, NULL, err);
}

/* GGUF files say norms of heads by having them. */
static int moe_tensors(const struct gguf_files *files, struct model_config *c, struct helm_err *err)
{
    char name[MODEL_NAME_MAX];
    (void)err;
    model_tensor_name(c, TENSOR_Q_NORM, 0, name);
    c->qk_norm = gguf_files_tensor(files, name, NULL) != NULL;
    return 0;
}

/* As llama.cpp reads files that do not say it. */
static void moe_gguf(struct model_config *c)
{
    c->router.normalise = false;
}

/* ---- the architecture ---- */

const struct arch arch_glm4_moe = {.architecture = "Glm4MoeForCausalLM",
                                   .model_type = "glm4_moe",
                                   .gguf = {"glm4moe"},
                                   .start = {ROPE_START(10000), .max_context = 131072, .norm_eps = 1e-5,
                                             .partial_rope = true, .choice_bias = true,
                                             .router = ROUTER_START(ROUTER_SIGMOID, .normalise = true)},
                                   .gguf_start = moe_gguf,
                                   .keys = moe_keys,
                                   .names = moe_names,
                                   USUAL_LAYERS,
                                   .layers = moe_layers,
                                   .gguf_tensors = moe_tensors};
