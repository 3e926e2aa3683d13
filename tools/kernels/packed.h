/* helm-bench-kernels --packed: what packing weights gains, and what it costs at load. */
#ifndef HELM_TOOLS_KERNELS_PACKED_H
#define HELM_TOOLS_KERNELS_PACKED_H

#include "common/err.h"

/* Prints a table: of the model in `folder` each kind of bf16 matrix that a layer has, packed and read back by
 * one thread; with folder NULL N(0, scale) weights of a few scales, by one thread and by `threads` at once. A
 * matrix that does not come back bit for bit is HELM_E_INTERNAL. */
HELM_MUST_CHECK int bench_packed(const char *folder, unsigned threads, struct helm_err *err);

#endif
