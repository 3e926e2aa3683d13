/* helm-bench-gpu-kernels: what the kernels reach of this GPU's limits, measured in the same run.
 *
 *   helm-bench-gpu-kernels [--quick] [--batch] [--chains] [--attention]
 *
 * One table: the limits (VRAM read, cuBLASLt's bf16 peak), then for synthetic models of Qwen3-8B's and 4B's
 * shape a check that the decode step gives the same bits again and again, whole decode steps as one captured
 * graph, kernel by kernel and as one chain, steps of 1 to 16 sequences and each of their kernels over all
 * layers (cold: every layer has its own weights; bench_batch.cu; --batch: nothing but these), decode
 * attention over a long context, prefill. --attention: prefill attention alone, over cases of it
 * (bench_attention.cu). --quick: fewer repeats. How long layers of other shapes and formats take, experts and
 * delta nets among them, `helm-profile --programs` measures with the worker's own programs.
 *
 * Times are medians of repeated graph replays by CUDA events. Exit 1: the check failed. */
#include <math.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tools/bench/gpu/bench.cuh"

void bench_row(const char *model, const char *what, double seconds, double rate, const char *unit,
               double limit)
{
    printf("%-8s %-22s %10.2f us %9.1f %s", model, what, seconds * 1e6, rate, unit);
    if (limit > 0) printf("  %5.1f %%", 100 * rate / limit);
    printf("\n");
}

double bench_apart(const std::vector<float> &first, const std::vector<float> &other)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < first.size(); i++)
        difference += pow((double)other[i] - first[i], 2), norm += pow((double)first[i], 2);
    return sqrt(difference / norm);
}

double bench_time(struct bench *b, int times, const std::function<void()> &enqueue)
{
    std::vector<double> seconds;
    for (int r = 0; r < b->repeats; r++) {
        float ms;
        CUDA(cudaEventRecord(b->begin, b->stream));
        for (int i = 0; i < times; i++) enqueue();
        CUDA(cudaEventRecord(b->end, b->stream));
        CUDA(cudaStreamSynchronize(b->stream));
        CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
        seconds.push_back(ms * 1e-3 / times);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

double bench_time_graph(struct bench *b, int replays, const std::function<void()> &enqueue)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA(cudaStreamEndCapture(b->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) CUDA(cudaGraphLaunch(exec, b->stream));
    CUDA(cudaStreamSynchronize(b->stream));
    const double seconds = bench_time(b, replays, [&] { CUDA(cudaGraphLaunch(exec, b->stream)); });
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    return seconds;
}

/* Reads count words of 16 bytes, each thread AHEAD of them at once; the sum goes to *sink once in four
 * billion times, so that the compiler keeps the loads. Blocks of 512 threads at most. */
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

static void measure_limits(struct bench *b)
{
    const size_t bytes = (size_t)8 << 30;
    char *p;
    uint32_t *sink;
    CUDA(cudaMalloc((void **)&p, bytes));
    CUDA(cudaMalloc((void **)&sink, 4));
    CUDA(cudaMemset(p, 0x5a, bytes));
    CUDA(cudaDeviceSynchronize());
    for (int per_sm : {1, 2, 4}) {
        double s = bench_time_graph(b, 2, [&] {
            bench_read<8>
                <<<b->device.sm_count * per_sm, 512, 0, b->stream>>>((const uint4 *)p, bytes / 16, sink);
            CUDA(cudaGetLastError());
        });
        b->read_gbs = std::max(b->read_gbs, (double)bytes / s / 1e9);
    }
    CUDA(cudaFree(p));
    CUDA(cudaFree(sink));
}

static void measure_peak(struct bench *b, struct bench_model *m)
{
    /* the largest shapes of prefill and a square one, on random data */
    const uint32_t n = 8192;
    const struct gpuk_matmul_plan *plan;
    void *out;
    CUDA(cudaMalloc(&out, (size_t)n * n * 2));
    GPUK(gpuk_matmul_plan(m->matmul, DTYPE_BF16, DTYPE_BF16, n, n, n, n, false, &plan, &err));
    double s = bench_time_graph(b, 5, [&] {
        GPUK(gpuk_matmul_run(plan, m->embed, m->head, out, m->matmul_workspace, b->stream, &err));
    });
    b->peak_tflops = 2.0 * n * n * n / s / 1e12;
    CUDA(cudaFree(out));
}

std::vector<float> bench_logits(struct bench_model *m)
{
    std::vector<float> v(m->shape.vocab);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(v.data(), m->logits, v.size() * 4, cudaMemcpyDeviceToHost));
    return v;
}

static void bench_decode(struct bench *b, struct bench_model *m, const char *what, uint32_t flags)
{
    bench_model_step(m, 1, 200, false);
    double s = bench_time_graph(b, 10, [&] { bench_enqueue_decode(m, 1, flags); });
    bench_row(m->shape.name, what, s, m->decode_bytes / s / 1e9, "GB/s ", b->read_gbs);
}

/* Slices of a matrix as they pass through the ring: how many rows are worth a launch. */
static void bench_slices(struct bench *b, struct bench_model *m)
{
    const uint32_t cols = m->shape.hidden;
    const uint64_t all_rows = 2ull * m->shape.intermediate;
    for (uint32_t rows : {128u, 512u, 2048u, 4096u}) {
        const uint32_t launches =
            std::max(20u, (128u << 20) / (rows * cols * 2)); /* more than the L2 holds */
        char what[64];
        double s[3];
        for (int way = 0; way < 3; way++) {
            b->device.gemv_warps = way * 8;
            s[way] =
                bench_time_graph(b, 5,
                                 [&] {
                                     for (uint32_t i = 0; i < launches; i++) {
                                         struct gpuk_linear_args a = {};
                                         a.format = FORMAT_BF16, a.cols = cols, a.segments = 1, a.x = m->x;
                                         const uint64_t first =
                                             i / m->shape.layers * 16ull * rows % (all_rows - rows) / 16 * 16;
                                         const char *w =
                                             m->layer[i % m->shape.layers].gate_up + first * cols * 2;
                                         a.segment[0] = {w, NULL, NULL, m->logits, rows};
                                         GPUK(gpuk_gemv(&b->device, &a, m->workspace, i ? early_of(b) : 0,
                                                        b->stream, &err));
                                     }
                                 }) /
                launches;
        }
        b->device.gemv_warps = 0;
        snprintf(what, sizeof what, "slice of %u rows", rows);
        bench_row(m->shape.name, what, s[0], 2.0 * rows * cols / s[0] / 1e9, "GB/s ", b->read_gbs);
        if (s[1] < 0.97 * s[0] || s[2] < 0.97 * s[0])
            printf("%-8s   with 8 warps %.2f us, with 16 %.2f us\n", m->shape.name, s[1] * 1e6, s[2] * 1e6);
    }
}

/* The same step again and again, early and not: any difference in bits is a race. */
static int check_decode(struct bench *b, struct bench_model *m)
{
    const int RUNS = 40;
    bench_model_step(m, 1, 200, false);
    bench_enqueue_decode(m, 1, 0);
    auto plain = bench_logits(m);
    int bad[2] = {0, 0};
    for (int i = 0; i < RUNS; i++) {
        const int early = i & 1 && b->device.early_launch;
        CUDA(cudaMemsetAsync(m->logits, 0xff, m->shape.vocab * 4, b->stream));
        bench_enqueue_decode(m, 1, early ? GPUK_EARLY : 0);
        auto again = bench_logits(m);
        bad[early] += memcmp(plain.data(), again.data(), plain.size() * 4) != 0;
    }
    struct gpuk_token best;
    CUDA(cudaMemcpy(&best, m->result, sizeof best, cudaMemcpyDeviceToHost));
    bool finite = true;
    for (float x : plain) finite = finite && isfinite(x);
    /* the small-batch path computes the same token's logits another way */
    bench_enqueue_decode(m, 2, early_of(b));
    auto batch = bench_logits(m);
    const double apart = bench_apart(plain, batch);
    const bool good = bad[0] + bad[1] == 0 && finite && apart < 1e-2;
    printf(
        "%-8s decode check: %s; logits %s, other bits in %d plain and %d early runs of %d, token %u, batch "
        "path %.1e apart\n",
        m->shape.name, good ? "ok" : "FAILED", finite ? "finite" : "NOT FINITE", bad[0], bad[1], RUNS,
        best.id, apart);
    return good ? 0 : 1;
}

static void bench_prefill(struct bench *b, struct bench_model *m)
{
    const struct bench_shape *s = &m->shape;
    for (uint32_t n : {128u, 512u, 4096u}) {
        if (n > m->chunk) continue;
        bench_model_step(m, n, 0, false);
        double time =
            bench_time_graph(b, n > 1000 ? 2 : 5, [&] { bench_enqueue_prefill(m, n, early_of(b)); });
        double flops = m->prefill_flops * n + 2.0 * n * n * s->heads * s->head_dim * s->layers +
                       2.0 * s->vocab * s->hidden;
        char what[64];
        snprintf(what, sizeof what, "prefill %u", n);
        bench_row(s->name, what, time, flops / time / 1e12, "TFLOP", b->peak_tflops);
        if (n < 4096) continue;
        double attention = bench_time_graph(b, 2, [&] {
            for (uint32_t l = 0; l < s->layers; l++) {
                struct gpuk_attention a = {};
                a.step = m->step, a.kv = m->kv, a.kv.layer = l, a.heads = s->heads, a.scale = 0.088f;
                const struct gpuk_prefill prefill = {
                    a, m->q16, m->a16, DTYPE_BF16, 1, {}, m->matmul_workspace};
                GPUK(gpuk_attention_prefill(m->device, &prefill, n, 0, b->stream, &err));
            }
        });
        bench_row(s->name, "  of it attention", attention,
                  2.0 * n * n * s->heads * s->head_dim * s->layers / attention / 1e12, "TFLOP",
                  b->peak_tflops);
    }
}

static void bench_long(struct bench *b, struct bench_model *m)
{
    const struct bench_shape *s = &m->shape;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t context = i < 2 ? 4096 : m->context, dtype = i % 2 ? KV_Q8_0 : KV_BF16;
        m->kv.layout.dtype = dtype; /* any bytes will do */
        bench_model_step(m, 1, context - 1, false);
        double t = bench_time_graph(b, 3,
                                    [&] {
                                        for (uint32_t l = 0; l < s->layers; l++)
                                            bench_enqueue_part(m, PART_ATTENTION, l, 1, l ? early_of(b) : 0);
                                    }) /
                   s->layers;
        double bytes = (double)context * 2 * s->kv_heads * kv_cell_bytes(dtype, s->head_dim);
        char what[64];
        snprintf(what, sizeof what, "attention over %u, %s", context, kv_dtype_name((enum kv_dtype)dtype));
        bench_row(s->name, what, t, bytes / t / 1e9, "GB/s ", b->read_gbs);
    }
    m->kv.layout.dtype = KV_BF16;
}

int main(int argc, char **argv)
{
    struct bench b = {};
    bool quick = false, batch = false, chains = false, attention = false;
    const struct {
        const char *name;
        bool *on;
    } options[] = {{"--quick", &quick},
                   {"--batch", &batch},
                   {"--chains", &chains},
                   {"--attention", &attention}};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (const auto &o : options)
            if (strcmp(argv[i], o.name) == 0) *o.on = known = true;
        if (known) continue;
        const bool asked = strcmp(argv[i], "--help") == 0;
        fputs("usage: helm-bench-gpu-kernels [--quick] [--batch] [--chains] [--attention]\n",
              asked ? stdout : stderr);
        return asked ? 0 : 2;
    }
    int bad = 0;
    b.repeats = quick ? 3 : 7;
    GPUK(gpuk_open(&b.device, &err));
    CUDA(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&b.begin));
    CUDA(cudaEventCreate(&b.end));
    struct cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, b.device.ordinal));
    if (attention) return bench_attention(&b) ? 1 : 0;
    measure_limits(&b);
    const uint32_t early = early_of(&b);
    const struct bench_shape shapes[] = {{"Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936},
                                         {"Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151936}};
    for (int i = 0; i < 2; i++) {
        struct bench_model m;
        bench_model_open(&m, shapes[i], &b.device, 16384, 4096, b.stream);
        if (i == 0) {
            measure_peak(&b, &m);
            printf("%s, %d multiprocessors, %d.%d; VRAM read %.0f GB/s, cuBLASLt bf16 %.0f TFLOP/s\n",
                   properties.name, b.device.sm_count, b.device.capability / 10, b.device.capability % 10,
                   b.read_gbs, b.peak_tflops);
        }
        if (batch || chains) {
            if (chains && b.device.bulk_copy) {
                bad += bench_chain_check(&m, 200);
                bench_chains(&b, &m);
            }
            if (batch) {
                bad += bench_batch_check(&b, &m);
                bench_batches(&b, &m);
            }
            bench_model_close(&m);
            continue;
        }
        bad += check_decode(&b, &m);
        if (b.device.bulk_copy) bad += bench_chain_check(&m, 200);
        bad += bench_batch_check(&b, &m);
        bench_decode(&b, &m, "decode step", early);
        bench_decode(&b, &m, "decode step, not early", 0);
        if (b.device.bulk_copy) bench_chains(&b, &m);
        bench_slices(&b, &m);
        bench_batches(&b, &m);
        bench_long(&b, &m);
        bench_prefill(&b, &m);
        bench_model_close(&m);
    }
    return bad ? 1 : 0;
}
