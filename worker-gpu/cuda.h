/* Inside the CUDA device: what device_cuda.c (memory, streams, words, graphs) and cuda_kernels.c (launches)
 * share. Included by these two only. */
#ifndef HELM_WORKER_GPU_CUDA_H
#define HELM_WORKER_GPU_CUDA_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "worker-gpu/device.h"

typedef CUresult stream_word_fn(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);

struct cuda {
    struct device base;
    int ordinal;
    cudaStream_t stream[DEVICE_QUEUE_COUNT];
    struct gpuk_device caps;
    struct gpuk_matmul *matmul; /* and its plans */
    stream_word_fn *wait_value, *write_value;
    bool opened; /* a context is ours to end */
};

static inline struct cuda *cuda_of(struct device *d)
{
    return (struct cuda *)d;
}

extern const struct device_kernels cuda_kernels;

#endif
