/* Unit tests of daemon/loop.c: how much of what clients send is served before tokens are looked after. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/units.h"
#include "daemon/start/loop.h"

#define PATIENCE ((uint64_t)60 * 1000000)
#define CLIENTS  40

/* The loop and what it needs to serve clients; no worker computes. */
struct stage {
    char folder[64], endpoint[128];
    void *zmq, *client[CLIENTS];
    struct arena arena;
    struct batcher batcher;
    struct plan plan; /* without drafts */
    struct workers workers;
    struct metrics metrics;
    struct model model;
    struct serve serve;
    struct loop loop;
};

static struct stage *stage_open(void)
{
    struct stage *s = calloc(1, sizeof *s);
    struct helm_err err = {0};
    assert_non_null(s);
    strcpy(s->folder, "/tmp/helm-loop-test-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->endpoint, sizeof s->endpoint, "ipc://%s/sock", s->folder);
    const struct args_list endpoints = {.item = {s->endpoint}, .count = 1};
    const struct arena_spec spec = {
        .slots = 2,
        .context_tokens = 64,
        .step_tokens = 32,
        .hidden = 16,
        .vocab = 100,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 8, .page_tokens = 32, .dtype = DTYPE_F16},
        .page_count = 4};
    const struct client_socket_options clients = {.endpoints = &endpoints, .frame_max = 1 << 20};
    s->zmq = zmq_ctx_new();
    if (arena_create(&spec, &s->arena, &err) || client_socket_open(&clients, &s->serve.clients, &err))
        fail_msg("%s", err.text);
    s->batcher.with.arena = &s->arena;
    s->batcher.with.plan = &s->plan;
    s->model.config.vocab = spec.vocab;
    s->serve.batcher = &s->batcher;
    s->serve.workers = &s->workers;
    s->serve.metrics = &s->metrics;
    s->serve.model = &s->model;
    s->serve.context = 1 << 20;
    s->loop.serve = &s->serve;
    for (int i = 0; i < CLIENTS; i++) {
        int linger = 0;
        s->client[i] = zmq_socket(s->zmq, ZMQ_DEALER);
        zmq_setsockopt(s->client[i], ZMQ_LINGER, &linger, sizeof linger);
        assert_int_equal(zmq_connect(s->client[i], s->endpoint), 0);
    }
    return s;
}

static void stage_close(struct stage *s)
{
    for (int i = 0; i < CLIENTS; i++) zmq_close(s->client[i]);
    client_socket_close(&s->serve.clients);
    zmq_ctx_term(s->zmq);
    arena_close(&s->arena);
    unlink(s->endpoint + strlen("ipc://"));
    rmdir(s->folder);
    free(s);
}

/* Every client sends `each` frames; then all rounds are run until they are served. Returns the most that one
 * round took. */
static uint32_t most_in_a_round(struct stage *s, uint32_t each, size_t bytes)
{
    uint8_t *data = malloc(bytes);
    uint32_t served = 0, most = 0;
    uint64_t end_us = units_now_us() + PATIENCE;
    assert_non_null(data);
    memset(data, 0xff, bytes); /* no Request: it is answered and forgotten */
    for (uint32_t k = 0; k < each; k++)
        for (int i = 0; i < CLIENTS; i++) assert_true(zmq_send(s->client[i], data, bytes, 0) >= 0);
    free(data);
    poll(NULL, 0, 300); /* so that there is more than a round's share; the bounds hold without it, too */
    while (served < each * CLIENTS) {
        client_socket_flush(s->serve.clients); /* as the loop does before it sleeps, and after that */
        client_socket_watch(s->serve.clients);
        uint32_t n = loop_take_clients(&s->loop);
        if (n > most) most = n;
        served += n;
        assert_true(units_now_us() < end_us);
        if (n == 0) poll(NULL, 0, 1);
    }
    return most;
}

static void a_round_takes_so_many_frames(void **state)
{
    (void)state;
    struct stage *s = stage_open();
    assert_in_range(most_in_a_round(s, 4, 10), 1, 64);
    stage_close(s);
}

static void a_round_takes_so_many_bytes(void **state)
{
    (void)state;
    struct stage *s = stage_open();
    assert_in_range(most_in_a_round(s, 1, 300000), 1, 4); /* the fourth passes 1 MiB */
    stage_close(s);
}

static void a_round_ends_when_a_step_is_done(void **state)
{
    (void)state;
    struct stage *s = stage_open();
    s->batcher.with.workers = 1;
    s->batcher.serial = 3;
    s->batcher.in_flight = 1;
    doorbell_ring(&arena_control_of(&s->arena)->done[0].bell, 3);
    assert_int_equal(most_in_a_round(s, 1, 10), 1); /* requests are taken all the same */
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_takes_so_many_frames),
        cmocka_unit_test(a_round_takes_so_many_bytes),
        cmocka_unit_test(a_round_ends_when_a_step_is_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
