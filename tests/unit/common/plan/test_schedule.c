/* Unit tests of common/plan/schedule.c, and of a plan's `invariant` as JSON and as it is checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/plan/schedule.h"
#include "common/shared/arena_layout.h"

static const char text[] =
    "{\"layers\":2,\"context_tokens\":256,\"step_tokens\":64,\"slots\":4,\"page_tokens\":8,\"page_count\":"
    "128,"
    "\"kv_dtype\":\"f16\",\"ring_bytes\":1024,\"embed\":\"cpu\",\"head\":\"gpu\",\"prefill_from_tokens\":20,"
    "\"stages\":{\"decode\":[{\"layers\":[0,0],\"home\":\"cpu\",\"bytes\":1},"
    "{\"layers\":[1,1],\"home\":\"gpu\",\"bytes\":1}],"
    "\"prefill\":[{\"layers\":[0,0],\"home\":\"stream\",\"bytes\":1},"
    "{\"layers\":[1,1],\"home\":\"gpu\",\"bytes\":1}]},"
    "\"host\":{\"limit\":null,\"lines\":[],\"total\":0},\"vram\":{\"limit\":null,\"lines\":[],\"total\":0}}";

/* With a member set to a JSON value; NULL: none. */
static int read_with(const char *member, const char *value, struct plan *plan, struct helm_err *err)
{
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    if (member) json_object_set_new(json, member, json_loads(value, JSON_DECODE_ANY, NULL));
    int rc = plan_from_json(json, plan, err);
    json_decref(json);
    return rc;
}

static void invariant_is_read_written_and_checked(void **state)
{
    (void)state;
    struct plan plan, again;
    struct helm_err err = {0};
    assert_int_equal(read_with(NULL, NULL, &plan, &err), 0);
    assert_false(plan.invariant);
    json_t *json = plan_to_json(&plan);
    assert_null(json_object_get(json, "invariant"));
    json_decref(json);
    plan_free(&plan);
    assert_int_equal(read_with("invariant", "true", &plan, &err), 0);
    assert_true(plan.invariant);
    json = plan_to_json(&plan);
    assert_int_equal(plan_from_json(json, &again, &err), 0);
    assert_true(again.invariant);
    json_decref(json);
    plan_free(&again);
    /* with two tiers the CPU attends to nothing */
    plan.device[PLAN_GPU0].vram_page_count = 128;
    plan.kv_direct_permille = 999;
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "'kv_direct_permille' is 999"));
    plan.kv_direct_permille = 1000;
    assert_int_equal(plan_check(&plan, &err), 0);
    plan_free(&plan);
    assert_int_equal(read_with("invariant", "1", &plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "'invariant'"));
}

static void expect(const struct plan *plan, uint32_t flags, uint32_t tokens, uint32_t list, bool chunk)
{
    struct plan_schedule schedule;
    struct helm_err err = {0};
    if (plan_schedule_of(plan, flags, tokens, &schedule, &err)) fail_msg("%s", err.text);
    assert_int_equal(schedule.phase, plan_list_phase(plan, list));
    assert_int_equal(schedule.is_short, list >= plan_phase_count(plan));
    assert_int_equal(schedule.chunk, chunk);
}

static void refused(const struct plan *plan, uint32_t flags, uint32_t tokens, const char *why)
{
    struct plan_schedule schedule;
    struct helm_err err = {0};
    assert_int_equal(plan_schedule_of(plan, flags, tokens, &schedule, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, why));
}

static void tokens_say_what_computes_a_step(void **state)
{
    (void)state;
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(read_with(NULL, NULL, &plan, &err), 0);
    expect(&plan, 0, 1, 0, false);
    expect(&plan, STEP_EXACT, 16, 0, false);
    expect(&plan, 0, 17, 0, true);
    expect(&plan, 0, 20, 1, true);
    refused(&plan, plan_prompt_flags(0), 5, "not invariant");
    refused(&plan, 1u << STEP_LIST_SHIFT, 30, "not invariant");
    plan_free(&plan);
}

/* A chunk of one token is a chunk, by the list of its whole prompt; tokens after prompts never are. */
static void flags_say_it_of_an_invariant_plan(void **state)
{
    (void)state;
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(read_with("invariant", "true", &plan, &err), 0);
    expect(&plan, 0, 1, 0, false);
    expect(&plan, STEP_EXACT, 16, 0, false);
    refused(&plan, 0, 17, "after prompts");
    expect(&plan, plan_prompt_flags(0), 1, 0, true);
    expect(&plan, plan_prompt_flags(0) | STEP_EXACT, 19, 0, true);
    refused(&plan, plan_prompt_flags(0), 20, "of prompts, more than the 19 of list 0");
    expect(&plan, plan_prompt_flags(1), 1, 1, true);
    expect(&plan, plan_prompt_flags(1), 64, 1, true);
    refused(&plan, plan_prompt_flags(1), 65, "more than the 64 of list 1");
    expect(&plan, plan_prompt_flags(2), 5, 2, true);
    expect(&plan, plan_prompt_flags(3), 64, 3, true);
    refused(&plan, plan_prompt_flags(2), 20, "more than the 19 of list 2");
    refused(&plan, plan_prompt_flags(4), 5, "list 4 of 4");
    refused(&plan, 1u << STEP_LIST_SHIFT, 1, "list 1");
    assert_int_equal(plan_prompt_list(&plan, 19), 2); /* short prompts */
    assert_int_equal(plan_prompt_list(&plan, 20), 3);
    assert_int_equal(plan_prompt_list(&plan, GPU_STEADY_TOKENS), 3);
    assert_int_equal(plan_prompt_list(&plan, GPU_STEADY_TOKENS + 1), 1);
    assert_int_equal(plan_prompt_list(&plan, 100000), 1);
    plan.step_tokens = 512; /* a step of short prompts is no longer than one */
    expect(&plan, plan_prompt_flags(1), 512, 1, true);
    expect(&plan, plan_prompt_flags(3), GPU_STEADY_TOKENS, 3, true);
    refused(&plan, plan_prompt_flags(3), GPU_STEADY_TOKENS + 1, "more than the 128 of list 3");
    plan.step_tokens = 18; /* no step is so long */
    assert_int_equal(plan_prompt_list(&plan, 100), 2);
    assert_int_equal(plan_prompt_list(&plan, 1000), 0);
    assert_int_equal(plan_list_tokens(&plan, 0), 18);
    assert_int_equal(plan_decode_tokens(&plan), 16);
    plan.prefill_from[0] = 9;
    assert_int_equal(plan_decode_tokens(&plan), 8);
    plan_free(&plan);
}

/* A CPU's chunks give a token the same bits whatever their size: one kind of prompts, whose pages all prompts
 * find. */
static void prompts_on_a_cpu_are_of_one_kind(void **state)
{
    (void)state;
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(read_with("invariant", "true", &plan, &err), 0);
    plan.prefill_count = 0;
    for (uint32_t u = 0; u < unit_count(plan.layers); u++) plan.unit[u].home[0] = PLAN_HOME_CPU;
    assert_int_equal(plan_list_count(&plan), 1);
    assert_int_equal(plan_prompt_list(&plan, 5), 0);
    refused(&plan, plan_prompt_flags(1), 5, "list 1 of 1");
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invariant_is_read_written_and_checked),
        cmocka_unit_test(tokens_say_what_computes_a_step),
        cmocka_unit_test(flags_say_it_of_an_invariant_plan),
        cmocka_unit_test(prompts_on_a_cpu_are_of_one_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
