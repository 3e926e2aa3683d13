/* Unit tests of common/base/load.c: whose time counts, and that one's own does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/load.h"
#include "common/base/units.h"

static void only_allowed_cpus_and_only_what_is_no_waiting(void **state)
{
    (void)state;
    static const char stat[] = "cpu  9999 9999 9999 9999 9999 9999 9999 9999 9999 9999\n"
                               "cpu0 100 10 20 5000 600 3 4 5 90 1\n"
                               "cpu1 1000 0 0 0 0 0 0 0 0 0\n"
                               "cpu12 7 0 0 1\n"
                               "intr 12345 cpu1 1\n";
    const uint64_t tick_us = 1000000 / (uint64_t)sysconf(_SC_CLK_TCK);
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    assert_int_equal(load_busy_us(stat, &allowed), 0);
    CPU_SET(0, &allowed);
    assert_int_equal(load_busy_us(stat, &allowed), (100 + 10 + 20 + 3 + 4 + 5) * tick_us);
    CPU_SET(12, &allowed);
    assert_int_equal(load_busy_us(stat, &allowed), (142 + 7) * tick_us);
    assert_int_equal(load_busy_us("", &allowed), 0);
    assert_int_equal(load_busy_us("cpu0 x", &allowed), 0);
}

static void spin(uint64_t us)
{
    const uint64_t end = units_now_us() + us;
    while (units_now_us() < end) {}
}

/* A child's time counts as one's own only when it has ended: before that it is another program. On a machine
 * where others are at work the first figure holds them, too: what is known is the difference. */
static void what_a_child_took_is_ones_own_when_it_has_ended(void **state)
{
    (void)state;
    struct load load;
    load_begin(&load);
    assert_true(CPU_COUNT(&load.allowed) >= 1);
    if (!load.busy_us) {
        print_message("skipped: there is no /proc/stat here\n");
        skip();
    }
    const pid_t child = fork();
    if (child == 0) {
        spin(600000);
        _exit(0);
    }
    assert_true(child > 0);
    spin(400000);
    assert_true(load_others(&load) <= 100);
    assert_int_equal(waitpid(child, NULL, 0), child);
    load.own_us -= 10000000; /* as if ten seconds more had been ours: nothing is left for others */
    assert_int_equal(load_others(&load), 0);
    load.own_us += 10000000;
    load.busy_us = 0;
    assert_int_equal(load_others(&load), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_allowed_cpus_and_only_what_is_no_waiting),
        cmocka_unit_test(what_a_child_took_is_ones_own_when_it_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
