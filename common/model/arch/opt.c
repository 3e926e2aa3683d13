/* OPT: LayerNorms with biases, learned positions from row 2 on, ReLU without a gate, biases of every product,
 * a tied head.
 *
 * Models that differ in more than size are refused by name: norms after the halves and an embedding narrower
 * than the layers (OPT-350M), norms without weights (Galactica's kin). There are no GGUF files of OPT from
 * elsewhere; keys and tensors are called as llama.cpp calls those of similar models, and helm-quantize writes
 * such files. Constant tables and pure functions; see arch.h.
 *
 * Models: OPT (CPU alone). */
#include "common/base/json.h"
#include "common/model/arch/usual.h"

#define FIRST_POSITION 2 /* rows of the table before that of position 0 */

/* ---- keys ---- */

static const struct arch_key keys_of_both[] = {
    COUNT(layers, MODEL_LAYERS_MAX, KEY_NEEDED, NAMED("num_hidden_layers"), GGUF("block_count")),
    COUNT(hidden, MODEL_HIDDEN_MAX, KEY_NEEDED, NAMED("hidden_size"), GGUF("embedding_length")),
    COUNT(intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED, NAMED("ffn_dim"), GGUF("feed_forward_length")),
    COUNT(vocab, MODEL_VOCAB_MAX, KEY_NEEDED, NAMED("vocab_size")),
    COUNT(heads, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("num_attention_heads"), GGUF("attention.head_count")),
    COUNT(max_context, MODEL_CONTEXT_MAX, KEY_NEEDED, NAMED("max_position_embeddings"),
          GGUF("context_length")),
    REAL(norm_eps, 1e-12, 1, GGUF("attention.layer_norm_epsilon"), .need = KEY_NEEDED_IN_GGUF),
    FLAG(tied_head, NAMED("tie_word_embeddings")),
    QKV_BIAS_KEYS("enable_bias"),
    FLAG(o_bias, NAMED("enable_bias")),
    FLAG(mlp_bias, NAMED("enable_bias")),
    {.kind = KEY_WORD, NAMED("activation_function"), .words = "relu"},
    END};

/* ---- tensors ---- */

static const struct arch_name names[] = {{.role = TENSOR_FINAL_NORM, .name = "model.final_layer_norm.weight"},
                                         {.role = TENSOR_FINAL_NORM_BIAS,
                                          .name = "model.final_layer_norm.bias"},
                                         {.role = TENSOR_ATTN_NORM, .name = "self_attn_layer_norm.weight"},
                                         {.role = TENSOR_ATTN_NORM_BIAS, .name = "self_attn_layer_norm.bias"},
                                         {.role = TENSOR_O, .name = "self_attn.out_proj.weight"},
                                         {.role = TENSOR_O_BIAS, .name = "self_attn.out_proj.bias"},
                                         {.role = TENSOR_MLP_NORM, .name = "final_layer_norm.weight"},
                                         {.role = TENSOR_MLP_NORM_BIAS, .name = "final_layer_norm.bias"},
                                         {.role = TENSOR_UP, .name = "fc1.weight"},
                                         {.role = TENSOR_UP_BIAS, .name = "fc1.bias"},
                                         {.role = TENSOR_DOWN, .name = "fc2.weight"},
                                         {.role = TENSOR_DOWN_BIAS, .name = "fc2.bias"},
                                         {.role = TENSOR_NONE}};

/* ---- a layer ---- */

static const struct math_part attention =
    PART("attention", UNIT_ATTENTION,
         OP(MATH_LINEAR, "q k v", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM,
            .norm_bias = TENSOR_ATTN_NORM_BIAS, .norm_kind = NORM_LAYER, .weights = 3,
            .weight = {TENSOR_Q, TENSOR_K, TENSOR_V}, .bias = {TENSOR_Q_BIAS, TENSOR_K_BIAS, TENSOR_V_BIAS},
            .out = {BUFFER_Q, BUFFER_K, BUFFER_V}),
         ATTEND(.no_rope = true), USUAL_O);
static const struct math_part mlp =
    PART("MLP", UNIT_MLP,
         OP(MATH_LINEAR, "fc1", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .norm_bias = TENSOR_MLP_NORM_BIAS,
            .norm_kind = NORM_LAYER, .weights = 1, .weight = {TENSOR_UP}, .bias = {TENSOR_UP_BIAS},
            .out = {BUFFER_GATE}, .activation = ACTIVATION_RELU),
         USUAL_DOWN);
static const struct math_part *const parts[] = {&attention, &mlp, NULL};
static const struct math_op embed =
    OP(MATH_EMBED, "embedding", .weights = 1, .weight = {TENSOR_EMBED}, .out = {BUFFER_X},
       .positions = TENSOR_POSITIONS, .position_first = FIRST_POSITION);
static const struct math_op head =
    OP(MATH_LINEAR, "head", .in = BUFFER_X, .norm = TENSOR_FINAL_NORM, .norm_bias = TENSOR_FINAL_NORM_BIAS,
       .norm_kind = NORM_LAYER, .weights = 1, .weight = {TENSOR_HEAD}, .out = {BUFFER_LOGITS});

/* ---- which layer is what, and what is refused ---- */

static int check_form(const struct keys *keys, const struct model_config *c, struct helm_err *err)
{
    static const struct {
        const char *key;
        bool only;
    } flags[] = {{"do_layer_norm_before", true},
                 {"layer_norm_elementwise_affine", true},
                 {"_remove_final_layer_norm", false}};
    uint64_t width = c->hidden;
    int rc = json_get_u64(keys->json, "word_embed_proj_dim", false, 1, MODEL_HIDDEN_MAX, &width, err);
    if (!rc && width != c->hidden)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "'word_embed_proj_dim' is %llu; only 'hidden_size' is supported",
                       (unsigned long long)width);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !rc; i++) {
        bool flag = flags[i].only;
        rc = json_get_bool(keys->json, flags[i].key, false, &flag, err);
        if (!rc && flag != flags[i].only)
            rc = helm_fail(err, HELM_E_UNSUPPORTED, "'%s' is %s; only %s is supported", flags[i].key,
                           flag ? "true" : "false", flag ? "false" : "true");
    }
    return rc;
}

static int layers(struct keys *keys, struct model_config *c, struct helm_err *err)
{
    const int rc = keys->json ? check_form(keys, c, err) : 0;
    c->positions = c->max_context + FIRST_POSITION;
    return rc ? rc : layers_without_window(keys, c, err);
}

/* ---- the architecture ---- */

const struct arch arch_opt = {.architecture = "OPTForCausalLM",
                              .model_type = "opt",
                              .gguf = {"opt"},
                              .start = {ROPE_START(10000), /* which no operation asks for */
                                        .norm_eps = 1e-5, .tied_head = true, .q_bias = true, .k_bias = true,
                                        .v_bias = true, .o_bias = true, .mlp_bias = true},
                              .keys = keys_of_both,
                              .names = names,
                              .embed = &embed,
                              .head = &head,
                              .parts = parts,
                              .kind = layers_usual_kind,
                              .layers = layers};
