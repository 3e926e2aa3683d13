/* The keeper: a tiny child that outlives a killed helmd just long enough to tidy up after it.
 *
 * helmd writes what it owns to the keeper's pipe (pids, files, directories). When the pipe closes
 * without a farewell, helmd is dead: the keeper kills the workers, removes the files, then the directories,
 * and ends. It is helmd's own program under another first argument (--keeper), in its own session, holding
 * the endpoint locks so that a new daemon waits until all is tidy. loop.c restarts it should it die itself.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "daemon/children/rundir.h"

#define KEEPER_ARGUMENT "--keeper"

struct keeper {
    pid_t pid; /* 0: none */
    int pipe;  /* write end, -1 */
};

/* Starts it and tells it of every file and directory of `dir`. */
HELM_MUST_CHECK int keeper_start(const struct rundir *dir, struct keeper *keeper, struct helm_err *err);
/* A worker was started; or has ended but is not yet reaped. */
void keeper_add_worker(const struct keeper *keeper, pid_t pid);
/* A helmd was started, which has things of its own to tidy up: it is asked to end before it is killed. */
void keeper_add_daemon(const struct keeper *keeper, pid_t pid);
void keeper_drop_worker(const struct keeper *keeper, pid_t pid);
/* helmd has tidied up itself: the keeper ends without doing anything, and is waited for. */
void keeper_dismiss(struct keeper *keeper);
/* It died and was reaped. */
void keeper_lost(struct keeper *keeper);

/* The keeper's own main: reads the pipe on descriptor `fd`. */
int keeper_main(int fd);
