/* Unit tests of common/base/err.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "common/base/err.h"

static void fail_records_and_returns_the_code(void **state)
{
    (void)state;
    struct helm_err err = {0};
    assert_int_equal(helm_fail(&err, HELM_E_LIMIT, "%s is %d", "depth", 65), HELM_E_LIMIT);
    assert_int_equal(err.code, HELM_E_LIMIT);
    assert_string_equal(err.text, "depth is 65");
    assert_int_equal(helm_fail(NULL, HELM_E_BUSY, "nobody listens"), HELM_E_BUSY);
}

static void errno_text_is_appended(void **state)
{
    (void)state;
    struct helm_err err = {0};
    errno = ENOENT;
    assert_int_equal(helm_fail_errno(&err, "open %s", "x"), HELM_E_IO);
    assert_string_equal(err.text, "open x: No such file or directory");
    assert_int_equal(helm_fail_errno(NULL, "x"), HELM_E_IO);
}

static void prefixes_go_before(void **state)
{
    (void)state;
    struct helm_err err = {0};
    (void)helm_fail(&err, HELM_E_FORMAT, "bad dtype");
    assert_int_equal(helm_err_prefix(&err, "tensor %d", 3), HELM_E_FORMAT);
    assert_int_equal(helm_err_prefix(&err, "a.safetensors"), HELM_E_FORMAT);
    assert_string_equal(err.text, "a.safetensors: tensor 3: bad dtype");
    struct helm_err unset = {0};
    assert_int_equal(helm_err_prefix(&unset, "x"), HELM_E_INTERNAL);
    assert_int_equal(helm_err_prefix(NULL, "x"), HELM_E_INTERNAL);
}

static void text_is_always_terminated(void **state)
{
    (void)state;
    char long_text[3 * HELM_ERR_TEXT];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    struct helm_err err = {0};
    (void)helm_fail(&err, HELM_E_FORMAT, "%s", long_text);
    assert_int_equal(strlen(err.text), HELM_ERR_TEXT - 1);
    (void)helm_err_prefix(&err, "%s", long_text);
    assert_int_equal(strlen(err.text), HELM_ERR_TEXT - 1);
    errno = EACCES;
    (void)helm_fail_errno(&err, "%s", long_text);
    assert_int_equal(strlen(err.text), HELM_ERR_TEXT - 1);
}

static void every_code_has_its_own_name(void **state)
{
    (void)state;
    for (int code = HELM_OK; code >= HELM_E_DEVICE; code--) {
        assert_string_not_equal(helm_code_name(code), "unknown");
        for (int other = HELM_OK; other > code; other--)
            assert_string_not_equal(helm_code_name(code), helm_code_name(other));
    }
    assert_string_equal(helm_code_name(1), "unknown");
    assert_string_equal(helm_code_name(-1000), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_records_and_returns_the_code),
        cmocka_unit_test(errno_text_is_appended),
        cmocka_unit_test(prefixes_go_before),
        cmocka_unit_test(text_is_always_terminated),
        cmocka_unit_test(every_code_has_its_own_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
