/* Whole checkpoints: the golden ones load; missing, surplus, misplaced and misshapen tensors, contradictory
 * indexes and links out of the folder are refused with the tensor's or file's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/model/checkpoint.h"
#include "common/model/shards.h"
#include "tests/unit/common/model/build_checkpoint.h"

#define SHAPE                                                                                                \
    "\"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"   \
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"vocab_size\": 16, \"dtype\": \"bfloat16\""
#define QWEN3 "{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE "}"
#define QWEN2 "{\"architectures\": [\"Qwen2ForCausalLM\"], \"tie_word_embeddings\": true, " SHAPE "}"
#define LLAMA                                                                                                \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, \"mlp_bias\": true, " SHAPE "}"
#define QWEN3_MOE                                                                                            \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"num_experts\": 3, \"num_experts_per_tok\": 2,"         \
    "\"moe_intermediate_size\": 6, \"mlp_only_layers\": [0], " SHAPE "}"
#define MIXTRAL                                                                                              \
    "{\"architectures\": [\"MixtralForCausalLM\"], \"num_local_experts\": 3, \"num_experts_per_tok\": "      \
    "2, " SHAPE "}"
static const char *const one_file[] = {"model.safetensors"};
static const char *const two_files[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};

/* Writes, reads and expects the error; an expected code of 0 also checks the model's invariants. */
static void expect(struct built *b, int code, const char *text)
{
    struct model model;
    struct helm_err err = {0};
    built_write(b);
    int rc = model_read(b->folder, &model, &err);
    if (rc != code || !strstr(err.text, text))
        fail_msg("code %d, text '%s'; expected %d, '%s'", rc, err.text, code, text);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < model.tensor_count; i++) {
        const struct model_tensor *t = &model.tensors[i];
        assert_ptr_equal(model_find(&model, t->role, t->layer), t);
        if (!t->piece_count && !t->stored) assert_true(t->offset + t->bytes <= model.shards[t->shard].bytes);
        assert_int_equal(t->bytes, tensor_format_bytes(t->format, t->rows, t->cols));
        if (i && !t->turn)
            assert_true(t[-1].shard < t->shard || (t[-1].shard == t->shard && t[-1].offset < t->offset));
        sum += t->bytes;
    }
    assert_int_equal(model.weight_bytes, sum);
    if (code) assert_null(model.tensors);
    if (code) assert_null(model.folder);
    model_free(&model);
    built_end(b);
}

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

/* The weight_map of the list, to be bent. */
static void start_map(struct built *b)
{
    b->map = json_object();
    for (size_t i = 0; i < json_array_size(b->tensors); i++) {
        json_t *tensor = json_array_get(b->tensors, i);
        json_object_set(b->map, json_string_value(json_object_get(tensor, "name")),
                        json_object_get(tensor, "file"));
    }
}

static void test_index_contradicts_shards(void **state)
{
    (void)state;
    struct built b;
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_object_set_new(b.map, "model.layers.0.mlp.up_proj.weight", json_string(two_files[1]));
    expect(&b, HELM_E_MISMATCH, "says it is in model-00002-of-00002.safetensors");
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_object_del(b.map, "model.layers.0.mlp.up_proj.weight");
    expect(&b, HELM_E_MISMATCH, "'model.layers.0.mlp.up_proj.weight' is not in model.safetensors.index.json");
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    built_remove(&b, "model.layers.1.mlp.up_proj.weight");
    expect(&b, HELM_E_MISMATCH, "says tensor 'model.layers.1.mlp.up_proj.weight' is in model-00002-of-00002");
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_object_set_new(b.map, "x", json_string("absent.safetensors"));
    expect(&b, HELM_E_NOT_FOUND,
           "absent.safetensors: no such file: an incomplete download, file 1 of 3 is missing");
    /* The same tensor in two shards: the index can name only one. */
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    json_array_append_new(b.tensors,
                          built_tensor("model.norm.weight", "BF16", json_pack("[i]", 8), two_files[1]));
    expect(&b, HELM_E_MISMATCH, "tensor 'model.norm.weight': model.safetensors.index.json says it is in");
}

/* Names that nothing is read from may stand in the index without a tensor, or with one. */
static void test_index_lists_unused(void **state)
{
    (void)state;
    static const char *const configs[] = {LLAMA, QWEN2};
    static const char *const names[] = {"model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"};
    for (size_t i = 0; i < 2; i++) {
        struct built b;
        built_start(&b, configs[i], two_files, 2);
        start_map(&b);
        json_object_set_new(b.map, names[i], json_string(two_files[1]));
        expect(&b, 0, "");
        /* with it, another that is missing is still noticed, and named */
        built_start(&b, configs[i], two_files, 2);
        start_map(&b);
        json_object_set_new(b.map, names[i], json_string(two_files[1]));
        built_remove(&b, "model.layers.1.mlp.up_proj.weight");
        expect(&b, HELM_E_MISMATCH, "says tensor 'model.layers.1.mlp.up_proj.weight' is in model-00002-of-0");
        /* and one that is there makes up for none that is missing */
        json_t *shape = i ? json_pack("[i, i]", 16, 8) : json_pack("[i]", 2);
        built_start(&b, configs[i], two_files, 2);
        json_array_append_new(b.tensors, built_tensor(names[i], i ? "BF16" : "F32", shape, two_files[1]));
        start_map(&b);
        expect(&b, 0, "");
        built_start(&b, configs[i], two_files, 2);
        shape = i ? json_pack("[i, i]", 16, 8) : json_pack("[i]", 2);
        json_array_append_new(b.tensors, built_tensor(names[i], i ? "BF16" : "F32", shape, two_files[1]));
        start_map(&b);
        built_remove(&b, "model.layers.1.mlp.up_proj.weight");
        expect(&b, HELM_E_MISMATCH, "says tensor 'model.layers.1.mlp.up_proj.weight' is in model-00002-of-0");
        /* but not in another file than the index says */
        built_start(&b, configs[i], two_files, 2);
        shape = i ? json_pack("[i, i]", 16, 8) : json_pack("[i]", 2);
        json_array_append_new(b.tensors, built_tensor(names[i], i ? "BF16" : "F32", shape, two_files[1]));
        start_map(&b);
        json_object_set_new(b.map, names[i], json_string(two_files[0]));
        expect(&b, HELM_E_MISMATCH, "says it is in model-00001-of-00002.safetensors");
    }
    /* the head of a model that is not tied is no such tensor */
    struct built b;
    built_start(&b, QWEN3, two_files, 2);
    start_map(&b);
    built_remove(&b, "lm_head.weight");
    expect(&b, HELM_E_MISMATCH, "says tensor 'lm_head.weight' is in model-0000");
}

static void test_hostile_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", HELM_E_FORMAT, "not valid JSON"},
        {"[]", HELM_E_FORMAT, "'weight_map'"},
        {"{\"weight_map\": {}}", HELM_E_FORMAT, "'weight_map'"},
        {"{\"weight_map\": {\"a\": 1}}", HELM_E_FORMAT, "tensor 'a': its file name is not a string"},
        {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}", HELM_E_FORMAT, "has the byte 0x2f at 2"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", HELM_E_FORMAT, "has the byte 0x2f at 0"},
        {"{\"weight_map\": {\"a\": \"x\\n.safetensors\"}}", HELM_E_FORMAT, "has the byte 0x0a at 1"},
        {"{\"weight_map\": {\"a\": \"x.bin\"}}", HELM_E_FORMAT,
         "'x.bin' is not the name of a .safetensors file"},
        {"{\"weight_map\": {\"a\": \".safetensors\"}}", HELM_E_FORMAT, "is not the name"},
        {"{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"y.safetensors\"}}", HELM_E_FORMAT,
         "duplicate"},
    };
    struct checkpoint_index index;
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = checkpoint_parse_index("index", cases[i].text, strlen(cases[i].text), &index, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s: code %d, text '%s'", cases[i].text, rc, err.text);
        assert_null(index.json);
    }
    char *text = malloc(400000);
    size_t used = (size_t)sprintf(text, "{\"weight_map\": {\"a\": \"0.safetensors\"");
    for (int i = 1; i <= MODEL_SHARDS_MAX; i++)
        used += (size_t)sprintf(text + used, ",\"a%d\":\"%d.safetensors\"", i, i);
    strcpy(text + used, "}}");
    assert_int_equal(checkpoint_parse_index("index", text, strlen(text), &index, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "more than 4096 shards"));
    free(text);
    char name[300];
    snprintf(name, sizeof name, "{\"weight_map\": {\"a\": \"%0170d.safetensors\"}}", 1);
    assert_int_equal(checkpoint_parse_index("index", name, strlen(name), &index, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "a file name of 182 bytes, the limit is 159"));
}

static void test_nothing_there(void **state)
{
    (void)state;
    struct built b;
    struct model model;
    struct helm_err err = {0};
    assert_int_equal(model_read("/nonexistent-folder", &model, &err), HELM_E_NOT_FOUND);
    built_start(&b, QWEN3, one_file, 1);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json: no such file"));
    built_text(&b, "config.json", QWEN3);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "neither model.safetensors nor model.safetensors.index.json"));
    built_end(&b);
}

static void test_generation_config(void **state)
{
    (void)state;
    struct built b;
    struct model_config config;
    struct helm_err err = {0};
    built_start(&b, QWEN3, one_file, 1);
    built_text(&b, "config.json", QWEN3);
    assert_int_equal(model_read_config(b.folder, &config, &err), 0);
    assert_int_equal(err.code, 0); /* no trace of the optional file that is not there */
    assert_int_equal(config.eos_count, 0);
    model_config_free(&config);
    built_text(&b, "generation_config.json", "{\"eos_token_id\": [5, 6], \"bos_token_id\": 1}");
    assert_int_equal(model_read_config(b.folder, &config, &err), 0);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.bos, 1);
    model_config_free(&config);
    built_text(&b, "generation_config.json", "{");
    assert_int_equal(model_read_config(b.folder, &config, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "generation_config.json"));
    built_end(&b);
}

/* A link inside the folder is followed; one that leaves it is refused. */
static void test_links(void **state)
{
    (void)state;
    struct built b;
    struct model model;
    struct helm_err err = {0};
    char weights[256], moved[256], outside[] = "/tmp/helm-test-outside-XXXXXX";
    built_start(&b, QWEN3, one_file, 1);
    built_write(&b);
    snprintf(weights, sizeof weights, "%s/model.safetensors", b.folder);
    snprintf(moved, sizeof moved, "%s/blob", b.folder);
    assert_int_equal(rename(weights, moved), 0);
    assert_int_equal(symlink("blob", weights), 0);
    if (model_read(b.folder, &model, &err)) fail_msg("%s", err.text);
    model_free(&model);
    assert_int_equal(close(mkstemp(outside)), 0);
    assert_int_equal(rename(moved, outside), 0);
    assert_int_equal(unlink(weights), 0);
    assert_int_equal(symlink(outside, weights), 0);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, "leaves the model folder"));
    unlink(outside);
    built_end(&b);
}

static void test_truncated_weights(void **state)
{
    (void)state;
    struct built b;
    struct model model;
    struct helm_err err = {0};
    struct stat st;
    char path[256];
    built_start(&b, QWEN3, one_file, 1);
    built_write(&b);
    snprintf(path, sizeof path, "%s/model.safetensors", b.folder);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_FORMAT);
    char text[120];
    snprintf(text, sizeof text, "an incomplete download: %lld bytes are there, %lld expected",
             (long long)st.st_size - 1, (long long)st.st_size);
    assert_non_null(strstr(err.text, text));
    assert_int_equal(truncate(path, st.st_size + 1), 0);
    assert_int_equal(model_read(b.folder, &model, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "1 bytes follow the last tensor"));
    built_end(&b);
}

/* For planning: files cut off behind their headers, and a folder with a configuration alone. */
static void test_headers_alone(void **state)
{
    (void)state;
    static const char *const configs[] = {QWEN3, QWEN2, LLAMA};
    for (size_t c = 0; c < 3; c++) {
        struct built b;
        struct model whole, model;
        struct helm_err err = {0};
        struct stat st;
        char path[256];
        bool derived = true;
        built_start(&b, configs[c], one_file, 1);
        built_write(&b);
        snprintf(path, sizeof path, "%s/model.safetensors", b.folder);
        if (model_read(b.folder, &whole, &err)) fail_msg("%s", err.text);
        uint64_t data = whole.tensors[0].offset;
        assert_int_equal(stat(path, &st), 0);
        for (int cut = 0; cut < 3; cut++) {
            assert_int_equal(truncate(path, (off_t[]){st.st_size - 1, (off_t)data, st.st_size}[cut]), 0);
            if (model_read_headers(b.folder, &model, &derived, &err)) fail_msg("%s", err.text);
            assert_false(derived);
            assert_int_equal(model.tensor_count, whole.tensor_count);
            assert_memory_equal(model.tensors, whole.tensors, whole.tensor_count * sizeof *whole.tensors);
            assert_int_equal(model.shards[0].bytes, whole.shards[0].bytes);
            model_free(&model);
        }
        assert_int_equal(truncate(path, st.st_size + 1), 0);
        assert_int_equal(model_read_headers(b.folder, &model, &derived, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "1 bytes follow the last tensor"));
        assert_int_equal(truncate(path, (off_t)data - 1), 0);
        assert_int_equal(model_read_headers(b.folder, &model, &derived, &err), HELM_E_FORMAT);
        assert_int_equal(unlink(path), 0);
        if (model_read_headers(b.folder, &model, &derived, &err)) fail_msg("%s", err.text);
        assert_true(derived);
        assert_string_equal(model.folder, b.folder);
        assert_int_equal(model.tensor_count, whole.tensor_count);
        assert_int_equal(model.weight_bytes, whole.weight_bytes);
        assert_int_equal(model.parameter_count, whole.parameter_count);
        for (uint32_t u = 0; u < unit_count(whole.config.layers); u++)
            assert_int_equal(model.unit[u].bytes, whole.unit[u].bytes);
        for (uint32_t i = 0; i < whole.tensor_count; i++) {
            const struct model_tensor *a = &whole.tensors[i], *t = model_find(&model, a->role, a->layer);
            assert_non_null(t);
            assert_string_equal(t->name, a->name);
            assert_int_equal(t->rows, a->rows);
            assert_int_equal(t->cols, a->cols);
            assert_int_equal(t->bytes, a->bytes);
            assert_int_equal(t->format, a->format);
        }
        model_free(&model);
        /* An index or a shard of another name: what is named must be there. */
        built_text(&b, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"b.safetensors\"}}");
        assert_int_equal(model_read_headers(b.folder, &model, &derived, &err), HELM_E_NOT_FOUND);
        assert_false(derived);
        assert_null(model.tensors);
        model_free(&whole);
        built_end(&b);
    }
    struct model model;
    struct helm_err err = {0};
    bool derived;
    assert_int_not_equal(model_read_headers("/nonexistent-folder", &model, &derived, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_models),
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_mixed_dtypes),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_surplus),
        cmocka_unit_test(test_ignored_and_tied),
        cmocka_unit_test(test_nested_and_skipped),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_index_contradicts_shards),
        cmocka_unit_test(test_index_lists_unused),
        cmocka_unit_test(test_hostile_indexes),
        cmocka_unit_test(test_nothing_there),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_truncated_weights),
        cmocka_unit_test(test_headers_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
