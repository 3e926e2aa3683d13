/* Running a program to its end. See child_run.h. Owns the process while it runs. */
#include "daemon/children/child_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/units.h"

/* In the child, after fork: only async-signal-safe calls. */
static void become(const struct child_run *run, int out, int words, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (dup2(out >= 0 ? out : null, STDOUT_FILENO) < 0 || dup2(words, STDERR_FILENO) < 0) _exit(126);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(run->program, (char *const *)run->argv);
    _exit(127);
}

/* Keeps what it prints; false at the end. */
static bool take_text(struct child_run *run, int fd)
{
    ssize_t n = read(fd, run->text + run->length, run->most + 1 - run->length);
    if (n < 0 && errno == EINTR) return true;
    if (n > 0) run->length += (size_t)n;
    return n > 0 && run->length <= run->most;
}

static bool take_words(struct child_run *run, int fd)
{
    char text[1024];
    ssize_t n = read(fd, text, sizeof text);
    if (n < 0 && errno == EINTR) return true;
    if (n > 0) child_words_take(&run->words, text, (size_t)n);
    return n > 0;
}

/* Reads until both are closed. After the text standard error alone may be open for a second: others may have
 * inherited it. */
static int watch(struct child_run *run, int out, int words, int end_fd, struct helm_err *err)
{
    enum { TEXT, WORDS, PARENT, END, COUNT };
    uint64_t end_us = units_now_us() + (uint64_t)run->limit_s * 1000000;
    bool text_ended = false;
    /* Only the end of the parent's pipe counts, and poll reports it unasked. With POLLIN, unread bytes would
     * keep poll from sleeping and disturb the measurement. */
    struct pollfd item[COUNT] = {[TEXT] = {.fd = out, .events = POLLIN},
                                 [WORDS] = {.fd = words, .events = POLLIN},
                                 [PARENT] = {.fd = run->parent_fd},
                                 [END] = {.fd = end_fd, .events = POLLIN}};
    while (item[TEXT].fd >= 0 || item[WORDS].fd >= 0) {
        uint64_t now_us = units_now_us();
        if (now_us >= end_us && text_ended) return 0;
        if (now_us >= end_us)
            return helm_fail(err, HELM_E_PEER, "%s did not end within %u s", run->name, run->limit_s);
        int n = poll(item, COUNT, (int)((end_us - now_us + 999) / 1000));
        if (n < 0 && errno != EINTR) return helm_fail_errno(err, "waiting for %s", run->name);
        if (n <= 0) continue;
        int rc = item[END].revents ? end_request_check(err) : 0;
        if (rc) return rc;
        if (item[PARENT].revents & (POLLHUP | POLLERR))
            return helm_fail(err, HELM_E_CANCELLED, "the parent has gone");
        if (item[WORDS].revents && !take_words(run, words)) item[WORDS].fd = -1;
        if (!item[TEXT].revents || take_text(run, out)) continue;
        if (run->length > run->most)
            return helm_fail(err, HELM_E_LIMIT, "%s printed more than %zu bytes", run->name, run->most);
        item[TEXT].fd = -1;
        text_ended = true;
        end_us = units_now_us() + 1000000;
    }
    return 0;
}

static void close_open(int fd)
{
    if (fd >= 0) close(fd);
}

int child_run(struct child_run *run, struct helm_err *err)
{
    int out[2] = {-1, -1}, words[2] = {-1, -1}, end_fd = end_request_watch(), rc = 0;
    pid_t parent = getpid(), pid = -1;
    if ((run->text && pipe2(out, O_CLOEXEC)) || pipe2(words, O_CLOEXEC)) {
        rc = helm_fail_errno(err, "pipe to %s", run->name);
    } else {
        pid = fork();
        if (pid == 0) become(run, out[1], words[1], parent);
        if (pid < 0) rc = helm_fail_errno(err, "starting %s", run->program);
    }
    close_open(out[1]);
    close_open(words[1]);
    if (!rc) {
        rc = watch(run, out[0], words[0], end_fd, err);
        if (rc) kill(pid, SIGKILL);
        while (waitpid(pid, &run->status, 0) < 0 && errno == EINTR) {}
        if (!rc) rc = end_request_check(err); /* Ctrl-C ends it as well, maybe first */
    }
    close_open(out[0]);
    close_open(words[0]);
    close_open(end_fd);
    return rc;
}

/* ---- its words ---- */

static void end_line(struct child_words *words)
{
    words->line[words->used] = 0;
    words->used = 0;
    if (words->line[strspn(words->line, " ")] == 0) return;
    if (words->on_line) words->on_line(words->context, words->line);
    memcpy(words->last, words->line, sizeof words->last);
}

void child_words_take(struct child_words *words, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        bool end = text[i] == '\n' || text[i] == '\r',
             control = (unsigned char)text[i] < 0x20 || text[i] == 0x7f;
        if (!end) words->line[words->used++] = control ? ' ' : text[i];
        if (end || words->used == CHILD_WORDS_LINE - 1) end_line(words);
    }
}

const char *child_words_end(struct child_words *words)
{
    if (words->used) end_line(words);
    return words->last;
}

/* ---- signals that end a start ---- */

static const int ending[] = {SIGTERM, SIGINT, SIGHUP};
#define ENDING_COUNT (sizeof ending / sizeof *ending)

static void ending_set(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < ENDING_COUNT; i++) sigaddset(set, ending[i]);
}

int end_request_block(struct helm_err *err)
{
    sigset_t set;
    ending_set(&set);
    return sigprocmask(SIG_BLOCK, &set, NULL) ? helm_fail_errno(err, "sigprocmask") : 0;
}

int end_request_watch(void)
{
    sigset_t set;
    ending_set(&set);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int end_request_check(struct helm_err *err)
{
    sigset_t pending;
    if (sigpending(&pending)) return 0;
    for (size_t i = 0; i < ENDING_COUNT; i++)
        if (sigismember(&pending, ending[i]) == 1)
            return helm_fail(err, HELM_E_CANCELLED, "ended on request before it was ready (%s)",
                             strsignal(ending[i]));
    return 0;
}
