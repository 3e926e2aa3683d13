/* The draft model's helmd: started, asked, watched, ended. See drafter.h. Called from the one loop, and by
 * drafter_open before it. */
#include "daemon/children/drafter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/children/child_run.h"
#include "daemon/children/worker_process.h"
#include "proto/helm.pb-c.h"

#define VERSION      1
#define SECOND_US    UINT64_C(1000000)
#define WAIT_MOST_US (60 * SECOND_US) /* between two starts */
#define STEADY_US    (60 * SECOND_US)
#define END_MS       5000 /* that the child has to end in order */
#define ANSWER_MS    10000
#define ASKS         UINT64_MAX /* number of the requests that are about the child itself */
#define PLAN_BYTES   ((size_t)8 << 20)

/* ---- the child ---- */

/* In the child, after fork in a process with threads: only async-signal-safe calls. */
static void become(char *const argv[], char *const env[], int ready_fd, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127); /* helmd died before the line above could notice */
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    fcntl(ready_fd, F_SETFD, 0);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve("/proc/self/exe", argv, env);
    _exit(127);
}

/* The environment without what is between helmd and systemd alone. */
static char **environment(void)
{
    extern char **environ;
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **env = calloc(count + 1, sizeof *env);
    for (size_t i = 0; env && i < count; i++)
        if (strncmp(environ[i], "NOTIFY_SOCKET=", 14) != 0 && strncmp(environ[i], "WATCHDOG_", 9) != 0)
            env[kept++] = environ[i];
    return env;
}

static int spawn(struct drafter *d, struct helm_err *err)
{
    char *argv[DRAFTER_ARGUMENTS + 4] = {(char *)DRAFTER_PROGRAM}, fd_text[16];
    int ends[2], rc = 0;
    memcpy(argv + 1, d->with.argument, d->with.arguments * sizeof *argv);
    if (pipe2(ends, O_CLOEXEC)) return helm_fail_errno(err, "pipe to the draft model");
    snprintf(fd_text, sizeof fd_text, "%d", ends[1]);
    argv[1 + d->with.arguments] = (char *)"--ready-fd";
    argv[2 + d->with.arguments] = fd_text;
    char **env = environment();
    const pid_t parent = getpid(), pid = env ? fork() : -1;
    if (pid == 0) become(argv, env, ends[1], parent);
    if (pid < 0) rc = helm_fail_errno(err, "starting the draft model");
    free(env);
    close(ends[1]);
    if (rc) {
        close(ends[0]);
        return rc;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    d->pid = pid;
    d->ready_fd = ends[0];
    d->started_us = units_now_us();
    keeper_add_daemon(d->keeper, pid);
    log_info("draft model: pid %ld", (long)pid);
    return 0;
}

static void close_socket(struct drafter *d)
{
    if (d->socket) zmq_close(d->socket);
    d->socket = NULL;
    d->asked_us = 0;
    d->pinged = false; /* the next one is asked before it is killed, too */
}

static int connect_to(struct drafter *d, struct helm_err *err)
{
    const int linger = 0, most = 0; /* 0: what is asked is bounded by the caller */
    d->socket = zmq_socket(d->zmq, ZMQ_DEALER);
    if (!d->socket || zmq_setsockopt(d->socket, ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_setsockopt(d->socket, ZMQ_SNDHWM, &most, sizeof most) ||
        zmq_connect(d->socket, d->with.endpoint)) {
        close_socket(d);
        return helm_fail(err, HELM_E_IO, "draft model: %s: %s", d->with.endpoint, zmq_strerror(errno));
    }
    d->ready_us = d->heard_us = units_now_us();
    return 0;
}

/* One line on the pipe says what became of the start. */
static int take_ready(struct drafter *d, bool *said, struct helm_err *err)
{
    char line[HELM_ERR_TEXT + 64];
    const ssize_t n = read(d->ready_fd, line, sizeof line - 1);
    *said = n >= 0 || (errno != EAGAIN && errno != EINTR);
    if (!*said) return 0;
    close(d->ready_fd);
    d->ready_fd = -1;
    if (n <= 0) return helm_fail(err, HELM_E_PEER, "draft model: it ended before it was ready");
    line[n] = 0;
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "ready ", 6) == 0) return connect_to(d, err);
    const char *why = strncmp(line, "error ", 6) == 0 ? strchr(line + 6, ' ') : NULL;
    return helm_fail(err, HELM_E_CAPACITY, "draft model: %.450s", why ? why + 1 : line);
}

static void signal_child(const struct drafter *d, int sig)
{
    if (d->pid <= 0) return;
    kill(d->pid, sig);
    kill(d->pid, SIGCONT); /* one that is stopped ends, too */
}

/* ---- messages ---- */

static bool send_request(struct drafter *d, uint64_t id, Helm__V1__Request__BodyCase kind, void *body)
{
    Helm__V1__Request request = HELM__V1__REQUEST__INIT;
    request.version = VERSION;
    request.request_id = id;
    request.body_case = kind;
    request.generate = body; /* a union of pointers */
    zmq_msg_t frame;
    if (!d->socket || zmq_msg_init_size(&frame, helm__v1__request__get_packed_size(&request))) return false;
    helm__v1__request__pack(&request, zmq_msg_data(&frame));
    if (zmq_msg_send(&frame, d->socket, ZMQ_DONTWAIT) >= 0) {
        if (!d->asked_us) d->asked_us = units_now_us();
        return true;
    }
    zmq_msg_close(&frame);
    return false;
}

bool drafter_begin(struct drafter *drafter, uint64_t id, const uint32_t *prompt, uint32_t count,
                   const struct sampling_params *sampling)
{
    Helm__V1__Generate generate = HELM__V1__GENERATE__INIT;
    Helm__V1__Sampling s = HELM__V1__SAMPLING__INIT;
    Helm__V1__LogitBias bias[SAMPLING_BIAS_MAX], *biases[SAMPLING_BIAS_MAX];
    s.temperature = sampling->temperature;
    s.top_k = sampling->top_k;
    s.top_p = sampling->top_p;
    s.min_p = sampling->min_p;
    s.repetition_penalty = sampling->repetition_penalty;
    s.presence_penalty = sampling->presence_penalty;
    s.frequency_penalty = sampling->frequency_penalty;
    s.has_seed = true;
    s.seed = sampling->seed;
    s.n_logit_bias = sampling->bias_count;
    s.logit_bias = biases;
    for (uint32_t i = 0; i < sampling->bias_count; i++) {
        helm__v1__logit_bias__init(&bias[i]);
        bias[i].token = sampling->bias[i].token;
        bias[i].bias = sampling->bias[i].bias;
        biases[i] = &bias[i];
    }
    generate.prompt = (uint32_t *)prompt;
    generate.n_prompt = count;
    generate.max_tokens = 1;
    generate.sampling = &s;
    generate.ignore_eos = true;
    generate.stays = true;
    return send_request(drafter, id, HELM__V1__REQUEST__BODY_GENERATE, &generate);
}

bool drafter_go_on(struct drafter *drafter, uint64_t id, uint32_t keep, const uint32_t *tokens,
                   uint32_t count, uint32_t most)
{
    Helm__V1__Resume resume = HELM__V1__RESUME__INIT;
    resume.keep = keep;
    resume.tokens = (uint32_t *)tokens;
    resume.n_tokens = count;
    resume.max_tokens = most;
    return send_request(drafter, id, HELM__V1__REQUEST__BODY_RESUME, &resume);
}

void drafter_end(struct drafter *drafter, uint64_t id)
{
    Helm__V1__Cancel cancel = HELM__V1__CANCEL__INIT;
    cancel.request_id = id;
    if (drafter->socket && !send_request(drafter, ASKS, HELM__V1__REQUEST__BODY_CANCEL, &cancel))
        log_debug("draft model: request %llu is not cancelled", (unsigned long long)id);
}

bool drafter_is_ready(const struct drafter *drafter)
{
    return drafter->socket != NULL;
}

/* NULL: nothing has come. */
static Helm__V1__Response *take_response(struct drafter *d)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    Helm__V1__Response *response = NULL;
    if (d->socket && zmq_msg_recv(&frame, d->socket, ZMQ_DONTWAIT) >= 0) {
        response = helm__v1__response__unpack(NULL, zmq_msg_size(&frame), zmq_msg_data(&frame));
        if (!response) log_warn("draft model: a frame that is no Response was ignored");
        d->heard_us = units_now_us();
        d->asked_us = 0;
        d->pinged = false;
    }
    zmq_msg_close(&frame);
    return response;
}

void drafter_receive(struct drafter *drafter)
{
    Helm__V1__Response *r;
    while ((r = take_response(drafter))) {
        const bool ours = r->request_id != ASKS;
        if (ours && r->body_case == HELM__V1__RESPONSE__BODY_TOKEN) {
            drafter->events.token(drafter->events.context, r->request_id, r->token->token);
        } else if (ours && r->body_case == HELM__V1__RESPONSE__BODY_DONE) {
            const bool cancelled = r->done->finish_reason == HELM__V1__FINISH_REASON__FINISH_CANCELLED;
            log_debug("draft model: request %llu: %s", (unsigned long long)r->request_id, r->done->detail);
            drafter->events.ended(drafter->events.context, r->request_id, cancelled);
        } else if (ours && r->body_case == HELM__V1__RESPONSE__BODY_ERROR) {
            const Helm__V1__ErrorCode code = r->error->code;
            log_debug("draft model: request %llu: %s", (unsigned long long)r->request_id, r->error->message);
            drafter->events.ended(drafter->events.context, r->request_id,
                                  code == HELM__V1__ERROR_CODE__ERROR_BUSY ||
                                      code == HELM__V1__ERROR_CODE__ERROR_NOT_READY);
        }
        helm__v1__response__free_unpacked(r, NULL);
    }
}

/* ---- the start that is waited for ---- */

/* Waits until the descriptor or the socket can be read. */
static int wait_for(const struct drafter *d, int fd, void *socket, int end_fd, int wait_ms,
                    struct helm_err *err)
{
    zmq_pollitem_t item[3] = {{.socket = socket, .fd = fd, .events = ZMQ_POLLIN},
                              {.fd = end_fd, .events = ZMQ_POLLIN},
                              {.fd = d->with.parent_fd, .events = ZMQ_POLLIN}};
    const int items = d->with.parent_fd >= 0 ? 3 : 2, n = zmq_poll(item, items, wait_ms);
    if (n < 0 && errno != EINTR) return helm_fail(err, HELM_E_IO, "draft model: %s", zmq_strerror(errno));
    if (n > 0 && items == 3 && item[2].revents)
        return helm_fail(err, HELM_E_CANCELLED, "the parent has gone");
    if (n == 0) return helm_fail(err, HELM_E_PEER, "draft model: it did not answer within %d ms", wait_ms);
    return end_request_check(err);
}

static int take_plan(struct drafter *d, const Helm__V1__Plan *plan, struct helm_err *err)
{
    json_t *json = NULL;
    int rc =
        json_parse_bounded("the draft model's plan", plan->json, strlen(plan->json), PLAN_BYTES, &json, err);
    if (rc) return rc;
    const json_t *host = json_object_get(json_object_get(json, "host"), "total"),
                 *vram = json_object_get(json_object_get(json, "vram"), "total"),
                 *context = json_object_get(json, "context_tokens");
    const bool says = json_is_integer(host) && json_is_integer(context);
    d->host_bytes = (uint64_t)json_integer_value(host);
    d->context_tokens = (uint32_t)json_integer_value(context);
    d->vram_bytes = (uint64_t)json_integer_value(vram);
    d->token_seconds = plan->forecast ? plan->forecast->decode_seconds : 0;
    json_decref(json);
    if (says && d->token_seconds > 0) return 0;
    return helm_fail(err, HELM_E_PEER, "draft model: its plan has no %s", says ? "forecast" : "sizes");
}

static int ask_plan(struct drafter *d, int end_fd, struct helm_err *err)
{
    Helm__V1__PlanRequest ask = HELM__V1__PLAN_REQUEST__INIT;
    Helm__V1__Response *r = NULL;
    int rc = 0;
    if (!send_request(d, ASKS, HELM__V1__REQUEST__BODY_PLAN, &ask))
        return helm_fail(err, HELM_E_IO, "draft model: its plan cannot be asked for");
    while (!rc && !(r = take_response(d))) rc = wait_for(d, 0, d->socket, end_fd, ANSWER_MS, err);
    if (rc) return rc;
    rc = r->body_case == HELM__V1__RESPONSE__BODY_PLAN
             ? take_plan(d, r->plan, err)
             : helm_fail(err, HELM_E_PEER, "draft model: it does not say its plan");
    helm__v1__response__free_unpacked(r, NULL);
    return rc;
}

int drafter_open(void *zmq, const struct drafter_options *options, struct keeper *keeper,
                 struct drafter *drafter, struct helm_err *err)
{
    *drafter = (struct drafter){.with = *options, .keeper = keeper, .zmq = zmq, .ready_fd = -1};
    const int end_fd = end_request_watch();
    bool said = false;
    int rc = spawn(drafter, err);
    while (!rc && !said) {
        rc = wait_for(drafter, drafter->ready_fd, NULL, end_fd, -1, err);
        if (!rc) rc = take_ready(drafter, &said, err);
    }
    if (!rc) rc = ask_plan(drafter, end_fd, err);
    drafter->start_us = units_now_us() - drafter->started_us;
    if (end_fd >= 0) close(end_fd);
    return rc;
}

void drafter_close(struct drafter *drafter)
{
    const uint64_t end_us = units_now_us() + END_MS * UINT64_C(1000);
    bool reaped = drafter->pid <= 0;
    drafter->stopping = true;
    close_socket(drafter);
    signal_child(drafter, SIGTERM);
    while (!reaped && units_now_us() < end_us) {
        reaped = waitpid(drafter->pid, NULL, WNOHANG) != 0;
        if (!reaped) units_sleep_ms(5);
    }
    if (!reaped) {
        log_warn("draft model: it did not end within %d ms: killing it", END_MS);
        signal_child(drafter, SIGKILL);
        while (waitpid(drafter->pid, NULL, 0) < 0 && errno == EINTR) {}
    }
    if (drafter->pid > 0) keeper_drop_worker(drafter->keeper, drafter->pid);
    if (drafter->ready_fd >= 0 && drafter->with.arguments) close(drafter->ready_fd);
    for (uint32_t i = 0; i < drafter->with.arguments; i++) free(drafter->with.argument[i]);
    *drafter = (struct drafter){.ready_fd = -1};
}

/* ---- watching ---- */

int drafter_poll_items(const struct drafter *drafter, zmq_pollitem_t items[DRAFTER_POLL_MAX])
{
    int n = 0;
    if (drafter->socket) items[n++] = (zmq_pollitem_t){.socket = drafter->socket, .events = ZMQ_POLLIN};
    if (drafter->pid > 0 && drafter->ready_fd >= 0)
        items[n++] = (zmq_pollitem_t){.fd = drafter->ready_fd, .events = ZMQ_POLLIN};
    return n;
}

static void plan_start(struct drafter *d, uint64_t now_us)
{
    if (d->ready_us && now_us > d->ready_us + STEADY_US) d->failures = 0;
    uint64_t wait_us = d->failures ? (SECOND_US / 10) << (d->failures < 10 ? d->failures : 10) : 0;
    if (wait_us > WAIT_MOST_US) wait_us = WAIT_MOST_US;
    d->failures++;
    d->restarts++;
    d->ready_us = 0;
    d->start_at_us = now_us + wait_us;
}

bool drafter_child_ended(struct drafter *drafter, pid_t pid, int wait_status)
{
    char how[128];
    if (pid <= 0 || pid != drafter->pid) return false;
    worker_process_describe(wait_status, how, sizeof how);
    drafter->pid = 0;
    close_socket(drafter);
    if (drafter->ready_fd >= 0) close(drafter->ready_fd);
    drafter->ready_fd = -1;
    drafter->events.lost(drafter->events.context);
    plan_start(drafter, units_now_us());
    log_warn("draft model (pid %ld): %s: no drafts until another one is ready", (long)pid, how);
    return true;
}

/* A start after the first: the loop waits for it. */
static void look_at_start(struct drafter *d)
{
    struct helm_err err = {0};
    bool said = false;
    const int rc = take_ready(d, &said, &err);
    if (rc) {
        log_warn("%s", err.text);
        signal_child(d, SIGKILL); /* then it is reaped */
    } else if (said) {
        log_info("draft model: ready again");
    }
}

/* When a start after the first is given up. */
static uint64_t start_limit_us(const struct drafter *d)
{
    const uint64_t most_us = DRAFTER_START_FACTOR * d->start_us;
    return d->started_us + (most_us > DRAFTER_START_US ? most_us : DRAFTER_START_US);
}

static void watch_start(struct drafter *d, uint64_t now_us)
{
    if (now_us < start_limit_us(d)) return;
    log_error("draft model (pid %ld): not ready after %llu s: killing it", (long)d->pid,
              (unsigned long long)((now_us - d->started_us) / SECOND_US));
    signal_child(d, SIGKILL);
    d->started_us = now_us;
}

static void watch_silence(struct drafter *d, uint64_t now_us)
{
    Helm__V1__StatusRequest ask = HELM__V1__STATUS_REQUEST__INIT;
    if (!d->asked_us || now_us < d->asked_us + DRAFTER_SILENCE_US) return;
    if (d->pinged) {
        log_error("draft model (pid %ld): silent for %d s: killing it", (long)d->pid,
                  (int)(2 * DRAFTER_SILENCE_US / SECOND_US));
        signal_child(d, SIGKILL);
        d->asked_us = 0;
        return;
    }
    d->asked_us = now_us;
    d->pinged = send_request(d, ASKS, HELM__V1__REQUEST__BODY_STATUS, &ask);
}

uint64_t drafter_tick(struct drafter *drafter, uint64_t now_us)
{
    struct helm_err err = {0};
    if (!drafter->with.arguments || drafter->stopping) return 0;
    if (drafter->pid > 0 && drafter->ready_fd >= 0) look_at_start(drafter);
    if (drafter->socket) watch_silence(drafter, now_us);
    if (drafter->pid > 0 && drafter->ready_fd >= 0) {
        watch_start(drafter, now_us);
        return start_limit_us(drafter);
    }
    if (drafter->pid > 0) return drafter->asked_us ? drafter->asked_us + DRAFTER_SILENCE_US : 0;
    if (now_us < drafter->start_at_us) return drafter->start_at_us;
    if (!spawn(drafter, &err)) return 0;
    log_warn("%s", err.text);
    plan_start(drafter, now_us);
    return drafter->start_at_us;
}

void drafter_tell_keeper(const struct drafter *drafter)
{
    if (drafter->pid > 0) keeper_add_daemon(drafter->keeper, drafter->pid);
}
