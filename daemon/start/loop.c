/* The one poll loop. See loop.h. Called by main.c; owns nothing but the order of events. */
#include "daemon/start/loop.h"

#include <errno.h>
#include <xmmintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/steps/check.h"

/* at most this many client frames, or bytes, are taken before the batcher runs again */
#define FRAMES_A_ROUND 64
#define BYTES_A_ROUND  ((size_t)1 << 20)
#define SLEEP_MAX_US   ((uint64_t)1000000)
#define LOOK_US        30 /* looking for a step's end without pause; then the rest is looked after */
#define LOOK_PAUSES    8
#define IDLE_US        UINT64_C(2000000) /* nothing is open for so long: the check goes on */
#define SAY_US         UINT64_C(250000)
#define LOOK_CPUS      4 /* with fewer, a busy wait takes CPU time from the device's worker */
#define EXIT_FAILED    5
#define EXIT_REFUSED   4

int loop_open_signals(int *signal_fd, struct helm_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    static const int watched[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) sigaddset(&set, watched[i]);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return helm_fail_errno(err, "sigprocmask");
    *signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *signal_fd < 0 ? helm_fail_errno(err, "signalfd") : 0;
}

void loop_tell_ready_fd(int *ready_fd, const char *fmt, ...)
{
    if (*ready_fd < 0) return;
    char line[HELM_ERR_TEXT + 64];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    if ((size_t)n > sizeof line - 2) n = sizeof line - 2;
    for (int i = 0; i < n; i++)
        if (line[i] == '\n') line[i] = ' ';
    line[n++] = '\n';
    if (write(*ready_fd, line, (size_t)n) != n) log_warn("--ready-fd: nobody reads it");
    close(*ready_fd);
    *ready_fd = -1;
}

/* ---- what workers report ------------------------------------------------------------------------------ */

void loop_on_prepare(void *context, uint32_t epoch)
{
    struct loop *loop = context;
    batcher_prepare_worker(loop->serve->batcher, epoch);
}

/* Every worker has said how many threads it has. */
static void loop_choose_looking(struct loop *loop)
{
    const struct workers *workers = loop->serve->workers;
    struct helm_err err = {0};
    struct cpu_set *set = malloc(sizeof *set);
    uint32_t threads = 0;
    bool gpu = false;
    for (uint32_t i = 0; i < workers->count; i++) {
        const struct worker *w = &workers->worker[i];
        const bool device = plan_processor_has_memory(w->processor);
        if (!device || !loop->real_device) threads += w->threads; /* or on the CPUs, too */
        gpu = gpu || device;
    }
    bool last = gpu && loop->real_device && plan_processor_has_memory(workers->config.plan->head);
    bool may = set && !cpu_usable(-1, set, &err);
    /* of a quota no more counts than that */
    if (may)
        may = loop_may_look((uint32_t)(set->suggested < set->cores ? set->suggested : set->count), threads,
                            gpu, last);
    free(set);
    if (loop->timer_fd >= 0) close(loop->timer_fd);
    loop->timer_fd = may ? timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK) : -1;
    loop->timer_us = 0;
    log_debug("the end of a step is %s",
              loop->timer_fd < 0 ? "waited for asleep" : "looked for without pause");
}

static void loop_serve(struct loop *loop)
{
    const char *endpoint = loop->rundir->endpoints.item[0];
    batcher_worker_ready(loop->serve->batcher);
    loop_choose_looking(loop);
    if (!loop->serve->metrics->ready_us) {
        loop->serve->metrics->ready_us = units_now_us();
        for (uint32_t i = 0; i < loop->rundir->endpoints.count; i++)
            log_info("serving on %s", loop->rundir->endpoints.item[i]);
        loop_tell_ready_fd(&loop->ready_fd, "ready %s", endpoint);
        sd_notifyf(0, "READY=1\nSTATUS=serving on %s", endpoint);
    } else {
        sd_notifyf(0, "STATUS=serving on %s", endpoint);
    }
}

void loop_on_ready(void *context)
{
    struct loop *loop = context;
    if (!loop->check || loop->check_waits) {
        loop_serve(loop);
        return;
    }
    log_info("activations: checking what rounding them to int8 does to this model, for up to %d s",
             (int)(CHECK_US / 1000000));
    sd_notifyf(0, "STATUS=checking int8 activations");
    if (check_begin(loop->check, 0, false, units_now_us())) {
        log_error("the check of int8 activations: there are no pages for it: aborting");
        abort(); /* it was sized by them, and nothing was served */
    }
}

void loop_on_lost(void *context, const struct workers_loss *loss)
{
    struct loop *loop = context;
    loop->serve->metrics->restarts_total++;
    if (loop->check) check_lost(loop->check);
    sessions_lost(loop->serve->sessions, loss->why);
    batcher_worker_lost(loop->serve->batcher, loss);
    sd_notifyf(0, "STATUS=restarting: %.200s", loss->why);
}

void loop_on_given_up(void *context, int code, const char *why, bool ever_ready)
{
    struct loop *loop = context;
    log_error("giving up: %s", why);
    sd_notifyf(0, "STATUS=giving up: %.300s", why);
    loop_tell_ready_fd(&loop->ready_fd, "error %s %s", helm_code_name(code), why);
    batcher_finish_all(loop->serve->batcher, HELM__V1__FINISH_REASON__FINISH_ERROR, why);
    loop->leaving = true;
    loop->exit_status = ever_ready ? EXIT_FAILED : EXIT_REFUSED;
}

/* ---- signals and children ----------------------------------------------------------------------------- */

static void loop_drain(struct loop *loop, const char *why)
{
    uint64_t now_us = units_now_us();
    if (loop->serve->draining) { /* asked twice: no grace */
        loop->drain_end_us = now_us;
        return;
    }
    log_info("%s: going down, %u requests open", why, batcher_open(loop->serve->batcher));
    /* systemd ends a unit that takes longer to stop than TimeoutStopSec, unless it asks for more */
    sd_notifyf(0, "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%llu",
               (unsigned long long)(loop->drain_us + 60000000));
    loop->serve->draining = true;
    loop->drain_end_us = now_us + loop->drain_us;
}

static void loop_reap_children(struct loop *loop)
{
    for (;;) {
        /* Noted before it is reaped: a zombie's number is not reused, so the keeper never holds the number of
         * another process. */
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid == 0) return;
        pid_t pid = info.si_pid;
        int status = 0;
        keeper_drop_worker(loop->keeper, pid);
        if (waitpid(pid, &status, 0) != pid) continue;
        if (pid == loop->keeper->pid) {
            log_warn("the keeper died: starting another");
            keeper_lost(loop->keeper);
            loop->keeper_retry_us = units_now_us();
        } else if (!workers_child_ended(loop->serve->workers, pid, status) &&
                   !drafter_child_ended(loop->drafter, pid, status)) {
            log_debug("child %ld, not one of ours, ended", (long)pid);
        }
    }
}

static void loop_mind_keeper(struct loop *loop, uint64_t now_us)
{
    struct helm_err err = {0};
    if (loop->keeper->pid > 0 || loop->keeper_retry_us == 0 || now_us < loop->keeper_retry_us) return;
    loop->keeper_retry_us = now_us + SLEEP_MAX_US; /* should this one not live either */
    if (keeper_start(loop->rundir, loop->keeper, &err)) {
        log_error("keeper: %s", err.text);
        return;
    }
    workers_tell_keeper(loop->serve->workers);
    drafter_tell_keeper(loop->drafter);
}

static void loop_take_signals(struct loop *loop)
{
    struct signalfd_siginfo info;
    while (read(loop->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            loop_reap_children(loop);
        else if (info.ssi_signo == SIGHUP &&
                 info.ssi_code != SI_KERNEL) /* the kernel's: the terminal is gone */
            loop->reload(loop->context);
        else
            loop_drain(loop, strsignal((int)info.ssi_signo));
    }
}

static void loop_take_parent(struct loop *loop)
{
    char byte[64];
    ssize_t n = read(loop->parent_fd, byte, sizeof byte);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    loop->parent_fd = -1;
    loop->drain_us = 0;
    loop_drain(loop, "the parent has gone");
    loop->drain_end_us = units_now_us();
}

/* ---- one round ---------------------------------------------------------------------------------------- */

static void loop_client_gone(void *context, uint64_t client)
{
    struct loop *loop = context;
    batcher_cancel_client(loop->serve->batcher, client, "the client has gone");
    sessions_client_gone(loop->serve->sessions, client);
}

/* For systemd and for the client that waits (client/cli/private_daemon.c). */
static void loop_tell_check(struct loop *loop, uint64_t now_us)
{
    const struct check *check = loop->check;
    if (check->idle || now_us < loop->said_us + SAY_US) return;
    loop->said_us = now_us;
    sd_notifyf(0, "STATUS=checking int8 activations: %u positions compared in %.1f s of at most %d",
               check_positions(check), (double)(now_us - check->started_us) / 1e6, (int)(CHECK_US / 1000000));
}

static bool loop_is_idle(const struct loop *loop)
{
    return batcher_idle(loop->serve->batcher) && !sessions_open(loop->serve->sessions) &&
           !loop->serve->draining;
}

/* The check goes on once nothing was open for a while. Returns when to look again, 0: at any time. */
static uint64_t loop_check_between(struct loop *loop, uint64_t now_us)
{
    struct batcher *batcher = loop->serve->batcher;
    if (!loop->check || !loop->check_waits || loop->check->running) return 0;
    if (!loop_is_idle(loop)) {
        loop->idle_us = 0;
        return 0;
    }
    if (!loop->idle_us) loop->idle_us = now_us;
    if (now_us < loop->idle_us + IDLE_US) return loop->idle_us + IDLE_US;
    loop->idle_us = now_us; /* where it has no pages, or is over at once */
    batcher->paused = check_begin(loop->check, batcher->serial, true, now_us) == 0;
    return 0;
}

/* The check's steps have the workers for themselves; after the last one requests are served, unless the plan
 * is made anew. A round between requests ends for the first one that comes. */
static void loop_take_check(struct loop *loop, uint64_t now_us)
{
    struct workers *workers = loop->serve->workers;
    struct helm_err err = {0};
    const bool between = loop->check_waits, yield = between && batcher_open(loop->serve->batcher) > 0;
    bool done, again;
    workers_take_ring(workers);
    if (check_take(loop->check, yield || (between && sessions_open(loop->serve->sessions)), now_us, &done,
                   &err)) {
        check_lost(loop->check);
        workers_kill_head(workers, err.text);
    } else if (done) {
        batcher_goes_on(loop->serve->batcher, loop->check->serial);
        if (loop->decide(loop->context, &again, &err))
            loop_on_given_up(loop, err.code, err.text, false);
        else if (!again && !between)
            loop_serve(loop);
    } else {
        loop_tell_check(loop, now_us);
    }
}

/* A further step is rung at once: everything else has the time until the next one is done. */
static void loop_take_result(struct loop *loop, uint64_t now_us)
{
    struct batcher *batcher = loop->serve->batcher;
    struct helm_err err = {0};
    bool taken = true;
    if (loop->check && (loop->check->running || !loop->check_waits)) {
        loop_take_check(loop, now_us);
        return;
    }
    workers_take_ring(loop->serve->workers); /* before: what is written after a look is of a later step */
    /* not while one was lost; no more than are in flight, so that the rest gets its turn */
    for (int i = 0; i < BATCHER_STEPS && taken && batcher->worker_ready; i++) {
        if (batcher_take_result(batcher, now_us, &taken, &err)) {
            batcher->worker_ready = false;
            workers_kill_head(loop->serve->workers, err.text);
        } else if (taken) {
            batcher_pump(batcher, now_us);
            client_socket_flush(loop->serve->clients);
        }
    }
}

/* ---- looking for the end of a step ---- */

bool loop_may_look(uint32_t cpus, uint32_t threads, bool gpu, bool gpu_last)
{
    return cpus > threads + gpu || (gpu_last && cpus >= LOOK_CPUS);
}

/* Sets the timer to when looking should begin, once a step. */
static void loop_set_timer(struct loop *loop, uint64_t from_us)
{
    const struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(from_us / 1000000), .tv_nsec = (long)(from_us % 1000000 * 1000)}};
    if (loop->timer_fd < 0 || from_us == loop->timer_us) return;
    if (timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &when, NULL))
        log_warn("timer: %s", strerror(errno));
    loop->timer_us = from_us;
}

/* Reads the timer that has made the descriptor readable; the next step sets it anew. */
static void loop_quiet_timer(struct loop *loop)
{
    uint64_t count;
    if (loop->timer_fd < 0 || units_now_us() < loop->timer_us || !loop->timer_us) return;
    if (read(loop->timer_fd, &count, sizeof count) == sizeof count) loop->timer_us = 0;
}

/* Polls the oldest step around the time when it should end; true: it ended. Sets *looks while polling should
 * go on: then the loop must not sleep. */
static bool loop_look(struct loop *loop, bool *looks)
{
    const struct batcher *batcher = loop->serve->batcher;
    const struct pace *pace = &batcher->pace;
    *looks = false;
    if (loop->timer_fd < 0 || !batcher->in_flight || !batcher->worker_ready || !pace->from_us) return false;
    uint64_t now_us = units_now_us(), end_us = now_us + LOOK_US;
    if (now_us >= pace->until_us) return false;
    if (now_us < pace->from_us) {
        loop_set_timer(loop, pace->from_us);
        return false;
    }
    *looks = true;
    do {
        for (int i = 0; i < LOOK_PAUSES; i++) {
            if (batcher_step_done(batcher)) return true;
            _mm_pause();
        }
    } while (units_now_us() < end_us);
    return false;
}

/* A round has at least one frame, so requests are taken also while one short step follows another; and no
 * more once a step is done, so tokens wait for one frame at most. */
uint32_t loop_take_clients(struct loop *loop)
{
    struct client_frame frame;
    size_t bytes = 0;
    uint32_t frames = 0;
    while (frames < FRAMES_A_ROUND && bytes < BYTES_A_ROUND &&
           client_socket_receive(loop->serve->clients, &frame)) {
        frames++;
        bytes += frame.bytes;
        serve_frame(loop->serve, &frame);
        client_frame_close(loop->serve->clients, &frame);
        if (batcher_step_done(loop->serve->batcher)) break;
    }
    return frames;
}

static void earlier(uint64_t *wake_us, uint64_t candidate)
{
    if (candidate && candidate < *wake_us) *wake_us = candidate;
}

/* All that must happen before the loop sleeps; returns when it must wake at the latest. */
static uint64_t loop_before_sleep(struct loop *loop)
{
    struct batcher *batcher = loop->serve->batcher;
    uint64_t now_us = units_now_us(), wake_us = now_us + SLEEP_MAX_US;
    earlier(&wake_us, batcher_apply_deadlines(batcher, now_us));
    earlier(&wake_us, sessions_apply_deadlines(loop->serve->sessions, now_us));
    if (loop->serve->draining && now_us >= loop->drain_end_us)
        batcher_finish_all(batcher, HELM__V1__FINISH_REASON__FINISH_CANCELLED, "the daemon is going down");
    else if (loop->serve->draining)
        earlier(&wake_us, loop->drain_end_us);
    earlier(&wake_us, loop_check_between(loop, now_us));
    drafter_receive(loop->drafter);
    batcher_pump(batcher, now_us);
    earlier(&wake_us, batcher_waits_for_drafter(batcher, now_us));
    if (!loop->serve->draining) earlier(&wake_us, drafter_tick(loop->drafter, now_us));
    /* A step still in flight at the end of the grace period is not waited for. */
    if (loop->serve->draining && (batcher_open(batcher) == 0 || now_us >= loop->drain_end_us))
        loop->leaving = true;
    const struct batcher_flight *oldest = batcher_oldest(batcher);
    const bool checks = loop->check && loop->check->running;
    struct workers_step step = {.begun_us = oldest->begun_us,
                                .tokens = oldest->step.token_count,
                                .serial = oldest->step.serial,
                                .planned_seconds = oldest->planned_seconds};
    if (checks)
        step = (struct workers_step){.begun_us = loop->check->begun_us,
                                     .tokens = loop->check->count,
                                     .serial = loop->check->serial};
    earlier(&wake_us,
            workers_tick(loop->serve->workers, now_us, checks || batcher->in_flight ? &step : NULL));
    loop_mind_keeper(loop, now_us);
    client_socket_flush(loop->serve->clients);
    if (loop->watchdog_us && now_us >= loop->watchdog_next_us) {
        sd_notify(0, "WATCHDOG=1");
        loop->watchdog_next_us = now_us + loop->watchdog_us / 3;
    }
    if (loop->watchdog_us) earlier(&wake_us, loop->watchdog_next_us);
    return wake_us;
}

/* Done messages for requests that are still open: nothing computes any more. */
static void loop_farewell(struct loop *loop)
{
    struct batcher *batcher = loop->serve->batcher;
    const struct workers_loss loss = {.outside = true, .why = "going down"};
    sessions_lost(loop->serve->sessions, loss.why);
    batcher_worker_lost(batcher, &loss);
    batcher_finish_all(batcher, HELM__V1__FINISH_REASON__FINISH_CANCELLED, "the daemon is going down");
    batcher_pump(batcher, units_now_us());
    client_socket_flush(loop->serve->clients);
}

int loop_run(struct loop *loop)
{
    client_socket_on_gone(loop->serve->clients, loop_client_gone, loop);
    loop_reap_children(loop); /* those that ended before SIGCHLD was watched */
    for (;;) {
        zmq_pollitem_t items[CLIENT_SOCKET_POLL_MAX + WORKERS_POLL_MAX + DRAFTER_POLL_MAX + 3];
        uint64_t wake_us = loop_before_sleep(loop), now_us = units_now_us();
        bool looks;
        if (loop->leaving) break;
        if (loop_look(loop, &looks)) loop_take_result(loop, units_now_us());
        int n = workers_poll_items(loop->serve->workers, items);
        n += client_socket_poll_items(loop->serve->clients, items + n);
        n += drafter_poll_items(loop->drafter, items + n);
        if (loop->timer_fd >= 0) items[n++] = (zmq_pollitem_t){.fd = loop->timer_fd, .events = ZMQ_POLLIN};
        items[n++] = (zmq_pollitem_t){.fd = loop->signal_fd, .events = ZMQ_POLLIN};
        int parent_at = -1;
        if (loop->parent_fd >= 0) {
            parent_at = n;
            items[n++] = (zmq_pollitem_t){.fd = loop->parent_fd, .events = ZMQ_POLLIN};
        }
        const bool sleeps = wake_us > now_us && !looks && !client_socket_ready(loop->serve->clients);
        long wait_ms = sleeps ? (long)((wake_us - now_us + 999) / 1000) : 0;
        if (zmq_poll(items, n, wait_ms) < 0 && errno != EINTR) {
            log_error("poll: %s", zmq_strerror(errno));
            loop->exit_status = EXIT_FAILED;
            break;
        }
        loop_quiet_timer(loop);
        /* Results first: a token that is computed is sent before new work is looked at. */
        loop_take_result(loop, units_now_us());
        if (loop->leaving) break; /* another plan could not be made: there is no arena to look at */
        workers_receive(loop->serve->workers);
        loop_take_signals(loop);
        if (parent_at >= 0 && items[parent_at].revents) loop_take_parent(loop);
        client_socket_watch(loop->serve->clients);
        loop_take_clients(loop);
    }
    loop_farewell(loop);
    if (loop->timer_fd >= 0) close(loop->timer_fd);
    return loop->exit_status;
}
