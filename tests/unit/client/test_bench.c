/* The parts of client/bench that need no daemon: prompts, quantiles, bytes by device, the loop that measures
 * reading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/units.h"
#include "client/bench/bench.h"

static void test_prompt_is_fixed_and_valid(void **state)
{
    (void)state;
    uint32_t a[64], b[64];
    prompt_fill(1, 0, 4096, a, 64);
    prompt_fill(1, 0, 4096, b, 64);
    assert_memory_equal(a, b, sizeof a);
    /* the reference vector of splitmix64 with seed 0, scaled to all of 32 bits but one */
    assert_int_equal(prompt_token(0, 0, 0, UINT32_MAX),
                     (uint32_t)(((uint64_t)0xe220a839u * UINT32_MAX) >> 32));
    assert_int_equal(prompt_token(0, 0, 1, UINT32_MAX),
                     (uint32_t)(((uint64_t)0x6e789e6au * UINT32_MAX) >> 32));
    for (uint32_t vocab = 1; vocab < 200; vocab += 7)
        for (uint64_t i = 0; i < 200; i++)
            assert_true(prompt_token(9, PROMPT_WARMUP_FIRST + i, i, vocab) < vocab);
    for (int other = 0; other < 2; other++) {
        prompt_fill(other ? 2 : 1, other ? 0 : 1, 4096, b, 64);
        assert_true(memcmp(a, b, sizeof a) != 0);
        assert_true(prompt_checksum(a, 64) != prompt_checksum(b, 64));
    }
    assert_true(prompt_checksum(NULL, 0) == 0xcbf29ce484222325u);
}

static void test_quantiles(void **state)
{
    (void)state;
    struct samples s = {0};
    struct helm_err err = {0};
    assert_true(samples_quantile(&s, 0.5) == 0);
    for (int i = 100; i >= 0; i--) assert_int_equal(samples_add(&s, i, &err), 0);
    assert_int_equal(s.count, 101);
    assert_true(samples_quantile(&s, 0) == 0);
    assert_true(samples_quantile(&s, 0.1) == 10);
    assert_true(samples_quantile(&s, 0.5) == 50);
    assert_true(samples_quantile(&s, 0.99) == 99);
    assert_true(samples_quantile(&s, 1) == 100);
    assert_true(samples_quantile_from(&s, 91, 0.5) == 5); /* the last ten: 9 .. 0 */
    assert_true(samples_quantile_from(&s, 101, 0.5) == 0);
    assert_true(s.value[0] == 100);
    samples_free(&s);
    assert_true(s.value == NULL && s.count == 0);
}

static struct helm_model_info info = {.dtype = "bf16", .vocab = 1000, .hidden = 10};

static void expect_devices(const char *plan, const char *want)
{
    struct bench_group group = {.info = &info};
    struct helm_err err = {0};
    char text[200] = "";
    assert_int_equal(bytes_read_plan(&group, plan, &err), 0);
    for (uint32_t i = 0; i < group.device_count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s=%llu ", group.device[i].name,
                 (unsigned long long)group.device[i].token_bytes);
    assert_string_equal(text, want);
    json_decref(group.stages);
}

static void test_bytes_by_device(void **state)
{
    (void)state;
    expect_devices("{\"stages\": [{\"home\": \"cpu\", \"bytes\": 500}]}", "cpu=20500 ");
    expect_devices("{\"stages\": [{\"home\": \"cpu\", \"bytes\": 500}, {\"home\": \"gpu\", \"bytes\": 70}]}",
                   "cpu=500 gpu=20070 ");
    expect_devices("{\"head\": \"gpu\", \"stages\": [{\"home\": \"gpu\", \"bytes\": 1}, {\"home\": \"cpu\", "
                   "\"bytes\": 2},"
                   " {\"home\": \"gpu\", \"bytes\": 3}, {\"home\": \"cpu\", \"bytes\": 4}]}",
                   "gpu=20004 cpu=6 ");
    expect_devices(
        "{\"stages\": [{\"home\": \"stream\", \"bytes\": 2}, {\"home\": \"stream\", \"bytes\": 3}]}",
        "link=5 gpu=20000 ");
    /* of a mixture the experts that a token chooses; the head as it lies */
    expect_devices("{\"stages\": [{\"home\": \"cpu\", \"bytes\": 500, \"token_bytes\": 40}]}", "cpu=20040 ");
    expect_devices("{\"head\": \"gpu\", \"mixed\": {\"direct_permille\": 250, \"hit_permille\": 200}, "
                   "\"placements\": [[\"lm_head.weight\", \"q6_k\", \"vram0\", 0, 77]], "
                   "\"stages\": [{\"home\": \"mixed\", \"bytes\": 90000, \"token_bytes\": 5000}]}",
                   "cpu=3000 gpu=1077 link=1000 ");
    info.dtype = "f32";
    expect_devices("{\"stages\": [{\"home\": \"cpu\", \"bytes\": 0}]}", "cpu=40000 ");
    info.dtype = "bf16";
}

static void test_bad_plans(void **state)
{
    (void)state;
    static const char *const plans[] = {
        "",
        "{}",
        "{\"stages\": []}",
        "{\"stages\": [{\"home\": \"cpu\"}]}",
        "{\"stages\": [{\"home\": \"moon\", \"bytes\": 1}]}",
        "{\"stages\": [{\"home\": \"disk\", \"bytes\": 1}]}",
        "{\"stages\": [{\"home\": \"cpu\", \"bytes\": -1}]}",
        "{\"stages\": [{\"home\": \"cpu\", \"bytes\": 5, \"token_bytes\": 6}]}",
        "{\"mixed\": {\"hit_permille\": 1001}, \"stages\": [{\"home\": \"mixed\", \"bytes\": 1}]}",
        "{\"stages\": [{\"home\": \"cpu\", \"bytes\": 1}], \"head\": 7}",
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct bench_group group = {.info = &info};
        struct helm_err err = {0};
        assert_true(bytes_read_plan(&group, plans[i], &err) < 0);
        assert_true(err.text[0] != 0);
        assert_null(group.stages);
    }
}

static void test_bound_needs_every_limit(void **state)
{
    (void)state;
    struct bench bench = {0};
    struct bench_group group = {.device = {{"cpu", 2000000}, {"gpu", 3000000}}, .device_count = 2};
    assert_true(bytes_bound_ms(&bench, &group, 100) == 0);
    bench.options.vram_read_gb_s = 1000;
    double ms = bytes_bound_ms(&bench, &group, 100); /* 0.02 + 0.003 */
    assert_true(ms > 0.02299 && ms < 0.02301);
    assert_true(bytes_bound_ms(&bench, &group, 0) == 0);
    group.device[0].token_bytes = 0;
    assert_true(bytes_bound_ms(&bench, &group, 0) > 0);
}

static void test_read_limit(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct read_limit *limit = NULL;
        int rc = read_limit_open(threads, -1, NULL, 5 * MIB, &limit, &err); /* no multiple of a piece */
        if (rc == HELM_E_UNSUPPORTED) {
            print_message("skipped: this machine lacks avx2\n");
            skip();
        }
        assert_int_equal(rc, 0);
        double gb_s = 0;
        assert_int_equal(read_limit_measure(limit, &gb_s, &err), 0);
        assert_true(gb_s > 0.01 && gb_s < 1e5);
        read_limit_close(&limit);
        assert_null(limit);
        read_limit_close(&limit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_is_fixed_and_valid), cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_bytes_by_device),           cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_bound_needs_every_limit),   cmocka_unit_test(test_read_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
