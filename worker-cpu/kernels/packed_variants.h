/* What each file of packed kernels exports to the table of packed_kernels.c. Nothing else includes this but
 * those. */
#ifndef HELM_WORKER_CPU_KERNELS_PACKED_VARIANTS_H
#define HELM_WORKER_CPU_KERNELS_PACKED_VARIANTS_H

#include "common/cpu.h"
#include "worker-cpu/kernels/packed_kernels.h"

extern const struct packed_kernels packed_ref;
extern const struct packed_kernels packed_avx512vbmi2;

#endif
