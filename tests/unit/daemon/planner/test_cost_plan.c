/* Unit tests of daemon/planner/cost/plan.c: forecasts of whole plans against sums of steps, error bars. */
#include "common/base/units.h"
#include "tests/unit/daemon/planner/cost_case.h"
#include "tests/written_plans.h"

static void make_plan(struct plan *plan, struct plan_unit unit[WRITTEN_UNITS(36)], uint32_t stream_from)
{
    *plan = (struct plan){.layers = 36,
                          .context_tokens = 8192,
                          .step_tokens = 512,
                          .slots = 4,
                          .kv_dtype = "f16",
                          .device[PLAN_GPU0].ring_bytes = 256 * MIB,
                          .embed = PLAN_CPU0,
                          .head = PLAN_GPU0};
    enum plan_home home[72];
    for (uint32_t u = 0; u < 72; u++)
        home[u] = u < 40 ? (u % 4 == 3 ? PLAN_HOME_STREAM : PLAN_HOME_CPU) : PLAN_HOME_GPU;
    plan->unit = units_of_homes(unit, 36, home);
    for (uint32_t u = 0; u < 40; u++) home[u] = PLAN_HOME_STREAM;
    add_list(plan, stream_from, home);
}

static void forecasts_are_the_steps_that_they_are_made_of(void **state)
{
    struct priced *p = *state;
    static struct plan_unit unit[WRITTEN_UNITS(36)];
    struct plan plan;
    struct cost_forecast f, two, all;
    p->profile = round_numbers();
    make_plan(&plan, unit, 64);
    const struct cost_case c = {&p->m.model, &p->m.analysed, &p->profile, &plan};
    assert_int_equal(cost_decode(&c, 1, 1000, &f, &p->err), 0);
    enum plan_home home[72];
    bool kv_cpu[36];
    struct cost_plan list;
    cost_plan_of(&plan, 0, home, kv_cpu, &list);
    assert_false(list.cold);
    price(p, (struct cost_step){1, 1, 1, 1000, .kv_dtype = KV_F16});
    expect("decode", f.seconds, cost_seconds(&p->table, &list, INFINITY));
    assert_true(f.steps == 1 && f.low < f.seconds && f.high > f.seconds);
    /* 30 tokens go by decode's list, 100 by the one that streams, 512 + 100 by that in two steps. */
    assert_int_equal(cost_ttft(&c, 30, &f, &p->err), 0);
    price(p, (struct cost_step){30, 1, 1, 30, .kv_dtype = KV_F16});
    expect("a short prompt", f.seconds, cost_seconds(&p->table, &list, INFINITY));
    cost_plan_of(&plan, 1, home, kv_cpu, &list);
    assert_true(list.cold && kv_cpu[0] && kv_cpu[19] && !kv_cpu[20]);
    assert_int_equal(cost_ttft(&c, 100, &f, &p->err), 0);
    price(p, (struct cost_step){100, 1, 1, 100, .kv_dtype = KV_F16});
    expect("a prompt", f.seconds, cost_seconds(&p->table, &list, INFINITY));
    assert_int_equal(cost_ttft(&c, 612, &two, &p->err), 0);
    price(p, (struct cost_step){512, 1, 0, 512, .kv_dtype = KV_F16});
    double sum = cost_seconds(&p->table, &list, INFINITY);
    price(p, (struct cost_step){100, 1, 1, 612, .kv_dtype = KV_F16});
    sum += cost_seconds(&p->table, &list, INFINITY);
    assert_int_equal(two.steps, 2);
    expect("a prompt in two chunks", two.seconds, sum);
    /* Nothing is resident after the last streamed unit that would hide a copy: but the second chunk begins
     * with other slices than decode, so the first leaves the ring as it is. */
    for (uint32_t u = 0; u < 72; u++) home[u] = u % 4 == 3 ? PLAN_HOME_STREAM : PLAN_HOME_CPU;
    plan_set_homes(&plan, 0, home);
    for (uint32_t u = 0; u < 72; u++) home[u] = PLAN_HOME_STREAM;
    plan_set_homes(&plan, 1, home);
    cost_plan_of(&plan, 1, home, kv_cpu, &list);
    assert_int_equal(cost_ttft(&c, 612, &two, &p->err), 0);
    sum = cost_seconds(&p->table, &list, INFINITY);
    price(p, (struct cost_step){512, 1, 0, 512, .kv_dtype = KV_F16});
    sum += cost_seconds(&p->table, &list, INFINITY);
    expect("with nothing behind", two.seconds, sum);
    make_plan(&plan, unit, 64);
    assert_int_equal(cost_ttft(&c, 4096, &all, &p->err), 0);
    assert_true(all.steps == 8 && all.seconds > 6 * f.seconds);
    assert_true(all.busy[COST_LINK] > 8 * 36.0 / 36 * 20 * (ATTENTION + MLP) / 50e9 * 0.99);
    /* The processes that sleep: a worker before the first step, helmd at the end of the first two and of one
     * that is shorter. */
    struct cost_forecast late;
    p->profile.wake = made_up_value(50e-6);
    assert_int_equal(cost_ttft(&c, 100, &late, &p->err), 0);
    expect("a prompt to sleepers", late.seconds, f.seconds + 2 * 50e-6);
    assert_int_equal(cost_ttft(&c, 4096, &late, &p->err), 0);
    expect("a long prompt to sleepers", late.seconds, all.seconds + 3 * 50e-6);
    assert_int_equal(cost_ttft(&c, 2048 + 100, &two, &p->err), 0);
    p->profile.wake = (struct profile_value){0};
    assert_int_equal(cost_ttft(&c, 2048 + 100, &all, &p->err), 0);
    expect("with a shorter step at its end", two.seconds, all.seconds + 4 * 50e-6);
    /* Impossible steps. */
    assert_int_equal(cost_ttft(&c, 0, &f, &p->err), HELM_E_LIMIT);
    p->profile.gpu.device = PROFILE_DEVICE_NONE;
    assert_int_equal(cost_decode(&c, 1, 1000, &f, &p->err), HELM_E_MISMATCH);
    strcpy(plan.kv_dtype, "q4");
    assert_int_equal(cost_decode(&c, 1, 1000, &f, &p->err), HELM_E_FORMAT);
}

static void error_bars_follow_what_bounds(void **state)
{
    struct priced *p = *state;
    enum plan_home home[72];
    struct cost_result r = {0};
    p->profile = round_numbers(); /* every rate to within 3 % */
    price(p, (struct cost_step){1, 1, 1, 128, .kv_dtype = KV_F16});
    for (uint32_t u = 0; u < 72; u++) home[u] = PLAN_HOME_CPU;
    struct cost_plan plan = {.home = home, .embed = PLAN_CPU0, .head = PLAN_CPU0};
    cost_simulate(&p->table, &plan, &r);
    double part = cost_uncertainty(&p->profile, &p->table, &plan, &r);
    assert_true(part > 0.029 && part < 0.0301);
    p->profile.busy_percent = 20;
    part = cost_uncertainty(&p->profile, &p->table, &plan, &r);
    assert_true(part > 0.24 && part < 0.2519);
    p->profile.busy_percent = 0;
    for (uint32_t u = 0; u < 72; u++) home[u] = PLAN_HOME_STREAM;
    plan = (struct cost_plan){.home = home, .embed = PLAN_GPU0, .head = PLAN_GPU0, .ring_bytes = 256 * MIB};
    cost_simulate(&p->table, &plan, &r);
    p->profile.gpu.chain_gemv = made_up_value(1250e9);
    p->profile.gpu.chain_gemv.low *= 0.5; /* where operations are chained it is theirs that counts */
    assert_true(cost_uncertainty(&p->profile, &p->table, &plan, &r) >
                1.2 * cost_uncertainty(&(struct profile){.link = p->profile.link}, &p->table, &plan, &r));
    p->profile.gpu.chain_gemv = (struct profile_value){0};
    p->profile.link.h2d.low *= 0.9; /* the link counts now, and only it */
    double wider = cost_uncertainty(&p->profile, &p->table, &plan, &r);
    p->profile.cpu.gemv.low *= 0.5;
    assert_true(cost_uncertainty(&p->profile, &p->table, &plan, &r) == wider && wider > 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_8B(forecasts_are_the_steps_that_they_are_made_of),
        WITH_8B(error_bars_follow_what_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
