/* Bounded JSON: size, depth, duplicates, what follows the value, and every getter's errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/json.h"

static int parse(const char *text, json_t **out, struct helm_err *err)
{
    return json_parse_bounded("src", text, strlen(text), 1000, out, err);
}

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"{}", 0, ""},
        {" [1, 2] \n", 0, ""},
        {"\"[[[[\"", 0, ""},
        {"{\"a\": \"\\\"[\"}", 0, ""},
        {"17", 0, ""},
        {"", HELM_E_FORMAT, "src: not valid JSON at line 1"},
        {"{} {}", HELM_E_FORMAT, "src: not valid JSON"},
        {"[1,]", HELM_E_FORMAT, "not valid JSON"},
        {"{\"a\": 1, \"a\": 1}", HELM_E_FORMAT, "duplicate object key"},
        {"\"\xff\"", HELM_E_FORMAT, "not valid JSON"},
        {"nul", HELM_E_FORMAT, "not valid JSON"},
        {"]]]]", HELM_E_FORMAT, "not valid JSON"},
        {"\"\\", HELM_E_FORMAT, "not valid JSON"},
        {"1e999", 0, ""}, /* for Python it is infinite */
        {"-1E999", 0, ""},
        {"1e99e9", HELM_E_FORMAT, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = (json_t *)&value;
        struct helm_err err = {0};
        int rc = parse(cases[i].text, &value, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("'%s': code %d, '%s'", cases[i].text, rc, err.text);
        if (rc) assert_null(value);
        json_decref(value);
    }
}

/* A whole number of any width is JSON, and refused where it is read as one; NaN and Infinity are what Python
 * writes. */
static void test_numbers(void **state)
{
    (void)state;
    static const char text[] =
        "{\"wide\":1000000000000000019884624838656,\"low\":-9223372036854775808,\"s\":\"1e \\\" "
        "99999999999999999999 NaN\",\"most\":9223372036854775807,\"over\":-9223372036854775809,"
        "\"x\":[NaN,-Infinity,Infinity,1.5e3]}";
    json_t *value = NULL;
    struct helm_err err = {0};
    uint64_t whole = 7;
    double real = 0;
    if (json_parse_python("test", text, strlen(text), sizeof text, &value, &err)) fail_msg("%s", err.text);
    assert_int_equal(json_get_u64(value, "wide", true, 0, UINT64_MAX, &whole, &err), HELM_E_FORMAT);
    assert_int_equal(json_get_double(value, "wide", true, 0, 1e40, &real, &err), 0);
    assert_true(real == 1e30 && whole == 7);
    assert_true(json_integer_value(json_object_get(value, "low")) == INT64_MIN);
    assert_true(json_integer_value(json_object_get(value, "most")) == INT64_MAX);
    assert_true(json_real_value(json_object_get(value, "over")) == -9223372036854775808.0);
    assert_string_equal(json_string_value(json_object_get(value, "s")), "1e \" 99999999999999999999 NaN");
    const json_t *list = json_object_get(value, "x");
    assert_string_equal(json_string_value(json_array_get(list, 0)), "NaN");
    assert_string_equal(json_string_value(json_array_get(list, 1)), "-Infinity");
    assert_int_equal(json_get_double(value, "x", true, 0, 1, &real, &err), HELM_E_FORMAT);
    json_decref(value);
    static const char *const bad[] = {"[NaN]", "[-Infinity]", "[Infinity]", "[012345678901234567890123]",
                                      "[1a]",  "[-]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(parse(bad[i], &value, &err), HELM_E_FORMAT);
    static const char *const bad_python[] = {"[NaNs]", "[nan]", "[-NaN]", "[Infinit]", "[1NaN]"};
    for (size_t i = 0; i < sizeof bad_python / sizeof *bad_python; i++)
        assert_int_equal(json_parse_python("test", bad_python[i], strlen(bad_python[i]), 99, &value, &err),
                         HELM_E_FORMAT);
    char digits[500]; /* beyond a double */
    memset(digits, '8', sizeof digits);
    digits[0] = '[', digits[498] = ']', digits[499] = '\0';
    if (parse(digits, &value, &err)) fail_msg("%s", err.text);
    assert_true(json_real_value(json_array_get(value, 0)) > 1e300);
    json_decref(value);
}

/* Values that are passed on have the fewest digits that mean the same. */
static void test_dump(void **state)
{
    (void)state;
    static const char *const same[] = {"[0.1,19.99,-0.25,1.0,100000.5,5,-7,0.3]",
                                       "{\"a\":\"0.10000000000000001 \\\" 1.50\"}",
                                       "[1e-7,1e300,1.2345678901234568e29,-2.5e-9,9007199254740993]", "[]",
                                       "[true,null]"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *value = NULL;
        struct helm_err err = {0};
        if (parse(same[i], &value, &err)) fail_msg("%s", err.text);
        char *text = json_dump_text(value, JSON_COMPACT);
        assert_string_equal(text, same[i]);
        free(text);
        json_decref(value);
    }
}

/* A whole number of any width is JSON; it is refused where it is read as one. */
static void test_wide_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } wide[] = {{"{\"n\": 1000000000000000019884624838656}", 1e30},
                {"{\"n\":-1000000000000000019884624838656}", -1e30},
                {"{\"n\": 9223372036854775808}", 9223372036854775808.0},
                {"{\"n\": 18446744073709551616, \"s\": \"99999999999999999999999 \\\" 1\"}",
                 18446744073709551616.0}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        json_t *value = NULL;
        struct helm_err err = {0};
        uint64_t whole = 7;
        double real = 0;
        if (parse(wide[i].text, &value, &err)) fail_msg("%s: %s", wide[i].text, err.text);
        assert_int_equal(json_get_u64(value, "n", true, 0, UINT64_MAX, &whole, &err), HELM_E_FORMAT);
        assert_int_equal(whole, 7);
        assert_int_equal(json_get_double(value, "n", true, -1e40, 1e40, &real, &err), 0);
        assert_true(real == wide[i].value);
        const json_t *text = json_object_get(value, "s");
        if (text) assert_string_equal(json_string_value(text), "99999999999999999999999 \" 1");
        json_decref(value);
    }
    json_t *value = NULL;
    struct helm_err err = {0};
    uint64_t whole = 0;
    if (parse("[9223372036854775807, 1.5e3, 12345678901234567890.25]", &value, &err))
        fail_msg("%s", err.text);
    whole = (uint64_t)json_integer_value(json_array_get(value, 0));
    assert_true(whole == INT64_MAX && json_is_real(json_array_get(value, 2)));
    json_decref(value);
    char digits[500]; /* beyond a double */
    memset(digits, '8', sizeof digits);
    digits[0] = '[', digits[498] = ']', digits[499] = '\0';
    if (parse(digits, &value, &err)) fail_msg("%s", err.text);
    assert_true(json_real_value(json_array_get(value, 0)) > 1e300);
    json_decref(value);
    assert_int_equal(parse("[01234567890123456789012]", &value, &err), HELM_E_FORMAT);
}

static void test_depth(void **state)
{
    (void)state;
    char text[2 * JSON_DEPTH_MAX + 3] = {0};
    json_t *value;
    struct helm_err err = {0};
    memset(text, '[', JSON_DEPTH_MAX);
    memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    assert_int_equal(parse(text, &value, &err), 0);
    json_decref(value);
    memset(text, '[', JSON_DEPTH_MAX + 1);
    memset(text + JSON_DEPTH_MAX + 1, ']', JSON_DEPTH_MAX + 1);
    assert_int_equal(parse(text, &value, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "nested deeper than 64 at byte 64"));
}

static void test_size(void **state)
{
    (void)state;
    char text[1001];
    json_t *value;
    struct helm_err err = {0};
    memset(text, ' ', sizeof text);
    text[0] = '1';
    assert_int_equal(json_parse_bounded("src", text, 1000, 1000, &value, &err), 0);
    json_decref(value);
    assert_int_equal(json_parse_bounded("src", text, 1001, 1000, &value, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "1001 bytes of JSON exceed the limit of 1000"));
}

static void test_getters(void **state)
{
    (void)state;
    json_t *obj;
    struct helm_err err = {0};
    uint64_t number = 99;
    double real = 99;
    bool flag = true;
    const char *text = "kept";
    assert_int_equal(parse("{\"i\": 5, \"r\": 2.5, \"b\": false, \"s\": \"x\", \"n\": null, \"neg\": -1,"
                           "\"max\": 9223372036854775807}",
                           &obj, &err),
                     0);
    assert_int_equal(json_get_u64(obj, "i", true, 5, 5, &number, &err), 0);
    assert_int_equal(number, 5);
    assert_int_equal(json_get_u64(obj, "max", true, 0, UINT64_MAX, &number, &err), 0);
    assert_true(number == INT64_MAX);
    number = 99;
    assert_int_equal(json_get_u64(obj, "i", true, 6, 9, &number, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "'i' is 5, not between 6 and 9"));
    assert_int_equal(json_get_u64(obj, "neg", true, 0, 9, &number, &err), HELM_E_LIMIT);
    assert_int_equal(json_get_u64(obj, "r", true, 0, 9, &number, &err), HELM_E_FORMAT);
    assert_int_equal(json_get_u64(obj, "n", false, 0, 9, &number, &err), 0);
    assert_int_equal(json_get_u64(obj, "absent", false, 0, 9, &number, &err), 0);
    assert_int_equal(number, 99);
    assert_int_equal(json_get_u64(obj, "n", true, 0, 9, &number, &err), HELM_E_FORMAT);
    assert_string_equal(err.text, "'n' is missing");

    assert_int_equal(json_get_double(obj, "r", true, 0, 9, &real, &err), 0);
    assert_true(real == 2.5);
    assert_int_equal(json_get_double(obj, "i", true, 0, 9, &real, &err), 0);
    assert_true(real == 5);
    assert_int_equal(json_get_double(obj, "neg", true, 0, 9, &real, &err), HELM_E_LIMIT);
    assert_int_equal(json_get_double(obj, "s", true, 0, 9, &real, &err), HELM_E_FORMAT);
    assert_int_equal(json_get_double(obj, "absent", true, 0, 9, &real, &err), HELM_E_FORMAT);

    assert_int_equal(json_get_bool(obj, "b", true, &flag, &err), 0);
    assert_false(flag);
    assert_int_equal(json_get_bool(obj, "i", true, &flag, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "'i' is not true or false"));

    assert_int_equal(json_get_string(obj, "absent", false, &text, &err), 0);
    assert_string_equal(text, "kept");
    assert_int_equal(json_get_string(obj, "s", true, &text, &err), 0);
    assert_string_equal(text, "x");
    assert_int_equal(json_get_string(obj, "i", true, &text, &err), HELM_E_FORMAT);
    json_decref(obj);
}

static void test_read_file(void **state)
{
    (void)state;
    json_t *value;
    struct helm_err err = {0};
    assert_int_equal(json_read_file("tests/data/golden/qwen3/config.json", 1 << 20, &value, &err), 0);
    assert_string_equal(json_string_value(json_object_get(value, "model_type")), "qwen3");
    json_decref(value);
    assert_int_equal(json_read_file("tests/data/golden/qwen3/config.json", 100, &value, &err), HELM_E_LIMIT);
    assert_null(value);
    assert_int_equal(json_read_file("tests/data/absent.json", 100, &value, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "tests/data/absent.json: no such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),   cmocka_unit_test(test_wide_numbers), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_dump),    cmocka_unit_test(test_depth),        cmocka_unit_test(test_size),
        cmocka_unit_test(test_getters), cmocka_unit_test(test_read_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
