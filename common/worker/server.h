/* The step thread: loads the engine, then waits on the arena's step doorbell, runs each step and announces
 * it.
 *
 * Called by control.c, which stays free to answer helmd. The thread reports through an eventfd that control.c
 * polls. Owns the thread and the engine; the arena and the descriptors belong to the caller. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "common/worker/engine.h"

enum server_state { SERVER_LOADING, SERVER_SERVING, SERVER_FAILED };

struct server {
    const struct worker_engine_ops *ops;
    struct engine_options options; /* borrowed strings and plan */
    const struct arena *arena;
    uint32_t epoch, worker;
    int done_fd;                  /* helmd's eventfd: 1 is added after each step */
    int report_fd;                /* our eventfd: written when `state` has changed */
    struct worker_engine *engine; /* ours from server_start to server_stop; loaded by the thread */
    pthread_t thread;
    bool started;
    _Atomic int state; /* enum server_state; `err` is final when it says FAILED */
    _Atomic bool stop;
    _Atomic uint32_t last_serial;
    struct helm_err err;
};

/* Starts the thread; every field above `engine` is filled in by the caller. */
HELM_MUST_CHECK int server_start(struct server *server, struct helm_err *err);
/* Ends it after the step it is in (loading is cut short) and frees the engine. */
void server_stop(struct server *server);
