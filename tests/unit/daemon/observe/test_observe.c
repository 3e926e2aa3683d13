/* Workers' times of a step beside the step's own: bounded by it, and the GPU worker's turns apart from the
 * CPU worker's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/observe/observe.h"

static void settle(struct arena_times done[2], uint64_t cpu_busy, uint64_t cpu_wait, uint64_t gpu_busy,
                   uint64_t gpu_wait, uint64_t step)
{
    done[0] = (struct arena_times){.busy_ns = cpu_busy, .wait_ns = cpu_wait};
    done[1] = (struct arena_times){.busy_ns = gpu_busy, .wait_ns = gpu_wait};
    observe_settle(done, 2, step, 0);
    for (int w = 0; w < 2; w++) assert_true(done[w].busy_ns + done[w].wait_ns <= step);
}

static void test_true_words_stay(void **state)
{
    (void)state;
    struct arena_times done[2];
    settle(done, 41000, 4900, 4400, 41500, 46000);
    assert_true(done[0].busy_ns == 41000 && done[0].wait_ns == 4900);
    assert_true(done[1].busy_ns == 4400 && done[1].wait_ns == 41500);
    /* The head is the CPU's: the GPU worker was done 8,000 before it, and 5,400 of the CPU's came after
     * that. */
    settle(done, 37800, 2600, 2000, 30400, 40400);
    assert_true(done[1].busy_ns == 2000 && done[1].wait_ns == 30400);
}

static void test_nothing_is_longer_than_the_step(void **state)
{
    (void)state;
    struct arena_times done[2];
    settle(done, 900, 500, 0, 2000, 1000);
    assert_true(done[0].busy_ns == 900 && done[0].wait_ns == 100);
    assert_true(done[1].busy_ns == 0 && done[1].wait_ns == 1000);
    settle(done, 5000, 5000, 5000, 0, 1000);
    assert_true(done[0].busy_ns == 1000 && done[0].wait_ns == 0);
}

/* A device that cannot tell says it computed all the time. */
static void test_turns_are_taken_apart(void **state)
{
    (void)state;
    struct arena_times done[2];
    settle(done, 700, 300, 1000, 0, 1000);
    assert_true(done[1].busy_ns == 300 && done[1].wait_ns == 700);
    settle(done, 700, 300, 800, 0, 1000); /* 200 of the 700 may have been outside its part */
    assert_true(done[1].busy_ns == 300 && done[1].wait_ns == 500);
    settle(done, 100, 300, 200, 0, 1000);
    assert_true(done[1].busy_ns == 200 && done[1].wait_ns == 0);
}

static void test_one_worker(void **state)
{
    (void)state;
    struct arena_times done = {.busy_ns = 500, .wait_ns = 700};
    observe_settle(&done, 1, 600, 0);
    assert_true(done.busy_ns == 500 && done.wait_ns == 100);
}

/* The CPU attends while the GPU does. */
static void test_both_at_once(void **state)
{
    (void)state;
    struct arena_times done[2] = {{.busy_ns = 700, .wait_ns = 900}, {.busy_ns = 800, .wait_ns = 150}};
    observe_settle(done, 2, 1000, STEP_KV_ASSISTED);
    assert_true(done[0].busy_ns == 700 && done[0].wait_ns == 300);
    assert_true(done[1].busy_ns == 800 && done[1].wait_ns == 150);
    observe_settle(done, 2, 1000, 0); /* where they take turns they cannot both have computed for so long */
    assert_true(done[1].busy_ns == 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_true_words_stay),       cmocka_unit_test(test_nothing_is_longer_than_the_step),
        cmocka_unit_test(test_turns_are_taken_apart), cmocka_unit_test(test_one_worker),
        cmocka_unit_test(test_both_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
