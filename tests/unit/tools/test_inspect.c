/* helm-inspect's report, as text and as JSON, of a checkpoint that loads and of one that does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/inspect/inspect.h"

static char *text_of(const struct inspect_report *report, bool tensors)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    inspect_print(report, tensors, out);
    fclose(out);
    return text;
}

/* Each of these stands in the report with its tensors. */
static void expect_parts(const struct inspect_report *report, const char *const *parts, size_t count)
{
    char *text = text_of(report, true);
    for (size_t i = 0; i < count; i++)
        if (!strstr(text, parts[i])) fail_msg("'%s' is not in\n%s", parts[i], text);
    free(text);
}
#define EXPECT_PARTS(report, parts) expect_parts(report, parts, sizeof parts / sizeof *parts)

/* The report of a checkpoint that loads; `model` and `err` outlive it. */
static struct inspect_report report_of(const char *folder, struct model *model, struct helm_err *err)
{
    if (model_read(folder, model, err)) fail_msg("%s", err->text);
    return (struct inspect_report){.folder = model->folder,
                                   .config = &model->config,
                                   .model = model,
                                   .problem = err};
}

/* Members that a mixture of experts with sinks has beside others. */
static void test_gpt_oss(void **state)
{
    (void)state;
    struct model model;
    struct helm_err err = {0};
    const struct inspect_report report = report_of("tests/data/golden/gptoss", &model, &err);
    static const char *const parts[] = {
        "8 of 96, 4 a token",           "KV heads of 32, sinks\n", "q, k, v, o, router, experts\n",
        "window of 32 in 2 of 4",       "768 x 256         mxfp4", "mlp.experts.gate_up_proj_blocks",
        "mlp.experts.gate_up_proj_bias"};
    EXPECT_PARTS(&report, parts);
    json_t *root = inspect_json(&report, false);
    const json_t *config = json_object_get(root, "config");
    assert_true(json_is_true(json_object_get(config, "sinks")));
    assert_true(json_is_true(json_object_get(json_object_get(config, "experts"), "bias")));
    json_decref(root);
    model_free(&model);
}

/* And one with a shared expert. */
static void test_shared_expert(void **state)
{
    (void)state;
    struct model model;
    struct helm_err err = {0};
    const struct inspect_report report = report_of("tests/data/golden/qwen2moe", &model, &err);
    static const char *const parts[] = {
        "8 of 32, 3 a token, in 2 of 2 layers; a shared one of 64 with a weight\n",
        "mlp.shared_expert.down_proj.weight", "mlp.shared_expert_gate.weight"};
    EXPECT_PARTS(&report, parts);
    json_t *root = inspect_json(&report, false),
           *experts = json_object_get(json_object_get(root, "config"), "experts");
    assert_int_equal(json_integer_value(json_object_get(experts, "shared_intermediate")), 64);
    json_decref(root);
    model_free(&model);
}

static void test_loads(void **state)
{
    (void)state;
    struct model model;
    struct helm_err err = {0};
    const struct inspect_report report = report_of("tests/data/golden/qwen2-bias", &model, &err);
    static const char *const parts[] = {"Qwen2ForCausalLM (qwen2), bf16",
                                        "8 heads over 2 KV heads of 32",
                                        "q, k, v\n",
                                        "tied to the embedding",
                                        "eos 1",
                                        "1.00 KiB a token in 16 bits",
                                        "self_attn.q_proj.bias ",
                                        "model.layers.3.mlp.down_proj.weight",
                                        "6692352 bytes in 1 file",
                                        "loads          yes"};
    EXPECT_PARTS(&report, parts);
    json_t *root = inspect_json(&report, true);
    assert_true(json_is_true(json_object_get(root, "loads")));
    assert_int_equal(json_integer_value(json_object_get(root, "weight_bytes")), 6692352);
    assert_int_equal(json_array_size(json_object_get(root, "tensors")), 50);
    json_int_t bytes = 0;
    json_t *roles = json_object_get(root, "roles");
    for (size_t i = 0; i < json_array_size(roles); i++)
        bytes += json_integer_value(json_object_get(json_array_get(roles, i), "bytes"));
    assert_int_equal(bytes, 6692352);
    const json_t *config = json_object_get(root, "config");
    assert_true(json_is_true(json_object_get(config, "qkv_bias")) &&
                json_is_true(json_object_get(config, "tied_head")));
    assert_int_equal(json_array_size(json_object_get(config, "window")), 4);
    json_decref(root);
    root = inspect_json(&report, false);
    assert_null(json_object_get(root, "tensors"));
    json_decref(root);
    model_free(&model);
}

static void test_does_not_load(void **state)
{
    (void)state;
    struct model_config config;
    struct helm_err problem = {.code = HELM_E_NOT_FOUND, .text = "tensor 'x' is missing"}, err = {0};
    assert_int_equal(model_read_config("tests/data/golden/llama3-ropescaled", &config, &err), 0);
    struct inspect_report report = {.folder = "f", .config = &config, .problem = &problem};
    char *text = text_of(&report, false);
    assert_non_null(strstr(text, "llama3, theta 500000, factor 8, low 1, high 4, trained on 512 tokens"));
    assert_non_null(strstr(text, "loads          no (not-found): tensor 'x' is missing"));
    free(text);
    json_t *root = inspect_json(&report, true);
    assert_true(json_is_false(json_object_get(root, "loads")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "error"), "code")),
                        "not-found");
    assert_null(json_object_get(root, "tensors"));
    json_decref(root);
    report.config = NULL;
    text = text_of(&report, false);
    assert_null(strstr(text, "architecture"));
    free(text);
    model_config_free(&config);
}

/* Keys of every kind; of a file that HELM does not load also the tensors. */
static void test_gguf(void **state)
{
    (void)state;
    struct gguf header;
    struct helm_err err = {0};
    if (gguf_open("tests/data/golden-gguf/llama-Q4_K_M/model.gguf", &header, &err)) fail_msg("%s", err.text);
    struct inspect_report report = {.folder = "f", .problem = &err, .gguf = &header};
    static const char *const parts[] = {
        "general.architecture                          string            \"llama\"",
        "llama.block_count                             u32               3",
        "llama.rope.freq_base                          f32               500000",
        "tokenizer.ggml.add_bos_token                  bool              false",
        "string[2048]      \"<|bos|>\", \"<|eos|>\"",
        "i32[2048]         3, 3, 3, 1, ...",
        "blk.0.attn_k.weight                                 256 x 512",
        "rope_freqs.weight                                   32  "};
    EXPECT_PARTS(&report, parts);
    json_t *root = inspect_json(&report, true);
    const json_t *keys = json_object_get(root, "keys");
    assert_int_equal(json_integer_value(json_object_get(keys, "llama.block_count")), 3);
    assert_int_equal(json_array_size(json_object_get(keys, "tokenizer.ggml.tokens")), 2048);
    assert_true(json_is_false(json_object_get(keys, "tokenizer.ggml.add_bos_token")));
    json_decref(root);
    gguf_free(&header);
    assert_int_equal(gguf_open("tests/data/golden/qwen3", &header, &err), 0);
    assert_null(header.bytes);
    assert_int_equal(gguf_open("/nonexistent.gguf", &header, &err), HELM_E_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loads), cmocka_unit_test(test_gpt_oss),
                                       cmocka_unit_test(test_shared_expert),
                                       cmocka_unit_test(test_does_not_load), cmocka_unit_test(test_gguf)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
