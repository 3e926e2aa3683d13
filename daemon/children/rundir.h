/* The run directory: where sockets live, which users may enter, and that only one daemon holds an endpoint.
 *
 * Called by main.c at start and end. RUNDIR is --rundir, or systemd's $RUNTIME_DIRECTORY, or /run/helm for
 * root, or $XDG_RUNTIME_DIR/helm, or /tmp/helm-UID. Beside each ipc socket PATH lies PATH.lock, held with
 * flock(2) and holding the daemon's pid. RUNDIR/worker.PID/ (mode 0700) holds the control socket. Owns the
 * lock descriptors. */
#pragma once

#include <stdbool.h>

#include "common/base/args.h"
#include "common/base/err.h"

#define RUNDIR_PATH_MAX     108 /* sun_path with its NUL */
#define RUNDIR_LOCK_WAIT_MS 5000

struct rundir_lock {
    char socket[RUNDIR_PATH_MAX], file[RUNDIR_PATH_MAX + 8];
    int fd;
};

struct rundir {
    char path[RUNDIR_PATH_MAX];
    bool created;                      /* by a helmd, so removed when empty */
    char private_dir[RUNDIR_PATH_MAX]; /* "" until made */
    char control[RUNDIR_PATH_MAX + 8]; /* "ipc://..." of the control socket */
    char endpoint_text[ARGS_LIST_MAX][RUNDIR_PATH_MAX + 160];
    struct args_list endpoints; /* resolved: ipc://PATH, tcp://... */
    struct rundir_lock lock[ARGS_LIST_MAX];
    uint32_t lock_count;
};

/* Whether what rundir_open will be given is well formed and held by no daemon that lives, before what takes
 * long; makes nothing. HELM_E_USAGE, HELM_E_BUSY. */
HELM_MUST_CHECK int rundir_check(const char *option, const struct args_list *listen, struct helm_err *err);
/* Chooses, makes and checks the directories, resolves `listen` (empty: RUNDIR/helmd.sock), locks every ipc
 * endpoint and removes the socket of a dead daemon. HELM_E_BUSY: a live daemon holds it; HELM_E_PERMISSION:
 * something that no daemon made has the name of the socket or of its lock, and stays as it is. rundir_close
 * either way. */
HELM_MUST_CHECK int rundir_open(const char *option, const struct args_list *listen, struct rundir *dir,
                                struct helm_err *err);
/* Removes everything that rundir_open and the sockets made, the locks last. */
void rundir_close(struct rundir *dir);
