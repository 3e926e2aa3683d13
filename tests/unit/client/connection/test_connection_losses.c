/* client/connection/connection.c: daemons that fall silent, go away, answer with garbage or are not there,
 * and where one is looked for. */
#include "tests/unit/client/connection/connection_case.h"

#include <linux/capability.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "client/connection/endpoint.h"

static void test_silence_is_given_up(void **state)
{
    struct daemon *d = *state;
    struct helm_client *client = connect_to(d);
    struct helm_err err = {0};
    struct seen silent = {0}, patient = {0}, quick = {0};
    uint64_t patient_request = start(client, 2, 0, 60000, &patient);
    uint64_t request = start(client, 2, 0, 150, &silent);
    assert_int_equal(helm_wait(client, request, 20, &err),
                     HELM_E_PEER); /* our own patience, the request stays */
    assert_int_equal(helm_open_requests(client), 2);
    assert_int_equal(helm_wait(client, request, 3000, &err), 0);
    assert_int_equal(silent.errors, 1);
    assert_int_equal(silent.code, HELM_E_PEER);
    assert_non_null(strstr(silent.text, "150 ms"));
    assert_int_equal(patient.errors, 0);
    request = start(client, 1, 2, 1000, &quick); /* the connection goes on */
    assert_int_equal(helm_wait(client, request, 2000, &err), 0);
    assert_int_equal(quick.tokens, 2);
    assert_int_equal(d->cancels, 1);
    assert_int_equal(helm_cancel(client, patient_request, &err), 0);
    helm_disconnect(&client);
}

static void test_daemon_goes_away(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen waiting = {0}, last = {0};
    start(client, 2, 0, 0, &waiting);
    uint64_t request = start(client, 5, 0, 0, &last);
    assert_int_equal(helm_wait(client, request, 5000, &err), HELM_E_PEER);
    assert_non_null(strstr(err.text, "went away"));
    assert_int_equal(last.tokens, 2); /* tokens that it had sent before still come first */
    assert_int_equal(last.errors, 1);
    assert_int_equal(last.code, HELM_E_PEER);
    assert_int_equal(waiting.errors, 1);
    assert_int_equal(helm_open_requests(client), 0);
    const uint32_t prompt[1] = {1};
    const struct helm_generate_request what = {.prompt = prompt, .prompt_count = 1};
    assert_int_equal(helm_generate(client, &what, &callbacks, &last, 0, &request, &err), HELM_E_PEER);
    assert_int_equal(helm_dispatch(client, 0, &err), HELM_E_PEER);
    helm_disconnect(&client);
}

static void test_garbage_from_the_daemon(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen seen = {0};
    uint64_t request = start(client, 4, 0, 0, &seen);
    assert_int_equal(helm_wait(client, request, 5000, &err), HELM_E_PEER);
    assert_non_null(strstr(err.text, "not a HELM response"));
    assert_int_equal(seen.errors, 1);
    helm_disconnect(&client);
}

static void test_disconnect_cancels(void **state)
{
    struct daemon *d = *state;
    struct helm_client *client = connect_to(d);
    struct seen seen = {0};
    start(client, 6, 0, 0, &seen);
    helm_disconnect(&client);
    for (int i = 0; i < 200 && d->cancels == 0; i++) usleep(10000);
    assert_int_equal(d->cancels, 1);
    assert_int_equal(seen.done + seen.errors, 0);
}

static void test_mute_daemon(void **state)
{
    struct daemon *d = *state;
    struct helm_err err = {0};
    struct helm_client *client = NULL;
    d->mute = true;
    assert_int_equal(helm_connect(d->endpoint, 150, &client, &err), HELM_E_PEER);
    assert_null(client);
    assert_non_null(strstr(err.text, "no answer"));
    assert_non_null(strstr(err.text, d->endpoint));
}

static void test_no_daemon(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_client *client = NULL;
    assert_int_equal(helm_connect("ipc:///nowhere/at/all.sock", 1000, &client, &err), HELM_E_NOT_FOUND);
    assert_null(client);
    static const char key[] = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    assert_int_equal(helm_connect("tcp://127.0.0.1:9", 2000, &client, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "CURVE"));
    assert_int_equal(helm_connect_curve("tcp://127.0.0.1:9", key, key, 2000, &client, &err),
                     HELM_E_NOT_FOUND);
    assert_int_equal(helm_connect_curve("tcp://127.0.0.1:9", key, "short", 2000, &client, &err),
                     HELM_E_USAGE);
    static const char *const bad[] = {"",         "ipc://",    "udp://x:1", "tcp://x",
                                      "tcp://:5", "tcp://x:y", "/run/x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(helm_connect(bad[i], 1000, &client, &err), HELM_E_USAGE);
    char lengthy[300] = "ipc:///";
    memset(lengthy + 7, 'x', sizeof lengthy - 8);
    assert_int_equal(helm_connect(lengthy, 1000, &client, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "107"));
}

/* A folder for sockets, where a regular file stands for one. */
struct sockets {
    char folder[64], system[128], own[128], endpoint[HELM_ENDPOINT_MAX];
};

static void touch(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void make_sockets(struct sockets *s)
{
    char path[128];
    snprintf(s->folder, sizeof s->folder, "/tmp/helm-test-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(path, sizeof path, "%s/system", s->folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/helm", s->folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(s->system, sizeof s->system, "%s/system/helmd.sock", s->folder);
    snprintf(s->own, sizeof s->own, "%s/helm/helmd.sock", s->folder);
}

static void remove_sockets(const struct sockets *s)
{
    char path[128];
    unlink(s->system);
    unlink(s->own);
    snprintf(path, sizeof path, "%s/system", s->folder);
    rmdir(path);
    snprintf(path, sizeof path, "%s/helm", s->folder);
    rmdir(path);
    rmdir(s->folder);
}

static void expect_default(struct sockets *s, const char *path)
{
    struct helm_err err = {0};
    char want[160];
    snprintf(want, sizeof want, "ipc://%s", path);
    assert_int_equal(endpoint_default(s->system, s->endpoint, &err), 0);
    assert_string_equal(s->endpoint, want);
}

static void test_default_endpoint(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct sockets s;
    char endpoint[HELM_ENDPOINT_MAX], lengthy[600], last[64];
    make_sockets(&s);
    setenv("HELM_ENDPOINT", "tcp://example:1", 1);
    assert_int_equal(helm_default_endpoint(endpoint, &err), 0);
    assert_string_equal(endpoint, "tcp://example:1");
    setenv("HELM_ENDPOINT", "", 1);
    setenv("XDG_RUNTIME_DIR", s.folder, 1);
    expect_default(&s, s.own);
    touch(s.system);
    expect_default(&s, s.system);
    touch(s.own);
    expect_default(&s, s.system);
    unlink(s.system);
    unsetenv("XDG_RUNTIME_DIR");
    snprintf(last, sizeof last, "/tmp/helm-%lu/helmd.sock", (unsigned long)getuid());
    expect_default(&s, last);
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    setenv("HELM_ENDPOINT", lengthy, 1);
    assert_int_equal(helm_default_endpoint(endpoint, &err), HELM_E_LIMIT);
    unsetenv("HELM_ENDPOINT");
    remove_sockets(&s);
}

/* A user that may not enter the system service's directory is told so, unless a daemon of their own runs. */
static void test_default_endpoint_forbidden(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_client *client = NULL;
    struct sockets s;
    char folder[128];
    /* root is let in everywhere by its capabilities: without them while this runs */
    struct __user_cap_header_struct whose = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct full[2], none[2];
    make_sockets(&s);
    touch(s.system);
    snprintf(folder, sizeof folder, "%s/system", s.folder);
    assert_int_equal(chmod(folder, 0), 0);
    setenv("XDG_RUNTIME_DIR", s.folder, 1);
    unsetenv("HELM_ENDPOINT");
    assert_int_equal(syscall(SYS_capget, &whose, full), 0);
    memcpy(none, full, sizeof none);
    none[0].effective = none[1].effective = 0;
    assert_int_equal(syscall(SYS_capset, &whose, none), 0);
    expect_default(&s, s.system);
    assert_int_equal(helm_connect(s.endpoint, 1000, &client, &err), HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, s.system));
    assert_non_null(strstr(err.text, "not permitted for this user; user '"));
    assert_non_null(strstr(err.text, "' alone may connect"));
    assert_int_equal(chmod(folder, 0050), 0); /* as the service's: its group may enter */
    assert_int_equal(helm_connect(s.endpoint, 1000, &client, &err), HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, "; members of group '"));
    assert_non_null(strstr(err.text, "`sudo usermod -aG "));
    assert_int_equal(chmod(folder, 0), 0);
    touch(s.own);
    expect_default(&s, s.own);
    assert_int_equal(syscall(SYS_capset, &whose, full), 0);
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(chmod(folder, 0700), 0);
    remove_sockets(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DAEMON(test_silence_is_given_up),
        WITH_DAEMON(test_daemon_goes_away),
        WITH_DAEMON(test_garbage_from_the_daemon),
        WITH_DAEMON(test_disconnect_cancels),
        WITH_DAEMON(test_mute_daemon),
        cmocka_unit_test(test_no_daemon),
        cmocka_unit_test(test_default_endpoint),
        cmocka_unit_test(test_default_endpoint_forbidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
