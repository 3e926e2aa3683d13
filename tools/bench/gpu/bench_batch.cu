/* Rows of helm-bench-gpu-kernels about steps of 2 to 16 sequences: whole steps, each operation alone over all
 * layers (cold, as bench_kernels.cu says), what the streamed gemm reaches beside the one that loads. Called
 * by bench_kernels.cu. */
#include <string.h>

#include <algorithm>

#include "tools/bench/gpu/bench.cuh"

static double step_seconds(struct bench *b, struct bench_model *m, uint32_t tokens)
{
    return bench_time_graph(b, 5, [&] { bench_enqueue_decode(m, tokens, early_of(b)); });
}

/* Seconds of one layer's part, in a graph of all layers'. */
static double part_seconds(struct bench *b, struct bench_model *m, enum bench_part part, uint32_t tokens)
{
    return bench_time_graph(b, 5,
                            [&] {
                                for (uint32_t l = 0; l < m->shape.layers; l++)
                                    bench_enqueue_part(m, part, l, tokens, l ? early_of(b) : 0);
                            }) /
           m->shape.layers;
}

static void row_of(struct bench *b, struct bench_model *m, const char *name, uint32_t tokens, double seconds,
                   double bytes)
{
    char what[64];
    snprintf(what, sizeof what, "%s x %u", name, tokens);
    bench_row(m->shape.name, what, seconds, bytes / seconds / 1e9, "GB/s ", bytes > 0 ? b->read_gbs : 0);
}

static void bench_size(struct bench *b, struct bench_model *m, uint32_t tokens)
{
    const char *names[PART_COUNT] = {"norm+qkv", "rotate+attention", "o+residual", "gate+up+SwiGLU",
                                     "down+residual"};
    const double head_bytes = 2.0 * m->shape.vocab * m->shape.hidden;
    bench_model_step(m, tokens, 200, true);
    row_of(b, m, "step", tokens, step_seconds(b, m, tokens), m->decode_bytes);
    if (b->device.bulk_copy && tokens > 1) {
        b->device.bulk_copy = false;
        row_of(b, m, "step, not streamed", tokens, step_seconds(b, m, tokens), m->decode_bytes);
        b->device.bulk_copy = true;
    }
    for (int part = 0; part < PART_COUNT; part++)
        row_of(b, m, names[part], tokens, part_seconds(b, m, (enum bench_part)part, tokens),
               bench_part_bytes(m, (enum bench_part)part));
    const double head = bench_time_graph(b, 5, [&] { bench_enqueue_head(m, tokens, 0); });
    row_of(b, m, "norm+head", tokens, head, head_bytes);
}

void bench_batches(struct bench *b, struct bench_model *m)
{
    for (uint32_t tokens : {1u, 2u, 4u, 8u, 16u}) bench_size(b, m, tokens);
}

static std::vector<float> batch_logits(struct bench *b, struct bench_model *m, uint32_t tokens,
                                       uint32_t flags)
{
    std::vector<float> v((size_t)tokens * m->shape.vocab);
    CUDA(cudaMemsetAsync(m->logits, 0xff, v.size() * 4, b->stream));
    bench_enqueue_decode(m, tokens, flags);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(v.data(), m->logits, v.size() * 4, cudaMemcpyDeviceToHost));
    return v;
}

int bench_batch_check(struct bench *b, struct bench_model *m)
{
    const int RUNS = 20;
    int failed = 0;
    for (uint32_t tokens : {5u, 16u}) {
        bench_model_step(m, tokens, 200, true);
        const auto first = batch_logits(b, m, tokens, 0);
        int bad = 0;
        for (int i = 0; i < RUNS; i++) {
            const auto again = batch_logits(b, m, tokens, i & 1 ? early_of(b) : 0);
            bad += memcmp(first.data(), again.data(), first.size() * 4) != 0;
        }
        const bool bulk_copy = b->device.bulk_copy;
        b->device.bulk_copy = false;
        const auto other = batch_logits(b, m, tokens, 0);
        b->device.bulk_copy = bulk_copy;
        const double apart = bench_apart(first, other);
        const bool good = bad == 0 && apart < 1e-2; /* not so where anything is not a number */
        printf("%-8s batch check, %u tokens: %s; other bits in %d of %d runs, %.1e apart when not streamed\n",
               m->shape.name, tokens, good ? "ok" : "FAILED", bad, RUNS, apart);
        failed += !good;
    }
    return failed ? 1 : 0;
}
