/* Which kernel variant serves each operation: chosen once at load, named in READY.
 *
 * Called by engine.c. Pure data; points into the static tables of kernels.h and attention.h. */
#ifndef HELM_WORKER_CPU_KERNEL_SET_H
#define HELM_WORKER_CPU_KERNEL_SET_H

#include "worker-cpu/attention.h"
#include "worker-cpu/kernels.h"
#include "worker-cpu/kernels/packed_kernels.h"

struct kernel_set {
    const struct linear_variant *linear[DTYPE_COUNT]; /* by weight dtype */
    const struct vector_variant *vector;
    const struct attention_variant *attention;
    const struct packed_kernels *packed; /* NULL: packed weights are not for this processor */
};

/* name "" or NULL: the fastest for `features`. A name: that variant for each operation and dtype that has one
 * so called, the fastest for the others; a name that no operation knows, or that this CPU cannot run, is an
 * error. */
HELM_MUST_CHECK int kernel_set_choose(unsigned features, const char *name, enum dtype kv_dtype,
                                      struct kernel_set *set, struct helm_err *err);

/* HELM_E_UNSUPPORTED names what this processor lacks to compute with packed weights. */
HELM_MUST_CHECK int kernel_set_need_packed(const struct kernel_set *set, unsigned features,
                                           struct helm_err *err);

/* "bf16 avx512-bf16 vector avx512 attention avx512", with the dtypes of `used` (bit per enum dtype), and what
 * packed weights are read with where `packed`. */
const char *kernel_set_text(const struct kernel_set *set, unsigned used, bool packed, char *text,
                            size_t size);

#endif
