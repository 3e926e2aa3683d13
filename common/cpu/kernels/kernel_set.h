/* Which kernels serve each operation: chosen once at load, named in READY.
 *
 * Called by engine.c. Pure data; points into the static tables of linear.h, vector.h and attention.h. */
#pragma once

#include "common/cpu/kernels/attention.h"
#include "common/cpu/kernels/linear.h"
#include "common/cpu/kernels/vector.h"

struct kernel_set {
    struct linear_set linear[LINEAR_INPUTS][FORMAT_COUNT]; /* INT8: where a format has none, EXACT's */
    const struct vector_variant *vector;
    const struct attention_variant *attention;
};

/* name "" or NULL: the fastest for `features`. A name: that kernel for each operation and format that has one
 * so called, the fastest for the others; a name that no operation knows, or that this CPU cannot run, is an
 * error. */
HELM_MUST_CHECK int kernel_set_choose(unsigned features, const char *name, enum kv_dtype kv_dtype,
                                      struct kernel_set *set, struct helm_err *err);

/* Leaves only the steady kernels of several tokens (linear.h), whose bits do not depend on the number of
 * tokens: for invariant plans. HELM_E_UNSUPPORTED where a kernel has no steady form. */
HELM_MUST_CHECK int kernel_set_steady(struct kernel_set *set, struct helm_err *err);

/* HELM_E_UNSUPPORTED names what this processor lacks to compute with the formats of `used`. */
HELM_MUST_CHECK int kernel_set_need(const struct kernel_set *set, unsigned used, unsigned features,
                                    struct helm_err *err);

/* Whether some format of `used` has kernels of INT8. */
bool kernel_set_has_int8(const struct kernel_set *set, unsigned used);

/* "bf16 avx512-bf16 vector avx512 attention avx512", with the formats of `used`; of one that is decoded also
 * by what: "bf16-packed avx512-vbmi2+avx512-bf16"; with kernels of INT8 one token's, then several tokens':
 * "q4_k int8 avx512-vnni avx512-bf16+amx-bf16". */
const char *kernel_set_text(const struct kernel_set *set, enum linear_inputs inputs, unsigned used,
                            char *text, size_t size);
