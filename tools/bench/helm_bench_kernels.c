/* helm-bench-kernels: what each linear kernel reaches on this machine, beside the limits measured in the same
 * run.
 *
 * The threads are a pool, pinned one a core. GEMV reads weight copies that together exceed every cache; its
 * limit is the best of several plain read loops over the same memory by the same threads
 * (common/measure/reader.h), run alternately with it. GEMM (tiling included) is limited by the register-only
 * multiply rate or by reading its weights once, whichever is longer. Every number is the median of several
 * alternating samples. Attention, and several tokens with the bits of one each, are measured by helm-profile
 * with the worker's engine. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/base/units.h"
#include "common/formats/random_blocks.h"
#include "common/measure/reader.h"
#include "common/measure/stats.h"
#include "common/cpu/kernels/linear.h"
#include "common/cpu/kernels/probe.h"
#include "common/cpu/pool.h"

#define SAMPLES_MAX 15
#define WEIGHTS_MIN ((size_t)640 << 20)
#define WEIGHTS_MAX ((size_t)4 << 30)
#define READ_CHUNK  ((size_t)256 << 10)
#define READ_S      0.3 /* to find the fastest loop */
#define CACHES      8   /* times the last-level cache: what goes round in it is not memory's speed */
#define COLS_MAX    12288
#define ROWS_MAX    12288
#define TOKENS_MAX  512

enum job { JOB_FILL, JOB_FLOPS, JOB_GEMV, JOB_GEMM };

struct bench {
    unsigned threads, features;
    size_t samples;
    bool json, any_output;
    struct cpu_set cpus;
    struct pool *pool;
    void *scratch[POOL_THREADS_MAX];
    size_t scratch_bytes;
    char *weights;
    size_t weights_bytes;
    float *x, *y, *ordered; /* ordered: x as the kernel of one token reads it */
    void *tiled;
    size_t tiled_bytes;
    /* the job all threads do next */
    enum job job;
    const struct linear_kernel *kernel;
    size_t rows, cols, tokens, copy, copies; /* copies [copy, copy + copies) modulo as many as there are */
    struct gemv_reads reads;
    struct reader reader; /* of all weights */
    probe_flops_fn *flops;
    size_t rounds;
    size_t regions; /* of JOB_GEMM that were handed out: tiling and product in turn */
    /* limits */
    double read_gbs;
};

static size_t matrix_bytes(const struct bench *b)
{
    return b->rows * tensor_format_row_bytes(b->kernel->format, b->cols);
}

static size_t copy_bytes(const struct bench *b)
{
    return (matrix_bytes(b) + 4095) / 4096 * 4096;
}

/* Thread `index`'s part of `n` things in multiples of `granule`. */
static void share(size_t n, size_t granule, unsigned index, unsigned threads, size_t *first, size_t *last)
{
    size_t units = (n + granule - 1) / granule;
    *first = units * index / threads * granule;
    *last = units * (index + 1) / threads * granule;
    if (*first > n) *first = n;
    if (*last > n) *last = n;
}

static void fill(struct bench *b, unsigned index)
{
    size_t first, last;
    share(b->weights_bytes / 8, 1 << 18, index, b->threads, &first, &last);
    random_numbers_fill(b->weights + first * 8, (last - first) * 8, index);
}

/* Multiplies by this thread's part of copy `copy` of the weights. */
static void multiply(struct bench *b, unsigned index, size_t copy)
{
    const struct linear_kernel *k = b->kernel;
    const size_t row_bytes = tensor_format_row_bytes(k->format, b->cols),
                 all = b->weights_bytes / copy_bytes(b);
    const char *w = b->weights + (b->copy + copy) % all * copy_bytes(b);
    size_t first, last;
    share(b->rows, b->job == JOB_GEMM ? k->row_granule : 1, index, b->threads, &first, &last);
    w += first * row_bytes;
    if (b->job == JOB_GEMV)
        k->gemv(b->y + first, w, k->order ? b->ordered : b->x, last - first, b->cols, &b->reads);
    else if (last > first)
        k->gemm(b->y + first, b->rows, w, b->tiled, last - first, b->cols, b->tokens, false,
                b->scratch[index]);
}

/* A chunk is a thread's part. */
static void do_part(void *ctx, uint32_t index, uint32_t thread)
{
    struct bench *b = ctx;
    const struct linear_kernel *k = b->kernel;
    size_t first, last;
    (void)thread;
    if (b->job == JOB_FILL) {
        fill(b, index);
        return;
    }
    if (k->thread_begin) k->thread_begin();
    if (b->job == JOB_FLOPS) {
        b->flops(b->rounds);
    } else if (b->job != JOB_GEMM) {
        for (size_t i = 0; i < b->copies; i++) multiply(b, index, i);
    } else if (b->regions % 2 == 0) {
        multiply(b, index, b->regions / 2 - 1);
    } else {
        share(b->tokens, k->tile_tokens, index, b->threads, &first, &last);
        if (last > first)
            k->tile(b->tiled, b->x + first * b->cols, b->cols, b->tokens, b->cols, first, last, 0, b->cols);
    }
    if (k->thread_end) k->thread_end();
}

static bool next_region(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct bench *b = ctx;
    (void)thread;
    if (b->regions == (b->job == JOB_GEMM ? 2 * b->copies : 1)) return false;
    b->regions++;
    *job = (struct pool_job){.run = do_part, .chunks = b->threads};
    return true;
}

/* Seconds all threads took for `job`. */
static double run_job(struct bench *b, enum job job)
{
    b->job = job;
    b->regions = 0;
    const uint64_t start = units_now_ns();
    pool_run(b->pool, next_region, b);
    return (double)(units_now_ns() - start) * 1e-9;
}

static void report(struct bench *b, const char *what, double achieved, double limit, const char *unit)
{
    const struct linear_kernel *k = b->kernel;
    const char *format = tensor_format_name(k->format);
    if (b->json) {
        printf("%s\n  {\"kernel\": \"%s\", \"variant\": \"%s\", \"inputs\": \"%s\", \"format\": \"%s\", "
               "\"rows\": %zu, \"cols\": "
               "%zu, "
               "\"tokens\": %zu, \"achieved\": %.2f, \"limit\": %.2f, \"ratio\": %.4f, \"unit\": \"%s\"}",
               b->any_output ? "," : "", what, k->name, linear_inputs_name(k->inputs), format, b->rows,
               b->cols, b->tokens, achieved, limit, achieved / limit, unit);
    } else {
        printf("%-5s %-12s %-5s %-6s %6zu x %-6zu %4zu  %9.1f %9.1f %-8s %6.1f %%\n", what, k->name, format,
               linear_inputs_name(k->inputs), b->rows, b->cols, b->tokens, achieved, limit, unit,
               100 * achieved / limit);
    }
    b->any_output = true;
    fflush(stdout);
}

/* The rate of memory, and with a kernel of one token what that reaches with this shape. */
static void bench_reads(struct bench *b, size_t rows, size_t cols)
{
    const bool gemv = b->kernel->schedule == LINEAR_ONE_TOKEN;
    if (gemv && b->kernel->order) b->kernel->order(b->ordered, b->x, cols);
    b->rows = rows, b->cols = cols, b->tokens = 1, b->copy = 0;
    b->copies = b->weights_bytes / copy_bytes(b);
    reader_choose(&b->reader, b->pool, READ_S);
    double read[SAMPLES_MAX], mine[SAMPLES_MAX];
    for (size_t i = 0; i < b->samples; i++) {
        read[i] = reader_pass(&b->reader, b->pool);
        if (gemv) mine[i] = run_job(b, JOB_GEMV);
    }
    double bytes = (double)matrix_bytes(b) * (double)b->copies / 1e9;
    b->read_gbs = reader_bytes(&b->reader) / stats_quantile(read, b->samples, 0.5) / 1e9;
    if (gemv) report(b, "gemv", bytes / stats_quantile(mine, b->samples, 0.5), b->read_gbs, "GB/s");
}

/* The register-only rate of the instruction a variant multiplies with. For numbers of 8 bits: vpdpbusd adds
 * four products a lane and goes where fp32's go; with AVX2 vpmaddubsw and an addition make sixteen products
 * of an instruction. */
static double peak_gflops(struct bench *b)
{
    const struct linear_kernel *k = b->kernel;
    const double times = k->inputs == LINEAR_EXACT ? 1 : k->features & CPU_AVX512_VNNI ? 4 : 2;
    b->flops = k->features & CPU_AMX_BF16      ? probe_amx_flops
               : k->features & CPU_AVX512_BF16 ? probe_avx512bf16_flops
               : k->features & CPU_AVX512      ? probe_avx512_flops
                                               : probe_avx2_flops;
    if (strcmp(k->name, "openblas") == 0 && b->features & CPU_AVX512) b->flops = probe_avx512_flops;
    b->rounds = 1;
    double seconds[SAMPLES_MAX], work = b->flops == probe_amx_flops ? 65536 : b->flops(1);
    b->rounds = (size_t)(4e9 / work);
    for (size_t i = 0; i < b->samples; i++) seconds[i] = run_job(b, JOB_FLOPS);
    return times * work * (double)b->rounds * b->threads / stats_quantile(seconds, b->samples, 0.5) / 1e9;
}

static int bench_gemm(struct bench *b, size_t rows, size_t cols, size_t tokens, double peak)
{
    const struct linear_kernel *k = b->kernel;
    b->rows = rows, b->cols = cols, b->tokens = tokens;
    if (k->tiled_bytes(tokens, cols) > b->tiled_bytes || k->scratch_bytes(cols, tokens) > b->scratch_bytes)
        return fprintf(stderr, "helm-bench-kernels: buffers too small for %s\n", k->name), 1;
    const double flop = 2.0 * (double)rows * (double)cols * (double)tokens;
    const double bytes = (double)matrix_bytes(b);
    const size_t all = b->weights_bytes / copy_bytes(b);
    /* About 30 ms a sample at half the limit. */
    double copies =
        0.03 / (2 * (flop / peak > bytes / b->read_gbs ? flop / peak : bytes / b->read_gbs) / 1e9);
    b->copies = copies < 1 ? 1 : copies > (double)all ? all : (size_t)copies;
    b->copy = 0;
    double seconds[SAMPLES_MAX];
    for (size_t i = 0; i < b->samples; i++, b->copy += b->copies) seconds[i] = run_job(b, JOB_GEMM);
    double limit = peak, at_bandwidth = flop / bytes * b->read_gbs;
    if (at_bandwidth < limit) limit = at_bandwidth;
    report(b, "gemm", flop * (double)b->copies / stats_quantile(seconds, b->samples, 0.5) / 1e9, limit,
           "GFLOP/s");
    return 0;
}

static int bench_kernel(struct bench *b, bool quick)
{
    static const size_t shapes[][2] = {{3072, 1024}, {1024, 3072}, {4096, 12288}};
    static const size_t tokens[] = {2, 4, 8, 16, 32, 128, 512};
    static const size_t quick_tokens[] = {8, 128};
    if (b->kernel->schedule == LINEAR_ONE_TOKEN) bench_reads(b, 4096, 12288);
    bench_reads(b, 12288, 4096);
    if (b->kernel->schedule == LINEAR_ONE_TOKEN) return 0;
    double peak = peak_gflops(b);
    int failed = 0;
    for (size_t s = 0; s < (quick ? 1 : 3); s++)
        for (size_t t = 0; t < (quick ? 2 : 7); t++)
            failed |= bench_gemm(b, shapes[s][0], shapes[s][1], quick ? quick_tokens[t] : tokens[t], peak);
    return failed;
}

static int prepare(struct bench *b, struct helm_err *err)
{
    size_t count, ordered = 1;
    const struct linear_kernel *const *table = linear_kernels(&count);
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or less: not known */
    b->weights_bytes = l3 > 0 ? CACHES * (size_t)l3 : WEIGHTS_MIN;
    if (b->weights_bytes < WEIGHTS_MIN) b->weights_bytes = WEIGHTS_MIN;
    if (b->weights_bytes > WEIGHTS_MAX) b->weights_bytes = WEIGHTS_MAX;
    for (size_t i = 0; i < count; i++) {
        if (table[i]->ordered_bytes && table[i]->ordered_bytes(COLS_MAX) > ordered)
            ordered = table[i]->ordered_bytes(COLS_MAX);
        if (table[i]->schedule != LINEAR_TOKENS) continue;
        size_t tiled = table[i]->tiled_bytes(TOKENS_MAX, COLS_MAX);
        size_t scratch = table[i]->scratch_bytes(COLS_MAX, TOKENS_MAX);
        if (tiled > b->tiled_bytes) b->tiled_bytes = tiled;
        if (scratch > b->scratch_bytes) b->scratch_bytes = scratch;
    }
    b->weights = stats_map_huge(b->weights_bytes);
    b->x = stats_map_huge((size_t)TOKENS_MAX * COLS_MAX * sizeof *b->x);
    b->y = stats_map_huge((size_t)TOKENS_MAX * ROWS_MAX * sizeof *b->y);
    b->tiled = stats_map_huge(b->tiled_bytes);
    b->ordered = stats_map_huge(ordered);
    for (unsigned i = 0; i < b->threads; i++) b->scratch[i] = stats_map_huge(b->scratch_bytes);
    if (!b->weights || !b->x || !b->y || !b->tiled || !b->ordered || !b->scratch[b->threads - 1])
        return helm_fail_errno(err, "no memory for %zu MiB of weights", b->weights_bytes >> 20);
    for (size_t i = 0; i < (size_t)TOKENS_MAX * COLS_MAX; i++)
        b->x[i] = (float)(int)(i * 2654435761u % 255) / 128 - 1;
    return 0;
}

int main(int argc, char *argv[])
{
    static struct bench bench;
    struct bench *b = &bench;
    struct helm_err err = {0};
    uint64_t threads = 0;
    const char *format = NULL, *name = NULL;
    bool quick = false;
    const struct args_option options[] = {
        {"threads", 't', ARGS_U64, "N", "threads, one a core (all usable cores)", .target = &threads,
         .min = 1, .max = POOL_THREADS_MAX},
        {"format", 0, ARGS_TEXT, "NAME", "only weights of this format: bf16, f16, f32", .target = &format},
        {"variant", 0, ARGS_TEXT, "NAME", "only kernels of this name; all but ref without it",
         .target = &name},
        {"quick", 'q', ARGS_FLAG, NULL, "fewer shapes and samples", .target = &quick},
        {"json", 0, ARGS_FLAG, NULL, "one JSON array instead of a table", .target = &b->json},
    };
    const struct args_spec spec = {.program = "helm-bench-kernels",
                                   .usage = "[options]",
                                   .about = "Measures the CPU's linear kernels beside this machine's limits.",
                                   ARGS_TABLE(options)};
    struct args_parsed parsed;
    args_parse_main(&spec, argc, argv, &parsed);
    if (cpu_usable(-1, &b->cpus, &err)) goto fail;
    b->features = cpu_features();
    b->reads = gemv_reads_choose();
    if (!(b->features & CPU_AVX2)) {
        helm_fail(&err, HELM_E_UNSUPPORTED, "this processor lacks avx2: the limits cannot be measured");
        goto fail;
    }
    if (b->features & CPU_AMX_BF16 && cpu_enable_amx(&err)) goto fail;
    if (threads > (uint64_t)b->cpus.count) {
        helm_fail(&err, HELM_E_USAGE, "--threads %lu: this process may use %d CPUs", (unsigned long)threads,
                  b->cpus.count);
        return args_usage_error(&spec, &err);
    }
    b->threads = threads ? (unsigned)threads : (unsigned)b->cpus.suggested;
    b->samples = quick ? 5 : 11;
    size_t count, done = 0;
    const struct linear_kernel *const *table = linear_kernels(&count);
    if (prepare(b, &err)) goto fail;
    if (pool_create(b->threads, b->cpus.cpu, POOL_SPIN_US_DEFAULT, &b->pool, &err)) goto fail;
    run_job(b, JOB_FILL);
    reader_open(&b->reader, b->weights, b->weights_bytes, READ_CHUNK);
    char text[256];
    if (b->json) {
        printf("[");
    } else {
        cpu_model_name(text, sizeof text);
        printf("%s, %u threads\n", text, b->threads);
        printf(
            "op    kernel       format inputs  rows x cols   tokens  achieved     limit            ratio\n");
    }
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        const struct linear_kernel *k = table[i];
        if (tensor_format_of(k->format)->variable || k->schedule == LINEAR_DECODE) continue;
        if (format && strcmp(format, tensor_format_name(k->format)) != 0) continue;
        if (name ? strcmp(name, k->name) != 0 : strcmp("ref", k->name) == 0) continue;
        done++;
        if (k->features & ~b->features) {
            fprintf(stderr, "%s %s: this machine lacks %s\n", k->name, tensor_format_name(k->format),
                    cpu_features_text(k->features & ~b->features, text, sizeof text));
            continue;
        }
        b->kernel = k;
        failed |= bench_kernel(b, quick);
    }
    if (b->json) printf("\n]\n");
    pool_destroy(b->pool);
    if (!done) {
        helm_fail(&err, HELM_E_USAGE, "no kernel \"%s\" for %s weights", name ? name : "any",
                  format ? format : "any");
        return args_usage_error(&spec, &err);
    }
    return failed;
fail:
    fprintf(stderr, "helm-bench-kernels: %s\n", err.text);
    return 1;
}
