/* Configurations of Phi-3, OPT, Granite, the hybrids and other families: what their keys mean, and what is
 * refused by name. Each begins with the config.json of the reference in tests/data/golden. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/arch.h"
#include "common/model/model.h"

/* The reference's configuration with the members of `patch` in place; "DELETE" removes one. */
static int parse(const char *name, const char *patch, struct model_config *c, struct helm_err *err)
{
    char path[100];
    const char *key;
    json_t *root, *changes = json_loads(patch, 0, NULL), *value;
    snprintf(path, sizeof path, "tests/data/golden/%s/config.json", name);
    if (!changes) fail_msg("the test's patch is not JSON: %s", patch);
    if (json_read_file(path, 1 << 20, &root, err)) fail_msg("%s", err->text);
    json_object_foreach(changes, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "DELETE") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    char *text = json_dumps(root, 0);
    const int rc = model_config_parse("config.json", text, strlen(text), c, err);
    free(text);
    json_decref(root);
    json_decref(changes);
    return rc;
}

static void accept(const char *name, const char *patch, struct model_config *c)
{
    struct helm_err err = {0};
    if (parse(name, patch, c, &err)) fail_msg("%s %s: %s", name, patch, err.text);
}

#define ONES   "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1"
#define TWOS   "2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2"
#define TABLES "\"short_factor\": [" ONES "], \"long_factor\": [" TWOS "]"

/* The table by the run's context; one scale for both: sqrt(1 + ln(4096 / 128) / ln(128)). */
static void a_longrope_has_two_tables(void **state)
{
    (void)state;
    struct model_config c;
    float near[16], far[16], scale = 0;
    accept("phi3", "{\"rope_scaling\": {\"type\": \"longrope\", " TABLES "}}", &c);
    assert_int_equal(c.rope[0].original_context, 128);
    assert_false(rope_is_long(&c, 128));
    assert_true(rope_is_long(&c, 129));
    rope_inv_freq(&c, 0, 128, near, &scale);
    assert_true(fabsf(scale - 1.3093073f) < 1e-6f);
    rope_inv_freq(&c, 0, 129, far, &scale);
    assert_true(fabsf(scale - 1.3093073f) < 1e-6f);
    for (int i = 0; i < 16; i++) {
        assert_true(fabs(near[i] * pow(10000, i / 16.0) - 1) < 1e-6);
        assert_true(far[i] * 2 == near[i]);
    }
    model_config_free(&c);
}

/* The name and place that transformers 5 has for them; an attention factor of its own; the first name of the
 * type. */
static void other_forms_of_a_longrope(void **state)
{
    (void)state;
    struct model_config c;
    accept("phi3",
           "{\"rope_scaling\": \"DELETE\", \"rope_theta\": \"DELETE\", \"rope_parameters\": {\"rope_type\": "
           "\"longrope\", \"rope_theta\": 5000.0, \"attention_factor\": 1.5, " TABLES "}}",
           &c);
    assert_true(c.rope[0].kind == ROPE_LONG && c.rope[0].theta == 5000 && c.rope[0].attention_factor == 1.5);
    model_config_free(&c);
    accept("phi3",
           "{\"rope_scaling\": {\"type\": \"su\", " TABLES "}, \"original_max_position_embeddings\": 4096}",
           &c);
    assert_true(c.rope[0].kind == ROPE_LONG && c.rope[0].attention_factor == 1);
    model_config_free(&c);
    accept("phi3", "{\"rope_scaling\": null, \"sliding_window\": null}", &c);
    assert_true(c.rope[0].kind == ROPE_DEFAULT && c.window[0] == 0 && !rope_is_long(&c, 1 << 20));
    model_config_free(&c);
}

static void opt_is_read(void **state)
{
    (void)state;
    struct model_config c;
    struct model_math math;
    accept("opt", "{\"tie_word_embeddings\": \"DELETE\"}", &c);
    assert_true(c.tied_head && c.q_bias && c.o_bias && c.mlp_bias && c.norm_eps == 1e-5);
    assert_int_equal(c.positions, c.max_context + 2);
    assert_int_equal(c.kv_heads, c.heads);
    model_math_build(&c, &math);
    assert_true(math.embed.positions == TENSOR_POSITIONS && math.embed.position_first == 2);
    assert_true(math.part[0].op[1].no_rope && math.head.norm_kind == NORM_LAYER);
    model_config_free(&c);
    accept("opt", "{\"enable_bias\": false}", &c);
    assert_false(c.q_bias || c.k_bias || c.v_bias || c.o_bias || c.mlp_bias);
    model_config_free(&c);
}

static void granite_is_read(void **state)
{
    (void)state;
    struct model_config c;
    struct model_math math;
    accept("granite", "{}", &c);
    model_math_build(&c, &math);
    assert_true(math.embed.out_scale == 12 && math.head.out_scale == 2); /* logits_scaling divides */
    assert_true(math.part[0].op[1].score_scale == 0.09f);
    assert_true(math.part[0].op[2].out_scale == 0.35f && math.part[1].op[1].out_scale == 0.35f);
    model_config_free(&c);
    accept("granite",
           "{\"embedding_multiplier\": \"DELETE\", \"residual_multiplier\": \"DELETE\", "
           "\"attention_multiplier\": \"DELETE\", \"logits_scaling\": \"DELETE\"}",
           &c);
    model_math_build(&c, &math);
    assert_true(math.embed.out_scale == 1 && math.head.out_scale == 1 && math.part[0].op[1].score_scale == 1);
    model_config_free(&c);
}

/* Kinds of layers by a list or by an interval; a part of each head turns; the record of a layer's state. */
static void hybrids_are_read(void **state)
{
    (void)state;
    struct model_config c;
    struct model_math math;
    float frequency[8], scale = 0;
    accept("qwen35", "{\"layer_types\": \"DELETE\", \"full_attention_interval\": 2}", &c);
    assert_true(c.recurrent[0] && !c.recurrent[1] && c.recurrent[2] && !c.recurrent[3]);
    model_config_free(&c);
    accept("qwen35", "{\"partial_rotary_factor\": \"DELETE\"}", &c); /* rope_parameters have it, too */
    assert_int_equal(c.rope[0].dims, 16);
    rope_inv_freq(&c, 0, 64, frequency, &scale);
    for (int i = 0; i < 8; i++) assert_true(fabs((double)frequency[i] * pow(1e7, i / 8.0) - 1) < 1e-6);
    assert_true(c.recurrent[0] && c.recurrent[2] && !c.recurrent[3] && c.delta.order == HEADS_TOGETHER);
    assert_int_equal(c.delta.channels, 2 * 2 * 128 + 4 * 128);
    assert_int_equal(model_delta_matrices_at(&c.delta), 3 * 1024 * 4);
    assert_int_equal(model_delta_bytes(&c.delta), 3 * 1024 * 4 + 4 * 128 * 128 * 4);
    model_math_build(&c, &math);
    assert_int_equal(math.part[0].op[1].rope_dims, 16);
    assert_int_equal(math.part[0].op[1].output_gate, BUFFER_Q_GATE);
    model_config_free(&c);
    accept("qwen35moe", "{\"norm_topk_prob\": \"DELETE\", \"intermediate_size\": \"DELETE\"}", &c);
    assert_true(c.router.normalise && c.shared_weighed && c.sparse[0]);
    model_config_free(&c);
    accept("qwen3next", "{\"norm_topk_prob\": false}", &c);
    assert_false(c.router.normalise);
    model_config_free(&c);
}

/* Tables of RoPE: OLMo 3's windows have one that is not scaled; SmolLM3's layers without RoPE one in which
 * nothing turns. */
static void families_have_second_tables(void **state)
{
    (void)state;
    struct model_config c;
    float plain[16], scaled[16], still[16], scale = 0;
    accept("olmo3",
           "{\"layer_types\": \"DELETE\", \"rope_parameters\": \"DELETE\", "
           "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, "
           "\"original_max_position_embeddings\": 128, \"attention_factor\": 1.2}}",
           &c);
    for (uint32_t l = 0; l < c.layers; l++) assert_int_equal(c.window[l], l == 3 ? 0 : 40);
    rope_inv_freq(&c, 0, 128, scaled, &scale);
    assert_true(fabsf(scale - 1.2f) < 1e-6f);
    rope_inv_freq(&c, 1, 128, plain, &scale);
    assert_true(scale == 1 && plain[15] > 7 * scaled[15] && plain[0] == 1);
    model_config_free(&c);
    accept("olmo3",
           "{\"rope_theta\": \"DELETE\", \"rope_parameters\": {"
           "\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 20000}, "
           "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 5000}}}",
           &c);
    assert_true(c.rope[0].theta == 20000 && c.rope[1].theta == 5000);
    model_config_free(&c);
    accept("smollm3", "{\"no_rope_layers\": [1, 1, 1, 0], \"num_key_value_heads\": null}", &c);
    rope_inv_freq(&c, 1, 128, still, &scale);
    for (int i = 0; i < 16; i++) assert_true(still[i] == 0);
    assert_true(scale == 1 && c.kv_heads == 2);
    model_config_free(&c);
}

/* The text of a Mistral 3 is a Mistral or a Ministral 3, by its model_type; q grows where its rope_parameters
 * say so. */
#define MISTRAL3 "\"architectures\": [\"Mistral3ForConditionalGeneration\"], \"model_type\": \"mistral3\", "
static void the_text_of_mistral3_tells_which_it_is(void **state)
{
    (void)state;
    struct model_config c;
    accept("ministral3", "{" MISTRAL3 "\"text_config\": {\"model_type\": \"ministral3\"}}", &c);
    assert_string_equal(c.architecture, "Ministral3ForCausalLM");
    assert_true(c.q_growth == 0.4 && c.rope[0].attention_factor == 1 && c.rope[0].original_context == 128);
    assert_int_equal(c.window[0], 0);
    model_config_free(&c);
    accept("ministral3", "{" MISTRAL3 "\"text_config\": {\"model_type\": \"mistral\"}}", &c);
    assert_string_equal(c.architecture, "MistralForCausalLM");
    assert_true(c.q_growth == 0);
    model_config_free(&c);
    assert_true(math_growth(0, 128, 4000) == 1 && math_growth(0.5f, 128, 127) == 1);
    assert_true(fabsf(math_growth(0.5f, 128, 300) - (1 + 0.5f * logf(3))) < 1e-6f);
}

/* Latent attention is that of many heads over one, whose key is the latent and the shared key; scores are
 * those of a head's own size, times YaRN's factor squared. */
static void latent_attention_is_of_one_kv_head(void **state)
{
    (void)state;
    struct model_config c;
    struct model_math math;
    uint64_t rows, cols;
    accept("deepseekv3", "{}", &c);
    assert_true(c.kv_heads == 1 && c.head_dim == 96 && c.rope[0].dims == 32 && c.heads == 4);
    assert_int_equal(model_kv_bytes_per_token(&c, 3, KV_F16), 3 * 96 * 2);
    assert_true(model_expected_shape(&c, TENSOR_Q_B, 0, &rows, &cols) && rows == 4 * 64 && cols == 32);
    assert_true(model_expected_shape(&c, TENSOR_K_B, 0, &rows, &cols) && rows == 4 * 64 && cols == 32);
    assert_true(model_expected_shape(&c, TENSOR_V_B, 0, &rows, &cols) && rows == 4 * 32 && cols == 64);
    assert_true(model_expected_shape(&c, TENSOR_O, 0, &rows, &cols) && cols == 4 * 32);
    assert_false(model_expects(&c, TENSOR_Q, 0));
    model_math_build(&c, &math);
    const struct math_part *part = &math.part[arch_of(&c)->kind(&c, 0, UNIT_ATTENTION)];
    const double mscale = 0.1 * log(8) + 1;
    assert_int_equal(part->ops, 6);
    assert_true(part->op[2].kind == MATH_LINEAR_HEADS && part->op[2].head_in == 64 &&
                part->op[2].head_out == 96);
    assert_true(part->op[3].kind == MATH_ATTENTION && part->op[3].latent == 64 &&
                part->op[3].rope_dims == 32);
    assert_true(fabs((double)part->op[3].score_scale - mscale * mscale / 8) < 1e-6);
    assert_true(part->op[4].kind == MATH_LINEAR_HEADS && part->op[4].head_in == 96 &&
                part->op[4].head_out == 32);
    assert_int_equal(part->state, STATE_PAGES);
    model_config_free(&c);
    accept("deepseekv2", "{}", &c);
    assert_true(!c.choice_bias && c.router.score == ROUTER_SOFTMAX && !c.router.normalise);
    assert_true(model_expects(&c, TENSOR_Q, 0) && !model_expects(&c, TENSOR_Q_A, 0));
    model_config_free(&c);
}

static void what_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *patch;
        int code;
        const char *text;
    } cases[] = {
        {"phi3", "{\"partial_rotary_factor\": 0.75}", HELM_E_UNSUPPORTED, "'partial_rotary_factor' is 0.75"},
        {"phi3", "{\"original_max_position_embeddings\": \"DELETE\"}", HELM_E_FORMAT,
         "'original_max_position_embeddings' is missing"},
        {"phi3", "{\"original_max_position_embeddings\": 1}", HELM_E_FORMAT,
         "'original_max_position_embeddings'"},
        {"phi3", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [" ONES "]}}", HELM_E_FORMAT,
         "'long_factor' is missing"},
        {"phi3",
         "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2], \"long_factor\": []}}",
         HELM_E_MISMATCH, "'short_factor' is no list of 16 numbers"},
        {"phi3",
         "{\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [" ONES
         "], \"short_factor\": [0, 1, 1, 1, 1, "
         "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}}",
         HELM_E_LIMIT, "'short_factor' entry 0"},
        {"phi3", "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 10000.0, " TABLES "}}",
         HELM_E_MISMATCH, "contradict each other"},
        {"phi3", "{\"hidden_act\": \"gelu\"}", HELM_E_UNSUPPORTED, "'hidden_act'"},
        {"opt", "{\"activation_function\": \"gelu\"}", HELM_E_UNSUPPORTED, "'activation_function' is 'gelu'"},
        {"opt", "{\"do_layer_norm_before\": false}", HELM_E_UNSUPPORTED, "'do_layer_norm_before' is false"},
        {"opt", "{\"layer_norm_elementwise_affine\": false}", HELM_E_UNSUPPORTED,
         "'layer_norm_elementwise_affine' is false"},
        {"opt", "{\"_remove_final_layer_norm\": true}", HELM_E_UNSUPPORTED,
         "'_remove_final_layer_norm' is true"},
        {"opt", "{\"word_embed_proj_dim\": 32}", HELM_E_UNSUPPORTED, "'word_embed_proj_dim' is 32"},
        {"opt", "{\"ffn_dim\": \"DELETE\"}", HELM_E_FORMAT, "'ffn_dim' is missing"},
        {"opt", "{\"max_position_embeddings\": \"DELETE\"}", HELM_E_FORMAT,
         "'max_position_embeddings' is missing"},
        {"qwen35", "{\"partial_rotary_factor\": 0.5}", HELM_E_MISMATCH,
         "'partial_rotary_factor' is 0.25 here"},
        {"qwen35", "{\"rope_parameters\": {\"rope_theta\": 1e7}, \"partial_rotary_factor\": 0.01}",
         HELM_E_FORMAT, "'partial_rotary_factor' is 0.01"},
        {"qwen35", "{\"linear_conv_kernel_dim\": 3}", HELM_E_UNSUPPORTED, "'linear_conv_kernel_dim' is 3"},
        {"qwen35", "{\"linear_key_head_dim\": 512}", HELM_E_LIMIT, "'linear_key_head_dim' is 512"},
        {"qwen35", "{\"linear_value_head_dim\": 24}", HELM_E_UNSUPPORTED, "multiples of 16"},
        {"qwen35", "{\"linear_num_key_heads\": 3}", HELM_E_FORMAT,
         "'linear_num_value_heads' 4 is not a multiple"},
        {"qwen35", "{\"attention_bias\": true}", HELM_E_UNSUPPORTED, "'attention_bias'"},
        {"qwen35", "{\"attn_output_gate\": false}", HELM_E_UNSUPPORTED, "'attn_output_gate'"},
        {"qwen35",
         "{\"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\", \"mamba\"]}",
         HELM_E_UNSUPPORTED, "entry 3 is 'mamba'"},
        {"qwen35", "{\"layer_types\": [\"full_attention\"]}", HELM_E_MISMATCH, "no list of 4 entries"},
        {"qwen35", "{\"layer_types\": \"DELETE\"}", HELM_E_FORMAT,
         "'full_attention_interval' are both missing"},
        {"qwen35moe", "{\"intermediate_size\": \"DELETE\", \"mlp_only_layers\": [2]}", HELM_E_FORMAT,
         "'intermediate_size' is missing, but layer 2"},
        {"qwen35moe", "{\"shared_expert_intermediate_size\": \"DELETE\"}", HELM_E_FORMAT,
         "'shared_expert_intermediate_size' is missing"},
        {"granite", "{\"logits_scaling\": 0}", HELM_E_LIMIT, "'logits_scaling' is 0"},
        {"granite", "{\"residual_multiplier\": -1}", HELM_E_LIMIT, "'residual_multiplier' is -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        struct helm_err err = {0};
        const int rc = parse(cases[i].name, cases[i].patch, &c, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].text))
            fail_msg("%s %s: code %d, '%s'; expected %d, '%s'", cases[i].name, cases[i].patch, rc, err.text,
                     cases[i].code, cases[i].text);
        assert_null(c.window);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longrope_has_two_tables),
        cmocka_unit_test(other_forms_of_a_longrope),
        cmocka_unit_test(opt_is_read),
        cmocka_unit_test(granite_is_read),
        cmocka_unit_test(hybrids_are_read),
        cmocka_unit_test(families_have_second_tables),
        cmocka_unit_test(latent_attention_is_of_one_kv_head),
        cmocka_unit_test(the_text_of_mistral3_tells_which_it_is),
        cmocka_unit_test(what_is_not_computed_is_refused),
    };
    return cmocka_run_group_tests_name("model/other_archs", tests, NULL, NULL);
}
