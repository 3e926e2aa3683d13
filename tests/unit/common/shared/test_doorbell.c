/* Unit tests of common/shared/doorbell.c that need one thread; both sides at once:
 * tests/ipc/test_doorbell_threads.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include "common/shared/doorbell.h"
#include "common/base/units.h"

static uint64_t thread_cpu_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static void a_rung_bell_returns_at_once(void **state)
{
    (void)state;
    struct doorbell bell;
    uint32_t now = 77;
    doorbell_init(&bell, 5);
    assert_int_equal(doorbell_read(&bell), 5);
    assert_true(doorbell_wait(&bell, 4, 0, 0, &now));
    assert_int_equal(now, 5);
    doorbell_ring(&bell, 6);
    assert_true(doorbell_wait(&bell, 5, 1000, -1, &now));
    assert_int_equal(now, 6);
    assert_true(doorbell_wait(&bell, 5, 0, -1, NULL));
    assert_int_equal(bell.sleepers, 0);
}

static void a_timeout_is_kept_and_changes_nothing(void **state)
{
    (void)state;
    static const uint32_t spins_us[] = {0, 200, 1000000};
    struct doorbell bell;
    doorbell_init(&bell, 9);
    for (size_t i = 0; i < sizeof spins_us / sizeof *spins_us; i++) {
        uint32_t now = 77;
        uint64_t start_us = units_now_us();
        assert_false(doorbell_wait(&bell, 9, spins_us[i], 30, &now));
        uint64_t took_us = units_now_us() - start_us;
        assert_in_range(took_us, 30000, 3000000);
        assert_int_equal(now, 77);
        assert_int_equal(bell.sleepers, 0);
    }
    uint32_t now = 77;
    assert_false(doorbell_wait(&bell, 9, 1000000, 0, &now)); /* only looks */
}

static void waiting_sleeps(void **state)
{
    (void)state;
    struct doorbell bell;
    doorbell_init(&bell, 1);
    uint64_t before_us = thread_cpu_us();
    assert_false(doorbell_wait(&bell, 1, 0, 200, NULL));
    assert_in_range(thread_cpu_us() - before_us, 0, 50000);
    before_us = thread_cpu_us();
    assert_false(doorbell_wait(&bell, 1, 1000, 200, NULL)); /* the spin ends after its budget */
    assert_in_range(thread_cpu_us() - before_us, 0, 50000);
}

static void on_alarm(int number)
{
    (void)number;
}

static void signals_do_not_end_or_lengthen_a_wait(void **state)
{
    (void)state;
    struct sigaction action = {.sa_handler = on_alarm}, old;
    struct itimerval every = {{0, 5000}, {0, 5000}}, off = {{0, 0}, {0, 0}};
    struct doorbell bell;
    doorbell_init(&bell, 1);
    assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
    uint64_t start_us = units_now_us();
    bool rung = doorbell_wait(&bell, 1, 0, 100, NULL);
    uint64_t took_us = units_now_us() - start_us;
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &old, NULL);
    assert_false(rung);
    assert_in_range(took_us, 100000, 3000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rung_bell_returns_at_once),
        cmocka_unit_test(a_timeout_is_kept_and_changes_nothing),
        cmocka_unit_test(waiting_sleeps),
        cmocka_unit_test(signals_do_not_end_or_lengthen_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
