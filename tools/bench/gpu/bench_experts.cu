/* Mixtures of experts in helm-bench-gpu-kernels: the shapes of Qwen3-30B-A3B, Mixtral-8x7B and gpt-oss-120b, a few tokens
 * and chunks. Layers lie one behind the other in more memory than the L2 holds; their bytes are random, and so are the
 * router's logits, so that each layer and token chooses other experts, all equally likely.
 *
 * One token's are also links of a chain: a layer's alone, and a whole step of Qwen3-30B-A3B's shape.
 *
 * Called by bench_kernels.cu for --experts. Rates count every expert that was chosen once, however many tokens chose it. */
#include <string.h>

#include <algorithm>

#include "tools/bench/gpu/bench.cuh"
#include "worker-gpu/kernels/experts/experts.h"

static const size_t WEIGHTS = (size_t)6 << 30;
static const uint32_t LAYERS = 12, CHUNK = 2048; /* layers of a measurement; tokens at most */
static const struct bench_shape whole = {"30B-A3B", 48, 2048, 768, 32, 4, 128, 151936};

struct experts_shape {
    const char *name;
    uint32_t hidden, rows, experts, chosen;
    enum glu_kind glu;
    enum tensor_format format[3]; /* FORMAT_COUNT: no more */
};
static const experts_shape shapes[] = {
    {"30B-A3B", 2048, 768, 128, 8, GLU_SILU, {FORMAT_Q4_K, FORMAT_Q6_K, FORMAT_BF16}},
    {"Mixtral", 4096, 14336, 8, 2, GLU_SILU, {FORMAT_Q4_K, FORMAT_BF16, FORMAT_COUNT}},
    {"oss-120b", 2880, 2880, 128, 4, GLU_CLAMPED, {FORMAT_MXFP4, FORMAT_BF16, FORMAT_COUNT}}};

struct experts_bench {
    struct bench *b;
    const experts_shape *shape;
    enum tensor_format format;
    struct model_router router;
    char *weights;
    float *logits, *norm, *x, *out, *act, *sums, *bias;
    float *router_weights, *router_logits; /* [LAYERS][experts][hidden] */
    void *x16, *act16, *workspace, *gemv_workspace, *list;
    uint32_t *count;
    struct gpuk_choice choice[LAYERS]; /* by gpuk_route, of CHUNK tokens */
    struct gpuk_groups groups;
    uint32_t layers;      /* that have room */
    size_t matrix, layer; /* bytes */
};

static void *device_memory(size_t bytes)
{
    void *at;
    CUDA(cudaMalloc(&at, bytes));
    CUDA(cudaMemset(at, 0, bytes));
    return at;
}

static struct gpuk_experts role_of(const experts_bench *f, uint32_t layer, uint32_t role)
{
    const experts_shape *s = f->shape;
    const uint32_t rows = role < 2 ? s->rows : s->hidden, cols = role < 2 ? s->hidden : s->rows;
    return {f->format, s->experts,
            rows,      cols,
            nullptr,   f->weights + layer % f->layers * f->layer + role * s->experts * f->matrix,
            f->matrix, s->glu == GLU_CLAMPED ? f->bias : nullptr,
            nullptr};
}

/* logits: by which the choice is made first; NULL: it has been. */
static void run_glu(const experts_bench *f, uint32_t layer, uint32_t tokens, bool ahead, const float *logits,
                    uint32_t flags)
{
    const struct gpuk_experts down = role_of(f, layer, 2);
    struct gpuk_experts_glu a = {};
    a.gate = role_of(f, layer, 0), a.up = role_of(f, layer, 1), a.glu = f->shape->glu,
    a.choice = f->choice[layer];
    a.x = f->x, a.norm = f->norm, a.x_stride = f->shape->hidden, a.eps = 1e-6f, a.act = f->act;
    if (logits) a.router = &f->router, a.logits = logits;
    if (ahead) a.ahead = &down;
    GPUK(gpuk_experts_glu(&f->b->device, &a, tokens, f->count, f->workspace, flags, f->b->stream, &err));
}
static void run_down(const experts_bench *f, uint32_t layer, uint32_t tokens, uint32_t flags)
{
    struct gpuk_experts_down a = {};
    a.down = role_of(f, layer, 2), a.choice = f->choice[layer], a.act = f->act, a.residual = f->out,
    a.out = f->out;
    a.out_stride = f->shape->hidden;
    GPUK(gpuk_experts_down(&f->b->device, &a, tokens, f->count, f->workspace, flags, f->b->stream, &err));
}
static void run_route(const experts_bench *f, uint32_t layer, uint32_t tokens, uint32_t flags)
{
    GPUK(gpuk_route(&f->router, f->count, tokens, f->logits + (size_t)layer * CHUNK * f->shape->experts,
                    nullptr, &f->choice[layer], flags, f->b->stream, &err));
}

/* Experts that `tokens` tokens chose, on average of the layers. */
static double distinct_of(const experts_bench *f, uint32_t tokens)
{
    double sum = 0;
    std::vector<uint32_t> id((size_t)tokens * f->shape->chosen);
    for (uint32_t l = 0; l < LAYERS; l++) {
        CUDA(cudaMemcpy(id.data(), f->choice[l].id, id.size() * 4, cudaMemcpyDeviceToHost));
        std::vector<bool> seen(f->shape->experts);
        for (const uint32_t e : id)
            if (!seen[e]) seen[e] = true, sum++;
    }
    return sum / LAYERS;
}

static void row_of(const experts_bench *f, const char *what, double seconds, double bytes)
{
    char name[96];
    snprintf(name, sizeof name, "%s %s", tensor_format_name(f->format), what);
    bench_row(f->shape->name, name, seconds, bytes / seconds / 1e9, "GB/s ", f->b->read_gbs);
}

/* ---- one token in a chain ---- */

static struct gpuk_linear_args router_product(const experts_bench *f, uint32_t layer)
{
    const experts_shape *s = f->shape;
    struct gpuk_linear_args a = {};
    a.format = FORMAT_F32, a.cols = a.x_stride = s->hidden, a.segments = 1, a.x = f->x, a.norm = f->norm,
    a.eps = 1e-6f;
    a.segment[0] = {f->router_weights + (size_t)(layer % LAYERS) * s->experts * s->hidden, nullptr, nullptr,
                    f->router_logits, s->experts};
    a.out_stride = s->experts;
    return a;
}
/* What of a layer is computed: all; few rows of downs, or of all three operations and of one expert, which shows what
 * they cost beside their bytes. */
enum mlp_part { MLP_ALL, MLP_FEW_DOWNS, MLP_FEW, MLP_PARTS };
static void add_mlp(const experts_bench *f, uint32_t layer, enum mlp_part part,
                    std::vector<struct gpuk_chain_op> *ops)
{
    struct gpuk_chain_op op[3] = {};
    op[0].kind = GPUK_CHAIN_ROUTER, op[0].linear = router_product(f, layer);
    op[1].kind = GPUK_CHAIN_EXPERTS_GLU, op[1].glu.router = f->router;
    struct gpuk_experts_glu &g = op[1].glu.args;
    g.gate = role_of(f, layer, 0), g.up = role_of(f, layer, 1), g.glu = f->shape->glu,
    g.choice = f->choice[0];
    g.logits = f->router_logits, g.x = f->x, g.norm = f->norm, g.x_stride = f->shape->hidden, g.eps = 1e-6f;
    g.act = f->act;
    op[2].kind = GPUK_CHAIN_EXPERTS_DOWN;
    struct gpuk_experts_down &d = op[2].down;
    d.down = role_of(f, layer, 2), d.choice = f->choice[0], d.act = f->act, d.residual = d.out = f->out;
    d.out_stride = f->shape->hidden;
    if (part != MLP_ALL) d.down.rows = 16;
    if (part == MLP_FEW) {
        g.choice.chosen = d.choice.chosen = op[1].glu.router.chosen = 1;
        g.gate.rows = g.up.rows = d.down.cols = 256;
    }
    ops->insert(ops->end(), op, op + 3);
}
/* struct gpuk_device: chain_words */
static const int chain_ways[] = {-1, 1, 2};
static bool chain_of(const experts_bench *f, enum mlp_part part, struct gpuk_chain *chain)
{
    std::vector<struct gpuk_chain_op> ops;
    for (uint32_t l = 0; l < LAYERS; l++) add_mlp(f, l, part, &ops);
    for (const struct gpuk_chain_op &op : ops)
        if (!gpuk_chain_takes(&f->b->device, &op)) return false;
    GPUK(gpuk_chain_write(&f->b->device, ops.data(), (uint32_t)ops.size(), f->list, nullptr, f->b->stream,
                          chain, &err));
    return true;
}
static void run_kernels(const experts_bench *f)
{
    const uint32_t early = early_of(f->b);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct gpuk_linear_args a = router_product(f, l);
        GPUK(gpuk_gemv(&f->b->device, &a, f->gemv_workspace, l ? early : 0, f->b->stream, &err));
        run_glu(f, l, 1, true, f->router_logits, early), run_down(f, l, 1, early);
    }
}
static std::vector<float> out_of(const experts_bench *f, const std::function<void()> &run)
{
    std::vector<float> out(f->shape->hidden);
    CUDA(cudaMemsetAsync(f->out, 0, out.size() * 4, f->b->stream));
    run();
    CUDA(cudaMemcpyAsync(out.data(), f->out, out.size() * 4, cudaMemcpyDeviceToHost, f->b->stream));
    CUDA(cudaStreamSynchronize(f->b->stream));
    return out;
}
/* The chain's sums against those of the kernels, and its bits from run to run; returns how many were wrong. */
static int check_chain(const experts_bench *f, const struct gpuk_chain *chain)
{
    const auto run = [&] { GPUK(gpuk_chain_run(chain, 0, f->b->stream, &err)); };
    const std::vector<float> wanted = out_of(f, [&] { run_kernels(f); }), first = out_of(f, run);
    int other = 0;
    for (int i = 0; i < 50; i++) other += memcmp(out_of(f, run).data(), first.data(), first.size() * 4) != 0;
    const double apart = bench_apart(wanted, first);
    const bool good = other == 0 && apart < 1e-4; /* false for NaN */
    printf("%-8s %s chain: %s; other bits in %d of 50 runs, %.1e apart from kernels\n", f->shape->name,
           tensor_format_name(f->format), good ? "ok" : "FAILED", other, apart);
    return good ? 0 : 1;
}
static int bench_chained(const experts_bench *f)
{
    const double bytes = 3.0 * f->shape->chosen * (double)f->matrix;
    struct gpuk_chain chain;
    char what[64];
    int bad = 0;
    row_of(f, " 1 token, router, glu, down", bench_time_graph(f->b, 4, [&] { run_kernels(f); }) / LAYERS,
           bytes);
    for (const int words : chain_ways) {
        f->b->device.chain_words = words;
        for (const enum mlp_part part : {MLP_ALL, MLP_FEW_DOWNS, MLP_FEW}) {
            if (part != MLP_ALL && words != 1) continue;
            static const char *const names[MLP_PARTS] = {"", ", few downs", ", few rows"};
            if (!chain_of(f, part, &chain)) continue;
            if (part == MLP_ALL) bad += check_chain(f, &chain);
            const double t =
                bench_time_graph(f->b, 4, [&] { GPUK(gpuk_chain_run(&chain, 0, f->b->stream, &err)); });
            snprintf(what, sizeof what, " 1 token, chain of %u x %u, words %d%s", chain.slots, chain.pitch,
                     words, names[part]);
            row_of(f, what, t / LAYERS, part == MLP_ALL ? bytes : 0);
        }
    }
    f->b->device.chain_words = 0;
    return bad;
}
/* A whole step of the first shape. */
static void bench_whole(const experts_bench *f)
{
    struct bench_model m;
    bench_model_open(&m, whole, &f->b->device, 1024, GPUK_BATCH_MAX, f->b->stream);
    m.format = f->format;
    double bytes = bench_head_bytes(&m);
    for (const enum bench_part part : {PART_QKV, PART_O}) bytes += whole.layers * bench_part_bytes(&m, part);
    bytes += whole.layers *
             (3.0 * f->shape->chosen * (double)f->matrix + 4.0 * f->shape->experts * f->shape->hidden);
    bench_model_step(&m, 1, 200, false);
    const uint32_t dense = 1u << PART_QKV | 1u << PART_ATTENTION | 1u << PART_O;
    const auto row = [&](const char *what, uint32_t parts, bool head, bool experts) {
        bench_chain_write(&m, parts, head, 0,
                          experts ? bench_mlp([&](uint32_t l, std::vector<struct gpuk_chain_op> *ops) {
                              add_mlp(f, l, MLP_ALL, ops);
                          })
                                  : bench_mlp());
        const double t = bench_time_graph(f->b, 4, [&] { bench_enqueue_chain(&m); });
        row_of(f, what, t, experts && head ? bytes : 0);
    };
    for (const int words : chain_ways) {
        char what[64];
        f->b->device.chain_words = words;
        snprintf(what, sizeof what, "step at 200, chain, words %d", words);
        row(what, dense, true, true);
    }
    f->b->device.chain_words = 0;
    row("  without attention", dense & ~(1u << PART_ATTENTION), true, true);
    row("  without experts", dense, true, false);
    row("  without head", dense, false, true);
    bench_model_close(&m);
}

static const float *logits_of(const experts_bench *f, uint32_t layer)
{
    return f->logits + (size_t)layer * CHUNK * f->shape->experts;
}
static void bench_few(const experts_bench *f, uint32_t tokens)
{
    const uint32_t early = early_of(f->b);
    const double bytes = distinct_of(f, tokens) * (double)f->matrix;
    char what[64];
    CUDA(cudaMemcpy(f->count, &tokens, sizeof tokens, cudaMemcpyHostToDevice));
    const auto time = [&](const char *part, double matrices,
                          const std::function<void(uint32_t, uint32_t)> &one) {
        snprintf(what, sizeof what, "%2u tokens, %s%s", tokens, part,
                 f->b->device.experts_digits < 0 ? ", no digits" : "");
        const double s = bench_time_graph(f->b, 4, [&] {
            for (uint32_t l = 0; l < LAYERS; l++) one(l, l ? early : 0);
        });
        row_of(f, what, s / LAYERS, matrices * bytes);
    };
    time("route", 0, [&](uint32_t l, uint32_t flags) { run_route(f, l, tokens, flags); });
    for (const int digits : {0, -1}) {
        f->b->device.experts_digits = digits;
        time("glu", 2, [&](uint32_t l, uint32_t flags) { run_glu(f, l, tokens, false, nullptr, flags); });
        time("down", 1, [&](uint32_t l, uint32_t flags) { run_down(f, l, tokens, flags); });
        time("glu that routes", 2,
             [&](uint32_t l, uint32_t flags) { run_glu(f, l, tokens, false, logits_of(f, l), flags); });
        for (const bool ahead : {false, true})
            time(ahead ? "glu that routes and asks, down" : "glu that routes, down", 3,
                 [&](uint32_t l, uint32_t flags) {
                     run_glu(f, l, tokens, ahead, logits_of(f, l), flags), run_down(f, l, tokens, early);
                 });
        if (!f->b->device.bulk_copy || f->format < FORMAT_Q8_0) break; /* they are the same */
    }
    f->b->device.experts_digits = 0;
}
/* What else a step of a few tokens takes, a layer of the first shape and the head: each part over all layers. */
static void bench_few_whole(const experts_bench *f, uint32_t tokens)
{
    struct bench_model m;
    bench_model_open(&m, whole, &f->b->device, 1024, GPUK_BATCH_MAX, f->b->stream);
    m.format = f->format;
    bench_model_step(&m, tokens, 200, true);
    CUDA(cudaMemcpy(f->count, &tokens, sizeof tokens, cudaMemcpyHostToDevice));
    const uint32_t early = early_of(f->b);
    const auto row = [&](const char *part, double bytes, const std::function<void(uint32_t, uint32_t)> &one) {
        char what[64];
        snprintf(what, sizeof what, "%2u tokens, %s", tokens, part);
        const double s = bench_time_graph(f->b, 4, [&] {
            for (uint32_t l = 0; l < whole.layers; l++) one(l, l ? early : 0);
        });
        row_of(f, what, s / whole.layers, bytes);
    };
    static const char *const names[] = {"norm, q, k, v", "rotation, attention", "o"};
    for (const enum bench_part part : {PART_QKV, PART_ATTENTION, PART_O})
        row(names[part], bench_part_bytes(&m, part),
            [&](uint32_t l, uint32_t flags) { bench_enqueue_part(&m, part, l, tokens, flags); });
    const size_t room = GPUK_MATMUL_WORKSPACE;
    void *workspace = device_memory(room);
    row("norm, router", 4.0 * f->shape->experts * f->shape->hidden, [&](uint32_t l, uint32_t flags) {
        const struct gpuk_linear_args a = router_product(f, l % LAYERS);
        const struct gpuk_router_logits args = {(const float *)a.segment[0].weight,
                                                nullptr,
                                                a.x,
                                                a.norm,
                                                f->logits,
                                                f->shape->experts,
                                                a.cols,
                                                a.x_stride,
                                                f->shape->experts,
                                                a.eps};
        GPUK(gpuk_router_logits(&args, tokens, f->count, workspace, room, flags, f->b->stream, &err));
    });
    const double head = bench_time_graph(f->b, 4, [&] { bench_enqueue_head(&m, tokens, 0); });
    char what[64];
    snprintf(what, sizeof what, "%2u tokens, norm, head", tokens);
    row_of(f, what, head, bench_head_bytes(&m));
    CUDA(cudaFree(workspace));
    bench_model_close(&m);
}

static void bench_chunk(const experts_bench *f, uint32_t tokens)
{
    const experts_shape *s = f->shape;
    const enum dtype dtype = tensor_format_of(f->format)->product;
    const double bytes = distinct_of(f, tokens) * (double)f->matrix,
                 flops = 2.0 * tokens * s->chosen * s->rows * s->hidden;
    char what[64];
    CUDA(cudaMemcpy(f->count, &tokens, sizeof tokens, cudaMemcpyHostToDevice));
    /* groups are one layer's; weights go round the layers */
    GPUK(gpuk_experts_group(&f->choice[0], s->experts, nullptr, f->count, tokens, &f->groups, 0, f->b->stream,
                            &err));
    CUDA(cudaStreamSynchronize(f->b->stream));
    const auto time = [&](const char *part, double matrices, const std::function<void(uint32_t)> &one) {
        snprintf(what, sizeof what, "%u tokens, %s", tokens, part);
        const double t = bench_time_graph(f->b, 2,
                                          [&] {
                                              for (uint32_t l = 0; l < LAYERS; l++) one(l);
                                          }) /
                         LAYERS;
        row_of(f, what, t, matrices * bytes);
        if (matrices > 0) bench_row(s->name, "  products", t, matrices * flops / t / 1e12, "TFLOP/s ", 0);
    };
    time("groups", 0, [&](uint32_t l) {
        GPUK(gpuk_experts_group(&f->choice[l], s->experts, nullptr, f->count, tokens, &f->groups, 0,
                                f->b->stream, &err));
    });
    GPUK(gpuk_experts_group(&f->choice[0], s->experts, nullptr, f->count, tokens, &f->groups, 0, f->b->stream,
                            &err));
    time("glu", 2, [&](uint32_t l) {
        const struct gpuk_experts_glu_chunk a = {
            role_of(f, l, 0), role_of(f, l, 1), s->glu, s->chosen, f->groups, dtype, dtype, f->x16, f->act16};
        GPUK(gpuk_experts_glu_chunk(&f->b->device, &a, tokens, 0, f->b->stream, &err));
    });
    time("down", 1, [&](uint32_t l) {
        const struct gpuk_experts_down_chunk a = {role_of(f, l, 2), s->chosen, f->groups, dtype,
                                                  f->act16,         f->sums};
        GPUK(gpuk_experts_down_chunk(&f->b->device, &a, tokens, 0, f->b->stream, &err));
    });
    time("sum", 0, [&](uint32_t) {
        GPUK(gpuk_experts_sum(&f->choice[0], &f->groups, f->sums, s->hidden, f->count, tokens, f->out,
                              s->hidden, 0, f->b->stream, &err));
    });
}

static int bench_shape_of(experts_bench *f)
{
    const experts_shape *s = f->shape;
    f->router = {ROUTER_SOFTMAX, s->experts, s->chosen, true, 1.0f, 1, 1};
    f->matrix = (size_t)tensor_format_bytes(f->format, s->rows, s->hidden),
    f->layer = 3 * s->experts * f->matrix;
    f->layers = (uint32_t)std::min((size_t)LAYERS, WEIGHTS / f->layer);
    if (f->layers == 0) return 0;
    std::vector<float> logits((size_t)LAYERS * CHUNK * s->experts);
    uint32_t state = 4711;
    for (float &v : logits) state = state * 1664525u + 1013904223u, v = (float)(state >> 8) * 0x1p-24f;
    CUDA(cudaMemcpy(f->logits, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
    const uint32_t all = CHUNK;
    CUDA(cudaMemcpy(f->count, &all, sizeof all, cudaMemcpyHostToDevice));
    for (uint32_t l = 0; l < LAYERS; l++) {
        f->choice[l].chosen = s->chosen;
        run_route(f, l, CHUNK, 0);
    }
    CUDA(cudaStreamSynchronize(f->b->stream));
    const int bad = f->b->device.bulk_copy ? bench_chained(f) : 0;
    if (f->b->device.bulk_copy && s == shapes) bench_whole(f);
    for (const uint32_t tokens : {1u, 2u, 4u, 8u, 16u}) bench_few(f, tokens);
    if (s == shapes) bench_few_whole(f, 8); /* overwrites the logits of the choice */
    for (const uint32_t tokens : {128u, 512u, CHUNK})
        if (f->b->repeats >= 7) bench_chunk(f, tokens); /* not --quick */
    return bad;
}

int bench_experts(struct bench *b, const char *only)
{
    int bad = 0;
    uint32_t pairs = 0, act = 0, hidden = 0, experts = 0;
    for (const experts_shape &s : shapes) {
        pairs = std::max(pairs, CHUNK * s.chosen), hidden = std::max(hidden, s.hidden);
        act = std::max(act, CHUNK * s.chosen * s.rows), experts = std::max(experts, s.experts);
    }
    struct experts_bench f = {};
    f.b = b;
    f.weights = (char *)device_memory(WEIGHTS);
    std::vector<uint32_t> random(1 << 24);
    uint32_t state = 12345;
    for (uint32_t &word : random) { /* halves near 1, whatever they are scales of */
        state = state * 1664525u + 1013904223u;
        word = ((state ^ state >> 16) & 0x80ff80ffu) | 0x3c003c00u;
    }
    for (size_t at = 0; at < WEIGHTS; at += random.size() * 4)
        CUDA(cudaMemcpy(f.weights + at, random.data(), random.size() * 4, cudaMemcpyHostToDevice));
    f.logits = (float *)device_memory((size_t)LAYERS * CHUNK * experts * 4);
    f.norm = (float *)device_memory(hidden * 4),
    f.x = (float *)device_memory((size_t)GPUK_BATCH_MAX * hidden * 4);
    std::vector<float> numbers((size_t)LAYERS * experts * hidden);
    for (float &v : numbers) state = state * 1664525u + 1013904223u, v = (float)(int32_t)state * 0x1p-31f;
    f.router_weights = (float *)device_memory(numbers.size() * 4),
    f.router_logits = (float *)device_memory(experts * 4);
    CUDA(cudaMemcpy(f.router_weights, numbers.data(), numbers.size() * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(f.x, numbers.data(), (size_t)GPUK_BATCH_MAX * hidden * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(f.norm, numbers.data() + hidden, hidden * 4, cudaMemcpyHostToDevice));
    f.gemv_workspace = device_memory(gpuk_gemv_workspace_bytes(hidden));
    f.list = device_memory(gpuk_chain_bytes(nullptr, 3 * LAYERS) + (experts + hidden) * 8 + 256);
    f.out = (float *)device_memory((size_t)CHUNK * hidden * 4),
    f.act = (float *)device_memory((size_t)act * 4);
    f.sums = (float *)device_memory((size_t)pairs * hidden * 4),
    f.x16 = device_memory((size_t)CHUNK * hidden * 2);
    f.bias = (float *)device_memory((size_t)1024 * hidden * 4), f.act16 = device_memory((size_t)act * 2);
    f.workspace =
        device_memory(gpuk_experts_workspace_bytes(GPUK_BATCH_MAX, MODEL_EXPERTS_CHOSEN_MAX, hidden));
    f.count = (uint32_t *)device_memory(4);
    f.groups = {(uint32_t *)device_memory((experts + 1) * 4), (uint32_t *)device_memory(pairs * 4),
                (uint32_t *)device_memory(pairs * 4)};
    for (uint32_t l = 0; l < LAYERS; l++)
        f.choice[l] = {1, (uint32_t *)device_memory(pairs * 4), (float *)device_memory(pairs * 4)};
    for (const experts_shape &s : shapes)
        for (const enum tensor_format format : s.format) {
            if (format == FORMAT_COUNT || (only && strcmp(only, tensor_format_name(format)) != 0)) continue;
            f.shape = &s, f.format = format;
            bad += bench_shape_of(&f);
        }
    for (void *at : {(void *)f.weights, (void *)f.logits, (void *)f.norm, (void *)f.x, (void *)f.out,
                     (void *)f.act, (void *)f.sums, f.x16, (void *)f.bias, f.act16, f.workspace,
                     (void *)f.router_weights, (void *)f.router_logits, f.gemv_workspace, f.list,
                     (void *)f.count, (void *)f.groups.first, (void *)f.groups.pair, (void *)f.groups.place})
        CUDA(cudaFree(at));
    for (const struct gpuk_choice &choice : f.choice) {
        CUDA(cudaFree(choice.id));
        CUDA(cudaFree(choice.weight));
    }
    return bad;
}
