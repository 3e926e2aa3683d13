/* Unit tests of common/model/sample.c: a model of some layers of another one, of Gemma 4's small kind, whose
 * layers read the cache of others, are of two widths, and take a part each of what the model makes of a
 * token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/model/model.h"
#include "common/model/sample.h"

#define FOLDER "tests/data/golden/gemma4e"

static void a_layer_reads_the_last_cache_of_its_kind(void **state)
{
    (void)state;
    static const uint32_t caches[] = {0, 1, 2, 1, 1, 2};
    struct helm_err err = {0};
    struct model model;
    if (model_read(FOLDER, &model, &err)) fail_msg("%s", err.text);
    for (uint32_t l = 0; l < model.config.layers; l++) {
        assert_int_equal(model_cache_layer(&model.config, l), caches[l]);
        assert_int_equal(model_reads_cache(&model.config, l), caches[l] != l);
        assert_int_equal(model_unit_math(&model, unit_of(l, UNIT_ATTENTION))->state,
                         caches[l] == l ? STATE_PAGES : STATE_NONE);
        assert_true(model_unit_math(&model, unit_of(l, UNIT_ATTENTION))->attends);
        assert_int_equal(model_find(&model, TENSOR_UP, (int32_t)l)->rows, caches[l] == l ? 96 : 192);
        assert_int_equal(!model_find(&model, TENSOR_K, (int32_t)l), caches[l] != l);
    }
    assert_false(model_reads_cache(&model.config, model.config.layers));
    assert_int_equal(model_paged_layers(&model.config), 3);
    model_free(&model);
}

static void a_sample_has_its_layers_kinds(void **state)
{
    (void)state;
    static const uint32_t layer[] = {0, 2, 3, 5, 0, 2, 3, 5}, caches[] = {0, 1, 0, 1, 4, 5, 4, 5};
    const uint32_t count = sizeof layer / sizeof *layer;
    struct helm_err err = {0};
    struct model model;
    if (model_read(FOLDER, &model, &err) || model_sample(&model, layer, count, &err))
        fail_msg("%s", err.text);
    const struct model_config *c = &model.config;
    for (uint32_t l = 0; l < count; l++) {
        assert_int_equal(model_cache_layer(c, l), caches[l]);
        assert_int_equal(model_find(&model, TENSOR_DOWN, (int32_t)l)->cols, caches[l] == l ? 96 : 192);
        assert_int_equal(c->widths[l], caches[l] == l ? 96 : 192);
    }
    /* a tensor with a part for each layer has as many as there are now */
    const struct model_tensor *table = model_find(&model, TENSOR_PER_LAYER_EMBED, -1),
                              *product = model_find(&model, TENSOR_PER_LAYER_PROJ, -1);
    assert_int_equal(table->rows, c->vocab);
    assert_int_equal(table->cols, count * c->per_layer);
    assert_int_equal(table->bytes, c->vocab * count * c->per_layer * 2);
    assert_int_equal(product->rows, count * c->per_layer);
    assert_int_equal(product->bytes, count * c->per_layer * c->hidden * 2);
    assert_int_equal(model.math.inputs.ops, 2);
    model_free(&model);
}

static void values_keep_tokens_different(void **state)
{
    (void)state;
    const float norm = model_sample_value(TENSOR_ATTN_NORM, 1),
                low = model_sample_value(TENSOR_ROUTER, 0x80000000u),
                high = model_sample_value(TENSOR_ROUTER, 0x7fffffffu);
    assert_true(norm > 0 && norm < 0.1f);
    assert_true(model_sample_value(TENSOR_MLP_NORM, 2) == norm); /* whatever is random */
    assert_true(model_sample_value(TENSOR_LAYER_SCALE, 1) == 1);
    assert_true(model_sample_value(TENSOR_DELTA_DECAY, 1) < 0); /* states do not grow */
    assert_true(low < 0 && high > 0 && high < norm);
    assert_true(model_sample_value(TENSOR_ROUTER, 12345) != model_sample_value(TENSOR_ROUTER, 54321));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_reads_the_last_cache_of_its_kind),
        cmocka_unit_test(a_sample_has_its_layers_kinds),
        cmocka_unit_test(values_keep_tokens_different),
    };
    return cmocka_run_group_tests_name("common/model/sample", tests, NULL, NULL);
}
