/* Counters and histograms of helmd: values in their buckets, ends and refusals by number, the steps' time by
 * resource. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/observe/metrics.h"

static void bounds_rise_and_have_buckets(void **state)
{
    (void)state;
    for (int kind = 0; kind < METRICS_KINDS; kind++) {
        uint32_t count;
        const double *bound = metrics_bounds((enum metrics_kind)kind, &count);
        assert_in_range(count, 1, METRICS_BUCKETS);
        for (uint32_t i = 1; i < count; i++) assert_true(bound[i] > bound[i - 1]);
    }
}

static void a_bound_belongs_to_its_bucket(void **state)
{
    (void)state;
    struct metrics m;
    uint32_t count;
    metrics_init(&m);
    const double *bound = metrics_bounds(METRICS_TTFT, &count);
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        metrics_add_value(&m, METRICS_TTFT, bound[i]);
        sum += bound[i];
    }
    metrics_add_value(&m, METRICS_TTFT, bound[count - 1] * 2);
    for (uint32_t i = 0; i <= count; i++) assert_int_equal(m.histogram[METRICS_TTFT].bucket[i], 1);
    assert_true(m.histogram[METRICS_TTFT].sum == sum + bound[count - 1] * 2);
    assert_true(m.histogram[METRICS_TPOT].sum == 0);
}

/* A request that never had a slot is in no histogram; one of one token has no time per further token. */
static void a_request_counts_as_far_as_it_came(void **state)
{
    (void)state;
    static const struct metrics_request request[] = {
        {.finish = 4, .queue_seconds = -1, .ttft_seconds = -1, .tpot_seconds = -1},
        {.finish = 3, .queue_seconds = 0, .ttft_seconds = 0.5, .tpot_seconds = -1},
        {.finish = 3, .queue_seconds = 2, .ttft_seconds = 3, .tpot_seconds = 0.02},
        {.finish = METRICS_ENDS, .queue_seconds = -1, .ttft_seconds = -1, .tpot_seconds = -1},
    };
    struct metrics m;
    metrics_init(&m);
    for (size_t i = 0; i < sizeof request / sizeof *request; i++) metrics_add_request(&m, &request[i]);
    assert_int_equal(m.ended[3], 2);
    assert_int_equal(m.ended[4], 1);
    static const uint32_t counted[] = {[METRICS_QUEUE] = 2, [METRICS_TTFT] = 2, [METRICS_TPOT] = 1};
    for (int kind = METRICS_QUEUE; kind <= METRICS_TPOT; kind++) {
        uint64_t all = 0;
        for (uint32_t i = 0; i <= METRICS_BUCKETS; i++) all += m.histogram[kind].bucket[i];
        assert_int_equal(all, counted[kind]);
    }
    assert_true(m.histogram[METRICS_TTFT].sum == 3.5);
    metrics_add_refusal(&m, 3);
    metrics_add_refusal(&m, METRICS_REFUSALS);
    assert_int_equal(m.refused[3], 1);
}

static void what_nobody_computed_is_waiting(void **state)
{
    (void)state;
    const struct step_result result = {.row_count = 3};
    const struct arena_times turns[2] = {{.busy_ns = 300, .wait_ns = 600}, {.busy_ns = 500, .link_bytes = 7}},
                             both[2] = {{.busy_ns = 900}, {.busy_ns = 900, .link_bytes = 5}};
    struct metrics m;
    metrics_init(&m);
    metrics_add_step(&m, &result, turns, 2, 1000);
    assert_int_equal(m.nobody_ns, 200);
    metrics_add_step(&m, &result, both, 2, 1000); /* at once: nothing is left, and nothing is taken back */
    assert_int_equal(m.nobody_ns, 200);
    assert_int_equal(m.link_bytes, 12);
    assert_int_equal(m.histogram[METRICS_STEP_SEQUENCES].bucket[2], 2);
    assert_true(m.histogram[METRICS_STEP_SEQUENCES].sum == 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_rise_and_have_buckets),
        cmocka_unit_test(a_bound_belongs_to_its_bucket),
        cmocka_unit_test(a_request_counts_as_far_as_it_came),
        cmocka_unit_test(what_nobody_computed_is_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
