/* Limits that the machine puts on this process: cgroup memory and CPU (v1 and v2, every ancestor), free
 * memory.
 *
 * Called by helmd before it creates the arena, by the loader and by cpu.c. No state. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"

#define CGROUP_UNLIMITED UINT64_MAX

struct cgroup_memory {
    uint64_t limit_bytes; /* lowest memory.max / memory.limit_in_bytes on the way to the root; or unlimited */
    uint64_t used_bytes; /* usage of that group, page cache that can be dropped not counted; 0 if unlimited */
    uint64_t machine_bytes;           /* MemTotal */
    uint64_t machine_available_bytes; /* MemAvailable */
    /* The same, capped by limit - used of every ancestor, and by what the node has */
    uint64_t available_bytes;
    uint64_t node_bytes; /* where a NUMA node has less than all that (node.h): its MemTotal; else 0 */
    int node;
};
HELM_MUST_CHECK int cgroup_read_memory(struct cgroup_memory *memory, struct helm_err *err);

/* CPUs' worth of time the group may use (lowest quota/period of the ancestors), or 0 for no limit. */
double cgroup_cpu_quota(void);

/* The same, with `root` before every path that is read (/proc/..., the cgroup mounts): for tests. */
HELM_MUST_CHECK int cgroup_read_memory_under(const char *root, struct cgroup_memory *memory,
                                             struct helm_err *err);
double cgroup_cpu_quota_under(const char *root);
