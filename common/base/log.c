/* Log lines, one write(2) each. See log.h. Owns the process's level and name, set before threads start. */
#include "common/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const log_names[] = {"error", "warn", "info", "debug"};
static const char *log_program = "helm";
static enum log_level log_threshold = LOG_LEVEL_INFO;
static int log_journal;

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

void log_at(enum log_level level, const char *fmt, ...)
{
    if (level > log_threshold) return;
    char line[1024];
    int n;
    if (log_journal) {
        static const int priority[] = {3, 4, 6, 7};
        n = snprintf(line, sizeof line, "<%d>%s: ", priority[level], log_program);
    } else {
        struct timespec ts;
        struct tm tm;
        clock_gettime(CLOCK_REALTIME, &ts);
        localtime_r(&ts.tv_sec, &tm);
        n = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %s %s: ", tm.tm_hour, tm.tm_min, tm.tm_sec,
                     ts.tv_nsec / 1000000, log_program, log_names[level]);
    }
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t used = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (used > sizeof line - 2) used = sizeof line - 2;
    for (size_t i = (size_t)n; i < used; i++) { /* outside text must not forge a second line */
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    }
    line[used++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored; /* nowhere left to report it */
}
