/* GLM-4 and its later mixtures of experts.
 *
 *   GLM-4 (0414)  a part of each head turns, neighbours together, whose rows lie interleaved in files; norms
 *                 of what halves add, too; gate and up in one tensor
 *   GLM-4.5       also 4.6 and 4.7: a part of each head turns; biases of q, k and v; norms of heads in some;
 *                 leading dense layers, then experts chosen by a sigmoid and a bias, beside one that every
 *                 token has with weight 1
 *
 * The mixtures' layer after the last one makes drafts, from hidden states after the final norm and after its
 * own. Constant tables and pure functions; see arch.h.
 *
 * Models: GLM-4, GLM-4.5, 4.6 and 4.7. */
#include "common/model/arch/usual.h"
#include "common/model/checkpoint.h"

/* ---- keys ---- */

static const struct arch_key dense_keys[] = {
    USUAL_KEYS(KEY_STATED, KEY_OPTIONAL), SILU_KEY, QKV_BIAS_KEYS("attention_bias"),
    COUNT(rope[0].dims, MODEL_HEAD_DIM_MAX, KEY_NEEDED_IN_GGUF, GGUF("rope.dimension_count")), END};
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

static const struct arch_name dense_names[] = {{TENSOR_ATTN_OUT_NORM, "post_self_attn_layernorm.weight",
                                                "post_attention_norm.weight"},
                                               {TENSOR_MLP_OUT_NORM, "post_mlp_layernorm.weight",
                                                "post_ffw_norm.weight"},
                                               {.role = TENSOR_NONE}};
static const struct fused_tensor fused[] = {{"mlp.gate_up_proj.weight", "ffn_up.weight", FUSED_ROWS,
                                             FUSED_ROLES(TENSOR_GATE, TENSOR_UP)},
                                            {.roles = 0}};
static const struct arch_name moe_names[] = {{TENSOR_MLP_NORM, NULL, "post_attention_norm.weight"},
                                             SHARED_EXPERTS_NAMES,
                                             {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention = HEADS_NORMED_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part sparse = BESIDE_SPARSE;
static const struct math_part draft_attention =
    DRAFT_PART("drafts' attention", UNIT_ATTENTION, DRAFT_INPUT, USUAL_QKV,
               ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM), USUAL_O);
static const struct math_part draft_dense = USUAL_DRAFT_DENSE;
static const struct math_part draft_sparse = BESIDE_DRAFT_SPARSE;
static const struct math_part *const parts[] = {SPARSE_PARTS, DRAFT_PARTS, NULL};

static const struct math_part normed_attention =
    PART("attention", UNIT_ATTENTION, USUAL_QKV, ATTEND(), USUAL_O_TO_OUT,
         ADD_NORMED("add o", TENSOR_ATTN_OUT_NORM));
static const struct math_part normed_dense =
    PART("MLP", UNIT_MLP, USUAL_GATE_UP, TO_OUT("down", BUFFER_GATE, TENSOR_DOWN, TENSOR_NONE),
         ADD_NORMED("add down", TENSOR_MLP_OUT_NORM));
static const struct math_part *const dense_parts[] = {&normed_attention, &normed_dense, NULL};

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

/* ---- the architectures ---- */

const struct arch arch_glm4 = {.architecture = "Glm4ForCausalLM",
                               .model_type = "glm4",
                               .gguf = {"glm4"},
                               .gguf_interleaved = true,
                               .interleaved = true,
                               .start = {ROPE_START(10000), .max_context = 131072, .norm_eps = 1.5625e-7,
                                         .partial_rope = true, .normed_outputs = true},
                               .keys = dense_keys,
                               .names = dense_names,
                               .fused = fused,
                               .embed = &usual_embed,
                               .head = &usual_head,
                               .parts = dense_parts,
                               .kind = layers_usual_kind,
                               .layers = layers_without_window};

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
                                   USUAL_DRAFTS,
                                   .layers = moe_layers,
                                   .gguf_tensors = moe_tensors};
