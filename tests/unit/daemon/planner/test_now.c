/* Unit tests of daemon/planner/profile/now.c: its file, what moves with memory and by how much, what
 * forecasts make of it. */
#include "tests/unit/daemon/planner/cost_case.h"

#include <stdio.h>

#include "daemon/planner/profile/now.h"

static struct profile_value rate(double value)
{
    return (struct profile_value){value, value * 0.9, value * 1.1, PROFILE_MEASURED};
}

static void near(const char *what, double is, double should)
{
    if (fabs(is - should) > 1e-6 * fabs(should)) fail_msg("%s: %.9g, not %.9g", what, is, should);
}

static struct profile made(void)
{
    struct profile p = round_numbers();
    p.cpu.read.point[0].y = rate(100e9);
    p.cpu.gemv = rate(100e9);
    p.cpu.read_beside = rate(80e9);
    p.cpu.gemv_beside = rate(80e9);
    p.link.h2d_beside_read = rate(40e9);
    return p;
}

static void files_are_read_back_and_checked(void **state)
{
    (void)state;
    const struct profile_now now = {.read = 121e9, .h2d = 54e9, .busy_percent = 7};
    struct profile_now again;
    struct helm_err err = {0};
    json_t *json = profile_now_to_json(&now);
    assert_null(json_object_get(json, "read_beside")); /* not measured */
    assert_int_equal(profile_now_from_json(json, &again, &err), 0);
    assert_true(again.busy_percent == 7 && again.read == 121e9 && again.h2d == 54e9 &&
                again.read_beside == 0 && again.h2d_beside == 0);
    static const char *const wrong[] = {"[]",
                                        "{\"read\": 1e9}",
                                        "{\"helm_now\": 2, \"read\": 1e9}",
                                        "{\"helm_now\": 1, \"h2d\": 1e9}",
                                        "{\"helm_now\": 1, \"read\": 0}",
                                        "{\"helm_now\": 1, \"read\": \"fast\"}",
                                        "{\"helm_now\": 1, \"read\": 1e9, \"h2d\": -1}",
                                        "{\"helm_now\": 1, \"read\": 1e9, \"format\": \"q9_k\"}",
                                        "{\"helm_now\": 1, \"read\": 1e9, \"activations\": \"int9\"}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *bad = json_loads(wrong[i], 0, NULL);
        assert_non_null(bad);
        assert_true(profile_now_from_json(bad, &again, &err) < 0);
        assert_true(again.read == 0);
        json_decref(bad);
    }
    json_decref(json);
    assert_int_not_equal(profile_now_read("/nonexistent/now.json", &again, &err), 0);
}

/* One token's reads of a model's main format, held against the profile's. */
static void reads_of_a_format_are_held_against_its_rates(void **state)
{
    (void)state;
    struct profile p = made(), out;
    struct profile_format *q4 = &p.format[FORMAT_Q4_K];
    struct helm_err err = {0};
    struct profile_now now = {.reads = {FORMAT_Q4_K, LINEAR_INT8},
                              .read = 60e9,
                              .read_beside = 40e9,
                              .h2d = 50e9,
                              .h2d_beside = 22e9},
                       again;
    struct machine_now machine;
    assert_int_equal(profile_reads_of(&p, FORMAT_Q4_K, LINEAR_INT8).format, FORMAT_BF16); /* no rate: plain */
    assert_int_equal(profile_now_check(&p, &now, &err), HELM_E_MISMATCH);
    assert_non_null(strstr(err.text, "q4_k with int8"));
    q4->cpu_gemv = rate(50e9), q4->cpu_gemv_beside = rate(45e9);
    const struct profile_reads exact = profile_reads_of(&p, FORMAT_Q4_K, LINEAR_INT8);
    assert_true(exact.format == FORMAT_Q4_K && exact.inputs == LINEAR_EXACT);
    q4->cpu_int8_gemv = rate(80e9), q4->cpu_int8_gemv_beside = rate(50e9);
    const struct profile_reads reads = profile_reads_of(&p, FORMAT_Q4_K, LINEAR_INT8);
    assert_true(reads.format == FORMAT_Q4_K && reads.inputs == LINEAR_INT8);
    assert_int_equal(profile_reads_of(&p, FORMAT_BF16, LINEAR_INT8).format, FORMAT_BF16);
    assert_int_equal(profile_now_check(&p, &now, &err), 0);
    json_t *json = profile_now_to_json(&now);
    assert_int_equal(profile_now_from_json(json, &again, &err), 0);
    assert_true(again.reads.format == FORMAT_Q4_K && again.reads.inputs == LINEAR_INT8);
    json_decref(json);
    profile_now_apply(&p, &now, &out);
    const struct profile_format *f = &out.format[FORMAT_Q4_K];
    near("itself", f->cpu_int8_gemv.value, 60e9);
    near("beside copies", f->cpu_int8_gemv_beside.value, 40e9);
    near("exact, which works on a byte for longer", f->cpu_gemv.value, 1e9 / (1 / 50. + 1 / 60. - 1 / 80.));
    near("faster ones in proportion", out.cpu.gemv.value, 75e9);
    near("copies beside it, as alone", out.link.h2d_beside.value, 40e9);
    near("the furthest, of what it reads", profile_now_apart(&p, &now), 0.25);
    profile_now_decide(&p, &now, &machine);
    assert_string_equal(
        machine.text,
        "one token of q4_k with int8 activations reads host memory at 60 GB/s now, 80 in the profile, "
        "beside copies 40 (50), copies to the device 50 (50): the forecast "
        "goes by that, and so does the plan");
    now.reads.inputs = LINEAR_EXACT;
    profile_now_apply(&p, &now, &out);
    near("exact by exact", out.format[FORMAT_Q4_K].cpu_gemv.value, 60e9);
}

/* Rates of pure reads move with memory; computing beside them keeps its nanoseconds a byte. */
static void rates_move_as_far_as_they_read(void **state)
{
    (void)state;
    struct profile p = made(), out;
    const struct profile_now now = {.read = 50e9, .read_beside = 60e9, .h2d = 45e9, .h2d_beside = 30e9};
    struct profile_format *q4 = &p.format[FORMAT_Q4_K];
    q4->cpu_gemv = rate(50e9); /* 0.01 ns of its 0.02 are reading */
    q4->cpu_int8_gemv = rate(100e9);
    q4->cpu_gemv_beside = rate(40e9);
    q4->gpu_gemv = rate(2e12);
    q4->cpu_linear.point[0] = (struct profile_point){4, rate(4 * 2 / 0.5625 * 25e9)}; /* 25 GB/s of blocks */
    q4->cpu_linear.count = 1;
    p.kv[KV_Q8_0].cpu_attention_host = rate(100e9);
    p.gpu.attention_direct = rate(45e9);
    p.kv[KV_Q8_0].gpu_attention_direct = rate(40e9);
    p.cpu.linear.point[1] = (struct profile_point){512, rate(2e12)};
    p.cpu.linear.count = 2;
    profile_now_apply(&p, &now, &out);
    const struct profile_format *f = &out.format[FORMAT_Q4_K];
    near("read", out.cpu.read.point[0].y.value, 50e9);
    near("gemv", out.cpu.gemv.value, 50e9);
    near("its spread", out.cpu.gemv.low, 45e9);
    near("beside", out.cpu.gemv_beside.value, 60e9);
    near("half arithmetic", f->cpu_gemv.value, 1e9 / (0.02 + 0.01));
    near("int8", f->cpu_int8_gemv.value, 50e9);
    near("half arithmetic beside", f->cpu_gemv_beside.value, 1e9 / (1 / 40. + 1 / 60. - 1 / 80.));
    near("several tokens", f->cpu_linear.point[0].y.value, 8 / 0.5625 * 1e9 / (0.04 + 0.01));
    near("cache", out.kv[KV_Q8_0].cpu_attention_host.value, 50e9);
    near("a prompt's products", out.cpu.linear.point[1].y.value, 2e12 / (1 + 0.01 * 2e12 / 512e9));
    near("link", out.link.h2d.value, 45e9);
    near("attention over the link", out.gpu.attention_direct.value, 45e9 * 45e9 / p.link.h2d.value);
    near("the same of a cache", out.kv[KV_Q8_0].gpu_attention_direct.value, 40e9 * 45e9 / p.link.h2d.value);
    near("link beside", out.link.h2d_beside.value, 30e9);
    near("the device", f->gpu_gemv.value, 2e12);
    near("back to the device", out.link.d2h.value, p.link.d2h.value);
    near("operations", out.cpu.operation.value, p.cpu.operation.value);
    assert_true(out.cpu.gemv_packed.value == 0); /* unknown stays unknown */
}

/* Caches made it faster than reading: in proportion, never below 0. */
static void rates_above_reading_move_in_proportion(void **state)
{
    (void)state;
    struct profile p = made(), out;
    p.cpu.gemv = rate(120e9);
    profile_now_apply(&p, &(struct profile_now){.read = 200e9}, &out);
    near("faster", out.cpu.gemv.value, 240e9);
    near("beside, which was not measured, as alone", out.cpu.gemv_beside.value, 160e9);
    near("no link was measured", out.link.h2d.value, p.link.h2d.value);
    p.cpu.read_beside = (struct profile_value){0}; /* an older profile's */
    profile_now_apply(&p, &(struct profile_now){.read = 50e9, .read_beside = 10e9}, &out);
    near("nothing to hold the pair against: as alone", out.cpu.gemv_beside.value, 40e9);
}

static void forecasts_follow(void **state)
{
    struct priced *p = *state;
    const struct cost_step step = {.tokens = 1, .rows = 1, .samples = 1, .context = 1};
    struct profile then = made();
    p->profile = then;
    price(p, step);
    const struct cost_unit before = p->table.unit[1];
    profile_now_apply(&then, &(struct profile_now){.read = 50e9, .h2d = 25e9}, &p->profile);
    price(p, step);
    const struct cost_unit *after = &p->table.unit[1];
    expect("the CPU reads for twice as long", after->cpu - before.cpu, MLP / 100e9);
    expect("so does the link", after->link - before.link, (double)before.crossing / 50e9);
    expect("the GPU does not", after->gpu, before.gpu);
}

static void a_plan_goes_by_it_beyond_a_tenth(void **state)
{
    (void)state;
    const struct profile p = made();
    struct machine_now now;
    profile_now_decide(&p, &(struct profile_now){.read = 91e9}, &now);
    assert_true(now.known && !now.plans);
    assert_string_equal(now.text,
                        "host memory reads 91 GB/s now, 100 in the profile: the forecast goes by that, the "
                        "plan by the profile");
    profile_now_decide(&p, &(struct profile_now){.read = 112e9}, &now);
    assert_true(now.plans);
    profile_now_decide(
        &p, &(struct profile_now){.read = 100e9, .read_beside = 80e9, .h2d = 49e9, .h2d_beside = 35e9}, &now);
    assert_true(now.plans);
    assert_string_equal(
        now.text, "host memory reads 100 GB/s now, 100 in the profile, beside copies 80 (80), copies to the "
                  "device 49 (50), beside reads 35 (40): the forecast goes by that, and so does the plan");
    const struct profile_now busy = {.read = 50e9, .busy_percent = 30};
    near("the furthest", profile_now_apart(&p, &now.rates), 0.125);
    profile_now_decide(&p, &busy, &now);
    assert_false(now.plans);
    assert_string_equal(
        now.text,
        "host memory reads 50 GB/s now, 100 in the profile: the forecast goes by that, the plan by the "
        "profile (others took 30 % of the processors' time meanwhile)");
    profile_now_unknown(&now, "not measured");
    assert_true(!now.known && !now.plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_read_back_and_checked),
        cmocka_unit_test(reads_of_a_format_are_held_against_its_rates),
        cmocka_unit_test(rates_move_as_far_as_they_read),
        cmocka_unit_test(rates_above_reading_move_in_proportion),
        cmocka_unit_test_setup_teardown(forecasts_follow, open_8b, close_8b),
        cmocka_unit_test(a_plan_goes_by_it_beyond_a_tenth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
