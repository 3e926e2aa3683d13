/* When a step's end is looked for without pause: around the time that the steps before make likely, not for
 * long, and only where a CPU is free for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/start/loop.h"
#include "daemon/steps/scheduler.h"

/* One step from now on that takes so long; returns when it ended. */
static uint64_t step(struct pace *pace, uint32_t rows, uint32_t tokens, uint64_t now_us, uint64_t takes_us)
{
    pace_begin(pace, rows, tokens, now_us);
    pace_end(pace, now_us + takes_us);
    return now_us + takes_us;
}

static void test_steps_end_as_those_before(void **state)
{
    (void)state;
    static const uint64_t takes[] = {50, 250, 4500, PACE_LONGEST_US};
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
        struct pace pace = {0};
        uint64_t now = 1000000, margin = takes[i] / PACE_MARGIN;
        if (margin < PACE_MARGIN_US) margin = PACE_MARGIN_US;
        for (int n = 0; n < 5; n++) {
            pace_begin(&pace, 1, 1, now);
            if (n < 2) { /* once may have been chance */
                assert_true(pace.from_us == 0 && pace.until_us == 0);
            } else {
                assert_true(pace.from_us >= now && pace.from_us <= now + takes[i]);
                assert_true(pace.until_us > now + takes[i]);
                assert_true(pace.until_us - pace.from_us <= 2 * margin);
                assert_true(takes[i] <= margin || now + takes[i] - pace.from_us == margin);
            }
            pace_end(&pace, now + takes[i]);
            assert_true(pace.from_us == 0 && pace.until_us == 0);
            now += takes[i] + 20;
        }
    }
}

static void test_long_steps_are_slept_through(void **state)
{
    (void)state;
    static const uint64_t takes[] = {PACE_LONGEST_US + 1, 61000, 2000000};
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
        struct pace pace = {0};
        uint64_t now = 5;
        for (int n = 0; n < 4; n++) {
            pace_begin(&pace, 1, 1, now);
            assert_true(pace.from_us == 0 && pace.until_us == 0);
            pace_end(&pace, now += takes[i]);
        }
    }
}

static void test_other_steps_begin_anew(void **state)
{
    (void)state;
    struct pace pace = {0};
    uint64_t now = 5;
    for (int i = 0; i < 3; i++) now = step(&pace, 1, 1, now, 4000);
    pace_begin(&pace, 1, 1, now);
    assert_true(pace.from_us > 0);
    pace_end(&pace, now += 4000);
    pace_begin(&pace, 2, 2, now); /* another row */
    assert_true(pace.from_us == 0);
    pace_end(&pace, now += 4000);
    now = step(&pace, 2, 2, now, 4000);
    pace_begin(&pace, 2, 2, now);
    assert_true(pace.from_us > 0);
    pace_end(&pace, now += 4000);
    pace_begin(&pace, 2, 513, now); /* a chunk of a prompt */
    assert_true(pace.from_us == 0);
    pace_lost(&pace);
    pace_begin(&pace, 2, 513, now);
    assert_true(pace.from_us == 0);
}

/* Drafts make steps of one sequence longer and shorter in turn. */
static void test_numbers_of_few_tokens_alternate(void **state)
{
    (void)state;
    struct pace pace = {0};
    uint64_t now = 5;
    for (int i = 0; i < 2; i++)
        for (uint32_t tokens = 1; tokens <= 16; tokens++)
            now = step(&pace, 1, tokens, now, 1000 * tokens / 2);
    for (uint32_t tokens = 1; tokens <= 16; tokens++) {
        const uint64_t takes = 1000 * tokens / 2;
        pace_begin(&pace, 1, tokens, now);
        assert_true(pace.from_us > now && pace.from_us < now + takes && pace.until_us > now + takes);
        pace_end(&pace, now += takes);
    }
    for (int i = 0; i < 2; i++) {
        now = step(&pace, 1, 500, now, 4000); /* longer ones begin anew */
        pace_begin(&pace, 1, 400, now);
        assert_true(pace.from_us == 0);
        pace_end(&pace, now += 4000);
    }
    pace_begin(&pace, 2, 16, now); /* another row */
    assert_true(pace.from_us == 0);
}

static void test_one_held_up_widens_nothing(void **state)
{
    (void)state;
    struct pace pace = {0};
    uint64_t now = step(&pace, 1, 1, 5, 4000);
    now = step(&pace, 1, 1, now, 900000);
    pace_begin(&pace, 1, 1, now);
    assert_true(pace.from_us <= now + 4000 && pace.until_us > now + 4000);
    assert_true(pace.until_us - pace.from_us <=
                3 * (uint64_t)(4000 / PACE_MARGIN > PACE_MARGIN_US ? 4000 / PACE_MARGIN : PACE_MARGIN_US));
}

static void test_only_a_free_cpu_looks(void **state)
{
    (void)state;
    assert_true(loop_may_look(2, 1, false, false));
    assert_false(loop_may_look(2, 2, false, false)); /* all compute */
    assert_false(loop_may_look(1, 0, true, true));
    assert_true(loop_may_look(2, 0, true, true));
    assert_false(loop_may_look(16, 16, true, false)); /* the CPUs end the step */
    assert_true(loop_may_look(16, 16, true, true));   /* they wait while the device does */
    assert_false(loop_may_look(2, 2, true, true));
    assert_true(loop_may_look(32, 16, true, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_end_as_those_before),
        cmocka_unit_test(test_long_steps_are_slept_through),
        cmocka_unit_test(test_other_steps_begin_anew),
        cmocka_unit_test(test_one_held_up_widens_nothing),
        cmocka_unit_test(test_numbers_of_few_tokens_alternate),
        cmocka_unit_test(test_only_a_free_cpu_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
