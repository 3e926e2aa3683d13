/* GGUF files that are written: values of every type and tensors read back as they were put; a configuration
 * of each architecture comes back the same; a file has its name only when it is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/checkpoint.h"
#include "common/model/gguf_write.h"
#include "common/model/model.h"

static char folder[] = "/tmp/helm-gguf-write-XXXXXX";
static char path[128];

static int open_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/made.gguf", folder);
    return 0;
}
static int close_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails where something was left */
}

static uint32_t files_there(void)
{
    uint32_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Parses the gathered values, as a header without tensors. */
static void parse(const struct gguf_values *values, struct gguf *header, struct gguf_values *file)
{
    const uint32_t version = 3;
    const uint64_t counts[2] = {0, values->count};
    struct helm_err err = {0};
    bool more;
    gguf_put_element(file, "GGUF", 4);
    gguf_put_element(file, &version, sizeof version);
    gguf_put_element(file, counts, sizeof counts);
    gguf_put_element(file, values->bytes, values->length);
    const struct gguf_source source = {"test", file->bytes, file->length, file->length, true};
    if (gguf_parse(&source, header, &more, &err)) fail_msg("%s", err.text);
}

static void values_read_back(void **state)
{
    (void)state;
    struct gguf_values values = {0}, file = {0}, copy = {0}, again = {0};
    struct gguf header, other;
    struct helm_err err = {0};
    const int32_t numbers[] = {3, -1, 6};
    uint64_t number = 0;
    double real = 0;
    char text[16];
    gguf_put_text(&values, "a.text", "caf\xc3\xa9");
    gguf_put_u32(&values, "a.u32", 4000000000u);
    gguf_put_f32(&values, "a.f32", 0.25f);
    gguf_put_bool(&values, "a.bool", true);
    gguf_put_array(&values, "a.numbers", GGUF_I32, 3);
    gguf_put_element(&values, numbers, sizeof numbers);
    gguf_put_array(&values, "a.texts", GGUF_STRING, 2);
    gguf_put_string_element(&values, "x", 1);
    gguf_put_string_element(&values, "", 0);
    assert_int_equal(values.count, 6);
    parse(&values, &header, &file);
    assert_int_equal(gguf_get_string(&header, "a.text", true, text, sizeof text, &err), 0);
    assert_string_equal(text, "caf\xc3\xa9");
    assert_int_equal(gguf_get_u64(&header, "a.u32", true, 0, UINT32_MAX, &number, &err), 0);
    assert_int_equal(number, 4000000000u);
    assert_int_equal(gguf_get_double(&header, "a.f32", true, 0, 1, &real, &err), 0);
    assert_true(real == 0.25);
    assert_int_equal(gguf_find(&header, "a.bool")->data[0], 1);
    const struct gguf_value *list = gguf_find(&header, "a.numbers");
    assert_true(list->array && list->count == 3);
    assert_memory_equal(list->data, numbers, sizeof numbers);
    for (uint32_t i = 0; i < header.value_count; i++) gguf_put_value(&copy, &header.values[i]);
    parse(&copy, &other, &again);
    assert_int_equal(other.value_count, header.value_count);
    assert_int_equal(copy.length, values.length);
    for (uint32_t i = 0; i < header.value_count; i++) {
        assert_string_equal(other.values[i].key, header.values[i].key);
        assert_int_equal(other.values[i].type, header.values[i].type);
        assert_int_equal(other.values[i].count, header.values[i].count);
    }
    gguf_free(&other);
    gguf_free(&header);
    gguf_values_free(&values);
    gguf_values_free(&copy);
    gguf_values_free(&file);
    gguf_values_free(&again);
}

/* A tiny llama: enough for model_read to take the file. */
static const char config_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 96, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 40, "
    "\"max_position_embeddings\": 128, \"tie_word_embeddings\": true, \"bos_token_id\": 1, \"eos_token_id\": "
    "2}";

static uint32_t list_tensors(struct gguf_output_tensor *t)
{
    const struct gguf_output_tensor all[] = {
        {.name = "token_embd.weight", .format = FORMAT_Q8_0, .rows = 40, .cols = 64},
        {.name = "output_norm.weight", .format = FORMAT_F32, .rows = 1, .cols = 64, .vector = true},
        {.name = "blk.0.attn_norm.weight", .format = FORMAT_F32, .rows = 1, .cols = 64, .vector = true},
        {.name = "blk.0.attn_q.weight", .format = FORMAT_BF16, .rows = 64, .cols = 64},
        {.name = "blk.0.attn_k.weight", .format = FORMAT_F16, .rows = 32, .cols = 64},
        {.name = "blk.0.attn_v.weight", .format = FORMAT_Q4_0, .rows = 32, .cols = 64},
        {.name = "blk.0.attn_output.weight", .format = FORMAT_MXFP4, .rows = 64, .cols = 64},
        {.name = "blk.0.ffn_norm.weight", .format = FORMAT_F32, .rows = 1, .cols = 64, .vector = true},
        {.name = "blk.0.ffn_gate.weight", .format = FORMAT_Q5_1, .rows = 96, .cols = 64},
        {.name = "blk.0.ffn_up.weight", .format = FORMAT_IQ4_NL, .rows = 96, .cols = 64},
        {.name = "blk.0.ffn_down.weight", .format = FORMAT_Q4_1, .rows = 64, .cols = 96}};
    memcpy(t, all, sizeof all);
    return sizeof all / sizeof *all;
}

static void put_keys(struct gguf_values *values)
{
    struct model_config config;
    struct helm_err err = {0};
    bool interleaved = false;
    if (model_config_parse("test", config_text, strlen(config_text), &config, &err)) fail_msg("%s", err.text);
    if (gguf_put_config(values, &config, &interleaved, &err)) fail_msg("%s", err.text);
    assert_true(interleaved);
    model_config_free(&config);
}

/* Quarters of every tensor from its end on: order is of no account. */
static void tensors_read_back(void **state)
{
    (void)state;
    struct gguf_output_tensor tensors[16];
    struct gguf_values values = {0};
    struct gguf_output output;
    struct helm_err err = {0};
    struct model model;
    uint8_t bytes[1 << 14], got[1 << 14];
    const uint32_t count = list_tensors(tensors);
    put_keys(&values);
    FILE *old = fopen(path, "w");
    assert_non_null(old);
    assert_int_equal(fclose(old), 0);
    if (gguf_output_open(path, &values, tensors, count, &output, &err)) fail_msg("%s", err.text);
    for (uint32_t i = count; i-- > 0;) {
        assert_true(tensors[i].bytes <= sizeof bytes);
        assert_int_equal(tensors[i].offset % GGUF_ALIGNMENT, 0);
        for (size_t b = 0; b < sizeof bytes; b++) bytes[b] = (uint8_t)(b * 31 + i);
        for (uint64_t part = 4, quarter = tensors[i].bytes / 4; part-- > 0;) {
            const uint64_t length = part == 3 ? tensors[i].bytes - 3 * quarter : quarter;
            assert_int_equal(gguf_output_write(&output, &tensors[i], part * quarter, bytes + part * quarter,
                                               length, &err),
                             0);
        }
    }
    assert_int_equal(gguf_output_write(&output, &tensors[0], tensors[0].bytes, bytes, 1, &err),
                     HELM_E_INTERNAL);
    struct stat was;
    assert_int_equal(stat(path, &was), 0);
    assert_int_equal(was.st_size, 0); /* the file that was there still is */
    assert_int_equal(gguf_output_finish(&output, &err), 0);
    assert_int_equal(files_there(), 1);
    if (model_read(path, &model, &err)) fail_msg("%s", err.text);
    assert_int_equal(model.tensor_count, count);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    for (uint32_t i = 0; i < count; i++) {
        const struct model_tensor *t = NULL;
        for (uint32_t m = 0; m < model.tensor_count; m++)
            if (strcmp(model.tensors[m].name, tensors[i].name) == 0) t = &model.tensors[m];
        assert_non_null(t);
        assert_int_equal(t->format, tensors[i].format);
        assert_int_equal(t->offset, tensors[i].offset);
        assert_int_equal(t->bytes, tensors[i].bytes);
        for (size_t b = 0; b < sizeof bytes; b++) bytes[b] = (uint8_t)(b * 31 + i);
        assert_int_equal(pread(fd, got, t->bytes, (off_t)t->offset), (ssize_t)t->bytes);
        assert_memory_equal(got, bytes, t->bytes);
    }
    close(fd);
    model_free(&model);
    gguf_values_free(&values);
}

static void what_is_abandoned_is_gone(void **state)
{
    (void)state;
    struct gguf_output_tensor tensors[16];
    struct gguf_values values = {0};
    struct gguf_output output;
    struct helm_err err = {0};
    const uint32_t count = list_tensors(tensors), before = files_there();
    assert_int_equal(gguf_output_open(path, &values, tensors, count, &output, &err), 0);
    assert_int_equal(files_there(), before + 1);
    gguf_output_abandon(&output);
    gguf_output_abandon(&output);
    assert_int_equal(files_there(), before);
    tensors[3].format = FORMAT_BF16_PACKED;
    assert_int_equal(gguf_output_open(path, &values, tensors, count, &output, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "GGUF has no bf16-packed"));
    tensors[3].format = FORMAT_Q4_K;
    assert_int_equal(gguf_output_open(path, &values, tensors, count, &output, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rows of 64 values cannot be q4_k"));
    assert_int_equal(gguf_output_open("/nowhere/x.gguf", &values, tensors, 0, &output, &err), HELM_E_IO);
    assert_int_equal(files_there(), before);
}

/* ---- configurations ---- */

#define SHAPE                                                                                                \
    "\"hidden_size\": 128, \"intermediate_size\": 256, \"num_hidden_layers\": 3, \"num_attention_heads\": "  \
    "4, "                                                                                                    \
    "\"num_key_value_heads\": 2, \"vocab_size\": 77, \"max_position_embeddings\": 4096, \"rms_norm_eps\": "  \
    "1e-5, "                                                                                                 \
    "\"head_dim\": 64, \"rope_theta\": 500000.0"

static void configurations_come_back(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"architectures\": [\"LlamaForCausalLM\"], " SHAPE "}",
                                        "{\"architectures\": [\"LlamaForCausalLM\"], " SHAPE
                                        ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4}}",
                                        "{\"architectures\": [\"MistralForCausalLM\"], " SHAPE
                                        ", \"sliding_window\": 1024}",
                                        "{\"architectures\": [\"Qwen2ForCausalLM\"], " SHAPE "}",
                                        "{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE
                                        ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
                                        "\"original_max_position_embeddings\": 1024}}",
                                        "{\"architectures\": [\"GptOssForCausalLM\"], " SHAPE
                                        ", \"num_local_experts\": 6, \"num_experts_per_tok\": 2, "
                                        "\"sliding_window\": 64, \"rope_scaling\": {\"rope_type\": \"yarn\", "
                                        "\"factor\": 32, \"truncate\": false, "
                                        "\"original_max_position_embeddings\": 128}}",
                                        "{\"architectures\": [\"Qwen2MoeForCausalLM\"], " SHAPE
                                        ", \"num_experts\": 6, \"num_experts_per_tok\": 4, "
                                        "\"moe_intermediate_size\": 32, "
                                        "\"shared_expert_intermediate_size\": 96}",
                                        "{\"architectures\": [\"Dots1ForCausalLM\"], " SHAPE
                                        ", \"n_routed_experts\": 6, \"num_experts_per_tok\": 2, "
                                        "\"moe_intermediate_size\": 32, \"n_shared_experts\": 3, "
                                        "\"n_group\": 3, \"topk_group\": 2, \"norm_topk_prob\": true, "
                                        "\"routed_scaling_factor\": 2.5, \"first_k_dense_replace\": 2}",
                                        "{\"architectures\": [\"OPTForCausalLM\"], " SHAPE
                                        ", \"ffn_dim\": 512}",
                                        "{\"architectures\": [\"GraniteForCausalLM\"], " SHAPE
                                        ", \"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.25, "
                                        "\"attention_multiplier\": 0.125, \"logits_scaling\": 8.0}",
                                        "{\"architectures\": [\"Olmo3ForCausalLM\"], " SHAPE
                                        ", \"sliding_window\": 64, \"rope_scaling\": {\"rope_type\": "
                                        "\"yarn\", \"factor\": 8, \"attention_factor\": 1.25, "
                                        "\"original_max_position_embeddings\": 128}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct gguf_values values = {0}, file = {0};
        struct model_config config, back;
        struct helm_err err = {0};
        struct gguf header;
        bool interleaved = false;
        uint64_t embed[2] = {77, 128};
        char name[] = "token_embd.weight";
        if (model_config_parse("test", texts[i], strlen(texts[i]), &config, &err)) fail_msg("%s", err.text);
        if (gguf_put_config(&values, &config, &interleaved, &err)) fail_msg("%s", err.text);
        parse(&values, &header, &file);
        struct safetensors_entry entry = {.name = name, .rank = 2, .format = FORMAT_BF16};
        memcpy(entry.shape, embed, sizeof embed);
        free(header.entries);
        header.entries = malloc(sizeof entry);
        assert_non_null(header.entries);
        header.entries[0] = entry;
        header.count = 1;
        const struct gguf_files files = {&header, 1};
        if (gguf_config_read(&files, &back, &err)) fail_msg("%s: %s", texts[i], err.text);
        assert_int_equal(interleaved, i < 3 || strcmp(config.model_type, "granite") == 0);
        assert_string_equal(back.architecture, config.architecture);
        assert_true(back.layers == config.layers && back.hidden == config.hidden &&
                    back.vocab == config.vocab);
        assert_true(back.heads == config.heads && back.kv_heads == config.kv_heads);
        assert_true(back.head_dim == config.head_dim && back.intermediate == config.intermediate);
        assert_true(back.embedding_scale == config.embedding_scale &&
                    back.residual_scale == config.residual_scale &&
                    back.attention_scale == config.attention_scale && back.logit_scale == config.logit_scale);
        assert_int_equal(back.positions, config.positions);
        assert_int_equal(back.max_context, config.max_context);
        assert_true((float)back.norm_eps == (float)config.norm_eps);
        assert_int_equal(back.rope[0].kind, config.rope[0].kind);
        assert_true((float)back.rope[0].theta == (float)config.rope[0].theta &&
                    back.rope[0].factor == config.rope[0].factor);
        assert_int_equal(back.rope[0].original_context, config.rope[0].original_context);
        assert_true(back.rope[0].attention_factor == config.rope[0].attention_factor);
        assert_int_equal(back.rope[0].truncate, config.rope[0].truncate);
        assert_true(back.sinks == config.sinks && back.experts_bias == config.experts_bias);
        assert_int_equal(back.router.score, config.router.score);
        assert_true(back.router.experts == config.router.experts &&
                    back.router.chosen == config.router.chosen);
        assert_int_equal(back.expert_intermediate, config.expert_intermediate);
        assert_true(back.router.normalise == config.router.normalise &&
                    back.router.scale == config.router.scale);
        assert_true(back.router.groups == config.router.groups &&
                    back.router.groups_chosen == config.router.groups_chosen);
        assert_true(back.shared_intermediate == config.shared_intermediate &&
                    back.shared_weighed == config.shared_weighed && back.choice_bias == config.choice_bias);
        for (uint32_t l = 0; l < config.layers; l++)
            assert_int_equal(model_layer_sparse(&back, l), model_layer_sparse(&config, l));
        assert_memory_equal(back.window, config.window, config.layers * sizeof *config.window);
        model_config_free(&back);
        model_config_free(&config);
        gguf_free(&header);
        gguf_values_free(&values);
        gguf_values_free(&file);
    }
}

#define MOE                                                                                                  \
    ", \"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "                      \
    "\"shared_expert_intermediate_size\": 64, "
static void what_gguf_cannot_say_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"architectures\": [\"Qwen2ForCausalLM\"], " SHAPE
        ", \"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 1}",
        "{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE
        ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
        "\"attention_factor\": 1.5}}",
        "{\"architectures\": [\"GptOssForCausalLM\"], " SHAPE
        ", \"num_local_experts\": 6, \"num_experts_per_tok\": 2, \"rope_scaling\": {\"rope_type\": \"yarn\", "
        "\"factor\": 32, \"truncate\": true, \"original_max_position_embeddings\": 128}}",
        "{\"architectures\": [\"Olmo3ForCausalLM\"], " SHAPE
        ", \"sliding_window\": 64, \"rope_parameters\": {"
        "\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 500000}, "
        "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 5000}}}",
        "{\"architectures\": [\"Qwen2MoeForCausalLM\"], " SHAPE MOE "\"norm_topk_prob\": true}",
        "{\"architectures\": [\"Qwen2MoeForCausalLM\"], " SHAPE MOE "\"mlp_only_layers\": [1]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct gguf_values values = {0};
        struct model_config config;
        struct helm_err err = {0};
        bool interleaved;
        if (model_config_parse("test", texts[i], strlen(texts[i]), &config, &err)) fail_msg("%s", err.text);
        assert_int_equal(gguf_put_config(&values, &config, &interleaved, &err), HELM_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "no GGUF key says that"));
        model_config_free(&config);
        gguf_values_free(&values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_read_back),
        cmocka_unit_test(tensors_read_back),
        cmocka_unit_test(what_is_abandoned_is_gone),
        cmocka_unit_test(configurations_come_back),
        cmocka_unit_test(what_gguf_cannot_say_is_refused),
    };
    return cmocka_run_group_tests_name("model/gguf_write", tests, open_folder, close_folder);
}
