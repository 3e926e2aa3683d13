/* Unit tests of common/plan/plan.c: a plan's layer of drafts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/plan/plan.h"

#define LAYERS 5

/* The last layer makes drafts; two devices' homes for the answer's. */
static void make(struct plan *plan)
{
    enum plan_home home[2 * (LAYERS - 1)];
    struct helm_err err;
    *plan = (struct plan){.layers = LAYERS,
                          .draft_layers = 1,
                          .context_tokens = 64,
                          .step_tokens = 64,
                          .slots = 1,
                          .page_tokens = 32,
                          .page_count = 2,
                          .kv_dtype = "f16"};
    plan->head = plan_home_processor(PLAN_HOME_GPU);
    assert_int_equal(plan_make_units(plan, PLAN_HOME_CPU, &err), 0);
    for (uint32_t u = 0; u < unit_count(LAYERS - 1); u++) home[u] = u < 2 ? PLAN_HOME_CPU : PLAN_HOME_GPU;
    plan_set_homes(plan, 0, home);
}

static void the_layer_stands_with_the_head(void **state)
{
    (void)state;
    struct plan plan;
    struct plan_span *spans;
    uint32_t count;
    struct helm_err err = {0};
    make(&plan);
    assert_int_equal(plan_answer_units(&plan), unit_count(LAYERS - 1));
    assert_int_equal(plan.unit[unit_of(LAYERS - 1, UNIT_ATTENTION)].home[0], PLAN_HOME_GPU);
    assert_int_equal(plan.unit[unit_of(LAYERS - 1, UNIT_MLP)].home[0], PLAN_HOME_GPU);
    if (plan_check(&plan, &err)) fail_msg("%s", err.text);
    /* no part of a token's way */
    if (plan_spans(&plan, 0, &spans, &count, &err)) fail_msg("%s", err.text);
    assert_int_equal(count, 2);
    assert_true(spans[1].head);
    assert_int_equal(spans[1].first_unit + spans[1].unit_count, unit_count(LAYERS - 1));
    free(spans);
    plan_free(&plan);
}

static void the_layer_survives_the_round_trip(void **state)
{
    (void)state;
    struct plan plan, again;
    struct helm_err err = {0};
    make(&plan);
    json_t *json = plan_to_json(&plan);
    assert_non_null(json);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.draft_layers, 1);
    plan_free(&again);
    json_object_set_new(json, "draft_layers", json_integer(2));
    assert_int_equal(plan_from_json(json, &again, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "'draft_layers' is 2"));
    json_decref(json);
    plan_free(&plan);
}

static void other_places_are_refused(void **state)
{
    (void)state;
    struct plan plan;
    struct helm_err err = {0};
    make(&plan);
    plan.head = PLAN_CPU0;
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "layer 4 makes drafts: its home is 'gpu', but the head's is 'cpu'"));
    plan_free(&plan);
    make(&plan);
    plan.draft_layers = LAYERS;
    assert_int_equal(plan_check(&plan, &err), HELM_E_LIMIT);
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_layer_stands_with_the_head),
                                       cmocka_unit_test(the_layer_survives_the_round_trip),
                                       cmocka_unit_test(other_places_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
