/* Products with weights of every format in helm-bench-gpu-kernels: one token by itself and in a chain, few tokens, and
 * expanded for a chunk. Matrices one behind the other, more than the L2 holds, their bytes random.
 *
 * Called by bench_kernels.cu for --formats. */
#include <string.h>

#include <algorithm>

#include "tools/bench/gpu/bench.cuh"

static const size_t WEIGHTS = (size_t)1 << 30, EXPANDED = (size_t)256 << 20;
static const uint32_t COLS_MAX = 14336, ROWS_MAX = 28672, MATRICES_MAX = 128;

struct formats_bench {
    struct bench *b;
    char *weights, *expanded;
    float *x, *out;
    void *workspace, *list;
    void *chunk, *chunk_out, *matmul; /* of short chunks */
    uint32_t *count;
    enum tensor_format format;
    uint32_t rows, cols, matrices; /* of the shape that is measured */
    size_t bytes;                  /* of a matrix */
};

static void *device_memory(size_t bytes, int fill)
{
    void *at;
    CUDA(cudaMalloc(&at, bytes));
    CUDA(cudaMemset(at, fill, bytes));
    return at;
}

static struct gpuk_linear_args product_of(const struct formats_bench *f, uint32_t matrix)
{
    struct gpuk_linear_args a = {};
    a.format = f->format, a.cols = f->cols, a.segments = 1, a.x = f->x;
    a.x_stride = f->cols, a.out_stride = f->rows;
    a.segment[0] = {f->weights + matrix * ((f->bytes + 255) / 256 * 256), nullptr, nullptr, f->out, f->rows};
    return a;
}

static void row_of(const struct formats_bench *f, const char *what, double seconds)
{
    char name[96];
    snprintf(name, sizeof name, "%ux%u %s", f->rows, f->cols, what);
    const double each = seconds / f->matrices;
    bench_row(tensor_format_name(f->format), name, each, (double)f->bytes / each / 1e9, "GB/s ",
              f->b->read_gbs);
}

/* `count` tokens in a program of `tokens`. Each product but the first begins before the one in front has ended, as in a
 * step. */
static void bench_few(const struct formats_bench *f, uint32_t tokens, uint32_t count)
{
    const uint32_t early = f->b->device.early_launch ? GPUK_EARLY : 0;
    char what[64];
    const struct gpuk_linear_args first = product_of(f, 0);
    const char *kernel = gpuk_linear_kernel(&f->b->device, &first, GPUK_FEW);
    if (!kernel) return;
    snprintf(what, sizeof what, "%u of %u tokens, %s", count, tokens, kernel);
    CUDA(cudaMemcpy(f->count, &count, sizeof count, cudaMemcpyHostToDevice));
    row_of(f, what, bench_time_graph(f->b, 2, [&] {
               for (uint32_t i = 0; i < f->matrices; i++) {
                   const struct gpuk_linear_args a = product_of(f, i);
                   GPUK(gpuk_gemm_small(&f->b->device, &a, tokens, f->count, f->workspace, i ? early : 0,
                                        f->b->stream, &err));
               }
           }));
}

/* A short chunk's products with blocks as they lie; x is any numbers. */
static void bench_short(const struct formats_bench *f, uint32_t tokens)
{
    char what[64];
    snprintf(what, sizeof what, "%u tokens, blocks", tokens);
    row_of(f, what, bench_time_graph(f->b, 2, [&] {
               for (uint32_t i = 0; i < f->matrices; i++) {
                   const struct gpuk_linear_args a = product_of(f, i);
                   const struct gpuk_blocks_product p = {f->format,  DTYPE_BF16,
                                                         DTYPE_BF16, f->rows,
                                                         f->cols,    f->rows,
                                                         false,      a.segment[0].weight,
                                                         f->chunk,   f->chunk_out};
                   GPUK(gpuk_blocks_run(&f->b->device, &p, tokens, f->matmul, (uint32_t *)f->workspace,
                                        f->b->stream, &err));
               }
           }));
}

static void bench_chained(const struct formats_bench *f)
{
    std::vector<struct gpuk_chain_op> ops;
    struct gpuk_chain chain;
    for (uint32_t i = 0; i < f->matrices; i++) {
        struct gpuk_chain_op op = {};
        op.kind = GPUK_CHAIN_LINEAR, op.linear = product_of(f, i);
        if (!gpuk_chain_takes(&f->b->device, &op)) return;
        ops.push_back(op);
    }
    GPUK(gpuk_chain_write(&f->b->device, ops.data(), f->matrices, f->list, nullptr, f->b->stream, &chain,
                          &err));
    row_of(f, "chain",
           bench_time_graph(f->b, 2, [&] { GPUK(gpuk_chain_run(&chain, 0, f->b->stream, &err)); }));
}

static void bench_shape_of(struct formats_bench *f, uint32_t rows, uint32_t cols, bool all)
{
    const uint32_t early = f->b->device.early_launch ? GPUK_EARLY : 0;
    f->rows = rows, f->cols = cols, f->bytes = (size_t)tensor_format_bytes(f->format, rows, cols);
    f->matrices = (uint32_t)std::min((size_t)MATRICES_MAX, WEIGHTS / (f->bytes + 256));
    char what[64];
    const struct gpuk_linear_args first = product_of(f, 0);
    const char *kernel = gpuk_linear_kernel(&f->b->device, &first, GPUK_ONE);
    snprintf(what, sizeof what, "1 token, %s", kernel);
    row_of(f, what, bench_time_graph(f->b, 2, [&] {
               for (uint32_t i = 0; i < f->matrices; i++) {
                   const struct gpuk_linear_args a = product_of(f, i);
                   GPUK(gpuk_gemv(&f->b->device, &a, f->workspace, i ? early : 0, f->b->stream, &err));
               }
           }));
    if (f->b->device.bulk_copy) bench_chained(f);
    if (!all) return;
    for (int integer : {3, -1}) { /* few tokens by whole numbers, and not */
        f->b->device.gemm_integer = integer;
        bench_few(f, 8, 1), bench_few(f, 8, 8), bench_few(f, 16, 16);
        if (tensor_format_is_plain(f->format)) break;
    }
    f->b->device.gemm_integer = 0;
    if (tensor_format_is_plain(f->format)) return;
    bench_short(f, GPUK_BLOCKS_TOKENS);
    const size_t out_bytes = (size_t)rows * cols * 2;
    row_of(f, "expanded", bench_time_graph(f->b, 2, [&] {
               for (uint32_t i = 0; i < f->matrices; i++) {
                   const struct gpuk_linear_args a = product_of(f, i);
                   const struct gpuk_expand_part part = {f->format,
                                                         a.segment[0].weight,
                                                         nullptr,
                                                         f->expanded + i % (EXPANDED / out_bytes) * out_bytes,
                                                         rows,
                                                         cols};
                   GPUK(gpuk_expand(&f->b->device, &part, 1, 0, f->b->stream, &err));
               }
           }));
}

void bench_formats(struct bench *b, const char *only)
{
    struct formats_bench f = {};
    f.b = b;
    f.weights = (char *)device_memory(WEIGHTS, 0);
    std::vector<uint32_t> random(1 << 24); /* any bytes: what they are takes no other time */
    uint32_t state = 12345;
    for (uint32_t &word : random) word = state = state * 1664525u + 1013904223u, word ^= word >> 16;
    for (size_t at = 0; at < WEIGHTS; at += random.size() * 4)
        CUDA(cudaMemcpy(f.weights + at, random.data(), random.size() * 4, cudaMemcpyHostToDevice));
    f.expanded = (char *)device_memory(EXPANDED, 0);
    f.x = (float *)device_memory(16 * COLS_MAX * sizeof(float), 0);
    f.out = (float *)device_memory(16 * ROWS_MAX * sizeof(float), 0);
    f.workspace = device_memory(gpuk_gemm_small_workspace_bytes(16, COLS_MAX), 0);
    f.list = device_memory(gpuk_chain_bytes(nullptr, MATRICES_MAX), 0);
    f.count = (uint32_t *)device_memory(sizeof(uint32_t), 0);
    f.chunk = device_memory((size_t)GPUK_BLOCKS_TOKENS * COLS_MAX * 2, 0);
    f.chunk_out = device_memory((size_t)GPUK_BLOCKS_TOKENS * ROWS_MAX * 2, 0);
    f.matmul = device_memory(GPUK_MATMUL_WORKSPACE, 0);
    const uint32_t shapes[][2] = {{4096, 4096}, {12288, 4096}, {4096, 12288}, {28672, 2560}, {4096, 14336}};
    for (int format = 0; format < FORMAT_COUNT; format++) {
        f.format = (enum tensor_format)format;
        if (tensor_format_of(f.format)->variable) continue;
        if (only && strcmp(only, tensor_format_name(f.format)) != 0) continue;
        for (auto &shape : shapes) bench_shape_of(&f, shape[0], shape[1], shape[1] <= 12288);
    }
    for (void *at : {(void *)f.weights, (void *)f.expanded, (void *)f.x, (void *)f.out, f.workspace, f.list,
                     (void *)f.count, f.chunk, f.chunk_out, f.matmul})
        CUDA(cudaFree(at));
}
