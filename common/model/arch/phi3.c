/* Phi-3 (and Phi-4): q, k and v lie in one tensor of the files, gate and up in another; RoPE may be a
 * longrope.
 *
 * A longrope has two tables, one of factors up to the original context and one beyond it. transformers takes
 * one by the length of each sequence; here the context that a run is planned for decides, once: `short` where
 * it is at most the original context, `long` above (rope_is_long). A part of each head
 * (partial_rotary_factor, Phi-4-mini) is refused by name. Constant tables and pure functions; see arch.h.
 *
 * Models: Phi-3, Phi-4. */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

/* GGUF files say a longrope by two tensors (gguf_model.c) and these keys; a window of 0 means that there is
 * none. */
static const struct arch_key keys_of_both[] = {
    USUAL_KEYS(KEY_STATED, KEY_OPTIONAL),
    SILU_KEY,
    WINDOW_KEY(GGUF("attention.sliding_window"), .zero_is_none = true),
    COUNT(rope[0].original_context, MODEL_CONTEXT_MAX, KEY_OPTIONAL,
          GGUF("rope.scaling.original_context_length")),
    REAL(rope[0].attention_factor, 1e-3, 1e6, GGUF("rope.scaling.attn_factor")),
    END};

/* ---- tensors ---- */

static const struct fused_tensor fused[] = {{"self_attn.qkv_proj.weight", "attn_qkv.weight", FUSED_ROWS,
                                             FUSED_ROLES(TENSOR_Q, TENSOR_K, TENSOR_V)},
                                            {"mlp.gate_up_proj.weight", "ffn_up.weight", FUSED_ROWS,
                                             FUSED_ROLES(TENSOR_GATE, TENSOR_UP)},
                                            {.roles = 0}};

/* ---- a layer ---- */

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part *const parts[] = {&attention, &dense, NULL};

/* ---- which layer is what ---- */

/* A window in every layer, if any. */
static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    return layers_with_window(keys, c, 0, c->layers, 1, err);
}

/* ---- the architecture ---- */

const struct arch arch_phi3 = {.architecture = "Phi3ForCausalLM",
                               .model_type = "phi3",
                               .gguf = {"phi3"},
                               .start = {ROPE_START(10000), .max_context = 4096, .norm_eps = 1e-5},
                               .keys = keys_of_both,
                               .fused = fused,
                               USUAL_LAYERS,
                               .layers = layers};
