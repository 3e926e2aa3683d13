/* Unit tests of daemon/observe/drift.c: medians of kinds of steps, when a drift begins and ends, and what is
 * blamed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/observe/drift.h"

/* A step as planned: 100 ms, of which the CPU reads 80 ms at 80 GB/s and the GPU computes 15. */
static const struct drift_work as_planned = {.seconds = 0.1,
                                             .cpu_busy = 0.08,
                                             .gpu_busy = 0.015,
                                             .cpu_bytes = 6.4e9};

static struct drift *fresh(void)
{
    struct drift *d = calloc(1, sizeof *d);
    assert_non_null(d);
    return d;
}

/* Steps for `seconds` of decoding; counts the events. */
struct events {
    uint32_t begins, ends;
};
static struct events run(struct drift *d, const struct drift_work *measured, const struct drift_work *planned,
                         double seconds)
{
    struct events events = {0};
    for (double at = 0; at < seconds - 1e-9; at += measured->seconds) {
        enum drift_event event = drift_take_decode(d, 1, 128, measured, planned);
        events.begins += event == DRIFT_BEGINS;
        events.ends += event == DRIFT_ENDS;
    }
    return events;
}

static void kinds_have_medians(void **state)
{
    (void)state;
    struct drift *d = fresh();
    struct drift_report report;
    assert_false(drift_report(&d->decode[0], &report));
    const double seconds[] = {0.3, 0.1, 0.2, 9, 0.25};
    for (size_t i = 0; i < 5; i++) {
        struct drift_work measured = {.seconds = seconds[i]}, planned = {.seconds = 0.2};
        assert_int_equal(drift_take_decode(d, 3, 100 + (double)i, &measured, &planned), DRIFT_NOTHING);
    }
    assert_false(drift_report(&d->decode[0], &report));
    assert_true(drift_report(&d->decode[2], &report));
    assert_int_equal(report.count, 5);
    assert_float_equal(report.measured, 0.25, 1e-6);
    assert_float_equal(report.planned, 0.2, 1e-6);
    assert_float_equal(report.shape, 102, 1e-6);
    for (int i = 0; i < 1000; i++) /* the old ones are forgotten */
        assert_int_equal(drift_take_decode(d, 3, 50, &(struct drift_work){.seconds = 0.01},
                                           &(struct drift_work){.seconds = 0.01}),
                         DRIFT_NOTHING);
    assert_true(drift_report(&d->decode[2], &report));
    assert_int_equal(report.count, 1005);
    assert_float_equal(report.measured, 0.01, 1e-6);
    assert_int_equal(drift_take_decode(d, 0, 1, &as_planned, &as_planned), DRIFT_NOTHING);
    assert_int_equal(drift_take_decode(d, ARENA_SLOTS_MAX + 1, 1, &as_planned, &as_planned), DRIFT_NOTHING);
    free(d);
}

static void prompts_are_kept_by_length(void **state)
{
    (void)state;
    struct drift *d = fresh();
    struct drift_report report;
    drift_take_ttft(d, 128, 0.3, 0.2);
    drift_take_ttft(d, 200, 0.5, 0.3);
    drift_take_ttft(d, 255, 0.4, 0.35);
    drift_take_ttft(d, 256, 7, 6);
    drift_take_ttft(d, 1, 0.01, 0.02);
    drift_take_ttft(d, UINT32_MAX, 1, 1);
    assert_true(drift_report(&d->ttft[7], &report));
    assert_int_equal(report.count, 3);
    assert_float_equal(report.shape, 200, 1e-6);
    assert_float_equal(report.measured, 0.4, 1e-6);
    assert_float_equal(report.planned, 0.3, 1e-6);
    assert_true(drift_report(&d->ttft[8], &report) && report.count == 1);
    assert_true(drift_report(&d->ttft[0], &report) && report.count == 1);
    assert_true(drift_report(&d->ttft[DRIFT_TTFTS - 1], &report) && report.count == 1);
    assert_false(drift_report(&d->ttft[1], &report));
    free(d);
}

static void a_minute_beyond_the_limit_is_told_once_and_its_end_too(void **state)
{
    (void)state;
    struct drift *d = fresh();
    struct drift_work slow = as_planned;
    slow.seconds = 0.122;
    slow.cpu_busy = 0.105;
    struct events e = run(d, &as_planned, &as_planned, 100);
    assert_int_equal(e.begins + e.ends, 0);
    e = run(d, &slow, &as_planned, 49);
    assert_int_equal(e.begins, 0); /* not for a minute yet */
    e = run(d, &slow, &as_planned, 300);
    assert_int_equal(e.begins, 1);
    assert_int_equal(e.ends, 0);
    assert_true(d->drifting);
    if (strcmp(d->text, "decode 22 % slower than planned for 60 s: CPU reads 61 GB/s, planned 80") != 0)
        fail_msg("'%s'", d->text);
    e = run(d, &as_planned, &as_planned, 19);
    assert_int_equal(e.ends, 0);
    e = run(d, &as_planned, &as_planned, 100);
    assert_int_equal(e.ends, 1);
    assert_int_equal(e.begins, 0);
    assert_false(d->drifting);
    assert_non_null(strstr(d->text, "as planned again: 0 %"));
    e = run(d, &slow, &as_planned, 100);
    assert_int_equal(e.begins, 1); /* another episode */
    free(d);
}

static void what_is_within_the_limit_or_short_is_no_drift(void **state)
{
    (void)state;
    struct drift *d = fresh();
    struct drift_work slow = as_planned;
    slow.seconds = 0.114;
    assert_int_equal(run(d, &slow, &as_planned, 600).begins, 0);
    slow.seconds = 0.2;
    for (int i = 0; i < 20; i++) { /* half a minute of it, then as planned */
        assert_int_equal(run(d, &slow, &as_planned, 30).begins, 0);
        assert_int_equal(run(d, &as_planned, &as_planned, 30).begins, 0);
    }
    const struct drift_work unknown = {0};
    assert_int_equal(run(d, &slow, &unknown, 600).begins, 0); /* nothing to hold it against */
    struct drift_report report;
    assert_true(drift_report(&d->decode[0], &report) && report.planned == 0);
    free(d);
}

static void faster_is_a_drift_as_well(void **state)
{
    (void)state;
    struct drift *d = fresh();
    const struct drift_work fast = {.seconds = 0.06, .cpu_busy = 0.04, .gpu_busy = 0.015, .cpu_bytes = 6.4e9};
    assert_int_equal(run(d, &fast, &as_planned, 120).begins, 1);
    assert_non_null(strstr(d->text, "decode 40 % faster than planned"));
    assert_non_null(strstr(d->text, "CPU reads 160 GB/s, planned 80"));
    free(d);
}

static void what_is_far_off_is_told_in_times(void **state)
{
    (void)state;
    struct drift *d = fresh();
    const struct drift_work slow = {.seconds = 0.9, .cpu_busy = 0.85, .cpu_bytes = 6.4e9};
    assert_int_equal(run(d, &slow, &as_planned, 70).begins, 1);
    assert_non_null(strstr(d->text, "decode 9 times as slow as planned for"));
    free(d);
}

static void the_resource_that_explains_it_is_named(void **state)
{
    (void)state;
    static const struct {
        struct drift_work measured, planned;
        const char *word;
    } cases[] = {
        {{.seconds = 0.2, .cpu_busy = 0.08, .gpu_busy = 0.115, .cpu_bytes = 1e9, .link_bytes = 4e9},
         {.seconds = 0.1,
          .cpu_busy = 0.08,
          .gpu_busy = 0.015,
          .link_busy = 0.09,
          .cpu_bytes = 1e9,
          .link_bytes = 4e9},
         "the link brings 20 GB/s, planned 40"},
        {{.seconds = 0.2, .cpu_busy = 0.05, .cpu_bytes = 5e9, .link_bytes = 4e9},
         {.seconds = 0.1, .cpu_busy = 0.05, .link_busy = 0.098, .cpu_bytes = 5e9, .link_bytes = 4e9},
         "the disk gives 20 GB/s, planned 40"},
        {{.seconds = 0.2, .cpu_busy = 0.08, .gpu_busy = 0.03},
         {.seconds = 0.1, .cpu_busy = 0.08, .gpu_busy = 0.01},
         "neither CPU nor GPU"},
        {{.seconds = 0.2, .cpu_busy = 0.02, .gpu_busy = 0.17},
         {.seconds = 0.1, .cpu_busy = 0.02, .gpu_busy = 0.07},
         "GPU takes 2.4 times its planned time"},
        {{.seconds = 0.2, .gpu_busy = 0.19},
         {.seconds = 0.1, .gpu_busy = 0},
         "GPU works 95 % of the time, planned 0"},
        {{.seconds = 0.2, .cpu_busy = 0.18},
         {.seconds = 0.1, .cpu_busy = 0.09},
         "CPU takes 2.0 times its planned time"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct drift *d = fresh();
        assert_int_equal(run(d, &cases[i].measured, &cases[i].planned, 70).begins, 1);
        if (!strstr(d->text, cases[i].word)) fail_msg("'%s' does not say '%s'", d->text, cases[i].word);
        free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_have_medians),
        cmocka_unit_test(prompts_are_kept_by_length),
        cmocka_unit_test(a_minute_beyond_the_limit_is_told_once_and_its_end_too),
        cmocka_unit_test(what_is_within_the_limit_or_short_is_no_drift),
        cmocka_unit_test(faster_is_a_drift_as_well),
        cmocka_unit_test(what_is_far_off_is_told_in_times),
        cmocka_unit_test(the_resource_that_explains_it_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
