/* Large experts in parts (common/model/parts.h): which models' experts are cut, that a cut model's tensors
 * have the bytes of whole experts, from every kind of file, and that the choice of a cut router is the whole
 * one's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/parts.h"
#include "common/model/shards.h"

static void open_model(const char *path, struct model *m, struct model_shards *shards)
{
    struct helm_err err = {0};
    if (model_read(path, m, &err)) fail_msg("%s", err.text);
    if (model_shards_open(m, shards, &err)) fail_msg("%s", err.text);
}

static uint8_t *read_all(const struct model_shards *shards, const struct model_tensor *t)
{
    struct helm_err err = {0};
    uint8_t *bytes = malloc(t->bytes);
    assert_non_null(bytes);
    if (model_shards_read(shards, t, 0, t->bytes, bytes, &err)) fail_msg("%s", err.text);
    return bytes;
}

/* A piece of each tensor from any byte on is what all of it has there. */
static void check_pieces(const struct model_shards *shards, const struct model_tensor *t, const uint8_t *all)
{
    struct helm_err err = {0};
    uint8_t *part = malloc(t->bytes);
    assert_non_null(part);
    for (uint64_t from = 1; from < t->bytes; from += t->bytes / 3 + 7) {
        const uint64_t bytes = (t->bytes - from) * 2 / 3 + 1;
        if (model_shards_read(shards, t, from, bytes, part, &err)) fail_msg("%s", err.text);
        assert_memory_equal(part, all + from, bytes);
    }
    free(part);
}

/* Row r of part j of expert e of what was cut, beside `before` of whole experts; rows: of an expert. */
static void check_tensor(const struct model_tensor *t, const uint8_t *after, const uint8_t *before,
                         uint32_t parts)
{
    const uint64_t values = t->rows > 1 ? t->rows : t->cols, row = t->bytes / values, rows = t->part_rows;
    static const uint8_t zero[8192];
    for (uint64_t i = 0; i < values; i++) {
        const uint64_t e = i / rows / parts, j = i / rows % parts, r = i % rows;
        const uint8_t *want = t->cut == CUT_COLUMNS          ? before + ((e * rows + r) * parts + j) * row
                              : t->cut == CUT_FIRST && j > 0 ? zero
                                                             : before + e * row;
        assert_true(row <= sizeof zero);
        assert_memory_equal(after + i * row, want, row);
    }
}

static void cut_tensors_have_whole_experts_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t parts;
        uint64_t cut; /* roles that are not the same bytes */
    } cases[] = {{"tests/data/golden/mixtral", 4,
                  UINT64_C(1) << TENSOR_ROUTER | UINT64_C(1) << TENSOR_DOWN_EXPERTS},
                 {"tests/data/golden-gguf/mixtral-Q4_K_M/model.gguf", 2,
                  UINT64_C(1) << TENSOR_ROUTER | UINT64_C(1) << TENSOR_DOWN_EXPERTS},
                 {"tests/data/golden/gptoss", 3,
                  UINT64_C(1) << TENSOR_ROUTER | UINT64_C(1) << TENSOR_ROUTER_BIAS |
                      UINT64_C(1) << TENSOR_DOWN_EXPERTS | UINT64_C(1) << TENSOR_DOWN_EXPERTS_BIAS},
                 {"tests/data/golden/gemma4moe", 2,
                  UINT64_C(1) << TENSOR_ROUTER | UINT64_C(1) << TENSOR_EXPERT_SCALE |
                      UINT64_C(1) << TENSOR_DOWN_EXPERTS}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct model whole, cut;
        struct model_shards shards, again;
        struct helm_err err = {0};
        uint64_t seen = 0;
        open_model(cases[c].path, &whole, &shards);
        open_model(cases[c].path, &cut, &again);
        if (model_cut_experts(&cut, cases[c].parts, &err)) fail_msg("%s", err.text);
        assert_int_equal(cut.config.router.experts, whole.config.router.experts * cases[c].parts);
        assert_int_equal(cut.config.router.chosen, whole.config.router.chosen * cases[c].parts);
        assert_int_equal(cut.config.expert_intermediate * cases[c].parts, whole.config.expert_intermediate);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < cut.tensor_count; i++) {
            const struct model_tensor *t = &cut.tensors[i], *of = &whole.tensors[i];
            sum += t->bytes;
            if (t->layer > 0 || (t->layer < 0 && t->role != TENSOR_FINAL_NORM))
                continue; /* layers are alike */
            uint8_t *before = read_all(&shards, of), *after = read_all(&again, t);
            if (t->cut) {
                seen |= UINT64_C(1) << t->role;
                check_tensor(t, after, before, cases[c].parts);
                check_pieces(&again, t, after);
            } else {
                assert_int_equal(t->bytes, of->bytes);
                assert_memory_equal(after, before, t->bytes);
            }
            free(before);
            free(after);
        }
        assert_int_equal(seen, cases[c].cut);
        assert_int_equal(sum, cut.weight_bytes);
        assert_true(cut.math.part[MATH_PART_SPARSE].read_part == whole.math.part[MATH_PART_SPARSE].read_part);
        /* and whole again */
        if (model_cut_experts(&cut, 1, &err)) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < cut.tensor_count; i++) {
            const struct model_tensor *t = &cut.tensors[i], *of = &whole.tensors[i];
            assert_true(t->cut == CUT_NONE && t->rows == of->rows && t->cols == of->cols &&
                        t->bytes == of->bytes);
        }
        assert_int_equal(cut.weight_bytes, whole.weight_bytes);
        assert_true(cut.config.router.scale == whole.config.router.scale);
        assert_int_equal(cut.config.router.experts, whole.config.router.experts);
        model_shards_close(&shards);
        model_shards_close(&again);
        model_free(&whole);
        model_free(&cut);
    }
}

static void what_cannot_be_cut_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t parts;
        const char *text;
    } cases[] = {{"tests/data/golden/mixtral", 5, "experts of 96 values cannot be computed in 5 parts"},
                 {"tests/data/golden/mixtral", 32, "cannot be computed in 32 parts"}, /* 64 a token */
                 {"tests/data/golden-gguf/mixtral-Q4_K_M/model.gguf", 4, "cannot be cut into 4 parts"},
                 {"tests/data/golden/dots1", 2,
                  "cannot be computed in 2 parts"}, /* chosen by groups of experts */
                 {"tests/data/golden/qwen3", 2, "there are none"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct model m;
        struct helm_err err = {0};
        if (model_read(cases[c].path, &m, &err)) fail_msg("%s", err.text);
        const uint32_t experts = m.config.router.experts;
        assert_int_equal(model_cut_experts(&m, cases[c].parts, &err), HELM_E_UNSUPPORTED);
        if (!strstr(err.text, cases[c].text)) fail_msg("'%s'", err.text);
        assert_int_equal(m.config.router.experts, experts);
        model_free(&m);
    }
}

/* Each published shape by its largest expert as stored. */
static void only_large_experts_are_cut(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        uint32_t hidden, inner, experts, chosen;
        enum tensor_format format;
        uint32_t parts;
    } cases[] = {{"MixtralForCausalLM", 4096, 14336, 8, 2, FORMAT_Q4_K, 4},  /* 8x7B: 99 MB */
                 {"MixtralForCausalLM", 4096, 14336, 8, 2, FORMAT_BF16, 4},  /* 352 MB: 8 a token at most */
                 {"MixtralForCausalLM", 6144, 16384, 8, 2, FORMAT_Q4_K, 4},  /* 8x22B */
                 {"MixtralForCausalLM", 4096, 6400, 16, 2, FORMAT_Q4_K, 1},  /* 25 blocks of 256 */
                 {"MixtralForCausalLM", 4608, 1024, 16, 2, FORMAT_BF16, 2},  /* just above */
                 {"MixtralForCausalLM", 4608, 1024, 256, 2, FORMAT_BF16, 1}, /* more rows than kernels rank */
                 {"MixtralForCausalLM", 2880, 2880, 128, 4, FORMAT_MXFP4, 1}, /* gpt-oss-120b: 13 MB */
                 {"MixtralForCausalLM", 2048, 768, 128, 8, FORMAT_Q4_K, 1}};  /* 30B-A3B: 2.6 MB */
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char text[512];
        struct model_config config;
        struct model m;
        struct helm_err err = {0};
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"%s\"], \"hidden_size\": %u, \"intermediate_size\": %u, "
                 "\"num_local_experts\": %u, \"num_experts_per_tok\": %u, \"num_hidden_layers\": 1, "
                 "\"num_attention_heads\": 8, \"num_key_value_heads\": 1, \"vocab_size\": 512, "
                 "\"dtype\": \"bfloat16\"}",
                 cases[c].architecture, cases[c].hidden, cases[c].inner, cases[c].experts, cases[c].chosen);
        if (model_config_parse("test", text, strlen(text), &config, &err)) fail_msg("%s", err.text);
        config.experts_format = cases[c].format;
        if (model_from_config(&config, &m, &err)) fail_msg("%s", err.text);
        assert_int_equal(model_parts_wanted(&m), cases[c].parts);
        if (model_cut_experts(&m, cases[c].parts, &err)) fail_msg("%s", err.text);
        assert_int_equal(model_parts_wanted(&m), cases[c].parts); /* however many there are */
        model_free(&m);
    }
}

/* With the logits of an expert for each of its parts the choice is its parts, in order, each with its weight;
 * also of ties, of numbers that are none, and where all are. */
static void a_cut_router_chooses_parts_of_the_same_experts(void **state)
{
    (void)state;
    static const struct model_router routers[] = {{ROUTER_SOFTMAX, 8, 2, true, 1, 1, 1},
                                                  {ROUTER_SOFTMAX, 8, 3, false, 1, 1, 1},
                                                  {ROUTER_CHOSEN_SOFTMAX, 8, 2, false, 1, 1, 1},
                                                  {ROUTER_SIGMOID, 8, 2, true, 2.5f, 1, 1},
                                                  {ROUTER_SIGMOID, 8, 3, false, 1, 1, 1}};
    static const float logits[][8] = {{0.5f, -1, 3, 2.25f, 0, -0.0f, 1, 2},
                                      {1, 1, 1, 1, 1, 1, 1, 1},
                                      {2, 1, 1, 2, 1, 0, 2, 1},
                                      {NAN, 1, -INFINITY, NAN, 2, NAN, NAN, NAN},
                                      {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}};
    for (size_t r = 0; r < sizeof routers / sizeof *routers; r++)
        for (uint32_t parts = 2; parts <= 4; parts++)
            for (size_t l = 0; l < sizeof logits / sizeof *logits; l++) {
                struct model m = {.config.architecture = "MixtralForCausalLM",
                                  .config.router = routers[r],
                                  .config.expert_intermediate = 96};
                struct helm_err err = {0};
                uint32_t id[3], part_id[12];
                float weight[3], part_weight[12], repeated[32];
                const uint32_t chosen = m.config.router.chosen;
                router_choose(&m.config.router, logits[l], NULL, NULL, id, weight);
                if (model_cut_experts(&m, parts, &err)) fail_msg("%s", err.text);
                for (uint32_t i = 0; i < 8 * parts; i++) repeated[i] = logits[l][i / parts];
                router_choose(&m.config.router, repeated, NULL, NULL, part_id, part_weight);
                for (uint32_t j = 0; j < chosen * parts; j++) {
                    assert_int_equal(part_id[j], id[j / parts] * parts + j % parts);
                    const float want = weight[j / parts];
                    assert_true(fabsf(part_weight[j] - want) <= 1e-6f * fmaxf(1, fabsf(want)) ||
                                (isnan(want) && isnan(part_weight[j])));
                }
                free(m.unit);
                free(m.unit_tensor);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_tensors_have_whole_experts_bytes),
                                       cmocka_unit_test(what_cannot_be_cut_is_refused),
                                       cmocka_unit_test(only_large_experts_are_cut),
                                       cmocka_unit_test(a_cut_router_chooses_parts_of_the_same_experts)};
    return cmocka_run_group_tests_name("model/parts", tests, NULL, NULL);
}
