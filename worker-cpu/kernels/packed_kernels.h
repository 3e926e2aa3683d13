/* One token's products with packed weights (common/packed.h), and unpacking for those of several tokens.
 *
 * Called by worker-cpu/linear.c through the choice made at start (kernel_set.c), by tests and benchmarks.
 * Kernels are pure, allocate nothing, and trust groups: the same process packed them or its sibling did.
 * Groups have rows <= PACKED_ROWS; cols is a multiple of PACKED_CPU_COLS, so that half a tile never has two
 * rows. */
#ifndef HELM_WORKER_CPU_KERNELS_PACKED_KERNELS_H
#define HELM_WORKER_CPU_KERNELS_PACKED_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cpu.h"
#include "common/packed.h"

struct gemv_reads; /* worker-cpu/kernels.h */

struct packed_kernels {
    const char *name;  /* "avx512-vbmi2" */
    unsigned features; /* enum cpu_feature bits it needs */
    /* x[cols] in the order in which gemv reads it, to split[cols]; 64-byte aligned; once for all groups */
    void (*split)(float *split, const float *x, uint32_t cols);
    /* y[r] = sum_c w[r][c] * x[c] of one group's rows, sums in fp32. `reads`: what the thread reads after
     * this group, and whether to fetch into the L2 too; the distances are the kernel's own. NULL: neither. */
    void (*gemv)(float *y, const void *group, uint32_t rows, uint32_t cols, const float *split,
                 const struct gemv_reads *reads);
    /* the group's values, row-major; value 64-byte aligned */
    void (*unpack)(uint16_t *value, const void *group, uint32_t rows, uint32_t cols);
};

/* All that are compiled in, slowest first; the first is the plain reference, for tests. */
const struct packed_kernels *const *packed_kernels_all(size_t *count);
/* The fastest that `features` allows beside the reference; NULL: this processor has none, and packed weights
 * are not for its CPU worker. */
const struct packed_kernels *packed_kernels_choose(unsigned features);
/* Whether it would be another than NULL: for who plans and has no kernels. */
#define PACKED_CPU_FEATURES (CPU_AVX512 | CPU_AVX512_VBMI2)
static inline bool packed_cpu_can(unsigned features)
{
    return !(PACKED_CPU_FEATURES & ~features);
}

#endif
