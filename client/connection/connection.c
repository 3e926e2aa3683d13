/* One connection to helmd: the socket, the open requests, the waiting. See helm.h and connection.h.
 *
 * Called by programs through helm.h and by generate.c and query.c. Owns the ZeroMQ context and sockets and
 * the table of open requests. All but long masks runs in the caller's thread, inside calls that dispatch;
 * messages are handed on in the order they came, and all that came before a loss before the loss is
 * reported. */
#include "client/connection/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <zmq.h>

#include "client/connection/endpoint.h"
#include "client/connection/mask_thread.h"
#include "client/connection/trust.h"
#include "common/base/grow.h"
#include "common/base/units.h"

#define DISPATCH_BATCH 256     /* messages handled before the caller gets a turn */
#define LINGER_MS      250     /* for a last Cancel to leave; the socket is local */
#define RECONNECT_MS   3600000 /* it stays lost. By -1, "never", ZeroMQ drops what came before */
#define HEARTBEAT_MS   5000
#define HEARTBEAT_GONE 20000

struct helm_client {
    void *context, *socket, *monitor;
    int epoll_fd; /* the caller watches it: the four below */
    int event_fd; /* raised when messages wait although no descriptor of ZeroMQ says so, or masks are made */
    int timer_fd; /* the earliest deadline of a generation */
    uint64_t timer_us;
    uint64_t last_number;
    struct mask_thread *masks; /* NULL: not needed yet */
    struct connection_request *requests;
    size_t request_count, request_space;
    bool reached, connected, lost, dispatching;
    struct helm_err lost_err;
    char endpoint[HELM_ENDPOINT_MAX];
};

/* ---- the table of open requests --------------------------------------------------------------------- */

static int lost_result(const struct helm_client *client, struct helm_err *err)
{
    if (err) *err = client->lost_err;
    return HELM_E_PEER;
}

uint64_t connection_next_number(struct helm_client *client)
{
    return ++client->last_number;
}

int connection_open_request(struct helm_client *client, struct connection_request **request,
                            struct helm_err *err)
{
    *request = NULL;
    if (client->lost) return lost_result(client, err);
    if (client->request_count >= HELM_OPEN_REQUESTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%d requests are open on this connection already",
                         HELM_OPEN_REQUESTS_MAX);
    if (!GROW(client->requests, client->request_count, client->request_space))
        return helm_fail(err, HELM_E_NOMEM, "no memory for a request");
    *request = &client->requests[client->request_count++];
    **request =
        (struct connection_request){.number = connection_next_number(client), .event_fd = client->event_fd};
    return 0;
}

struct connection_request *connection_find_request(struct helm_client *client, uint64_t number)
{
    for (size_t i = 0; i < client->request_count; i++)
        if (client->requests[i].number == number) return &client->requests[i];
    return NULL;
}

void connection_drop_request(struct helm_client *client, uint64_t number)
{
    struct connection_request *request = connection_find_request(client, number);
    if (!request) return;
    if (request->answer) helm__v1__response__free_unpacked(request->answer, NULL);
    constraint_close(request->constraint);
    *request = client->requests[--client->request_count];
}

int helm_abandon(struct helm_client *client, uint64_t request, struct helm_err *err)
{
    const struct connection_request *entry = connection_find_request(client, request);
    if (client->dispatching) /* the callers of callbacks are walking through the table */
        return helm_fail(err, HELM_E_STATE, "helm_abandon may not be called from a callback");
    if (!entry || entry->question)
        return helm_fail(err, HELM_E_NOT_FOUND, "no open request %llu on this connection",
                         (unsigned long long)request);
    connection_drop_request(client, request);
    return 0;
}

size_t helm_open_requests(const struct helm_client *client)
{
    size_t count = 0;
    for (size_t i = 0; i < client->request_count; i++) count += !client->requests[i].question;
    return count;
}

/* ---- descriptors ------------------------------------------------------------------------------------ */

/* ZeroMQ's descriptor is edge-triggered: any call on the socket may swallow the edge while messages remain.
 * The eventfd turns that into a level that the caller can poll. */
static void raise_event(struct helm_client *client)
{
    const uint64_t one = 1;
    (void)!write(client->event_fd, &one, sizeof one); /* EAGAIN: it is raised already */
}

static void lower_event(int fd)
{
    uint64_t count;
    (void)!read(fd, &count, sizeof count); /* EAGAIN: it was not raised */
}

static void keep_level(struct helm_client *client)
{
    int events = 0;
    size_t size = sizeof events;
    if (zmq_getsockopt(client->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN))
        raise_event(client);
}

void connection_watch_deadline(struct helm_client *client, uint64_t deadline_us)
{
    if (client->timer_us && client->timer_us <= deadline_us) return;
    client->timer_us = deadline_us;
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(deadline_us / 1000000),
                                           .tv_nsec = (long)(deadline_us % 1000000) * 1000}};
    timerfd_settime(client->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

int helm_client_fd(const struct helm_client *client)
{
    return client->epoll_fd;
}
const char *helm_client_endpoint(const struct helm_client *client)
{
    return client->endpoint;
}

/* ---- sending ---------------------------------------------------------------------------------------- */

int connection_send(struct helm_client *client, Helm__V1__Request *message, uint64_t number,
                    struct helm_err *err)
{
    if (client->lost) return lost_result(client, err);
    message->version = CONNECTION_VERSION;
    message->request_id = number;
    size_t bytes = helm__v1__request__get_packed_size(message);
    if (bytes > CONNECTION_FRAME_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a request of %zu bytes exceeds the limit of %zu", bytes,
                         CONNECTION_FRAME_BYTES_MAX);
    zmq_msg_t frame;
    int rc = 0;
    if (zmq_msg_init_size(&frame, bytes) < 0) return helm_fail(err, HELM_E_NOMEM, "no memory for a frame");
    helm__v1__request__pack(message, zmq_msg_data(&frame));
    if (zmq_msg_send(&frame, client->socket, ZMQ_DONTWAIT) < 0) {
        if (errno == EAGAIN)
            rc = helm_fail(err, HELM_E_BUSY, "the daemon at %s has stopped reading", client->endpoint);
        else
            rc = helm_fail(err, HELM_E_IO, "sending to %s: %s", client->endpoint, zmq_strerror(errno));
        zmq_msg_close(&frame);
    }
    keep_level(client);
    return rc;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

static void deliver(struct helm_client *client, Helm__V1__Response *response)
{
    struct connection_request *entry = connection_find_request(client, response->request_id);
    if (!entry) { /* of a request that timed out or was abandoned, or the answer to a Cancel */
        helm__v1__response__free_unpacked(response, NULL);
        return;
    }
    if (entry->question) {
        if (entry->answer) helm__v1__response__free_unpacked(entry->answer, NULL);
        entry->answer = response;
        return;
    }
    if (entry->timeout_ms > 0) /* the timer is armed for an earlier time and looks again when it fires */
        entry->deadline_us = units_now_us() + (uint64_t)entry->timeout_ms * 1000;
    struct connection_request copy = *entry;
    if (generate_is_last(response)) connection_drop_request(client, copy.number);
    if (copy.constraint && response->body_case == HELM__V1__RESPONSE__BODY_TOKEN)
        generate_deliver_constrained(client, &copy, response, &client->masks);
    else
        generate_deliver(&copy, response);
    helm__v1__response__free_unpacked(response, NULL);
}

/* Ends every generation with the reason. Questions notice by themselves. */
static void lose(struct helm_client *client, const char *text)
{
    if (client->lost) return;
    client->lost = true;
    helm_fail(&client->lost_err, HELM_E_PEER, "%s: %s", client->endpoint, text);
    for (size_t i = 0; i < client->request_count;) {
        if (client->requests[i].question) {
            i++;
            continue;
        }
        struct connection_request copy = client->requests[i];
        connection_drop_request(client, copy.number);
        if (copy.callbacks.error)
            copy.callbacks.error(copy.user, copy.number, HELM_E_PEER, client->lost_err.text);
    }
}

/* Takes one message off the socket: 1 handled, 0 there is none. */
static int receive(struct helm_client *client)
{
    zmq_msg_t part;
    Helm__V1__Response *response = NULL;
    size_t payloads = 0;
    int more = 1;
    for (int index = 0; more; index++) {
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, client->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            if (errno == EAGAIN || errno == EINTR) return 0;
            lose(client, zmq_strerror(errno));
            return 0;
        }
        more = zmq_msg_more(&part);
        bool delimiter = index == 0 && more && zmq_msg_size(&part) == 0;
        if (!delimiter && payloads++ == 0)
            response = helm__v1__response__unpack(NULL, zmq_msg_size(&part), zmq_msg_data(&part));
        zmq_msg_close(&part);
    }
    if (payloads == 1 && response && response->version == CONNECTION_VERSION && response->request_id != 0) {
        deliver(client, response);
        return 1;
    }
    if (payloads != 1 || !response)
        lose(client, "sent a frame that is not a HELM response");
    else if (response->version != CONNECTION_VERSION)
        lose(client, "speaks another version of the protocol");
    else if (response->body_case == HELM__V1__RESPONSE__BODY_ERROR)
        lose(client, response->error->message);
    else
        lose(client, "sent a response to no request");
    if (response) helm__v1__response__free_unpacked(response, NULL);
    return 1;
}

/* Opens the connection's own events: made, refused, gone. An event is two frames: number and value,
 * address. */
static int watch_connection(struct helm_client *client)
{
    /* Which event reports keys that do not fit depends on which side closes first; the message must not. */
    static const char closed_at_once[] =
        "the connection was closed at once: no HELM daemon, or keys that do not fit";
    const char *gone = NULL;
    struct helm_err foreign = {0};
    int32_t fd;
    int handled = 0;
    for (;;) {
        unsigned char event[6] = {0};
        if (zmq_recv(client->monitor, event, sizeof event, ZMQ_DONTWAIT) < 0) break;
        char address[HELM_ENDPOINT_MAX];
        (void)!zmq_recv(client->monitor, address, sizeof address, ZMQ_DONTWAIT);
        uint16_t kind;
        memcpy(&kind, event, sizeof kind);
        handled = 1;
        switch (kind) {
        case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
            client->connected = true;
            break;
        case ZMQ_EVENT_DISCONNECTED:
            gone = client->connected ? "the daemon went away" : closed_at_once;
            break;
        case ZMQ_EVENT_CLOSED:
            if (!client->connected)
                gone = client->reached ? closed_at_once : "no daemon there: the connection was refused";
            break;
        case ZMQ_EVENT_CONNECTED:
            client->reached = true;
            memcpy(&fd, event + sizeof kind, sizeof fd);
            if (trust_peer(fd, client->endpoint, &foreign) < 0) gone = foreign.text;
            break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
            gone = "the listener does not speak HELM's protocol, or its keys do not fit";
            break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
            gone = "the daemon refused our keys";
            break;
        }
    }
    if (gone) {
        /* messages sent before the daemon went lie in the socket already: hand them out first */
        while (!client->lost && receive(client)) {}
        lose(client, gone);
    }
    return handled;
}

/* Ends generations about which the daemon has been silent for too long. */
static int check_deadlines(struct helm_client *client)
{
    if (!client->timer_us) return 0;
    uint64_t now = units_now_us();
    if (now < client->timer_us) return 0;
    client->timer_us = 0;
    lower_event(client->timer_fd);
    int handled = 0;
    uint64_t next = 0;
    for (size_t i = 0; i < client->request_count;) {
        struct connection_request copy = client->requests[i];
        if (copy.question || copy.deadline_us == 0 || copy.deadline_us > now) {
            if (copy.deadline_us && (!next || copy.deadline_us < next)) next = copy.deadline_us;
            i++;
            continue;
        }
        (void)!helm_cancel(client, copy.number, &(struct helm_err){0}); /* it is given up either way */
        connection_drop_request(client, copy.number);
        handled = 1;
        char text[128];
        snprintf(text, sizeof text, "no word from the daemon for %d ms", copy.timeout_ms);
        if (copy.callbacks.error) copy.callbacks.error(copy.user, copy.number, HELM_E_PEER, text);
    }
    if (next) connection_watch_deadline(client, next);
    return handled;
}

/* Milliseconds until then, rounded up; 0: it is past. */
static int ms_until(uint64_t until)
{
    const uint64_t now = units_now_us();
    return now >= until ? 0 : (int)((until - now + 999) / 1000);
}

/* Handles all that is there, without waiting: how many things, or HELM_E_PEER. */
static int handle_all(struct helm_client *client)
{
    int handled = 0;
    lower_event(client->event_fd);
    while (!client->lost && handled < DISPATCH_BATCH && receive(client)) handled++;
    if (handled == DISPATCH_BATCH) raise_event(client);
    if (!client->lost) handled += generate_send_masks(client, client->masks);
    if (!client->lost) handled += watch_connection(client);
    if (!client->lost) handled += check_deadlines(client);
    return client->lost ? HELM_E_PEER : handled;
}

int helm_dispatch(struct helm_client *client, int timeout_ms, struct helm_err *err)
{
    if (client->dispatching)
        return helm_fail(err, HELM_E_STATE,
                         "helm_dispatch and calls that wait may not be made from a callback");
    if (client->lost) return lost_result(client, err);
    uint64_t until = timeout_ms > 0 ? units_now_us() + (uint64_t)timeout_ms * 1000 : 0;
    int rc = 0;
    client->dispatching = true;
    for (;;) {
        rc = handle_all(client);
        if (rc < 0) {
            rc = lost_result(client, err);
            break;
        }
        if (rc > 0 || timeout_ms == 0) {
            rc = 0;
            break;
        }
        const int left = timeout_ms > 0 ? ms_until(until) : -1;
        if (left == 0) break;
        struct pollfd p = {.fd = client->epoll_fd, .events = POLLIN};
        if (poll(&p, 1, left) < 0) {
            rc = errno == EINTR ? helm_fail(err, HELM_E_CANCELLED, "interrupted by a signal")
                                : helm_fail_errno(err, "waiting for %s", client->endpoint);
            break;
        }
    }
    client->dispatching = false;
    return rc;
}

int helm_wait(struct helm_client *client, uint64_t request, int timeout_ms, struct helm_err *err)
{
    uint64_t until = timeout_ms >= 0 ? units_now_us() + (uint64_t)timeout_ms * 1000 : 0;
    while (connection_find_request(client, request)) {
        const int left = timeout_ms >= 0 ? ms_until(until) : -1;
        if (left == 0)
            return helm_fail(err, HELM_E_PEER, "request %llu is not over after %d ms",
                             (unsigned long long)request, timeout_ms);
        int rc = helm_dispatch(client, left, err);
        if (rc < 0) return rc;
    }
    return 0;
}

int connection_ask(struct helm_client *client, Helm__V1__Request *message,
                   Helm__V1__Response__BodyCase expected, int timeout_ms, Helm__V1__Response **answer,
                   struct helm_err *err)
{
    struct connection_request *entry = NULL;
    *answer = NULL;
    if (client->dispatching)
        return helm_fail(err, HELM_E_STATE,
                         "helm_dispatch and calls that wait may not be made from a callback");
    int rc = connection_open_request(client, &entry, err);
    if (rc < 0) return rc;
    entry->question = true;
    uint64_t number = entry->number;
    uint64_t until = units_now_us() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000;
    rc = connection_send(client, message, number, err);
    if (rc < 0) goto out;
    while (!(entry = connection_find_request(client, number))->answer) {
        const int left = ms_until(until);
        if (left == 0) {
            rc = helm_fail(err, HELM_E_PEER, "no answer from %s within %d ms", client->endpoint, timeout_ms);
            goto out;
        }
        rc = helm_dispatch(client, left, err);
        if (rc < 0 && !connection_find_request(client, number)->answer) goto out;
    }
    rc = 0;
    *answer = entry->answer;
    entry->answer = NULL;
    if ((*answer)->body_case == HELM__V1__RESPONSE__BODY_ERROR)
        rc = helm_fail(err, generate_error_code((*answer)->error->code), "%s", (*answer)->error->message);
    else if (expected != HELM__V1__RESPONSE__BODY__NOT_SET && (*answer)->body_case != expected)
        rc = helm_fail(err, HELM_E_PEER, "%s answered with a message of another kind", client->endpoint);
    if (rc < 0) {
        helm__v1__response__free_unpacked(*answer, NULL);
        *answer = NULL;
    }
out:
    connection_drop_request(client, number);
    return rc;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

static int watch_fd(struct helm_client *client, int fd, struct helm_err *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) return helm_fail_errno(err, "epoll_ctl");
    return 0;
}

static int open_descriptors(struct helm_client *client, struct helm_err *err)
{
    client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    client->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    client->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (client->epoll_fd < 0 || client->event_fd < 0 || client->timer_fd < 0)
        return helm_fail_errno(err, "opening descriptors for %s", client->endpoint);
    const int rc = watch_fd(client, client->event_fd, err);
    return rc < 0 ? rc : watch_fd(client, client->timer_fd, err);
}

static int watch_socket(struct helm_client *client, void *socket, struct helm_err *err)
{
    int fd = -1;
    size_t size = sizeof fd;
    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) < 0)
        return helm_fail(err, HELM_E_IO, "ZeroMQ gives no descriptor: %s", zmq_strerror(errno));
    return watch_fd(client, fd, err);
}

static int open_sockets(struct helm_client *client, struct helm_err *err)
{
    static const char monitor_name[] = "inproc://connection-events";
    client->context = zmq_ctx_new();
    client->socket = client->context ? zmq_socket(client->context, ZMQ_DEALER) : NULL;
    client->monitor = client->socket ? zmq_socket(client->context, ZMQ_PAIR) : NULL;
    if (!client->monitor)
        return helm_fail(err, HELM_E_IO, "opening a ZeroMQ socket: %s", zmq_strerror(errno));
    const int linger = LINGER_MS, none = 0, reconnect = RECONNECT_MS, heartbeat = HEARTBEAT_MS,
              heartbeat_gone = HEARTBEAT_GONE;
    const int64_t frame_max = (int64_t)CONNECTION_FRAME_BYTES_MAX;
    if (zmq_setsockopt(client->socket, ZMQ_LINGER, &linger, sizeof linger) < 0 ||
        zmq_setsockopt(client->monitor, ZMQ_LINGER, &none, sizeof none) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_RECONNECT_IVL, &reconnect, sizeof reconnect) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_HEARTBEAT_IVL, &heartbeat, sizeof heartbeat) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_HEARTBEAT_TIMEOUT, &heartbeat_gone, sizeof heartbeat_gone) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_RCVHWM, &none, sizeof none) < 0)
        return helm_fail(err, HELM_E_IO, "setting up a ZeroMQ socket: %s", zmq_strerror(errno));
    const int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                       ZMQ_EVENT_CLOSED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq_socket_monitor(client->socket, monitor_name, events) < 0 ||
        zmq_connect(client->monitor, monitor_name) < 0)
        return helm_fail(err, HELM_E_IO, "watching the connection: %s", zmq_strerror(errno));
    int rc = watch_socket(client, client->socket, err);
    return rc < 0 ? rc : watch_socket(client, client->monitor, err);
}

static int set_keys(struct helm_client *client, const char *daemon_public_key, const char *secret_key,
                    struct helm_err *err)
{
    char public_key[HELM_CURVE_KEY + 1];
    if (!zmq_has("curve"))
        return helm_fail(err, HELM_E_UNSUPPORTED, "this libzmq has no CURVE, which tcp:// needs");
    if (strlen(daemon_public_key) != HELM_CURVE_KEY || strlen(secret_key) != HELM_CURVE_KEY)
        return helm_fail(err, HELM_E_USAGE, "a CURVE key is Z85 text of %d characters", HELM_CURVE_KEY);
    if (zmq_curve_public(public_key, secret_key) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_CURVE_SERVERKEY, daemon_public_key, HELM_CURVE_KEY + 1) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_CURVE_PUBLICKEY, public_key, HELM_CURVE_KEY + 1) < 0 ||
        zmq_setsockopt(client->socket, ZMQ_CURVE_SECRETKEY, secret_key, HELM_CURVE_KEY + 1) < 0)
        return helm_fail(err, HELM_E_USAGE, "a CURVE key is not valid Z85: %s", zmq_strerror(errno));
    return 0;
}

/* Keys are NULL for ipc endpoints. */
static int connect_with(const char *endpoint, const char *daemon_public_key, const char *secret_key,
                        int timeout_ms, struct helm_client **out, struct helm_err *err)
{
    struct helm_client *client = calloc(1, sizeof *client);
    struct helm_status *status = NULL;
    *out = NULL;
    if (!client) return helm_fail(err, HELM_E_NOMEM, "no memory for a connection");
    client->epoll_fd = client->event_fd = client->timer_fd = -1;
    int rc = endpoint ? 0 : helm_default_endpoint(client->endpoint, err);
    if (rc == 0) rc = endpoint_check(endpoint ? endpoint : client->endpoint, daemon_public_key != NULL, err);
    if (rc == 0 && endpoint) strcpy(client->endpoint, endpoint);
    if (rc == 0) rc = endpoint_probe(client->endpoint, err);
    if (rc == 0) rc = open_descriptors(client, err);
    if (rc == 0) rc = open_sockets(client, err);
    if (rc == 0 && daemon_public_key) rc = set_keys(client, daemon_public_key, secret_key, err);
    if (rc == 0 && zmq_connect(client->socket, client->endpoint) < 0)
        rc = helm_fail(err, HELM_E_NOT_FOUND, "connecting to %s: %s", client->endpoint, zmq_strerror(errno));
    if (rc == 0)
        rc = helm_status(client, timeout_ms > 0 ? timeout_ms : HELM_CONNECT_TIMEOUT_MS, &status, err);
    if (rc == 0 && client->lost) rc = lost_result(client, err);
    if (rc == HELM_E_PEER && client->lost && !client->connected) {
        if (err) err->code = HELM_E_NOT_FOUND;
        rc = HELM_E_NOT_FOUND;
    }
    free(status);
    if (rc < 0) helm_disconnect(&client);
    *out = client;
    return rc;
}

int helm_connect(const char *endpoint, int timeout_ms, struct helm_client **out, struct helm_err *err)
{
    return connect_with(endpoint, NULL, NULL, timeout_ms, out, err);
}

int helm_connect_curve(const char *endpoint, const char *daemon_public_key, const char *secret_key,
                       int timeout_ms, struct helm_client **out, struct helm_err *err)
{
    return connect_with(endpoint, daemon_public_key, secret_key, timeout_ms, out, err);
}

void helm_disconnect(struct helm_client **client)
{
    struct helm_client *c = *client;
    if (!c) return;
    *client = NULL;
    if (c->socket) {
        for (size_t i = 0; i < c->request_count && !c->lost; i++) {
            if (c->requests[i].question) continue;
            if (helm_cancel(c, c->requests[i].number, &(struct helm_err){0}) < 0) break;
        }
        zmq_socket_monitor(c->socket, NULL, 0);
    }
    while (c->request_count) connection_drop_request(c, c->requests[0].number);
    mask_thread_close(c->masks);
    free(c->requests);
    if (c->epoll_fd >= 0) close(c->epoll_fd); /* before the descriptors of ZeroMQ that it watches */
    if (c->monitor) zmq_close(c->monitor);
    if (c->socket) zmq_close(c->socket);
    if (c->context) zmq_ctx_term(c->context);
    if (c->event_fd >= 0) close(c->event_fd);
    if (c->timer_fd >= 0) close(c->timer_fd);
    free(c);
}
