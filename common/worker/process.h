/* The main program of a worker, whichever it is: what helmd starts.
 *
 * Called by the main functions of helm-worker-cpu and helm-worker-gpu only. */
#ifndef HELM_COMMON_WORKER_PROCESS_H
#define HELM_COMMON_WORKER_PROCESS_H

#include "common/worker/engine.h"

/* Start order only: die with the parent, take the descriptors, attach the arena, serve. Returns the exit
 * status. */
int process_main(const char *program, const char *about, const struct worker_engine_ops *engine, int argc,
                 char **argv);

#endif
