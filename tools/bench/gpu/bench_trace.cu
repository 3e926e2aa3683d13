/* Where the blocks of a chain with experts are, operation by operation: the kernel of blocks over a cache of bf16 with a clock
 * read at each stamp (chain.cuh), in helm-bench-gpu-kernels --experts.
 *
 * Called by bench_experts.cu. Stamps are in shared memory until a block has counted itself in, so that no meeting waits for
 * them. */
#include <string.h>

#include <algorithm>

#include "tools/bench/gpu/bench.cuh"
#include "worker-gpu/kernels/chain_kernel.cuh"

static const uint32_t OPERATIONS_MAX = 512, STAMPS_BYTES = 256; /* of shared memory */
__device__ static uint32_t *trace_to;                           /* [block][OPERATIONS_MAX][CHAIN_STAMPS] */

/* T and A: chain_shape's TOGETHER and ASKING_LANES, of the shape S. */
template <typename S, uint32_t T, uint32_t A> struct chain_traced : S {
    static const uint32_t TOGETHER = T, ASKING_LANES = A;
    static __device__ __forceinline__ uint32_t *stamps()
    {
        __shared__ uint32_t stamp[CHAIN_STAMPS];
        return stamp;
    }
    static __device__ __forceinline__ void stamp(uint32_t which)
    {
        if (threadIdx.x == 0) stamps()[which] = (uint32_t)clock();
    }
    static __device__ __forceinline__ void stamps_out(uint32_t number)
    {
        if (threadIdx.x != 0 || number >= OPERATIONS_MAX) return;
        uint32_t *to = trace_to + ((size_t)blockIdx.x * OPERATIONS_MAX + number) * CHAIN_STAMPS;
#pragma unroll 1
        for (uint32_t i = 0; i < CHAIN_STAMPS; i++) to[i] = stamps()[i], stamps()[i] = 0;
    }
};
struct traced {
    uint32_t warps, together, lanes; /* warps: a block's that are launched */
    chain_function kernel;
};
#define TRACED(S, T, A)                                                                                      \
    {                                                                                                        \
        S::LAUNCHED / 32, T, A,                                                                              \
            chain_kernel<chain_traced<S, T, A>, decode_blocks, kv_plain<__nv_bfloat16>, true>                \
    }
static const traced kernels[] = {TRACED(chain_shaped, 2, 1), TRACED(chain_shaped, 2, 8),
                                 TRACED(chain_sparse_many_shaped, 1, 8),
                                 TRACED(chain_sparse_many_shaped, 2, 8)};

/* Microseconds from the stamp `from` to `to`, the mean over layers of those blocks where both are; below 0: nowhere. */
struct spans {
    const std::vector<uint32_t> &stamp;
    uint32_t each, layers;
    double ghz;
    double operator()(uint32_t block, uint32_t operation, int from, int to) const
    {
        double sum = 0;
        uint32_t count = 0;
        for (uint32_t l = 1; l < layers; l++) { /* the first layer's caches are cold */
            const uint32_t *s =
                &stamp[((size_t)block * OPERATIONS_MAX + l * each + operation) * CHAIN_STAMPS];
            if (s[from] && s[to]) sum += s[to] - s[from], count++;
        }
        return count ? sum / count / ghz * 1e-3 : -1;
    }
};

static void trace_one(struct bench *b, const struct gpuk_chain *c, const traced *kernel,
                      const char *const *names, uint32_t each)
{
    const size_t bytes = (size_t)c->blocks * OPERATIONS_MAX * CHAIN_STAMPS * 4;
    uint32_t *to;
    int khz;
    CUDA(cudaMalloc((void **)&to, bytes));
    CUDA(cudaMemset(to, 0, bytes));
    CUDA(cudaMemcpyToSymbol(trace_to, &to, sizeof to));
    CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    GPUK(gpuk_prepare("traced chain", kernel->kernel, b->device.shared_bytes_max - STAMPS_BYTES, &err));
    const struct chain_params p = {(unsigned char *)(uintptr_t)c->list,
                                   c->count,
                                   c->meetings,
                                   c->linears,
                                   c->slots,
                                   c->askers,
                                   c->pitch,
                                   c->region_bytes,
                                   c->norm_bytes};
    const double seconds = bench_time_graph(b, 2, [&] {
        GPUK(gpuk_launch("traced chain", kernel->kernel, dim3(c->blocks), dim3(c->warps * 32),
                         c->shared_bytes, GPUK_TOGETHER, b->stream, &err, p));
    });
    std::vector<uint32_t> stamp(bytes / 4);
    CUDA(cudaMemcpy(stamp.data(), to, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(to));
    const spans us = {stamp, each, (c->count - 1) / each, khz * 1e-6};
    printf("traced chain of %u x %u, %u rows, %u warps, %u tiles at once, %u lanes ask: %.1f us; us by the "
           "clock of "
           "%.2f GHz, mean of layers\n",
           c->slots, c->pitch, c->rows, c->warps, kernel->together, kernel->lanes, seconds * 1e6, khz * 1e-6);
    printf("%-10s %5s %7s %7s %7s %7s %7s %7s %7s %7s %7s\n", "operation", "block", "wait", "x", "to rows",
           "1st tile", "tiles", "others", "store", "arrive", "all");
    for (uint32_t o = 0; o < each; o++)
        for (const uint32_t block : {0u, c->blocks - 1}) {
            printf("%-10s %5u", names[o], block);
            for (int s = CHAIN_BEGINS; s < CHAIN_ARRIVED; s++) {
                double t = us(block, o, s, s + 1);
                if (t < 0 && s == CHAIN_WAITED) t = us(block, o, s, CHAIN_STORED); /* has no rows */
                if (t < 0)
                    printf(" %7s", "-");
                else
                    printf(" %7.2f", t);
            }
            printf(" %7.2f\n", us(block, o, CHAIN_BEGINS, CHAIN_ARRIVED));
        }
}

void bench_trace(struct bench *b, struct bench_model *m, const char *const *names, uint32_t each)
{
    const struct gpuk_chain *c = &m->chain;
    if (c->variant != CHAIN_BLOCKS * KV_DTYPE_COUNT + KV_BF16 || !c->sparse || c->count > OPERATIONS_MAX ||
        c->shared_bytes + STAMPS_BYTES > (size_t)b->device.shared_bytes_max)
        return; /* no such kernel, or no room */
    for (const traced &kernel : kernels)
        if (kernel.warps == c->warps && (kernel.together == 2 || c->rows == 2))
            trace_one(b, c, &kernel, names, each);
}
