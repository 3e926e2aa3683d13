/* The worker's side of the control protocol (proto/control.proto): HELLO, LOAD, PROGRESS, READY, PING,
 * SHUTDOWN.
 *
 * Called by process.c only. Owns the ZeroMQ socket and the server (server.h); the arena and done_fd are the
 * caller's. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "common/worker/engine.h"

#define CONTROL_VERSION      1
#define CONTROL_SECRET_BYTES 16

struct control_options {
    const struct worker_engine_ops *engine;
    const struct arena *arena;
    const char *endpoint;
    unsigned char secret[CONTROL_SECRET_BYTES];
    uint32_t epoch, worker;
    int done_fd;
    pid_t parent; /* the loop ends when this is no longer our parent */
};

/* Connects, says HELLO and serves until SHUTDOWN (0) or until it cannot go on: then helmd was sent a FAULT.
 */
HELM_MUST_CHECK int control_serve(const struct control_options *options, struct helm_err *err);
