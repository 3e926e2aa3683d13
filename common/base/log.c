/* Log lines, one write(2) each. See log.h. Owns the process's level and name, set before threads start, and
 * the count of dropped lines. */
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/printable.h"

static const char *const log_names[] = {"error", "warn", "info", "debug"};
static const char *log_program = "helm";
static enum log_level log_threshold = LOG_LEVEL_INFO;
static int log_journal;
static atomic_uint log_dropped;

void log_init(const char *program, enum log_level level)
{
    log_program = program;
    log_threshold = level;
    log_journal = getenv("JOURNAL_STREAM") != NULL;
}

void log_set_level(enum log_level level)
{
    log_threshold = level;
}

int log_level_parse(const char *text, enum log_level *level, struct helm_err *err)
{
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, log_names[i]) == 0) {
            *level = (enum log_level)i;
            return 0;
        }
    }
    return helm_fail(err, HELM_E_USAGE, "log level '%s' is none of error, warn, info, debug", text);
}

const char *log_level_name(enum log_level level)
{
    return log_names[level];
}

/* The line's beginning; returns its length. */
static size_t put_head(enum log_level level, char *line, size_t size)
{
    if (log_journal) {
        static const int priority[] = {3, 4, 6, 7};
        return (size_t)snprintf(line, size, "<%d>%s: ", priority[level], log_program);
    }
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    return (size_t)snprintf(line, size, "%02d:%02d:%02d.%03ld %s %s: ", tm.tm_hour, tm.tm_min, tm.tm_sec,
                            ts.tv_nsec / 1000000, log_program, log_names[level]);
}

/* Standard error may be shared with programs that expect it to block, so its own flags stay as they are: a
 * pipe or a terminal is opened once more, without blocking. */
static bool write_at_once(const char *line, size_t size)
{
    struct stat st;
    if (fstat(STDERR_FILENO, &st)) return false;
    if (S_ISSOCK(st.st_mode))
        return send(STDERR_FILENO, line, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
        const int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0) {
            const ssize_t n = write(fd, line, size);
            close(fd);
            return n == (ssize_t)size;
        }
        struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT}; /* no /proc, or another user's terminal */
        if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) return false;
    }
    return write(STDERR_FILENO, line, size) == (ssize_t)size;
}

/* Says how many lines were lost before this one, as soon as there is room to say so. */
static bool say_dropped(void)
{
    const unsigned dropped = atomic_exchange(&log_dropped, 0);
    char line[128];
    if (!dropped) return true;
    const size_t n = put_head(LOG_LEVEL_WARN, line, sizeof line);
    const int m =
        snprintf(line + n, sizeof line - n, "%u log lines were dropped: standard error took none\n", dropped);
    if (write_at_once(line, n + (size_t)m)) return true;
    atomic_fetch_add(&log_dropped, dropped);
    return false;
}

void log_at(enum log_level level, const char *fmt, ...)
{
    if (level > log_threshold) return;
    char line[1024], text[sizeof line];
    const int saved = errno;
    size_t used = put_head(level, line, sizeof line);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    used += printable(line + used, sizeof line - used - 1, text);
    line[used++] = '\n';
    if (!say_dropped() || !write_at_once(line, used)) atomic_fetch_add(&log_dropped, 1);
    errno = saved;
}
