/* helm-bench-kernels --packed: what packing weights gains, and what it costs at load and in decode. */
#ifndef HELM_TOOLS_BENCH_KERNELS_PACKED_H
#define HELM_TOOLS_BENCH_KERNELS_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Prints a table: of the model in `folder` each kind of bf16 matrix that a layer has, packed and read back by
 * one thread; with folder NULL N(0, scale) weights of a few scales, by one thread and by `threads` at
 * once, and then what bench_packed_gemv does. A matrix that does not come back bit for bit is
 * HELM_E_INTERNAL. */
HELM_MUST_CHECK int bench_packed(const char *folder, unsigned threads, struct helm_err *err);

/* Prints a table of one token's products with plain and packed random weights, in cache and from memory by
 * `threads`: called by bench_packed without a model. */
HELM_MUST_CHECK int bench_packed_gemv(unsigned threads, struct helm_err *err);

/* value[values] of N(0, scale), the same in every run. */
void bench_fill_normal(uint16_t *value, size_t values, double scale);

#endif
