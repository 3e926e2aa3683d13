/* Unit tests of planning with packed weights: what they cost on the link and the GPU, what they take in both
 * memories, and plans that count on them. */
#include <math.h>
#include <string.h>

#include "daemon/planner/cost/cost.h"
#include "tests/unit/daemon/planner/packed_case.h"
#include "tests/written_plans.h"

/* Less on the link by COST_PACKED_PART, more on the GPU by what expanding takes; nothing else changes. */
static void packed_units_have_their_prices(void **state)
{
    (void)state;
    struct bench b;
    bool packed[UNITS] = {false};
    open_8b(&b, 8 * GIB);
    b.profile.gpu.operation = made_up_value(4e-6);
    b.profile.link.latency = made_up_value(3e-6);
    b.profile.gpu.read = made_up_value(3.42e12);
    for (uint32_t u = 0; u < UNITS; u++) packed[u] = u % 3 == 0;
    for (int measured = 0; measured < 2; measured++) {
        if (measured) b.profile.gpu.expand = made_up_value(1e12);
        struct cost_table raw = price_8b(&b, 1, NULL, false), table = price_8b(&b, 1, packed, false);
        for (uint32_t u = 0; u < UNITS; u++) {
            const struct cost_unit *a = &raw.unit[u], *z = &table.unit[u];
            assert_int_equal(a->crossing, a->bytes);
            assert_false(a->packed);
            assert_int_equal(z->bytes, a->bytes);
            assert_int_equal(z->packed, packed[u]);
            close_to(z->cpu, a->cpu);
            close_to(z->gpu, a->gpu);
            if (!packed[u]) {
                close_to(z->stream, a->stream);
                close_to(z->link, a->link);
                continue;
            }
            assert_int_equal(z->crossing, (uint64_t)((double)a->bytes * COST_PACKED_PART));
            close_to(z->link - 3e-6, (double)z->crossing / 55e9);
            close_to(z->link_beside - 3e-6, (double)z->crossing / 52e9);
            /* read and written at the rate of reads, or as measured; slices of 32 MiB, kernels fewer by as
             * many as there are slices of 16 MiB less, more by an expansion each */
            double bytes = (double)a->bytes, rate = measured ? 1e12 : 3.42e12 / 1.71;
            double slices = ceil(bytes / (32 << 20)), small = ceil(bytes / (16 << 20));
            close_to(z->stream, a->stream - (small - slices) * 4e-6 + bytes / rate + slices * 4e-6);
        }
        struct plan_unit unit[UNITS + 2];
        struct plan plan = {.layers = UNITS / 2,
                            .unit = units_all(unit, UNITS / 2, PLAN_HOME_STREAM),
                            .embed = PLAN_GPU0,
                            .head = PLAN_GPU0};
        struct cost_crossing moved = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM);
        assert_int_equal(moved.bytes, moved.crossing);
        uint64_t saving = 0;
        for (uint32_t u = 0; u < UNITS; u++) saving += table.unit[u].bytes - table.unit[u].crossing;
        write_formats(&plan, &(struct written_formats){.link = true, .can = packed});
        moved = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM);
        assert_int_equal(moved.bytes - moved.crossing, saving);
        cost_table_free(&raw);
        cost_table_free(&table);
    }
    /* A unit that cannot be packed is not, whatever was asked for: a unit with one matrix of another type. */
    for (uint32_t i = 0; i < b.made.model.tensor_count; i++)
        if (b.made.tensor[i].role == TENSOR_K && b.made.tensor[i].layer == 3)
            b.made.tensor[i].format = FORMAT_F16;
    struct helm_err err = {0};
    analyse_table_free(&b.made.analysed);
    assert_int_equal(analyse_table_build(&b.made.model, &b.made.analysed, &err), 0);
    for (uint32_t u = 0; u < UNITS; u++) {
        assert_int_equal(b.made.analysed.packs[u], u != 6);
        packed[u] = true;
    }
    struct cost_table table = price_8b(&b, 1, packed, false);
    assert_int_equal(table.unit[6].crossing, table.unit[6].bytes);
    assert_true(table.unit[7].crossing < table.unit[7].bytes);
    cost_table_free(&table);
    bench_close(&b);
}

/* Where the profile has chains, one token's products read packed units as they are, for a part of what
 * expanding them takes. Two tokens' are expanded, and so are rows that are no whole tiles. */
static void one_token_reads_packed(void **state)
{
    (void)state;
    struct bench b;
    bool packed[UNITS];
    open_8b(&b, 8 * GIB);
    b.profile.gpu.operation = b.profile.gpu.chain_operation = made_up_value(4e-6);
    b.profile.gpu.chain_gemv = made_up_value(b.profile.gpu.gemv.value * 1.1);
    b.profile.gpu.chain_attention = b.profile.gpu.attention;
    b.profile.gpu.expand = made_up_value(1e12);
    for (uint32_t u = 0; u < UNITS; u++) packed[u] = true;
    for (int odd = 0; odd < 2; odd++) {
        if (odd) b.made.model.config.intermediate += 256;
        for (uint32_t tokens = 1; tokens <= 2; tokens++) {
            struct cost_table raw = price_8b(&b, tokens, NULL, false),
                              table = price_8b(&b, tokens, packed, false);
            for (uint32_t u = 0; u < UNITS; u++) {
                const double bytes = (double)raw.unit[u].bytes;
                const double slices = ceil(bytes / (32 << 20)), small = ceil(bytes / (16 << 20));
                const bool expanded = tokens > 1 || (odd && u % 2);
                const double product =
                    tokens > 1 ? profile_table_at(&b.profile.gpu.linear_operation, 2).value : 0;
                const double each = product > 0 ? product : 4e-6;
                close_to(table.unit[u].stream, raw.unit[u].stream - (small - slices) * each +
                                                   (expanded ? 1 : 0.6) * (bytes / 1e12 + slices * 4e-6));
            }
            cost_table_free(&raw);
            cost_table_free(&table);
        }
    }
    bench_close(&b);
}

/* A plan that packs is faster by about what the link gains, streams more, and its ledgers count the rooms.
 * Its prompts leave what is packed to the GPU. */
static void plans_count_on_it(void **state)
{
    (void)state;
    struct bench b;
    open_8b(&b, 8 * GIB);
    for (uint64_t vram = 6 * GIB; vram <= 12 * GIB; vram += 3 * GIB) {
        struct plan raw, plan;
        struct planner_prediction slow, fast;
        b.r.machine.device.limit = vram;
        b.r.wish.pack = false;
        make_predicted(&b, &raw, &slow);
        b.r.wish.pack = true;
        make_predicted(&b, &plan, &fast);
        uint32_t packs;
        assert_true(host_packs(&raw, false, false, NULL));
        assert_true(host_packs(&plan, true, false, &packs) && packs > 0);
        const struct cost_crossing before = cost_bytes_of(&b.made.analysed, &raw, PLAN_HOME_STREAM),
                                   after = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM);
        print_message("8B at %llu GiB: %.2f token/s, packed %.2f; %.2f GiB a step, packed %.2f GiB as %.2f\n",
                      (unsigned long long)(vram / GIB), 1 / slow.decode.seconds, 1 / fast.decode.seconds,
                      (double)before.bytes / GIB, (double)after.bytes / GIB, (double)after.crossing / GIB);
        assert_int_equal(before.bytes, before.crossing);
        assert_true(after.bytes > before.bytes && after.crossing < after.bytes * 72 / 100);
        assert_true(fast.decode.seconds < 0.95 * slow.decode.seconds);
        assert_int_equal(line_of(&raw.memory[PLAN_VRAM0], "expanded"), 0);
        assert_true(line_of(&plan.memory[PLAN_VRAM0], "expanded") > 0 &&
                    line_of(&plan.memory[PLAN_VRAM0], "expanded") < 40 * MIB);
        assert_in_range(line_of(&raw.memory[PLAN_HOST], "weights"), region_of(&b, &raw),
                        region_of(&b, &raw) + 4096);
        assert_in_range(line_of(&plan.memory[PLAN_HOST], "weights"), region_of(&b, &plan),
                        region_of(&b, &plan) + 4096);
        for (uint32_t u = 0; u < UNITS; u++)
            for (uint32_t p = 1; p < plan_phase_count(&plan); p++)
                if (plan.unit[u].home[0] == PLAN_HOME_STREAM)
                    assert_int_equal(plan.unit[u].home[p], PLAN_HOME_STREAM);
        /* Taken by a daemon that packs, and by one that does not. */
        struct arena_spec spec;
        struct helm_err err = {0};
        const uint64_t expanded = line_of(&plan.memory[PLAN_VRAM0], "expanded");
        assert_int_equal(planner_take(&b.r, &plan, &spec, &err), 0);
        assert_true(host_packs(&plan, true, false, NULL));
        assert_int_equal(line_of(&plan.memory[PLAN_VRAM0], "expanded"), expanded);
        b.r.wish.pack = false;
        assert_int_equal(planner_take(&b.r, &plan, &spec, &err), 0);
        assert_true(host_packs(&plan, false, false, NULL));
        assert_int_equal(line_of(&plan.memory[PLAN_VRAM0], "expanded"), 0);
        plan_free(&raw);
        plan_free(&plan);
    }
    bench_close(&b);
}

/* Where expanding takes longer than crossing unpacked, weights cross as they are, whatever the wish. */
static void packing_has_to_pay(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    open_8b(&b, 8 * GIB);
    b.r.wish.pack = true;
    const double least = 55e9 / (1 - COST_PACKED_PART);
    assert_true(cost_packing_pays(&b.profile)); /* unmeasured: as fast as memory allows */
    b.profile.gpu.expand = made_up_value(1.01 * least);
    assert_true(cost_packing_pays(&b.profile));
    make_predicted(&b, &plan, &prediction);
    assert_true(host_packs(&plan, true, false, NULL));
    plan_free(&plan);
    b.profile.gpu.expand = made_up_value(0.99 * least);
    assert_false(cost_packing_pays(&b.profile));
    make_predicted(&b, &plan, &prediction);
    assert_true(host_packs(&plan, false, false, NULL));
    assert_true(plan_has_home(&plan, PLAN_HOME_STREAM));
    plan_free(&plan);
    bench_close(&b);
}

/* A written list that gives a streamed unit to the CPU in some prompt: that unit is not packed, and its
 * forecast says so. */
static void units_of_both_workers_cross_as_they_are(void **state)
{
    (void)state;
    struct bench b;
    enum plan_home home[UNITS];
    struct plan_unit unit[UNITS + 2];
    open_8b(&b, 8 * GIB);
    for (uint32_t u = 0; u < UNITS; u++) home[u] = u < 8 ? PLAN_HOME_STREAM : PLAN_HOME_CPU;
    struct plan plan = {.layers = UNITS / 2,
                        .device[PLAN_GPU0].ring_bytes = 256 * MIB,
                        .unit = units_of_homes(unit, UNITS / 2, home),
                        .step_tokens = 512,
                        .kv_dtype = "f16"};
    struct cost_forecast all, some;
    struct helm_err err = {0};
    const struct cost_case c = {&b.made.model, &b.made.analysed, &b.profile, &plan};
    const struct written_formats all_streamed = {.link = true};
    write_formats(&plan, &all_streamed);
    const uint64_t streamed = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM).bytes;
    assert_int_equal(cost_decode(&c, 1, 100, &all, &err), 0);
    assert_true(cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM).crossing < streamed * 72 / 100);
    home[1] = home[3] = home[5] = home[7] = PLAN_HOME_CPU;
    add_list(&plan, 17, home);
    write_formats(&plan, &all_streamed);
    assert_int_equal(cost_decode(&c, 1, 100, &some, &err), 0);
    assert_true(cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM).crossing > streamed * 90 / 100);
    assert_true(some.busy[COST_LINK] > 1.2 * all.busy[COST_LINK]);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_units_have_their_prices),
        cmocka_unit_test(one_token_reads_packed),
        cmocka_unit_test(plans_count_on_it),
        cmocka_unit_test(packing_has_to_pay),
        cmocka_unit_test(units_of_both_workers_cross_as_they_are),
    };
    return cmocka_run_group_tests_name("planner/packed", tests, NULL, NULL);
}
