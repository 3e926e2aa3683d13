/* Unit tests of what packed weights cost that the CPU computes with: one token's products, several tokens',
 * the link beside them, error bars. Plans with them: test_packed_cpu.c. */
#include "tests/unit/daemon/planner/packed_case.h"

/* Costs that packed weights of the CPU do not change. */
static void same_but_for_the_cpu(const struct cost_unit *a, const struct cost_unit *z)
{
    assert_int_equal(z->crossing, a->crossing);
    close_to(z->link, a->link);
    close_to(z->stream, a->stream);
    close_to(z->gpu, a->gpu);
}

/* One token's products at the rate of packed weights, alone and beside the link; several tokens' read them at
 * that rate, and then multiply as fast as arithmetic allows, but are no faster than plain ones. */
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
            } else if (tokens == 1) {
                close_to(z->cpu, a->cpu - bytes / 105e9 + bytes / CPU_PACKED);
                close_to(z->cpu_beside, a->cpu_beside - bytes / 80e9 + bytes / CPU_PACKED_BESIDE);
            } else { /* two operations a parameter, one a byte */
                const struct profile_table *linear = &b.profile.cpu.linear;
                const double work = tokens / profile_table_at(linear, tokens).value,
                             most = tokens / profile_table_at(linear, 512).value;
                close_to(z->cpu, a->cpu + bytes * fmax(0, 1 / CPU_PACKED + most - fmax(1 / 105e9, work)));
                close_to(z->cpu_beside, a->cpu_beside + bytes * fmax(0, 1 / CPU_PACKED_BESIDE + most -
                                                                            fmax(1 / 80e9, work)));
            }
        }
        cost_table_free(&raw);
        cost_table_free(&table);
    }
    /* A profile without one token's rate, whatever else it has. */
    b.profile.cpu.gemv_packed = (struct profile_value){0};
    b.profile.link.h2d_beside_packed = made_up_value(40e9);
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

static void link_beside_is(const struct bench *b, uint32_t tokens, const bool *packed, bool packed_cpu,
                           double rate)
{
    struct cost_table table = price_8b(b, tokens, packed, packed_cpu);
    for (uint32_t u = 0; u < table.units; u++) {
        const struct cost_unit *unit = &table.unit[u];
        const double latency = b->profile.link.latency.value;
        close_to(unit->link, (double)unit->crossing / b->profile.link.h2d.value + latency);
        close_to(unit->link_beside, (double)unit->crossing / rate + latency);
    }
    cost_table_free(&table);
}

/* The link beside one token's packed products has a rate of its own, in a step in which the CPU would
 * multiply with some; no higher than alone. */
static void the_link_has_its_rate_beside_packed_products(void **state)
{
    (void)state;
    struct bench b;
    bool packed[UNITS] = {false}, none[UNITS] = {false};
    open_packed_cpu(&b, 8 * GIB);
    b.profile.link.h2d_beside = made_up_value(36e9);
    packed[5] = true;
    link_beside_is(&b, 1, packed, true, 36e9); /* not known */
    b.profile.link.h2d_beside_packed = made_up_value(43e9);
    link_beside_is(&b, 1, packed, true, 43e9);
    link_beside_is(&b, 1, packed, false, 36e9);
    link_beside_is(&b, 1, none, true, 36e9);
    link_beside_is(&b, 1, NULL, true, 36e9);
    link_beside_is(&b, 8, packed, true, 36e9);
    link_beside_is(&b, 128, packed, true, 36e9);
    b.profile.link.h2d_beside_packed = made_up_value(30e9); /* it may be less, too */
    link_beside_is(&b, 1, packed, true, 30e9);
    b.profile.link.h2d_beside_packed = made_up_value(70e9);
    link_beside_is(&b, 1, packed, true, 55e9);
    b.made.analysed.packs_cpu[5] = false; /* crosses the link packed, and is plain on the CPU */
    link_beside_is(&b, 1, packed, true, 36e9);
    bench_close(&b);
}

/* Where the CPU computes with plain weights, nothing that was measured with packed ones changes a plan or its
 * forecast; where it does not, both values do. */
static void plans_without_them_stay_the_same(void **state)
{
    (void)state;
    struct bench b;
    open_packed_cpu(&b, 8 * GIB);
    for (int pack_cpu = 0; pack_cpu < 2; pack_cpu++) {
        struct plan plan[2];
        struct planner_prediction was[2];
        struct helm_err err = {0};
        b.r.wish.pack_cpu = pack_cpu;
        for (int known = 0; known < 2; known++) {
            b.profile.link.h2d_beside_packed = (struct profile_value){0};
            if (known) b.profile.link.h2d_beside_packed = made_up_value(45e9); /* 52 beside plain ones */
            make(&b, &plan[known]);
            /* so few tokens that decode's list computes the prompt */
            assert_int_equal(planner_predict(&b.r, &plan[known], 1, 1024, 16, &was[known], &err), 0);
            assert_true(host_packs(&plan[known], true, pack_cpu, NULL));
        }
        if (pack_cpu) {
            print_message("decode %.1f ms, was %.1f; 16 tokens %.1f, were %.1f\n",
                          was[1].decode.seconds * 1e3, was[0].decode.seconds * 1e3, was[1].ttft.seconds * 1e3,
                          was[0].ttft.seconds * 1e3);
            assert_true(was[1].decode.seconds > was[0].decode.seconds);
        } else {
            assert_true(was[1].decode.seconds == was[0].decode.seconds &&
                        was[1].ttft.seconds == was[0].ttft.seconds);
            for (uint32_t p = 0; p < plan_phase_count(&plan[0]); p++)
                for (uint32_t u = 0; u < UNITS; u++)
                    assert_int_equal(plan[0].unit[u].home[p], plan[1].unit[u].home[p]);
        }
        plan_free(&plan[0]);
        plan_free(&plan[1]);
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
        assert_true(part[several][0] < 0.031);                           /* all made-up rates have it */
        assert_true(part[several][1] > 0.19 && part[several][1] < 0.21); /* all of the step is the CPU's */
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_units_have_their_prices),
        cmocka_unit_test(the_link_has_its_rate_beside_packed_products),
        cmocka_unit_test(plans_without_them_stay_the_same),
        cmocka_unit_test(error_bars_are_of_the_rates_that_count),
    };
    return cmocka_run_group_tests_name("planner/packed_cpu_cost", tests, NULL, NULL);
}
