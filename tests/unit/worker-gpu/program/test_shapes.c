/* Unit tests of streaming models of shapes that no published one has together: widths of heads beside powers
 * of two, biases everywhere, sliding windows, tied ends, matrices of odd sizes, weights in fp32.
 *
 * Checked: streamed through a ring of any size the tokens and their logprobs are those of weights in VRAM,
 * to the last bit; and where prompts borrow caches of the host they are near those of the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/units.h"
#include "tools/mkmodel/mkmodel.h"
#include "tests/golden/pair.h"
#include "tests/written_plans.h"

#define UNITS  4
#define STEPS  24
#define PROMPT 75

struct shape {
    const char *name, *config;
    enum dtype dtype;
    enum kv_dtype kv_dtype;
};

static const struct shape shapes[] = {
    {"head_dim 80, every bias, odd rows",
     "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 72, "
     "\"intermediate_size\": 116, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, "
     "\"num_key_value_heads\": 1, \"head_dim\": 80, \"vocab_size\": 301, \"rms_norm_eps\": 1e-5, "
     "\"max_position_embeddings\": 256, \"attention_bias\": true, \"mlp_bias\": true, "
     "\"tie_word_embeddings\": false",
     DTYPE_F16, KV_F16},
    {"head_dim 96, windows",
     "{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], \"hidden_size\": 96, "
     "\"intermediate_size\": 200, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
     "\"num_key_value_heads\": 2, \"head_dim\": 96, \"vocab_size\": 300, \"rms_norm_eps\": 1e-5, "
     "\"max_position_embeddings\": 256, \"sliding_window\": 19, \"tie_word_embeddings\": false",
     DTYPE_BF16, KV_F32},
    {"head_dim 256, tied ends",
     "{\"model_type\": \"qwen3\", \"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": 136, "
     "\"intermediate_size\": 88, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
     "\"num_key_value_heads\": 1, \"head_dim\": 256, \"vocab_size\": 260, \"rms_norm_eps\": 1e-6, "
     "\"max_position_embeddings\": 256, \"tie_word_embeddings\": true",
     DTYPE_BF16, KV_BF16},
    {"fp32, head_dim 64",
     "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": 128, "
     "\"intermediate_size\": 148, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
     "\"num_key_value_heads\": 1, \"vocab_size\": 270, \"rms_norm_eps\": 1e-6, "
     "\"max_position_embeddings\": 256, \"tie_word_embeddings\": true",
     DTYPE_F32, KV_F16},
    {"head_dim 96, windows, quantised cache",
     "{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], \"hidden_size\": 96, "
     "\"intermediate_size\": 200, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
     "\"num_key_value_heads\": 2, \"head_dim\": 96, \"vocab_size\": 300, \"rms_norm_eps\": 1e-5, "
     "\"max_position_embeddings\": 256, \"sliding_window\": 19, \"tie_word_embeddings\": false",
     DTYPE_BF16, KV_Q8_0},
};

/* Makes the bf16 weights of a folder fp32, with the same values. */
static void widen(const char *folder)
{
    char path[96];
    uint64_t header_bytes = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&header_bytes, 8, 1, file), 1);
    assert_true(header_bytes < MIB);
    char *text = calloc(1, header_bytes + 1);
    assert_int_equal(fread(text, 1, header_bytes, file), header_bytes);
    json_t *header = json_loads(text, 0, NULL), *entry;
    free(text);
    assert_non_null(header);
    const char *name;
    uint64_t end = 0;
    json_object_foreach(header, name, entry)
    {
        json_t *offsets = json_object_get(entry, "data_offsets");
        if (!offsets) continue;
        uint64_t from = (uint64_t)json_integer_value(json_array_get(offsets, 0)),
                 to = (uint64_t)json_integer_value(json_array_get(offsets, 1));
        if (to > end) end = to;
        json_object_set_new(entry, "dtype", json_string("F32"));
        json_object_set_new(entry, "data_offsets",
                            json_pack("[I, I]", (json_int_t)(2 * from), (json_int_t)(2 * to)));
    }
    uint16_t *narrow = malloc(end);
    uint32_t *wide = malloc(2 * end);
    assert_int_equal(fread(narrow, 1, end, file), end);
    fclose(file);
    for (uint64_t i = 0; i < end / 2; i++) wide[i] = (uint32_t)narrow[i] << 16;
    text = json_dumps(header, JSON_COMPACT);
    header_bytes = strlen(text);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&header_bytes, 8, 1, file), 1);
    assert_int_equal(fwrite(text, 1, header_bytes, file), header_bytes);
    assert_int_equal(fwrite(wide, 1, 2 * end, file), 2 * end);
    assert_int_equal(fclose(file), 0);
    json_decref(header);
    free(text);
    free(narrow);
    free(wide);
}

static void make_folder(const struct shape *shape, char *folder)
{
    struct helm_err err = {0};
    struct model_config config;
    char text[1024], path[96];
    struct mkmodel_result result;
    assert_true((size_t)snprintf(text, sizeof text, "%s, \"torch_dtype\": \"%s\"}", shape->config,
                                 shape->dtype == DTYPE_F16 ? "float16" : "bfloat16") < sizeof text);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    if (model_config_parse("config", text, strlen(text), &config, &err)) fail_msg("%s", err.text);
    const struct mkmodel_request request = {.config = &config,
                                            .folder = folder,
                                            .dtype = shape->dtype == DTYPE_F32 ? DTYPE_BF16 : shape->dtype,
                                            .seed = 7,
                                            .shard_bytes = GIB,
                                            .threads = 1};
    if (mkmodel_write(&request, &result, &err)) fail_msg("%s", err.text);
    model_config_free(&config);
    if (shape->dtype == DTYPE_F32) widen(folder);
}

static void remove_folder(const char *folder)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[96];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Logprobs of the tokens of a prompt's chunks and of some steps after it, along a fixed sequence. */
static void run(const char *folder, const struct shape *shape, const char *decode, const char *prefill,
                uint64_t ring_bytes, float *logprob)
{
    struct plan_unit unit[UNITS + 2];
    struct plan plan = {.layers = UNITS / 2,
                        .unit = units_of_letters(unit, UNITS / 2, decode, UNITS),
                        .device[PLAN_GPU0].ring_bytes = ring_bytes,
                        .embed = decode[0] == 'c' ? PLAN_CPU0 : PLAN_GPU0};
    plan.head = plan.embed;
    if (prefill) add_letters(&plan, 17, prefill);
    const struct pair_options options = {.folder = folder,
                                         .plan = &plan,
                                         .device = "emulated",
                                         .kv_dtype = shape->kv_dtype,
                                         .threads = 1,
                                         .slots = 20, /* more than a small batch has rows */
                                         .context_tokens = 120,
                                         .step_tokens = 200, /* more than a sequence can have */
                                         .vram_bytes = 64 * MIB,
                                         .peer_wait_ms = 120000};
    struct pair *pair = calloc(1, sizeof *pair);
    struct helm_err err = {0};
    const struct step_result *result;
    if (pair_open(&options, pair, &err)) fail_msg("%s: %s", shape->name, err.text);
    uint32_t *history = arena_history_of(&pair->arena, 19);
    for (uint32_t i = 0; i < PROMPT + STEPS; i++) history[i] = (i * 53 + 7) % 260;
    arena_slot_of(&pair->arena, 19)->sampling.logprobs = 1;
    for (uint32_t at = 0, i = 0; at < PROMPT + STEPS; i++) {
        uint32_t count = at == 0 ? 50 : at < PROMPT ? PROMPT - at : 1;
        const struct step_row row = {.slot = 19,
                                     .start = at,
                                     .count = count,
                                     .flags = at ? STEP_ROW_SAMPLE : 0};
        if (pair_step(pair, &row, 1, &result, &err)) fail_msg("%s: %s", shape->name, err.text);
        assert_int_equal(result->row[0].status, at ? STEP_ROW_OK : result->row[0].status);
        logprob[i] = at ? result->row[0].sampled.logprob : 0;
        at += count;
    }
    pair_close(pair);
    free(pair);
}

static void any_shape_is_streamed(void **state)
{
    (void)state;
    enum { COUNT = STEPS + 2 };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        char folder[64] = "/tmp/helm-test-shape-XXXXXX";
        float resident[COUNT], other[COUNT], sum = 0;
        make_folder(&shapes[s], folder);
        run(folder, &shapes[s], "gggg", NULL, 0, resident);
        static const uint64_t rings[] = {32 * KIB, 100 * KIB, 4 * MIB};
        for (size_t r = 0; r < sizeof rings / sizeof *rings; r++) {
            run(folder, &shapes[s], r ? "ssss" : "sgss", NULL, rings[r], other);
            assert_memory_equal(other, resident, sizeof resident);
        }
        static const char *const plans[][2] = {{"cccc", NULL}, {"cccc", "ssss"}, {"cscs", "ssss"}};
        for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
            run(folder, &shapes[s], plans[p][0], plans[p][1], 100 * KIB, other);
            for (int i = 0; i < COUNT; i++) assert_true(fabsf(other[i] - resident[i]) < 0.1f);
        }
        for (int i = 0; i < COUNT; i++) sum += fabsf(resident[i]);
        assert_true(sum > 0); /* numbers, and not of the one kind that compares to nothing */
        remove_folder(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_shape_is_streamed)};
    return cmocka_run_group_tests_name("worker-gpu/shapes", tests, NULL, NULL);
}
