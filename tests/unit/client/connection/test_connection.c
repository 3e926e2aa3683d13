/* client/connection/connection.c, generate.c, query.c: requests and their answers, one at a time and many, of
 * an event loop and from callbacks, against a daemon in a thread. */
#include "tests/unit/client/connection/connection_case.h"

#include <poll.h>

static void test_generate(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen seen = {0};
    uint64_t request = start(client, 1, 5, 0, &seen);
    assert_int_equal(helm_open_requests(client), 1);
    assert_int_equal(helm_wait(client, request, 2000, &err), 0);
    assert_int_equal(seen.tokens, 5);
    assert_int_equal(seen.done, 1);
    assert_int_equal(seen.errors, 0);
    assert_int_equal(seen.finish, HELM_FINISH_LENGTH);
    assert_string_equal(helm_finish_name(seen.finish), "length");
    assert_int_equal(helm_open_requests(client), 0);
    helm_disconnect(&client);
    assert_null(client);
    helm_disconnect(&client);
}

static void test_many_at_once(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen slow[8] = {{0}}, quick[8] = {{0}};
    uint64_t slow_request[8], quick_request[8];
    for (int i = 0; i < 8; i++) { /* each start makes the daemon send a token to every slow request */
        slow_request[i] = start(client, 6, 0, 0, &slow[i]);
        quick_request[i] = start(client, 1, (uint32_t)i, 0, &quick[i]);
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(helm_wait(client, quick_request[i], 2000, &err), 0);
        assert_int_equal(quick[i].tokens, i);
    }
    assert_int_equal(helm_open_requests(client), 8);
    for (int i = 7; i >= 0; i--) assert_int_equal(helm_cancel(client, slow_request[i], &err), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(helm_wait(client, slow_request[i], 2000, &err), 0);
        assert_int_equal(slow[i].finish, HELM_FINISH_CANCELLED);
        assert_int_equal(slow[i].tokens, 15 - 2 * i);
    }
    assert_true(slow[7].order < slow[0].order);
    assert_int_equal(helm_cancel(client, slow_request[0], &err), HELM_E_NOT_FOUND);
    helm_disconnect(&client);
}

static void test_refusals(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen seen = {0};
    uint64_t request = start(client, 3, 0, 0, &seen);
    assert_int_equal(helm_wait(client, request, 2000, &err), 0);
    assert_int_equal(seen.errors, 1);
    assert_int_equal(seen.code, HELM_E_BUSY);
    assert_string_equal(seen.text, "the queue is full");
    const struct helm_generate_request empty = {0};
    assert_int_equal(helm_generate(client, &empty, &callbacks, &seen, 0, &request, &err), HELM_E_LIMIT);
    assert_int_equal(request, 0);
    uint32_t *huge = calloc(9 << 20, sizeof *huge);
    assert_non_null(huge);
    const struct helm_generate_request too_long = {.prompt = huge, .prompt_count = 9 << 20};
    assert_int_equal(helm_generate(client, &too_long, &callbacks, &seen, 0, &request, &err), HELM_E_LIMIT);
    free(huge);
    assert_int_equal(helm_open_requests(client), 0);
    assert_int_equal(helm_cancel_id(client, 12345, 2000, &err), HELM_E_NOT_FOUND);
    helm_disconnect(&client);
}

static void test_questions(void **state)
{
    struct daemon *d = *state;
    struct helm_client *client = connect_to(d), *other = connect_to(d);
    struct helm_err err = {0};
    struct helm_status *status = NULL;
    struct helm_model_info *info = NULL;
    struct helm_list *list = NULL;
    char *plan = NULL;
    struct helm_plan_info *measured = NULL;
    assert_int_equal(helm_status(client, 2000, &status, &err), 0);
    assert_string_equal(status->version, "9.9");
    assert_int_equal(status->running, 4);
    assert_int_equal(status->worker_count, 1);
    assert_string_equal(status->workers[0].name, "cpu");
    assert_string_equal(status->workers[0].kernels, "");
    assert_int_equal(status->workers[0].threads, 3);
    assert_int_equal(helm_model_info(client, 2000, &info, &err), 0);
    assert_string_equal(info->folder, "/models/x");
    assert_int_equal(info->eos_count, 2);
    assert_int_equal(info->eos[1], 12);
    assert_int_equal(info->bos, -1);
    assert_int_equal(helm_list(client, 2000, &list, &err), 0);
    assert_int_equal(list->count, 1);
    assert_int_equal(list->entries[0].id, 5);
    assert_string_equal(list->entries[0].label, "somebody");
    assert_int_equal(helm_plan(client, 2000, &plan, &err), 0);
    assert_string_equal(plan, "");
    assert_int_equal(helm_plan_info(client, 2000, &measured, &err), 0);
    assert_string_equal(measured->json, "");
    assert_int_equal(measured->decode_count, 1);
    assert_true(measured->decode[0].batch == 2 && measured->decode[0].count == 7);
    assert_true(measured->decode[0].measured_seconds == 0.5 && measured->decode[0].planned_seconds == 0);
    assert_int_equal(measured->ttft_count, 0);
    assert_int_equal(measured->resource_count, 1);
    assert_string_equal(measured->resources[0].name, "link");
    assert_true(measured->resources[0].bytes_per_second_planned == 5e9);
    assert_true(measured->prompt == 128 && measured->ttft_seconds_high == 0.25 && measured->drifting);
    assert_string_equal(measured->drift, "slower");
    struct seen seen = {0};
    uint64_t request = start(client, 6, 0, 0, &seen);
    while (!seen.id) assert_int_equal(helm_dispatch(client, 1000, &err), 0);
    assert_int_equal(helm_cancel_id(client, seen.id, 2000, &err), 0);
    assert_int_equal(helm_wait(client, request, 2000, &err), 0);
    assert_int_equal(seen.finish, HELM_FINISH_CANCELLED);
    assert_string_equal(helm_client_endpoint(other), d->endpoint);
    free(status);
    free(info);
    free(list);
    free(plan);
    free(measured);
    helm_disconnect(&client);
    helm_disconnect(&other);
}

/* The descriptor must stay readable while messages wait, also when a send has swallowed ZeroMQ's own signal.
 */
static void test_event_loop(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen seen[16] = {{0}};
    uint32_t done = 0;
    for (int i = 0; i < 16; i++) start(client, 1, 600, 0, &seen[i]);
    usleep(100000); /* everything is in the socket now */
    for (int round = 0; done < 16 && round < 10000; round++) {
        struct pollfd p = {.fd = helm_client_fd(client), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 2000), 1);
        assert_int_equal(helm_dispatch(client, 0, &err), 0);
        done = 0;
        for (int i = 0; i < 16; i++) done += (uint32_t)seen[i].done;
    }
    assert_int_equal(done, 16);
    for (int i = 0; i < 16; i++) assert_int_equal(seen[i].tokens, 600);
    struct pollfd p = {.fd = helm_client_fd(client), .events = POLLIN};
    for (int i = 0; i < 10 && poll(&p, 1, 0) == 1; i++) assert_int_equal(helm_dispatch(client, 0, &err), 0);
    assert_int_equal(poll(&p, 1, 50), 0); /* and quiet when there is nothing */
    helm_disconnect(&client);
}

static void test_callbacks_calling_back(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen second = {0}, first = {.client = client, .chain = &second};
    uint64_t request = start(client, 1, 1, 0, &first);
    assert_int_equal(helm_wait(client, request, 2000, &err), 0);
    assert_int_equal(first.nested_dispatch, HELM_E_STATE);
    assert_int_equal(first.nested_ask, HELM_E_STATE);
    assert_int_equal(first.nested_abandon, HELM_E_STATE);
    while (!second.done) assert_int_equal(helm_dispatch(client, 2000, &err), 0);
    assert_int_equal(second.tokens, 3);
    helm_disconnect(&client);
}

static void test_abandoned_requests_are_silent(void **state)
{
    struct helm_client *client = connect_to(*state);
    struct helm_err err = {0};
    struct seen given_up = {0}, kept = {0}, quick = {0};
    uint64_t number = start(client, 6, 0, 0, &given_up), other = start(client, 6, 0, 0, &kept);
    while (!given_up.tokens || !kept.id) assert_int_equal(helm_dispatch(client, 1000, &err), 0);
    assert_int_equal(helm_abandon(client, number, &err), 0);
    assert_int_equal(helm_open_requests(client), 1);
    assert_int_equal(helm_abandon(client, number, &err), HELM_E_NOT_FOUND);
    assert_int_equal(helm_cancel(client, number, &err), HELM_E_NOT_FOUND);
    uint32_t tokens = given_up.tokens;
    uint64_t third = start(client, 1, 3, 0, &quick); /* the daemon sends both slow ones a token first */
    assert_int_equal(helm_wait(client, third, 2000, &err), 0);
    assert_int_equal(given_up.tokens, tokens);
    assert_int_equal(kept.tokens, 1);
    assert_int_equal(quick.tokens, 3);
    assert_int_equal(helm_cancel_id(client, given_up.id, 2000, &err), 0); /* the daemon still has it */
    assert_int_equal(helm_cancel(client, other, &err), 0);
    assert_int_equal(helm_wait(client, other, 2000, &err), 0);
    assert_int_equal(given_up.done + given_up.errors, 0);
    assert_int_equal(kept.done, 1);
    helm_disconnect(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DAEMON(test_generate),
        WITH_DAEMON(test_many_at_once),
        WITH_DAEMON(test_refusals),
        WITH_DAEMON(test_questions),
        WITH_DAEMON(test_event_loop),
        WITH_DAEMON(test_callbacks_calling_back),
        WITH_DAEMON(test_abandoned_requests_are_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
