/* config.json and generation_config.json: both generations of keys, defaults, and a table of hostile files,
 * each with the error it must give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/model/checkpoint.h"
#include "common/model/model.h"

/* A sound Qwen3; tests change members of it. */
static const char base[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"dtype\": \"bfloat16\","
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 8,"
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 100, \"max_position_embeddings\": 512,"
    "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false,"
    "\"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}, \"eos_token_id\": 3}";

/* The beginning of a patch that makes it a mixture of experts. */
#define MOE                                                                                                  \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", "                         \
    "\"moe_intermediate_size\": 24, \"num_experts\": 128, \"num_experts_per_tok\": 8, "

/* base with the members of `patch` put in place; "DELETE" as a value removes the member. */
static char *patched(const char *patch)
{
    json_t *root = json_loads(base, 0, NULL), *changes = json_loads(patch, 0, NULL), *value;
    const char *key;
    if (!changes) fail_msg("the test's patch is not JSON: %s", patch);
    json_object_foreach(changes, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "DELETE") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    char *text = json_dumps(root, 0);
    json_decref(root);
    json_decref(changes);
    return text;
}

static int parse(const char *patch, struct model_config *config, struct helm_err *err)
{
    char *text = patched(patch);
    int rc = model_config_parse("config.json", text, strlen(text), config, err);
    free(text);
    return rc;
}

static void parse_ok(const char *patch, struct model_config *config)
{
    struct helm_err err = {0};
    if (parse(patch, config, &err)) fail_msg("%s: %s", patch, err.text);
}

static void test_base(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok("{}", &c);
    assert_string_equal(c.architecture, "Qwen3ForCausalLM");
    assert_string_equal(c.model_type, "qwen3");
    assert_int_equal(c.layers, 4);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.intermediate, 96);
    assert_int_equal(c.vocab, 100);
    assert_int_equal(c.heads, 8);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.max_context, 512);
    assert_true(c.norm_eps == 1e-6);
    assert_true(c.qk_norm && !c.q_bias && !c.o_bias && !c.mlp_bias && !c.tied_head);
    assert_int_equal(c.dtype, DTYPE_BF16);
    assert_int_equal(c.rope[0].kind, ROPE_DEFAULT);
    assert_true(c.rope[0].theta == 1e6);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos[0], 3);
    assert_int_equal(model_kv_bytes_per_token(&c, c.layers, KV_F16), 2 * 4 * 2 * 16 * 2);
    assert_int_equal(model_kv_bytes_per_token(&c, 1, KV_F32), 2 * 2 * 16 * 4);
    model_config_free(&c);
}

static void test_defaults_of_absent_keys(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok("{\"architectures\": [\"LlamaForCausalLM\"], \"head_dim\": \"DELETE\", "
             "\"num_key_value_heads\": \"DELETE\", \"rope_parameters\": \"DELETE\","
             "\"dtype\": \"DELETE\", \"eos_token_id\": \"DELETE\", \"rms_norm_eps\": \"DELETE\","
             "\"tie_word_embeddings\": \"DELETE\", \"hidden_act\": \"DELETE\", \"model_type\": \"DELETE\"}",
             &c);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.kv_heads, 8);
    assert_true(c.rope[0].theta == 10000.0);
    assert_int_equal(c.dtype, DTYPE_F32);
    assert_int_equal(c.eos_count, 0);
    assert_string_equal(c.model_type, "llama");
    model_config_free(&c);
    parse_ok("{\"architectures\": \"DELETE\", \"num_key_value_heads\": null}", &c);
    assert_string_equal(c.architecture, "Qwen3ForCausalLM");
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.kv_heads, 8);
    model_config_free(&c);
    /* the reference's own defaults, by architecture */
    parse_ok("{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", "
             "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"rope_parameters\": \"DELETE\", "
             "\"rms_norm_eps\": \"DELETE\"}",
             &c);
    assert_true(c.rope[0].theta == 1e6 && c.norm_eps == 1e-5);
    model_config_free(&c);
}

/* One number, several names for it. */
static void test_aliases(void **state)
{
    (void)state;
    struct model_config c;
    struct helm_err err = {0};
    parse_ok(MOE "\"num_experts\": \"DELETE\", \"num_local_experts\": 16}", &c);
    assert_int_equal(c.router.experts, 16);
    model_config_free(&c);
    parse_ok(MOE "\"num_experts\": 16, \"num_local_experts\": 16}", &c);
    assert_int_equal(c.router.experts, 16);
    model_config_free(&c);
    assert_int_equal(parse(MOE "\"num_experts\": 16, \"num_local_experts\": 12}", &c, &err), HELM_E_MISMATCH);
    assert_non_null(strstr(err.text, "'num_experts' and 'num_local_experts' contradict each other"));
    parse_ok("{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", "
             "\"num_experts\": 6, \"num_experts_per_tok\": 2}",
             &c);
    assert_int_equal(c.router.experts, 6);
    model_config_free(&c);
}

/* A text model inside one with more: its own keys, then the whole's. */
static void test_text_config(void **state)
{
    (void)state;
    static const char outer[] =
        "{\"architectures\": [\"Qwen3VLForConditionalGeneration\"], \"model_type\": \"qwen3_vl\", "
        "\"tie_word_embeddings\": true, \"eos_token_id\": 9, \"vision_config\": {\"depth\": 2}, "
        "\"text_config\": {\"model_type\": \"%s\", \"dtype\": \"bfloat16\", \"hidden_size\": 64, "
        "\"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 8, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 100, \"rope_scaling\": "
        "{\"rope_type\": \"default\", \"mrope_section\": [4, 2, 2]}, \"rope_theta\": 5e6}}";
    struct model_config c;
    struct helm_err err = {0};
    char text[1024];
    snprintf(text, sizeof text, outer, "qwen3_vl_text");
    if (model_config_parse("config.json", text, strlen(text), &c, &err)) fail_msg("%s", err.text);
    assert_string_equal(c.architecture, "Qwen3ForCausalLM");
    assert_true(c.layers == 4 && c.head_dim == 16 && c.tied_head && c.rope[0].theta == 5e6);
    assert_true(c.eos_count == 1 && c.eos[0] == 9);
    model_config_free(&c);
    snprintf(text, sizeof text, outer, "qwen4_text");
    assert_int_equal(model_config_parse("config.json", text, strlen(text), &c, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "model_type 'qwen4_text'"));
    assert_int_equal(parse("{\"architectures\": [\"Qwen3VLForConditionalGeneration\"]}", &c, &err),
                     HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "'text_config' is missing"));
}

static void test_older_and_newer_keys(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok("{\"dtype\": \"DELETE\", \"torch_dtype\": \"float16\", \"rope_parameters\": \"DELETE\","
             "\"rope_theta\": 500000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
             &c);
    assert_int_equal(c.dtype, DTYPE_F16);
    assert_int_equal(c.rope[0].kind, ROPE_LINEAR);
    assert_true(c.rope[0].theta == 500000.0 && c.rope[0].factor == 2.0);
    model_config_free(&c);
    parse_ok("{\"rope_theta\": 1000000.0, \"rope_scaling\": {\"rope_type\": \"default\"}}",
             &c); /* both, agreeing */
    model_config_free(&c);
    parse_ok("{\"rope_scaling\": null, \"rope_parameters\": null, \"rope_theta\": 5e5}", &c);
    assert_int_equal(c.rope[0].kind, ROPE_DEFAULT);
    assert_true(c.rope[0].theta == 5e5);
    model_config_free(&c);
    parse_ok("{\"dtype\": \"torch.float32\"}", &c);
    assert_int_equal(c.dtype, DTYPE_F32);
    model_config_free(&c);
}

static void check_context(const char *patch, uint32_t expected)
{
    struct model_config c;
    parse_ok(patch, &c);
    if (c.max_context != expected) fail_msg("%s: context %u, not %u", patch, c.max_context, expected);
    model_config_free(&c);
}

/* The base says 512. */
static void test_context_of_yarn(void **state)
{
    (void)state;
#define ORIGINAL "\"original_max_position_embeddings\": "
#define YARN     "\"rope_type\": \"yarn\", \"rope_theta\": 1e6, "
    check_context("{\"rope_parameters\": {" YARN ORIGINAL "512, \"factor\": 4}}", 2048);
    check_context("{\"rope_parameters\": {" YARN ORIGINAL "300, \"factor\": 2.501}}", 750);
    check_context("{\"rope_scaling\": {\"type\": \"yarn\", " ORIGINAL
                  "512, \"factor\": 4}, \"rope_parameters\": \"DELETE\"}",
                  2048);
    check_context("{" ORIGINAL "512, \"rope_parameters\": {" YARN "\"factor\": 4}}", 2048);
    check_context("{\"rope_parameters\": {" YARN ORIGINAL "128, \"factor\": 2}}", 512); /* never less */
    check_context("{\"rope_parameters\": {" YARN ORIGINAL "67108864, \"factor\": 4}}", MODEL_CONTEXT_MAX);
    /* one of the two is not said */
    check_context("{\"rope_parameters\": {" YARN "\"factor\": 4}}", 512);
    check_context("{\"rope_parameters\": {" YARN ORIGINAL "128, \"factor\": null}}", 512);
    check_context("{\"rope_parameters\": {" YARN ORIGINAL "null, \"factor\": 4}}", 512);
    /* other kinds */
    check_context("{\"rope_parameters\": {\"rope_type\": \"linear\", " ORIGINAL "512, \"factor\": 4}}", 512);
    check_context("{\"rope_parameters\": {\"rope_type\": \"llama3\", " ORIGINAL
                  "512, \"factor\": 4, \"low_freq_factor\": 1, \"high_freq_factor\": 4}}",
                  512);
}

static void test_biases_by_architecture(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok("{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\"}", &c);
    assert_true(c.q_bias && c.k_bias && c.v_bias && !c.o_bias && !c.qk_norm);
    model_config_free(&c);
    parse_ok(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"attention_bias\": true,"
        "\"mlp_bias\": true, \"tie_word_embeddings\": true}",
        &c);
    assert_true(c.q_bias && c.o_bias && c.mlp_bias && c.tied_head && !c.qk_norm);
    model_config_free(&c);
    parse_ok("{\"attention_bias\": true}", &c);
    assert_true(c.q_bias && c.o_bias && c.qk_norm);
    model_config_free(&c);
    parse_ok("{\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\", \"attention_bias\": "
             "true}",
             &c);
    assert_true(!c.q_bias && !c.o_bias); /* the key means nothing to this architecture */
    model_config_free(&c);
}

static void check_windows(const char *patch, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    struct model_config config;
    parse_ok(patch, &config);
    uint32_t expected[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (config.window[i] != expected[i])
            fail_msg("%s: layer %d has window %u, not %u", patch, i, config.window[i], expected[i]);
    model_config_free(&config);
}

static void test_windows(void **state)
{
    (void)state;
#define MISTRAL "\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\""
    check_windows("{" MISTRAL ", \"sliding_window\": 64}", 64, 64, 64, 64);
    check_windows("{" MISTRAL ", \"sliding_window\": null}", 0, 0, 0, 0);
    check_windows("{" MISTRAL "}", 4096, 4096, 4096, 4096); /* the architecture's default */
    check_windows("{\"sliding_window\": 64, \"max_window_layers\": 2}", 0, 0, 0, 0);
    check_windows("{\"sliding_window\": 64, \"use_sliding_window\": true, \"max_window_layers\": 2}", 0, 0,
                  64, 64);
    check_windows("{\"sliding_window\": null, \"use_sliding_window\": true, \"max_window_layers\": 2}", 0, 0,
                  0, 0);
    check_windows("{\"sliding_window\": 64, \"use_sliding_window\": true}", 0, 0, 0,
                  0); /* from layer 28 on */
    check_windows(
        "{\"sliding_window\": 32, \"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\","
        "\"full_attention\", \"full_attention\", \"sliding_attention\"]}",
        32, 0, 0, 32);
    check_windows(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"sliding_window\": 64}", 0,
        0, 0, 0);
}

static void test_experts(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok(MOE "\"num_experts\": 16, \"num_experts_per_tok\": 4, \"norm_topk_prob\": true}", &c);
    assert_int_equal(c.router.experts, 16);
    assert_int_equal(c.router.chosen, 4);
    assert_true(c.router.normalise && c.router.scale == 1);
    assert_int_equal(c.expert_intermediate, 24);
    assert_int_equal(c.intermediate, 96);
    assert_int_equal(model_mlp_width(&c), 96); /* 4 * 24: no layer is dense */
    for (int i = 0; i < 4; i++) assert_true(c.sparse[i]);
    model_config_free(&c);
    parse_ok(MOE "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3, 77]}", &c);
    assert_int_equal(c.router.experts, 128);
    assert_int_equal(c.router.chosen, 8);
    assert_false(c.router.normalise);
    for (int i = 0; i < 4; i++) assert_int_equal(c.sparse[i], i == 1);
    assert_int_equal(model_mlp_width(&c), 8 * 24);
    model_config_free(&c);
    parse_ok(MOE "\"mlp_only_layers\": [0, 1, 2, 3]}", &c);
    assert_null(c.sparse);
    assert_int_equal(c.router.experts, 0);
    model_config_free(&c);
    parse_ok(MOE "\"use_sliding_window\": true, \"sliding_window\": 8}", &c);
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], 8);
    model_config_free(&c);
    parse_ok("{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", "
             "\"num_local_experts\": 8, \"num_experts_per_tok\": 2}",
             &c);
    assert_int_equal(c.router.experts, 8);
    assert_int_equal(c.router.chosen, 2);
    assert_true(c.router.normalise);
    assert_int_equal(c.expert_intermediate, 96);
    assert_int_equal(c.window[0], 0);
    model_config_free(&c);
}

/* The expert that every token has, with a weight or with 1; DeepSeek-V3's keys. */
#define QWEN2_MOE                                                                                            \
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"model_type\": \"qwen2_moe\", "                         \
    "\"moe_intermediate_size\": 24, \"num_experts\": 60, \"num_experts_per_tok\": 4, "                       \
    "\"shared_expert_intermediate_size\": 5632, "
#define DOTS1                                                                                                \
    "{\"architectures\": [\"Dots1ForCausalLM\"], \"model_type\": \"dots1\", \"moe_intermediate_size\": 24, " \
    "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"n_shared_experts\": null, "
static void test_shared_experts(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok(QWEN2_MOE "\"shared_expert_intermediate_size\": 200, \"decoder_sparse_step\": 2}", &c);
    assert_true(c.shared_intermediate == 200 && c.shared_weighed && !c.choice_bias);
    assert_true(c.router.experts == 60 && c.router.chosen == 4 && !c.router.normalise);
    assert_true(c.q_bias && c.v_bias && !c.o_bias && !c.qk_norm);
    assert_int_equal(model_widest(&c), 200);
    for (int i = 0; i < 4; i++) assert_int_equal(c.sparse[i], i % 2);
    model_config_free(&c);
    parse_ok(QWEN2_MOE
             "\"qkv_bias\": false, \"shared_expert_intermediate_size\": 0, \"use_sliding_window\": true, "
             "\"sliding_window\": 8, \"max_window_layers\": 3}",
             &c);
    assert_true(!c.q_bias && c.shared_intermediate == 0);
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], i == 0 || i == 2 ? 8 : 0);
    model_config_free(&c);
    parse_ok(QWEN2_MOE "\"use_sliding_window\": false}", &c);
    assert_int_equal(c.shared_intermediate, 5632);
    assert_int_equal(c.window[0], 0);
    model_config_free(&c);
    parse_ok(DOTS1
             "\"n_shared_experts\": 2, \"n_group\": 4, \"topk_group\": 2, \"routed_scaling_factor\": 2.5, "
             "\"norm_topk_prob\": true, \"first_k_dense_replace\": 1, \"sliding_window\": 16, "
             "\"max_window_layers\": 3}",
             &c);
    assert_true(c.shared_intermediate == 48 && !c.shared_weighed && c.choice_bias && c.qk_norm);
    assert_true(c.router.score == ROUTER_SIGMOID && c.router.normalise && c.router.scale == 2.5f);
    assert_true(c.router.groups == 4 && c.router.groups_chosen == 2);
    for (int i = 0; i < 4; i++) assert_int_equal(c.sparse[i], i > 0);
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], i == 3 ? 16 : 0);
    model_config_free(&c);
    parse_ok(DOTS1 "\"n_shared_experts\": null, \"n_group\": null}", &c);
    assert_true(c.shared_intermediate == 0 && c.router.groups == 1 && c.router.scale == 1);
    model_config_free(&c);
}

/* gpt-oss: biases, sinks and windows without being asked for, and experts in MXFP4 if it is said. */
#define GPT_OSS                                                                                              \
    "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"rope_parameters\": {"       \
    "\"rope_type\": \"yarn\", \"factor\": 32, \"truncate\": false}, \"num_local_experts\": 32, "             \
    "\"num_experts_per_tok\": 4, "
static void test_gpt_oss(void **state)
{
    (void)state;
    struct model_config c;
    parse_ok(GPT_OSS "\"num_local_experts\": 32, \"quantization_config\": {\"quant_method\": \"mxfp4\"}}",
             &c);
    assert_true(c.q_bias && c.k_bias && c.v_bias && c.o_bias && c.sinks && c.experts_bias && !c.mlp_bias);
    assert_true(c.router.experts == 32 && c.router.chosen == 4 && c.router.score == ROUTER_CHOSEN_SOFTMAX);
    assert_true(c.experts_format == FORMAT_MXFP4 && !c.rope[0].truncate);
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], i % 2 ? 0 : 128);
    model_config_free(&c);
    parse_ok(GPT_OSS
             "\"swiglu_limit\": 7.0, \"sliding_window\": 5, \"attention_bias\": false, \"layer_types\": "
             "[\"full_attention\", \"full_attention\", \"full_attention\", \"sliding_attention\"]}",
             &c);
    assert_true(!c.q_bias && !c.o_bias && c.experts_bias && c.experts_format == tensor_format_plain(c.dtype));
    for (int i = 0; i < 4; i++) assert_int_equal(c.window[i], i == 3 ? 5 : 0);
    model_config_free(&c);
}

static void test_special_ids(void **state)
{
    (void)state;
    struct model_config c;
    struct helm_err err = {0};
    parse_ok("{\"eos_token_id\": [5, 7, 5], \"bos_token_id\": 0}", &c);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.bos, 0);
    static const char generation[] = "{\"eos_token_id\": [7, 9], \"bos_token_id\": 4}";
    assert_int_equal(config_add_generation("g", generation, strlen(generation), &c, &err), 0);
    assert_int_equal(c.eos_count, 3);
    assert_int_equal(c.eos[2], 9);
    assert_int_equal(c.bos, 0);
    static const char bad[] = "{\"eos_token_id\": -4}";
    assert_int_equal(config_add_generation("g.json", bad, strlen(bad), &c, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "g.json: 'eos_token_id' is -4"));
    assert_int_equal(config_add_generation("g.json", "[]", 2, &c, &err), HELM_E_FORMAT);
    model_config_free(&c);
    parse_ok("{\"eos_token_id\": null, \"bos_token_id\": -1}", &c);
    assert_int_equal(c.eos_count, 0);
    assert_int_equal(c.bos, -1);
    model_config_free(&c);
}

#define LLAMA3 "\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 64"
static const struct {
    const char *patch;
    int code;
    const char *text;
} hostile[] = {
    {"{\"architectures\": [\"BloomForCausalLM\"], \"model_type\": \"bloom\"}", HELM_E_UNSUPPORTED,
     "'BloomForCausalLM'"},
    {"{\"architectures\": []}", HELM_E_FORMAT, "'architectures'"},
    {"{\"architectures\": [7]}", HELM_E_FORMAT, "'architectures'"},
    {"{\"architectures\": \"DELETE\", \"model_type\": \"DELETE\"}", HELM_E_FORMAT, "'model_type'"},
    {"{\"model_type\": \"llama\"}", HELM_E_MISMATCH, "contradicts 'model_type' 'llama'"},
    {"{\"model_type\": 1}", HELM_E_FORMAT, "'model_type'"},
    {"{\"num_hidden_layers\": \"DELETE\"}", HELM_E_FORMAT, "'num_hidden_layers' is missing"},
    /* keys that decide a shape have no default */
    {"{\"hidden_size\": \"DELETE\"}", HELM_E_FORMAT, "'hidden_size' is missing"},
    {"{\"vocab_size\": null}", HELM_E_FORMAT, "'vocab_size' is missing"},
    {"{\"intermediate_size\": \"DELETE\"}", HELM_E_FORMAT, "'intermediate_size' is missing"},
    {"{\"num_attention_heads\": \"DELETE\"}", HELM_E_FORMAT, "'num_attention_heads' is missing"},
    {"{\"num_key_value_heads\": \"DELETE\"}", HELM_E_FORMAT, "'num_key_value_heads' is missing"},
    {"{\"head_dim\": \"DELETE\"}", HELM_E_FORMAT, "'head_dim' is missing"},
    {MOE "\"num_experts\": \"DELETE\"}", HELM_E_FORMAT, "'num_experts' is missing"},
    {MOE "\"num_experts_per_tok\": \"DELETE\"}", HELM_E_FORMAT, "'num_experts_per_tok' is missing"},
    {MOE "\"num_key_value_heads\": null}", HELM_E_FORMAT, "'num_key_value_heads' is missing"},
    {QWEN2_MOE "\"shared_expert_intermediate_size\": \"DELETE\"}", HELM_E_FORMAT,
     "'shared_expert_intermediate_size' is missing"},
    {DOTS1 "\"n_shared_experts\": \"DELETE\"}", HELM_E_FORMAT, "'n_shared_experts' is missing"},
    {GPT_OSS "\"num_local_experts\": \"DELETE\"}", HELM_E_FORMAT, "'num_local_experts' is missing"},
    {GPT_OSS "\"swiglu_alpha\": 2}", HELM_E_UNSUPPORTED, "'swiglu_alpha' is 2; only 1.702"},
    {MOE "\"num_experts\": 0}", HELM_E_LIMIT, "'num_experts' is 0"},
    {MOE "\"quantization_config\": {\"quant_method\": \"mxfp4\"}}", HELM_E_UNSUPPORTED, "(method 'mxfp4')"},
    {GPT_OSS "\"swiglu_limit\": 8.0}", HELM_E_UNSUPPORTED, "'swiglu_limit' is 8; only 7"},
    {GPT_OSS "\"quantization_config\": {\"quant_method\": \"awq\"}}", HELM_E_UNSUPPORTED, "(method 'awq')"},
    {MOE "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}}", HELM_E_UNSUPPORTED,
     "'fmt' is 'e5m2', not e4m3"},
    {MOE "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 100]}}",
     HELM_E_UNSUPPORTED, "'weight_block_size': 100 columns, no multiple of 128"},
    {MOE "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}}", HELM_E_FORMAT,
     "'weight_block_size' is not a list of two"},
    {MOE "\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"INT4_AWQ\"}}",
     HELM_E_UNSUPPORTED, "'INT4_AWQ'"},
    {MOE "\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}", HELM_E_FORMAT,
     "'format' is missing"},
    {GPT_OSS "\"rope_parameters\": null}", HELM_E_UNSUPPORTED,
     "a GptOssForCausalLM without RoPE scaling of type 'yarn'"},
    {MOE "\"num_experts\": 2147483648}", HELM_E_LIMIT, "'num_experts' is 2147483648, not between 1 and 1024"},
    {MOE "\"num_experts_per_tok\": 33, \"num_experts\": 64}", HELM_E_LIMIT, "'num_experts_per_tok' is 33"},
    {MOE "\"num_experts_per_tok\": 5, \"num_experts\": 4}", HELM_E_FORMAT, "but there are 4 experts"},
    {MOE "\"moe_intermediate_size\": \"DELETE\"}", HELM_E_FORMAT, "'moe_intermediate_size'"},
    {MOE "\"decoder_sparse_step\": 0}", HELM_E_LIMIT, "'decoder_sparse_step' is 0"},
    {MOE "\"mlp_only_layers\": 3}", HELM_E_FORMAT, "'mlp_only_layers' is not a list"},
    {MOE "\"mlp_only_layers\": [1, -2]}", HELM_E_FORMAT, "'mlp_only_layers' entry 1"},
    {MOE "\"norm_topk_prob\": 1}", HELM_E_FORMAT, "'norm_topk_prob'"},
    {DOTS1 "\"n_group\": 3}", HELM_E_FORMAT, "'n_group' 3 groups"},
    {DOTS1 "\"n_group\": 8, \"topk_group\": 1}", HELM_E_FORMAT, "'topk_group' 1 are looked at"},
    {DOTS1 "\"n_shared_experts\": 100000}", HELM_E_LIMIT, "'n_shared_experts'"},
    {DOTS1 "\"num_experts_per_tok\": \"DELETE\"}", HELM_E_FORMAT, "'num_experts_per_tok'"},
    {QWEN2_MOE "\"shared_expert_intermediate_size\": -1}", HELM_E_LIMIT, "'shared_expert_intermediate_size'"},
    {"{\"num_hidden_layers\": 0}", HELM_E_LIMIT, "'num_hidden_layers' is 0"},
    {"{\"num_hidden_layers\": 1025}", HELM_E_LIMIT, "1024"},
    {"{\"num_hidden_layers\": -1}", HELM_E_LIMIT, "-1"},
    {"{\"num_hidden_layers\": 4.0}", HELM_E_FORMAT, "not a whole number"},
    {"{\"hidden_size\": 262145}", HELM_E_LIMIT, "'hidden_size' is 262145"},
    {"{\"intermediate_size\": 1048577}", HELM_E_LIMIT, "'intermediate_size'"},
    {"{\"vocab_size\": 16777217}", HELM_E_LIMIT, "'vocab_size'"},
    {"{\"num_attention_heads\": 4097}", HELM_E_LIMIT, "'num_attention_heads'"},
    {"{\"num_key_value_heads\": 4097}", HELM_E_LIMIT, "'num_key_value_heads'"},
    {"{\"num_key_value_heads\": 3}", HELM_E_FORMAT, "not a multiple of 'num_key_value_heads' 3"},
    {"{\"head_dim\": 4098}", HELM_E_LIMIT, "'head_dim'"},
    {"{\"head_dim\": 15}", HELM_E_FORMAT, "even"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"head_dim\": null, "
     "\"hidden_size\": 65}",
     HELM_E_FORMAT, "there is no 'head_dim'"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"head_dim\": null, "
     "\"hidden_size\": 65536}",
     HELM_E_LIMIT, "is 8192, the limit is 4096"},
    {"{\"max_position_embeddings\": 67108865}", HELM_E_LIMIT, "'max_position_embeddings'"},
    {"{\"hidden_act\": \"gelu\"}", HELM_E_UNSUPPORTED, "'hidden_act' is 'gelu'"},
    {"{\"rms_norm_eps\": -1}", HELM_E_LIMIT, "'rms_norm_eps'"},
    {"{\"rms_norm_eps\": \"x\"}", HELM_E_FORMAT, "'rms_norm_eps'"},
    {"{\"tie_word_embeddings\": 1}", HELM_E_FORMAT, "'tie_word_embeddings'"},
    {"{\"dtype\": \"float8_e4m3fn\"}", HELM_E_UNSUPPORTED, "'float8_e4m3fn'"},
    {"{\"quantization_config\": {\"quant_method\": \"gptq\"}}", HELM_E_UNSUPPORTED, "'gptq'"},
    {"{\"quantization_config\": {\"quant_method\": \"awq\"}}", HELM_E_UNSUPPORTED, "'awq'"},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}}",
     HELM_E_UNSUPPORTED, "(method 'compressed-tensors', 'pack-quantized') is not supported"},
    {"{\"quantization_config\": 4}", HELM_E_UNSUPPORTED, "'quantization_config'"},
    {"{\"partial_rotary_factor\": 0.5}", HELM_E_UNSUPPORTED, "'partial_rotary_factor' is 0.5"},
    {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", HELM_E_UNSUPPORTED,
     "'partial_rotary_factor'"},
    {"{\"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2}}", HELM_E_UNSUPPORTED, "'dynamic'"},
    {"{\"rope_parameters\": {\"rope_type\": \"dynamic\"}}", HELM_E_UNSUPPORTED, "'dynamic'"},
    {"{\"rope_parameters\": {\"rope_type\": \"longrope\"}}", HELM_E_FORMAT,
     "'original_max_position_embeddings'"},
    {"{\"rope_parameters\": 3}", HELM_E_FORMAT, "'rope_parameters' is not an object"},
    {"{\"rope_parameters\": {\"full_attention\": {}}}", HELM_E_UNSUPPORTED, "'full_attention'"},
    {"{\"rope_parameters\": {\"rope_theta\": 1}}", HELM_E_LIMIT, "'rope_theta' is 1"},
    {"{\"rope_parameters\": {\"rope_theta\": 1e300}}", HELM_E_LIMIT, "'rope_theta'"},
    {"{\"rope_parameters\": {\"rope_type\": \"linear\"}}", HELM_E_FORMAT, "'factor' is missing"},
    {"{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 0}}", HELM_E_LIMIT, "'factor' is 0"},
    {"{\"rope_parameters\": {" LLAMA3 "}}", HELM_E_FORMAT, "'factor' is missing"},
    {"{\"rope_parameters\": {" LLAMA3 ", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4}}",
     HELM_E_FORMAT, "'high_freq_factor' 4 must be greater"},
    {"{\"rope_parameters\": {\"rope_type\": \"yarn\"}}", HELM_E_FORMAT, "'factor' is missing"},
    {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": -1}}",
     HELM_E_LIMIT, "'attention_factor'"},
    {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": "
     "0}}",
     HELM_E_LIMIT, "'original_max_position_embeddings'"},
    {"{\"rope_theta\": 10000}", HELM_E_MISMATCH, "'rope_theta' is 10000, but 'rope_parameters' says 1e+06"},
    {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", HELM_E_MISMATCH, "contradict each other"},
    {"{\"sliding_window\": -3}", HELM_E_LIMIT, "'sliding_window'"},
    {"{\"layer_types\": [\"full_attention\"]}", HELM_E_MISMATCH, "no list of 4 entries"},
    {"{\"layer_types\": 1}", HELM_E_MISMATCH, "'layer_types'"},
    {"{\"layer_types\": [1, 1, 1, 1]}", HELM_E_UNSUPPORTED, "entry 0 is 'no string'"},
    {"{\"layer_types\": [\"full_attention\", \"chunked_attention\", \"full_attention\", \"full_attention\"]}",
     HELM_E_UNSUPPORTED, "'chunked_attention'"},
    {"{\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", \"sliding_attention\"]}",
     HELM_E_MISMATCH, "entry 3 is sliding_attention"},
    {"{\"eos_token_id\": \"x\"}", HELM_E_FORMAT, "'eos_token_id'"},
    {"{\"eos_token_id\": 16777216}", HELM_E_LIMIT, "'eos_token_id'"},
    {"{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", HELM_E_LIMIT, "more than 16"},
    {"{\"bos_token_id\": -2}", HELM_E_LIMIT, "'bos_token_id'"},
};

static void test_hostile_configs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct model_config config;
        struct helm_err err = {0};
        int rc = parse(hostile[i].patch, &config, &err);
        if (rc != hostile[i].code || !strstr(err.text, hostile[i].text) || err.code != rc)
            fail_msg("%s: code %d, text '%s'; expected %d, '%s'", hostile[i].patch, rc, err.text,
                     hostile[i].code, hostile[i].text);
        assert_null(config.window); /* zeroed on failure */
        assert_int_equal(strncmp(err.text, "config.json: ", 13), 0);
    }
}

static void test_not_json(void **state)
{
    (void)state;
    struct model_config config;
    struct helm_err err = {0};
    assert_int_equal(model_config_parse("c", "", 0, &config, &err), HELM_E_FORMAT);
    assert_int_equal(model_config_parse("c", "[]", 2, &config, &err), HELM_E_FORMAT);
    assert_int_equal(model_config_parse("c", "{\"a\": 1, \"a\": 2}", 16, &config, &err), HELM_E_FORMAT);
    char *deep = malloc(200000);
    memset(deep, '[', 200000);
    assert_int_equal(model_config_parse("c", deep, 200000, &config, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "deeper than 64"));
    free(deep);
    size_t big = CONFIG_BYTES_MAX + 1;
    char *blank = malloc(big);
    memset(blank, ' ', big);
    assert_int_equal(model_config_parse("c", blank, big, &config, &err), HELM_E_LIMIT);
    free(blank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),
        cmocka_unit_test(test_defaults_of_absent_keys),
        cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_text_config),
        cmocka_unit_test(test_older_and_newer_keys),
        cmocka_unit_test(test_context_of_yarn),
        cmocka_unit_test(test_biases_by_architecture),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_gpt_oss),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_shared_experts),
        cmocka_unit_test(test_special_ids),
        cmocka_unit_test(test_hostile_configs),
        cmocka_unit_test(test_not_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
