/* Unit tests of common/plan/state.c: what layers keep, as numbers and as JSON; where records lie; pages of
 * hybrids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/plan/state.h"
#include "tests/written_plans.h"

/* Six layers: fixed, fixed, pages, fixed, pages, none; 0, 1 and 4 are the GPU's, but for the MLP of 1. */
static struct plan_unit unit[WRITTEN_UNITS(6)];
static const struct plan_state states[] = {{STATE_FIXED, 128}, {STATE_FIXED, 64}, {STATE_PAGES, 0},
                                           {STATE_FIXED, 192}, {STATE_PAGES, 0},  {STATE_NONE, 0}};

static struct plan hybrid(void)
{
    units_of_letters(unit, 6, "gggcccccggcc", 12);
    for (uint32_t l = 0; l < 6; l++) unit[unit_of(l, UNIT_ATTENTION)].state = states[l];
    return (struct plan){.layers = 6,
                         .context_tokens = 512,
                         .step_tokens = 64,
                         .slots = 4,
                         .page_tokens = 32,
                         .page_count = 64,
                         .kv_dtype = "f16",
                         .unit = unit,
                         .has_states = true,
                         .state_snapshots = 9};
}

static void records_lie_one_behind_another(void **state)
{
    (void)state;
    const struct plan plan = hybrid();
    const struct {
        enum plan_processor processor;
        uint32_t layer;
        struct state_record is;
    } records[] = {{PLAN_GPU0, 0, {128, 0, 0}},
                   {PLAN_GPU0, 1, {64, 128, 128}},
                   {PLAN_CPU0, 3, {192, 0, 192}}};
    struct state_record r, *list;
    struct helm_err err = {0};
    uint32_t count;
    assert_true(plan_has_fixed(&plan));
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        assert_true(plan_state_record(&plan, records[i].processor, records[i].layer, &r));
        assert_memory_equal(&r, &records[i].is, sizeof r);
        assert_false(plan_state_record(&plan, records[i].processor == PLAN_GPU0 ? PLAN_CPU0 : PLAN_GPU0,
                                       records[i].layer, &r));
    }
    assert_false(plan_state_record(&plan, PLAN_CPU0, 2, &r));
    const struct state_layout gpu = plan_state_layout(&plan, PLAN_GPU0),
                              cpu = plan_state_layout(&plan, PLAN_CPU0);
    assert_int_equal(gpu.slot_bytes, 192);
    assert_int_equal(cpu.slot_bytes, 192);
    assert_int_equal(gpu.snapshot_bytes, 384);
    assert_int_equal(cpu.snapshot_bytes, 384);
    assert_int_equal(plan_state_records(&plan, PLAN_GPU0, PLAN_GPU0, &list, &count, &err), 0);
    assert_int_equal(count, 2);
    assert_int_equal(state_in_slot(&gpu, &list[1], 3), 3 * 192 + 128);
    assert_int_equal(state_in_snapshot(&gpu, &list[1], 1), 128); /* they are counted from 1 on */
    assert_int_equal(state_in_snapshot(&gpu, &list[1], 3), 2 * 384 + 128);
    free(list);
}

/* Only layers that keep pages have room in them. */
static void pages_are_of_layers_that_keep_them(void **state)
{
    (void)state;
    struct plan plan = hybrid();
    uint32_t kv_layer;
    assert_int_equal(plan_layers_of(&plan, PLAN_CPU0), 1);
    assert_int_equal(plan_layers_of(&plan, PLAN_GPU0), 1);
    assert_int_equal(plan_kv_of(&plan, 2, &kv_layer), PLAN_CPU0);
    assert_int_equal(kv_layer, 0);
    assert_int_equal(plan_kv_of(&plan, 4, &kv_layer), PLAN_GPU0);
    assert_int_equal(kv_layer, 0);
    plan.device[PLAN_GPU0].vram_page_count = 32;
    assert_int_equal(plan_kv_layers(&plan, PLAN_HOST), 2); /* two tiers: all that keep pages */
    assert_int_equal(plan_kv_layer_in_arena(&plan, 4), 1);
    assert_int_equal(plan_kv_of(&plan, 2, &kv_layer), PLAN_CPU0);
    assert_int_equal(kv_layer, 0);
    assert_int_equal(plan_assisted_layers(&plan, NULL, 6),
                     1); /* no layer with a fixed state is attended to */
    plan.has_states = false;
    assert_int_equal(plan_layers_of(&plan, PLAN_GPU0), 3);
    assert_int_equal(plan_kv_layers(&plan, PLAN_HOST), 6);
    assert_false(plan_has_fixed(&plan));
}

static void check_states(const struct plan *plan)
{
    for (uint32_t l = 0; l < 6; l++) {
        const struct plan_state state = plan_state_at(plan, l);
        assert_true(state.kind == states[l].kind && state.bytes == states[l].bytes);
    }
}

static void as_json_and_back(void **state)
{
    (void)state;
    const struct plan plan = hybrid();
    struct plan back, copy;
    struct helm_err err = {0};
    json_t *json = plan_to_json(&plan);
    assert_int_equal(json_array_size(json_object_get(json, "states")), 6);
    if (plan_from_json(json, &back, &err)) fail_msg("%s", err.text);
    check_states(&back);
    assert_int_equal(back.state_snapshots, 9);
    assert_int_equal(plan_copy(&back, &copy, &err), 0);
    check_states(&copy);
    plan_free(&copy);
    plan_free(&back);
    json_decref(json);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *list, *text;
    } cases[] = {
        {"7", "'states' is no array"},
        {"[{\"layers\": [0, 5], \"kind\": \"fast\"}]", "'fast' is no kind of state"},
        {"[{\"layers\": [0, 5], \"kind\": \"fixed\"}]", "bytes"},
        {"[{\"layers\": [0, 5], \"kind\": \"fixed\", \"bytes\": 100}]", "not a multiple of 64"},
        {"[{\"layers\": [0, 5], \"kind\": \"pages\", \"bytes\": 64}]", "bytes"},
        {"[{\"layers\": [0, 3], \"kind\": \"pages\"}]", "ends before layer 4 of 6"},
        {"[{\"layers\": [0, 6], \"kind\": \"pages\"}]", "end below 6"},
        {"[{\"layers\": [1, 5], \"kind\": \"pages\"}]", "do not begin at 0"},
        {"[{\"layers\": [0], \"kind\": \"pages\"}]", "entry 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan plan = {.layers = 6, .unit = units_all(unit, 6, PLAN_HOME_CPU)};
        struct helm_err err = {0};
        json_t *json = json_object();
        json_object_set_new(json, "states", json_loads(cases[i].list, JSON_DECODE_ANY, NULL));
        if (!plan_states_from_json(json, &plan, &err)) fail_msg("%s is taken", cases[i].list);
        if (!strstr(err.text, cases[i].text)) fail_msg("%s: %s", cases[i].list, err.text);
        json_decref(json);
    }
}

/* A GPU that computes the CPU's layers in prompts borrows their records, which keep their places. */
static void a_gpu_borrows_records_in_prompts(void **state)
{
    (void)state;
    struct plan plan = hybrid();
    struct helm_err err = {0};
    struct state_record *list;
    uint32_t count;
    for (uint32_t u = 0; u < 12; u++) unit[u].home[0] = PLAN_HOME_CPU;
    add_letters(&plan, 32, "ccsccccccccc");
    assert_int_equal(plan_state_records(&plan, PLAN_CPU0, PLAN_CPU0, &list, &count, &err), 0);
    assert_int_equal(count, 3);
    assert_int_equal(list[0].phases, 3);
    assert_int_equal(list[1].phases, 1);
    free(list);
    assert_int_equal(plan_state_records(&plan, PLAN_CPU0, PLAN_GPU0, &list, &count, &err), 0);
    assert_int_equal(count, 1);
    assert_true(!state_is_in(&list[0], 0) && state_is_in(&list[0], 1));
    assert_int_equal(list[0].slot_at, 128);
    assert_int_equal(list[0].snapshot_at, 128);
    free(list);
    assert_int_equal(plan_state_records(&plan, PLAN_GPU0, PLAN_GPU0, &list, &count, &err), 0);
    assert_int_equal(count, 0);
    free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_lie_one_behind_another),
        cmocka_unit_test(pages_are_of_layers_that_keep_them),
        cmocka_unit_test(as_json_and_back),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_gpu_borrows_records_in_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
