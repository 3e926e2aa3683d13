/* The keeper of a killed helmd's belongings. See keeper.h. keeper_main is the child's; the rest is helmd's
 * side.
 *
 * One line a message: "+PID", "~PID" (a helmd), "-PID", "f PATH" (file), "d PATH" (directory), "q"
 * (farewell). Lines are shorter than PIPE_BUF, so each write is whole or not at all. */
#include "daemon/children/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"

#define KEEPER_WORKERS_MAX 64
#define KEEPER_PATHS_MAX   256
#define KEEPER_LINE_MAX    256
#define KEEPER_DAEMON_MS   3000 /* that a helmd has to end in order */

/* ---- helmd's side ------------------------------------------------------------------------------------- */

static void HELM_PRINTF(2, 3) keeper_tell(const struct keeper *keeper, const char *fmt, ...)
{
    if (keeper->pipe < 0) return;
    char line[KEEPER_LINE_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof line && write(keeper->pipe, line, (size_t)n) != n)
        log_debug("keeper: not told of %s", line);
}

int keeper_start(const struct rundir *dir, struct keeper *keeper, struct helm_err *err)
{
    keeper->pid = 0;
    keeper->pipe = -1;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return helm_fail_errno(err, "pipe to the keeper");
    int flags = fcntl(ends[1], F_GETFL);
    if (flags >= 0) fcntl(ends[1], F_SETFL, flags | O_NONBLOCK);
    char fd_text[16];
    snprintf(fd_text, sizeof fd_text, "%d", ends[0]);
    sigset_t none;
    sigemptyset(&none);
    pid_t pid = fork();
    if (pid < 0) {
        helm_fail_errno(err, "starting the keeper");
        close(ends[0]);
        close(ends[1]);
        return HELM_E_IO;
    }
    if (pid == 0) {
        /* Only calls that are safe after fork in a process with threads. The locks stay open across exec:
         * they are released when the last of helmd and the keeper is gone. */
        setsid();
        sigprocmask(SIG_SETMASK, &none, NULL);
        fcntl(ends[0], F_SETFD, 0);
        for (uint32_t i = 0; i < dir->lock_count; i++)
            if (dir->lock[i].fd >= 0) fcntl(dir->lock[i].fd, F_SETFD, 0);
        char *argv[] = {(char *)"helmd", (char *)KEEPER_ARGUMENT, fd_text, NULL};
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(ends[0]);
    keeper->pid = pid;
    keeper->pipe = ends[1];
    for (uint32_t i = 0; i < dir->lock_count; i++) {
        if (dir->lock[i].fd < 0) continue;
        keeper_tell(keeper, "f %s\n", dir->lock[i].socket);
        keeper_tell(keeper, "f %s\n", dir->lock[i].file);
    }
    keeper_tell(keeper, "f %s\n", dir->control + strlen("ipc://"));
    keeper_tell(keeper, "d %s\n", dir->private_dir);
    if (dir->created) keeper_tell(keeper, "d %s\n", dir->path);
    return 0;
}

void keeper_add_worker(const struct keeper *keeper, pid_t pid)
{
    keeper_tell(keeper, "+%ld\n", (long)pid);
}

void keeper_add_daemon(const struct keeper *keeper, pid_t pid)
{
    keeper_tell(keeper, "~%ld\n", (long)pid);
}

void keeper_drop_worker(const struct keeper *keeper, pid_t pid)
{
    keeper_tell(keeper, "-%ld\n", (long)pid);
}

void keeper_lost(struct keeper *keeper)
{
    if (keeper->pipe >= 0) close(keeper->pipe);
    keeper->pipe = -1;
    keeper->pid = 0;
}

void keeper_dismiss(struct keeper *keeper)
{
    if (keeper->pid <= 0) return;
    pid_t pid = keeper->pid;
    keeper_tell(keeper, "q\n");
    keeper_lost(keeper);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
}

/* ---- the keeper --------------------------------------------------------------------------------------- */

struct estate {
    struct {
        pid_t pid;
        int pidfd; /* pins the identity: a number that was given to another process is never killed */
        bool daemon;
    } worker[KEEPER_WORKERS_MAX];
    int workers;
    char path[KEEPER_PATHS_MAX][KEEPER_LINE_MAX];
    bool is_dir[KEEPER_PATHS_MAX];
    int paths;
    bool farewell;
};

static void estate_take_line(struct estate *e, const char *line)
{
    pid_t pid = (pid_t)strtol(line + 1, NULL, 10);
    if ((line[0] == '+' || line[0] == '~') && e->workers < KEEPER_WORKERS_MAX) {
        e->worker[e->workers].daemon = line[0] == '~';
        e->worker[e->workers].pid = pid;
        e->worker[e->workers++].pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    } else if (line[0] == '-') {
        for (int i = 0; i < e->workers; i++) {
            if (e->worker[i].pid != pid) continue;
            if (e->worker[i].pidfd >= 0) close(e->worker[i].pidfd);
            e->worker[i] = e->worker[--e->workers];
            break;
        }
    } else if ((line[0] == 'f' || line[0] == 'd') && line[1] == ' ' && e->paths < KEEPER_PATHS_MAX) {
        snprintf(e->path[e->paths], sizeof e->path[0], "%s", line + 2);
        e->is_dir[e->paths++] = line[0] == 'd';
    } else if (line[0] == 'q') {
        e->farewell = true;
    }
}

static void estate_settle(struct estate *e)
{
    for (int i = 0; i < e->workers; i++) {
        if (e->worker[i].pidfd < 0) continue; /* already gone when we were told */
        struct pollfd ended = {.fd = e->worker[i].pidfd, .events = POLLIN};
        if (e->worker[i].daemon) {
            syscall(SYS_pidfd_send_signal, e->worker[i].pidfd, SIGTERM, NULL, 0);
            syscall(SYS_pidfd_send_signal, e->worker[i].pidfd, SIGCONT, NULL, 0); /* if it is stopped */
            if (poll(&ended, 1, KEEPER_DAEMON_MS) > 0) continue;
        }
        syscall(SYS_pidfd_send_signal, e->worker[i].pidfd, SIGKILL, NULL, 0);
        poll(&ended, 1, 1000);
    }
    for (int i = 0; i < e->paths; i++)
        if (!e->is_dir[i]) unlink(e->path[i]);
    for (int i = 0; i < e->paths; i++)
        if (e->is_dir[i]) rmdir(e->path[i]);
}

int keeper_main(int fd)
{
    /* Whatever ends helmd's session or terminal must not end us first. */
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
    struct estate *e = calloc(1, sizeof *e);
    if (!e) return 1;
    char buf[KEEPER_LINE_MAX * 4];
    size_t used = 0;
    for (;;) {
        ssize_t n = read(fd, buf + used, sizeof buf - used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        used += (size_t)n;
        char *end, *line = buf;
        while ((end = memchr(line, '\n', used - (size_t)(line - buf)))) {
            *end = 0;
            estate_take_line(e, line);
            line = end + 1;
        }
        used -= (size_t)(line - buf);
        memmove(buf, line, used);
        if (used == sizeof buf) used = 0;
    }
    if (!e->farewell) estate_settle(e);
    free(e);
    return 0;
}
