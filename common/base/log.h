/* Log lines on standard error: "helmd info loading: 3.2 GiB ..." or, under systemd, with <N> priorities.
 *
 * The one piece of process-wide state in common/: a level and a name, set once by main before any thread
 * starts and read-only afterwards. Never called between the first and the last layer of a step. */
#pragma once

#include "common/base/err.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Sets the program's name (borrowed for the process's life) and level. With JOURNAL_STREAM in the environment
 * (systemd sets it) lines carry syslog priorities instead of a time stamp. */
void log_init(const char *program, enum log_level level);
void log_set_level(enum log_level level);

/* "error", "warn", "info", "debug". */
HELM_MUST_CHECK int log_level_parse(const char *text, enum log_level *level, struct helm_err *err);
const char *log_level_name(enum log_level level);

/* One line, one write(2): lines of several processes on one terminal do not mix. Control characters are shown
 * as printable.h has them. Never waits: a line for which a pipe, socket or terminal has no room is dropped,
 * and the next one that goes out has a line before it that says how many were. */
void log_at(enum log_level level, const char *fmt, ...) HELM_PRINTF(2, 3);
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)
