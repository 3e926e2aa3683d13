/* Unit tests of worker-gpu/kernels/built_for.h: which devices a build has code for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker-gpu/kernels/built_for.h"

/* make, make dist, make install: machine code for every generation from 7.5 on, PTX for those to come. */
static void users_builds_have_code_for_all(void **state)
{
    static const int built[] = {75, 80, 86, 89, 90}, device[] = {75, 80, 86, 87, 89, 90, 100, 120};
    (void)state;
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) assert_true(built_for(built, 5, device[i]));
    assert_false(built_for(built, 5, 72));
}

/* make test: nothing for generation 8, since PTX of 9.0 is for later devices. */
static void test_builds_leave_out_generation_8(void **state)
{
    static const int built[] = {75, 90};
    (void)state;
    assert_true(built_for(built, 2, 75));
    assert_true(built_for(built, 2, 90));
    assert_true(built_for(built, 2, 120));
    assert_false(built_for(built, 2, 80));
    assert_false(built_for(built, 2, 86));
    assert_false(built_for(built, 2, 89));
}

static void code_of_a_generation_is_for_later_devices_of_it(void **state)
{
    static const int built[] = {86};
    (void)state;
    assert_true(built_for(built, 1, 89));
    assert_false(built_for(built, 1, 80));
    assert_false(built_for(built, 1, 75));
    assert_false(built_for(built, 0, 75));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(users_builds_have_code_for_all),
                                       cmocka_unit_test(test_builds_leave_out_generation_8),
                                       cmocka_unit_test(code_of_a_generation_is_for_later_devices_of_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
