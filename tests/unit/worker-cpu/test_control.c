/* Unit tests of common/worker/control.c and server.c: a worker in a thread, helmd's side of the protocol
 * played here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "common/plan/plan.h"
#include "common/base/units.h"
#include "proto/control.pb-c.h"
#include "worker-cpu/engine.h"
#include "common/worker/control.h"
#include "tests/written_plans.h"
#include "worker-cpu/local.h"

#define FOLDER  "tests/data/golden/qwen3"
#define EPOCH   7
#define WORKER  2
#define WAIT_MS 20000

typedef Helm__Control__V1__Control Message;

struct stage {
    struct arena arena;
    struct control_options options;
    char endpoint[64];
    void *zmq, *router;
    unsigned char peer[64];
    size_t peer_bytes;
    pthread_t thread;
    int rc;
    struct helm_err err;
};

/* `split`: the first layer is the GPU's. */
static void make_arena(struct stage *s, bool split)
{
    struct helm_err err = {0};
    struct model model;
    assert_int_equal(model_read(FOLDER, &model, &err), 0);
    const struct arena_spec spec = {.slots = 2,
                                    .context_tokens = 128,
                                    .step_tokens = 64,
                                    .hidden = model.config.hidden,
                                    .vocab = model.config.vocab,
                                    .lanes = {split ? PLAN_LINKS : 0},
                                    .kv = {.layers = model.config.layers - split,
                                           .kv_heads = model.config.kv_heads,
                                           .head_dim = model.config.head_dim,
                                           .page_tokens = 32,
                                           .dtype = DTYPE_F16},
                                    .page_count = 8,
                                    .weight_bytes = model.weight_bytes + 64 * (uint64_t)model.tensor_count};
    assert_int_equal(arena_create(&spec, &s->arena, &err), 0);
    arena_header_of(&s->arena)->epoch = EPOCH;
    for (uint32_t i = 0; i < 4; i++) arena_page_table_of(&s->arena, 0)[i] = i;
    arena_slot_of(&s->arena, 0)->sampling = (struct sampling_params){.top_p = 1, .repetition_penalty = 1};
    for (uint32_t i = 0; i < 8; i++) arena_history_of(&s->arena, 0)[i] = 10 + i;
    model_free(&model);
}

static void *worker_main(void *arg)
{
    struct stage *s = arg;
    s->rc = control_serve(&s->options, &s->err);
    return NULL;
}

static void start_worker(struct stage *s)
{
    s->rc = 1;
    memset(&s->err, 0, sizeof s->err);
    assert_int_equal(pthread_create(&s->thread, NULL, worker_main, s), 0);
}

static void setup_for(struct stage *s, bool split)
{
    static int number;
    memset(s, 0, sizeof *s);
    make_arena(s, split);
    snprintf(s->endpoint, sizeof s->endpoint, "ipc:///tmp/helm-test-control-%d-%d", (int)getpid(), number++);
    s->zmq = zmq_ctx_new();
    s->router = zmq_socket(s->zmq, ZMQ_ROUTER);
    int wait_ms = WAIT_MS, linger = 0;
    zmq_setsockopt(s->router, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(s->router, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_bind(s->router, s->endpoint), 0);
    s->options = (struct control_options){.engine = &cpu_engine_ops,
                                          .arena = &s->arena,
                                          .endpoint = s->endpoint,
                                          .secret = "0123456789abcde",
                                          .epoch = EPOCH,
                                          .worker = WORKER,
                                          .done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                          .parent = getppid()};
    start_worker(s);
}

static void setup(struct stage *s)
{
    setup_for(s, false);
}

static void teardown(struct stage *s)
{
    zmq_close(s->router);
    zmq_ctx_term(s->zmq);
    unlink(s->endpoint + strlen("ipc://"));
    close(s->options.done_fd);
    arena_close(&s->arena);
}

static Message *receive(struct stage *s)
{
    unsigned char frame[65536];
    int got = zmq_recv(s->router, s->peer, sizeof s->peer, 0);
    assert_true(got > 0);
    s->peer_bytes = (size_t)got;
    got = zmq_recv(s->router, frame, sizeof frame, 0);
    assert_true(got > 0 && got <= (int)sizeof frame);
    Message *message = helm__control__v1__control__unpack(NULL, (size_t)got, frame);
    assert_non_null(message);
    assert_int_equal(message->version, 1);
    assert_int_equal(message->epoch, EPOCH);
    assert_int_equal(message->worker, WORKER);
    return message;
}

static void expect_hello(struct stage *s)
{
    Message *m = receive(s);
    assert_int_equal(m->body_case, HELM__CONTROL__V1__CONTROL__BODY_HELLO);
    assert_int_equal(m->secret.len, CONTROL_SECRET_BYTES);
    assert_memory_equal(m->secret.data, s->options.secret, CONTROL_SECRET_BYTES);
    assert_int_equal(m->hello->arena_abi, ARENA_ABI);
    assert_string_equal(m->hello->kind, "cpu");
    helm__control__v1__control__free_unpacked(m, NULL);
}

static void expect_fault(struct stage *s, int code, const char *words)
{
    Message *m = receive(s);
    while (m->body_case == HELM__CONTROL__V1__CONTROL__BODY_PROGRESS) {
        helm__control__v1__control__free_unpacked(m, NULL);
        m = receive(s);
    }
    assert_int_equal(m->body_case, HELM__CONTROL__V1__CONTROL__BODY_FAULT);
    assert_int_equal(m->fault->code, code);
    assert_non_null(strstr(m->fault->text, words));
    helm__control__v1__control__free_unpacked(m, NULL);
    pthread_join(s->thread, NULL);
    assert_int_equal(s->rc, code);
}

static void send_frame(struct stage *s, const void *frame, size_t bytes)
{
    assert_int_equal(zmq_send(s->router, s->peer, s->peer_bytes, ZMQ_SNDMORE), (int)s->peer_bytes);
    assert_int_equal(zmq_send(s->router, frame, bytes, 0), (int)bytes);
}

static void send_to_worker(struct stage *s, Message *m)
{
    unsigned char frame[65536];
    if (!m->version) m->version = 1;
    if (!m->epoch) m->epoch = EPOCH;
    assert_true(helm__control__v1__control__get_packed_size(m) <= sizeof frame);
    send_frame(s, frame, helm__control__v1__control__pack(m, frame));
}

/* All layers at this home, or after one that the GPU computes. */
static void send_load(struct stage *s, enum plan_home home, uint64_t weights_ready)
{
    uint32_t split = arena_header_of(&s->arena)->lanes[ARENA_LANE_STEP] > 0;
    struct plan_unit unit[WRITTEN_UNITS(MODEL_LAYERS_MAX)];
    const uint32_t layers = split + arena_header_of(&s->arena)->kv.layers;
    struct plan plan = {.layers = layers,
                        .context_tokens = 128,
                        .step_tokens = 64,
                        .slots = 2,
                        .page_tokens = 32,
                        .page_count = 8,
                        .kv_dtype = "f16",
                        .unit = units_all(unit, layers, home),
                        .embed = split ? PLAN_GPU0 : PLAN_CPU0,
                        .memory[PLAN_HOST].limit = UINT64_MAX,
                        .memory[PLAN_VRAM0].limit = UINT64_MAX};
    struct model model;
    struct helm_err err = {0};
    for (uint32_t u = 0; u < unit_count(split); u++) unit[u].home[0] = PLAN_HOME_GPU;
    assert_int_equal(model_read(FOLDER, &model, &err), 0);
    if (plan.layers == model.config.layers && home < PLAN_HOMES)
        assert_int_equal(placement_make(&model, NULL, &plan, &err), 0);
    model_free(&model);
    json_t *json = plan_to_json(&plan);
    plan_drop_placements(&plan);
    Message m = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Load load = HELM__CONTROL__V1__LOAD__INIT;
    load.folder = FOLDER;
    load.processor = "cpu";
    load.plan_json = json_dumps(json, 0);
    load.threads = 1;
    load.node = -1;
    load.spin_us = 20;
    load.weights_ready = weights_ready;
    m.body_case = HELM__CONTROL__V1__CONTROL__BODY_LOAD;
    m.load = &load;
    send_to_worker(s, &m);
    free(load.plan_json);
    json_decref(json);
}

static void send_shutdown(struct stage *s)
{
    Message m = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Shutdown shutdown = HELM__CONTROL__V1__SHUTDOWN__INIT;
    m.body_case = HELM__CONTROL__V1__CONTROL__BODY_SHUTDOWN;
    m.shutdown = &shutdown;
    send_to_worker(s, &m);
    pthread_join(s->thread, NULL);
    assert_int_equal(s->rc, 0);
}

static uint32_t ping(struct stage *s)
{
    Message m = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Ping body = HELM__CONTROL__V1__PING__INIT;
    m.body_case = HELM__CONTROL__V1__CONTROL__BODY_PING;
    m.ping = &body;
    send_to_worker(s, &m);
    Message *answer = receive(s);
    assert_int_equal(answer->body_case, HELM__CONTROL__V1__CONTROL__BODY_PONG);
    uint32_t serial = answer->pong->last_serial;
    helm__control__v1__control__free_unpacked(answer, NULL);
    return serial;
}

/* PROGRESS until READY; returns the digest. */
static uint64_t expect_ready(struct stage *s, bool loads)
{
    uint64_t done = 0, total = 0;
    for (;;) {
        Message *m = receive(s);
        if (m->body_case == HELM__CONTROL__V1__CONTROL__BODY_PROGRESS) {
            assert_true(m->progress->bytes_done >= done);
            done = m->progress->bytes_done;
            total = m->progress->bytes_total;
            helm__control__v1__control__free_unpacked(m, NULL);
            continue;
        }
        assert_int_equal(m->body_case, HELM__CONTROL__V1__CONTROL__BODY_READY);
        assert_int_equal(m->ready->threads, 1);
        assert_true(m->ready->weight_bytes > 0);
        assert_non_null(strstr(m->ready->kernels, "attention"));
        assert_int_equal(done, total);
        assert_int_equal(done, loads ? m->ready->weight_bytes : 0);
        uint64_t digest = m->ready->weights_digest;
        assert_int_not_equal(digest, 0);
        helm__control__v1__control__free_unpacked(m, NULL);
        return digest;
    }
}

/* Rings step `serial` and returns the token. */
static uint32_t run_step(struct stage *s, uint32_t serial, uint32_t epoch)
{
    struct arena_control *c = arena_control_of(&s->arena);
    struct step *step = &c->step[serial % ARENA_STEP_RING];
    *step = (struct step){.serial = serial, .epoch = epoch, .row_count = 1, .token_count = 8};
    step->row[0] = (struct step_row){.slot = 0, .start = 0, .count = 8, .flags = STEP_ROW_SAMPLE};
    doorbell_ring(&c->step_bell, serial);
    if (epoch != EPOCH) return 0;
    struct pollfd fd = {.fd = s->options.done_fd, .events = POLLIN};
    uint64_t count;
    assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
    assert_int_equal(read(s->options.done_fd, &count, sizeof count), sizeof count);
    assert_int_equal(doorbell_read(&c->done[WORKER].bell), serial);
    const struct step_result *result = &c->result[serial % ARENA_STEP_RING];
    assert_int_equal(result->serial, serial);
    assert_int_equal(result->epoch, EPOCH);
    assert_int_equal(result->row[0].status, STEP_ROW_OK);
    assert_true(result->weight_bytes > 0);
    const struct arena_times *done = &c->done[WORKER].times[serial % ARENA_STEP_RING];
    assert_int_equal(done->busy_ns, result->compute_ns);
    assert_int_equal(done->weight_bytes, result->weight_bytes);
    assert_int_equal(done->wait_ns, 0);
    assert_int_equal(done->link_bytes, 0);
    return result->row[0].sampled.token;
}

static void a_worker_loads_steps_and_restarts(void **state)
{
    (void)state;
    struct stage s;
    setup(&s);
    expect_hello(&s);
    assert_int_equal(ping(&s), 0);
    const struct doorbell *weights_bell = &arena_control_of(&s.arena)->weights_bell;
    assert_int_equal(doorbell_read(weights_bell), 0);
    send_load(&s, PLAN_HOME_CPU, 0);
    uint64_t digest = expect_ready(&s, true);
    assert_int_equal(doorbell_read(weights_bell), 1);
    uint32_t token = run_step(&s, 1, EPOCH);
    run_step(&s, 2, EPOCH - 1); /* of the worker before: not computed, not answered */
    assert_int_equal(run_step(&s, 3, EPOCH), token);
    assert_int_equal(ping(&s), 3);
    send_shutdown(&s);
    /* A second worker finds the weights where the first put them, and loads them when the digest is
     * another's. */
    start_worker(&s);
    expect_hello(&s);
    doorbell_init(&arena_control_of(&s.arena)->weights_bell, 0);
    send_load(&s, PLAN_HOME_CPU, digest);
    assert_int_equal(expect_ready(&s, false), digest);
    assert_int_equal(doorbell_read(weights_bell), 1); /* also when they were there already */
    assert_int_equal(run_step(&s, 4, EPOCH), token);
    send_shutdown(&s);
    start_worker(&s);
    expect_hello(&s);
    send_load(&s, PLAN_HOME_CPU, digest + 1);
    assert_int_equal(expect_ready(&s, true), digest);
    assert_int_equal(doorbell_read(weights_bell), 1);
    assert_int_equal(run_step(&s, 5, EPOCH), token);
    send_shutdown(&s);
    teardown(&s);
}

/* A worker in the middle of a step, waiting for another that will never answer, ends as soon as it is asked
 * to.
 */
static void shutdown_ends_a_wait_for_the_other_worker(void **state)
{
    (void)state;
    struct stage s;
    setup_for(&s, true);
    expect_hello(&s);
    send_load(&s, PLAN_HOME_CPU, 0);
    expect_ready(&s, true);
    struct arena_control *c = arena_control_of(&s.arena);
    c->step[1] = (struct step){.serial = 1, .epoch = EPOCH, .row_count = 1, .token_count = 8};
    c->step[1].row[0] = (struct step_row){.slot = 0, .start = 0, .count = 8, .flags = STEP_ROW_SAMPLE};
    doorbell_ring(&c->step_bell, 1);
    usleep(20000); /* so that it is waiting, not before its step; a shutdown before it passes too */
    uint64_t start_us = units_now_us();
    send_shutdown(&s);
    assert_true(units_now_us() - start_us < 5000000); /* the wait itself would last a minute */
    assert_int_equal(doorbell_read(&c->done[WORKER].bell), 0);
    teardown(&s);
}

static void a_second_load_is_a_fault(void **state)
{
    (void)state;
    struct stage s;
    setup(&s);
    expect_hello(&s);
    send_load(&s, PLAN_HOME_CPU, 0);
    expect_ready(&s, true);
    send_load(&s, PLAN_HOME_CPU, 0);
    expect_fault(&s, HELM_E_STATE, "LOAD while serving");
    teardown(&s);
}

static void another_home_is_refused(void **state)
{
    (void)state;
    struct stage s;
    setup(&s);
    expect_hello(&s);
    send_load(&s, PLAN_HOMES, 0);
    expect_fault(&s, HELM_E_FORMAT, "home 'unknown'");
    teardown(&s);
}

static void another_version_or_epoch_is_a_fault(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct stage s;
        Message m = HELM__CONTROL__V1__CONTROL__INIT;
        Helm__Control__V1__Ping body = HELM__CONTROL__V1__PING__INIT;
        setup(&s);
        expect_hello(&s);
        m.version = i == 0 ? 2 : 1;
        m.epoch = i == 0 ? EPOCH : EPOCH + 1;
        m.body_case = HELM__CONTROL__V1__CONTROL__BODY_PING;
        m.ping = &body;
        send_to_worker(&s, &m);
        expect_fault(&s, HELM_E_PEER, "version");
        teardown(&s);
    }
}

static void noise_is_a_fault(void **state)
{
    (void)state;
    struct stage s;
    setup(&s);
    expect_hello(&s);
    send_frame(&s, "\xff\xff\xff\xff noise", 10);
    expect_fault(&s, HELM_E_PEER, "no control message");
    teardown(&s);
}

static void an_arena_of_another_model_is_a_fault(void **state)
{
    (void)state;
    struct stage s;
    setup(&s);
    expect_hello(&s);
    arena_header_of(&s.arena)->hidden++; /* an arena for another model */
    send_load(&s, PLAN_HOME_CPU, 0);
    expect_fault(&s, HELM_E_MISMATCH, "hidden");
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_loads_steps_and_restarts),
        cmocka_unit_test(a_second_load_is_a_fault),
        cmocka_unit_test(shutdown_ends_a_wait_for_the_other_worker),
        cmocka_unit_test(another_home_is_refused),
        cmocka_unit_test(another_version_or_epoch_is_a_fault),
        cmocka_unit_test(noise_is_a_fault),
        cmocka_unit_test(an_arena_of_another_model_is_a_fault),
    };
    return cmocka_run_group_tests_name("worker-cpu/control", tests, NULL, NULL);
}
