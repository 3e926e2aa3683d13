/* helm-bench-gpu-kernels --direct: how fast kernels read host memory over the link, by what they read it with, beside the copy
 * engine; each alone and while the CPU reads its memory with all of its threads.
 *
 * Three ways: loads of 16 bytes a lane, bulk copies of runs of some bytes into shared memory (as experts' kernels read rows),
 * and one token's experts themselves. Host memory lies on huge pages where the system gives them and is registered, as the
 * arena is. Rates are of bytes asked for. Prices of direct reads are these (daemon/planner/cost/rates.c). */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tools/bench/gpu/bench.cuh"
#include "tools/bench/gpu/bench_read.cuh"
#include "worker-gpu/kernels/device.cuh"
#include "worker-gpu/kernels/experts.h"

static const size_t HOST = (size_t)2 << 30, PART = (size_t)48 << 20; /* bytes; of one measurement */
static const uint32_t THREADS = 512, WARPS = THREADS / 32, SHARED = 64 << 10;

/* Warps take runs of `bytes` in turn, `slots` of them on their way. */
__global__ static void __launch_bounds__(THREADS)
    direct_bulk(const unsigned char *p, uint32_t bytes, uint32_t runs, uint32_t slots)
{
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ uint64_t barriers[WARPS][16];
    const uint32_t warp = threadIdx.x >> 5, own = shared_address(ring) + warp * slots * bytes,
                   barrier = shared_address(barriers[warp]), all = gridDim.x * WARPS;
    if ((threadIdx.x & 31) != 0) return;
    bulk_barriers_open(barrier, slots);
    uint32_t asked = blockIdx.x * WARPS + warp, slot = 0, parity = 0;
    const auto ask = [&](uint32_t into) {
        if (asked >= runs) return;
        bulk_expect(barrier + 8 * into, bytes);
        bulk_copy(own + into * bytes, p + (size_t)asked * bytes, bytes, barrier + 8 * into);
        asked += all;
    };
    for (uint32_t s = 0; s < slots; s++) ask(s);
    for (uint32_t run = blockIdx.x * WARPS + warp; run < runs; run += all) {
        bulk_wait(barrier + 8 * slot, parity);
        ask(slot);
        if (++slot == slots) slot = 0, parity ^= 1;
    }
}

/* ---- the CPU beside it ---- */

struct neighbours {
    std::vector<std::thread> thread;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> bytes{0};
    std::vector<uint64_t> memory;
};

static void read_on(struct neighbours *n, uint32_t index, uint32_t count)
{
    const size_t words = n->memory.size() / count, piece = 1 << 15;
    const uint64_t *at = n->memory.data() + index * words;
    uint64_t sum[8] = {0};
    for (size_t i = 0; !n->stop.load(std::memory_order_relaxed); i = i + 2 * piece <= words ? i + piece : 0) {
        for (size_t k = i; k + 8 <= i + piece; k += 8)
            for (int j = 0; j < 8; j++) sum[j] += at[k + j];
        n->bytes += piece * 8;
    }
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    if (sum[0] == 1) n->bytes++; /* it is used */
}

/* ---- rows ---- */

struct direct {
    struct bench *b;
    char *host, *device;
    uint32_t *sink;
    struct neighbours *beside; /* NULL: alone */
};

/* Pieces go round host memory, so that no cache has them. */
static void row(struct direct *d, const char *what, size_t bytes,
                const std::function<void(const char *)> &read)
{
    size_t at = 0;
    const auto next = [&] {
        read(d->host + at);
        at = at + 3 * PART <= HOST ? at + PART : 0; /* experts take up to two parts */
    };
    const auto now = [] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
    next();
    CUDA(cudaStreamSynchronize(d->b->stream));
    const double begin = now();
    const uint64_t before = d->beside ? d->beside->bytes.load() : 0;
    const double s = bench_time(d->b, 4, next);
    printf("%-6s %-34s %9.1f us %6.1f GB/s", d->beside ? "beside" : "alone", what, s * 1e6, bytes / s / 1e9);
    if (d->beside)
        printf("   CPU %6.1f GB/s", (double)(d->beside->bytes.load() - before) / (now() - begin) / 1e9);
    printf("\n");
}

static void ways(struct direct *d)
{
    const uint32_t sms = (uint32_t)d->b->device.sm_count;
    char what[64];
    row(d, "copy engine", PART, [&](const char *from) {
        CUDA(cudaMemcpyAsync(d->device, from, PART, cudaMemcpyHostToDevice, d->b->stream));
    });
    for (const uint32_t blocks : {4u, 8u, 16u, 32u, 64u, sms}) {
        snprintf(what, sizeof what, "loads, %u blocks", blocks);
        row(d, what, PART, [&](const char *from) {
            bench_read<4><<<blocks, THREADS, 0, d->b->stream>>>((const uint4 *)from, PART / 16, d->sink);
        });
    }
    for (const uint32_t bytes : {432u, 864u, 1152u, 2304u, 4096u, 16384u})
        for (const uint32_t blocks : {8u, 32u, sms}) {
            uint32_t slots = SHARED / (WARPS * bytes);
            slots = slots < 1 ? 1 : slots > 2 ? 2 : slots;
            const uint32_t shared = WARPS * slots * bytes;
            if (shared > (uint32_t)d->b->device.shared_bytes_max) continue;
            CUDA(cudaFuncSetAttribute((const void *)direct_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared));
            snprintf(what, sizeof what, "bulk, %u blocks, %u of %u bytes", blocks, slots, bytes);
            const uint32_t runs = (uint32_t)(PART / bytes);
            row(d, what, (size_t)runs * bytes, [&](const char *from) {
                direct_bulk<<<blocks, THREADS, shared, d->b->stream>>>((const unsigned char *)from, bytes,
                                                                       runs, slots);
            });
        }
    CUDA(cudaGetLastError());
}

/* One token's experts of Qwen3-30B-A3B's shape, `there` of them in host memory and the others nowhere. */
static void experts(struct direct *d)
{
    static const uint32_t ROWS = 768, HIDDEN = 2048, EXPERTS = 16, CHOSEN = 8;
    static const enum tensor_format formats[] = {FORMAT_Q4_K, FORMAT_Q6_K, FORMAT_BF16};
    float *x;
    uint32_t *id;
    CUDA(cudaMalloc((void **)&x, 1 << 20));
    CUDA(cudaMemset(x, 0, 1 << 20));
    CUDA(cudaMalloc((void **)&id, 4096));
    float *const act = x + HIDDEN, *const out = act + CHOSEN * ROWS;
    float *const weight = (float *)(id + 64);
    uint32_t *const slot = id + 128;
    char what[64];
    for (const enum tensor_format format : formats)
        for (const uint32_t there : {1u, 2u, 3u, 8u}) {
            uint32_t ids[CHOSEN], slots[EXPERTS];
            for (uint32_t j = 0; j < CHOSEN; j++) ids[j] = j;
            for (uint32_t e = 0; e < EXPERTS; e++)
                slots[e] = e < there ? GPUK_SLOT_HOST | e : GPUK_SLOT_ABSENT;
            CUDA(cudaMemcpy(id, ids, sizeof ids, cudaMemcpyHostToDevice));
            CUDA(cudaMemcpy(slot, slots, sizeof slots, cudaMemcpyHostToDevice));
            const size_t stride = tensor_format_bytes(format, ROWS, HIDDEN);
            const struct gpuk_choice choice = {CHOSEN, id, weight};
            const auto role = [&](const char *from, uint32_t rows, uint32_t cols, uint32_t number) {
                const struct gpuk_experts e = {format, EXPERTS, rows,
                                               cols,   slot,    d->device,
                                               stride, nullptr, from + (size_t)number * there * stride};
                return e;
            };
            snprintf(what, sizeof what, "%s, %u experts: gates, ups", tensor_format_name(format), there);
            row(d, what, 2 * there * stride, [&](const char *from) {
                struct gpuk_experts_glu a = {};
                a.gate = role(from, ROWS, HIDDEN, 0), a.up = role(from, ROWS, HIDDEN, 1), a.choice = choice;
                a.x = x, a.x_stride = HIDDEN, a.act = act;
                GPUK(gpuk_experts_glu(&d->b->device, &a, 1, nullptr, nullptr, 0, d->b->stream, &err));
            });
            snprintf(what, sizeof what, "%s, %u experts: downs", tensor_format_name(format), there);
            row(d, what, there * stride, [&](const char *from) {
                struct gpuk_experts_down a = {};
                a.down = role(from, HIDDEN, ROWS, 2), a.choice = choice, a.act = act,
                a.residual = a.out = out;
                a.out_stride = HIDDEN;
                GPUK(gpuk_experts_down(&d->b->device, &a, 1, nullptr, nullptr, 0, d->b->stream, &err));
            });
        }
    CUDA(cudaFree(x));
    CUDA(cudaFree(id));
}

void bench_direct(struct bench *b)
{
    struct direct d = {};
    struct neighbours n;
    if (!b->device.bulk_copy) {
        printf("--direct: this device has no bulk copies\n");
        return;
    }
    d.b = b;
    d.host = (char *)mmap(NULL, HOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (d.host == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    (void)madvise(d.host, HOST, MADV_HUGEPAGE); /* as the arena's are; without, rates say so */
    memset(d.host, 0, HOST);
    CUDA(cudaHostRegister(d.host, HOST, cudaHostRegisterMapped));
    CUDA(cudaMalloc((void **)&d.device, PART));
    CUDA(cudaMalloc((void **)&d.sink, 4));
    n.memory.resize(HOST / 8);
    const uint32_t threads = std::max(2u, std::thread::hardware_concurrency()) - 1;
    for (const bool beside : {false, true}) {
        if (beside) {
            d.beside = &n;
            for (uint32_t i = 0; i < threads; i++) n.thread.emplace_back(read_on, &n, i, threads);
            usleep(200000);
            const uint64_t before = n.bytes;
            usleep(200000);
            printf("the CPU's %u threads alone read %.1f GB/s\n", threads, (n.bytes - before) / 0.2 / 1e9);
        }
        ways(&d);
        experts(&d);
    }
    n.stop = true;
    for (std::thread &t : n.thread) t.join();
    CUDA(cudaHostUnregister(d.host));
    munmap(d.host, HOST);
    CUDA(cudaFree(d.device));
    CUDA(cudaFree(d.sink));
}
