/* The workers. See workers.h. Called from the one loop; owns the control socket, the children, their
 * eventfds. Watching them over time and ending them is in workers_watch.c.
 * The topology:      helmd --control (ZeroMQ, both ways)--> every worker
 *                    helmd --arena: step ring, one doorbell--> every worker
 *                    workers --arena: lanes--> each other
 *                    head's worker --arena: result; every worker: its done bell and eventfd--> helmd
 * Which workers run follows from the plan. */
#include "daemon/children/workers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/plan/state.h"
#include "daemon/children/worker_process.h"
#include "daemon/children/workers_private.h"

/* The worker of a processor, which is there when the plan has something for it to do. */
struct topology {
    const char *kind, *program;
};
static const struct topology of_cpus = {"cpu",
                                        "helm-worker-cpu"}, /* also where it only loads what a GPU copies */
    of_devices = {"gpu", "helm-worker-gpu"};

static const struct topology *topology_of(enum plan_processor processor)
{
    return plan_processor_has_memory(processor) ? &of_devices : &of_cpus;
}

const char *workers_device_program(void)
{
    return of_devices.program;
}

/* Those that the plan has something to do for. */
static int find_workers(struct workers *workers, struct helm_err *err)
{
    const struct workers_config *config = &workers->config;
    for (size_t i = 0; i < WORKERS_MAX; i++) {
        const enum plan_processor processor = (enum plan_processor)i;
        if (!plan_uses(config->plan, processor)) continue;
        struct worker *w = &workers->worker[workers->count++];
        w->name = plan_processor_name(processor);
        w->processor = processor;
        w->done_fd = w->node = -1;
        int rc = worker_process_find(config->worker_dir, topology_of(processor)->program, w->program,
                                     sizeof w->program, err);
        if (rc) return rc;
    }
    return 0;
}

int workers_open(void *zmq, const struct workers_config *config, const struct workers_events *events,
                 struct arena *arena, struct keeper *keeper, struct workers *workers, struct helm_err *err)
{
    memset(workers, 0, sizeof *workers);
    workers->config = *config;
    workers->events = *events;
    workers->arena = arena;
    workers->keeper = keeper;
    int rc = find_workers(workers, err);
    if (rc) return rc;
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

int workers_renew(struct workers *workers, const struct workers_config *config, struct helm_err *err)
{
    *workers = (struct workers){.config = *config,
                                .events = workers->events,
                                .arena = workers->arena,
                                .keeper = workers->keeper,
                                .socket = workers->socket,
                                .epoch = workers->epoch};
    return find_workers(workers, err);
}

int workers_poll_items(struct workers *workers, zmq_pollitem_t items[WORKERS_POLL_MAX])
{
    int n = 0;
    items[n++] = (zmq_pollitem_t){.socket = workers->socket, .events = ZMQ_POLLIN};
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->worker[i].done_fd >= 0)
            items[n++] = (zmq_pollitem_t){.fd = workers->worker[i].done_fd, .events = ZMQ_POLLIN};
    return n;
}

bool workers_take_ring(struct workers *workers)
{
    bool rung = false;
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        uint64_t count;
        if (w->done_fd < 0 || read(w->done_fd, &count, sizeof count) != sizeof count) continue;
        /* A step done is a sign of life, whether or not a PING sent meanwhile was answered yet. */
        w->heard_us = units_now_us();
        w->pinged_us = 0;
        rung = true;
    }
    return rung;
}

bool workers_ready(const struct workers *workers)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->worker[i].state != WORKER_READY) return false;
    return true;
}

static bool all_down(const struct workers *workers)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->worker[i].pid > 0 || workers->worker[i].ended_at_us) return false;
    return true;
}

static void worker_enter(struct worker *w, enum worker_state state)
{
    w->state = state;
    w->state_since_us = w->heard_us = units_now_us();
    w->pinged_us = 0;
    w->stall = NULL;
}

void worker_close_fd(struct worker *w)
{
    if (w->done_fd >= 0) close(w->done_fd);
    w->done_fd = -1;
}

/* ---- sending ------------------------------------------------------------------------------------------ */

void worker_send(struct workers *workers, struct worker *w, Helm__Control__V1__Control__BodyCase kind,
                 void *body)
{
    control_msg msg = HELM__CONTROL__V1__CONTROL__INIT;
    msg.version = CONTROL_VERSION;
    msg.epoch = workers->epoch;
    msg.worker = (uint32_t)(w - workers->worker);
    msg.body_case = kind;
    msg.load = body; /* a union of pointers */
    size_t size = helm__control__v1__control__get_packed_size(&msg);
    zmq_msg_t frame;
    if (w->routing_id_size == 0) return;
    if (zmq_msg_init_size(&frame, size)) return;
    helm__control__v1__control__pack(&msg, zmq_msg_data(&frame));
    if (zmq_send(workers->socket, w->routing_id, w->routing_id_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_msg_send(&frame, workers->socket, ZMQ_DONTWAIT) < 0) {
        log_debug("worker %s: cannot send: %s", w->name, zmq_strerror(errno));
        zmq_msg_close(&frame);
    }
}

static void worker_send_load(struct workers *workers, struct worker *w)
{
    const struct workers_config *c = &workers->config;
    Helm__Control__V1__Load load = HELM__CONTROL__V1__LOAD__INIT;
    const bool gpu = plan_processor_has_memory(w->processor);
    const uint32_t index = gpu ? plan_device_index(w->processor) : 0;
    load.processor = (char *)w->name;
    load.folder = (char *)c->folder;
    load.plan_json = (char *)c->plan_json;
    load.threads = c->threads;
    load.node = c->node;
    load.spin_us = c->spin_us;
    load.peer_wait_ms = workers_peer_wait_ms(c);
    /* Weights in the arena outlive their worker; those in VRAM do not. */
    load.weights_ready = gpu ? 0 : w->weights_digest;
    load.kernels = (char *)(gpu ? "" : c->kernels);
    load.device = (char *)(gpu ? c->device[index] : "");
    load.vram_bytes = gpu ? c->vram_bytes[index] : 0;
    load.copy_bytes_per_s = gpu ? c->copy_bytes_per_s : 0;
    load.no_graphs = gpu && c->no_graphs;
    load.no_chains = gpu && c->no_chains;
    worker_send(workers, w, HELM__CONTROL__V1__CONTROL__BODY_LOAD, &load);
}

/* ---- ends --------------------------------------------------------------------------------------------- */

void worker_kill(struct worker *w, const char *why)
{
    if (w->pid <= 0 || w->killed_by_us || w->companion) return;
    log_error("worker %s (pid %ld): %s: killing it", w->name, (long)w->pid, why);
    snprintf(w->why, sizeof w->why, "%s", why);
    w->killed_by_us = true;
    kill(w->pid, SIGKILL);
}

void workers_kill_head(struct workers *workers, const char *why)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->worker[i].processor == workers->config.plan->head) worker_kill(&workers->worker[i], why);
}

static uint32_t deaths_within(const struct workers *workers, uint64_t now_us)
{
    uint32_t ring = sizeof workers->death_us / sizeof *workers->death_us, n = 0;
    for (uint32_t i = 0; i < ring && i < workers->deaths; i++)
        n += workers->death_us[i] + DEATH_WINDOW_US > now_us;
    return n;
}

/* As many deaths as the limit allows fit into half the time that they are counted in. */
static uint64_t restart_wait_most_us(uint32_t limit)
{
    const uint64_t share_us = DEATH_WINDOW_US / 2 / (limit ? limit : 1);
    return share_us < 5 * SECOND_US ? share_us : 5 * SECOND_US;
}

/* All are down: start again, a little later each time, or give up. */
static void workers_plan_restart(struct workers *workers)
{
    uint64_t now_us = units_now_us();
    uint32_t ring = sizeof workers->death_us / sizeof *workers->death_us;
    uint32_t unready = workers->unready_starts;
    workers->falling = false;
    if (access(workers->config.control + strlen("ipc://"), F_OK) && errno == ENOENT) {
        char gone[HELM_ERR_TEXT];
        snprintf(gone, sizeof gone,
                 "%.200s was removed: no worker can be started, no client can connect; %.200s",
                 workers->config.control + strlen("ipc://"), workers->why);
        workers->events.given_up(workers->events.context, HELM_E_NOT_FOUND, gone, workers->ever_ready);
        return;
    }
    workers->death_us[workers->deaths++ % ring] = now_us;
    uint32_t recent = deaths_within(workers, now_us);
    char text[HELM_ERR_TEXT];
    /* However long each try took: what the workers need is not there, which no rate of deaths has to say. */
    if (unready >= START_TRIES || (!workers->ever_ready && workers->fault_code)) {
        snprintf(text, sizeof text, "%s%.400s",
                 workers->ever_ready ? "workers could not be started again, the last time " : "",
                 workers->why);
        workers->events.given_up(workers->events.context,
                                 workers->fault_code ? workers->fault_code : HELM_E_PEER, text,
                                 workers->ever_ready);
        return;
    }
    if (workers->ever_ready && recent > workers->config.restart_limit) {
        snprintf(text, sizeof text, "a worker died %u times within a minute, the last time %.380s", recent,
                 workers->why);
        workers->events.given_up(workers->events.context, HELM_E_PEER, text, true);
        return;
    }
    uint64_t wait_us = recent <= 1 ? 0 : (uint64_t)50000 << (recent - 2 < 7 ? recent - 2 : 7);
    const uint64_t most_us = restart_wait_most_us(workers->config.restart_limit);
    if (wait_us > most_us) wait_us = most_us;
    /* Few tries, so not all within a moment: what was missing may be given back. */
    if (workers->ever_ready && unready && wait_us < unready * RETRY_WAIT_US)
        wait_us = unready * RETRY_WAIT_US;
    workers->start_at_us = now_us + wait_us;
    for (uint32_t i = 0; i < workers->count; i++) workers->worker[i].restarts++;
}

/* The first worker of this epoch has ended: the consequences for all. */
static void workers_fall(struct workers *workers, int fault_code, const struct workers_loss *loss)
{
    workers->falling = true;
    workers->fault_code = fault_code;
    snprintf(workers->why, sizeof workers->why, "%s", loss->why);
    workers->events.lost(workers->events.context, loss);
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        if (w->pid <= 0) continue;
        w->companion = true;
        kill(w->pid, SIGKILL); /* it may be waiting for the other's part of a step */
    }
}

void worker_end(struct workers *workers, struct worker *w)
{
    int status = w->ended_status;
    char how[128], what[HELM_ERR_TEXT], why[HELM_ERR_TEXT];
    worker_process_describe(status, how, sizeof how);
    snprintf(what, sizeof what, "%.350s%s%s", w->why, w->why[0] ? "; " : "", how);
    snprintf(why, sizeof why, "worker %s: %.480s", w->name, what);
    bool outside = !w->killed_by_us && !w->why[0] && WIFSIGNALED(status) &&
                   (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM);
    /* Only a kill from outside at a moment when all were sound leaves the KV above suspicion, and what was in
     * VRAM alone is gone with its worker. */
    const struct plan *plan = workers->config.plan;
    bool intact = outside && workers_ready(workers) && (plan_kv_tiered(plan) || !plan_device_layers(plan)) &&
                  !plan_session_window_layer(plan, PLAN_PROCESSORS);
    w->ended_at_us = 0;
    w->routing_id_size = 0;
    worker_close_fd(w);
    worker_enter(w, WORKER_DOWN);
    if (workers->stopping) return;
    if (w->companion)
        log_debug("worker %s (pid %ld) %s with the other", w->name, (long)w->ended_pid, how);
    else
        log_warn("worker %s (pid %ld, epoch %u) %s", w->name, (long)w->ended_pid, workers->epoch, what);
    if (!workers->falling) {
        const struct workers_loss loss = {.kv_intact = intact, .outside = outside, .why = why};
        workers_fall(workers, w->fault_code, &loss);
    }
    if (all_down(workers)) workers_plan_restart(workers);
}

bool workers_child_ended(struct workers *workers, pid_t pid, int wait_status)
{
    struct worker *w = workers->worker;
    while (w < workers->worker + workers->count && w->pid != pid) w++;
    if (pid <= 0 || w == workers->worker + workers->count) return false;
    w->pid = 0;
    w->ended_pid = pid;
    w->ended_status = wait_status;
    w->ended_at_us = units_now_us() + LAST_WORDS_US;
    workers_receive(workers);
    /* A worker that exits by itself says why first, but that message may still be on its way. */
    bool says_why = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) != 0 && !w->companion;
    if (!says_why || w->why[0] || workers->stopping) worker_end(workers, w);
    return true;
}

/* ---- starting ----------------------------------------------------------------------------------------- */

static int worker_start(struct workers *workers, struct worker *w, struct helm_err *err)
{
    struct worker_process_spec spec = {.program = w->program,
                                       .arena_fd = workers->arena->fd,
                                       .control = workers->config.control,
                                       .worker = (uint32_t)(w - workers->worker),
                                       .epoch = workers->epoch,
                                       .log_level = workers->config.log_level};
    w->killed_by_us = w->companion = false;
    w->why[0] = 0;
    w->fault_code = 0;
    w->bytes_done = w->bytes_total = 0;
    if (getrandom(w->secret, sizeof w->secret, 0) != (ssize_t)sizeof w->secret)
        return helm_fail_errno(err, "drawing a worker's secret");
    memcpy(spec.secret, w->secret, sizeof spec.secret);
    w->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->done_fd < 0) return helm_fail_errno(err, "eventfd");
    spec.done_fd = w->done_fd;
    int rc = worker_process_start(&spec, &w->pid, err);
    if (rc) {
        worker_close_fd(w);
        return rc;
    }
    keeper_add_worker(workers->keeper, w->pid);
    worker_enter(w, WORKER_STARTING);
    log_info("worker %s: pid %ld, epoch %u", w->name, (long)w->pid, workers->epoch);
    return 0;
}

/* The GPU worker waits for this bell before it registers the weights in the arena. They are there already
 * where their loader has been ready in an earlier life; where it died loading they are not, whatever it rang.
 */
static void quiet_weights_bell(const struct workers *workers)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (!plan_processor_has_memory(workers->worker[i].processor) && workers->worker[i].weights_digest)
            return;
    doorbell_init(&arena_control_of(workers->arena)->weights_bell, 0);
}

void workers_start(struct workers *workers)
{
    struct helm_err err = {0};
    workers->start_at_us = UINT64_MAX;
    workers->epoch++;
    workers->unready_starts++;
    quiet_weights_bell(workers);
    workers->events.prepare(workers->events.context, workers->epoch);
    for (uint32_t i = 0; i < workers->count; i++) {
        if (!worker_start(workers, &workers->worker[i], &err)) continue;
        log_error("worker %s: %s", workers->worker[i].name, err.text);
        const struct workers_loss loss = {.why = err.text};
        workers_fall(workers, 0, &loss);
        if (all_down(workers)) workers_plan_restart(workers);
        return;
    }
}

/* ---- receiving: one table of message, states that allow it, handler ----------------------------------- */

#define IN(state) (1u << (state))

static void on_hello(struct workers *workers, struct worker *w, const control_msg *msg)
{
    const Helm__Control__V1__Hello *hello = msg->hello;
    char why[160] = "";
    pid_t spawned = w->ended_at_us ? w->ended_pid : w->pid;
    if (hello->pid != (uint32_t)spawned)
        snprintf(why, sizeof why, "HELLO with pid %u, spawned was %ld", hello->pid, (long)spawned);
    else if (hello->arena_abi != ARENA_ABI)
        snprintf(why, sizeof why, "HELLO with arena ABI %u, this helmd has %u: rebuild both",
                 hello->arena_abi, ARENA_ABI);
    else if (strcmp(hello->kind, topology_of(w->processor)->kind) != 0)
        snprintf(why, sizeof why, "HELLO of a '%.32s' worker, expected '%s'", hello->kind,
                 topology_of(w->processor)->kind);
    if (why[0]) {
        if (hello->arena_abi != ARENA_ABI) w->fault_code = HELM_E_MISMATCH; /* trying again cannot help */
        worker_kill(w, why);
        return;
    }
    worker_enter(w, WORKER_LOADING);
    w->loading_since_us = w->logged_us = w->heard_us;
    worker_send_load(workers, w);
}

static void on_progress(struct workers *workers, struct worker *w, const control_msg *msg)
{
    (void)workers;
    w->bytes_done = msg->progress->bytes_done;
    w->bytes_total = msg->progress->bytes_total;
    uint64_t now_us = units_now_us();
    if (now_us < w->logged_us + SECOND_US || w->bytes_total == 0) return;
    char done[UNITS_TEXT], total[UNITS_TEXT], rate[UNITS_TEXT];
    double seconds = (double)(now_us - w->loading_since_us) / 1e6;
    w->logged_us = now_us;
    log_info("%s loading: %s of %s, %s/s, %.0f s left", w->name, units_format_size(w->bytes_done, done),
             units_format_size(w->bytes_total, total),
             units_format_size((uint64_t)((double)w->bytes_done / seconds), rate),
             worker_seconds_left(w, now_us));
}

/* Logs the VRAM in use, and the ledger's sum. */
static void log_vram(const struct workers *workers, const struct worker *w,
                     const Helm__Control__V1__Ready *ready)
{
    char used[UNITS_TEXT], planned[UNITS_TEXT], lines[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < ready->n_vram && i < 16 && at < sizeof lines; i++) {
        int n = snprintf(lines + at, sizeof lines - at, "%s%.24s %s", i ? ", " : "", ready->vram[i]->what,
                         units_format_size(ready->vram[i]->bytes, used));
        if (n > 0) at += (size_t)n;
    }
    log_info("worker %s: %s; VRAM in use: %s (planned: %s): %s", w->name, w->device,
             units_format_size(w->vram_bytes, used),
             units_format_size(workers->config.plan->memory[plan_processor_memory(w->processor)].total,
                               planned),
             lines);
}

static void on_ready(struct workers *workers, struct worker *w, const control_msg *msg)
{
    const Helm__Control__V1__Ready *ready = msg->ready;
    const struct loaded loaded = {.vectors = ready->vectors_content, .matrices = ready->matrices_content};
    struct helm_err err = {0};
    char bytes[UNITS_TEXT];
    if (loaded_check(&w->loaded, &loaded, workers->config.files, &err)) {
        workers->events.given_up(workers->events.context, err.code, err.text, workers->ever_ready);
        return;
    }
    worker_enter(w, WORKER_READY);
    w->threads = ready->threads;
    w->node = ready->node;
    snprintf(w->kernels, sizeof w->kernels, "%s", ready->kernels);
    w->weight_bytes = w->bytes_done = w->bytes_total = ready->weight_bytes;
    w->huge_bytes = ready->huge_bytes;
    w->weights_digest = ready->weights_digest;
    snprintf(w->device, sizeof w->device, "%s", ready->device);
    w->vram_bytes = ready->vram_bytes;
    log_info("worker %s ready: %s of weights in %.2f s, %u threads, node %d, %s", w->name,
             units_format_size(w->weight_bytes, bytes), ready->load_seconds, w->threads, w->node, w->kernels);
    for (size_t i = 0; i < ready->n_reduced && i < 16; i++)
        log_warn("worker %s: reduced: %.200s", w->name, ready->reduced[i]);
    if (plan_processor_has_memory(w->processor)) log_vram(workers, w, ready);
    if (!workers_ready(workers)) return;
    workers->ever_ready = true;
    workers->unready_starts = 0;
    workers->events.ready(workers->events.context);
}

static void on_pong(struct workers *workers, struct worker *w, const control_msg *msg)
{
    (void)workers;
    (void)msg;
    w->pinged_us = 0;
}

static void on_fault(struct workers *workers, struct worker *w, const control_msg *msg)
{
    (void)workers;
    w->fault_code = msg->fault->code < 0 ? msg->fault->code : HELM_E_PEER;
    snprintf(w->why, sizeof w->why, "%.400s", msg->fault->text);
    log_error("worker %s: %s", w->name, w->why);
    if (w->ended_at_us) w->ended_at_us = 1; /* that was waited for */
}

static const struct {
    Helm__Control__V1__Control__BodyCase body;
    unsigned states;
    const char *name;
    void (*take)(struct workers *workers, struct worker *w, const control_msg *msg);
} message_table[] = {
    {HELM__CONTROL__V1__CONTROL__BODY_HELLO, IN(WORKER_STARTING), "HELLO", on_hello},
    {HELM__CONTROL__V1__CONTROL__BODY_PROGRESS, IN(WORKER_LOADING), "PROGRESS", on_progress},
    {HELM__CONTROL__V1__CONTROL__BODY_READY, IN(WORKER_LOADING), "READY", on_ready},
    {HELM__CONTROL__V1__CONTROL__BODY_PONG, IN(WORKER_LOADING) | IN(WORKER_READY), "PONG", on_pong},
    {HELM__CONTROL__V1__CONTROL__BODY_FAULT, IN(WORKER_STARTING) | IN(WORKER_LOADING) | IN(WORKER_READY),
     "FAULT", on_fault},
};

/* The worker of a connection; a new one is the child's whose secret it shows. NULL: a stranger, or a late
 * message of an older worker. */
static struct worker *worker_of(struct workers *workers, const uint8_t *id, size_t id_size,
                                const control_msg *msg)
{
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        if (w->routing_id_size == id_size && memcmp(w->routing_id, id, id_size) == 0) return w;
    }
    if (!msg || msg->body_case != HELM__CONTROL__V1__CONTROL__BODY_HELLO) return NULL;
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        if ((w->pid <= 0 && !w->ended_at_us) || w->routing_id_size != 0 ||
            msg->secret.len != sizeof w->secret || memcmp(msg->secret.data, w->secret, sizeof w->secret) != 0)
            continue;
        memcpy(w->routing_id, id, id_size);
        w->routing_id_size = id_size;
        return w;
    }
    return NULL;
}

static void worker_take(struct workers *workers, struct worker *w, const control_msg *msg)
{
    uint32_t index = (uint32_t)(w - workers->worker);
    char why[128];
    if ((w->pid <= 0 && !w->ended_at_us) || w->killed_by_us || w->companion) return;
    if (msg->version != CONTROL_VERSION || msg->epoch != workers->epoch || msg->worker != index) {
        snprintf(why, sizeof why, "message of version %u, epoch %u, worker %u; expected %d, %u, %u",
                 msg->version, msg->epoch, msg->worker, CONTROL_VERSION, workers->epoch, index);
        worker_kill(w, why);
        return;
    }
    w->heard_us = units_now_us();
    for (size_t i = 0; i < sizeof message_table / sizeof *message_table; i++) {
        if (message_table[i].body != msg->body_case) continue;
        if (message_table[i].states & IN(w->state)) {
            message_table[i].take(workers, w, msg);
            return;
        }
        snprintf(why, sizeof why, "%s while %s", message_table[i].name, worker_state_name(workers, w));
        worker_kill(w, why);
        return;
    }
    snprintf(why, sizeof why, "message %d, which no worker sends", (int)msg->body_case);
    worker_kill(w, why);
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
        struct worker *w = worker_of(workers, id, (size_t)id_size, msg);
        if (!w)
            log_warn("control: a message that is not from a worker of epoch %u was ignored", workers->epoch);
        else if (msg)
            worker_take(workers, w, msg);
        else
            worker_kill(w, "sent a frame that is no control message");
        if (msg) helm__control__v1__control__free_unpacked(msg, NULL);
        zmq_msg_close(&frame);
    }
}
