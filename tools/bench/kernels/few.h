/* helm-bench-kernels --few: what several tokens take that each have the bits of one, beside what they take together. */
#ifndef HELM_TOOLS_BENCH_KERNELS_FEW_H
#define HELM_TOOLS_BENCH_KERNELS_FEW_H

#include "common/base/cpu.h"
#include "common/base/err.h"
#include "common/formats/tensor_format.h"

/* Prints a table, a line a format and kind of activations, by the kernels called `name` (NULL: this processor's fastest). `format`:
 * of that alone; FORMAT_COUNT: of all but variable ones. */
HELM_MUST_CHECK int bench_few(const char *name, enum tensor_format format, unsigned threads,
                              const struct cpu_set *cpus, struct helm_err *err);

#endif
