/* The streamed kernel of linear layers for 2 to 16 tokens, as gemm_small.cu chooses it.
 *
 * Included by gemm_small.cu and gemm_stream.cu. */
#ifndef HELM_WORKER_GPU_KERNELS_GEMM_STREAM_CUH
#define HELM_WORKER_GPU_KERNELS_GEMM_STREAM_CUH

#include "worker-gpu/kernels/linear.cuh"

/* Where gpuk_gemm_streams. counters: GPUK_LINEAR_COUNTER_BYTES, zero; sums: gpuk_linear_sums_bytes. */
int gpuk_gemm_stream(const struct gpuk_device *device, enum dtype dtype, const struct linear_params *params,
                     uint32_t tokens, const uint32_t *count, uint32_t *counters, float *sums, uint32_t flags,
                     void *stream, struct helm_err *err);
int gpuk_prepare_gemm_stream(const struct gpuk_device *device, struct helm_err *err);

#endif
