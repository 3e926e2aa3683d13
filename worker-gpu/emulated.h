/* Inside the emulated device: its kernels, run by its compute thread.
 *
 * Shared by device_emulated.c (queues, memory, graphs) and emulated_kernels.c (arithmetic) only. "Device
 * memory" is host memory here, so kernels read and write addresses as they are. */
#ifndef HELM_WORKER_GPU_EMULATED_H
#define HELM_WORKER_GPU_EMULATED_H

#include "worker-cpu/kernel_set.h"
#include "worker-gpu/device.h"

#define EMULATED_ARGS_BYTES 384
#define EMULATED_QUERIES    32 /* query positions of one attention call */

/* The arithmetic's own state: the CPU's kernels that keep activations in fp32, and scratch that grows. */
struct emulated_math {
    const struct linear_variant *linear[DTYPE_COUNT];
    const struct vector_variant *vector;
    const struct attention_variant *attention[DTYPE_COUNT];
    struct {
        void *memory;
        size_t bytes;
    } scratch[6];
    bool no_memory; /* a scratch could not grow: the device has failed */
};
HELM_MUST_CHECK int emulated_math_open(struct emulated_math *math, struct helm_err *err);
void emulated_math_close(struct emulated_math *math);

typedef void emulated_run_fn(struct emulated_math *math, const void *args);
/* Puts run(args) into the compute queue (or into the graph being captured); args are copied. */
int emulated_enqueue(struct device *d, emulated_run_fn *run, const void *args, size_t bytes,
                     struct helm_err *err);

extern const struct device_kernels emulated_kernels;

#endif
