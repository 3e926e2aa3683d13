/* The control loop. See control.h.
 *
 * One poll over the socket and the step thread's eventfd; handlers never block. One table says which message
 * is allowed when; anything else is a broken protocol and ends the worker. */
#include "common/worker/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "proto/control.pb-c.h"
#include "common/cpu/pool.h"
#include "common/worker/server.h"

#define FRAME_BYTES_MAX     (8 * MIB)
#define LOAD_PLAN_BYTES_MAX (4 * MIB)
#define PROGRESS_MS         200
#define POLL_MS             1000  /* while serving: how often the parent is looked for */
#define LOAD_WAIT_MS        60000 /* a helmd that never says LOAD is gone */
#define FAULT_LINGER_MS     1000
#define SPIN_US_MAX         100000
#define PEER_WAIT_MS_MAX    3600000

enum control_state { CONTROL_GREETED, CONTROL_LOADING, CONTROL_SERVING, CONTROL_ENDING };
static const char *const state_name[] = {"greeted", "loading", "serving", "ending"};

struct control {
    const struct control_options *options;
    void *zmq, *socket;
    enum control_state state;
    uint64_t greeted_us;
    struct server *server;
    struct plan plan;
    char *folder, *kernels, *device;
    struct helm_err *err;
};

typedef Helm__Control__V1__Control Message;

/* `body`: the message that `kind` says. */
static int send_message(struct control *c, Helm__Control__V1__Control__BodyCase kind, void *body)
{
    Message message = HELM__CONTROL__V1__CONTROL__INIT;
    unsigned char secret[CONTROL_SECRET_BYTES];
    message.version = CONTROL_VERSION;
    message.epoch = c->options->epoch;
    message.worker = c->options->worker;
    message.body_case = kind;
    message.hello = body; /* a union of pointers */
    if (kind == HELM__CONTROL__V1__CONTROL__BODY_HELLO) {
        memcpy(secret, c->options->secret, sizeof secret);
        message.secret.data = secret;
        message.secret.len = sizeof secret;
    }
    size_t bytes = helm__control__v1__control__get_packed_size(&message);
    unsigned char *frame = malloc(bytes + 1);
    if (!frame) return helm_fail(c->err, HELM_E_NOMEM, "no memory for a control message");
    helm__control__v1__control__pack(&message, frame);
    int sent = zmq_send(c->socket, frame, bytes, ZMQ_DONTWAIT);
    free(frame);
    if (sent < 0) return helm_fail(c->err, HELM_E_PEER, "cannot send to helmd: %s", zmq_strerror(errno));
    return 0;
}

static int send_hello(struct control *c)
{
    Helm__Control__V1__Hello hello = HELM__CONTROL__V1__HELLO__INIT;
    hello.pid = (uint32_t)getpid();
    hello.arena_abi = ARENA_ABI;
    hello.kind = (char *)c->options->engine->kind;
    return send_message(c, HELM__CONTROL__V1__CONTROL__BODY_HELLO, &hello);
}

static int send_progress(struct control *c)
{
    Helm__Control__V1__Progress progress = HELM__CONTROL__V1__PROGRESS__INIT;
    progress.bytes_done = atomic_load(&c->server->engine->bytes_done);
    progress.bytes_total = atomic_load(&c->server->engine->bytes_total);
    return send_message(c, HELM__CONTROL__V1__CONTROL__BODY_PROGRESS, &progress);
}

static int send_ready(struct control *c)
{
    struct engine_report *r = &c->server->engine->report;
    Helm__Control__V1__Ready ready = HELM__CONTROL__V1__READY__INIT;
    char *reduced[ENGINE_REDUCED_MAX];
    for (uint32_t i = 0; i < r->reduced_count; i++) reduced[i] = r->reduced[i];
    ready.threads = r->threads;
    ready.node = r->node;
    ready.kernels = r->kernels;
    ready.weight_bytes = r->weight_bytes;
    ready.huge_bytes = r->huge_bytes;
    ready.small_bytes = r->small_bytes;
    ready.load_seconds = r->load_seconds;
    ready.weights_digest = r->weights_digest;
    ready.vectors_content = r->vectors_content;
    ready.matrices_content = r->matrices_content;
    Helm__Control__V1__VramLine line[PLAN_LINES_MAX], *lines[PLAN_LINES_MAX];
    for (uint32_t i = 0; i < r->vram.line_count; i++) {
        helm__control__v1__vram_line__init(&line[i]);
        line[i].what = r->vram.line[i].what;
        line[i].bytes = r->vram.line[i].bytes;
        lines[i] = &line[i];
    }
    ready.device = r->device;
    ready.vram_bytes = r->vram.total;
    ready.n_vram = r->vram.line_count;
    ready.vram = lines;
    ready.vram_limit = r->vram.limit;
    ready.n_reduced = r->reduced_count;
    ready.reduced = reduced;
    log_info("ready: %u threads on %s%d, %s; %s weights in %.2f s", r->threads,
             r->node < 0 ? "no NUMA " : "node ", r->node, r->kernels, r->loaded ? "loaded" : "found",
             r->load_seconds);
    return send_message(c, HELM__CONTROL__V1__CONTROL__BODY_READY, &ready);
}

static void send_fault(struct control *c, int code, const char *text)
{
    Helm__Control__V1__Fault fault = HELM__CONTROL__V1__FAULT__INIT;
    char copy[HELM_ERR_TEXT];
    struct helm_err ignored = {0}, *err = c->err;
    snprintf(copy, sizeof copy, "%s", text);
    fault.code = code;
    fault.text = copy;
    c->err = &ignored; /* a fault that cannot be sent must not hide the fault */
    if (send_message(c, HELM__CONTROL__V1__CONTROL__BODY_FAULT, &fault))
        log_error("helmd could not be told: %s", ignored.text);
    c->err = err;
}

/* ---- what helmd may say ---- */

static int handle_load(struct control *c, const Message *message)
{
    const Helm__Control__V1__Load *load = message->load;
    json_t *json = NULL;
    if (load->threads > POOL_THREADS_MAX)
        return helm_fail(c->err, HELM_E_LIMIT, "LOAD: %u threads, at most %d", load->threads,
                         POOL_THREADS_MAX);
    if (load->peer_wait_ms > PEER_WAIT_MS_MAX)
        return helm_fail(c->err, HELM_E_LIMIT, "LOAD: peer_wait_ms is %u, at most %d", load->peer_wait_ms,
                         PEER_WAIT_MS_MAX);
    if (load->spin_us > SPIN_US_MAX)
        return helm_fail(c->err, HELM_E_LIMIT, "LOAD: spin of %u us, at most %d", load->spin_us, SPIN_US_MAX);
    const enum plan_processor processor = plan_processor_named(load->processor);
    if (processor == PLAN_PROCESSORS)
        return helm_fail(c->err, HELM_E_MISMATCH,
                         "LOAD: this worker should be '%.40s', which is no processor of plans",
                         load->processor);
    int rc = json_parse_bounded("LOAD: plan", load->plan_json, strlen(load->plan_json), LOAD_PLAN_BYTES_MAX,
                                &json, c->err);
    if (!rc) rc = plan_from_json(json, &c->plan, c->err);
    json_decref(json);
    if (rc) return rc;
    c->folder = strdup(load->folder);
    c->kernels = strdup(load->kernels);
    c->device = strdup(load->device);
    c->server = aligned_alloc(64, (sizeof *c->server + 63) / 64 * 64);
    if (!c->folder || !c->kernels || !c->device || !c->server)
        return helm_fail(c->err, HELM_E_NOMEM, "LOAD: no memory");
    memset(c->server, 0, sizeof *c->server);
    c->server->ops = c->options->engine;
    c->server->arena = c->options->arena;
    c->server->epoch = c->options->epoch;
    c->server->worker = c->options->worker;
    c->server->done_fd = c->options->done_fd;
    c->server->report_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->server->report_fd < 0) return helm_fail_errno(c->err, "eventfd");
    c->server->options =
        (struct engine_options){.folder = c->folder,
                                .plan = &c->plan,
                                .processor = processor,
                                .threads = load->threads,
                                .node = load->node,
                                .kernels = c->kernels,
                                .spin_us = load->spin_us ? load->spin_us : POOL_SPIN_US_DEFAULT,
                                .weights_ready = load->weights_ready,
                                .pin = true,
                                .peer_wait_ms = load->peer_wait_ms,
                                .device = c->device,
                                .vram_bytes = load->vram_bytes,
                                .copy_bytes_per_s = load->copy_bytes_per_s,
                                .no_graphs = load->no_graphs,
                                .no_chains = load->no_chains};
    c->state = CONTROL_LOADING;
    return server_start(c->server, c->err);
}

static int handle_ping(struct control *c, const Message *message)
{
    (void)message;
    Helm__Control__V1__Pong pong = HELM__CONTROL__V1__PONG__INIT;
    pong.last_serial = c->server ? atomic_load(&c->server->last_serial) : 0;
    return send_message(c, HELM__CONTROL__V1__CONTROL__BODY_PONG, &pong);
}

static int handle_shutdown(struct control *c, const Message *message)
{
    (void)message;
    c->state = CONTROL_ENDING;
    return 0;
}

#define IN(state) (1u << (state))
static const struct {
    Helm__Control__V1__Control__BodyCase body;
    const char *name;
    unsigned states;
    int (*handle)(struct control *c, const Message *message);
} accepted[] = {
    {HELM__CONTROL__V1__CONTROL__BODY_LOAD, "LOAD", IN(CONTROL_GREETED), handle_load},
    {HELM__CONTROL__V1__CONTROL__BODY_PING, "PING",
     IN(CONTROL_GREETED) | IN(CONTROL_LOADING) | IN(CONTROL_SERVING), handle_ping},
    {HELM__CONTROL__V1__CONTROL__BODY_SHUTDOWN, "SHUTDOWN",
     IN(CONTROL_GREETED) | IN(CONTROL_LOADING) | IN(CONTROL_SERVING), handle_shutdown},
};

static int handle_message(struct control *c, const Message *message)
{
    if (message->version != CONTROL_VERSION || message->epoch != c->options->epoch)
        return helm_fail(c->err, HELM_E_PEER, "helmd speaks version %u, epoch %u; this worker %d, %u",
                         message->version, message->epoch, CONTROL_VERSION, c->options->epoch);
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        if (accepted[i].body != message->body_case) continue;
        if (!(accepted[i].states & IN(c->state)))
            return helm_fail(c->err, HELM_E_STATE, "%s while %s", accepted[i].name, state_name[c->state]);
        return accepted[i].handle(c, message);
    }
    return helm_fail(c->err, HELM_E_PEER, "helmd sent message %d, which no worker takes",
                     (int)message->body_case);
}

/* Takes every frame that has arrived. */
static int receive_all(struct control *c)
{
    int rc = 0;
    while (!rc && c->state != CONTROL_ENDING) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, c->socket, ZMQ_DONTWAIT) < 0) {
            int code = errno;
            zmq_msg_close(&frame);
            if (code == EAGAIN || code == EINTR) return 0;
            return helm_fail(c->err, HELM_E_PEER, "cannot receive from helmd: %s", zmq_strerror(code));
        }
        size_t bytes = zmq_msg_size(&frame);
        Message *message = NULL;
        if (zmq_msg_more(&frame))
            rc = helm_fail(c->err, HELM_E_PEER, "helmd sent a message of several frames");
        else if (bytes <= FRAME_BYTES_MAX)
            message = helm__control__v1__control__unpack(NULL, bytes, zmq_msg_data(&frame));
        if (!rc && !message)
            rc = helm_fail(c->err, HELM_E_PEER, "helmd sent %zu bytes that are no control message", bytes);
        if (!rc) rc = handle_message(c, message);
        helm__control__v1__control__free_unpacked(message, NULL);
        zmq_msg_close(&frame);
    }
    return rc;
}

/* ---- the loop ---- */

/* The step thread said something. */
static int server_changed(struct control *c)
{
    uint64_t count;
    if (read(c->server->report_fd, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR)
        return helm_fail_errno(c->err, "eventfd");
    switch (atomic_load(&c->server->state)) {
    case SERVER_FAILED:
        *c->err = c->server->err;
        return c->server->err.code ? c->server->err.code : HELM_E_INTERNAL;
    case SERVER_SERVING:
        if (c->state != CONTROL_LOADING) return 0;
        c->state = CONTROL_SERVING;
        int rc = send_progress(c); /* all of it */
        return rc ? rc : send_ready(c);
    default:
        return 0;
    }
}

static int control_turn(struct control *c)
{
    zmq_pollitem_t items[2] = {{.socket = c->socket, .events = ZMQ_POLLIN},
                               {.fd = c->server ? c->server->report_fd : -1, .events = ZMQ_POLLIN}};
    int wait_ms = c->state == CONTROL_LOADING ? PROGRESS_MS : POLL_MS;
    int ready = zmq_poll(items, c->server ? 2 : 1, wait_ms);
    if (ready < 0 && errno != EINTR)
        return helm_fail(c->err, HELM_E_INTERNAL, "poll: %s", zmq_strerror(errno));
    if (getppid() != c->options->parent) return helm_fail(c->err, HELM_E_PEER, "helmd is gone");
    int rc = receive_all(c);
    if (!rc && c->server && c->state != CONTROL_ENDING) {
        rc = server_changed(c);
        if (!rc && c->state == CONTROL_LOADING && ready == 0) rc = send_progress(c);
    }
    if (!rc && c->state == CONTROL_GREETED && units_now_us() - c->greeted_us > LOAD_WAIT_MS * UINT64_C(1000))
        rc = helm_fail(c->err, HELM_E_PEER, "no LOAD from helmd for %d s", LOAD_WAIT_MS / 1000);
    return rc;
}

static int control_connect(struct control *c)
{
    c->zmq = zmq_ctx_new();
    c->socket = c->zmq ? zmq_socket(c->zmq, ZMQ_DEALER) : NULL;
    if (!c->socket) return helm_fail(c->err, HELM_E_NOMEM, "no ZeroMQ socket: %s", zmq_strerror(errno));
    int linger = FAULT_LINGER_MS;
    int64_t max_bytes = (int64_t)FRAME_BYTES_MAX;
    if (zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes) ||
        zmq_connect(c->socket, c->options->endpoint))
        return helm_fail(c->err, HELM_E_PEER, "%s: %s", c->options->endpoint, zmq_strerror(errno));
    return 0;
}

int control_serve(const struct control_options *options, struct helm_err *err)
{
    struct control c = {.options = options, .state = CONTROL_GREETED, .err = err};
    int rc = control_connect(&c);
    c.greeted_us = units_now_us();
    if (!rc) rc = send_hello(&c);
    while (!rc && c.state != CONTROL_ENDING) rc = control_turn(&c);
    if (rc && c.socket) send_fault(&c, rc, err->text);
    if (c.server) {
        server_stop(c.server);
        if (c.server->report_fd >= 0) close(c.server->report_fd);
    }
    if (c.socket) zmq_close(c.socket);
    if (c.zmq) zmq_ctx_term(c.zmq);
    free(c.server);
    free(c.folder);
    free(c.kernels);
    free(c.device);
    plan_free(&c.plan);
    return rc;
}
