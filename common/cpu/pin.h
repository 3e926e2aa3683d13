/* Where the worker runs: the CPUs of its threads, the node (common/base/node.h) of its private memory.
 *
 * Called by engine.c and pool.c at start only. No state. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "common/base/err.h"

/* Makes this process's private memory come from `node` too (preferred: a few MiB may go elsewhere rather than
 * fail). */
void pin_prefer_node(int node);

HELM_MUST_CHECK int pin_this_thread(int cpu, struct helm_err *err);
/* pthread_create on one CPU from the start (-1: on any), with all signals blocked: they belong to the main
 * thread. */
HELM_MUST_CHECK int pin_create_thread(pthread_t *thread, int cpu, void *(*run)(void *), void *arg,
                                      struct helm_err *err);
