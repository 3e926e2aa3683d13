/* The main program of a worker, whichever it is: what helmd starts.
 *
 * Called by the main functions of helm-worker-cpu and helm-worker-gpu only. */
#pragma once

#include "common/worker/engine.h"

/* Start order only: die with the parent, take the descriptors, attach the arena, serve. Returns the exit
 * status. */
int process_main(const char *program, const char *about, const struct worker_engine_ops *engine, int argc,
                 char **argv);
