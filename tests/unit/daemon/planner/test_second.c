/* Unit tests of daemon/planner/second.c: plans for machines with two devices that exist only here. */
#include <math.h>
#include <stdio.h>

#include "tests/unit/daemon/planner/plan_case.h"

static const struct made_up_rates slower = {105, 80, 360, 25, 24, 9, 40};

struct pair {
    struct bench b;
    struct profile other;
    struct planner_second note;
};

static void pair_open(struct pair *p, const struct made_up_shape *shape, uint64_t vram, uint64_t second)
{
    bench_open(&p->b, shape, 100 * GIB, vram);
    p->b.r.machine.second = p->b.r.machine.device;
    p->b.r.machine.second.limit = second;
    p->b.r.second = &p->note;
    p->b.r.wish.ctx = 4096;
}

/* As make(), and the second device's ledger adds up. */
static void make_pair(struct pair *p, struct plan *plan)
{
    const struct ledger *ledger = &plan->memory[PLAN_VRAM1];
    uint64_t sum = 0;
    make(&p->b, plan);
    for (uint32_t i = 0; i < ledger->line_count; i++) sum += ledger->line[i].bytes;
    assert_true(sum == ledger->total && sum <= ledger->limit);
    if (plan_uses(plan, PLAN_GPU1)) assert_true(ledger->limit == p->b.r.machine.second.limit);
    print_message("%s\n", p->note.text);
}

static uint32_t count_at(const struct plan *plan, enum plan_home home)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) count += plan->unit[u].home[0] == home;
    return count;
}

static double seconds_alone(struct pair *p, uint64_t vram)
{
    const struct ledger_machine machine = p->b.r.machine;
    struct plan plan;
    p->b.r.machine.device.limit = vram;
    p->b.r.machine.second = (struct ledger_device){0};
    make(&p->b, &plan);
    const double seconds = seconds_of(&p->b.r, &plan);
    assert_false(plan_uses(&plan, PLAN_GPU1));
    assert_string_equal(p->note.text, "");
    plan_free(&plan);
    p->b.r.machine = machine;
    return seconds;
}

/* 15.3 GiB of weights: on 10 GiB alone most of them cross the link or are the CPU's. */
static void what_fits_in_two_is_all_resident(void **state)
{
    (void)state;
    struct pair p;
    struct plan plan;
    pair_open(&p, &shape_8b, 10 * GIB, 10 * GIB);
    make_pair(&p, &plan);
    const uint32_t first = count_at(&plan, PLAN_HOME_GPU), second = count_at(&plan, PLAN_HOME_GPU1);
    assert_int_equal(first + second, unit_count(plan.layers));
    assert_true(plan.head == PLAN_GPU1 && first >= 28 && second >= 28); /* alike */
    for (uint32_t u = 0; u < first; u++) assert_int_equal(plan.unit[u].home[0], PLAN_HOME_GPU);
    assert_int_equal(plan_layers_of(&plan, PLAN_GPU0), first / UNIT_PARTS);
    assert_int_equal(plan_layers_of(&plan, PLAN_GPU1), second / UNIT_PARTS);
    const double two = seconds_of(&p.b.r, &plan), one = seconds_alone(&p, 10 * GIB),
                 twice = seconds_alone(&p, 20 * GIB);
    print_message("8B: one device of 10 GiB %.2f, two %.2f, one of 20 GiB %.2f token/s\n", 1 / one, 1 / two,
                  1 / twice);
    assert_true(two < one / 1.9 && two < twice * 1.05 && two > twice);
    plan_free(&plan);
    bench_close(&p.b);
}

static void devices_of_different_sizes_are_filled_by_size(void **state)
{
    (void)state;
    struct pair p;
    struct plan plan;
    pair_open(&p, &shape_14b, 24 * GIB, 8 * GIB);
    make_pair(&p, &plan);
    const uint32_t first = count_at(&plan, PLAN_HOME_GPU), second = count_at(&plan, PLAN_HOME_GPU1);
    assert_int_equal(first + second, unit_count(plan.layers));
    assert_true(first > 2 * second && second > 0);
    plan_free(&plan);
    /* the other way round */
    p.b.r.machine.device.limit = 8 * GIB;
    p.b.r.machine.second.limit = 24 * GIB;
    make_pair(&p, &plan);
    assert_int_equal(count_at(&plan, PLAN_HOME_GPU) + count_at(&plan, PLAN_HOME_GPU1),
                     unit_count(plan.layers));
    assert_true(count_at(&plan, PLAN_HOME_GPU1) > 2 * count_at(&plan, PLAN_HOME_GPU));
    plan_free(&plan);
    bench_close(&p.b);
}

/* Where two devices have not room for all either, the second is full, and the first does the rest as ever. */
static void what_does_not_fit_in_two_is_the_first_devices_and_the_cpus(void **state)
{
    (void)state;
    struct pair p;
    struct plan plan;
    pair_open(&p, &shape_32b, 16 * GIB, 16 * GIB);
    make_pair(&p, &plan);
    const uint32_t second = count_at(&plan, PLAN_HOME_GPU1);
    assert_true(second > 0 && count_at(&plan, PLAN_HOME_GPU) > 0);
    assert_true(count_at(&plan, PLAN_HOME_STREAM) + count_at(&plan, PLAN_HOME_CPU) > 0);
    for (uint32_t u = unit_count(plan.layers) - second; u < unit_count(plan.layers); u++)
        for (uint32_t ph = 0; ph < plan_phase_count(&plan); ph++)
            assert_int_equal(plan.unit[u].home[ph], PLAN_HOME_GPU1);
    const struct ledger *ledger = &plan.memory[PLAN_VRAM1];
    assert_true(ledger->total > ledger->limit - 2 * GIB); /* no layer more */
    assert_true(seconds_of(&p.b.r, &plan) < seconds_alone(&p, 16 * GIB) / 1.3);
    plan_free(&plan);
    bench_close(&p.b);
}

static void a_second_device_that_does_not_pay_is_left_out(void **state)
{
    (void)state;
    struct pair p;
    struct plan plan;
    pair_open(&p, &shape_8b, 24 * GIB, 24 * GIB);
    make_pair(&p, &plan);
    assert_false(plan_uses(&plan, PLAN_GPU1));
    assert_string_equal(p.note.text, "left out: all layers fit in the first device");
    plan_free(&plan);
    p.b.r.machine.second.limit = 600 * MIB; /* hardly more than its context */
    p.b.r.machine.device.limit = 8 * GIB;
    make_pair(&p, &plan);
    assert_false(plan_uses(&plan, PLAN_GPU1));
    assert_non_null(strstr(p.note.text, "left out: "));
    plan_free(&plan);
    bench_close(&p.b);
}

/* A slow second device is given as little as is needed. */
static void a_slow_second_device_is_given_the_rest(void **state)
{
    (void)state;
    struct pair p;
    struct plan alike, uneven;
    pair_open(&p, &shape_8b, 12 * GIB, 12 * GIB);
    make_pair(&p, &alike);
    p.other = made_up_profile(&slower);
    p.b.profile.second = &p.other;
    make_pair(&p, &uneven);
    assert_int_equal(count_at(&uneven, PLAN_HOME_GPU) + count_at(&uneven, PLAN_HOME_GPU1),
                     unit_count(uneven.layers));
    assert_true(count_at(&uneven, PLAN_HOME_GPU1) < count_at(&alike, PLAN_HOME_GPU1));
    assert_true(seconds_of(&p.b.r, &uneven) < seconds_of(&p.b.r, &alike)); /* at the slow one's prices */
    plan_free(&alike);
    plan_free(&uneven);
    bench_close(&p.b);
}

static void a_plan_may_need_both(void **state)
{
    (void)state;
    struct pair p;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    pair_open(&p, &shape_8b, 12 * GIB, 12 * GIB);
    p.b.r.strategy = SEARCH_ALL_GPU;
    make_pair(&p, &plan);
    assert_true(plan_uses(&plan, PLAN_GPU0) && plan_uses(&plan, PLAN_GPU1));
    /* as does one from a file */
    p.b.r.machine.second = (struct ledger_device){0};
    assert_int_equal(planner_take(&p.b.r, &plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "the plan needs a second GPU"));
    plan_free(&plan);
    assert_int_equal(planner_make(&p.b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    bench_close(&p.b);
}

static double first_token(struct pair *p, const struct plan *plan, uint32_t prompt)
{
    struct planner_prediction seen;
    struct helm_err err = {0};
    if (planner_predict(&p->b.r, plan, 1, 128, prompt, &seen, &err)) fail_msg("%s", err.text);
    return seen.ttft.seconds;
}

/* Both devices compute, each its chunk: of eight chunks the first and the last are alone on one. */
static void chunks_of_a_long_prompt_overlap(void **state)
{
    (void)state;
    struct pair p;
    struct plan two, one;
    pair_open(&p, &shape_8b, 12 * GIB, 12 * GIB);
    make_pair(&p, &two);
    p.b.r.machine.device.limit = 24 * GIB;
    p.b.r.machine.second = (struct ledger_device){0};
    make_pair(&p, &one);
    assert_int_equal(two.step_tokens, 512);
    assert_int_equal(one.step_tokens, 512);
    const double brief = first_token(&p, &two, 512) / first_token(&p, &one, 512),
                 whole = first_token(&p, &two, 4096) / first_token(&p, &one, 4096);
    print_message("first token, two devices to one: %.3f of one chunk, %.3f of eight\n", brief, whole);
    assert_true(brief > 1 && brief < 1.05 && whole > 0.5 && whole < 0.65);
    plan_free(&two);
    plan_free(&one);
    bench_close(&p.b);
}

static void several_sequences_are_planned_for(void **state)
{
    (void)state;
    struct pair p;
    struct plan plan;
    pair_open(&p, &shape_8b, 12 * GIB, 12 * GIB);
    p.b.r.batch = 4;
    make_pair(&p, &plan);
    assert_true(plan_uses(&plan, PLAN_GPU1) && plan.page_count >= 4 * 4096 / plan.page_tokens);
    plan_free(&plan);
    bench_close(&p.b);
}

/* Whether the second device is used, and token/s with it, are those of a plan for fewer sequences at once, if
 * that is taken. */
static void the_note_is_of_the_plan_that_is_taken(void **state)
{
    (void)state;
    static const struct {
        uint64_t first, second;
        uint32_t batch, at_once;
    } cases[] = {{4, 3, 4, 4}, {4, 17, 4, 1}, {9, 10, 8, 1}, {14, 24, 8, 4}, {24, 3, 8, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pair p;
        struct plan plan;
        struct planner_prediction now;
        struct helm_err err = {0};
        double with, without;
        pair_open(&p, &shape_8b, cases[i].first * GIB, cases[i].second * GIB);
        p.b.r.wish.ctx = 32768;
        p.b.r.batch = p.b.r.wish.batch = cases[i].batch;
        make_pair(&p, &plan);
        assert_int_equal(planner_at_once(&p.b.r, &plan), cases[i].at_once);
        if (!plan_uses(&plan, PLAN_GPU1)) {
            assert_string_equal(p.note.text, "left out: all layers fit in the first device");
        } else {
            if (planner_predict(&p.b.r, &plan, cases[i].at_once, 32768, 1, &now, &err))
                fail_msg("%s", err.text);
            assert_int_equal(sscanf(p.note.text, "used: %lf token/s with it, %lf without", &with, &without),
                             2);
            assert_true(fabs(with * now.decode.seconds / cases[i].at_once - 1) < 0.01 && without < with);
        }
        plan_free(&plan);
        bench_close(&p.b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_in_two_is_all_resident),
        cmocka_unit_test(devices_of_different_sizes_are_filled_by_size),
        cmocka_unit_test(what_does_not_fit_in_two_is_the_first_devices_and_the_cpus),
        cmocka_unit_test(a_second_device_that_does_not_pay_is_left_out),
        cmocka_unit_test(a_slow_second_device_is_given_the_rest),
        cmocka_unit_test(a_plan_may_need_both),
        cmocka_unit_test(chunks_of_a_long_prompt_overlap),
        cmocka_unit_test(several_sequences_are_planned_for),
        cmocka_unit_test(the_note_is_of_the_plan_that_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
