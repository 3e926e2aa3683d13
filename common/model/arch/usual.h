/* Rows that most architectures have: keys and operations. Included by the files beside it; macros and
 * declarations only.
 *
 * A row that one architecture has otherwise is written out in its file. */
#pragma once

#include <stddef.h>

#include "common/model/arch.h"
#include "common/model/fused.h"
#include "common/model/keys.h"

#define AT(member) offsetof(struct model_config, member)

/* ---- keys ---- */

#define KEY(what, ...)                                                                                       \
    {                                                                                                        \
        .kind = (what), __VA_ARGS__                                                                          \
    }
/* COUNT: a whole number from 1; OR_NONE: from 0. */
#define COUNT(member, most, needed, ...)                                                                     \
    KEY(KEY_U32, .at = AT(member), .min = 1, .max = (most), .need = (needed), __VA_ARGS__)
#define OR_NONE(member, most, ...) KEY(KEY_U32, .at = AT(member), .max = (most), __VA_ARGS__)
#define REAL(member, least, most, ...)                                                                       \
    KEY(KEY_DOUBLE, .at = AT(member), .min = (least), .max = (most), __VA_ARGS__)
#define FLAG(member, ...)  KEY(KEY_BOOL, .at = AT(member), __VA_ARGS__)
#define FIXED(number, ...) KEY(KEY_FIXED, .neutral = (number), __VA_ARGS__)
#define NAMED(...)         .name = {__VA_ARGS__}
#define GGUF(...)          .gguf = {__VA_ARGS__}
#define END                                                                                                  \
    {                                                                                                        \
        .kind = KEY_NONE                                                                                     \
    }

/* Keys of every decoder. kv_heads, head_dim: whether config.json must say them (enum key_need). */
#define USUAL_KEYS(kv_need, head_need)                                                                       \
    COUNT(intermediate, MODEL_INTERMEDIATE_MAX, KEY_NEEDED, NAMED("intermediate_size"),                      \
          GGUF("feed_forward_length")),                                                                      \
        KEYS_WITHOUT_WIDTH(kv_need, head_need)
/* The same but for the width of dense MLPs, which mixtures may leave out. */
#define KEYS_WITHOUT_WIDTH(kv_need, head_need)                                                               \
    COUNT(layers, MODEL_LAYERS_MAX, KEY_NEEDED, NAMED("num_hidden_layers"), GGUF("block_count")),            \
        COUNT(hidden, MODEL_HIDDEN_MAX, KEY_NEEDED, NAMED("hidden_size"), GGUF("embedding_length")),         \
        COUNT(vocab, MODEL_VOCAB_MAX, KEY_NEEDED, NAMED("vocab_size")), /* GGUF: the embedding's rows */     \
        COUNT(heads, MODEL_HEADS_MAX, KEY_NEEDED, NAMED("num_attention_heads"),                              \
              GGUF("attention.head_count")),                                                                 \
        COUNT(kv_heads, MODEL_HEADS_MAX, kv_need, NAMED("num_key_value_heads"),                              \
              GGUF("attention.head_count_kv")),                                                              \
        COUNT(head_dim, MODEL_HEAD_DIM_MAX, head_need, NAMED("head_dim"), GGUF("attention.key_length")),     \
        COUNT(max_context, MODEL_CONTEXT_MAX, KEY_NEEDED_IN_GGUF, NAMED("max_position_embeddings"),          \
              GGUF("context_length")),                                                                       \
        REAL(norm_eps, 1e-12, 1, NAMED("rms_norm_eps"), GGUF("attention.layer_norm_rms_epsilon"),            \
             .need = KEY_NEEDED_IN_GGUF),                                                                    \
        FLAG(tied_head, NAMED("tie_word_embeddings")),                                                       \
        OR_NONE(draft_layers, MODEL_LAYERS_MAX, NAMED("num_nextn_predict_layers", "mtp_num_hidden_layers"),  \
                GGUF("nextn_predict_layers"), .zero_is_none = true)
/* Layers' activation in config.json; GGUF files have no key of it. */
#define SILU_KEY KEY(KEY_WORD, NAMED("hidden_act"), .words = "silu swish")
/* One key for several biases. GGUF files say it by having them. */
#define QKV_BIAS_KEYS(...)                                                                                   \
    FLAG(q_bias, NAMED(__VA_ARGS__)), FLAG(k_bias, NAMED(__VA_ARGS__)), FLAG(v_bias, NAMED(__VA_ARGS__))
#define ATTENTION_BIAS_KEYS QKV_BIAS_KEYS("attention_bias"), FLAG(o_bias, NAMED("attention_bias"))
/* null in config.json: none has a window. */
#define WINDOW_KEY(...)                                                                                      \
    COUNT(sliding_window, MODEL_CONTEXT_MAX, KEY_OPTIONAL, NAMED("sliding_window"), .null_is_zero = true,    \
          __VA_ARGS__)
/* Experts: their number's names differ, and so do those of their inner width. */
#define EXPERTS_KEYS(...)                                                                                    \
    COUNT(router.experts, MODEL_EXPERTS_MAX, KEY_NEEDED, NAMED(__VA_ARGS__), GGUF("expert_count")),          \
        COUNT(router.chosen, MODEL_EXPERTS_CHOSEN_MAX, KEY_NEEDED, NAMED("num_experts_per_tok"),             \
              GGUF("expert_used_count"))
#define EXPERT_WIDTH_KEY(needed, ...)                                                                        \
    COUNT(expert_intermediate, MODEL_INTERMEDIATE_MAX, needed, NAMED(__VA_ARGS__),                           \
          GGUF("expert_feed_forward_length"))

/* DeepSeek-V3's: chosen by sigmoids within groups, beside experts that every token has, after leading dense
 * layers. */
#define GGUF_SOFTMAX 1 /* of key expert_gating_func */
#define GGUF_SIGMOID 2
#define SIGMOID_EXPERTS_KEYS(...)                                                                            \
    GROUPED_EXPERTS_KEYS(__VA_ARGS__), FIXED(GGUF_SIGMOID, GGUF("expert_gating_func"))
#define GROUPED_EXPERTS_KEYS(...)                                                                            \
    EXPERTS_KEYS(__VA_ARGS__), EXPERT_WIDTH_KEY(KEY_NEEDED, "moe_intermediate_size"),                        \
        OR_NONE(shared_experts, MODEL_INTERMEDIATE_MAX, .need = KEY_STATED, NAMED("n_shared_experts"),       \
                GGUF("expert_shared_count"), .null_is_zero = true),                                          \
        OR_NONE(leading_dense, MODEL_LAYERS_MAX, NAMED("first_k_dense_replace"),                             \
                GGUF("leading_dense_block_count")),                                                          \
        COUNT(router.groups, MODEL_EXPERT_GROUPS_MAX, KEY_OPTIONAL, NAMED("n_group"),                        \
              GGUF("expert_group_count"), .zero_is_none = true),                                             \
        COUNT(router.groups_chosen, MODEL_EXPERT_GROUPS_MAX, KEY_OPTIONAL, NAMED("topk_group"),              \
              GGUF("expert_group_used_count"), .zero_is_none = true),                                        \
        FLAG(router.normalise, NAMED("norm_topk_prob"), GGUF("expert_weights_norm")),                        \
        KEY(KEY_FLOAT, .at = AT(router.scale), NAMED("routed_scaling_factor"), GGUF("expert_weights_scale"), \
            .max = 1e6)
/* Names of those experts' tensors. */
#define SHARED_EXPERTS_NAMES                                                                                 \
    {.role = TENSOR_SHARED_GATE, .name = "mlp.shared_experts.gate_proj.weight"},                             \
        {.role = TENSOR_SHARED_UP, .name = "mlp.shared_experts.up_proj.weight"},                             \
    {                                                                                                        \
        .role = TENSOR_SHARED_DOWN, .name = "mlp.shared_experts.down_proj.weight"                            \
    }

/* ---- operations ---- */

#define OP(what, called, ...)                                                                                \
    {                                                                                                        \
        .kind = (what), .name = (called), __VA_ARGS__                                                        \
    }

#define USUAL_EMBED OP(MATH_EMBED, "embedding", .weights = 1, .weight = {TENSOR_EMBED}, .out = {BUFFER_X})
#define USUAL_HEAD                                                                                           \
    OP(MATH_LINEAR, "head", .in = BUFFER_X, .norm = TENSOR_FINAL_NORM, .weights = 1,                         \
       .weight = {TENSOR_HEAD}, .out = {BUFFER_LOGITS})
#define USUAL_QKV                                                                                            \
    OP(MATH_LINEAR, "q k v", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 3,                         \
       .weight = {TENSOR_Q, TENSOR_K, TENSOR_V}, .bias = {TENSOR_Q_BIAS, TENSOR_K_BIAS, TENSOR_V_BIAS},      \
       .out = {BUFFER_Q, BUFFER_K, BUFFER_V})
/* The rest of its fields may follow: norms of heads, sinks, a scale. */
#define ATTEND(...) OP(MATH_ATTENTION, "attention", .in = BUFFER_Q, .out = {BUFFER_A}, __VA_ARGS__)
/* Norms of q and k as wholes, before that. */
#define NORM_WHOLE(called, buffer, vector)                                                                   \
    OP(MATH_ADD_NORMED, called, .in = (buffer), .norm = (vector), .out = {buffer})
#define NORM_Q_K                                                                                             \
    NORM_WHOLE("norm of q", BUFFER_Q, TENSOR_Q_NORM), NORM_WHOLE("norm of k", BUFFER_K, TENSOR_K_NORM)
/* q by its position (model_config.q_growth). */
#define GROW_Q OP(MATH_ADD_NORMED, "scale of q", .in = BUFFER_Q, .out = {BUFFER_Q})
#define USUAL_O                                                                                              \
    OP(MATH_LINEAR, "o", .in = BUFFER_A, .weights = 1, .weight = {TENSOR_O}, .bias = {TENSOR_O_BIAS},        \
       .out = {BUFFER_X}, .residual = true)
#define USUAL_GATE_UP                                                                                        \
    OP(MATH_LINEAR, "gate up", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .weights = 2,                        \
       .weight = {TENSOR_GATE, TENSOR_UP}, .bias = {TENSOR_GATE_BIAS, TENSOR_UP_BIAS},                       \
       .out = {BUFFER_GATE, BUFFER_UP}, .activation = ACTIVATION_SILU, .gated = true)
#define USUAL_DOWN                                                                                           \
    OP(MATH_LINEAR, "down", .in = BUFFER_GATE, .weights = 1, .weight = {TENSOR_DOWN},                        \
       .bias = {TENSOR_DOWN_BIAS}, .out = {BUFFER_X}, .residual = true)
/* Operations of halves whose output is normed before it is added (normed_outputs). */
#define TO_OUT(called, input, matrix, vector)                                                                \
    OP(MATH_LINEAR, called, .in = (input), .weights = 1, .weight = {matrix}, .bias = {vector},               \
       .out = {BUFFER_OUT})
#define ADD_NORMED(called, vector)                                                                           \
    OP(MATH_ADD_NORMED, called, .in = BUFFER_OUT, .norm = (vector), .out = {BUFFER_X}, .residual = true)
#define USUAL_O_TO_OUT TO_OUT("o", BUFFER_A, TENSOR_O, TENSOR_O_BIAS)
/* Operations of sparse layers. The choice and all gates read the same input, by the same norm, before
 * anything is added to it. Choice, gates and downs of experts stand together, as chains have them. */
#define USUAL_ROUTER                                                                                         \
    OP(MATH_ROUTE, "router", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .router = TENSOR_ROUTER,               \
       .bias = {TENSOR_ROUTER_BIAS, TENSOR_CHOICE_BIAS}, .out = {BUFFER_CHOICE})
#define EXPERTS_GATE_UP(how)                                                                                 \
    OP(MATH_EXPERTS_GLU, "experts' gate up", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .weights = 2,          \
       .weight = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS},                                                   \
       .bias = {TENSOR_GATE_EXPERTS_BIAS, TENSOR_UP_EXPERTS_BIAS}, .out = {BUFFER_GATE, BUFFER_UP},          \
       .activation = (how), .gated = true)
#define USUAL_EXPERTS_DOWN                                                                                   \
    OP(MATH_EXPERTS_DOWN, "experts' down", .in = BUFFER_GATE, .weights = 1, .weight = {TENSOR_DOWN_EXPERTS}, \
       .bias = {TENSOR_DOWN_EXPERTS_BIAS}, .out = {BUFFER_X}, .residual = true)
/* The expert that every token has: what comes first, and what comes last. */
#define SHARED_GATE_UP                                                                                       \
    OP(MATH_LINEAR, "shared expert's gate up", .in = BUFFER_X, .norm = TENSOR_MLP_NORM, .weights = 2,        \
       .weight = {TENSOR_SHARED_GATE, TENSOR_SHARED_UP}, .out = {BUFFER_SHARED, BUFFER_SHARED_UP},           \
       .activation = ACTIVATION_SILU, .gated = true)
#define SHARED_WEIGHT                                                                                        \
    OP(MATH_WEIGH, "shared expert's weight", .in = BUFFER_X, .norm = TENSOR_MLP_NORM,                        \
       .router = TENSOR_SHARE, .out = {BUFFER_SHARED})
#define SHARED_DOWN                                                                                          \
    OP(MATH_LINEAR, "shared expert's down", .in = BUFFER_SHARED, .weights = 1,                               \
       .weight = {TENSOR_SHARED_DOWN}, .out = {BUFFER_X}, .residual = true)

static const struct math_op usual_embed __attribute__((unused)) = USUAL_EMBED;
static const struct math_op usual_head __attribute__((unused)) = USUAL_HEAD;

/* ---- kinds of layers ---- */

/* A half of a layer: its name, which half, its operations in order. */
#define PART(called, half, ...)                                                                              \
    {                                                                                                        \
        .name = (called), .part = (half), .op = {__VA_ARGS__},                                               \
        .ops = sizeof((struct math_op[]){__VA_ARGS__}) / sizeof(struct math_op)                              \
    }
#define USUAL_ATTENTION PART("attention", UNIT_ATTENTION, USUAL_QKV, ATTEND(), USUAL_O)
/* With norms of each head of q and k. */
#define HEADS_NORMED_ATTENTION                                                                               \
    PART("attention", UNIT_ATTENTION, USUAL_QKV, ATTEND(.q_norm = TENSOR_Q_NORM, .k_norm = TENSOR_K_NORM),   \
         USUAL_O)
#define USUAL_DENSE PART("MLP", UNIT_MLP, USUAL_GATE_UP, USUAL_DOWN)
#define NO_DENSE                                                                                             \
    {                                                                                                        \
        .name = "none", .part = UNIT_MLP                                                                     \
    }
#define USUAL_SPARSE(how)                                                                                    \
    PART("MLP of experts", UNIT_MLP, USUAL_ROUTER, EXPERTS_GATE_UP(how), USUAL_EXPERTS_DOWN)
/* With an expert that every token has, weighed by a gate. */
#define SHARED_SPARSE                                                                                        \
    PART("MLP of experts", UNIT_MLP, SHARED_GATE_UP, SHARED_WEIGHT, USUAL_ROUTER,                            \
         EXPERTS_GATE_UP(ACTIVATION_SILU), USUAL_EXPERTS_DOWN, SHARED_DOWN)
/* With one whose weight is 1. */
#define BESIDE_SPARSE                                                                                        \
    PART("MLP of experts", UNIT_MLP, SHARED_GATE_UP, USUAL_ROUTER, EXPERTS_GATE_UP(ACTIVATION_SILU),         \
         USUAL_EXPERTS_DOWN, SHARED_DOWN)
#define DRAFT_PART(called, half, ...)                                                                        \
    {                                                                                                        \
        .name = (called), .part = (half), .drafts = true, .op = {__VA_ARGS__},                               \
        .ops = sizeof((struct math_op[]){__VA_ARGS__}) / sizeof(struct math_op)                              \
    }
/* Halves of a layer that makes drafts: first, of the attention half, what comes of the next token and the
 * hidden state; last, of the MLP half. The embedding is the model's: it is named, but none of the layer's
 * weights. */
#define DRAFT_INPUT                                                                                          \
    OP(MATH_EMBED, "next embedding", .weight = {TENSOR_EMBED}, .out = {BUFFER_OUT}),                         \
        OP(MATH_JOIN, "embedding, hidden state", .in = BUFFER_X, .in_norm = TENSOR_DRAFT_HIDDEN_NORM,        \
           .other = BUFFER_OUT, .other_norm = TENSOR_DRAFT_EMBED_NORM, .out = {BUFFER_PAIR}),                \
        OP(MATH_LINEAR, "drafts' input", .in = BUFFER_PAIR, .weights = 1, .weight = {TENSOR_DRAFT_PROJ},     \
           .out = {BUFFER_X})
#define DRAFT_OUTPUT NORM_WHOLE("drafts' norm", BUFFER_X, TENSOR_DRAFT_OUT_NORM)
/* With a dense MLP; with experts beside one that every token has with weight 1. */
#define USUAL_DRAFT_DENSE DRAFT_PART("drafts' MLP", UNIT_MLP, USUAL_GATE_UP, USUAL_DOWN, DRAFT_OUTPUT)
#define BESIDE_DRAFT_SPARSE                                                                                  \
    DRAFT_PART("drafts' MLP of experts", UNIT_MLP, SHARED_GATE_UP, USUAL_ROUTER,                             \
               EXPERTS_GATE_UP(ACTIVATION_SILU), USUAL_EXPERTS_DOWN, SHARED_DOWN, DRAFT_OUTPUT)
/* In front of the layer: hidden states are normed as for the head. */
static const struct math_part usual_hidden_states __attribute__((unused)) =
    PART("hidden states", UNIT_MLP, NORM_WHOLE("final norm", BUFFER_X, TENSOR_FINAL_NORM));
/* The list `parts` of a file whose layers have attention, and a dense MLP or experts; and of its layer of
 * drafts. */
#define SPARSE_PARTS                                                                                         \
    [MATH_PART_ATTENTION] = &attention, [MATH_PART_DENSE] = &dense, [MATH_PART_SPARSE] = &sparse
#define DRAFT_PARTS                                                                                          \
    [MATH_PART_DRAFTS + MATH_PART_ATTENTION] = &draft_attention,                                             \
                        [MATH_PART_DRAFTS + MATH_PART_DENSE] = &draft_dense,                                 \
                        [MATH_PART_DRAFTS + MATH_PART_SPARSE] = &draft_sparse
/* Members of struct arch for a layer of drafts whose tensors have the usual names in all files. */
static const struct arch_rename no_draft_names[] __attribute__((unused)) = {{NULL, NULL}};
#define USUAL_DRAFTS .draft_names = no_draft_names, .hidden_states = &usual_hidden_states
/* Members of struct arch for the file's `parts`. */
#define USUAL_LAYERS .embed = &usual_embed, .head = &usual_head, .parts = parts, .kind = layers_usual_kind

/* ---- what absent keys mean ---- */

#define ROPE_START(base) .rope = {{.theta = (base), .factor = 1, .attention_factor = 1, .truncate = true}}
/* Its score, then what else is not 0 or false. */
#define ROUTER_START(...)                                                                                    \
    {                                                                                                        \
        .scale = 1, .groups = 1, .groups_chosen = 1, .score = __VA_ARGS__                                    \
    }
