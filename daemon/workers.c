/* The workers. See workers.h. Called from the one loop; owns the control socket, the children, their
 * eventfds.
 *
 * The topology:      helmd --control (ZeroMQ, both ways)--> worker 0 "cpu"
 *                    helmd --arena: step ring, doorbell--> worker 0 --arena: result; eventfd--> helmd
 * Workers of one machine are numbered in plan order; a CPU-only plan has one. */
#include "daemon/workers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/units.h"
#include "daemon/worker_process.h"
#include "proto/control.pb-c.h"

#define CONTROL_VERSION   1
#define CONTROL_FRAME_MAX ((int64_t)1 << 20)
#define SECOND_US         ((uint64_t)1000000)
#define HELLO_WITHIN_US   (30 * SECOND_US)
#define PING_EVERY_US     (10 * SECOND_US)
#define SILENCE_MAX_US    (60 * SECOND_US) /* idle or loading, with a PING unanswered */
#define STEP_PING_US      (2 * SECOND_US)  /* for the answer to a PING sent because a step is late */
#define STEP_LATE_FACTOR  10               /* a worker that answers PING may be this many bounds late */
#define START_TRIES       3                /* deaths before the first READY */
#define DEATH_WINDOW_US   (60 * SECOND_US)
#define SHUTDOWN_MS       2000

typedef Helm__Control__V1__Control control_msg;

int workers_open(void *zmq, const struct workers_config *config, const struct workers_events *events,
                 struct arena *arena, struct keeper *keeper, struct workers *workers, struct helm_err *err)
{
    memset(workers, 0, sizeof *workers);
    workers->config = *config;
    workers->events = *events;
    workers->arena = arena;
    workers->keeper = keeper;
    workers->worker = (struct worker){.name = "cpu", .done_fd = -1, .node = -1};
    workers->socket = zmq_socket(zmq, ZMQ_ROUTER);
    int64_t frame_max = CONTROL_FRAME_MAX;
    int linger = 0, mandatory = 1;
    if (!workers->socket || zmq_setsockopt(workers->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max) ||
        zmq_setsockopt(workers->socket, ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_setsockopt(workers->socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory) ||
        zmq_bind(workers->socket, config->control))
        return helm_fail(err, HELM_E_IO, "control socket %s: %s", config->control, zmq_strerror(errno));
    return 0;
}

int workers_poll_items(struct workers *workers, zmq_pollitem_t items[WORKERS_POLL_MAX])
{
    int n = 0;
    items[n++] = (zmq_pollitem_t){.socket = workers->socket, .events = ZMQ_POLLIN};
    if (workers->worker.done_fd >= 0)
        items[n++] = (zmq_pollitem_t){.fd = workers->worker.done_fd, .events = ZMQ_POLLIN};
    return n;
}

bool workers_take_ring(struct workers *workers)
{
    struct worker *w = &workers->worker;
    uint64_t count;
    if (w->done_fd < 0 || read(w->done_fd, &count, sizeof count) != sizeof count) return false;
    /* A step done is a sign of life, whether or not a PING sent meanwhile was answered yet. */
    w->heard_us = units_now_us();
    w->pinged_us = 0;
    return true;
}

static void worker_enter(struct worker *w, enum worker_state state)
{
    w->state = state;
    w->state_since_us = w->heard_us = units_now_us();
    w->pinged_us = 0;
}

/* ---- sending ------------------------------------------------------------------------------------------ */

static void worker_send(struct workers *workers, control_msg *msg)
{
    struct worker *w = &workers->worker;
    msg->version = CONTROL_VERSION;
    msg->epoch = w->epoch;
    msg->worker = 0;
    size_t size = helm__control__v1__control__get_packed_size(msg);
    zmq_msg_t frame;
    if (w->routing_id_size == 0) return;
    if (zmq_msg_init_size(&frame, size)) return;
    helm__control__v1__control__pack(msg, zmq_msg_data(&frame));
    if (zmq_send(workers->socket, w->routing_id, w->routing_id_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_msg_send(&frame, workers->socket, ZMQ_DONTWAIT) < 0) {
        log_debug("worker %s: cannot send: %s", w->name, zmq_strerror(errno));
        zmq_msg_close(&frame);
    }
}

static void worker_ping(struct workers *workers, uint64_t now_us)
{
    control_msg msg = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Ping ping = HELM__CONTROL__V1__PING__INIT;
    msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_PING;
    msg.ping = &ping;
    workers->worker.pinged_us = now_us;
    worker_send(workers, &msg);
}

static void worker_send_load(struct workers *workers)
{
    const struct workers_config *c = &workers->config;
    control_msg msg = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Load load = HELM__CONTROL__V1__LOAD__INIT;
    load.folder = (char *)c->folder;
    load.plan_json = (char *)c->plan_json;
    load.threads = c->threads;
    load.node = -1;
    load.kernels = (char *)c->kernels;
    load.spin_us = c->spin_us;
    load.weights_ready = workers->worker.weights_digest;
    msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_LOAD;
    msg.load = &load;
    worker_send(workers, &msg);
}

/* ---- ends --------------------------------------------------------------------------------------------- */

void workers_kill(struct workers *workers, const char *why)
{
    struct worker *w = &workers->worker;
    if (w->pid <= 0 || w->killed_by_us) return;
    log_error("worker %s (pid %ld): %s: killing it", w->name, (long)w->pid, why);
    snprintf(w->why, sizeof w->why, "%s", why);
    w->killed_by_us = true;
    kill(w->pid, SIGKILL);
}

static uint32_t deaths_within(const struct workers *workers, uint64_t now_us)
{
    uint32_t ring = sizeof workers->death_us / sizeof *workers->death_us, n = 0;
    for (uint32_t i = 0; i < ring && i < workers->deaths; i++)
        n += workers->death_us[i] + DEATH_WINDOW_US > now_us;
    return n;
}

/* After an end: start again, a little later each time, or give up. */
static void worker_plan_restart(struct workers *workers, const char *why)
{
    struct worker *w = &workers->worker;
    uint64_t now_us = units_now_us();
    uint32_t ring = sizeof workers->death_us / sizeof *workers->death_us;
    workers->death_us[workers->deaths++ % ring] = now_us;
    uint32_t recent = deaths_within(workers, now_us);
    char text[HELM_ERR_TEXT];
    if (!workers->ever_ready && (w->fault_code || workers->deaths >= START_TRIES)) {
        workers->events.given_up(workers->events.context, w->fault_code ? w->fault_code : HELM_E_PEER, why,
                                 false);
        return;
    }
    if (workers->ever_ready && recent > workers->config.restart_limit) {
        snprintf(text, sizeof text, "worker %s died %u times within a minute, the last time: %.380s", w->name,
                 recent, why);
        workers->events.given_up(workers->events.context, HELM_E_PEER, text, true);
        return;
    }
    uint64_t wait_us = recent <= 1 ? 0 : (uint64_t)50000 << (recent - 2 < 7 ? recent - 2 : 7);
    if (wait_us > 5 * SECOND_US) wait_us = 5 * SECOND_US;
    w->start_at_us = now_us + wait_us;
    w->restarts++;
}

bool workers_child_ended(struct workers *workers, pid_t pid, int wait_status)
{
    struct worker *w = &workers->worker;
    if (pid != w->pid || pid <= 0) return false;
    char how[128], why[HELM_ERR_TEXT];
    worker_process_describe(wait_status, how, sizeof how);
    /* A last FAULT may still lie in the socket. */
    workers_receive(workers);
    snprintf(why, sizeof why, "%.350s%s%s", w->why, w->why[0] ? "; " : "", how);
    bool was_ready = w->state == WORKER_READY;
    /* Only a kill from outside at a moment when the worker was sound leaves the KV above suspicion. */
    bool intact = was_ready && !w->killed_by_us && !w->why[0] && WIFSIGNALED(wait_status) &&
                  (WTERMSIG(wait_status) == SIGKILL || WTERMSIG(wait_status) == SIGTERM);
    w->pid = 0;
    w->routing_id_size = 0;
    if (w->done_fd >= 0) close(w->done_fd);
    w->done_fd = -1;
    worker_enter(w, WORKER_DOWN);
    w->start_at_us = UINT64_MAX;
    if (workers->stopping) return true;
    log_warn("worker %s (pid %ld, epoch %u) %s", w->name, (long)pid, w->epoch, why);
    workers->events.lost(workers->events.context, intact, why);
    worker_plan_restart(workers, why);
    return true;
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static void worker_start(struct workers *workers)
{
    struct worker *w = &workers->worker;
    struct helm_err err = {0};
    w->epoch++;
    w->killed_by_us = false;
    w->why[0] = 0;
    w->fault_code = 0;
    w->bytes_done = w->bytes_total = 0;
    w->start_at_us = UINT64_MAX;
    workers->events.prepare(workers->events.context, w->epoch);
    struct worker_process_spec spec = {.program = workers->config.program,
                                       .arena_fd = workers->arena->fd,
                                       .control = workers->config.control,
                                       .worker = 0,
                                       .epoch = w->epoch,
                                       .log_level = workers->config.log_level};
    int rc = 0;
    if (getrandom(w->secret, sizeof w->secret, 0) != (ssize_t)sizeof w->secret)
        rc = helm_fail_errno(&err, "drawing a worker's secret");
    memcpy(spec.secret, w->secret, sizeof spec.secret);
    if (!rc) {
        w->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (w->done_fd < 0) rc = helm_fail_errno(&err, "eventfd");
    }
    spec.done_fd = w->done_fd;
    if (!rc) rc = worker_process_start(&spec, &w->pid, &err);
    if (rc) {
        log_error("worker %s: %s", w->name, err.text);
        if (w->done_fd >= 0) close(w->done_fd);
        w->done_fd = -1;
        worker_plan_restart(workers, err.text);
        return;
    }
    keeper_add_worker(workers->keeper, w->pid);
    worker_enter(w, WORKER_STARTING);
    log_info("worker %s: pid %ld, epoch %u", w->name, (long)w->pid, w->epoch);
}

/* ---- receiving: one table of message, states that allow it, handler ----------------------------------- */

#define IN(state) (1u << (state))

static void on_hello(struct workers *workers, const control_msg *msg)
{
    struct worker *w = &workers->worker;
    const Helm__Control__V1__Hello *hello = msg->hello;
    char why[160] = "";
    if (hello->pid != (uint32_t)w->pid)
        snprintf(why, sizeof why, "HELLO with pid %u, spawned was %ld", hello->pid, (long)w->pid);
    else if (hello->arena_abi != ARENA_ABI)
        snprintf(why, sizeof why, "HELLO with arena ABI %u, this helmd has %u: rebuild both",
                 hello->arena_abi, ARENA_ABI);
    else if (strcmp(hello->kind, w->name) != 0)
        snprintf(why, sizeof why, "HELLO of a '%.32s' worker, expected '%s'", hello->kind, w->name);
    if (why[0]) {
        if (hello->arena_abi != ARENA_ABI) w->fault_code = HELM_E_MISMATCH; /* trying again cannot help */
        workers_kill(workers, why);
        return;
    }
    worker_enter(w, WORKER_LOADING);
    w->loading_since_us = w->logged_us = w->heard_us;
    worker_send_load(workers);
}

static void on_progress(struct workers *workers, const control_msg *msg)
{
    struct worker *w = &workers->worker;
    w->bytes_done = msg->progress->bytes_done;
    w->bytes_total = msg->progress->bytes_total;
    uint64_t now_us = units_now_us();
    if (now_us < w->logged_us + SECOND_US || w->bytes_total == 0) return;
    char done[UNITS_TEXT], total[UNITS_TEXT], rate[UNITS_TEXT];
    double seconds = (double)(now_us - w->loading_since_us) / 1e6;
    w->logged_us = now_us;
    log_info("loading: %s of %s, %s/s, %.0f s left", units_format_size(w->bytes_done, done),
             units_format_size(w->bytes_total, total),
             units_format_size((uint64_t)((double)w->bytes_done / seconds), rate),
             workers_seconds_left(workers, now_us));
}

static void on_ready(struct workers *workers, const control_msg *msg)
{
    struct worker *w = &workers->worker;
    const Helm__Control__V1__Ready *ready = msg->ready;
    char bytes[UNITS_TEXT];
    worker_enter(w, WORKER_READY);
    w->threads = ready->threads;
    w->node = ready->node;
    snprintf(w->kernels, sizeof w->kernels, "%s", ready->kernels);
    w->weight_bytes = w->bytes_done = w->bytes_total = ready->weight_bytes;
    w->huge_bytes = ready->huge_bytes;
    w->weights_digest = ready->weights_digest;
    workers->ever_ready = true;
    log_info("worker %s ready: %s of weights in %.2f s, %u threads, node %d, %s", w->name,
             units_format_size(w->weight_bytes, bytes), ready->load_seconds, w->threads, w->node, w->kernels);
    for (size_t i = 0; i < ready->n_reduced && i < 16; i++)
        log_warn("worker %s: reduced: %.200s", w->name, ready->reduced[i]);
    workers->events.ready(workers->events.context);
}

static void on_pong(struct workers *workers, const control_msg *msg)
{
    (void)msg;
    workers->worker.pinged_us = 0;
}

static void on_fault(struct workers *workers, const control_msg *msg)
{
    struct worker *w = &workers->worker;
    w->fault_code = msg->fault->code < 0 ? msg->fault->code : HELM_E_PEER;
    snprintf(w->why, sizeof w->why, "%.400s", msg->fault->text);
    log_error("worker %s: %s", w->name, w->why);
}

static const struct {
    Helm__Control__V1__Control__BodyCase body;
    unsigned states;
    const char *name;
    void (*take)(struct workers *workers, const control_msg *msg);
} message_table[] = {
    {HELM__CONTROL__V1__CONTROL__BODY_HELLO, IN(WORKER_STARTING), "HELLO", on_hello},
    {HELM__CONTROL__V1__CONTROL__BODY_PROGRESS, IN(WORKER_LOADING), "PROGRESS", on_progress},
    {HELM__CONTROL__V1__CONTROL__BODY_READY, IN(WORKER_LOADING), "READY", on_ready},
    {HELM__CONTROL__V1__CONTROL__BODY_PONG, IN(WORKER_LOADING) | IN(WORKER_READY), "PONG", on_pong},
    {HELM__CONTROL__V1__CONTROL__BODY_FAULT, IN(WORKER_STARTING) | IN(WORKER_LOADING) | IN(WORKER_READY),
     "FAULT", on_fault},
};

static void worker_take(struct workers *workers, const uint8_t *id, size_t id_size, const control_msg *msg)
{
    struct worker *w = &workers->worker;
    char why[128];
    if (w->pid <= 0 || w->killed_by_us) return;
    bool known = w->routing_id_size == id_size && memcmp(w->routing_id, id, id_size) == 0;
    if (!known) {
        /* Whoever proves to be our child is; what an older one says late, or a stranger, is not heard. */
        if (msg->body_case != HELM__CONTROL__V1__CONTROL__BODY_HELLO || w->routing_id_size != 0 ||
            msg->secret.len != sizeof w->secret ||
            memcmp(msg->secret.data, w->secret, sizeof w->secret) != 0) {
            log_warn("control: a message that is not from the worker of epoch %u was ignored", w->epoch);
            return;
        }
        memcpy(w->routing_id, id, id_size);
        w->routing_id_size = id_size;
    }
    if (msg->version != CONTROL_VERSION || msg->epoch != w->epoch || msg->worker != 0) {
        snprintf(why, sizeof why, "message of version %u, epoch %u, worker %u; expected %d, %u, 0",
                 msg->version, msg->epoch, msg->worker, CONTROL_VERSION, w->epoch);
        workers_kill(workers, why);
        return;
    }
    w->heard_us = units_now_us();
    for (size_t i = 0; i < sizeof message_table / sizeof *message_table; i++) {
        if (message_table[i].body != msg->body_case) continue;
        if (message_table[i].states & IN(w->state)) {
            message_table[i].take(workers, msg);
            return;
        }
        snprintf(why, sizeof why, "%s while %s", message_table[i].name, workers_state_name(workers));
        workers_kill(workers, why);
        return;
    }
    snprintf(why, sizeof why, "message %d, which no worker sends", (int)msg->body_case);
    workers_kill(workers, why);
}

void workers_receive(struct workers *workers)
{
    for (int budget = 256; budget > 0; budget--) {
        uint8_t id[255];
        int id_size = zmq_recv(workers->socket, id, sizeof id, ZMQ_DONTWAIT);
        if (id_size < 0) return;
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        int parts = 0, more = 1;
        size_t more_size = sizeof more;
        while (!zmq_getsockopt(workers->socket, ZMQ_RCVMORE, &more, &more_size) && more) {
            if (zmq_msg_recv(&frame, workers->socket, ZMQ_DONTWAIT) < 0) break;
            parts++;
        }
        control_msg *msg =
            parts == 1 ? helm__control__v1__control__unpack(NULL, zmq_msg_size(&frame), zmq_msg_data(&frame))
                       : NULL;
        struct worker *w = &workers->worker;
        bool known = w->routing_id_size == (size_t)id_size && memcmp(w->routing_id, id, (size_t)id_size) == 0;
        if (msg)
            worker_take(workers, id, (size_t)id_size, msg);
        else if (known)
            workers_kill(workers, "sent a frame that is no control message");
        if (msg) helm__control__v1__control__free_unpacked(msg, NULL);
        zmq_msg_close(&frame);
    }
}

/* ---- watching ----------------------------------------------------------------------------------------- */

static uint64_t step_bound_us(const struct workers_config *c, uint32_t tokens)
{
    if (c->step_timeout_ms) return c->step_timeout_ms * 1000;
    /* As if memory gave 1 GB/s and the processor 20 GFLOP/s, and the machine were busy for ten seconds. */
    return 10 * SECOND_US + c->token_bytes / 1000 + (uint64_t)((double)c->token_flops * tokens / 20e3);
}

static void watch_step(struct workers *workers, uint64_t now_us, uint64_t rung_us, uint32_t tokens)
{
    struct worker *w = &workers->worker;
    uint64_t bound = step_bound_us(&workers->config, tokens), late = now_us - rung_us;
    uint64_t patience = workers->config.step_timeout_ms && bound < STEP_PING_US ? bound : STEP_PING_US;
    char why[160];
    if (now_us < rung_us || late < bound) return;
    if (late > bound * STEP_LATE_FACTOR) {
        snprintf(why, sizeof why, "a step of %u tokens takes %.1f s, bound %.1f s", tokens,
                 (double)late / 1e6, (double)bound / 1e6);
        workers_kill(workers, why);
    } else if (!w->pinged_us) {
        worker_ping(workers, now_us);
    } else if (now_us > w->pinged_us + patience && w->pinged_us >= rung_us + bound) {
        snprintf(why, sizeof why, "a step of %u tokens takes %.1f s and PING is not answered", tokens,
                 (double)late / 1e6);
        workers_kill(workers, why);
    } else if (w->pinged_us < rung_us + bound) {
        worker_ping(workers, now_us); /* an old one may have been lost in the step itself */
    }
}

uint64_t workers_tick(struct workers *workers, uint64_t now_us, uint64_t step_rung_us, uint32_t step_tokens)
{
    struct worker *w = &workers->worker;
    char why[128];
    if (w->state == WORKER_DOWN) {
        if (workers->stopping || w->start_at_us > now_us)
            return workers->stopping ? UINT64_MAX : w->start_at_us;
        worker_start(workers);
        return now_us + SECOND_US;
    }
    if (w->state == WORKER_STARTING) {
        if (now_us > w->state_since_us + HELLO_WITHIN_US) workers_kill(workers, "no HELLO within 30 s");
    } else if (step_rung_us) {
        watch_step(workers, now_us, step_rung_us, step_tokens);
        uint64_t look = step_rung_us + step_bound_us(&workers->config, step_tokens);
        if (look > now_us) return look < now_us + SECOND_US ? look : now_us + SECOND_US;
        return now_us + 50000;
    } else if (w->pinged_us && now_us > w->heard_us + SILENCE_MAX_US &&
               now_us > w->pinged_us + SILENCE_MAX_US) {
        snprintf(why, sizeof why, "silent for %.0f s while %s", (double)(now_us - w->heard_us) / 1e6,
                 workers_state_name(workers));
        workers_kill(workers, why);
    } else if (!w->pinged_us && now_us > w->heard_us + PING_EVERY_US) {
        worker_ping(workers, now_us);
    }
    return now_us + SECOND_US;
}

/* ---- the end, and what Status shows ------------------------------------------------------------------- */

void workers_close(struct workers *workers)
{
    struct worker *w = &workers->worker;
    workers->stopping = true;
    if (w->pid > 0) {
        control_msg msg = HELM__CONTROL__V1__CONTROL__INIT;
        Helm__Control__V1__Shutdown shutdown = HELM__CONTROL__V1__SHUTDOWN__INIT;
        msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_SHUTDOWN;
        msg.shutdown = &shutdown;
        worker_send(workers, &msg);
        if (w->routing_id_size == 0) kill(w->pid, SIGTERM); /* not yet connected: it can hear nothing else */
        int status = 0;
        pid_t got = 0;
        for (int waited_ms = 0; waited_ms < SHUTDOWN_MS; waited_ms += 2) {
            got = waitpid(w->pid, &status, WNOHANG);
            if (got != 0) break;
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
        if (got == 0) {
            log_warn("worker %s did not end on SHUTDOWN within %d ms: killing it", w->name, SHUTDOWN_MS);
            kill(w->pid, SIGKILL);
            while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR) {}
        }
        w->pid = 0;
    }
    if (w->done_fd >= 0) close(w->done_fd);
    w->done_fd = -1;
    if (workers->socket) zmq_close(workers->socket);
    workers->socket = NULL;
}

double workers_seconds_left(const struct workers *workers, uint64_t now_us)
{
    const struct worker *w = &workers->worker;
    if (w->state != WORKER_LOADING || w->bytes_done == 0 || w->bytes_done >= w->bytes_total) return 0;
    double seconds = (double)(now_us - w->loading_since_us) / 1e6;
    return seconds * (double)(w->bytes_total - w->bytes_done) / (double)w->bytes_done;
}

const char *workers_state_name(const struct workers *workers)
{
    switch (workers->worker.state) {
    case WORKER_STARTING:
        return "starting";
    case WORKER_LOADING:
        return "loading";
    case WORKER_READY:
        return "ready";
    default:
        return workers->ever_ready ? "restarting" : "starting";
    }
}
