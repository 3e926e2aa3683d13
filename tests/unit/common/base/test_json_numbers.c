/* Numbers keep their text: what is parsed and passed on is written as it came. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

static json_t *parse(const char *text, struct json_numbers **numbers)
{
    struct helm_err err = {0};
    json_t *value = NULL;
    if (json_parse_numbers("test", text, strlen(text), 1 << 20, numbers, &value, &err))
        fail_msg("%s", err.text);
    return value;
}

static void test_same_text(void **state)
{
    (void)state;
    static const char *const same[] = {
        "[1.50,0.10,1.0,100000.5,5,-7]",
        "{\"a\":123456789012345678901234567890,\"b\":[1E5,1e+5,-0.0,-0,0e0],\"c\":{\"d\":9223372036854775808}"
        "}",
        "{\"1.50\":1.50,\"x\":\"1.50 \\\" 2.50\",\"y\":[\"-3\",3.00,true,null,2.50]}",
        "[1e999,-1E999,1e-999,0.1000000000000000055511151231257827]",
        "[]",
        "7.70"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct json_numbers *numbers = NULL;
        json_t *value = parse(same[i], &numbers);
        char *text = json_dump_numbers(value, JSON_COMPACT | JSON_ENCODE_ANY, numbers);
        assert_string_equal(text, same[i]);
        free(text);
        json_decref(value);
        json_numbers_free(numbers);
    }
}

/* A table of several texts; values in other orders and containers; values that are gone. */
static void test_passed_on(void **state)
{
    (void)state;
    struct json_numbers *numbers = NULL;
    json_t *a = parse("{\"x\":1.50,\"y\":[2.50,2]}", &numbers), *b = parse("[3.50,4.50]", &numbers);
    json_t *made = json_pack("{s:O, s:i, s:[O,f], s:O}", "b", json_array_get(b, 1), "n", 7, "list",
                             json_object_get(a, "y"), 2.5, "a", json_object_get(a, "x"));
    json_decref(b);
    for (int i = 0; i < 1000; i++) json_decref(json_real(3.5)); /* none is taken for the one that was freed */
    json_t *other = json_real(3.5);
    json_object_set_new(made, "other", other);
    json_object_del(a, "x");
    char *text = json_dump_numbers(made, JSON_COMPACT, numbers);
    assert_string_equal(text, "{\"b\":4.50,\"n\":7,\"list\":[[2.50,2],2.5],\"a\":1.50,\"other\":3.5}");
    assert_null(json_number_text(numbers, other));
    assert_null(json_number_text(NULL, other));
    free(text);
    json_decref(a);
    json_decref(made);
    json_numbers_free(numbers);
    json_numbers_free(NULL);
}

static void test_many(void **state)
{
    (void)state;
    struct json_numbers *numbers = NULL;
    char *text = malloc(1 << 20);
    size_t length = 0;
    for (int i = 0; i < 50000; i++)
        length += (size_t)sprintf(text + length, "%c%d.%d0", i ? ',' : '[', i, i % 9);
    strcpy(text + length, "]");
    json_t *value = parse(text, &numbers);
    char *dumped = json_dump_numbers(value, JSON_COMPACT, numbers);
    assert_string_equal(dumped, text);
    free(dumped);
    free(text);
    json_decref(value);
    json_numbers_free(numbers);
}

static void test_refused(void **state)
{
    (void)state;
    struct json_numbers *numbers = NULL;
    struct helm_err err = {0};
    json_t *value = NULL;
    assert_int_equal(json_parse_numbers("test", "[1.50,", 6, 99, &numbers, &value, &err), HELM_E_FORMAT);
    assert_null(value);
    assert_null(numbers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text),
        cmocka_unit_test(test_passed_on),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
