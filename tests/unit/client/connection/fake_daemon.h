/* A daemon in a thread, which answers libhelm's requests with what a test can count on. Included by
 * connection_case.h; each test starts its own and stops it. To a generation it does as the first token of the
 * prompt says:
 *
 *   1 N: N tokens, then length
 *   2: accepted, then silence
 *   3: Error BUSY
 *   4: a frame that is no response
 *   5: two tokens, then gone
 *   6: one token each time another request comes, until cancelled
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/helm.pb-c.h"

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

static inline void reply(struct daemon *d, uint64_t number, Helm__V1__Response *response)
{
    uint8_t frame[4096];
    response->version = 1;
    response->request_id = number;
    size_t bytes = helm__v1__response__pack(response, frame);
    zmq_send(d->socket, d->peer, d->peer_bytes, ZMQ_SNDMORE);
    zmq_send(d->socket, frame, bytes, 0);
}

static inline void reply_token(struct daemon *d, uint64_t number, uint64_t id, uint32_t index)
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

static inline void reply_done(struct daemon *d, uint64_t number, uint64_t id, uint32_t sent,
                              Helm__V1__FinishReason reason)
{
    Helm__V1__Usage usage = HELM__V1__USAGE__INIT;
    Helm__V1__Timings timings = HELM__V1__TIMINGS__INIT;
    Helm__V1__Done done = HELM__V1__DONE__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    usage.prompt_tokens = 2;
    usage.completion_tokens = sent;
    usage.cached_tokens = 1;
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

static inline void reply_error(struct daemon *d, uint64_t number, Helm__V1__ErrorCode code, const char *text)
{
    Helm__V1__Error error = HELM__V1__ERROR__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    error.code = code;
    error.message = (char *)text;
    response.body_case = HELM__V1__RESPONSE__BODY_ERROR;
    response.error = &error;
    reply(d, number, &response);
}

static inline void reply_accepted(struct daemon *d, uint64_t number, uint64_t id)
{
    Helm__V1__Accepted accepted = HELM__V1__ACCEPTED__INIT;
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    accepted.id = id;
    response.body_case = HELM__V1__RESPONSE__BODY_ACCEPTED;
    response.accepted = &accepted;
    reply(d, number, &response);
}

static inline void handle_generate(struct daemon *d, uint64_t number, const Helm__V1__Generate *generate)
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

static inline void handle_cancel(struct daemon *d, uint64_t number, const Helm__V1__Cancel *cancel)
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

static inline void handle_question(struct daemon *d, const Helm__V1__Request *request)
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

static inline void *daemon_run(void *arg)
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

static inline int daemon_start(void **state)
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
    const int linger = 200; /* ms, as helmd: an answer to a client that has gone would be kept for good */
    zmq_setsockopt(d->socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_bind(d->socket, d->endpoint) < 0) return -1;
    *state = d;
    return pthread_create(&d->thread, NULL, daemon_run, d);
}

static inline int daemon_stop(void **state)
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
