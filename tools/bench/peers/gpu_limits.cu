/* gpu_limits: how fast a GPU reads its own memory, and host memory over its link.
 *
 *   gpu_limits [--device N]
 *   nvcc -O3 -arch=native -o gpu_limits gpu_limits.cu
 *
 * Started by run_matrix.sh, which gives the numbers to helm-bench (--vram-read, --link-read). Prints one JSON
 * object:
 * {"device", "vram_read_gb_s", "link_read_gb_s", "h2d_copy_gb_s"}: medians of several passes over buffers
 * past the L2 cache; link_read is a kernel that reads pinned host memory itself, h2d_copy the copy engine.
 * Exit status: 0, 2 usage, 5 an error. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VRAM_BYTES ((size_t)2 << 30)
#define HOST_BYTES ((size_t)512 << 20)
#define PASSES     15
#define THREADS    512

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "gpu_limits: %s: %s\n", what, cudaGetErrorString(error));
    exit(5);
}

/* LOADS: of 16 bytes, in flight for each thread. The sum keeps the loads; it is stored where it has one
 * value, which it has not. */
template <int LOADS> __global__ void read_all(const uint4 *data, size_t count, unsigned *out)
{
    size_t step = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned sum = 0;
    for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
        uint4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++) v[k] = __ldcs(data + i + k * step);
#pragma unroll
        for (int k = 0; k < LOADS; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < count; i += step) sum += data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
    if (sum == 0x12345679u) *out = sum;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

enum pass { PASS_READ_4, PASS_READ_8, PASS_COPY };

static double measure(enum pass pass, void *to, const void *from, size_t bytes, int blocks, unsigned *out)
{
    float ms[PASSES];
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = -2; i < PASSES; i++) {
        check(cudaEventRecord(begin), "record");
        if (pass == PASS_READ_4)
            read_all<4><<<blocks, THREADS>>>((const uint4 *)from, bytes / sizeof(uint4), out);
        else if (pass == PASS_READ_8)
            read_all<8><<<blocks, THREADS>>>((const uint4 *)from, bytes / sizeof(uint4), out);
        else
            check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice), "copy");
        check(cudaEventRecord(end), "record");
        check(cudaGetLastError(), "launch");
        check(cudaEventSynchronize(end), "reading");
        if (i >= 0) check(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    check(cudaEventDestroy(begin), "event");
    check(cudaEventDestroy(end), "event");
    qsort(ms, PASSES, sizeof ms[0], compare);
    return (double)bytes / ms[PASSES / 2] * 1e-6;
}

int main(int argc, char **argv)
{
    int device = argc == 3 && strcmp(argv[1], "--device") == 0 ? atoi(argv[2]) : 0;
    if (argc != 1 && argc != 3) {
        fputs("usage: gpu_limits [--device N]\n", stderr);
        return 2;
    }
    struct cudaDeviceProp property;
    void *vram, *host;
    unsigned *out;
    check(cudaSetDevice(device), "device");
    check(cudaGetDeviceProperties(&property, device), "properties");
    check(cudaMalloc(&vram, VRAM_BYTES), "2 GiB of GPU memory");
    check(cudaMalloc((void **)&out, sizeof *out), "GPU memory");
    check(cudaMemset(vram, 0x5a, VRAM_BYTES), "memset");
    check(cudaMallocHost(&host, HOST_BYTES), "512 MiB of pinned memory");
    memset(host, 0x5a, HOST_BYTES);
    double best = 0;
    for (int per = 1; per <= 8;
         per++) { /* blocks for each multiprocessor, and loads: more is not always faster */
        double four = measure(PASS_READ_4, NULL, vram, VRAM_BYTES, per * property.multiProcessorCount, out);
        double eight = measure(PASS_READ_8, NULL, vram, VRAM_BYTES, per * property.multiProcessorCount, out);
        if (four > best) best = four;
        if (eight > best) best = eight;
    }
    double link = measure(PASS_READ_4, NULL, host, HOST_BYTES, property.multiProcessorCount, out);
    double copy = measure(PASS_COPY, vram, host, HOST_BYTES, 0, out);
    printf(
        "{\"device\": \"%s\", \"vram_read_gb_s\": %.1f, \"link_read_gb_s\": %.2f, \"h2d_copy_gb_s\": %.2f}\n",
        property.name, best, link, copy);
    check(cudaFreeHost(host), "free");
    check(cudaFree(vram), "free");
    return 0;
}
