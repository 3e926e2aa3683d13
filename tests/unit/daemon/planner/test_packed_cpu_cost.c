/* Unit tests of what packed weights cost that the CPU computes with, and of error bars. What plans make of that: test_packed_cpu.c. */
#include "tests/unit/daemon/planner/packed_case.h"

/* What no packed weights of the CPU change. */
static void same_but_for_the_cpu(const struct cost_unit *a, const struct cost_unit *z)
{
    assert_int_equal(z->crossing, a->crossing);
    close_to(z->link, a->link);
    close_to(z->stream, a->stream);
    close_to(z->gpu, a->gpu);
}

/* Products read packed weights at their own rate, alone and beside the link, and multiply as with plain ones. */
static void packed_units_have_their_prices(void **state)
{
    (void)state;
    struct bench b;
    bool packed[UNITS] = {false};
    open_packed_cpu(&b, 8 * GIB);
    for (uint32_t u = 0; u < UNITS; u++) packed[u] = u % 3 == 0;
    for (uint32_t tokens = 1; tokens <= 128; tokens += 127) {
        struct cost_table raw = price_8b(&b, tokens, packed, false),
                          table = price_8b(&b, tokens, packed, true);
        for (uint32_t u = 0; u < UNITS; u++) {
            const struct cost_unit *a = &raw.unit[u], *z = &table.unit[u];
            const double bytes = matrices_of(&b, u);
            assert_false(a->cpu_packed);
            assert_int_equal(z->cpu_packed, packed[u]);
            assert_int_equal(z->packed, packed[u]);
            same_but_for_the_cpu(a, z);
            close_to(z->link_beside, a->link_beside);
            if (!packed[u]) {
                close_to(z->cpu, a->cpu);
                close_to(z->cpu_beside, a->cpu_beside);
            } else {
                const double work =
                    tokens > 1 ? tokens / profile_table_at(&b.profile.cpu.linear, tokens).value : 0;
                close_to(z->cpu, a->cpu - bytes * fmax(1 / 105e9, work) + bytes * fmax(1 / CPU_PACKED, work));
                close_to(z->cpu_beside, a->cpu_beside - bytes * fmax(1 / 80e9, work) +
                                            bytes * fmax(1 / CPU_PACKED_BESIDE, work));
            }
        }
        cost_table_free(&raw);
        cost_table_free(&table);
    }
    /* A profile without one token's rate, whatever else it has. */
    b.profile.cpu.gemv_packed = (struct profile_value){0};
    for (uint32_t tokens = 1; tokens <= 128; tokens += 127) {
        struct cost_table raw = price_8b(&b, tokens, packed, false),
                          table = price_8b(&b, tokens, packed, true);
        for (uint32_t u = 0; u < UNITS; u++) {
            assert_false(table.unit[u].cpu_packed);
            close_to(table.unit[u].cpu, raw.unit[u].cpu);
            close_to(table.unit[u].link_beside, raw.unit[u].link_beside);
        }
        cost_table_free(&raw);
        cost_table_free(&table);
    }
    bench_close(&b);
}

/* A step's error bar knows how far the rates were spread that it was priced with. */
static void error_bars_are_of_the_rates_that_count(void **state)
{
    (void)state;
    struct bench b;
    bool packed[UNITS], kv_cpu[UNITS / 2];
    enum plan_home home[UNITS];
    open_packed_cpu(&b, 0);
    for (uint32_t u = 0; u < UNITS; u++) home[u] = PLAN_HOME_CPU;
    memset(packed, true, sizeof packed);
    memset(kv_cpu, true, sizeof kv_cpu);
    b.profile.cpu.gemv_packed.low = 0.8 * CPU_PACKED;
    b.profile.cpu.gemv_packed.high = 1.2 * CPU_PACKED;
    const struct cost_plan plan = {
        .home = home, .kv_cpu = kv_cpu, .embed = PLAN_CPU0, .head = PLAN_CPU0, .cold = true};
    double part[2][2];
    for (int several = 0; several < 2; several++)
        for (int packed_cpu = 0; packed_cpu < 2; packed_cpu++) {
            struct cost_table table = price_8b(&b, several ? 128 : 1, packed, packed_cpu);
            struct cost_result result = {0};
            cost_simulate(&table, &plan, &result);
            part[several][packed_cpu] = cost_uncertainty(&b.profile, &table, &plan, &result);
            cost_table_free(&table);
        }
    for (int several = 0; several < 2; several++) {
        assert_true(part[several][0] < 0.031);                           /* what all made-up rates have */
        assert_true(part[several][1] > 0.19 && part[several][1] < 0.21); /* all of the step is the CPU's */
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_units_have_their_prices),
        cmocka_unit_test(error_bars_are_of_the_rates_that_count),
    };
    return cmocka_run_group_tests_name("planner/packed_cpu_cost", tests, NULL, NULL);
}
