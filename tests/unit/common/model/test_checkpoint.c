/* Whole checkpoints: the golden ones load; missing, surplus, misplaced and misshapen tensors are refused with
 * the tensor's name. */
#include "tests/unit/common/model/written_checkpoints.h"

static void test_golden_models(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        uint32_t tensors;
        bool tied, qk_norm, q_bias;
        enum rope_kind rope;
    } golden[] = {{"tests/data/golden/qwen3", 47, false, true, false, ROPE_DEFAULT},
                  {"tests/data/golden/qwen2-bias", 50, true, false, true, ROPE_DEFAULT},
                  {"tests/data/golden/llama3-ropescaled", 39, false, false, false, ROPE_LLAMA3}};
    for (size_t i = 0; i < 3; i++) {
        struct model m;
        struct helm_err err = {0};
        if (model_read(golden[i].folder, &m, &err)) fail_msg("%s", err.text);
        assert_string_equal(m.folder, golden[i].folder);
        assert_int_equal(m.tensor_count, golden[i].tensors);
        assert_int_equal(m.config.layers, 4);
        assert_int_equal(m.config.hidden, 256);
        assert_int_equal(m.config.vocab, 2048);
        assert_int_equal(m.config.tied_head, golden[i].tied);
        assert_int_equal(m.config.qk_norm, golden[i].qk_norm);
        assert_int_equal(m.config.q_bias, golden[i].q_bias);
        assert_int_equal(m.config.rope[0].kind, golden[i].rope);
        assert_int_equal(m.config.eos_count, 1);
        assert_int_equal(m.config.eos[0], 1);
        assert_int_equal(m.config.bos, 0);
        uint64_t unit_bytes = 0;
        uint32_t unit_tensors = 0;
        for (uint32_t u = 0; u < unit_count(m.config.layers); u++) {
            const struct model_unit *unit = &m.unit[u];
            assert_int_equal(unit->layer, unit_layer(u));
            assert_int_equal(unit->matrix_count, unit->part == UNIT_ATTENTION ? 4 : 3);
            for (uint32_t t = 0; t < unit->tensor_count; t++) {
                assert_int_equal(unit->tensor[t]->layer, unit->layer);
                assert_int_equal(unit_part_of_role(unit->tensor[t]->role), unit->part);
                assert_int_equal(unit->tensor[t]->rows > 1, t < unit->matrix_count);
            }
            unit_bytes += unit->bytes;
            unit_tensors += unit->tensor_count;
        }
        /* embedding, final norm, and a head that is not tied belong to no unit */
        assert_int_equal(unit_tensors, m.tensor_count - (golden[i].tied ? 2 : 3));
        assert_int_equal(unit_bytes, m.weight_bytes - model_find(&m, TENSOR_EMBED, -1)->bytes -
                                         model_find(&m, TENSOR_FINAL_NORM, -1)->bytes -
                                         (golden[i].tied ? 0 : model_find(&m, TENSOR_HEAD, -1)->bytes));
        assert_int_equal(m.shard_count, 1);
        assert_int_equal(m.weight_bytes, 2 * m.parameter_count);
        const struct model_tensor *embed = model_find(&m, TENSOR_EMBED, -1),
                                  *head = model_find(&m, TENSOR_HEAD, -1);
        assert_non_null(embed);
        assert_true(golden[i].tied ? head == embed : head && head != embed);
        assert_null(model_find(&m, TENSOR_Q, -1));
        assert_null(model_find(&m, TENSOR_Q, 4));
        assert_null(model_find(&m, TENSOR_EMBED, 0));
        assert_null(model_find(&m, TENSOR_NONE, 0));
        assert_non_null(model_find(&m, TENSOR_DOWN, 3));
        model_free(&m);
        model_free(&m); /* a zeroed one is fine */
    }
}

static void test_sound(void **state)
{
    (void)state;
    static const char *const configs[] = {QWEN3, QWEN2, LLAMA, QWEN3_MOE, MIXTRAL};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct built b;
        built_start(&b, configs[i], one_file, 1);
        expect(&b, 0, "");
        built_start(&b, configs[i], two_files, 2);
        expect(&b, 0, "");
    }
}

/* A tensor for each expert, in any order and file: together they are one of the model. */
static void test_experts(void **state)
{
    (void)state;
    struct built b;
    struct model m;
    struct helm_err err = {0};
    char path[256];
    built_start(&b, QWEN3_MOE, two_files, 2);
    json_object_set_new(built_find(&b, "model.layers.1.mlp.experts.2.down_proj.weight"), "file",
                        json_string(two_files[0]));
    built_write(&b);
    if (model_read(b.folder, &m, &err)) fail_msg("%s", err.text);
    const struct model_tensor *down = model_find(&m, TENSOR_DOWN_EXPERTS, 1);
    assert_non_null(model_find(&m, TENSOR_DOWN, 0));
    assert_null(model_find(&m, TENSOR_DOWN, 1));
    assert_null(model_find(&m, TENSOR_ROUTER, 0));
    assert_int_equal(model_find(&m, TENSOR_ROUTER, 1)->rows, 3);
    assert_string_equal(down->name, "model.layers.1.mlp.experts.*.down_proj.weight");
    assert_int_equal(down->rows, 3 * 8);
    assert_int_equal(down->cols, 6);
    assert_int_equal(down->bytes, 3 * 8 * 6 * 2);
    assert_int_equal(down->piece_count, 3);
    assert_int_equal(m.pieces[down->piece].shard, 1);
    assert_int_equal(m.pieces[down->piece + 2].shard, 0);
    assert_int_equal(m.unit[unit_of(0, UNIT_MLP)].matrix_count, 3);
    assert_int_equal(m.unit[unit_of(1, UNIT_MLP)].tensor_count, 5);
    assert_false(m.config.router.normalise);
    /* Each expert's bytes are read from its own place. */
    for (uint32_t e = 0; e < 3; e++) {
        const struct model_piece *piece = &m.pieces[down->piece + e];
        snprintf(path, sizeof path, "%s/%s", b.folder, two_files[piece->shard]);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, (long)piece->offset, SEEK_SET), 0);
        for (int i = 0; i < 8 * 6 * 2; i++) fputc((int)(100 * e) + i % 96, file);
        fclose(file);
    }
    struct model_shards shards;
    unsigned char all[3 * 8 * 6 * 2], some[130];
    assert_int_equal(model_shards_open(&m, &shards, &err), 0);
    assert_int_equal(model_shards_read(&shards, down, 0, sizeof all, all, &err), 0);
    for (int i = 0; i < (int)sizeof all; i++)
        assert_int_equal(all[i], (unsigned char)(100 * (i / 96) + i % 96));
    assert_int_equal(model_shards_read(&shards, down, 90, sizeof some, some, &err), 0);
    assert_memory_equal(some, all + 90, sizeof some);
    model_shards_close(&shards);
    model_free(&m);
    built_end(&b);

    built_start(&b, MIXTRAL, one_file, 1);
    built_remove(&b, "model.layers.0.block_sparse_moe.experts.1.w3.weight");
    expect(&b, HELM_E_NOT_FOUND, "tensor 'model.layers.0.block_sparse_moe.experts.1.w3.weight' is missing");
    built_start(&b, MIXTRAL, one_file, 1);
    json_object_set_new(built_find(&b, "model.layers.1.block_sparse_moe.experts.0.w1.weight"), "dtype",
                        json_string("F32"));
    expect(&b, HELM_E_UNSUPPORTED, "has dtype");
    static const struct {
        const char *name, *text;
    } surplus[] = {
        {"model.layers.0.block_sparse_moe.experts.3.w1.weight", "config.json has 3 experts"},
        {"model.layers.0.block_sparse_moe.experts.01.w1.weight", "no part of a MixtralForCausalLM uses it"},
        {"model.layers.0.block_sparse_moe.experts.*.w1.weight", "no part of a MixtralForCausalLM uses it"},
        {"model.layers.0.mlp.gate_proj.weight", "config.json says this MixtralForCausalLM has none"}};
    for (size_t i = 0; i < sizeof surplus / sizeof *surplus; i++) {
        built_start(&b, MIXTRAL, one_file, 1);
        json_array_append_new(b.tensors,
                              built_tensor(surplus[i].name, "BF16", json_pack("[i, i]", 12, 8), one_file[0]));
        expect(&b, HELM_E_MISMATCH, surplus[i].text);
    }
    built_start(&b, QWEN3_MOE, one_file, 1);
    json_object_set_new(built_find(&b, "model.layers.1.mlp.experts.1.up_proj.weight"), "shape",
                        json_pack("[i, i]", 7, 8));
    expect(&b, HELM_E_MISMATCH, "up_proj.weight' has shape [7, 8], config.json implies [6, 8]");
}

static void test_mixed_dtypes(void **state)
{
    (void)state;
    struct built b;
    built_start(&b, QWEN3, one_file, 1);
    json_object_set_new(built_find(&b, "model.norm.weight"), "dtype", json_string("F32"));
    json_object_set_new(built_find(&b, "lm_head.weight"), "dtype", json_string("F16"));
    expect(&b, 0, "");
    built_start(&b, QWEN3, one_file, 1);
    json_object_set_new(built_find(&b, "model.norm.weight"), "dtype", json_string("I64"));
    expect(&b, HELM_E_UNSUPPORTED, "tensor 'model.norm.weight' has dtype I64");
}

static void test_missing(void **state)
{
    (void)state;
    static const char *const names[] = {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
                                        "model.layers.1.self_attn.k_norm.weight",
                                        "model.layers.0.mlp.up_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct built b;
        char text[200];
        built_start(&b, QWEN3, i % 2 ? two_files : one_file, 1 + i % 2);
        built_remove(&b, names[i]);
        snprintf(text, sizeof text, "tensor '%s' is missing", names[i]);
        expect(&b, HELM_E_NOT_FOUND, text);
    }
}

static void test_surplus(void **state)
{
    (void)state;
    static const struct {
        const char *config, *name, *text;
    } cases[] = {
        {QWEN3, "model.layers.0.mlp.routers.weight", "no part of a Qwen3ForCausalLM uses it"},
        {QWEN3, "model.layers.0.mlp.experts.down_proj_blocks", "no part of a Qwen3ForCausalLM uses it"},
        {QWEN3, "model.layers.0.self_attn.sinks", "config.json says this Qwen3ForCausalLM has none"},
        {QWEN3, "transformer.wte.weight", "surplus tensor 'transformer.wte.weight'"},
        {QWEN3, "model.layers.2.mlp.up_proj.weight", "config.json has 2 layers"},
        {QWEN3, "model.layers.999999.mlp.up_proj.weight", "config.json has 2 layers"},
        {QWEN3, "model.layers.00.mlp.up_proj.weight", "surplus tensor"},
        {QWEN3, "model.layers.-1.mlp.up_proj.weight", "surplus tensor"},
        {QWEN3, "model.layers.9999999999.mlp.up_proj.weight", "surplus tensor"},
        {QWEN3, "model.layers.0.self_attn.q_proj.bias", "config.json says this Qwen3ForCausalLM has none"},
        {QWEN2, "model.layers.0.self_attn.o_proj.bias", "config.json says this Qwen2ForCausalLM has none"},
        {LLAMA, "model.layers.0.self_attn.q_norm.weight", "config.json says this LlamaForCausalLM has none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct built b;
        built_start(&b, cases[i].config, one_file, 1);
        json_array_append_new(b.tensors,
                              built_tensor(cases[i].name, "BF16", json_pack("[i]", 8), one_file[0]));
        expect(&b, HELM_E_MISMATCH, cases[i].text);
    }
}

static void test_ignored_and_tied(void **state)
{
    (void)state;
    struct built b;
    built_start(&b, LLAMA, two_files, 2);
    json_array_append_new(b.tensors, built_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32",
                                                  json_pack("[i]", 2), two_files[0]));
    expect(&b, 0, "");
    built_start(&b, QWEN2, two_files, 2);
    json_array_append_new(b.tensors,
                          built_tensor("lm_head.weight", "BF16", json_pack("[i, i]", 16, 8), two_files[1]));
    expect(&b, 0, "");
    built_start(&b, QWEN2, one_file, 1);
    json_array_append_new(b.tensors,
                          built_tensor("lm_head.weight", "BF16", json_pack("[i, i]", 17, 8), one_file[0]));
    expect(&b, HELM_E_MISMATCH, "tensor 'lm_head.weight' has shape [17, 8], config.json implies [16, 8]");
}

#define QWEN3_VL                                                                                             \
    "{\"architectures\": [\"Qwen3VLForConditionalGeneration\"], \"model_type\": \"qwen3_vl\", "              \
    "\"text_config\": {\"model_type\": \"qwen3_vl_text\", " SHAPE "}}"
/* The text of a model with images and drafts: its names, in files and index, and what is left out. */
static void test_nested_and_skipped(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"model.", "model.language_model.", "language_model.model."};
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++) {
        struct built b;
        struct model model;
        struct helm_err err = {0};
        built_start(&b, QWEN3_VL, two_files, 2);
        for (size_t i = 0; i < json_array_size(b.tensors); i++) {
            json_t *tensor = json_array_get(b.tensors, i);
            const char *plain = json_string_value(json_object_get(tensor, "name"));
            char name[256];
            if (strncmp(plain, "model.", 6) != 0) continue;
            snprintf(name, sizeof name, "%s%s", prefixes[p], plain + 6);
            json_object_set_new(tensor, "name", json_string(name));
        }
        json_array_append_new(b.tensors,
                              built_tensor("model.visual.patch_embed.proj.weight", "BF16",
                                           json_pack("[i, i, i, i, i]", 4, 3, 2, 2, 2), two_files[0]));
        json_array_append_new(b.tensors,
                              built_tensor("mtp.fc.weight", "F32", json_pack("[i, i]", 8, 16), two_files[1]));
        built_write(&b);
        if (model_read(b.folder, &model, &err)) fail_msg("%s: %s", prefixes[p], err.text);
        assert_string_equal(model.config.architecture, "Qwen3ForCausalLM");
        assert_non_null(model_find(&model, TENSOR_UP, 1));
        assert_int_equal(model.skipped_count, 2);
        assert_int_equal(model.skipped_bytes, 4 * 3 * 8 * 2 + 8 * 16 * 4);
        assert_string_equal(model.skipped, "model.visual.patch_embed.proj.weight");
        model_free(&model);
        built_end(&b);
    }
    struct built b; /* not of an architecture that has none */
    built_start(&b, LLAMA, one_file, 1);
    json_array_append_new(b.tensors, built_tensor("mtp.fc.weight", "F32", json_pack("[i]", 8), one_file[0]));
    expect(&b, HELM_E_MISMATCH, "surplus tensor 'mtp.fc.weight'");
}

static void test_shapes(void **state)
{
    (void)state;
    struct built b;
    built_start(&b, QWEN3, one_file, 1);
    json_object_set_new(built_find(&b, "model.layers.1.mlp.down_proj.weight"), "shape",
                        json_pack("[i, i]", 12, 8));
    expect(&b, HELM_E_MISMATCH,
           "'model.layers.1.mlp.down_proj.weight' has shape [12, 8], config.json implies [8, 12]");
    built_start(&b, QWEN3, one_file, 1);
    json_object_set_new(built_find(&b, "model.norm.weight"), "shape", json_pack("[i, i]", 1, 8));
    expect(&b, HELM_E_MISMATCH, "'model.norm.weight' has shape [1, 8], config.json implies [8]");
    built_start(&b, QWEN3, one_file, 1);
    json_object_set_new(b.config, "vocab_size", json_integer(32));
    expect(&b, HELM_E_MISMATCH,
           "'model.embed_tokens.weight' has shape [16, 8], config.json implies [32, 8] ('vocab_size' is 32)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_models),    cmocka_unit_test(test_sound),
        cmocka_unit_test(test_experts),          cmocka_unit_test(test_mixed_dtypes),
        cmocka_unit_test(test_missing),          cmocka_unit_test(test_surplus),
        cmocka_unit_test(test_ignored_and_tied), cmocka_unit_test(test_nested_and_skipped),
        cmocka_unit_test(test_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
