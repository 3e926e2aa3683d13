/* Decimal numbers: the same number however it is written, order against long double, digits by their
 * place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/decimal.h"

static void test_keys(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key;
        bool whole;
    } cases[] = {
        {"0", "e0", true},
        {"-0", "e0", true},
        {"0.000", "e0", true},
        {"-0e999", "e0", true},
        {"1", "1e0", true},
        {"1.0", "1e0", true},
        {"10e-1", "1e0", true},
        {"0.1E+1", "1e0", true},
        {"100", "1e2", true},
        {"1e2", "1e2", true},
        {"-12.50", "-125e-1", false},
        {"0.05", "5e-2", false},
        {"1.05", "105e-2", false},
        {"500.25e1", "50025e-1", false},
        {"1e999999999999", "1e1000000000", true},
        {"18446744073709551617", "18446744073709551617e0", true},
        {"9007199254740993.0", "9007199254740993e0", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decimal d;
        decimal_read(cases[i].text, &d);
        char *key = decimal_key(&d);
        if (i == 14) /* where it stops does not matter */
            assert_true(strncmp(key, "1e", 2) == 0 && strlen(key) > 10);
        else
            assert_string_equal(key, cases[i].key);
        assert_int_equal(decimal_is_whole(&d), cases[i].whole);
        free(key);
    }
}

static void test_order(void **state)
{
    (void)state;
    static const char *const sorted[] = {"-1e80",
                                         "-18446744073709551617",
                                         "-18446744073709551616",
                                         "-12.6",
                                         "-12.5",
                                         "-12.49",
                                         "-0.1",
                                         "-1e-300",
                                         "0",
                                         "1e-300",
                                         "0.09999",
                                         "0.1",
                                         "0.1000000000000000055511151231257827",
                                         "1",
                                         "9.99",
                                         "10",
                                         "9007199254740992",
                                         "9007199254740993",
                                         "1.5e19"};
    for (size_t i = 0; i < sizeof sorted / sizeof *sorted; i++)
        for (size_t k = 0; k < sizeof sorted / sizeof *sorted; k++) {
            struct decimal a, b;
            decimal_read(sorted[i], &a);
            decimal_read(sorted[k], &b);
            const int order = decimal_compare(&a, &b);
            if ((order > 0) - (order < 0) != (i > k) - (i < k))
                fail_msg("%s %s: %d", sorted[i], sorted[k], order);
        }
}

static void test_digits(void **state)
{
    (void)state;
    static const char *const texts[] = {"1203.405", "0.07", "5e3", "120", "0"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct decimal d;
        char written[32] = "", expected[32];
        decimal_read(texts[i], &d);
        for (int place = 5; place >= -4; place--)
            snprintf(written + strlen(written), 4, "%u%s", decimal_digit(&d, place), place ? "" : ".");
        snprintf(expected, sizeof expected, "%011.4f", strtod(texts[i], NULL));
        assert_string_equal(written, expected);
    }
}

static void test_of_json(void **state)
{
    (void)state;
    struct json_numbers *numbers = NULL;
    struct helm_err err = {0};
    json_t *list;
    static const char text[] = "[5,-7,0.25,18446744073709551617,1.50,1e3]";
    static const char *const keys[] = {"5e0", "-7e0", "25e-2", "18446744073709551617e0", "15e-1", "1e3"};
    assert_int_equal(json_parse_numbers("test", text, strlen(text), 1 << 20, &numbers, &list, &err), 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct decimal d;
        decimal_of(json_array_get(list, i), numbers, &d);
        char *key = decimal_key(&d);
        assert_string_equal(key, keys[i]);
        free(key);
    }
    json_decref(list);
    json_numbers_free(numbers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_digits), cmocka_unit_test(test_of_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
