/* Unit tests of common/plan/workspace.c: the CPU's activations of a model whose per-layer embeddings are
 * wider than its MLPs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/model/model.h"
#include "common/plan/workspace.h"

#define TOKENS 32

/* The gate of such an embedding stands where an MLP's does. */
static void a_per_layer_gate_has_room(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct cpu_activations a;
    struct model model;
    if (model_read("tests/data/golden/gemma4e", &model, &err)) fail_msg("%s", err.text);
    for (uint32_t per_layer = 32; per_layer <= 4096; per_layer *= 4) {
        model.config.per_layer = per_layer;
        const uint32_t widest = per_layer > model.config.intermediate ? per_layer : model.config.intermediate;
        const struct cpu_activations_case size = {.config = &model.config,
                                                  .unit_tokens = TOKENS,
                                                  .end_tokens = TOKENS,
                                                  .sampled_rows = 1};
        cpu_activations_place(&size, &a);
        assert_true(a.at[BUFFER_GATE + 1] - a.at[BUFFER_GATE] >= (uint64_t)TOKENS * widest);
        assert_true(a.width[BUFFER_GATE] >= widest);
        assert_true(a.joined >= widest);
        assert_int_equal(a.width[BUFFER_PER_LAYER], model.config.layers * per_layer);
    }
    model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_per_layer_gate_has_room)};
    return cmocka_run_group_tests_name("common/plan/workspace", tests, NULL, NULL);
}
