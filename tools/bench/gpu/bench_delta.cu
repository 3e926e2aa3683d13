/* Gated delta nets in helm-bench-gpu-kernels --delta, of the shapes of Qwen3.6-35B-A3B and 27B: the convolution and the rule of
 * one token and of 16 sequences over all layers (cold: each has its own states), beside the bytes of states that they read and
 * write; of prompts in sub-chunks, token by token and in chunks, beside the operations of the rule.
 *
 * Called by bench_kernels.cu. Percent is of VRAM read. Operations: six for each number of a head's matrix and token. */
#include <string.h>

#include "tools/bench/gpu/bench.cuh"
#include "worker-gpu/kernels/delta/delta.h"

static const uint32_t LAYERS = 30, SLOTS = 16;

/* A layer's arguments over memory of random bytes: numbers below 1. */
struct delta_bench {
    gpuk_delta d;
    char *memory, *states;
    uint32_t *block;
    size_t record;
};
static void *take(char **at, size_t bytes)
{
    void *taken = *at;
    *at += (bytes + 255) / 256 * 256;
    return taken;
}

static delta_bench open_delta(uint32_t key_heads, uint32_t value_heads)
{
    const uint32_t dim = 128, channels = (2 * key_heads + value_heads) * dim, values = value_heads * dim,
                   stride = channels + values + 2 * value_heads;
    delta_bench b = {};
    gpuk_delta &d = b.d;
    d.key_heads = key_heads, d.value_heads = value_heads, d.key_dim = d.value_dim = dim, d.in_turn = true;
    d.matrices_at = 3 * (size_t)channels * 4, d.eps = 1e-6f, d.in_stride = stride, d.out_stride = values;
    d.out_dtype = DTYPE_BF16, d.rows = SLOTS;
    b.record = d.matrices_at + (size_t)values * dim * 4, d.slot_bytes = LAYERS * b.record;
    const size_t bytes = (size_t)GPU_SUB_TOKENS * (stride + values + channels) * 4 +
                         gpuk_delta_chunk_bytes(GPU_SUB_TOKENS, value_heads) + 4 * (size_t)channels * 4 +
                         (1 << 16);
    CUDA(cudaMalloc((void **)&b.memory, bytes));
    std::vector<float> some(bytes / 4);
    for (size_t i = 0; i < some.size(); i++) some[i] = (float)(i * 2654435761u % 2001) * 1e-3f - 1;
    CUDA(cudaMemcpy(b.memory, some.data(), some.size() * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMalloc((void **)&b.states, SLOTS * d.slot_bytes));
    CUDA(cudaMemset(b.states, 0, SLOTS * d.slot_bytes));
    CUDA(cudaMalloc((void **)&b.block, 1 << 14));
    char *at = b.memory;
    d.in = (float *)take(&at, (size_t)GPU_SUB_TOKENS * stride * 4);
    d.z = d.in + channels, d.alpha = d.z + values, d.beta = d.alpha + value_heads;
    d.out = take(&at, (size_t)GPU_SUB_TOKENS * values * 4);
    d.mixed = (float *)take(&at, (size_t)GPU_SUB_TOKENS * channels * 4);
    d.chunks = (float *)take(&at, gpuk_delta_chunk_bytes(GPU_SUB_TOKENS, value_heads));
    d.conv = (float *)take(&at, 4 * (size_t)channels * 4);
    d.time_bias = (float *)take(&at, value_heads * 4), d.norm = (float *)take(&at, dim * 4);
    std::vector<float> decay(value_heads, -0.1f);
    d.decay = (float *)take(&at, value_heads * 4);
    CUDA(cudaMemcpy((void *)d.decay, decay.data(), value_heads * 4, cudaMemcpyHostToDevice));
    return b;
}

/* Tokens of `rows` rows, each as many. */
static void write_step(delta_bench *b, uint32_t tokens, uint32_t rows)
{
    std::vector<uint32_t> block(1 << 12);
    block[0] = tokens, block[1] = block[2] = rows;
    uint32_t *row = &block[4], *first = row + GPU_SUB_TOKENS, *slot = first + SLOTS + 1;
    for (uint32_t t = 0; t < tokens; t++) row[t] = t / (tokens / rows);
    for (uint32_t r = 0; r <= rows; r++) first[r] = r * (tokens / rows);
    for (uint32_t r = 0; r < rows; r++) slot[r] = slot[SLOTS + r] = r;
    CUDA(cudaMemcpy(b->block, block.data(), block.size() * 4, cudaMemcpyHostToDevice));
    gpuk_step &s = b->d.step;
    s.counts = b->block, s.token_row = b->block + 4, s.row_first = s.token_row + GPU_SUB_TOKENS;
    s.row_slot = s.row_first + SLOTS + 1, b->d.row_state = s.row_slot + SLOTS;
}

static void enqueue(struct bench *b, delta_bench *n, uint32_t layer, uint32_t tokens)
{
    gpuk_delta d = n->d;
    d.state = n->states + layer * n->record;
    GPUK(gpuk_delta_convolve(&d, tokens, layer ? early_of(b) : 0, b->stream, &err));
    GPUK(gpuk_delta_rule(&b->device, &d, tokens, early_of(b), b->stream, &err));
}

void bench_delta(struct bench *b)
{
    const struct {
        const char *name;
        uint32_t key_heads, value_heads;
    } shapes[] = {{"35B-A3B", 16, 32}, {"27B", 16, 48}};
    for (const auto &shape : shapes) {
        delta_bench n = open_delta(shape.key_heads, shape.value_heads);
        for (uint32_t rows : {1u, 4u, 16u}) {
            char what[64];
            write_step(&n, rows, rows);
            const double t = bench_time_graph(b, 3,
                                              [&] {
                                                  for (uint32_t l = 0; l < LAYERS; l++)
                                                      enqueue(b, &n, l, rows);
                                              }) /
                             LAYERS;
            snprintf(what, sizeof what, "delta, %u sequences", rows);
            bench_row(shape.name, what, t, 2.0 * rows * n.record / t / 1e9, "GB/s ", b->read_gbs);
        }
        write_step(&n, GPU_SUB_TOKENS, 1);
        for (uint32_t tokens : {2048u, 8192u})
            for (float *chunks : {(float *)NULL, n.d.chunks}) {
                char what[64];
                delta_bench one = n;
                one.d.chunks = chunks;
                const double t = bench_time(b, 1, [&] {
                    for (uint32_t from = 0; from < tokens; from += GPU_SUB_TOKENS)
                        enqueue(b, &one, 0, GPU_SUB_TOKENS);
                });
                snprintf(what, sizeof what, "delta, %u tokens%s", tokens, chunks ? "" : " by token");
                bench_row(shape.name, what, t, 6.0 * tokens * shape.value_heads * 128 * 128 / t / 1e12,
                          "TFLOP/s", 0);
            }
        CUDA(cudaFree(n.memory));
        CUDA(cudaFree(n.states));
        CUDA(cudaFree(n.block));
    }
}
