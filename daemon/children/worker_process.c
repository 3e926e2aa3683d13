/* One worker as a process. See worker_process.h. Called by workers.c; the child's pid is the caller's to
 * reap. */
#include "daemon/children/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_ARENA_FD = 3, CHILD_DONE_FD, CHILD_SECRET_FD, CHILD_FDS_ABOVE };

int worker_process_find(const char *dir, const char *name, char *path, size_t size, struct helm_err *err)
{
    char self[4096];
    if (!dir) {
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        if (n < 0) return helm_fail_errno(err, "/proc/self/exe");
        self[n] = 0;
        char *slash = strrchr(self, '/');
        if (slash) *slash = 0;
        dir = self;
    }
    int n = snprintf(path, size, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= size) return helm_fail(err, HELM_E_LIMIT, "path of %s is too long", name);
    if (access(path, X_OK)) return helm_fail_errno(err, "worker program %s", path);
    return 0;
}

/* In the child, after fork in a process with threads: only async-signal-safe calls. */
static void child_become(const int from[3], const char *program, char *const argv[], pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* helmd died before the line above could notice */
    setpgid(0, 0);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (dup2(from[0], CHILD_ARENA_FD) < 0 || dup2(from[1], CHILD_DONE_FD) < 0 ||
        dup2(from[2], CHILD_SECRET_FD) < 0)
        _exit(126);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(program, argv);
    _exit(127);
}

int worker_process_start(const struct worker_process_spec *spec, pid_t *pid, struct helm_err *err)
{
    int secret[2] = {-1, -1}, from[3] = {-1, -1, -1}, rc = 0;
    *pid = 0;
    char index_text[16], epoch_text[16];
    snprintf(index_text, sizeof index_text, "%u", spec->worker);
    snprintf(epoch_text, sizeof epoch_text, "%u", spec->epoch);
    const char *argv[] = {spec->program, "--arena-fd", "3",         "--done-fd",   "4",
                          "--secret-fd", "5",          "--control", spec->control, "--worker",
                          index_text,    "--epoch",    epoch_text,  "--log-level", spec->log_level,
                          NULL};
    if (pipe2(secret, O_CLOEXEC)) return helm_fail_errno(err, "pipe to a worker");
    if (write(secret[1], spec->secret, sizeof spec->secret) != (ssize_t)sizeof spec->secret) {
        rc = helm_fail_errno(err, "pipe to a worker");
        goto out;
    }
    /* Copies out of the way of 3, 4 and 5, so that no dup2 in the child closes what a later one needs. */
    const int source[3] = {spec->arena_fd, spec->done_fd, secret[0]};
    for (int i = 0; i < 3; i++) {
        from[i] = fcntl(source[i], F_DUPFD_CLOEXEC, CHILD_FDS_ABOVE + 10);
        if (from[i] < 0) {
            rc = helm_fail_errno(err, "descriptor for a worker");
            goto out;
        }
    }
    pid_t parent = getpid(), child = fork();
    if (child == 0) child_become(from, spec->program, (char *const *)argv, parent);
    if (child < 0)
        rc = helm_fail_errno(err, "starting %s", spec->program);
    else
        *pid = child;
out:
    for (int i = 0; i < 3; i++)
        if (from[i] >= 0) close(from[i]);
    for (int i = 0; i < 2; i++)
        if (secret[i] >= 0) close(secret[i]);
    return rc;
}

void worker_process_describe(int wait_status, char *text, size_t size)
{
    if (WIFSIGNALED(wait_status))
        snprintf(text, size, "killed by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    else
        snprintf(text, size, "exited with status %d", WEXITSTATUS(wait_status));
}
