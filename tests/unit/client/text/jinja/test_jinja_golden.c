/* The template interpreter against Python's jinja2 as transformers sets it up: every case of
 * tests/data/chat/cases.json (make_cases.py there), byte for byte. $HELM_CHAT_CASES names another such file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "common/base/json.h"

static bool check_case(const json_t *root, const json_t *one, size_t number)
{
    const char *name = json_string_value(json_array_get(one, 0));
    const char *variant = json_string_value(json_array_get(one, 1));
    const json_t *source = json_array_get(json_object_get(root, "templates"),
                                          (size_t)json_integer_value(json_array_get(one, 2)));
    const json_t *variables = json_array_get(json_object_get(root, "variables"),
                                             (size_t)json_integer_value(json_array_get(one, 3)));
    const json_t *expected = json_array_get(one, 4);
    struct helm_err err = {0};
    struct jinja_template *template = NULL;
    struct jinja_input input = {.variables = variables,
                                .now_s = json_integer_value(json_object_get(root, "now"))};
    char *text = NULL;
    size_t length = 0;
    int rc = jinja_parse(json_string_value(source), json_string_length(source), &template, &err);
    if (!rc) rc = jinja_render(template, &input, &text, &length, &err);
    bool ok = json_is_null(expected) ? rc != 0 && err.text[0]
                                     : rc == 0 && length == json_string_length(expected) &&
                                           memcmp(text, json_string_value(expected), length) == 0;
    if (!ok)
        print_error("case %zu (%s, %s):\n%.400s\n--- expected ---\n%s\n--- got (%s) ---\n%s\n\n", number,
                    name, variant, json_string_value(source),
                    json_is_null(expected) ? "(refused)" : json_string_value(expected), helm_code_name(rc),
                    rc ? err.text : text);
    free(text);
    jinja_free(template);
    return ok;
}

static void test_golden(void **state)
{
    (void)state;
    struct helm_err err = {0};
    json_t *root = NULL, *one;
    const char *path = getenv("HELM_CHAT_CASES");
    if (json_read_file(path ? path : "tests/data/chat/cases.json", 64u << 20, &root, &err))
        fail_msg("%s", err.text);
    const json_t *cases = json_object_get(root, "cases");
    size_t i, bad = 0;
    assert_true(json_array_size(cases) > 600);
    json_array_foreach(cases, i, one) bad += !check_case(root, one, i);
    print_message("%zu cases\n", json_array_size(cases));
    json_decref(root);
    assert_int_equal(bad, 0);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
