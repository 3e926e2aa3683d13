/* Where the worker runs: the NUMA node, the CPUs of its threads.
 *
 * Called by engine.c and pool.c at start only. No state. */
#ifndef HELM_WORKER_CPU_PIN_H
#define HELM_WORKER_CPU_PIN_H

#include <pthread.h>
#include <stdbool.h>

#include "common/err.h"

/* The node to run on: `wanted`, which must exist and be allowed, or with -1 the allowed node with the most
 * free memory. On a machine without NUMA *node is -1 (and a `wanted` above 0 is an error). */
HELM_MUST_CHECK int pin_choose_node(int wanted, int *node, struct helm_err *err);

/* Makes this process's private memory come from `node` too (preferred: a few MiB may go elsewhere rather than
 * fail). */
void pin_prefer_node(int node);

HELM_MUST_CHECK int pin_this_thread(int cpu, struct helm_err *err);
/* pthread_create on one CPU from the start (-1: on any), with all signals blocked: they belong to the main
 * thread. */
HELM_MUST_CHECK int pin_create_thread(pthread_t *thread, int cpu, void *(*run)(void *), void *arg,
                                      struct helm_err *err);

#endif
