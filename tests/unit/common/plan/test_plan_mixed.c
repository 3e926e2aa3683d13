/* Unit tests of plans with experts in both memories. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/json.h"
#include "common/plan/placement.h"
#include "common/plan/stages.h"
#include "tests/written_plans.h"

static void refuses(json_t *json, int code, const char *text)
{
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(plan_from_json(json, &plan, &err), code);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

/* Experts in both memories: numbers, the first ones in VRAM, and what is no such plan. */
static void experts_lie_in_both_memories(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(3)];
    uint32_t first[] = {3, 0, 7, 6};
    struct plan plan = {.layers = 3,
                        .context_tokens = 64,
                        .step_tokens = 32,
                        .slots = 1,
                        .page_tokens = 32,
                        .kv_dtype = "f16",
                        .unit = units_of_letters(unit, 3, "gmgggm", 6),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0,
                        .device[PLAN_GPU0].experts = {.slots = 2,
                                                      .direct_permille = 250,
                                                      .moves = 9,
                                                      .move_cost = 70,
                                                      .hit_permille = 400,
                                                      .first = first}};
    struct plan again, copy;
    struct helm_err err = {0};
    struct plan_stage stage;
    unit[1].bytes[0] = 900;
    unit[1].token_bytes[0] = 60;
    assert_int_equal(plan_mixed_units(&plan), 2);
    assert_int_equal(plan_mixed_index(&plan, unit_of(2, UNIT_MLP)), 1);
    assert_true(plan_uses(&plan, PLAN_CPU0) && plan_most_tokens(&plan, PLAN_CPU0) == 32 &&
                plan_lanes(&plan) == 2);
    json_t *json = plan_to_json(&plan);
    assert_int_equal(plan_from_json(json, &again, &err), 0);
    assert_int_equal(plan_copy(&again, &copy, &err), 0);
    plan_free(&again);
    assert_memory_equal(copy.device[PLAN_GPU0].experts.first, first, sizeof first);
    assert_int_equal(copy.device[PLAN_GPU0].experts.slots, 2);
    assert_int_equal(plan_stage_count(&copy, 0), 5);
    assert_int_equal(plan_stage_at(&copy, 0, 1, &stage), 2);
    assert_int_equal(stage.token_bytes, 60);
    assert_int_equal(plan_stage_at(&copy, 0, 2, &stage), 4);
    assert_int_equal(stage.token_bytes, 0);
    assert_int_equal(copy.device[PLAN_GPU0].experts.direct_permille, 250);
    assert_int_equal(copy.device[PLAN_GPU0].experts.moves, 9);
    assert_int_equal(copy.device[PLAN_GPU0].experts.move_cost, 70);
    assert_true(plan_hit_rate(&copy, 8) == 0.4);
    copy.device[PLAN_GPU0].experts.hit_permille = 0;
    assert_true(plan_hit_rate(&copy, 8) == 0.25);
    plan_free(&copy);
    json_t *mixed = json_object_get(json, "mixed"), *of = json_array_get(json_object_get(mixed, "first"), 1);
    json_array_set_new(of, 1, json_integer(7));
    refuses(json, HELM_E_FORMAT, "7 is there twice");
    json_array_remove(of, 1);
    refuses(json, HELM_E_FORMAT, "list 1 has not one expert for each of 2 slots");
    json_object_del(mixed, "first");
    json_object_set_new(json, "invariant", json_true());
    refuses(json, HELM_E_FORMAT, "'invariant' is true, but 2 layers have 'mixed' as home");
    json_object_del(json, "invariant");
    json_object_del(json, "mixed");
    refuses(json, HELM_E_FORMAT, "2 layers have 'mixed' as home, but there are 0 slots");
    json_decref(json);
    unit[2].home[0] = unit[3].home[0] = PLAN_HOME_MIXED;
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "layer 1 has 'mixed' as home of all"));
}

static bool lies(const struct plan *plan, enum tensor_role role, enum plan_memory memory)
{
    const struct placements in = placements_in(plan, memory);
    return placement_find(&in, role, 0) != NULL;
}

/* Weights that every token reads beside them lie in VRAM as well. */
static void shared_experts_lie_in_vram_too(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 64, "
        "\"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 96, \"num_experts\": 4, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
        "\"num_experts_per_tok\": 2, \"vocab_size\": 64, \"dtype\": \"bfloat16\"}";
    struct plan_unit unit[WRITTEN_UNITS(1)];
    struct plan plan = {.layers = 1,
                        .unit = units_of_letters(unit, 1, "gm", 2),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0,
                        .device[PLAN_GPU0].experts = {.slots = 1}};
    struct model_config config;
    struct model model;
    struct helm_err err = {0};
    if (model_config_parse("config", text, strlen(text), &config, &err)) fail_msg("%s", err.text);
    if (model_from_config(&config, &model, &err)) fail_msg("%s", err.text);
    if (placement_make(&model, NULL, &plan, &err)) fail_msg("%s", err.text);
    for (int m = 0; m <= PLAN_VRAM0; m++)
        assert_true(lies(&plan, TENSOR_SHARED_UP, (enum plan_memory)m) &&
                    lies(&plan, TENSOR_SHARED_DOWN, (enum plan_memory)m));
    assert_true(lies(&plan, TENSOR_UP_EXPERTS, PLAN_HOST) && !lies(&plan, TENSOR_UP_EXPERTS, PLAN_VRAM0));
    assert_true(!lies(&plan, TENSOR_Q, PLAN_HOST) && lies(&plan, TENSOR_Q, PLAN_VRAM0));
    if (placement_check(&model, &plan, &err)) fail_msg("%s", err.text);
    unit[1].home[0] = PLAN_HOME_CPU; /* and else in one */
    assert_int_equal(placement_check(&model, &plan, &err), HELM_E_MISMATCH);
    plan_drop_placements(&plan);
    model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_lie_in_both_memories),
        cmocka_unit_test(shared_experts_lie_in_vram_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
