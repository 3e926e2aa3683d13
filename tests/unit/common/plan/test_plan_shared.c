/* Unit tests of plans with dense MLPs that two processors compute (common/plan/share.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/json.h"
#include "common/plan/state.h"
#include "common/plan/placement.h"
#include "common/plan/share.h"
#include "common/plan/workspace.h"
#include "tests/written_plans.h"

static void refuses(const json_t *json, int code, const char *text)
{
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(plan_from_json(json, &plan, &err), code);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

/* Members of the JSON form, and what is no such plan. */
static void mlps_are_shared_at_a_row(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(3)];
    struct plan plan = {.layers = 3,
                        .context_tokens = 64,
                        .step_tokens = 32,
                        .slots = 1,
                        .page_tokens = 32,
                        .kv_dtype = "f16",
                        .unit = units_of_letters(unit, 3, "ghgggh", 6),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0,
                        .device[PLAN_GPU0].ring_bytes = 64,
                        .shared_rows = 256};
    struct plan again;
    struct helm_err err = {0};
    add_letters(&plan, 17, "gsgggs");
    assert_int_equal(plan_shared_units(&plan), 2);
    assert_int_equal(plan_shared_index(&plan, unit_of(2, UNIT_MLP)), 1);
    assert_true(plan_uses(&plan, PLAN_CPU0) && plan_most_tokens(&plan, PLAN_CPU0) == 16 &&
                plan_most_tokens(&plan, PLAN_GPU0) == 32);
    assert_int_equal(plan_lanes_of(&plan, ARENA_LANE_EXPERTS), 2);
    json_t *json = plan_to_json(&plan);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.shared_rows, 256);
    assert_int_equal(again.unit[1].home[0], PLAN_HOME_SHARED);
    assert_int_equal(again.unit[1].home[1], PLAN_HOME_STREAM);
    plan_free(&again);
    json_object_del(json, "shared_rows");
    refuses(json, HELM_E_FORMAT, "2 layers have 'shared' as home, 'shared_rows' is 0");
    json_decref(json);
    unit[1].home[1] = PLAN_HOME_CPU;
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "the MLP of layer 0 is at home on 'shared' in decode and on 'cpu'"));
    unit[1].home[1] = PLAN_HOME_STREAM;
    unit[2].home[0] = PLAN_HOME_SHARED;
    unit[2].home[1] = PLAN_HOME_STREAM;
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "layer 1 has 'shared' as home of its attention"));
    unit[2].home[0] = unit[2].home[1] = PLAN_HOME_GPU;
    plan_set_unit_format(&plan, 1, FORMAT_BF16_PACKED);
    assert_int_equal(plan_check(&plan, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "lies as 'bf16-packed'"));
}

static const struct placement *at(const struct plan *plan, enum tensor_role role, enum plan_memory memory)
{
    const struct placements in = placements_in(plan, memory);
    return placement_find(&in, role, 0);
}

/* Each part lies in one memory; a chunk's rows of both have the place that a whole MLP's have. */
static void each_part_lies_in_one_memory(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct plan plan = {.layers = 4,
                        .unit = units_of_letters(unit, 4, "gh", 2),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0,
                        .shared_rows = 320};
    const struct model *of;
    struct model model, cut;
    struct helm_err err = {0};
    if (model_read("tests/data/golden/qwen3", &model, &err)) fail_msg("%s", err.text);
    if (plan_share_copy(&plan, &model, &cut, &of, &err)) fail_msg("%s", err.text);
    assert_ptr_equal(of, &cut);
    if (placement_make(of, NULL, &plan, &err)) fail_msg("%s", err.text);
    assert_true(at(&plan, TENSOR_OWN_UP, PLAN_VRAM0) && !at(&plan, TENSOR_OWN_UP, PLAN_HOST));
    assert_true(at(&plan, TENSOR_UP, PLAN_HOST) && !at(&plan, TENSOR_UP, PLAN_VRAM0));
    assert_int_equal(at(&plan, TENSOR_UP, PLAN_HOST)->bytes + at(&plan, TENSOR_OWN_UP, PLAN_VRAM0)->bytes,
                     model_find(&model, TENSOR_UP, 0)->bytes);
    if (placement_check(of, &plan, &err)) fail_msg("%s", err.text);
    assert_int_equal(placement_check(&model, &plan, &err),
                     HELM_E_MISMATCH); /* the whole model's is another */
    const struct gpu_workspace_case size = {.config = &cut.config,
                                            .step_tokens = 1024,
                                            .slots = 2,
                                            .line = 4,
                                            .chunk_bytes = 2,
                                            .query_bytes = 2,
                                            .layers = true};
    struct gpu_workspace shared;
    gpu_workspace_place(&size, &shared);
    const uint64_t rest = (uint64_t)shared.tokens * (704 - 320) * 2, act = shared.area[GPU_AREA_CHUNK_ACT].at;
    assert_int_equal(shared.area[GPU_AREA_CHUNK_SHARED].at, act + rest);
    assert_true(act + rest + shared.area[GPU_AREA_CHUNK_SHARED].bytes <=
                shared.area[GPU_AREA_CHUNK_GATES].at);
    plan_drop_placements(&plan);
    model_share_free(&cut);
    for (uint32_t u = 0; u < unit_count(4); u++) unit[u].home[0] = PLAN_HOME_GPU;
    if (plan_share_copy(&plan, &model, &cut, &of, &err)) fail_msg("%s", err.text);
    assert_ptr_equal(of, &model); /* nothing is shared */
    model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mlps_are_shared_at_a_row),
                                       cmocka_unit_test(each_part_lies_in_one_memory)};
    return cmocka_run_group_tests_name("common/plan/share", tests, NULL, NULL);
}
