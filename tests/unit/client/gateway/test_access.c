/* The gateway's access: hosts, origins, keys and the file that they are in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/gateway/access.h"

static void test_hosts_and_origins(void **state)
{
    (void)state;
    const struct args_list hosts = {.item = {"me.example"}, .count = 1};
    const struct access access = {.hosts = &hosts};
    static const char *const good[] = {"localhost", "LOCALHOST:1", "127.0.0.1",  "10.0.0.1:80",
                                       "[::1]",     "[fe80::1]:9", "me.example", "ME.example:443"};
    static const char *const bad[] = {"",     "x",   "evil.example", "127.0.0.1.evil",   "localhost.evil",
                                      "[::1", "::1", "localhost:x",  "me.example:80:80", "[::1]x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(access_host_allowed(&access, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(access_host_allowed(&access, bad[i]));
    assert_false(access_host_allowed(&access, NULL));
    assert_true(access_origin_allowed(NULL, "localhost"));
    assert_true(access_origin_allowed("http://localhost:80", "localhost:80"));
    assert_false(access_origin_allowed("http://localhost:81", "localhost:80"));
    assert_false(access_origin_allowed("null", "localhost:80"));
}

static void test_listed_origins(void **state)
{
    (void)state;
    static const char *const bad[] = {"",           "chat.example", "https://",   "://x",
                                      "https://a/", "https://a b",  "https://a,b"};
    struct args_list origins = {.item = {"https://chat.example", "http://localhost:3000"}, .count = 2};
    const struct access access = {.origins = &origins}, none = {0};
    struct helm_err err = {0};
    assert_int_equal(access_check_origins(&access, &err), 0);
    assert_int_equal(access_check_origins(&none, &err), 0);
    assert_true(access_origin_listed(&access, "https://chat.example"));
    assert_true(access_origin_listed(&access, "http://LOCALHOST:3000"));
    assert_false(access_origin_listed(&access, "https://chat.example.evil"));
    assert_false(access_origin_listed(&access, "http://chat.example"));
    assert_false(access_origin_listed(&access, "null"));
    assert_false(access_origin_listed(&access, NULL));
    assert_false(access_origin_listed(&none, "https://chat.example"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        origins.item[0] = bad[i];
        assert_int_equal(access_check_origins(&access, &err), HELM_E_USAGE);
    }
    origins.item[0] = "*";
    assert_int_equal(access_check_origins(&access, &err), 0);
    assert_true(access_origin_listed(&access, "https://any.example"));
    assert_false(access_origin_listed(&access, NULL));
}

static int read_keys(struct access *access, const char *text, mode_t mode, struct helm_err *err)
{
    FILE *f = fopen(access->file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(access->file, mode), 0);
    *err = (struct helm_err){0};
    return access_read_keys(access, err);
}

static void test_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/helm-test-keys-XXXXXX";
    const int fd = mkstemp(path);
    struct access access = {0};
    struct helm_err err;
    assert_true(fd >= 0);
    close(fd);
    assert_string_equal(access_key_name(&access, NULL), ""); /* without a file none is asked for */
    access.file = path;
    assert_int_equal(read_keys(&access, "# all\n\nanna  key-of-anna\r\nkey-of-none\n", 0640, &err), 0);
    assert_int_equal(access.key_count, 2);
    assert_string_equal(access_key_name(&access, "Bearer key-of-anna"), "anna");
    assert_string_equal(access_key_name(&access, "bearer key-of-none"), "");
    assert_string_equal(access_name_of(&access, "key-of-anna"), "anna");
    assert_null(access_name_of(&access, "key-of-ann"));
    assert_null(access_name_of(&access, NULL));
    static const char *const wrong[] = {"",
                                        "Bearer ",
                                        "Bearer key-of-ann",
                                        "Bearer key-of-annaa",
                                        "Basic key-of-anna",
                                        "key-of-anna",
                                        "Bearer anna"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_null(access_key_name(&access, wrong[i]));
    assert_null(access_key_name(&access, NULL));
    /* an unreadable file changes nothing */
    assert_int_equal(read_keys(&access, "other-key-1\n", 0644, &err), HELM_E_PERMISSION);
    assert_int_equal(read_keys(&access, "short\n", 0600, &err), HELM_E_FORMAT);
    assert_int_equal(read_keys(&access, "a name and a-long-key\n", 0600, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, ":1:"));
    assert_int_equal(read_keys(&access, "# none\n", 0600, &err), HELM_E_FORMAT);
    assert_string_equal(access_key_name(&access, "Bearer key-of-anna"), "anna");
    assert_int_equal(read_keys(&access, "other-key-1", 0600, &err), 0);
    assert_null(access_key_name(&access, "Bearer key-of-anna"));
    assert_string_equal(access_key_name(&access, "Bearer other-key-1"), "");
    unlink(path);
    access_free(&access);
}

/* The name that helmd and ps are told, which tells nothing of the key. */
static void test_users_of_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/helm-test-keys-XXXXXX", hashed[USERS_NAME], name[200];
    const int fd = mkstemp(path);
    struct access access = {.file = NULL}, another = {.file = path};
    struct helm_err err;
    assert_true(fd >= 0);
    close(fd);
    assert_null(access_user(&access, "Bearer key-of-anna", NULL)); /* none is asked for */
    access.file = path;
    memset(name, 'n', sizeof name);
    snprintf(name + 100, sizeof name - 100, " key-of-long\nann\x1b[2Ja key-of-odd\n");
    char text[400];
    snprintf(text, sizeof text, "anna key-of-anna\nanna another-of-anna\nkey-of-none\nkey-of-two\n%s", name);
    assert_int_equal(read_keys(&access, text, 0600, &err), 0);
    assert_string_equal(access_user(&access, "Bearer key-of-anna", NULL), "anna");
    assert_string_equal(access_user(&access, NULL, "another-of-anna"), "anna");
    assert_null(access_user(&access, "Bearer wrong-key", NULL));
    assert_null(access_user(&access, NULL, NULL));
    static const char *const keys[] = {"key-of-none", "key-of-two", "key-of-long", "key-of-odd"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *user = access_user(&access, NULL, keys[i]);
        assert_non_null(user);
        assert_int_equal(strlen(user), strlen("key-") + 12);
        assert_int_equal(strncmp(user, "key-", 4), 0);
        assert_int_equal(strspn(user + 4, "0123456789abcdef"), 12);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(user, access_user(&access, NULL, keys[k]));
    }
    /* the same when the file is read again, another one of another gateway */
    snprintf(hashed, sizeof hashed, "%s", access_user(&access, NULL, "key-of-two"));
    assert_int_equal(read_keys(&access, "key-of-two\n", 0600, &err), 0);
    assert_string_equal(access_user(&access, NULL, "key-of-two"), hashed);
    assert_int_equal(read_keys(&another, "key-of-two\n", 0600, &err), 0);
    assert_string_not_equal(access_user(&another, NULL, "key-of-two"), hashed);
    unlink(path);
    access_free(&access);
    access_free(&another);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_and_origins),
        cmocka_unit_test(test_listed_origins),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_users_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
