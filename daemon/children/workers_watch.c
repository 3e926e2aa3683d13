/* Workers over time: what is due, which worker is late, and the end of all. See workers.h. Called from the
 * one loop.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/shared/doorbell.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/children/workers_private.h"
#include "daemon/children/workers.h"

#define SHUTDOWN_US      (2 * SECOND_US)
#define STRANDED_US      (SECOND_US / 10)
#define PEER_WAIT_MAX_MS UINT64_C(3600000)
#define STALL_SECONDS    1.0  /* that a step waits for a worker until it is looked at */
#define STALL_FACTOR     20.0 /* times what was planned: late */

static void worker_ping(struct workers *workers, struct worker *w, uint64_t now_us)
{
    Helm__Control__V1__Ping ping = HELM__CONTROL__V1__PING__INIT;
    w->pinged_us = now_us;
    worker_send(workers, w, HELM__CONTROL__V1__CONTROL__BODY_PING, &ping);
}

#define PLANNED_SLACK 50 /* a profile may be of another machine */

static uint64_t step_bound_us(const struct workers_config *c, uint32_t tokens, double planned_seconds)
{
    if (c->step_timeout_ms) return c->step_timeout_ms * 1000;
    /* As if memory gave 1 GB/s and the processor 20 GFLOP/s, or all were fifty times slower than planned, and
     * the machine were busy for ten seconds. A disk may give less than that of memory, so a plan with experts
     * there goes by what was planned. */
    double work_us = (double)c->token_bytes / 1e3 + (double)c->token_flops * tokens / 20e3;
    double planned_us = planned_seconds * PLANNED_SLACK * 1e6;
    if (planned_us > 0 && (planned_us < work_us || plan_disk_units(c->plan))) work_us = planned_us;
    return 10 * SECOND_US + (uint64_t)work_us;
}

uint32_t workers_peer_wait_ms(const struct workers_config *c)
{
    uint64_t wait_ms =
        step_bound_us(c, c->plan->step_tokens, 0) * (STEP_LATE_FACTOR + 1) / 1000 + STEP_PING_US / 1000;
    return (uint32_t)(wait_ms < PEER_WAIT_MAX_MS ? wait_ms : PEER_WAIT_MAX_MS);
}

static void watch_step(struct workers *workers, struct worker *w, uint64_t now_us,
                       const struct workers_step *step)
{
    uint64_t bound = step_bound_us(&workers->config, step->tokens, step->planned_seconds);
    uint64_t begun_us = step->begun_us, late = now_us - begun_us;
    uint32_t tokens = step->tokens;
    uint64_t patience = workers->config.step_timeout_ms && bound < STEP_PING_US ? bound : STEP_PING_US;
    char why[160];
    if (now_us < begun_us || late < bound) return;
    if (late > bound * STEP_LATE_FACTOR) {
        snprintf(why, sizeof why, "a step of %u tokens takes %.1f s, bound %.1f s", tokens,
                 (double)late / 1e6, (double)bound / 1e6);
        worker_kill(w, why);
    } else if (!w->pinged_us) {
        worker_ping(workers, w, now_us);
    } else if (now_us > w->pinged_us + patience && w->pinged_us >= begun_us + bound) {
        snprintf(why, sizeof why, "a step of %u tokens takes %.1f s and PING is not answered", tokens,
                 (double)late / 1e6);
        worker_kill(w, why);
    } else if (w->pinged_us < begun_us + bound) {
        worker_ping(workers, w, now_us); /* an old one may have been lost in the step itself */
    }
}

/* The third field of /proc/PID/stat, after a name that may have anything in it. */
static bool process_is_stopped(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && (name_end[1] == ' ') && (name_end[2] == 'T' || name_end[2] == 't');
}

/* Notes for Status what keeps requests waiting, long before helmd decides to end the worker. */
static void note_stall(struct worker *w, uint64_t now_us, const struct workers_step *step)
{
    const double late_s = now_us > step->begun_us ? (double)(now_us - step->begun_us) / 1e6 : 0;
    const char *before = w->stall;
    if (late_s < STALL_SECONDS) return;
    const bool late = step->planned_seconds > 0 && late_s > 2 * STALL_SECONDS &&
                      late_s > step->planned_seconds * STALL_FACTOR;
    w->stall = process_is_stopped(w->pid) ? "stopped" : late ? "late" : NULL;
    if (w->stall && w->stall != before)
        log_warn("worker %s (pid %ld) %s: a step of %u tokens has waited for it for %.1f s", w->name,
                 (long)w->pid, *w->stall == 's' ? "is stopped, by SIGSTOP or a debugger" : "is late",
                 step->tokens, late_s);
}

const char *workers_stall(const struct workers *workers)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->worker[i].stall) return workers->worker[i].stall;
    return NULL;
}

/* No step is in flight, or this worker has done its part. */
static void watch_idle(struct workers *workers, struct worker *w, uint64_t now_us)
{
    char why[128];
    if (w->state == WORKER_STARTING) {
        if (now_us > w->state_since_us + HELLO_WITHIN_US) worker_kill(w, "no HELLO within 30 s");
    } else if (w->pinged_us && now_us > w->heard_us + SILENCE_MAX_US &&
               now_us > w->pinged_us + SILENCE_MAX_US) {
        snprintf(why, sizeof why, "silent for %.0f s while %s", (double)(now_us - w->heard_us) / 1e6,
                 worker_state_name(workers, w));
        worker_kill(w, why);
    } else if (!w->pinged_us && now_us > w->heard_us + PING_EVERY_US) {
        worker_ping(workers, w, now_us);
    }
}

uint64_t workers_tick(struct workers *workers, uint64_t now_us, const struct workers_step *step)
{
    const struct arena_control *control = arena_control_of(workers->arena);
    uint64_t wake_us = now_us + SECOND_US;
    bool any = false;
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        if (w->ended_at_us && now_us >= w->ended_at_us) worker_end(workers, w);
        if (w->ended_at_us && w->ended_at_us < wake_us) wake_us = w->ended_at_us;
    }
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        if (w->state == WORKER_DOWN) continue;
        any = true;
        if (w->companion || w->ended_at_us) continue;
        if (step && w->state == WORKER_READY &&
            !step_reached(doorbell_read(&control->done[i].bell), step->serial)) {
            note_stall(w, now_us, step);
            watch_step(workers, w, now_us, step);
        } else {
            w->stall = NULL;
            watch_idle(workers, w, now_us);
        }
    }
    if (!any) {
        if (workers->stopping) return UINT64_MAX;
        if (workers->start_at_us > now_us) return workers->start_at_us;
        workers_start(workers);
    } else if (step) {
        uint64_t look = step->begun_us + step_bound_us(&workers->config, step->tokens, step->planned_seconds);
        if (look <= now_us) look = now_us + 50000;
        return look < wake_us ? look : wake_us;
    }
    return wake_us;
}

/* ---- the end, and what Status shows ------------------------------------------------------------------- */

static bool in_a_step(const struct workers *workers, uint32_t index)
{
    const struct arena_control *control = arena_control_of(workers->arena);
    return doorbell_read(&control->done[index].bell) != doorbell_read(&control->step_bell);
}

void workers_tell_keeper(const struct workers *workers)
{
    for (uint32_t i = 0; i < workers->count; i++)
        if (workers->worker[i].pid > 0) keeper_add_worker(workers->keeper, workers->worker[i].pid);
}

/* Reaps it if it has ended; the keeper drops its pid before the system can reuse it. */
static bool has_ended(struct workers *workers, const struct worker *w)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0)
        return false;
    keeper_drop_worker(workers->keeper, w->pid);
    (void)waitpid(w->pid, NULL, WNOHANG);
    return true;
}

void workers_end_all(struct workers *workers)
{
    workers->stopping = true;
    for (uint32_t i = 0; i < workers->count; i++) {
        struct worker *w = &workers->worker[i];
        if (w->pid <= 0) continue;
        Helm__Control__V1__Shutdown shutdown = HELM__CONTROL__V1__SHUTDOWN__INIT;
        worker_send(workers, w, HELM__CONTROL__V1__CONTROL__BODY_SHUTDOWN, &shutdown);
        if (w->routing_id_size == 0) kill(w->pid, SIGTERM); /* not yet connected: it can hear nothing else */
    }
    uint64_t start_us = units_now_us(), first_end_us = 0;
    for (uint32_t left = workers->count; left;) {
        uint64_t now_us = units_now_us();
        left = 0;
        for (uint32_t i = 0; i < workers->count; i++) {
            struct worker *w = &workers->worker[i];
            if (w->pid <= 0) continue;
            if (has_ended(workers, w)) {
                w->pid = 0;
                if (!first_end_us) first_end_us = now_us;
                continue;
            }
            left++;
            /* In the middle of a step whose other half will not come. */
            bool stranded = first_end_us && now_us > first_end_us + STRANDED_US && in_a_step(workers, i);
            if (!w->killed_by_us && (stranded || now_us > start_us + SHUTDOWN_US)) {
                if (!stranded) log_warn("worker %s did not end on SHUTDOWN: killing it", w->name);
                w->killed_by_us = true;
                kill(w->pid, SIGKILL);
            }
        }
        if (left) units_sleep_ms(2);
    }
    for (uint32_t i = 0; i < workers->count; i++) worker_close_fd(&workers->worker[i]);
}

void workers_close(struct workers *workers)
{
    workers_end_all(workers);
    if (workers->socket) zmq_close(workers->socket);
    workers->socket = NULL;
}

double worker_seconds_left(const struct worker *w, uint64_t now_us)
{
    if (w->state != WORKER_LOADING || w->bytes_done == 0 || w->bytes_done >= w->bytes_total) return 0;
    double seconds = (double)(now_us - w->loading_since_us) / 1e6;
    return seconds * (double)(w->bytes_total - w->bytes_done) / (double)w->bytes_done;
}

double workers_seconds_left(const struct workers *workers, uint64_t now_us)
{
    double most = 0;
    for (uint32_t i = 0; i < workers->count; i++) {
        double left = worker_seconds_left(&workers->worker[i], now_us);
        if (left > most) most = left;
    }
    return most;
}

const char *worker_state_name(const struct workers *workers, const struct worker *w)
{
    switch (w->state) {
    case WORKER_STARTING:
        return "starting";
    case WORKER_LOADING:
        return "loading";
    case WORKER_READY:
        return w->stall ? w->stall : "ready";
    default:
        return workers->ever_ready ? "restarting" : "starting";
    }
}

/* ---- whether a worker that is started again loads the same ---- */

#define PATH_TEXT 4096

static const char *name_of(const struct model *model, uint32_t i)
{
    return i < model->shard_count ? model->shards[i].file : "config.json";
}

/* All zero where there is none. */
static struct stat look_at(const struct model *model, uint32_t i)
{
    char path[PATH_TEXT];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", model->folder, name_of(model, i));
    if (stat(path, &st)) memset(&st, 0, sizeof st);
    return st;
}

int loaded_files_note(const struct model *model, struct loaded_files *files, struct helm_err *err)
{
    *files =
        (struct loaded_files){.model = model, .file = calloc(model->shard_count + 1, sizeof *files->file)};
    if (!files->file) return helm_fail(err, HELM_E_NOMEM, "no memory for a list of files");
    for (uint32_t i = 0; i <= model->shard_count; i++) files->file[i] = look_at(model, i);
    return 0;
}

void loaded_files_free(struct loaded_files *files)
{
    free(files->file);
    *files = (struct loaded_files){0};
}

static const char *change_of(const struct stat *was, const struct stat *is)
{
    if (was->st_ino && !is->st_ino) return "is gone";
    if (was->st_ino != is->st_ino || was->st_dev != is->st_dev) return "is another file";
    if (was->st_size != is->st_size) return "has another size";
    if (memcmp(&was->st_mtim, &is->st_mtim, sizeof was->st_mtim) != 0) return "was written to";
    /* set back, the time of writing is; this one cannot be */
    return memcmp(&was->st_ctim, &is->st_ctim, sizeof was->st_ctim) != 0 ? "was changed" : NULL;
}

int loaded_check(struct loaded *before, const struct loaded *now, const struct loaded_files *files,
                 struct helm_err *err)
{
    const bool other = (before->vectors && now->vectors && before->vectors != now->vectors) ||
                       (before->matrices && now->matrices && before->matrices != now->matrices);
    if (now->vectors) before->vectors = now->vectors;
    if (now->matrices) before->matrices = now->matrices;
    if (!other) return 0;
    const char *name = "", *change = NULL;
    for (uint32_t i = 0; files->file && i <= files->model->shard_count && !change; i++) {
        const struct stat is = look_at(files->model, i);
        change = change_of(&files->file[i], &is);
        name = name_of(files->model, i);
    }
    return helm_fail(
        err, HELM_E_MISMATCH,
        "the model changed on disk while it was served (%s%s%s): what a worker loads again is not what "
        "was loaded, so requests cannot go on with the same tokens",
        change ? name : "no file's size or time tells which", change ? " " : "", change ? change : "");
}
