/* Unit tests of planning with packed weights that the CPU computes with: where they pay, what lists, ledgers
 * and forecasts make of them. Their prices: test_packed_cpu_cost.c. */
#include <stdio.h>
#include <string.h>

#include "daemon/planner/cost/cost.h"
#include "daemon/planner/report/explain.h"
#include "tests/unit/daemon/planner/packed_case.h"
#include "common/cpu/kernels/linear.h"

/* Instrumented, a plan takes three times as long: one case of each outcome. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NEXT_CASE 4
#else
#define NEXT_CASE 1
#endif

/* Only where the profile says that it gains more than a twentieth, the wish is to pack, and the processor has
 * kernels for it; not for several sequences at once. */
static void packing_has_to_pay(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    const struct {
        double rate;
        bool pack, pack_cpu, packs;
        uint32_t batch;
    } cases[] = {{105e9 * 1.11, true, true, true, 1},   {105e9 * 1.09, true, true, false, 1},
                 {105e9 * 1.11, false, true, false, 1}, {105e9 * 1.11, true, false, false, 1},
                 {105e9 * 1.11, true, true, false, 2},  {0, true, true, false, 1}};
    for (uint64_t vram = 0; vram <= 8 * GIB; vram += 8 * GIB)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i += NEXT_CASE) {
            open_packed_cpu(&b, vram);
            b.profile.cpu.gemv_packed = made_up_value(cases[i].rate);
            if (cases[i].rate == 0) b.profile.cpu.gemv_packed = (struct profile_value){0};
            b.profile.cpu.gemv_packed_beside = b.profile.cpu.gemv_packed;
            b.profile.cpu.gemv_packed_beside.value *= 80.0 / 105.0; /* as much faster there */
            b.r.wish.pack = cases[i].pack;
            b.r.wish.pack_cpu = cases[i].pack_cpu;
            b.r.batch = cases[i].batch;
            assert_int_equal(cost_packing_pays_cpu(&b.profile, vram > 0), cases[i].rate > 105e9 * 1.1);
            make_predicted(&b, &plan, &prediction);
            if (!host_packs(&plan, cases[i].pack, cases[i].packs, NULL) || cpu_packs(&plan) != cases[i].packs)
                fail_msg("case %zu at %d GiB", i, (int)(vram / GIB));
            plan_free(&plan);
            b.r.wish.pack_all = false; /* so little gains too little beside a device */
            make_predicted(&b, &plan, &prediction);
            assert_true(host_packs(&plan, cases[i].pack, cases[i].packs && vram == 0, NULL));
            plan_free(&plan);
            bench_close(&b);
        }
    /* Beside a device by the forecast, where the CPU has a share: what reads faster only while the link
     * streams counts, too. */
    const double beside[] = {80e9 * 1.05, 80e9 * 1.2, 80e9 * 1.4, 80e9 * 1.7};
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        struct planner_prediction plain;
        open_packed_cpu(&b, 8 * GIB);
        b.profile.cpu.gemv_packed = made_up_value(fmax(105e9 * 1.05, beside[i]));
        b.profile.cpu.gemv_packed_beside = made_up_value(beside[i]);
        b.r.wish.pack_all = b.r.wish.pack_cpu = false;
        make_predicted(&b, &plan, &plain);
        assert_false(cpu_packs(&plan));
        plan_free(&plan);
        b.r.wish.pack_cpu = true;
        make_predicted(&b, &plan, &prediction);
        const double gain = plain.decode.seconds / prediction.decode.seconds;
        print_message("packed beside at %.0f GB/s: %s, %.3f times as fast\n", beside[i] / 1e9,
                      cpu_packs(&plan) ? "packed" : "plain", gain);
        assert_true(cpu_packs(&plan) ? gain > 1.04 : gain > 0.999 && gain < 1.001);
        if (i == 0) assert_false(cpu_packs(&plan));
        if (i == 3) assert_true(cpu_packs(&plan));
        plan_free(&plan);
        bench_close(&b);
    }
    /* Where prompts would cross the link packed to a device that takes longer to expand them. */
    open_packed_cpu(&b, 8 * GIB);
    b.profile.gpu.expand = made_up_value(0.9 * 55e9 / (1 - COST_PACKED_PART));
    make_predicted(&b, &plan, &prediction);
    assert_true(host_packs(&plan, false, false, NULL));
    plan_free(&plan);
    bench_close(&b);
}

/* The CPU alone: as much faster as its products are, with the rooms of packed matrices in its ledger; prompts
 * are no faster, and slower where unpacking takes longer than reading. */
static void the_cpu_alone_is_faster(void **state)
{
    (void)state;
    struct bench b;
    struct plan raw, plan;
    struct planner_prediction slow, fast;
    open_packed_cpu(&b, 0);
    b.r.strategy = SEARCH_ALL_CPU;
    b.r.wish.pack_cpu = false;
    make_predicted(&b, &raw, &slow);
    b.r.wish.pack_cpu = true;
    make_predicted(&b, &plan, &fast);
    double bytes = 0;
    for (uint32_t u = 0; u < UNITS; u++) bytes += matrices_of(&b, u);
    close_to(slow.decode.seconds - fast.decode.seconds, bytes / 105e9 - bytes / CPU_PACKED);
    const struct profile_table *linear = &b.profile.cpu.linear;
    close_to(fast.ttft.seconds - slow.ttft.seconds,
             bytes * fmax(0, 1 / CPU_PACKED + 128 / profile_table_at(linear, 512).value -
                                 fmax(1 / 105e9, 128 / profile_table_at(linear, 128).value)));
    const struct cost_crossing before = cost_bytes_of(&b.made.analysed, &raw, PLAN_HOME_CPU),
                               after = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_CPU);
    assert_int_equal(before.bytes, before.crossing);
    assert_int_equal(after.bytes, before.bytes);
    double head = (double)b.made.analysed.head.stored, moved = (double)after.crossing - head;
    assert_true(moved > 0.70 * bytes && moved < 0.72 * bytes);
    assert_int_equal(cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_STREAM).bytes, 0);
    assert_true(plan.memory[PLAN_HOST].total > raw.memory[PLAN_HOST].total &&
                plan.memory[PLAN_HOST].total < raw.memory[PLAN_HOST].total + bytes / 100);
    plan_free(&raw);
    plan_free(&plan);
    bench_close(&b);
}

/* With a device: faster, every half layer that is not in VRAM is packed whatever prompts make of it, and the
 * ledgers count the room that all of them need and the slice that prompts expand. */
static void plans_count_on_it(void **state)
{
    (void)state;
    struct bench b;
    open_packed_cpu(&b, 8 * GIB);
    for (uint64_t vram = 4 * GIB; vram <= 12 * GIB; vram += 4 * GIB) {
        struct plan raw, plan;
        struct planner_prediction slow, fast;
        bool streams = false;
        uint64_t cpu_bytes = 0;
        b.r.machine.device.limit = vram;
        b.r.wish.pack_cpu = false;
        make_predicted(&b, &raw, &slow);
        b.r.wish.pack_cpu = true;
        make_predicted(&b, &plan, &fast);
        print_message("8B at %llu GiB: %.2f token/s, the CPU's packed %.2f\n",
                      (unsigned long long)(vram / GIB), 1 / slow.decode.seconds, 1 / fast.decode.seconds);
        assert_true(host_packs(&plan, true, true, NULL) && host_packs(&raw, true, false, NULL));
        assert_true(fast.decode.seconds < slow.decode.seconds);
        for (uint32_t u = 0; u < UNITS; u++) {
            enum plan_home home = plan.unit[u].home[0];
            assert_int_equal(plan_unit_format(&plan, u) == FORMAT_BF16_PACKED, home != PLAN_HOME_GPU);
            if (home == PLAN_HOME_CPU) cpu_bytes += analyse_units_stored(&b.made.analysed, u, u);
            for (uint32_t p = 0; p < plan_phase_count(&plan); p++)
                streams |= plan.unit[u].home[p] == PLAN_HOME_STREAM;
        }
        assert_true(cpu_bytes > 0);
        const uint64_t weights = region_of(&b, &plan);
        assert_in_range(line_of(&plan.memory[PLAN_HOST], "weights"), weights, weights + 4096);
        assert_int_equal(line_of(&plan.memory[PLAN_VRAM0], "expanded") > 0, streams);
        const struct cost_crossing cpu = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_CPU);
        assert_true(cpu.bytes - cpu.crossing > cpu_bytes * 28 / 100);
        assert_true(cpu.bytes - cpu.crossing < cpu_bytes * 30 / 100);
        plan_free(&raw);
        plan_free(&plan);
    }
    bench_close(&b);
}

/* The thesis's split reads weights as they are in the file. */
static void the_thesis_packs_nothing_for_the_cpu(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    open_packed_cpu(&b, 8 * GIB);
    b.r.strategy = SEARCH_THESIS;
    make_predicted(&b, &plan, &prediction);
    assert_false(cpu_packs(&plan));
    const struct cost_crossing cpu = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_CPU);
    assert_true(cpu.bytes > 0 && cpu.bytes == cpu.crossing);
    plan_free(&plan);
    for (enum search_strategy s = SEARCH_BEST; s < SEARCH_MIXED; s++) {
        if (s == SEARCH_THESIS || s == SEARCH_ALL_GPU || s == SEARCH_EXPERTS_CPU) continue;
        b.r.strategy = s;
        b.r.device_required = s != SEARCH_ALL_CPU;
        make_predicted(&b, &plan, &prediction);
        assert_true(host_packs(&plan, true, true, NULL));
        assert_true(s == SEARCH_STREAM || cpu_packs(&plan));
        plan_free(&plan);
    }
    bench_close(&b);
}

/* A plan from a file keeps its formats, but on a machine whose processor has no kernels for it, or where
 * nothing is to be packed. */
static void written_plans_keep_their_formats(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    struct planner_prediction prediction;
    open_packed_cpu(&b, 8 * GIB);
    make_predicted(&b, &plan, &prediction);
    assert_true(cpu_packs(&plan));
    const uint64_t host = plan.memory[PLAN_HOST].total, vram = plan.memory[PLAN_VRAM0].total;
    b.r.wish.ctx = 0; /* the plan says */
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), 0);
    assert_true(cpu_packs(&plan) && plan.memory[PLAN_HOST].total == host &&
                plan.memory[PLAN_VRAM0].total == vram);
    struct plan again;
    assert_int_equal(plan_copy(&plan, &again, &err), 0);
    b.r.wish.pack_cpu = false;
    assert_int_equal(planner_take(&b.r, &plan, &spec, &err), 0);
    assert_true(host_packs(&plan, true, false, NULL) && plan.memory[PLAN_HOST].total < host);
    b.r.wish.pack_cpu = true;
    b.r.wish.pack = false;
    assert_int_equal(planner_take(&b.r, &again, &spec, &err), 0);
    assert_true(host_packs(&again, false, false, NULL));
    plan_free(&again);
    plan_free(&plan);
    bench_close(&b);
}

/* Where decode streams MLPs and the link is slow, a short prompt's are the CPU's: of units that it can
 * compute with as they are packed, and of no others. */
static void prompts_may_have_them_computed_by_the_cpu(void **state)
{
    (void)state;
    struct bench b;
    enum plan_home decode[UNITS], home[UNITS];
    bool packed[UNITS];
    struct helm_err err = {0};
    double seconds;
    open_packed_cpu(&b, 8 * GIB);
    b.profile.link.h2d = b.profile.link.h2d_beside = made_up_value(1e9);
    for (uint32_t u = 0; u < UNITS; u++) {
        decode[u] = unit_part(u) == UNIT_MLP ? PLAN_HOME_STREAM : PLAN_HOME_GPU;
        packed[u] = unit_part(u) == UNIT_MLP;
    }
    b.made.analysed.packs_cpu[5] = false;
    const struct search_found found = {
        .feasible = true, .home = decode, .embed = PLAN_GPU0, .head = PLAN_GPU0, .ring_bytes = 256 * MIB};
    for (int packed_cpu = 0; packed_cpu < 2; packed_cpu++) {
        struct cost_table table = price_8b(&b, 32, packed, packed_cpu);
        assert_int_equal(search_prefill(&table, &found, home, &seconds, &err), 0);
        for (uint32_t u = 1; u < UNITS; u += 2)
            if (u == 5 || !packed_cpu) assert_int_equal(home[u], PLAN_HOME_STREAM);
        uint32_t on_cpu = 0;
        for (uint32_t u = 0; u < UNITS; u++) on_cpu += home[u] == PLAN_HOME_CPU;
        assert_true(packed_cpu ? on_cpu > UNITS / 4 : on_cpu == 0);
        cost_table_free(&table);
    }
    bench_close(&b);
}

/* Columns that are no multiple of a tile's run, or matrices of another type: plain on the CPU, while the same
 * units may still cross the link packed. */
static void columns_have_to_fit(void **state)
{
    (void)state;
    struct bench b;
    struct helm_err err = {0};
    bool packed[UNITS];
    open_packed_cpu(&b, 8 * GIB);
    for (uint32_t i = 0; i < b.made.model.tensor_count; i++) {
        struct model_tensor *t = &b.made.tensor[i];
        if (t->role == TENSOR_DOWN && t->layer == 3) t->cols += 128, t->bytes = t->rows * t->cols * 2;
    }
    analyse_table_free(&b.made.analysed);
    assert_int_equal(analyse_table_build(&b.made.model, &b.made.analysed, &err), 0);
    for (uint32_t u = 0; u < UNITS; u++) {
        assert_true(b.made.analysed.packs[u]);
        assert_int_equal(b.made.analysed.packs_cpu[u], u != 7);
        packed[u] = true;
    }
    struct cost_table raw = price_8b(&b, 1, packed, false), table = price_8b(&b, 1, packed, true);
    assert_true(table.unit[7].packed && !table.unit[7].cpu_packed);
    close_to(table.unit[7].cpu, raw.unit[7].cpu);
    assert_true(table.unit[5].cpu_packed && table.unit[5].cpu < raw.unit[5].cpu);
    cost_table_free(&raw);
    cost_table_free(&table);
    /* The plan has it plain where the CPU computes it. */
    struct plan plan;
    struct planner_prediction prediction;
    b.r.machine.device = (struct ledger_device){0};
    b.r.device_required = false;
    make_predicted(&b, &plan, &prediction);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(plan_unit_format(&plan, u) == FORMAT_BF16_PACKED, u != 7);
    plan_free(&plan);
    bench_close(&b);
}

/* helm-plan's account of a plan: bytes as they are computed with and as they are read. */
static void explained_plans_say_what_is_packed(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct planner_prediction prediction;
    struct explain x;
    struct helm_err err = {0};
    char text[1 << 14] = "";
    open_packed_cpu(&b, 8 * GIB);
    make_predicted(&b, &plan, &prediction);
    assert_int_equal(explain_make(&b.r, &plan, 0, &x, &err), 0);
    const struct cost_crossing cpu = cost_bytes_of(&b.made.analysed, &plan, PLAN_HOME_CPU);
    json_t *json = explain_to_json(&x), *part = json_object_get(json, "cpu");
    assert_int_equal(json_integer_value(json_object_get(part, "weight_bytes")), cpu.bytes);
    assert_int_equal(json_integer_value(json_object_get(part, "read_bytes")), cpu.crossing);
    json_t *stage;
    size_t i;
    uint32_t cpu_stages = 0;
    json_array_foreach(json_object_get(json_object_get(json, "stages"), "decode"), i, stage)
    {
        if (strcmp(json_string_value(json_object_get(stage, "home")), "cpu") != 0) continue;
        assert_string_equal(json_string_value(json_object_get(stage, "format")), "bf16-packed");
        cpu_stages++;
    }
    assert_true(cpu_stages > 0);
    json_decref(json);
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    assert_non_null(out);
    explain_print(&x, out);
    fclose(out);
    const char *line = strstr(text, "\ncpu      ");
    assert_non_null(line);
    assert_non_null(strstr(line, "packed to about"));
    assert_true(strstr(line, "packed to about") < strstr(line + 1, "\n"));
    explain_free(&x);
    plan_free(&plan);
    bench_close(&b);
}

/* The planner knows of what processors the worker has kernels for. */
static void kernels_are_where_they_are_planned_for(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (unsigned features = 0; features < 4u * CPU_AVX512_VBMI2; features++) {
        const struct linear_kernel *kernel;
        const int rc =
            linear_choose(FORMAT_BF16_PACKED, LINEAR_ONE_TOKEN, LINEAR_EXACT, features, NULL, &kernel, &err);
        assert_int_equal(linear_pays(FORMAT_BF16_PACKED, features), rc == 0);
    }
    assert_true(linear_pays(FORMAT_BF16_PACKED, ~0u) &&
                !linear_pays(FORMAT_BF16_PACKED, ~(unsigned)CPU_AVX512_VBMI2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_where_they_are_planned_for),
        cmocka_unit_test(packing_has_to_pay),
        cmocka_unit_test(the_cpu_alone_is_faster),
        cmocka_unit_test(plans_count_on_it),
        cmocka_unit_test(the_thesis_packs_nothing_for_the_cpu),
        cmocka_unit_test(written_plans_keep_their_formats),
        cmocka_unit_test(prompts_may_have_them_computed_by_the_cpu),
        cmocka_unit_test(columns_have_to_fit),
        cmocka_unit_test(explained_plans_say_what_is_packed),
    };
    return cmocka_run_group_tests_name("planner/packed_cpu", tests, NULL, NULL);
}
