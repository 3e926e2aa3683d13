/* The NUMA node that weights, caches and compute threads are bound to, and what memory it has.
 *
 * Called by helmd and the tools before they plan or measure, and by the CPU worker, so that all of them speak
 * of the same node. Reads /sys and /proc; no state. */
#pragma once

#include <stdbool.h>

#include "common/base/cgroup.h"
#include "common/base/err.h"

/* Whether a list of nodes or CPUs such as "0-3,8,10-11" has the number. */
bool node_list_has(const char *list, int number);

/* `wanted`, which must exist, have memory and be allowed for this process; with -1 the allowed node with CPUs
 * that has the most memory available. On a machine without NUMA, or whose kernel forbids memory policies,
 * *node is -1 (and a `wanted` above 0 is an error). */
HELM_MUST_CHECK int node_choose(int wanted, int *node, struct helm_err *err);

/* cgroup_read_memory; where several nodes have memory, what is available is no more than `node` has. -1: any
 * node. */
HELM_MUST_CHECK int node_read_memory(int node, struct cgroup_memory *memory, struct helm_err *err);

/* The same, with `root` before every path that is read: for tests. */
HELM_MUST_CHECK int node_choose_under(const char *root, int wanted, int *node, struct helm_err *err);
HELM_MUST_CHECK int node_read_memory_under(const char *root, int node, struct cgroup_memory *memory,
                                           struct helm_err *err);
