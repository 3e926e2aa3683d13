/* Where a stop text begins, and what could be the beginning of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "client/text/stop_text.h"

static void test_stop_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {"STOP", "abc"};
    const struct stop_texts stop = {texts, 2}, none = {texts, 0};
    assert_int_equal(stop_text_find(&stop, "xxabcSTOP", 9, 0), 2);
    assert_int_equal(stop_text_find(&stop, "xxabcSTOP", 9, 3), 5);
    assert_true(stop_text_find(&stop, "xxab", 4, 0) == SIZE_MAX);
    assert_true(stop_text_find(&none, "abc", 3, 0) == SIZE_MAX);
    assert_int_equal(stop_text_held(&stop, "xxSTO", 5, 0), 3);
    assert_int_equal(stop_text_held(&stop, "xxSTO", 5, 3), 0); /* text before `from` was decided */
    assert_int_equal(stop_text_held(&stop, "xxa", 3, 0), 1);
    assert_int_equal(stop_text_held(&none, "xxa", 3, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
