/* One worker as an operating-system process: started with exactly the descriptors it may have.
 *
 * Called by workers.c. The child gets: 3 the arena, 4 the eventfd it rings when a step is done, 5 a pipe with
 * the 16 bytes that prove it is helmd's child; standard error stays, standard input is /dev/null. It dies
 * with helmd (PR_SET_PDEATHSIG, and the keeper as second line) and has its own process group, so that Ctrl-C
 * on a terminal reaches helmd alone, which then stops its workers in order. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"

#define WORKER_SECRET_BYTES 16

struct worker_process_spec {
    const char *program; /* path */
    int arena_fd, done_fd;
    uint8_t secret[WORKER_SECRET_BYTES];
    const char *control; /* endpoint */
    uint32_t worker, epoch;
    const char *log_level;
};

HELM_MUST_CHECK int worker_process_start(const struct worker_process_spec *spec, pid_t *pid,
                                         struct helm_err *err);

/* The program's path: DIR/name, or beside helmd's own binary when dir is NULL. It must be executable. */
HELM_MUST_CHECK int worker_process_find(const char *dir, const char *name, char *path, size_t size,
                                        struct helm_err *err);

/* "killed by signal 9 (Killed)", "exited with status 1". */
void worker_process_describe(int wait_status, char *text, size_t size);
