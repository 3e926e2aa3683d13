/* Chunks' products with blocks in helm-bench-gpu-kernels: matrices of an 8B model, and a layer's experts of Qwen3-30B-A3B's
 * shape with its router, by each way that there is: as they lie on tensor cores and on warpgroups, and expanded. Results of
 * the ways are compared at these sizes.
 *
 * Called by bench_kernels.cu for --chunks; about half a minute a format. */
#include <string.h>

#include <algorithm>
#include <cmath>

#include "tools/bench/gpu/bench.cuh"
#include "worker-gpu/kernels/experts/experts.h"

static const size_t WEIGHTS = (size_t)1 << 30;
static const uint32_t TOKENS = 2048, HIDDEN = 2048, ROWS = 768, EXPERTS = 128, CHOSEN = 8;

struct chunks_bench {
    struct bench *b;
    struct gpuk_device old, wide; /* without warpgroups, and with them for any number of tokens */
    struct gpuk_matmul *matmul;
    enum tensor_format format;
    char *weights, *plain;    /* blocks; a matrix of them expanded */
    float *x, *router, *norm; /* [TOKENS][HIDDEN], [EXPERTS][HIDDEN], [HIDDEN] */
    void *x16, *out, *workspace;
    uint32_t *counters, *count;
    std::vector<void *> owned;

    void *memory(size_t bytes)
    {
        void *at;
        CUDA(cudaMalloc(&at, bytes));
        CUDA(cudaMemset(at, 0, bytes));
        owned.push_back(at);
        return at;
    }
};

static void row_of(const chunks_bench *f, const char *model, const char *what, double seconds, double flops)
{
    char name[96];
    snprintf(name, sizeof name, "%s %s", tensor_format_name(f->format), what);
    bench_row(model, name, seconds, flops / seconds / 1e12, "TFLOP/s", 0);
}
template <typename T> static std::vector<float> read_out(const void *from, size_t count, float (*value)(T))
{
    std::vector<T> raw(count);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(raw.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    std::vector<float> out(count);
    for (size_t i = 0; i < count; i++) out[i] = value(raw[i]);
    return out;
}
static float same(float v)
{
    return v;
}
static float of_bf16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &word, 4);
    return f;
}
static int compare(const char *what, const std::vector<float> &a, const std::vector<float> &b, double most)
{
    const double apart = bench_apart(a, b);
    const bool bad = !(apart <= most);
    printf("%-8s %s: %.1e apart%s\n", "", what, apart, bad ? ", WRONG" : "");
    return bad;
}

/* ---- dense ---- */

static int bench_dense(chunks_bench *f, uint32_t rows, uint32_t cols)
{
    const size_t bytes = (size_t)tensor_format_bytes(f->format, rows, cols);
    const uint32_t matrices = (uint32_t)std::min<size_t>(16, WEIGHTS / bytes);
    const bool wide = f->b->device.warpgroups;
    int bad = 0;
    char shape[32], what[64];
    snprintf(shape, sizeof shape, "%ux%u", rows, cols);
    const auto product = [&](uint32_t i) {
        return gpuk_blocks_product{f->format, DTYPE_BF16, DTYPE_BF16, rows,
                                   cols,      rows,       false,      f->weights + i * bytes,
                                   f->x16,    f->out};
    };
    const auto expand = [&](uint32_t i) {
        const struct gpuk_expand_part part = {f->format, f->weights + i * bytes, nullptr, f->plain, rows,
                                              cols};
        GPUK(gpuk_expand(&f->b->device, &part, 1, 0, f->b->stream, &err));
    };
    const auto time = [&](const char *way, uint32_t tokens, const std::function<void(uint32_t)> &one) {
        snprintf(what, sizeof what, "%u tokens, %s", tokens, way);
        const double t = bench_time_graph(f->b, 1, [&] {
            for (uint32_t i = 0; i < matrices; i++) one(i);
        });
        row_of(f, shape, what, t / matrices, 2.0 * rows * cols * tokens);
    };
    time("expansion", 0, expand);
    for (const uint32_t tokens : {32u, 64u, 128u, 192u, 256u, 512u}) {
        const struct gpuk_matmul_plan *plan;
        GPUK(gpuk_matmul_plan(f->matmul, DTYPE_BF16, DTYPE_BF16, tokens, rows, cols, rows, false, &plan,
                              &err));
        const auto run_wide = [&](uint32_t i) {
            const struct gpuk_blocks_product p = product(i);
            GPUK(gpuk_wide_run(&f->b->device, &p, tokens, f->workspace, f->counters, f->b->stream, &err));
        };
        if (tokens <= GPUK_BLOCKS_TOKENS)
            time("tensor cores", tokens, [&](uint32_t i) {
                const struct gpuk_blocks_product p = product(i);
                GPUK(gpuk_blocks_run(&f->old, &p, tokens, f->workspace, f->counters, f->b->stream, &err));
            });
        if (wide) time("warpgroups", tokens, run_wide);
        time("plain alone", tokens, [&](uint32_t) {
            GPUK(gpuk_matmul_run(plan, f->plain, f->x16, f->out, f->workspace, f->b->stream, &err));
        });
        if (!wide) continue;
        const size_t count = (size_t)tokens * rows;
        expand(1);
        GPUK(gpuk_matmul_run(plan, f->plain, f->x16, f->out, f->workspace, f->b->stream, &err));
        CUDA(cudaStreamSynchronize(f->b->stream));
        const std::vector<float> expected = read_out<uint16_t>(f->out, count, of_bf16);
        run_wide(1);
        CUDA(cudaStreamSynchronize(f->b->stream));
        bad +=
            compare("warpgroups and the library", expected, read_out<uint16_t>(f->out, count, of_bf16), 3e-3);
    }
    return bad;
}

/* ---- experts ---- */

struct layer_memory {
    struct gpuk_choice choice;
    struct gpuk_groups groups;
    float *logits;
    void *act, *sums;
};

static struct gpuk_experts role_of(const chunks_bench *f, uint32_t role)
{
    const uint64_t stride = tensor_format_bytes(f->format, ROWS, HIDDEN);
    return {f->format,
            EXPERTS,
            role < 2 ? ROWS : HIDDEN,
            role < 2 ? HIDDEN : ROWS,
            nullptr,
            f->weights + role * EXPERTS * stride,
            stride,
            nullptr,
            nullptr};
}

static int bench_layer(chunks_bench *f, const layer_memory &m, uint32_t tokens)
{
    const double flops = 2.0 * tokens * CHOSEN * ROWS * HIDDEN;
    const struct model_router router = {ROUTER_SOFTMAX, EXPERTS, CHOSEN, true, 1.0f, 1, 1};
    const uint32_t pairs = tokens * CHOSEN;
    int bad = 0;
    char what[64];
    CUDA(cudaMemcpy(f->count, &tokens, sizeof tokens, cudaMemcpyHostToDevice));
    const auto time = [&](const char *part, double work, const std::function<void()> &run) {
        snprintf(what, sizeof what, "%u tokens, %s", tokens, part);
        const double t = bench_time_graph(f->b, 2, [&] {
            for (int i = 0; i < 4; i++) run();
        });
        row_of(f, "30B-A3B", what, t / 4, work);
    };
    const struct gpuk_router_logits logits = {f->router, nullptr, f->x,   f->norm, m.logits,
                                              EXPERTS,   HIDDEN,  HIDDEN, EXPERTS, 1e-6f};
    const auto run_logits = [&] {
        GPUK(gpuk_router_logits(&logits, tokens, f->count, f->workspace, GPUK_MATMUL_WORKSPACE, 0,
                                f->b->stream, &err));
    };
    const auto few_logits =
        [&] { /* as it was: 16 tokens at a time */
              for (uint32_t first = 0; first < tokens; first += GPUK_BATCH_MAX) {
                  struct gpuk_linear_args a = {};
                  a.format = FORMAT_F32, a.cols = a.x_stride = HIDDEN, a.segments = 1, a.out_stride = EXPERTS;
                  a.x = f->x + (size_t)first * HIDDEN, a.norm = f->norm, a.eps = 1e-6f;
                  a.segment[0] = {f->router, nullptr, nullptr, m.logits + (size_t)first * EXPERTS, EXPERTS};
                  GPUK(gpuk_gemm_small(&f->b->device, &a, GPUK_BATCH_MAX, f->count, f->counters, 0,
                                       f->b->stream, &err));
              }
        };
    time("router, 16 at a time", 2.0 * tokens * EXPERTS * HIDDEN, few_logits);
    const std::vector<float> expected = read_out<float>(m.logits, (size_t)tokens * EXPERTS, same);
    time("router", 2.0 * tokens * EXPERTS * HIDDEN, run_logits);
    bad += compare("the router's logits", expected, read_out<float>(m.logits, expected.size(), same), 1e-6);
    time("choice", 0, [&] {
        GPUK(gpuk_route(&router, f->count, tokens, m.logits, nullptr, &m.choice, 0, f->b->stream, &err));
    });
    time("groups", 0, [&] {
        GPUK(gpuk_experts_group(&m.choice, EXPERTS, nullptr, f->count, tokens, &m.groups, 0, f->b->stream,
                                &err));
    });
    std::vector<float> act[2], sums[2];
    for (int way = 0; way < (f->b->device.warpgroups ? 2 : 1); way++) {
        const struct gpuk_device *device = way ? &f->wide : &f->old;
        const struct gpuk_experts_glu_chunk glu = {role_of(f, 0), role_of(f, 1), GLU_SILU, CHOSEN, m.groups,
                                                   DTYPE_BF16,    DTYPE_BF16,    f->x16,   m.act};
        const struct gpuk_experts_down_chunk down = {role_of(f, 2), CHOSEN, m.groups,
                                                     DTYPE_BF16,    m.act,  static_cast<float *>(m.sums)};
        time(way ? "gate and up, warpgroups" : "gate and up, tensor cores", 2 * flops,
             [&] { GPUK(gpuk_experts_glu_chunk(device, &glu, tokens, 0, f->b->stream, &err)); });
        time(way ? "down, warpgroups" : "down, tensor cores", flops,
             [&] { GPUK(gpuk_experts_down_chunk(device, &down, tokens, 0, f->b->stream, &err)); });
        act[way] = read_out<uint16_t>(m.act, (size_t)pairs * ROWS, of_bf16);
        sums[way] = read_out<float>(m.sums, (size_t)pairs * HIDDEN, same);
    }
    if (f->b->device.warpgroups)
        bad += compare("gate and up of both", act[0], act[1], 3e-3) +
               compare("down of both", sums[0], sums[1], 3e-3);
    time("sum", 0, [&] {
        GPUK(gpuk_experts_sum(&m.choice, &m.groups, static_cast<float *>(m.sums), HIDDEN, f->count, tokens,
                              static_cast<float *>(f->out), HIDDEN, 0, f->b->stream, &err));
    });
    return bad;
}

static int bench_format(chunks_bench *f)
{
    int bad = 0;
    layer_memory m = {};
    const size_t pairs = (size_t)TOKENS * CHOSEN;
    m.choice = {CHOSEN, (uint32_t *)f->memory(pairs * 4), (float *)f->memory(pairs * 4)};
    m.groups = {(uint32_t *)f->memory((EXPERTS + 1) * 4), (uint32_t *)f->memory(pairs * 4),
                (uint32_t *)f->memory(pairs * 4)};
    m.logits = (float *)f->memory((size_t)TOKENS * EXPERTS * 4);
    m.act = f->memory(pairs * ROWS * 2), m.sums = f->memory(pairs * HIDDEN * 4);
    for (const uint32_t tokens : {128u, 512u, TOKENS}) bad += bench_layer(f, m, tokens);
    const uint32_t shapes[][2] = {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}};
    for (auto &shape : shapes) bad += bench_dense(f, shape[0], shape[1]);
    return bad;
}

int bench_chunks(struct bench *b, const char *only)
{
    struct chunks_bench f = {};
    int bad = 0;
    f.b = b, f.old = b->device, f.old.warpgroups = false;
    f.wide = b->device, f.wide.experts_wide = -1;
    GPUK(gpuk_matmul_open(&f.matmul, &err));
    f.weights = (char *)f.memory(WEIGHTS), f.plain = (char *)f.memory((size_t)24576 * 4096 * 2);
    std::vector<uint32_t> random(1 << 24);
    uint32_t state = 12345;
    for (uint32_t &word : random) { /* halves near 1/64, whatever they are scales of */
        state = state * 1664525u + 1013904223u;
        word = ((state ^ state >> 16) & 0x80ff80ffu) | 0x24002400u;
    }
    for (size_t at = 0; at < WEIGHTS; at += random.size() * 4)
        CUDA(cudaMemcpy(f.weights + at, random.data(), random.size() * 4, cudaMemcpyHostToDevice));
    const auto numbers = [&](size_t count, double size) {
        std::vector<float> v(count);
        for (float &x : v)
            state = state * 1664525u + 1013904223u, x = (float)((int32_t)state * 0x1p-31 * size);
        void *at = f.memory(count * 4);
        CUDA(cudaMemcpy(at, v.data(), count * 4, cudaMemcpyHostToDevice));
        return (float *)at;
    };
    f.x = numbers((size_t)TOKENS * HIDDEN, 1), f.router = numbers((size_t)EXPERTS * HIDDEN, 0.02);
    f.norm = numbers(HIDDEN, 1);
    std::vector<uint16_t> halves((size_t)512 * 12288);
    for (uint16_t &h : halves) {
        state = state * 1664525u + 1013904223u;
        const float v = (float)(int32_t)state * 0x1p-31f;
        uint32_t bits;
        memcpy(&bits, &v, 4), h = (uint16_t)(bits >> 16);
    }
    f.x16 = f.memory(halves.size() * 2);
    CUDA(cudaMemcpy(f.x16, halves.data(), halves.size() * 2, cudaMemcpyHostToDevice));
    f.out = f.memory((size_t)512 * 24576 * 2), f.workspace = f.memory(GPUK_MATMUL_WORKSPACE);
    f.counters = (uint32_t *)f.memory(gpuk_gemm_small_workspace_bytes(GPUK_BATCH_MAX, HIDDEN));
    f.count = (uint32_t *)f.memory(4);
    for (const enum tensor_format format : {FORMAT_Q4_K, FORMAT_Q6_K, FORMAT_Q8_0}) {
        if (only ? strcmp(only, tensor_format_name(format)) != 0 : format == FORMAT_Q8_0) continue;
        f.format = format;
        const size_t before = f.owned.size();
        bad += bench_format(&f);
        for (; f.owned.size() > before; f.owned.pop_back()) CUDA(cudaFree(f.owned.back()));
    }
    for (void *at : f.owned) CUDA(cudaFree(at));
    gpuk_matmul_close(f.matmul);
    return bad;
}
