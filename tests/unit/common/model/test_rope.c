/* RoPE frequencies against tests/data/rope/rope.json, which was computed without HELM (make_rope.py): exact
 * bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"
#include "common/model/model.h"

static void build_config(const json_t *item, bool older_keys, struct model_config *config)
{
    struct helm_err err = {0};
    json_t *root =
        json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:O, s:O}", "architectures", "LlamaForCausalLM",
                  "num_hidden_layers", 1, "hidden_size", 64, "intermediate_size", 8, "vocab_size", 8,
                  "num_attention_heads", 2, "head_dim", json_object_get(item, "head_dim"),
                  "max_position_embeddings", json_object_get(item, "max_position_embeddings"));
    json_t *rope = json_copy(json_object_get(item, "rope_parameters"));
    if (older_keys) {
        json_object_set(root, "rope_theta", json_object_get(rope, "rope_theta"));
        json_object_del(rope, "rope_theta");
        json_object_set(rope, "type", json_object_get(rope, "rope_type"));
        json_object_del(rope, "rope_type");
        json_object_set_new(root, "rope_scaling", rope);
    } else {
        json_object_set_new(root, "rope_parameters", rope);
    }
    char *text = json_dumps(root, 0);
    if (model_config_parse("config", text, strlen(text), config, &err)) fail_msg("%s", err.text);
    free(text);
    json_decref(root);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void check_case(const json_t *item, bool older_keys)
{
    struct model_config config;
    build_config(item, older_keys, &config);
    const json_t *expected = json_object_get(item, "inv_freq");
    float *inv_freq = calloc(config.head_dim / 2, sizeof *inv_freq), scale = 0;
    assert_int_equal(json_array_size(expected), config.head_dim / 2);
    rope_inv_freq(&config, 0, 0, inv_freq, &scale);
    for (uint32_t i = 0; i < config.head_dim / 2; i++)
        assert_int_equal(bits_of(inv_freq[i]), json_integer_value(json_array_get(expected, i)));
    assert_int_equal(bits_of(scale), json_integer_value(json_object_get(item, "scale")));
    free(inv_freq);
    model_config_free(&config);
}

static void test_all_kinds_both_key_generations(void **state)
{
    (void)state;
    struct helm_err err = {0};
    json_t *cases;
    size_t kinds[4] = {0};
    if (json_read_file("tests/data/rope/rope.json", 1 << 20, &cases, &err)) fail_msg("%s", err.text);
    assert_true(json_array_size(cases) > 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        struct model_config config;
        check_case(json_array_get(cases, i), false);
        check_case(json_array_get(cases, i), true);
        build_config(json_array_get(cases, i), false, &config);
        kinds[config.rope[0].kind]++;
        model_config_free(&config);
    }
    for (int kind = 0; kind < 4; kind++) assert_true(kinds[kind] >= 2);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_kinds_both_key_generations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
