/* Text growing in memory: values of templates at their edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "client/text/growing_text.h"

static void test_numbers_without_end_have_room(void **state)
{
    (void)state;
    struct cli_text text = {0};
    cli_text_fill(&text, "[$,$,$]", JSON(INFINITY), JSON(-INFINITY), JSON(1e300));
    assert_string_equal(text.data, "[3.4e+38,-3.4e+38,3.4e+38]");
    cli_text_free(&text);
    cli_text_say(&text, "$ $", cli_value_fixed(1e300, 6), cli_value_fixed(-0.5, 3));
    assert_int_equal(text.length, 39 + 7 + strlen(" -0.500"));
    assert_non_null(strstr(text.data, ".000000 -0.500"));
    cli_text_free(&text);
}

static void test_a_bad_byte_alone_is_replaced(void **state)
{
    (void)state;
    struct cli_text text = {0};
    cli_text_fill(&text, "{'a':$,}", JSON("x\ny\xff\tz\xc2\x9b\xc2\xa0\xe2\x82"));
    assert_string_equal(text.data, "{\"a\":\"x\\ny\xEF\xBF\xBD\\tz\\u009b\xc2\xa0\xEF\xBF\xBD\"}");
    cli_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers_without_end_have_room),
                                       cmocka_unit_test(test_a_bad_byte_alone_is_replaced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
