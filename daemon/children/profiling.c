/* Which profile is planned with. See profiling.h. Called by main.c before any thread exists; owns
 * helm-profile's process while it runs. */
#include "daemon/children/profiling.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/children/child_words.h"
#include "daemon/children/end_request.h"
#include "daemon/children/worker_process.h"

#define PROGRAM  "helm-profile"
#define LIMIT_US ((uint64_t)300 * 1000000) /* it says itself that it needs one minute at most */

/* ---- helm-profile as a child -------------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int out; /* its standard error; what it prints besides is for people */
    struct child_words words;
};

/* In the child, after fork: only async-signal-safe calls. */
static void child_become(const char *program, char *const argv[], int out, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    int sink = open("/dev/null", O_WRONLY);
    if (sink >= 0) dup2(sink, STDOUT_FILENO);
    if (dup2(out, STDERR_FILENO) < 0) _exit(126);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(program, argv);
    _exit(127);
}

static int child_start(const char *program, char *const argv[], struct child *child, struct helm_err *err)
{
    int out[2];
    if (pipe2(out, O_CLOEXEC)) return helm_fail_errno(err, "pipe to %s", program);
    pid_t parent = getpid();
    child->pid = fork();
    if (child->pid == 0) child_become(program, argv, out[1], parent);
    close(out[1]);
    child->out = out[0];
    return child->pid < 0 ? helm_fail_errno(err, "starting %s", program) : 0;
}

static void log_line(const char *line)
{
    log_info(PROGRAM ": %s", line);
}

/* What it has said; false at the end. */
static bool take_output(struct child *child)
{
    char text[1024];
    ssize_t n = read(child->out, text, sizeof text);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (n > 0) child_words_take(&child->words, text, (size_t)n);
    return n > 0;
}

/* Until it ends, the parent goes, helmd is told to end, or its time is over. */
static int child_watch(struct child *child, int parent_fd, int end_fd, struct helm_err *err)
{
    enum { OUTPUT, PARENT, END, COUNT };
    uint64_t end_us = units_now_us() + LIMIT_US;
    for (;;) {
        uint64_t now_us = units_now_us();
        /* Of the parent's pipe only the end counts, which needs no asking for: bytes that nobody reads here
         * would keep poll from sleeping, beside what is measured. */
        struct pollfd item[COUNT] = {[OUTPUT] = {.fd = child->out, .events = POLLIN},
                                     [PARENT] = {.fd = parent_fd},
                                     [END] = {.fd = end_fd, .events = POLLIN}};
        if (now_us >= end_us)
            return helm_fail(err, HELM_E_PEER, PROGRAM " did not end within %.0f s", (double)LIMIT_US / 1e6);
        int n = poll(item, COUNT, (int)((end_us - now_us + 999) / 1000));
        if (n < 0 && errno != EINTR) return helm_fail_errno(err, "waiting for " PROGRAM);
        if (n <= 0) continue;
        int rc = item[END].revents ? end_request_check(err) : 0;
        if (rc) return rc;
        if (item[PARENT].revents & (POLLHUP | POLLERR))
            return helm_fail(err, HELM_E_CANCELLED, "the parent has gone");
        if (item[OUTPUT].revents && !take_output(child)) return 0;
    }
}

static int child_end(struct child *child, int rc, struct helm_err *err)
{
    int status = 0;
    char how[128];
    if (rc) kill(child->pid, SIGKILL);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        ;
    const char *last = child_words_end(&child->words);
    if (rc || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return rc;
    rc = end_request_check(err); /* Ctrl-C ends it as well, maybe first */
    if (rc) return rc;
    worker_process_describe(status, how, sizeof how);
    return helm_fail(err, HELM_E_PEER, PROGRAM " %s%s%s", how, last[0] ? ": " : "", last);
}

static int measure(const struct profiling_request *r, bool quick, struct helm_err *err)
{
    char program[4096], threads[16], node[16], copies[24];
    const char *argv[14] = {PROGRAM, "--device", r->device->name[0] ? r->device->name : "cpu"};
    size_t n = 3;
    struct child child = {.pid = -1, .out = -1, .words.on_line = log_line};
    int rc = worker_process_find(r->program_dir, PROGRAM, program, sizeof program, err);
    if (rc) return rc;
    snprintf(threads, sizeof threads, "%u", r->threads);
    if (r->threads) {
        argv[n++] = "--threads";
        argv[n++] = threads;
    }
    snprintf(node, sizeof node, "%d", r->node);
    if (r->node >= 0) {
        argv[n++] = "--node";
        argv[n++] = node;
    }
    snprintf(copies, sizeof copies, "%llu", (unsigned long long)r->copy_bytes_per_s);
    if (r->copy_bytes_per_s) {
        argv[n++] = "--emulated-copy";
        argv[n++] = copies;
    }
    if (r->program_dir) {
        argv[n++] = "--worker-dir";
        argv[n++] = r->program_dir;
    }
    if (quick) argv[n++] = "--quick";
    log_info("profile: measuring it, %s", quick ? "quickly (some seconds)" : "once (up to a minute)");
    sd_notify(0, "STATUS=measuring this machine");
    int end_fd = end_request_watch();
    rc = child_start(program, (char *const *)argv, &child, err);
    if (!rc) rc = child_watch(&child, r->parent_fd, end_fd, err);
    if (child.pid > 0) rc = child_end(&child, rc, err);
    if (child.out >= 0) close(child.out);
    if (end_fd >= 0) close(end_fd);
    return rc;
}

/* ---- which one ---------------------------------------------------------------------------------------- */

static int read_checked(const char *path, const struct profiling_request *r, struct profile *profile,
                        struct helm_err *err)
{
    int rc = profile_read(path, profile, err);
    if (!rc && r->device->ledger.kind != LEDGER_DEVICE_NONE && profile->gpu.device == PROFILE_DEVICE_NONE)
        rc =
            helm_fail(err, HELM_E_MISMATCH, "%s is of a machine without a device, and --device %s was chosen",
                      path, r->device->name);
    return rc;
}

/* What to give helm-profile so that it measures this very machine, for people. */
static void say_options(const struct profiling_request *r, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "--device %s", r->device->name[0] ? r->device->name : "cpu");
    if (r->threads && n < size) n += (size_t)snprintf(text + n, size - n, " --threads %u", r->threads);
    if (r->node >= 0 && n < size) n += (size_t)snprintf(text + n, size - n, " --node %d", r->node);
    if (r->copy_bytes_per_s && n < size)
        snprintf(text + n, size - n, " --emulated-copy %llu", (unsigned long long)r->copy_bytes_per_s);
}

/* The cached one, measured first where there is none that can be used. */
static int get_cached(const struct profiling_request *r, const char *fingerprint, struct profile *profile,
                      struct helm_err *err)
{
    char path[4096], options[160];
    struct helm_err found = {0};
    bool quick = r->device->ledger.kind != LEDGER_DEVICE_CUDA;
    int rc = profile_cache_path(fingerprint, path, sizeof path, err);
    if (rc) return rc;
    if (access(path, F_OK) == 0) {
        if (!read_checked(path, r, profile, &found)) goto found;
        log_warn("the cached profile cannot be used: %s", found.text);
    } else {
        log_info("there is no profile of this machine yet");
    }
    rc = measure(r, quick, err);
    if (rc) return rc;
    if (access(path, F_OK))
        return helm_fail(err, HELM_E_MISMATCH, PROGRAM " ended well and left no %s: is it of this build?",
                         path);
    rc = read_checked(path, r, profile, err);
    if (rc) return rc;
found:
    log_info("profile: %s, of %s%s", path, profile->made, profile->quick ? ", taken quickly" : "");
    if (profile->quick) {
        say_options(r, options, sizeof options);
        log_info("profile: `" PROGRAM " %s` takes a minute and makes better forecasts", options);
    }
    return 0;
}

int profiling_get(const struct profiling_request *r, struct profile *profile, struct helm_err *err)
{
    struct profile_hardware hardware = {.threads = r->threads, .node = r->node};
    struct helm_err unknown = {0};
    char fingerprint[72];
    memset(profile, 0, sizeof *profile);
    /* as helm-profile calls it */
    if (r->copy_bytes_per_s)
        snprintf(hardware.device, sizeof hardware.device, "%.60s, copies %llu a second", r->device->hardware,
                 (unsigned long long)r->copy_bytes_per_s);
    else
        snprintf(hardware.device, sizeof hardware.device, "%s", r->device->hardware);
    int rc = profile_fingerprint(&hardware, fingerprint, NULL, 0, r->file ? &unknown : err);
    if (r->file) {
        rc = read_checked(r->file, r, profile, err);
        if (rc) return helm_err_prefix(err, "--profile");
        bool here = profile->fingerprint[0] && strcmp(profile->fingerprint, fingerprint) == 0;
        log_info("profile: %s, of %s", r->file,
                 here ? "this machine"
                 : profile->fingerprint[0]
                     ? "another machine, or other threads or devices: forecasts are for those"
                     : "a machine that is described: forecasts are for that one");
    } else if (!rc) {
        rc = get_cached(r, fingerprint, profile, err);
        if (rc == HELM_E_CANCELLED) return rc;
        if (rc) return helm_err_prefix(err, "no profile of this machine (--profile FILE gives one)");
    }
    return rc;
}
