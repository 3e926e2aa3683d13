/* The kernel that reads a run of memory, of VRAM (bench_kernels.cu) and of host memory over the link (bench_direct.cu).
 *
 * Apart from bench.cuh, which is host code for most that include it. */
#ifndef HELM_TOOLS_BENCH_GPU_BENCH_READ_CUH
#define HELM_TOOLS_BENCH_GPU_BENCH_READ_CUH

#include <stddef.h>
#include <stdint.h>

/* Reads count words of 16 bytes, each thread AHEAD of them at once; the sum goes to *sink once in four billion times, so that the
 * compiler keeps the loads. Blocks of 512 threads at most. */
template <int AHEAD>
__global__ static void __launch_bounds__(512) bench_read(const uint4 *p, size_t count, uint32_t *sink)
{
    uint32_t sum = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (AHEAD - 1) * step < count; i += AHEAD * step) {
        uint4 v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) v[j] = __ldcs(p + i + j * step);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x12345678u) *sink = sum;
}

#endif
