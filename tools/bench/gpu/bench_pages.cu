/* helm-bench-gpu-kernels --pages: how fast kernels read pages of the KV cache that lie in host memory, by how they ask for
 * them, and what they cost others meanwhile.
 *
 * Pages lie as the arena's do: a layer's part of a page is 128 KiB, in runs of 8 KiB for each head's keys and values, and the
 * next layer's lies behind it; pages are taken in no order. Host memory is registered, on huge pages unless the row says
 * otherwise. Ways: instructions of a warp that read 32, 64 or 512 neighbouring bytes (`lines`: each tile's lines are asked into
 * the L2 a tile earlier), asynchronous and bulk copies; then decode attention itself. Beside: copies by the copy engine, a
 * kernel that reads VRAM, threads that read host memory. Rates are of bytes asked for, in GB/s. */
#include <math.h>
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

static const uint32_t LAYERS = 36, HEADS = 8, HEAD_DIM = 128, PAGE = 32, TILE = 4096,
                      TILES = 32; /* of a page's layer */
static const uint32_t HOST_PAGES = 832, SMALL_PAGES = 208,
                      READ_PAGES = 128; /* pools; pages of a reading: 4,096 positions */
static const size_t LAYER = (size_t)TILE * TILES, STRIDE = LAYER * LAYERS;
static const uint32_t VRAM_BYTES = 256u << 20, COPY_BYTES = 4u << 20;

enum way { WAY_32, WAY_64, WAY_512, WAY_64_LINES, WAY_32_LINES, WAY_ASYNC, WAY_BULK, WAYS };
static const char *const way_names[WAYS] = {
    "loads of 32",        "loads of 64", "loads of 512", "loads of 64, lines",
    "loads of 32, lines", "async",       "bulk"};

struct reading {
    const unsigned char *pool; /* a layer's part of page 0 */
    const uint32_t *page;      /* [READ_PAGES] */
    uint64_t stride;
    uint32_t tiles, slots; /* bulk: tiles in flight of a block */
    uint32_t *sink;
};

/* Tile i of the reading. Blocks of one head (heads: blocks are a multiple of 8) read its runs alone, as attention does. */
__device__ static const unsigned char *tile_at(const reading &r, bool heads, uint32_t i)
{
    const uint32_t head = blockIdx.x % HEADS;
    const uint32_t page = heads ? i / (TILES / HEADS) : i / TILES;
    const uint32_t in = i - page * (heads ? TILES / HEADS : TILES);
    const uint32_t at = heads ? (in / 2 * HEADS + head) * 2 + in % 2 : in;
    return r.pool + r.page[page] * r.stride + at * TILE;
}

__device__ static void lines_ask(const unsigned char *tile)
{
    ask_l2(tile + (threadIdx.x & 31) * 128);
}

/* A tile as the way's instructions read it: 8 rows of 128 or 256 bytes at once, or 512 bytes. */
template <int WAY> __device__ static void tile_load(uint4 to[8], const unsigned char *tile)
{
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        if (WAY == WAY_32 || WAY == WAY_32_LINES) {
            const unsigned char *at = tile + k / 2 * 1024 + lane / 4 * 128 + k % 2 * 64 + lane % 4 * 8;
            const uint2 low = __ldcg(reinterpret_cast<const uint2 *>(at)),
                        high = __ldcg(reinterpret_cast<const uint2 *>(at + 32));
            to[k] = make_uint4(low.x, low.y, high.x, high.y);
        } else {
            const uint32_t at = WAY == WAY_512 ? k * 512 + lane * 16
                                               : k / 4 * 2048 + lane / 4 * 256 + k % 4 * 64 + lane % 4 * 16;
            to[k] = __ldcg(reinterpret_cast<const uint4 *>(tile + at));
        }
    }
}

template <int WAY> __global__ static void __launch_bounds__(512) pages_read(const __grid_constant__ reading r)
{
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ uint64_t barriers[32];
    const bool heads = gridDim.x % HEADS == 0;
    const uint32_t lane = threadIdx.x & 31, warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const uint32_t tiles = heads ? r.tiles / HEADS : r.tiles;
    const uint32_t first = (heads ? blockIdx.x / HEADS : blockIdx.x) * warps + warp;
    const uint32_t step = (heads ? gridDim.x / HEADS : gridDim.x) * warps;
    uint32_t sum = 0;
    if (WAY == WAY_BULK) {
        const uint32_t mine = r.slots / warps, barrier = shared_address(barriers + warp * mine),
                       own = shared_address(ring) + warp * mine * TILE;
        if (lane != 0) return;
        bulk_barriers_open(barrier, mine);
        uint32_t asked = first, slot = 0, parity = 0;
        const auto ask = [&](uint32_t s) {
            if (asked >= tiles) return;
            bulk_expect(barrier + 8 * s, TILE);
            bulk_copy(own + s * TILE, tile_at(r, heads, asked), TILE, barrier + 8 * s);
            asked += step;
        };
        for (uint32_t s = 0; s < mine; s++) ask(s);
        for (uint32_t i = first; i < tiles; i += step) {
            bulk_wait(barrier + 8 * slot, parity);
            ask(slot);
            if (++slot == mine) slot = 0, parity ^= 1;
        }
        return;
    }
    if ((WAY == WAY_64_LINES || WAY == WAY_32_LINES) && first < tiles) lines_ask(tile_at(r, heads, first));
    uint4 v[8] = {};
    for (uint32_t i = first; i < tiles; i += step) {
        const unsigned char *tile = tile_at(r, heads, i);
        if ((WAY == WAY_64_LINES || WAY == WAY_32_LINES) && i + step < tiles)
            lines_ask(tile_at(r, heads, i + step));
        if constexpr (WAY == WAY_ASYNC) {
#pragma unroll
            for (uint32_t k = 0; k < 8; k++)
                copy16_async(shared_address(ring) + (warp * 2 + i / step % 2) * TILE + k * 512 + lane * 16,
                             tile + k * 512 + lane * 16, true);
            copies_commit();
            copies_wait<1>();
        } else {
            uint4 now[8];
            tile_load<WAY>(now, tile);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w, v[k] = now[k];
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    if (sum == 0x12345678u) *r.sink = sum;
}

typedef void (*read_kernel)(reading);
static const read_kernel kernels[WAYS] = {pages_read<WAY_32>,       pages_read<WAY_64>,
                                          pages_read<WAY_512>,      pages_read<WAY_64_LINES>,
                                          pages_read<WAY_32_LINES>, pages_read<WAY_ASYNC>,
                                          pages_read<WAY_BULK>};

/* ---- beside it ---- */

enum beside { BESIDE_NOTHING, BESIDE_COPIES, BESIDE_VRAM, BESIDE_CPU, BESIDES };
static const char *const beside_names[BESIDES] = {"", "copies", "VRAM read", "CPU"};

struct pages {
    struct bench *b;
    unsigned char *host, *small;
    char *device;                /* VRAM_BYTES */
    uint32_t *page, *page_small; /* in VRAM: of all pools' pages, in no order */
    uint32_t *sink;
    cudaStream_t other;
    std::vector<cudaEvent_t> event;
    std::vector<std::thread> thread;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> cpu_bytes{0};
    std::vector<uint64_t> memory;
    uint32_t next; /* layer and pages of the next reading: no cache has them */
};

static double seconds_now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void cpu_read(struct pages *p, uint32_t index, uint32_t count)
{
    const size_t words = p->memory.size() / count, piece = 1 << 15;
    const uint64_t *at = p->memory.data() + index * words;
    uint64_t sum[8] = {0};
    for (size_t i = 0; !p->stop.load(std::memory_order_relaxed); i = i + 2 * piece <= words ? i + piece : 0) {
        for (size_t k = i; k + 8 <= i + piece; k += 8)
            for (int j = 0; j < 8; j++) sum[j] += at[k + j];
        p->cpu_bytes += piece * 8;
    }
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    if (sum[0] == 1) p->cpu_bytes++;
}

/* One launch of what reads VRAM, or one copy: bytes of it. */
static double other_ask(struct pages *p, enum beside beside, uint32_t i)
{
    if (beside == BESIDE_VRAM) {
        bench_read<4><<<p->b->device.sm_count * 2, 512, 0, p->other>>>((const uint4 *)p->device,
                                                                       VRAM_BYTES / 16, p->sink);
        return VRAM_BYTES;
    }
    CUDA(cudaMemcpyAsync(p->device + (size_t)i * COPY_BYTES % VRAM_BYTES,
                         p->host + (size_t)(i * 7 + 3) * COPY_BYTES % (HOST_PAGES * STRIDE - COPY_BYTES),
                         COPY_BYTES, cudaMemcpyHostToDevice, p->other));
    return COPY_BYTES;
}

/* Rate of `read`, which reads `bytes`, and of what goes on beside it in that time. */
static void pages_row(struct pages *p, enum beside beside, const char *what, double bytes,
                      const std::function<void()> &read)
{
    const int TIMES = 12;
    const bool others = beside == BESIDE_COPIES || beside == BESIDE_VRAM;
    read();
    CUDA(cudaStreamSynchronize(p->b->stream));
    double each = 0, done = 0;
    const double before = seconds_now();
    const uint64_t cpu_before = p->cpu_bytes;
    if (others)
        for (size_t i = 0; i < p->event.size(); i++) {
            each = other_ask(p, beside, (uint32_t)i);
            CUDA(cudaEventRecord(p->event[i], p->other));
        }
    float ms;
    if (others) CUDA(cudaStreamWaitEvent(p->b->stream, p->event[0]));
    CUDA(cudaEventRecord(p->b->begin, p->b->stream));
    for (int i = 0; i < TIMES; i++) read();
    CUDA(cudaEventRecord(p->b->end, p->b->stream));
    CUDA(cudaStreamSynchronize(p->b->stream));
    for (size_t i = 1; others && i < p->event.size(); i++) {
        float at;
        CUDA(cudaEventSynchronize(p->event[i]));
        CUDA(cudaEventElapsedTime(&at, p->event[i], p->b->end));
        if (at >= 0) done += each;
    }
    CUDA(cudaEventElapsedTime(&ms, p->b->begin, p->b->end));
    const double seconds = ms * 1e-3, cpu = (p->cpu_bytes - cpu_before) / (seconds_now() - before);
    printf("%-44s %7.1f us %6.1f GB/s", what, seconds / TIMES * 1e6, bytes * TIMES / seconds / 1e9);
    if (others)
        printf("   %s %7.1f%s", beside_names[beside], done / seconds / 1e9,
               done >= each * (p->event.size() - 1) ? " (ended early)" : "");
    if (beside == BESIDE_CPU) printf("   CPU %6.1f", cpu / 1e9);
    printf("\n");
}

static reading reading_of(struct pages *p, bool small)
{
    const uint32_t there = small ? SMALL_PAGES : HOST_PAGES, n = p->next++;
    reading r = {};
    r.pool = (small ? p->small : p->host) + (n * 5 % LAYERS) * LAYER;
    r.page = (small ? p->page_small : p->page) + n * READ_PAGES % (there - READ_PAGES);
    r.stride = STRIDE, r.tiles = READ_PAGES * TILES, r.sink = p->sink;
    return r;
}

static void raw_row(struct pages *p, enum beside beside, enum way way, uint32_t blocks, uint32_t flight,
                    bool small)
{
    char what[96];
    const uint32_t warps = way == WAY_BULK ? std::min(4u, flight / TILE) : flight / TILE,
                   shared = way == WAY_BULK    ? flight
                            : way == WAY_ASYNC ? 2 * flight
                                               : 0;
    snprintf(what, sizeof what, "%s%s, %u blocks of %u KiB", small ? "small pages: " : "", way_names[way],
             blocks, flight >> 10);
    pages_row(p, beside, what, (double)READ_PAGES * LAYER, [&] {
        reading r = reading_of(p, small);
        r.slots = flight / TILE;
        kernels[way]<<<blocks, warps * 32, shared, p->b->stream>>>(r);
    });
    CUDA(cudaGetLastError());
}

/* ---- attention ---- */

struct attending {
    struct gpuk_attention a;
    uint32_t *step; /* counts, token, position, row, first, slot, table */
    float *out;
    void *workspace;
};

static void attention_row(struct pages *p, struct attending *t, enum beside beside, uint32_t dtype,
                          uint32_t host, uint32_t near)
{
    const uint32_t table_at = 64, pages = (host + near) / PAGE;
    const uint32_t row_first[] = {0, 1};
    std::vector<uint32_t> words(table_at + pages), order(HOST_PAGES);
    struct gpuk_attention &a = t->a;
    CUDA(cudaMemcpy(order.data(), p->page, HOST_PAGES * 4, cudaMemcpyDeviceToHost));
    words[0] = words[1] = words[2] = 1;
    words[9] = host + near - 1;
    memcpy(&words[16], row_first, sizeof row_first);
    for (uint32_t i = 0; i < pages; i++)
        words[table_at + i] = i < host / PAGE
                                  ? order[(i + p->next * READ_PAGES) % HOST_PAGES] | GPUK_PAGE_HOST
                                  : i - host / PAGE;
    p->next++;
    CUDA(cudaMemcpy(t->step, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
    a.step = {t->step,      t->step + 8,  t->step + 9,        t->step + 10, t->step + 16,
              t->step + 24, t->step + 32, t->step + table_at, pages,        NULL};
    a.kv.layout = {LAYERS, HEADS, HEAD_DIM, PAGE, dtype};
    a.kv.pool = p->device;
    a.kv.host_stride = kv_page_bytes(&a.kv.layout);
    const double bytes = (double)host / PAGE * kv_layer_bytes(&a.kv.layout);
    char what[96];
    snprintf(what, sizeof what, "attention, %s, %u in host memory, %u", kv_dtype_name((enum kv_dtype)dtype),
             host, near);
    pages_row(p, beside, what, bytes, [&] {
        a.kv.layer = p->next++ % LAYERS;
        a.kv.pool_host = p->host + a.kv.layer * kv_layer_bytes(&a.kv.layout);
        a.kv.layer = 0; /* VRAM has few pages here: all layers' lie there alike */
        GPUK(gpuk_attention_decode(&p->b->device, &a, 1, true, t->out, NULL, NULL, t->workspace, 0,
                                   p->b->stream, &err));
    });
}

static void attention_rows(struct pages *p)
{
    struct attending t = {};
    float *memory;
    const uint32_t heads = 32, floats = heads * HEAD_DIM;
    CUDA(cudaMalloc((void **)&memory, 1 << 20));
    CUDA(cudaMemset(memory, 0, 1 << 20));
    CUDA(cudaMalloc((void **)&t.step, 65536));
    const size_t bytes = gpuk_attention_workspace_bytes(1, heads, HEAD_DIM);
    CUDA(cudaMalloc(&t.workspace, bytes));
    CUDA(cudaMemset(t.workspace, 0, bytes));
    t.a.heads = heads, t.a.scale = 1 / sqrtf((float)HEAD_DIM), t.a.eps = 1e-6f;
    t.a.rope_table = memory, t.a.q = memory + HEAD_DIM, t.a.k = t.a.q + floats,
    t.a.v = t.a.k + HEADS * HEAD_DIM;
    t.a.q_stride = t.a.kv_stride = floats + 2 * HEADS * HEAD_DIM;
    t.out = memory + 4 * floats;
    for (const enum beside beside : {BESIDE_NOTHING, BESIDE_COPIES, BESIDE_CPU}) {
        if (beside == BESIDE_CPU && p->thread.empty()) continue;
        for (const uint32_t dtype : {KV_F16, KV_Q8_0}) {
            attention_row(p, &t, beside, dtype, 4096, 1024);
            attention_row(p, &t, beside, dtype, 12288, 1024);
        }
    }
    attention_row(p, &t, BESIDE_NOTHING, KV_F16, 0, 1024);
    CUDA(cudaFree(memory));
    CUDA(cudaFree(t.step));
    CUDA(cudaFree(t.workspace));
}

/* ---- the whole ---- */

static unsigned char *host_memory(size_t bytes, int advice)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    (void)madvise(at, bytes, advice);
    std::vector<std::thread> threads;
    const uint32_t count = std::max(1u, std::thread::hardware_concurrency());
    for (uint32_t i = 0; i < count; i++)
        threads.emplace_back([=] {
            memset((char *)at + bytes / count * i, 0,
                   i + 1 < count ? bytes / count : bytes - bytes / count * i);
        });
    for (std::thread &t : threads) t.join();
    CUDA(cudaHostRegister(at, bytes, cudaHostRegisterMapped));
    return (unsigned char *)at;
}

static uint32_t *page_order(uint32_t count)
{
    std::vector<uint32_t> order(count);
    for (uint32_t i = 0; i < count; i++)
        order[i] = (i * 127 + 11) % count; /* 127 divides neither pool's number */
    uint32_t *at;
    CUDA(cudaMalloc((void **)&at, count * 4));
    CUDA(cudaMemcpy(at, order.data(), count * 4, cudaMemcpyHostToDevice));
    return at;
}

static void raw_rows(struct pages *p)
{
    for (const enum way way : {WAY_32, WAY_64, WAY_512, WAY_64_LINES, WAY_32_LINES, WAY_ASYNC})
        for (const uint32_t blocks : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u})
            raw_row(p, BESIDE_NOTHING, way, blocks, 32 << 10, false);
    for (const uint32_t flight : {8u, 16u, 32u, 64u, 128u})
        for (const uint32_t blocks : {1u, 2u, 4u, 8u, 16u, 32u, 128u})
            raw_row(p, BESIDE_NOTHING, WAY_BULK, blocks, flight << 10, false);
    for (const enum way way : {WAY_32, WAY_64, WAY_512, WAY_BULK})
        for (const uint32_t blocks : {4u, 16u, 128u}) raw_row(p, BESIDE_NOTHING, way, blocks, 32 << 10, true);
}

static void beside_rows(struct pages *p, enum beside beside)
{
    printf("beside %s\n", beside_names[beside]);
    for (const enum way way : {WAY_32, WAY_64, WAY_512, WAY_64_LINES, WAY_BULK})
        for (const uint32_t blocks : {2u, 4u, 8u, 16u, 32u, 128u})
            raw_row(p, beside, way, blocks, 32 << 10, false);
    for (const uint32_t blocks : {1u, 2u, 4u, 8u}) raw_row(p, beside, WAY_BULK, blocks, 128 << 10, false);
}

void bench_pages(struct bench *b)
{
    struct pages p = {};
    if (!b->device.bulk_copy) {
        printf("--pages: this device has no bulk copies\n");
        return;
    }
    p.b = b;
    p.host = host_memory(HOST_PAGES * STRIDE, MADV_HUGEPAGE);
    p.small = host_memory(SMALL_PAGES * STRIDE, MADV_NOHUGEPAGE);
    p.page = page_order(HOST_PAGES), p.page_small = page_order(SMALL_PAGES);
    CUDA(cudaMalloc((void **)&p.device, VRAM_BYTES));
    CUDA(cudaMemset(p.device, 0, VRAM_BYTES));
    CUDA(cudaMalloc((void **)&p.sink, 4));
    CUDA(cudaStreamCreateWithFlags(&p.other, cudaStreamNonBlocking));
    p.event.resize(600);
    for (cudaEvent_t &e : p.event) CUDA(cudaEventCreate(&e));
    CUDA(cudaFuncSetAttribute((const void *)pages_read<WAY_BULK>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              128 << 10));
    CUDA(cudaFuncSetAttribute((const void *)pages_read<WAY_ASYNC>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
    pages_row(&p, BESIDE_NOTHING, "copy engine, runs of 128 KiB", (double)READ_PAGES * LAYER, [&] {
        reading r = reading_of(&p, false);
        CUDA(cudaMemcpy2DAsync(p.device, LAYER, r.pool, STRIDE, LAYER, READ_PAGES, cudaMemcpyHostToDevice,
                               b->stream));
    });
    pages_row(&p, BESIDE_NOTHING, "VRAM read", VRAM_BYTES, [&] {
        bench_read<4>
            <<<b->device.sm_count * 2, 512, 0, b->stream>>>((const uint4 *)p.device, VRAM_BYTES / 16, p.sink);
    });
    attention_rows(&p);
    raw_rows(&p);
    beside_rows(&p, BESIDE_COPIES);
    beside_rows(&p, BESIDE_VRAM);
    p.memory.resize((size_t)2 << 27);
    const uint32_t threads = std::max(2u, std::thread::hardware_concurrency()) - 1;
    for (uint32_t i = 0; i < threads; i++) p.thread.emplace_back(cpu_read, &p, i, threads);
    usleep(200000);
    const uint64_t before = p.cpu_bytes;
    usleep(200000);
    printf("the CPU's %u threads alone read %.1f GB/s\n", threads,
           (double)(p.cpu_bytes - before) / 0.2 / 1e9);
    beside_rows(&p, BESIDE_CPU);
    attention_rows(&p);
    p.stop = true;
    for (std::thread &t : p.thread) t.join();
    for (cudaEvent_t e : p.event) CUDA(cudaEventDestroy(e));
    CUDA(cudaHostUnregister(p.host));
    CUDA(cudaHostUnregister(p.small));
    munmap(p.host, HOST_PAGES * STRIDE);
    munmap(p.small, SMALL_PAGES * STRIDE);
}
