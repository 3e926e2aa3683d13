/* Unit tests of daemon/planner/refusal.c and what it asks of the search: what fits nowhere is refused with
 * numbers, and what is named instead fits. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/daemon/planner/plan_case.h"

static void refused(struct bench *b, struct helm_err *err)
{
    struct plan plan;
    struct arena_spec spec;
    memset(err, 0, sizeof *err);
    assert_int_equal(planner_make(&b->r, &plan, &spec, err), HELM_E_CAPACITY);
    assert_true(b->refusal.refused && b->refusal.needed > b->refusal.available);
    assert_null(plan.unit);
    print_message("%s\n", err->text);
}

static void what_fits_nowhere_is_refused_with_what_would(void **state)
{
    (void)state;
    struct bench b;
    struct helm_err err;
    bench_open(&b, &shape_8b, 100 * GIB, 600 * MIB);
    refused(&b, &err);
    assert_non_null(strstr(err.text, "of VRAM, or --device cpu"));
    assert_non_null(strstr(err.text, "has 600.00 MiB (--vram)"));
    assert_non_null(strstr(err.text, "context"));
    assert_string_equal(b.refusal.what, "VRAM");
    assert_int_equal(b.refusal.available, 600 * MIB);
    /* The named amount is enough. */
    b.r.machine.device.limit = b.refusal.needed;
    struct plan plan;
    make(&b, &plan);
    plan_free(&plan);
    bench_close(&b);

    bench_open(&b, &shape_8b, 8 * GIB, 8 * GIB); /* 17 GB of weights in 16 of memory */
    refused(&b, &err);
    assert_non_null(strstr(err.text, "of host memory"));
    bench_close(&b);

    bench_open(&b, &shape_8b, 20 * GIB, 2 * GIB);
    b.r.wish.ctx = 40960; /* 160 MiB of KV a layer */
    refused(&b, &err);
    assert_non_null(strstr(b.refusal.nearest, "--ctx 20480, or"));
    assert_non_null(strstr(err.text, "--ctx 20480, or"));
    b.r.wish.ctx = 20480;
    make(&b, &plan);
    plan_free(&plan);
    bench_close(&b);

    bench_open(&b, &shape_8b, 100 * GIB, 8 * GIB);
    b.r.strategy = SEARCH_ALL_GPU;
    refused(&b, &err);
    assert_non_null(strstr(b.refusal.nearest, "of VRAM, or --strategy best, or --device cpu"));
    assert_true(b.refusal.needed > 15 * GIB);
    b.r.machine.device.limit = b.refusal.needed;
    make(&b, &plan);
    plan_free(&plan);
    bench_close(&b);

    bench_open(&b, &shape_8b, 10 * GIB, 0);
    b.r.device_required = false;
    b.profile.gpu.device = PROFILE_DEVICE_NONE;
    refused(&b, &err);
    assert_string_equal(b.refusal.what, "host memory");
    assert_non_null(strstr(err.text, "weights 15.26 GiB"));
    assert_non_null(strstr(b.refusal.nearest, "of host memory"));
    b.r.machine.memory.available_bytes = b.refusal.needed;
    make(&b, &plan);
    plan_free(&plan);
    bench_close(&b);
}

/* The best of TIMES times is held to a bound; instrumented, it runs once without one, on one of the
 * machines. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TIMES    1
#define MACHINES 1
#define LEAST_US UINT64_MAX
#else
#define TIMES    3
#define MACHINES 2
#define LEAST_US 500000
#endif

/* However many layers there are: what would fit is looked for by kinds of layers, not one by one. */
static void the_largest_model_is_refused_at_once(void **state)
{
    (void)state;
    static const struct made_up_shape largest = {MODEL_LAYERS_MAX, 1024, 3072, 16, 8, 128, 151936, true};
    static const struct {
        uint64_t host, vram;
    } machines[] = {{8 * GIB, 16 * GIB}, {2 * GIB, GIB}};
    for (int i = 0; i < MACHINES; i++) {
        struct bench b;
        struct helm_err err;
        uint64_t least_us = UINT64_MAX;
        bench_open(&b, &largest, machines[i].host, machines[i].vram);
        for (int t = 0; t < TIMES; t++) {
            uint64_t start_us = spent_us();
            refused(&b, &err);
            uint64_t took_us = spent_us() - start_us;
            if (took_us < least_us) least_us = took_us;
        }
        print_message("%u layers refused in %.1f ms\n", largest.layers, (double)least_us / 1e3);
        assert_true(least_us < LEAST_US);
        /* The named amount is enough. */
        bool host = strcmp(b.refusal.what, "VRAM") != 0;
        *(host ? &b.r.machine.memory.available_bytes : &b.r.machine.device.limit) = b.refusal.needed;
        struct plan plan;
        make(&b, &plan);
        plan_free(&plan);
        bench_close(&b);
    }
}

static void wishes_that_contradict_are_refused(void **state)
{
    (void)state;
    struct bench b;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    bench_open(&b, &shape_8b, 100 * GIB, 8 * GIB);
    b.r.strategy = SEARCH_ALL_CPU; /* and the device is required */
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "--device cpu"));
    b.r.strategy = SEARCH_BEST;
    b.r.profile = NULL;
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "profile"));
    b.r.profile = &b.profile;
    b.profile.gpu.device = PROFILE_DEVICE_NONE;
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_MISMATCH);
    b.profile = made_up_profile(&rates);
    b.profile.cpu.gemv.value = 0;
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu.gemv"));
    b.profile = made_up_profile(&rates);
    b.r.batch = 9;
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "--batch 9"));
    b.r.batch = 4;
    b.r.wish.ctx = 4096;
    b.r.wish.page_count = 500;
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "4 contexts of 4096"));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_nowhere_is_refused_with_what_would),
        cmocka_unit_test(the_largest_model_is_refused_at_once),
        cmocka_unit_test(wishes_that_contradict_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
