/* Unit tests of daemon/clients/client_socket.c, with libzmq on the other end: a client over a bound waits and
 * loses nothing, a frame beyond all bounds costs its connection, and unread answers are bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/units.h"
#include "daemon/clients/client_socket.h"

#define FRAME_MAX ((size_t)64 << 10) /* the daemon would answer these */
#define PATIENCE  ((uint64_t)60 * 1000000)

struct stage {
    char folder[64], endpoint[128];
    void *zmq;
    struct client_socket *sock;
    uint64_t gone;
};

static void on_gone(void *context, uint64_t client)
{
    struct stage *s = context;
    s->gone = client;
}

static void stage_open(struct stage *s)
{
    struct helm_err err = {0};
    memset(s, 0, sizeof *s);
    strcpy(s->folder, "/tmp/helm-client-socket-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->endpoint, sizeof s->endpoint, "ipc://%s/sock", s->folder);
    const struct args_list endpoints = {.item = {s->endpoint}, .count = 1};
    s->zmq = zmq_ctx_new();
    const struct client_socket_options options = {.endpoints = &endpoints, .frame_max = FRAME_MAX};
    if (client_socket_open(&options, &s->sock, &err)) fail_msg("%s", err.text);
    client_socket_on_gone(s->sock, on_gone, s);
}

static void stage_close(struct stage *s)
{
    client_socket_close(&s->sock);
    zmq_ctx_term(s->zmq);
    unlink(s->endpoint + strlen("ipc://"));
    rmdir(s->folder);
}

static void *connected(struct stage *s, int send_hwm, int send_wait_ms)
{
    void *dealer = zmq_socket(s->zmq, ZMQ_DEALER);
    int linger = 0;
    assert_non_null(dealer);
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(dealer, ZMQ_SNDHWM, &send_hwm, sizeof send_hwm);
    zmq_setsockopt(dealer, ZMQ_SNDTIMEO, &send_wait_ms, sizeof send_wait_ms);
    assert_int_equal(zmq_connect(dealer, s->endpoint), 0);
    return dealer;
}

/* A round of the loop. True: a message. */
static bool receive_now(struct stage *s, struct client_frame *frame)
{
    client_socket_flush(s->sock);
    client_socket_watch(s->sock);
    return client_socket_receive(s->sock, frame);
}

static void wait_for(struct stage *s, struct client_frame *frame)
{
    const uint64_t end_us = units_now_us() + PATIENCE;
    while (!receive_now(s, frame)) {
        assert_true(units_now_us() < end_us);
        if (!client_socket_ready(s->sock)) poll(NULL, 0, 1);
    }
}

/* The next frame; its content begins with a number. */
static uint32_t receive(struct stage *s, size_t *bytes)
{
    struct client_frame frame;
    uint32_t number;
    wait_for(s, &frame);
    assert_false(frame.too_many_parts);
    assert_true(frame.size >= sizeof number);
    assert_int_equal(frame.size, frame.bytes);
    assert_int_equal(frame.peer, (uint64_t)getuid() + 1);
    assert_true(frame.admin); /* the user that runs helmd */
    memcpy(&number, frame.data, sizeof number);
    if (bytes) *bytes = frame.bytes;
    client_frame_close(s->sock, &frame);
    return number;
}

static void the_bound_of_a_frame_leaves_room_for_a_reason(void **state)
{
    (void)state;
    for (size_t frame_max = 1; frame_max <= (size_t)8 << 20; frame_max = frame_max * 3 / 2 + 1) {
        const size_t bound = client_socket_frame_bound(frame_max);
        assert_true(bound >= 2 * frame_max && bound >= CLIENT_FRAME_TAKEN);
        assert_true(bound == 2 * frame_max || bound == CLIENT_FRAME_TAKEN);
    }
}

static void a_hasty_client_waits_and_loses_nothing(void **state)
{
    (void)state;
    struct stage s;
    struct client_frame frame;
    stage_open(&s);
    void *dealer = connected(&s, 1, 0);
    uint8_t *data = calloc(1, CLIENT_FRAME_TAKEN);
    uint32_t sent = 0, received = 0;
    size_t bytes;
    uint64_t until_us = units_now_us() + 500000;
    /* greeted, but not received from: what is not taken stays with its sender, and in the kernel */
    for (; sent < 100 && units_now_us() < until_us; poll(NULL, 0, 1)) {
        memcpy(data, &sent, sizeof sent);
        if (zmq_send(dealer, data, CLIENT_FRAME_TAKEN, 0) >= 0) sent++;
        client_socket_flush(s.sock);
        client_socket_watch(s.sock);
        if (sent == 0) assert_false(client_socket_receive(s.sock, &frame)); /* its greeting */
    }
    assert_in_range(sent, 1, 6);
    for (; received < sent; received++) {
        assert_int_equal(receive(&s, &bytes), received);
        assert_int_equal(bytes, CLIENT_FRAME_TAKEN);
    }
    free(data);
    zmq_close(dealer);
    stage_close(&s);
}

static void many_small_frames_all_arrive(void **state)
{
    (void)state;
    struct stage s;
    enum { FRAMES = 5000 };
    stage_open(&s);
    void *dealer = connected(&s, 1000, 0);
    uint32_t sent = 0, received = 0;
    while (received < FRAMES) {
        while (sent < FRAMES && zmq_send(dealer, &sent, sizeof sent, 0) >= 0) sent++;
        if (received < sent) assert_int_equal(receive(&s, NULL), received++);
    }
    zmq_close(dealer);
    stage_close(&s);
}

static void a_frame_beyond_all_bounds_closes_its_connection(void **state)
{
    (void)state;
    struct stage s;
    struct client_frame frame;
    stage_open(&s);
    void *dealer = connected(&s, 1000, 0), *other = connected(&s, 1000, 0);
    uint8_t *data = calloc(1, CLIENT_FRAME_TAKEN + 1);
    uint64_t end_us = units_now_us() + PATIENCE, client;
    assert_true(zmq_send(dealer, data, CLIENT_FRAME_TAKEN, 0) >= 0);
    wait_for(&s, &frame);
    client = frame.client;
    client_socket_retain(s.sock, client);
    client_frame_close(s.sock, &frame);
    assert_true(zmq_send(dealer, data, CLIENT_FRAME_TAKEN + 1, 0) >= 0);
    while (!s.gone) {
        assert_true(units_now_us() < end_us);
        assert_false(receive_now(&s, &frame));
        poll(NULL, 0, 1);
    }
    assert_int_equal(s.gone, client);
    assert_int_equal(client_socket_send(s.sock, client, data, 1, true), HELM_E_PEER);
    uint32_t number = 7;
    assert_true(zmq_send(other, &number, sizeof number, 0) >= 0);
    assert_int_equal(receive(&s, NULL), 7);
    free(data);
    zmq_close(dealer);
    zmq_close(other);
    stage_close(&s);
}

static void all_parts_count(void **state)
{
    (void)state;
    struct stage s;
    struct client_frame frame;
    stage_open(&s);
    void *dealer = connected(&s, 1000, 0);
    for (int i = 0; i < 10; i++) assert_true(zmq_send(dealer, s.folder, 50, i < 9 ? ZMQ_SNDMORE : 0) >= 0);
    wait_for(&s, &frame);
    assert_true(frame.too_many_parts);
    assert_int_equal(frame.bytes, 500);
    client_frame_close(s.sock, &frame);
    zmq_close(dealer);
    stage_close(&s);
}

/* Answers that a connection may leave to wait, and that the last messages of requests have room beyond it. */
static void answers_that_nobody_reads_are_bounded(void **state)
{
    (void)state;
    struct stage s;
    struct client_frame frame;
    stage_open(&s);
    void *dealer = connected(&s, 1000, 0);
    const int few = 1;
    uint32_t number = 7;
    zmq_setsockopt(dealer, ZMQ_RCVHWM, &few, sizeof few);
    assert_true(zmq_send(dealer, &number, sizeof number, 0) >= 0);
    wait_for(&s, &frame);
    const uint64_t client = frame.client;
    client_frame_close(s.sock, &frame);
    uint8_t *data = calloc(1, 10000);
    size_t sent = 0, final = 0;
    while (client_socket_send(s.sock, client, data, 10000, false) == 0) {
        if (sent < ((size_t)4 << 20)) client_socket_flush(s.sock); /* into libzmq and the kernel */
        assert_true((sent += 10000) < ((size_t)64 << 20));
    }
    while (client_socket_send(s.sock, client, data, 10000, true) == 0)
        assert_true((final += 10000) < ((size_t)4 << 20));
    assert_true(final > ((size_t)2 << 20));
    assert_int_equal(client_socket_send(s.sock, client, data, 10000, true), HELM_E_BUSY);
    free(data);
    zmq_close(dealer);
    stage_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_of_a_frame_leaves_room_for_a_reason),
        cmocka_unit_test(a_hasty_client_waits_and_loses_nothing),
        cmocka_unit_test(many_small_frames_all_arrive),
        cmocka_unit_test(a_frame_beyond_all_bounds_closes_its_connection),
        cmocka_unit_test(all_parts_count),
        cmocka_unit_test(answers_that_nobody_reads_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
