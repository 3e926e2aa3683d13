/* Unit tests of common/base/units.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/units.h"

static void sizes_with_units_parse(void **state)
{
    (void)state;
    struct helm_err err = {0};
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"0", 0},   {"8GiB", 8 * GIB}, {"512MiB", 512 * MIB}, {"1.5KiB", 1536}, {"8GB", 8000000000u},
                 {"77", 77}, {"8G", 8 * GIB},   {"512m", 512 * MIB},   {"1.5k", 1536}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 1;
        assert_int_equal(units_parse_size("--vram", cases[i].text, &bytes, &err), 0);
        assert_int_equal(bytes, cases[i].bytes);
    }
}

static void bad_sizes_name_the_option(void **state)
{
    (void)state;
    static const char *const bad[] = {"",    "GiB", "-1",    "8 GiB", "8gib",
                                      "nan", "inf", "1e400", "0x10",  "9999999TiB"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct helm_err err = {0};
        uint64_t bytes;
        assert_int_equal(units_parse_size("--vram", bad[i], &bytes, &err), HELM_E_USAGE);
        assert_non_null(strstr(err.text, "--vram"));
    }
}

static void numbers_keep_their_bounds(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint64_t n;
    double d;
    assert_int_equal(units_parse_u64("-n", "12", 1, 12, &n, &err), 0);
    assert_int_equal(n, 12);
    assert_int_equal(units_parse_u64("-n", "13", 1, 12, &n, &err), HELM_E_USAGE);
    assert_int_equal(units_parse_u64("-n", "99999999999999999999999", 0, UINT64_MAX, &n, &err), HELM_E_USAGE);
    assert_int_equal(units_parse_u64("-n", "1x", 0, 9, &n, &err), HELM_E_USAGE);
    assert_int_equal(units_parse_u64("-n", "-1", 0, 9, &n, &err), HELM_E_USAGE);
    assert_int_equal(units_parse_double("--top-p", "0.25", 0, 1, &d, &err), 0);
    assert_true(d == 0.25);
    assert_int_equal(units_parse_double("--top-p", "nan", 0, 1, &d, &err), HELM_E_USAGE);
    assert_int_equal(units_parse_double("--top-p", "1.5", 0, 1, &d, &err), HELM_E_USAGE);
    assert_int_equal(units_parse_double("--presence-penalty", "-1.5", -2, 2, &d, &err), 0);
    assert_true(d == -1.5);
}

static void thousands_of_tokens_are_of_1024(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint64_t n = 0;
    assert_int_equal(units_parse_tokens("--ctx", "4k", 1, 8192, &n, &err), 0);
    assert_int_equal(n, 4096);
    assert_int_equal(units_parse_tokens("--ctx", "8K", 1, 8192, &n, &err), 0);
    assert_int_equal(n, 8192);
    assert_int_equal(units_parse_tokens("--ctx", "77", 1, 8192, &n, &err), 0);
    assert_int_equal(n, 77);
    static const char *const bad[] = {
        "9k", "k", "4kk", "0k", "-1k", "4.5k", "99999999999999999999k", "18446744073709551k"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(units_parse_tokens("--ctx", bad[i], 1, 8192, &n, &err), HELM_E_USAGE);
    double d;
    assert_int_equal(units_parse_double("--top-p", "0.0", 1e-38, 1, &d, &err), HELM_E_USAGE);
    assert_string_equal(err.text, "--top-p: 0.0 is not above 0 and at most 1");
}

static void sizes_are_written_as_people_read_them(void **state)
{
    (void)state;
    char text[UNITS_TEXT];
    assert_string_equal(units_format_size(0, text), "0 B");
    assert_string_equal(units_format_size(1536, text), "1.50 KiB");
    assert_string_equal(units_format_size(16 * GIB, text), "16.00 GiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_with_units_parse),
        cmocka_unit_test(bad_sizes_name_the_option),
        cmocka_unit_test(numbers_keep_their_bounds),
        cmocka_unit_test(thousands_of_tokens_are_of_1024),
        cmocka_unit_test(sizes_are_written_as_people_read_them),
    };
    return cmocka_run_group_tests_name("common/units", tests, NULL, NULL);
}
