/* helm-bench-kernels --attend-host: how fast the CPU attends for a GPU to what lies in host memory. */
#ifndef HELM_TOOLS_BENCH_KERNELS_ASSIST_H
#define HELM_TOOLS_BENCH_KERNELS_ASSIST_H

#include "common/base/cpu.h"
#include "common/base/err.h"

/* Prints a table: types of the cache, kernels (all but the definition, or the one of a name), pages, contexts and sequences:
 * bytes of cells a second by `threads`, pinned to `cpus`, beside plain reads of the same memory, taken in turn with them. */
HELM_MUST_CHECK int bench_assist(const char *name, unsigned threads, const struct cpu_set *cpus,
                                 struct helm_err *err);

#endif
