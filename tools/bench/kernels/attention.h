/* helm-bench-kernels --attention: how fast the CPU's attention kernels read a KV cache of each type. */
#ifndef HELM_TOOLS_BENCH_KERNELS_ATTENTION_H
#define HELM_TOOLS_BENCH_KERNELS_ATTENTION_H

#include "common/base/cpu.h"
#include "common/base/err.h"

/* Prints a table: of every variant that this processor has but ref (`name`: of that one), types, head sizes and
 * groups: positions a second and bytes a second of one token's attention over a long context by `threads`, pinned to
 * `cpus`. */
HELM_MUST_CHECK int bench_attention(const char *name, unsigned threads, const struct cpu_set *cpus,
                                    struct helm_err *err);

#endif
