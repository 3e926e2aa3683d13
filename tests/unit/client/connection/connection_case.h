/* Shared by the tests of connections: the client's side of requests to a fake daemon, with callbacks that
 * check and count. Included by test_connection.c and test_connection_losses.c. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "client/helm.h"
#include "tests/unit/client/connection/fake_daemon.h"

struct seen {
    struct helm_client *client; /* for callbacks that call back */
    uint64_t request, id;
    uint32_t tokens;
    int done, errors, code;
    enum helm_finish finish;
    char text[HELM_ERR_TEXT];
    int nested_dispatch, nested_ask, nested_abandon;
    struct seen *chain; /* the request to start from on_done */
    uint64_t order;     /* when it ended */
};
static uint64_t ends; /* counts ends, over the program's one thread */

static inline void on_accepted(void *user, uint64_t request, uint64_t id, uint32_t queue_position)
{
    struct seen *seen = user;
    assert_int_equal(queue_position, 0);
    seen->request = request;
    seen->id = id;
}
static inline void on_token(void *user, uint64_t request, const struct helm_token *token)
{
    struct seen *seen = user;
    assert_int_equal(request, seen->request);
    assert_int_equal(token->id, seen->id);
    assert_int_equal(token->index, seen->tokens);
    assert_int_equal(token->token, 500 + token->index);
    assert_int_equal(token->top_count, 2);
    assert_int_equal(token->top[1].token, 7);
    assert_true(token->top[0].logprob > token->top[1].logprob);
    seen->tokens++;
}
static const struct helm_callbacks callbacks;
static inline void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    struct seen *seen = user;
    struct helm_err err = {0};
    (void)request;
    seen->done++;
    seen->finish = done->finish;
    seen->order = ++ends;
    assert_non_null(done->detail);
    assert_int_equal(done->completion_tokens, seen->tokens);
    if (done->prompt_tokens) assert_int_equal(done->cached_tokens, 1);
    assert_int_equal(done->seed, 99);
    if (seen->client) {
        struct helm_status *status = NULL;
        seen->nested_dispatch = helm_dispatch(seen->client, 0, &err);
        seen->nested_ask = helm_status(seen->client, 100, &status, &err);
        seen->nested_abandon = helm_abandon(seen->client, seen->request, &err);
    }
    if (seen->chain) {
        const uint32_t prompt[2] = {1, 3};
        const struct helm_generate_request what = {.prompt = prompt, .prompt_count = 2};
        uint64_t number;
        assert_int_equal(helm_generate(seen->client, &what, &callbacks, seen->chain, 0, &number, &err), 0);
    }
}
static inline void on_error(void *user, uint64_t request, int code, const char *text)
{
    struct seen *seen = user;
    (void)request;
    seen->errors++;
    seen->code = code;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}
static const struct helm_callbacks callbacks = {.accepted = on_accepted,
                                                .token = on_token,
                                                .done = on_done,
                                                .error = on_error};

static inline struct helm_client *connect_to(const struct daemon *d)
{
    struct helm_err err = {0};
    struct helm_client *client = NULL;
    int rc = helm_connect(d->endpoint, 2000, &client, &err);
    if (rc) print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    assert_non_null(client);
    return client;
}

static inline uint64_t start(struct helm_client *client, uint32_t first, uint32_t second, int timeout_ms,
                             struct seen *seen)
{
    const uint32_t prompt[2] = {first, second};
    const struct helm_generate_request what = {.prompt = prompt, .prompt_count = 2};
    uint64_t request = 0;
    struct helm_err err = {0};
    assert_int_equal(helm_generate(client, &what, &callbacks, seen, timeout_ms, &request, &err), 0);
    assert_int_not_equal(request, 0);
    return request;
}

/* A test that has a daemon of its own. */
#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, daemon_start, daemon_stop)
