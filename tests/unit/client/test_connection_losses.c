/* client/connection.c: daemons that fall silent, go away, answer with garbage or are not there, and where one
 * is looked for. */
#include "tests/unit/client/connection_case.h"

#include <string.h>

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
    assert_int_equal(last.tokens, 2); /* what it had sent before still comes first */
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

static void test_default_endpoint(void **state)
{
    (void)state;
    struct helm_err err = {0};
    char endpoint[HELM_ENDPOINT_MAX];
    setenv("HELM_ENDPOINT", "tcp://example:1", 1);
    assert_int_equal(helm_default_endpoint(endpoint, &err), 0);
    assert_string_equal(endpoint, "tcp://example:1");
    setenv("HELM_ENDPOINT", "", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_int_equal(helm_default_endpoint(endpoint, &err), 0);
    if (access("/run/helm/helmd.sock", F_OK) == 0)
        assert_string_equal(endpoint, "ipc:///run/helm/helmd.sock");
    else
        assert_string_equal(endpoint, "ipc:///run/user/7/helm/helmd.sock");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(helm_default_endpoint(endpoint, &err), 0);
    if (access("/run/helm/helmd.sock", F_OK) != 0) assert_non_null(strstr(endpoint, "ipc:///tmp/helm-"));
    char lengthy[600];
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    setenv("HELM_ENDPOINT", lengthy, 1);
    assert_int_equal(helm_default_endpoint(endpoint, &err), HELM_E_LIMIT);
    unsetenv("HELM_ENDPOINT");
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
