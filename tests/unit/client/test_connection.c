/* client/connection.c, generate.c, query.c: requests, answers, timeouts and losses against a daemon in a
 * thread. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <zmq.h>

#include "client/helm.h"
#include "proto/helm.pb-c.h"

/* ---- a daemon that does as the first prompt token says
 * ---------------------------------------------------------- 1 N: N tokens, then length     2: accepted, then
 * silence     3: Error BUSY     4: a frame that is no response 5: two tokens, then gone       6: one token
 * each time another request comes, until cancelled */

#define OPEN_MAX 64
struct open {
    uint64_t number, id;
    uint32_t sent;
};
struct daemon {
    char folder[64], endpoint[128];
    void *context, *socket;
    pthread_t thread;
    atomic_bool quit;
    bool mute; /* answers nothing at all */
    unsigned char peer[256];
    size_t peer_bytes;
    struct open open[OPEN_MAX];
    size_t open_count;
    uint64_t last_id;
    atomic_int cancels;
};

static void reply(struct daemon *d, uint64_t number, Helm__V1__Response *response)
{
    uint8_t frame[4096];
    response->version = 1;
    response->request_id = number;
    size_t bytes = helm__v1__response__pack(response, frame);
    zmq_send(d->socket, d->peer, d->peer_bytes, ZMQ_SNDMORE);
    zmq_send(d->socket, frame, bytes, 0);
}

static void reply_token(struct daemon *d, uint64_t number, uint64_t id, uint32_t index)
{
    Helm__V1__TokenLogprob top[2] = {HELM__V1__TOKEN_LOGPROB__INIT, HELM__V1__TOKEN_LOGPROB__INIT};
    Helm__V1__TokenLogprob *tops[2] = {&top[0], &top[1]};
    Helm__V1__Token token = HELM__V1__TOKEN__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    top[0].token = 500 + index;
    top[0].logprob = -0.25f;
    top[1].token = 7;
    top[1].logprob = -2;
    token.id = id;
    token.index = index;
    token.token = 500 + index;
    token.logprob = -0.25f;
    token.n_top = 2;
    token.top = tops;
    response.body_case = HELM__V1__RESPONSE__BODY_TOKEN;
    response.token = &token;
    reply(d, number, &response);
}

static void reply_done(struct daemon *d, uint64_t number, uint64_t id, uint32_t sent,
                       Helm__V1__FinishReason reason)
{
    Helm__V1__Usage usage = HELM__V1__USAGE__INIT;
    Helm__V1__Timings timings = HELM__V1__TIMINGS__INIT;
    Helm__V1__Done done = HELM__V1__DONE__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    usage.prompt_tokens = 2;
    usage.completion_tokens = sent;
    timings.ttft_ms = 1.5;
    done.id = id;
    done.finish_reason = reason;
    done.usage = &usage;
    done.timings = &timings;
    done.seed = 99;
    response.body_case = HELM__V1__RESPONSE__BODY_DONE;
    response.done = &done;
    reply(d, number, &response);
}

static void reply_error(struct daemon *d, uint64_t number, Helm__V1__ErrorCode code, const char *text)
{
    Helm__V1__Error error = HELM__V1__ERROR__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    error.code = code;
    error.message = (char *)text;
    response.body_case = HELM__V1__RESPONSE__BODY_ERROR;
    response.error = &error;
    reply(d, number, &response);
}

static void reply_accepted(struct daemon *d, uint64_t number, uint64_t id)
{
    Helm__V1__Accepted accepted = HELM__V1__ACCEPTED__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    accepted.id = id;
    response.body_case = HELM__V1__RESPONSE__BODY_ACCEPTED;
    response.accepted = &accepted;
    reply(d, number, &response);
}

static void handle_generate(struct daemon *d, uint64_t number, const Helm__V1__Generate *generate)
{
    for (size_t i = 0; i < d->open_count; i++)
        reply_token(d, d->open[i].number, d->open[i].id, d->open[i].sent++);
    uint64_t id = ++d->last_id;
    if (generate->prompt[0] == 3) {
        reply_error(d, number, HELM__V1__ERROR_CODE__ERROR_BUSY, "the queue is full");
        return;
    }
    if (generate->prompt[0] == 4) {
        zmq_send(d->socket, d->peer, d->peer_bytes, ZMQ_SNDMORE);
        zmq_send(d->socket, "\xff\xff\xff", 3, 0);
        return;
    }
    reply_accepted(d, number, id);
    switch (generate->prompt[0]) {
    case 1:
        for (uint32_t i = 0; i < generate->prompt[1]; i++) reply_token(d, number, id, i);
        reply_done(d, number, id, generate->prompt[1], HELM__V1__FINISH_REASON__FINISH_LENGTH);
        break;
    case 5:
        reply_token(d, number, id, 0);
        reply_token(d, number, id, 1);
        d->quit = true;
        break;
    case 2:
    case 6:
        if (d->open_count < OPEN_MAX && generate->prompt[0] == 6)
            d->open[d->open_count++] = (struct open){number, id, 0};
        break;
    default:
        break;
    }
}

static void handle_cancel(struct daemon *d, uint64_t number, const Helm__V1__Cancel *cancel)
{
    d->cancels++;
    for (size_t i = 0; i < d->open_count; i++) {
        struct open open = d->open[i];
        if (open.id != cancel->id && open.number != cancel->request_id) continue;
        d->open[i] = d->open[--d->open_count];
        reply_accepted(d, number, open.id);
        reply_done(d, open.number, open.id, open.sent, HELM__V1__FINISH_REASON__FINISH_CANCELLED);
        return;
    }
    reply_error(d, number, HELM__V1__ERROR_CODE__ERROR_NOT_FOUND, "no such request");
}

static void handle_question(struct daemon *d, const Helm__V1__Request *request)
{
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    Helm__V1__WorkerStatus worker = HELM__V1__WORKER_STATUS__INIT, *workers[1] = {&worker};
    Helm__V1__Status status = HELM__V1__STATUS__INIT;
    Helm__V1__ModelInfo info = HELM__V1__MODEL_INFO__INIT;
    Helm__V1__ListEntry entry = HELM__V1__LIST_ENTRY__INIT, *entries[1] = {&entry};
    Helm__V1__List list = HELM__V1__LIST__INIT;
    Helm__V1__Plan plan = HELM__V1__PLAN__INIT;
    Helm__V1__PlanSteps steps = HELM__V1__PLAN_STEPS__INIT, *steps_list[] = {&steps};
    Helm__V1__PlanResource resource = HELM__V1__PLAN_RESOURCE__INIT, *resources[] = {&resource};
    Helm__V1__PlanForecast forecast = HELM__V1__PLAN_FORECAST__INIT;
    uint32_t eos[2] = {11, 12};
    switch (request->body_case) {
    case HELM__V1__REQUEST__BODY_STATUS:
        worker.name = (char *)"cpu";
        worker.threads = 3;
        status.version = (char *)"9.9";
        status.state = (char *)"ready";
        status.n_workers = 1;
        status.workers = workers;
        status.running = 4;
        response.body_case = HELM__V1__RESPONSE__BODY_STATUS;
        response.status = &status;
        break;
    case HELM__V1__REQUEST__BODY_MODEL_INFO:
        info.folder = (char *)"/models/x";
        info.architecture = (char *)"TestForCausalLM";
        info.n_eos = 2;
        info.eos = eos;
        info.vocab = 1000;
        info.bos = -1;
        response.body_case = HELM__V1__RESPONSE__BODY_MODEL_INFO;
        response.model_info = &info;
        break;
    case HELM__V1__REQUEST__BODY_LIST:
        entry.id = 5;
        entry.label = (char *)"somebody";
        list.n_entries = 1;
        list.entries = entries;
        response.body_case = HELM__V1__RESPONSE__BODY_LIST;
        response.list = &list;
        break;
    default: /* an empty plan, to see that strings of no bytes survive */
        plan.json = (char *)"";
        steps.batch = 2;
        steps.count = 7;
        steps.measured_seconds = 0.5;
        plan.n_decode = 1;
        plan.decode = steps_list;
        resource.name = (char *)"link";
        resource.bytes_per_second_planned = 5e9;
        plan.n_resources = 1;
        plan.resources = resources;
        forecast.prompt = 128;
        forecast.ttft_seconds_high = 0.25;
        plan.forecast = &forecast;
        plan.drifting = true;
        plan.drift = (char *)"slower";
        response.body_case = HELM__V1__RESPONSE__BODY_PLAN;
        response.plan = &plan;
        break;
    }
    reply(d, request->request_id, &response);
}

static void *daemon_run(void *arg)
{
    struct daemon *d = arg;
    uint8_t frame[1 << 16];
    while (!d->quit) {
        zmq_pollitem_t item = {.socket = d->socket, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, 10) <= 0) continue;
        int n = zmq_recv(d->socket, d->peer, sizeof d->peer, 0);
        if (n < 0) continue;
        d->peer_bytes = (size_t)n;
        n = zmq_recv(d->socket, frame, sizeof frame, 0);
        if (n < 0 || d->mute) continue;
        Helm__V1__Request *request = helm__v1__request__unpack(NULL, (size_t)n, frame);
        if (!request) continue;
        if (request->body_case == HELM__V1__REQUEST__BODY_GENERATE)
            handle_generate(d, request->request_id, request->generate);
        else if (request->body_case == HELM__V1__REQUEST__BODY_CANCEL)
            handle_cancel(d, request->request_id, request->cancel);
        else
            handle_question(d, request);
        helm__v1__request__free_unpacked(request, NULL);
    }
    zmq_close(d->socket);
    return NULL;
}

static int daemon_start(void **state)
{
    struct daemon *d = calloc(1, sizeof *d);
    if (!d) return -1;
    snprintf(d->folder, sizeof d->folder, "/tmp/helm-test-XXXXXX");
    if (!mkdtemp(d->folder)) return -1;
    snprintf(d->endpoint, sizeof d->endpoint, "ipc://%s/s", d->folder);
    d->context = zmq_ctx_new();
    d->socket = zmq_socket(d->context, ZMQ_ROUTER);
    const int unlimited = 0; /* a ROUTER drops what exceeds its limit */
    zmq_setsockopt(d->socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    if (zmq_bind(d->socket, d->endpoint) < 0) return -1;
    *state = d;
    return pthread_create(&d->thread, NULL, daemon_run, d);
}

static int daemon_stop(void **state)
{
    struct daemon *d = *state;
    d->quit = true;
    pthread_join(d->thread, NULL);
    zmq_ctx_term(d->context);
    char path[128];
    snprintf(path, sizeof path, "%s/s", d->folder);
    unlink(path);
    rmdir(d->folder);
    free(d);
    return 0;
}

/* ---- the client's side ------------------------------------------------------------------------------ */

struct seen {
    struct helm_client *client; /* for callbacks that call back */
    uint64_t request, id;
    uint32_t tokens, last_index;
    int done, errors, code;
    enum helm_finish finish;
    char text[HELM_ERR_TEXT];
    int nested_dispatch, nested_ask;
    struct seen *chain; /* the request to start from on_done */
    uint64_t order;     /* when it ended */
};
static uint64_t ends; /* counts ends, over the program's one thread */

static void on_accepted(void *user, uint64_t request, uint64_t id, uint32_t queue_position)
{
    struct seen *seen = user;
    assert_int_equal(queue_position, 0);
    seen->request = request;
    seen->id = id;
}
static void on_token(void *user, uint64_t request, const struct helm_token *token)
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
static void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    struct seen *seen = user;
    struct helm_err err = {0};
    (void)request;
    seen->done++;
    seen->finish = done->finish;
    seen->order = ++ends;
    assert_non_null(done->detail);
    assert_int_equal(done->completion_tokens, seen->tokens);
    assert_int_equal(done->seed, 99);
    if (seen->client) {
        struct helm_status *status = NULL;
        seen->nested_dispatch = helm_dispatch(seen->client, 0, &err);
        seen->nested_ask = helm_status(seen->client, 100, &status, &err);
    }
    if (seen->chain) {
        const uint32_t prompt[2] = {1, 3};
        const struct helm_generate_request what = {.prompt = prompt, .prompt_count = 2};
        uint64_t number;
        assert_int_equal(helm_generate(seen->client, &what, &callbacks, seen->chain, 0, &number, &err), 0);
    }
}
static void on_error(void *user, uint64_t request, int code, const char *text)
{
    struct seen *seen = user;
    (void)request;
    seen->errors++;
    seen->code = code;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}
static const struct helm_callbacks callbacks = {on_accepted, on_token, on_done, on_error};

static struct helm_client *connect_to(const struct daemon *d)
{
    struct helm_err err = {0};
    struct helm_client *client = NULL;
    int rc = helm_connect(d->endpoint, 2000, &client, &err);
    if (rc) print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    assert_non_null(client);
    return client;
}

static uint64_t start(struct helm_client *client, uint32_t first, uint32_t second, int timeout_ms,
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
    while (!second.done) assert_int_equal(helm_dispatch(client, 2000, &err), 0);
    assert_int_equal(second.tokens, 3);
    helm_disconnect(&client);
}

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
        cmocka_unit_test_setup_teardown(test_generate, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_many_at_once, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_refusals, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_questions, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_event_loop, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_callbacks_calling_back, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_silence_is_given_up, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_daemon_goes_away, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_garbage_from_the_daemon, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_disconnect_cancels, daemon_start, daemon_stop),
        cmocka_unit_test_setup_teardown(test_mute_daemon, daemon_start, daemon_stop),
        cmocka_unit_test(test_no_daemon),
        cmocka_unit_test(test_default_endpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
