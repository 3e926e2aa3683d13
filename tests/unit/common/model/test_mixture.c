/* Mixtures of formats: tensor by tensor what llama.cpp's own files have (tests/data/golden-gguf,
 * and all of the collection where HELM_GOLDEN_GGUF names its folder), and what those do not
 * show: 70B, importance, rows that no block takes, what is loaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model/arch.h"
#include "common/model/mixture.h"

#define GOLDEN "tests/data/golden-gguf"

/* qwen3-Q4_0 is not among them: all of it is Q4_0, as llama.cpp's --pure makes it. */
static const char *const files[][2] = {{"llama-Q4_K_M", "q4_k_m"},
                                       {"qwen2-oddrows-IQ4_XS", "iq4_xs"},
                                       {"qwen2-oddrows-Q4_K_M", "Q4_K_M"},
                                       {"qwen3-IQ4_NL", "iq4_nl"},
                                       {"qwen3-IQ4_XS", "iq4_xs"},
                                       {"qwen3-Q2_K", "q2_k"},
                                       {"qwen3-Q3_K_M", "q3_k_m"},
                                       {"qwen3-Q4_K_M", "q4_k_m"},
                                       {"qwen3-Q5_K_M", "q5_k_m"},
                                       {"qwen3-Q6_K", "q6_k"},
                                       {"qwen3-Q8_0", "q8_0"},
                                       {"qwen3moe-Q4_K_M", "q4_k_m"},
                                       {"qwen3moe-MXFP4_MOE", "mxfp4"},
                                       {"mixtral-Q4_K_M", "q4_k_m"}};

static void same_formats_as_published(void **state)
{
    (void)state;
    const char *collection = getenv("HELM_GOLDEN_GGUF");
    uint32_t matrices = 0;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct model model;
        struct helm_err err = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/%s/model.gguf", collection ? collection : GOLDEN, files[f][0]);
        if (!collection && access(path, F_OK)) continue;
        if (model_read(path, &model, &err)) fail_msg("%s", err.text);
        const struct mixture *mixture = mixture_named(files[f][1]);
        assert_non_null(mixture);
        for (uint32_t i = 0; i < model.tensor_count; i++) {
            const struct model_tensor *t = &model.tensors[i];
            if (arch_role_is_vector(t->role)) continue;
            const enum tensor_format format = mixture_format(mixture, &model, t, false);
            if (format != t->format)
                fail_msg("%s: %s is %s, not %s", files[f][0], t->name, tensor_format_name(t->format),
                         tensor_format_name(format));
            matrices++;
        }
        model_free(&model);
    }
    assert_true(matrices > 40);
}

/* A model of which only what mixtures look at is there. */
static struct model model_of(uint32_t layers, uint32_t heads, uint32_t kv_heads, bool tied)
{
    return (struct model){
        .config = {.layers = layers, .heads = heads, .kv_heads = kv_heads, .tied_head = tied}};
}
static struct model_tensor tensor_of(enum tensor_role role, int32_t layer, uint64_t cols)
{
    return (
        struct model_tensor){.role = role, .layer = layer, .format = FORMAT_BF16, .rows = 512, .cols = cols};
}

static void check(const char *name, const struct model *model, const struct model_tensor *t, bool importance,
                  enum tensor_format expected)
{
    const enum tensor_format format = mixture_format(mixture_named(name), model, t, importance);
    if (format != expected)
        fail_msg("%s, role %d of layer %d: %s, not %s", name, (int)t->role, t->layer,
                 tensor_format_name(format), tensor_format_name(expected));
}

static void rules_by_layer_and_importance(void **state)
{
    (void)state;
    const struct model big = model_of(80, 64, 8, false), small = model_of(32, 32, 32, false);
    struct model_tensor v = tensor_of(TENSOR_V, 20, 8192), down = tensor_of(TENSOR_DOWN, 3, 8192),
                        head = tensor_of(TENSOR_HEAD, -1, 8192), embed = tensor_of(TENSOR_EMBED, -1, 8192);
    check("q4_k_m", &big, &v, false, FORMAT_Q5_K); /* 20 - 10 is no 2 of 3 */
    v.layer = 21;
    check("q4_k_m", &big, &v, false, FORMAT_Q6_K);
    v.layer = 5;
    check("q4_k_m", &small, &v, false, FORMAT_Q4_K);
    v.layer = 6;
    check("q4_k_m", &small, &v, false, FORMAT_Q6_K);
    check("q4_k_s", &small, &v, false, FORMAT_Q4_K);
    v.layer = 3;
    check("q4_k_s", &small, &v, false, FORMAT_Q5_K);
    check("q2_k", &small, &v, false, FORMAT_Q3_K);
    check("q2_k", &big, &v, false, FORMAT_Q5_K); /* Q4_K, but of 70B */
    check("q4_0", &small, &down, true, FORMAT_Q4_1);
    check("q4_0", &small, &down, false, FORMAT_Q4_0);
    check("iq4_xs", &small, &down, true, FORMAT_IQ4_XS);
    check("iq4_xs", &small, &down, false, FORMAT_Q5_K);
    check("q4_k_m", &small, &head, false, FORMAT_Q6_K);
    check("q4_k_m", &small, &embed, false, FORMAT_Q4_K);
    check("f16", &small, &embed, false, FORMAT_F16);
    check("mxfp4", &small, &embed, false, FORMAT_Q8_0);
    check("mxfp4", &small, &down, false, FORMAT_MXFP4);
}

static void odd_rows_fall_back(void **state)
{
    (void)state;
    const struct model model = model_of(32, 32, 8, true);
    struct model_tensor up = tensor_of(TENSOR_UP, 0, 320), embed = tensor_of(TENSOR_EMBED, -1, 320);
    check("q4_k_m", &model, &up, false, FORMAT_Q5_0);
    check("q3_k_m", &model, &up, false, FORMAT_IQ4_NL);
    check("q5_k_m", &model, &up, false, FORMAT_Q5_1);
    check("q6_k", &model, &embed, false, FORMAT_Q8_0);
    up.cols = 100; /* nothing takes it: as it is stored */
    check("q4_k_m", &model, &up, false, FORMAT_BF16);
    check("q8_0", &model, &up, false, FORMAT_BF16);
}

static void what_is_loaded(void **state)
{
    (void)state;
    struct model model = model_of(32, 32, 8, false);
    const struct mixture *m = mixture_named("q4_k_m");
    struct model_tensor embed = tensor_of(TENSOR_EMBED, -1, 4096), q = tensor_of(TENSOR_Q, 3, 4096),
                        norm = {.role = TENSOR_ATTN_NORM,
                                .layer = 3,
                                .format = FORMAT_BF16,
                                .rows = 1,
                                .cols = 64};
    assert_int_equal(mixture_format_at_load(m, &model, &embed), FORMAT_BF16);
    assert_int_equal(mixture_format_at_load(m, &model, &q), FORMAT_Q4_K);
    assert_int_equal(mixture_format_at_load(m, &model, &norm), FORMAT_BF16);
    model.config.tied_head = true;
    assert_int_equal(mixture_format_at_load(m, &model, &embed), FORMAT_Q6_K);
    q.format = FORMAT_Q3_K;
    assert_int_equal(mixture_format_at_load(m, &model, &q), FORMAT_Q3_K);
}

static void names(void **state)
{
    (void)state;
    uint32_t count = 0;
    for (const struct mixture *m; (m = mixture_at(count)); count++) {
        assert_ptr_equal(mixture_named(mixture_name(m)), m);
        for (uint32_t i = 0; i < count; i++) {
            assert_string_not_equal(mixture_name(mixture_at(i)), mixture_name(m));
            assert_int_not_equal(mixture_file_type(mixture_at(i)), mixture_file_type(m));
        }
    }
    assert_true(count >= 13);
    assert_string_equal(mixture_name(mixture_named("Q4_K")), "q4_k_m");
    assert_null(mixture_named("q4"));
    assert_null(mixture_named(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_formats_as_published),
        cmocka_unit_test(rules_by_layer_and_importance),
        cmocka_unit_test(odd_rows_fall_back),
        cmocka_unit_test(what_is_loaded),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests_name("model/mixture", tests, NULL, NULL);
}
