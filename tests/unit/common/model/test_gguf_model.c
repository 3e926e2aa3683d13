/* Models in GGUF files: configuration from keys, tensors by name, one file, a folder with one, several files;
 * and what must be refused, by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>

#include "common/model/model.h"
#include "tests/unit/common/model/build_gguf_model.h"

#define GOLDEN "tests/data/golden-gguf/"

static void test_golden_files(void **state)
{
    (void)state;
    static const struct {
        const char *name, *architecture;
        bool tied, q_bias, qk_norm;
        enum rope_kind rope;
        double theta;
        uint32_t interleaved;
    } files[] = {{"llama-Q4_K_M", "LlamaForCausalLM", true, false, false, ROPE_FACTORS, 5e5, 8},
                 {"qwen2-oddrows-IQ4_XS", "Qwen2ForCausalLM", false, true, false, ROPE_DEFAULT, 1e6, 0},
                 {"qwen3-Q2_K", "Qwen3ForCausalLM", false, false, true, ROPE_DEFAULT, 1e6, 0},
                 {"qwen3moe-MXFP4_MOE", "Qwen3MoeForCausalLM", false, false, true, ROPE_DEFAULT, 1e6, 0},
                 {"mixtral-Q4_K_M", "MixtralForCausalLM", false, false, false, ROPE_DEFAULT, 5e5, 4}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct model m;
        struct model_config c;
        struct helm_err err = {0};
        char folder[128], path[160];
        bool derived = true;
        snprintf(folder, sizeof folder, GOLDEN "%s", files[i].name);
        snprintf(path, sizeof path, "%s/model.gguf", folder);
        if (model_read(path, &m, &err)) fail_msg("%s", err.text);
        assert_string_equal(m.folder, folder);
        assert_string_equal(m.path, path);
        assert_string_equal(m.shards[0].file, "model.gguf");
        assert_string_equal(m.config.architecture, files[i].architecture);
        assert_true(m.config.gguf);
        assert_int_equal(m.config.layers, 3);
        assert_int_equal(m.config.vocab, 2048);
        assert_int_equal(m.config.head_dim, 64);
        assert_int_equal(m.config.max_context, 4096);
        assert_int_equal(m.config.tied_head, files[i].tied);
        assert_int_equal(m.config.q_bias, files[i].q_bias);
        assert_int_equal(m.config.qk_norm, files[i].qk_norm);
        assert_int_equal(m.config.rope[0].kind, files[i].rope);
        assert_true(m.config.rope[0].theta == files[i].theta);
        assert_int_equal(m.config.bos, 0);
        assert_int_equal(m.config.eos_count, 1);
        assert_int_equal(m.config.eos[0], 1);
        assert_int_equal(model_find(&m, TENSOR_Q, 1)->interleaved_heads, files[i].interleaved);
        assert_int_equal(model_find(&m, TENSOR_K, 1)->interleaved_heads, files[i].interleaved / 2);
        assert_int_equal(model_find(&m, TENSOR_V, 1)->interleaved_heads, 0);
        if (m.config.sparse)
            assert_string_equal(model_find(&m, TENSOR_DOWN_EXPERTS, 2)->name, "blk.2.ffn_down_exps.weight");
        else
            assert_string_equal(model_find(&m, TENSOR_DOWN, 2)->name, "blk.2.ffn_down.weight");
        uint64_t bytes = m.weight_bytes;
        model_free(&m);
        if (model_read(folder, &m, &err)) fail_msg("%s", err.text);
        assert_string_equal(m.folder, folder);
        assert_string_equal(m.path, folder);
        assert_int_equal(m.weight_bytes, bytes);
        model_free(&m);
        if (model_read_headers(path, &m, &derived, &err)) fail_msg("%s", err.text);
        assert_false(derived);
        model_free(&m);
        if (model_read_config(folder, &c, &err)) fail_msg("%s", err.text);
        assert_string_equal(c.architecture, files[i].architecture);
        model_config_free(&c);
    }
}

static void test_architectures(void **state)
{
    (void)state;
    struct model m;
    static const char *const interleaved[] = {"llama", "mistral3"};
    for (int i = 0; i < 2; i++) {
        accept(&(struct recipe){.arch = interleaved[i], .biases = true}, &m);
        assert_string_equal(m.config.architecture, i ? "Ministral3ForCausalLM" : "LlamaForCausalLM");
        assert_int_equal(model_find(&m, TENSOR_Q, 0)->interleaved_heads, HEADS);
        assert_int_equal(model_find(&m, TENSOR_K_BIAS, 0)->interleaved_heads, 2);
        assert_false(m.config.tied_head);
        assert_int_equal(m.config.window[0], 0);
        assert_int_equal(m.config.bos, -1);
        assert_int_equal(m.config.eos_count, 0);
        assert_true(m.config.rope[0].theta == 10000);
        model_free(&m);
    }
    accept(&(struct recipe){.arch = "qwen2", .tied = true}, &m);
    assert_true(m.config.tied_head);
    assert_false(m.config.q_bias);
    assert_ptr_equal(model_find(&m, TENSOR_HEAD, -1), model_find(&m, TENSOR_EMBED, -1));
    model_free(&m);
    refuse(&(struct recipe){.arch = "qwen3"}, HELM_E_NOT_FOUND,
           "tensor 'blk.0.attn_q_norm.weight' is missing");
    refuse(&(struct recipe){.arch = "nemotron_h"}, HELM_E_UNSUPPORTED,
           "architecture 'nemotron_h' is not supported (supported: llama, mistral3, qwen2, qwen3, qwen2moe, "
           "qwen3moe, dots1, gpt-oss, qwen35, qwen35moe, qwen3next, phi3, opt, granite, gemma3, gemma4, "
           "minimax-m2, glm4, glm4moe, deepseek2, smollm3, seed_oss, olmo2)");
    refuse(&(struct recipe){.arch = "llama", .leave_out = "token_embd.weight"}, HELM_E_NOT_FOUND,
           "no matrix 'token_embd.weight'");
    refuse(&(struct recipe){.arch = "llama", .leave_out = "blk.0.ffn_up.weight"}, HELM_E_NOT_FOUND,
           "tensor 'blk.0.ffn_up.weight' is missing");
    refuse(&(struct recipe){.arch = "llama", .add = "blk.0.attn_q_norm.weight"}, HELM_E_MISMATCH,
           "surplus tensor 'blk.0.attn_q_norm.weight': the file says this LlamaForCausalLM has none");
    refuse(&(struct recipe){.arch = "llama", .add = "blk.1.attn_norm.weight"}, HELM_E_MISMATCH,
           "the file has 1 layers");
    refuse(&(struct recipe){.arch = "llama", .add = "model.norm.weight"}, HELM_E_MISMATCH,
           "surplus tensor 'model.norm.weight'");
    refuse(&(struct recipe){.arch = "llama", .kv_heads = 3}, HELM_E_FORMAT, "not a multiple");
}

static void text_key(struct built *b, const char *arch, const char *name, const char *value)
{
    char text[128];
    key(text, arch, name);
    put_text(b, text, value);
}
KEYS(experts, arch_u32(b, arch, "expert_count", 4); arch_u32(b, arch, "expert_used_count", 3))
KEYS(many_experts, arch_u32(b, arch, "expert_count", 1u << 31))
KEYS(no_choice, arch_u32(b, arch, "expert_count", 4); arch_u32(b, arch, "expert_used_count", 5))
KEYS(shared_expert, experts(b, arch); arch_u32(b, arch, "expert_shared_count", 1))
KEYS(no_experts, arch_u32(b, arch, "expert_count", 0))
KEYS(temperature, arch_f32(b, arch, "attention.temperature_scale", 0.1f))
KEYS(part_of_head, arch_u32(b, arch, "rope.dimension_count", 8))
KEYS(value_length, arch_u32(b, arch, "attention.value_length", 32))
KEYS(many_layers, arch_u32(b, arch, "attention.key_length", 1u << 30))
KEYS(longrope, text_key(b, arch, "rope.scaling.type", "longrope"))
KEYS(window, arch_u32(b, arch, "attention.sliding_window", 128))
KEYS(linear, text_key(b, arch, "rope.scaling.type", "linear"); arch_f32(b, arch, "rope.scaling.factor", 4))
KEYS(yarn, text_key(b, arch, "rope.scaling.type", "yarn"); arch_f32(b, arch, "rope.scaling.factor", 4);
     arch_u32(b, arch, "rope.scaling.original_context_length", 256))
KEYS(bare_yarn, text_key(b, arch, "rope.scaling.type", "yarn"))
KEYS(ids, put_u32(b, "tokenizer.ggml.eos_token_id", 7); put_u32(b, "tokenizer.ggml.eot_token_id", 9);
     put_u32(b, "tokenizer.ggml.bos_token_id", 5))
KEYS(bad_id, put_u32(b, "tokenizer.ggml.eos_token_id", UINT32_MAX))
KEYS(theta, arch_f32(b, arch, "rope.freq_base", 1.5f))
KEYS(twice_scaled, linear(b, arch))

static void test_keys(void **state)
{
    (void)state;
    struct model m;
    refuse(&(struct recipe){.arch = "llama", .keys = temperature, .key_count = 1}, HELM_E_UNSUPPORTED,
           "key 'llama.attention.temperature_scale'");
    refuse(&(struct recipe){.arch = "mistral3", .keys = temperature, .key_count = 1}, HELM_E_UNSUPPORTED,
           "'mistral3.attention.temperature_scale' is 0.1: scaling attention by position needs YaRN");
    refuse(&(struct recipe){.arch = "qwen2", .keys = part_of_head, .key_count = 1}, HELM_E_UNSUPPORTED,
           "key 'qwen2.rope.dimension_count' is 8, but heads have 16 values");
    refuse(&(struct recipe){.arch = "qwen2", .keys = value_length, .key_count = 1}, HELM_E_UNSUPPORTED,
           "attention.value_length' is 32");
    refuse(&(struct recipe){.arch = "qwen2", .keys = many_layers, .key_count = 1}, HELM_E_LIMIT,
           "key 'qwen2.attention.key_length'");
    refuse(&(struct recipe){.arch = "llama", .keys = longrope, .key_count = 1}, HELM_E_NOT_FOUND,
           "there is no vector 'rope_factors_long.weight'");
    refuse(&(struct recipe){.arch = "llama", .keys = bare_yarn, .key_count = 1}, HELM_E_NOT_FOUND,
           "key 'llama.rope.scaling.factor'");
    refuse(&(struct recipe){.arch = "llama", .keys = bad_id, .key_count = 1}, HELM_E_LIMIT,
           "key 'tokenizer.ggml.eos_token_id'");
    refuse(&(struct recipe){.arch = "llama", .keys = theta, .key_count = 1}, HELM_E_LIMIT, "rope_theta");
    refuse(&(struct recipe){.arch = "llama", .keys = twice_scaled, .key_count = 2, .factors = true},
           HELM_E_UNSUPPORTED, "'rope_freqs.weight' beside RoPE scaling");
    accept(&(struct recipe){.arch = "llama", .keys = no_experts, .key_count = 1}, &m);
    model_free(&m);
    accept(&(struct recipe){.arch = "llama", .keys = window, .key_count = 1}, &m);
    assert_string_equal(m.config.architecture, "MistralForCausalLM");
    assert_int_equal(m.config.window[0], 128);
    model_free(&m);
    accept(&(struct recipe){.arch = "qwen2", .keys = window, .key_count = 1}, &m);
    assert_int_equal(m.config.window[0], 0);
    model_free(&m);
    accept(&(struct recipe){.arch = "llama", .keys = linear, .key_count = 2}, &m);
    assert_int_equal(m.config.rope[0].kind, ROPE_LINEAR);
    assert_true(m.config.rope[0].factor == 4);
    model_free(&m);
    accept(&(struct recipe){.arch = "qwen2", .keys = yarn, .key_count = 3}, &m);
    assert_int_equal(m.config.rope[0].kind, ROPE_YARN);
    assert_int_equal(m.config.rope[0].original_context, 256);
    assert_int_equal(m.config.max_context, 1024);
    model_free(&m);
    accept(&(struct recipe){.arch = "llama", .keys = ids, .key_count = 3}, &m);
    assert_int_equal(m.config.eos_count, 2);
    assert_int_equal(m.config.eos[0], 7);
    assert_int_equal(m.config.eos[1], 9);
    assert_int_equal(m.config.bos, 5);
    model_free(&m);
}

KEYS(neutral, arch_f32(b, arch, "rope.scaling.attn_factor", 1); arch_f32(b, arch, "logit_scale", 1);
     arch_f32(b, arch, "residual_scale", 1); arch_f32(b, arch, "embedding_scale", 1);
     arch_f32(b, arch, "attention.scale", 0.25f); arch_f32(b, arch, "expert_weights_scale", 1);
     arch_u32(b, arch, "expert_group_count", 1); arch_f32(b, arch, "attention.temperature_scale", 0))
KEYS(logits, arch_f32(b, arch, "logit_scale", 0.5f))
KEYS(residual, arch_f32(b, arch, "residual_scale", 0.22f))
KEYS(scores, arch_f32(b, arch, "attention.scale", 0.5f))
KEYS(weights, arch_f32(b, arch, "expert_weights_scale", 2.5f))
KEYS(drafts, arch_u32(b, arch, "nextn_predict_layers", 1))

/* A value that changes nothing is no demand; one that does is refused by its key. */
static void test_neutral_values(void **state)
{
    (void)state;
    struct model m;
    accept(&(struct recipe){.arch = "llama", .keys = neutral, .key_count = 8}, &m); /* heads of 16 */
    model_free(&m);
    static const struct {
        void (*keys)(struct built *b, const char *arch);
        const char *text;
    } demands[] = {{logits, "key 'llama.logit_scale' is 0.5: scaled logits"},
                   {residual, "key 'llama.residual_scale' is 0.22: a scaled residual"},
                   {scores, "key 'llama.attention.scale' is 0.5: attention with a scale of its own"},
                   {weights, "key 'llama.expert_weights_scale' is 2.5: scaled weights"}};
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++)
        refuse(&(struct recipe){.arch = "llama", .keys = demands[i].keys, .key_count = 1}, HELM_E_UNSUPPORTED,
               demands[i].text);
    refuse(&(struct recipe){.arch = "llama", .keys = drafts, .key_count = 1}, HELM_E_FORMAT,
           "'llama.nextn_predict_layers' is 1 of 'llama.block_count' 1");
}

/* Mixtures of experts: told by a key in `llama`, by the architecture in `qwen3moe`. */
static void test_experts(void **state)
{
    (void)state;
    struct model m;
    const struct recipe mixtral = {
        .arch = "llama", .keys = experts, .key_count = 2, .experts = 4, .expert_inner = INNER};
    struct recipe bad = mixtral;
    accept(&mixtral, &m);
    assert_string_equal(m.config.architecture, "MixtralForCausalLM");
    assert_int_equal(m.config.router.experts, 4);
    assert_int_equal(m.config.router.chosen, 3);
    assert_int_equal(m.config.router.score, ROUTER_SOFTMAX);
    assert_true(m.config.router.normalise);
    assert_int_equal(m.config.expert_intermediate, INNER);
    assert_true(m.config.sparse && m.config.sparse[0]);
    assert_int_equal(model_find(&m, TENSOR_Q, 0)->interleaved_heads, HEADS);
    const struct model_tensor *down = model_find(&m, TENSOR_DOWN_EXPERTS, 0);
    assert_int_equal(down->rows, 4 * HIDDEN);
    assert_int_equal(down->cols, INNER);
    assert_int_equal(down->piece_count, 0);
    assert_null(model_find(&m, TENSOR_GATE, 0));
    const struct model_unit *unit = &m.unit[unit_of(0, UNIT_MLP)];
    assert_int_equal(unit->matrix_count, 3); /* the router is kept with the norms */
    assert_int_equal(unit->tensor_count, 5);
    assert_int_equal(model_unit_math(&m, unit_of(0, UNIT_MLP))->op[0].kind, MATH_ROUTE);
    assert_true(model_unit_math(&m, unit_of(0, UNIT_MLP))->read_part == 0.75);
    assert_int_equal(model_mlp_width(&m.config), 3 * INNER);
    model_free(&m);
    bad.expert_inner = INNER / 2;
    refuse(&bad, HELM_E_MISMATCH,
           "'blk.0.ffn_gate_exps.weight' has shape [4, 16, 64], the file implies [4, 32, 64]");
    bad = mixtral;
    bad.experts = 3;
    refuse(&bad, HELM_E_MISMATCH, "'blk.0.ffn_gate_inp.weight' has shape [3, 64], the file implies [4, 64]");
    bad.experts = 0;
    refuse(&bad, HELM_E_MISMATCH,
           "surplus tensor 'blk.0.ffn_gate.weight': the file says this MixtralForCausalLM has none");
    bad = mixtral;
    bad.leave_out = "blk.0.ffn_gate_inp.weight";
    refuse(&bad, HELM_E_NOT_FOUND, "tensor 'blk.0.ffn_gate_inp.weight' is missing");
    bad = mixtral;
    bad.arch = "qwen2";
    refuse(&bad, HELM_E_UNSUPPORTED,
           "key 'qwen2.expert_count' is 4: no model of this architecture with experts");
    bad = mixtral;
    bad.keys = many_experts, bad.key_count = 1;
    refuse(&bad, HELM_E_LIMIT, "key 'llama.expert_count' is 2147483648, not between 1 and 1024");
    bad.keys = no_choice, bad.key_count = 2;
    refuse(&bad, HELM_E_FORMAT, "'llama.expert_used_count' is 5, but there are 4 experts");
    bad.keys = shared_expert, bad.key_count = 3;
    refuse(&bad, HELM_E_UNSUPPORTED, "key 'llama.expert_shared_count' is 1: shared experts");
    refuse(&(struct recipe){.arch = "qwen3moe", .keys = experts, .key_count = 2}, HELM_E_NOT_FOUND,
           "key 'qwen3moe.expert_feed_forward_length'");
    refuse(&(struct recipe){.arch = "llama", .add = "blk.0.ffn_gate_exps.weight"}, HELM_E_MISMATCH,
           "surplus tensor 'blk.0.ffn_gate_exps.weight'");
}

KEYS(lengths, experts(b, arch); arch_u32(b, arch, "expert_feed_forward_length", INNER);
     arch_u32(b, arch, "expert_shared_feed_forward_length", 48))
KEYS(shared_length, experts(b, arch); arch_u32(b, arch, "expert_shared_feed_forward_length", 48))
static void v3_keys(struct built *b, const char *arch, uint32_t function)
{
    char text[128];
    experts(b, arch);
    arch_u32(b, arch, "expert_feed_forward_length", INNER);
    arch_u32(b, arch, "expert_shared_count", 2);
    arch_u32(b, arch, "expert_group_count", 2);
    arch_u32(b, arch, "expert_group_used_count", 2);
    arch_u32(b, arch, "expert_gating_func", function);
    arch_f32(b, arch, "expert_weights_scale", 2.5f);
    key(text, arch, "expert_weights_norm");
    put_string(b, text);
    put(b, 7, 4); /* true or false */
    put(b, 1, 1);
}
KEYS(v3, v3_keys(b, arch, 2))
KEYS(v3_softmax, v3_keys(b, arch, 1))

/* The expert that every token has: its matrices come first, as they are used; what weighs it is kept with the
 * norms. */
static void test_shared_experts(void **state)
{
    (void)state;
    struct model m;
    struct recipe qwen = {.arch = "qwen2moe",
                          .keys = lengths,
                          .key_count = 4,
                          .biases = true,
                          .experts = 4,
                          .expert_inner = INNER,
                          .shared = 48,
                          .share_rank = 1};
    accept(&qwen, &m);
    assert_string_equal(m.config.architecture, "Qwen2MoeForCausalLM");
    assert_true(m.config.shared_intermediate == 48 && m.config.shared_weighed && !m.config.choice_bias);
    assert_true(m.config.q_bias && !m.config.o_bias && !m.config.router.normalise);
    const struct model_unit *unit = &m.unit[unit_of(0, UNIT_MLP)];
    const struct math_part *math = model_unit_math(&m, unit_of(0, UNIT_MLP));
    assert_int_equal(unit->matrix_count, 6);
    assert_int_equal(unit->tensor_count, 9); /* norm, router, what weighs the shared one */
    assert_int_equal(unit->tensor[0]->role, TENSOR_SHARED_GATE);
    assert_int_equal(unit->tensor[5]->role, TENSOR_SHARED_DOWN);
    assert_int_equal(math->ops, 6);
    assert_int_equal(math->op[1].kind, MATH_WEIGH);
    assert_int_equal(model_find(&m, TENSOR_SHARED_DOWN, 0)->cols, 48);
    assert_true(model_tensor_is_vector(model_find(&m, TENSOR_SHARE, 0)));
    model_free(&m);
    qwen.share_rank = 2; /* as a matrix of one row */
    accept(&qwen, &m);
    assert_true(model_find(&m, TENSOR_SHARE, 0)->rows == 1 &&
                model_find(&m, TENSOR_SHARE, 0)->cols == HIDDEN);
    model_free(&m);
    qwen.share_rank = 3;
    refuse(&qwen, HELM_E_MISMATCH,
           "'blk.0.ffn_gate_inp_shexp.weight' has shape [2, 64], the file implies [64]");
    qwen.share_rank = 0;
    refuse(&qwen, HELM_E_NOT_FOUND, "tensor 'blk.0.ffn_gate_inp_shexp.weight' is missing");
    /* early files have one length for all */
    accept(&(struct recipe){.arch = "qwen2moe",
                            .keys = experts,
                            .key_count = 2,
                            .experts = 4,
                            .expert_inner = INNER / 3,
                            .shared = INNER,
                            .share_rank = 1},
           &m);
    assert_int_equal(m.config.shared_intermediate, INNER);
    model_free(&m);
    refuse(&(struct recipe){.arch = "llama",
                            .keys = shared_length,
                            .key_count = 3,
                            .experts = 4,
                            .expert_inner = INNER},
           HELM_E_UNSUPPORTED, "key 'llama.expert_shared_feed_forward_length' is 48: shared experts");
    struct recipe dots = {.arch = "dots1",
                          .keys = v3,
                          .key_count = 9,
                          .experts = 4,
                          .expert_inner = INNER,
                          .shared = 2 * INNER,
                          .qk_norm = true,
                          .choice_bias = true};
    accept(&dots, &m);
    assert_true(m.config.shared_intermediate == 2 * INNER && !m.config.shared_weighed &&
                m.config.choice_bias);
    assert_true(m.config.router.score == ROUTER_SIGMOID && m.config.router.normalise);
    assert_true(m.config.router.scale == 2.5f && m.config.router.groups == 2);
    math = model_unit_math(&m, unit_of(0, UNIT_MLP));
    assert_int_equal(math->ops, 5); /* it has weight 1 */
    assert_int_equal(math->op[1].kind, MATH_ROUTE);
    assert_int_equal(math->op[1].bias[1], TENSOR_CHOICE_BIAS);
    model_free(&m);
    dots.keys = v3_softmax;
    refuse(&dots, HELM_E_UNSUPPORTED, "key 'dots1.expert_gating_func' is 1; only 2 is supported");
}

static void test_factors(void **state)
{
    (void)state;
    struct model m;
    float plain[HIDDEN / HEADS / 2], scaled[HIDDEN / HEADS / 2], scale;
    accept(&(struct recipe){.arch = "llama", .factors = true}, &m);
    assert_int_equal(m.config.rope[0].kind, ROPE_FACTORS);
    for (uint32_t i = 0; i < HIDDEN / HEADS / 2; i++) assert_true(m.config.rope[0].factors[i] == 1);
    rope_inv_freq(&m.config, 0, 0, plain, &scale);
    for (uint32_t i = 0; i < HIDDEN / HEADS / 2; i++) m.config.rope[0].factors[i] = (float)(1u << i % 4);
    rope_inv_freq(&m.config, 0, 0, scaled, &scale);
    assert_true(scale == 1);
    for (uint32_t i = 0; i < HIDDEN / HEADS / 2; i++)
        assert_true(scaled[i] == plain[i] / (float)(1u << i % 4));
    model_free(&m);
    /* A file whose factors are none: 0. */
    char folder[TREE_PATH];
    struct helm_err err = {0};
    tree_make(folder);
    make_file(&(struct recipe){.arch = "llama", .factors = true}, &built);
    put_data(&built, 32, HIDDEN * VOCAB * 4);
    for (uint32_t i = 0; i < 32; i++) put(&built, 0, 1);
    data_bytes -= HIDDEN * VOCAB * 4 + 32;
    write_file(folder, "m.gguf", &built);
    assert_int_equal(model_read(folder, &m, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "factor 0 is 0"));
    tree_remove(folder);
}

static void test_which_file(void **state)
{
    (void)state;
    struct model m;
    struct helm_err err = {0};
    char folder[TREE_PATH], path[TREE_PATH + 64];
    tree_make(folder);
    make_file(&(struct recipe){.arch = "llama"}, &built);
    assert_int_equal(model_read(folder, &m, &err), HELM_E_NOT_FOUND);
    write_file(folder, "one.gguf", &built);
    write_file(folder, "mmproj-one.gguf", &built);
    if (model_read(folder, &m, &err)) fail_msg("%s", err.text);
    assert_string_equal(m.shards[0].file, "one.gguf");
    model_free(&m);
    write_file(folder, "two.gguf", &built);
    assert_int_equal(model_read(folder, &m, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "several GGUF files"));
    assert_null(m.folder);
    snprintf(path, sizeof path, "%s/two.gguf", folder);
    if (model_read(path, &m, &err)) fail_msg("%s", err.text);
    model_free(&m);
    tree_write(folder, "model.safetensors", "no"); /* a checkpoint with GGUF files beside it */
    assert_int_equal(model_read(folder, &m, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json"));
    snprintf(path, sizeof path, "%s/three.gguf", folder);
    assert_int_equal(model_read(path, &m, &err), HELM_E_NOT_FOUND);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    assert_int_equal(model_read(path, &m, &err), HELM_E_PERMISSION);
    /* In the working folder, without a slash. */
    char before[TREE_PATH * 4];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    int rc = model_read("two.gguf", &m, &err);
    assert_int_equal(chdir(before), 0);
    if (rc) fail_msg("%s", err.text);
    assert_string_equal(m.folder, ".");
    model_free(&m);
    tree_remove(folder);
}

/* For planning the data may be missing; loading refuses. */
static void test_headers_only(void **state)
{
    (void)state;
    struct model m;
    struct helm_err err = {0};
    char folder[TREE_PATH];
    bool derived = true;
    tree_make(folder);
    make_file(&(struct recipe){.arch = "llama", .factors = true}, &built);
    const uint64_t bytes = built.length + data_bytes;
    data_bytes = 0;
    write_file(folder, "m.gguf", &built);
    if (model_read_headers(folder, &m, &derived, &err)) fail_msg("%s", err.text);
    assert_false(derived);
    assert_int_equal(m.shards[0].bytes, bytes);
    model_free(&m);
    assert_int_equal(model_read(folder, &m, &err), HELM_E_FORMAT);
    tree_remove(folder);
}

/* A model of the golden collection cut into two files by hand. */
static void write_split(const char *folder, uint16_t number, uint16_t count, uint32_t all, bool first)
{
    char name[64];
    const struct recipe none = {0};
    infos.length = tensor_count = data_bytes = 0;
    if (first) {
        add_tensor(&none, "token_embd.weight", HIDDEN, VOCAB);
        add_tensor(&none, "blk.0.attn_norm.weight", HIDDEN, 0);
        add_tensor(&none, "blk.0.attn_q.weight", HIDDEN, HIDDEN);
        add_tensor(&none, "blk.0.attn_k.weight", HIDDEN, HIDDEN);
        add_tensor(&none, "blk.0.attn_v.weight", HIDDEN, HIDDEN);
    } else {
        add_tensor(&none, "output_norm.weight", HIDDEN, 0);
        add_tensor(&none, "blk.0.attn_output.weight", HIDDEN, HIDDEN);
        add_tensor(&none, "blk.0.ffn_norm.weight", HIDDEN, 0);
        add_tensor(&none, "blk.0.ffn_gate.weight", HIDDEN, INNER);
        add_tensor(&none, "blk.0.ffn_up.weight", HIDDEN, INNER);
        add_tensor(&none, "blk.0.ffn_down.weight", INNER, HIDDEN);
    }
    put_start(&built, tensor_count, first ? 10 : 3);
    put_key(&built, "split.no", GGUF_U16);
    put(&built, number, 2);
    put_key(&built, "split.count", GGUF_U16);
    put(&built, count, 2);
    put_key(&built, "split.tensors.count", GGUF_I32);
    put(&built, all, 4);
    if (first) {
        put_text(&built, "general.architecture", "llama");
        put_u32(&built, "llama.block_count", 1);
        put_u32(&built, "llama.embedding_length", HIDDEN);
        put_u32(&built, "llama.feed_forward_length", INNER);
        put_u32(&built, "llama.attention.head_count", HEADS);
        put_u32(&built, "llama.context_length", 512);
        put_f32(&built, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    }
    memcpy(built.bytes + built.length, infos.bytes, infos.length);
    built.length += infos.length;
    while (built.length % 32) put(&built, 0, 1);
    snprintf(name, sizeof name, "m-%05d-of-00002.gguf", first ? 1 : 2);
    write_file(folder, name, &built);
}

static void test_splits(void **state)
{
    (void)state;
    struct model m;
    struct helm_err err = {0};
    char folder[TREE_PATH], path[TREE_PATH + 64];
    tree_make(folder);
    write_split(folder, 0, 2, 11, true);
    assert_int_equal(model_read(folder, &m, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "m-00002-of-00002.gguf"));
    write_split(folder, 1, 2, 11, false);
    if (model_read(folder, &m, &err)) fail_msg("%s", err.text);
    assert_int_equal(m.shard_count, 2);
    assert_int_equal(m.tensor_count, 11);
    assert_int_equal(model_find(&m, TENSOR_DOWN, 0)->shard, 1);
    assert_int_equal(model_find(&m, TENSOR_EMBED, -1)->shard, 0);
    model_free(&m);
    snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", folder);
    if (model_read(path, &m, &err)) fail_msg("%s", err.text);
    model_free(&m);
    snprintf(path, sizeof path, "%s/m-00002-of-00002.gguf", folder);
    assert_int_equal(model_read(path, &m, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "name the first"));
    static const struct {
        uint16_t number, count;
        uint32_t all;
        const char *text;
    } bad[] = {{0, 2, 11, "'split.no' and 'split.count' say number 0 of 2"},
               {1, 3, 11, "say number 1 of 3"},
               {2, 2, 11, "say number 2 of 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_split(folder, bad[i].number, bad[i].count, bad[i].all, false);
        assert_int_equal(model_read(folder, &m, &err), HELM_E_MISMATCH);
        assert_non_null(strstr(err.text, bad[i].text));
    }
    write_split(folder, 1, 2, 11, false);
    write_split(folder, 0, 2, 12, true);
    assert_int_equal(model_read(folder, &m, &err), HELM_E_MISMATCH);
    assert_non_null(strstr(err.text, "'split.tensors.count' is 12, the files have 11 tensors"));
    tree_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_files),   cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_keys),           cmocka_unit_test(test_experts),
        cmocka_unit_test(test_neutral_values), cmocka_unit_test(test_shared_experts),
        cmocka_unit_test(test_factors),        cmocka_unit_test(test_which_file),
        cmocka_unit_test(test_headers_only),   cmocka_unit_test(test_splits),
    };
    return cmocka_run_group_tests_name("model/gguf_model", tests, NULL, NULL);
}
