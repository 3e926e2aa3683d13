/* helm-bench-kernels --few: an invariant plan's several tokens ("apart": each with the bits of one) beside another plan's
 * ("together"), by one token's time.
 *
 * Called by tools/bench/helm_bench_kernels.c. Each thread has weights of its own, which exceed the caches, and goes on
 * through them from sample to sample, a block of rows after another, as worker-cpu/program/linear.c does. All counts are measured
 * in turn, so that a neighbour's load falls on all of them; what is printed is the least of all samples. */
#include "tools/bench/kernels/few.h"

#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "common/cpu/kernels/linear.h"
#include "common/cpu/pool.h"
#include "common/formats/random_blocks.h"
#include "common/measure/stats.h"

#define COLS 4096u
#define BLOCK_BYTES                                                                                          \
    ((size_t)128 * KIB) /* of rows that all tokens are multiplied with before the next ones are read */
#define PASS_BYTES ((size_t)4 * MIB)   /* of a sample */
#define ALL_BYTES  ((size_t)256 * MIB) /* of a thread */
#define SAMPLES    25
#define TOKENS_MAX 16u
#define ROWS_MAX   1024u

static const uint32_t counts[] = {1, 2, 4, 8, 16};
#define COUNTS (sizeof counts / sizeof *counts)

struct bench {
    struct linear_set set;
    struct gemv_reads reads;
    enum tensor_format format;
    char *weights[POOL_THREADS_MAX];
    void *scratch[POOL_THREADS_MAX], *decoded[POOL_THREADS_MAX];
    float *y[POOL_THREADS_MAX], *x;
    float *ordered[TOKENS_MAX + 1]; /* by the number of tokens; NULL: not measured */
    char *tiled;
    size_t ldx[TOKENS_MAX + 1], at; /* of as many tokens' ordered x; where the next pass begins */
    uint32_t rows, tokens;
    bool together;
};

static uint32_t block_rows(const struct bench *b, uint32_t multiple)
{
    const uint32_t rows = (uint32_t)(BLOCK_BYTES / tensor_format_row_bytes(b->format, COLS));
    return rows / multiple * multiple + multiple;
}

static void apart(const struct bench *b, const char *w, uint32_t thread)
{
    const struct linear_kernel *k = b->set.one;
    const size_t row_bytes = tensor_format_row_bytes(b->format, COLS);
    const uint32_t each =
        b->tokens == 1 ? b->rows : block_rows(b, (uint32_t)(k->row_granule ? k->row_granule : k->streams));
    for (uint32_t row = 0; row < b->rows; row += each, w += each * row_bytes) {
        const uint32_t rows = b->rows - row < each ? b->rows - row : each;
        const float *x = b->ordered[b->tokens];
        const size_t ldx = b->ldx[b->tokens];
        if (k->few && b->tokens > 1)
            k->few(b->y[thread], rows, w, x, ldx, rows, COLS, b->tokens);
        else
            for (uint32_t t = 0; t < b->tokens; t++)
                k->gemv(b->y[thread] + t * rows, w, x + t * ldx, rows, COLS, &b->reads);
    }
}

static void together(const struct bench *b, const char *w, uint32_t thread)
{
    const struct linear_kernel *k = b->set.tokens, *decode = b->set.decode;
    const size_t row_bytes = tensor_format_row_bytes(b->format, COLS);
    const uint32_t granule = (uint32_t)k->row_granule, each = decode ? granule
                                                              : b->rows / granule
                                                                  ? b->rows / granule * granule
                                                                  : b->rows;
    if (k->thread_begin) k->thread_begin();
    for (uint32_t row = 0; row < b->rows; row += each, w += each * row_bytes) {
        const uint32_t rows = b->rows - row < each ? b->rows - row : each;
        if (decode) decode->decode(b->decoded[thread], w, rows, COLS);
        k->gemm(b->y[thread], b->rows, decode ? b->decoded[thread] : w, b->tiled, rows, COLS, b->tokens,
                false, b->scratch[thread]);
    }
    if (k->thread_end) k->thread_end();
}

static void do_part(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct bench *b = ctx;
    if (b->together)
        together(b, b->weights[chunk] + b->at, thread);
    else
        apart(b, b->weights[chunk] + b->at, thread);
}

static double pass(struct bench *b, struct pool *pool, uint32_t threads)
{
    const size_t bytes = b->rows * tensor_format_row_bytes(b->format, COLS);
    if (b->at + 2 * bytes > ALL_BYTES) b->at = 0;
    const uint64_t from = units_now_ns();
    pool_run_region(pool, do_part, b, threads);
    b->at += bytes;
    return (double)(units_now_ns() - from) * 1e-9;
}

static void measure(struct bench *b, enum linear_inputs inputs, struct pool *pool, uint32_t threads)
{
    double least[2][COUNTS];
    const struct linear_kernel *one = b->set.one, *tokens = b->set.tokens;
    b->rows = (uint32_t)(PASS_BYTES / tensor_format_row_bytes(b->format, COLS));
    if (b->rows > ROWS_MAX) b->rows = ROWS_MAX;
    for (size_t i = 0; i < COUNTS; i++) {
        const uint32_t n = counts[i];
        b->ldx[n] = COLS;
        if (!one->order)
            memcpy(b->ordered[n], b->x, (size_t)n * COLS * sizeof *b->x);
        else if (n == 1)
            one->order(b->ordered[n], b->x, COLS);
        else
            b->ldx[n] = linear_order_few(one, b->ordered[n], b->x, COLS, n, COLS);
    }
    for (int s = -1; s < SAMPLES; s++) /* the first warms up */
        for (size_t i = 0; i < COUNTS; i++)
            for (int way = 0; way < 2; way++) {
                b->tokens = counts[i];
                b->together = way;
                if (way) tokens->tile(b->tiled, b->x, COLS, b->tokens, COLS, 0, b->tokens, 0, COLS);
                const double seconds = pass(b, pool, threads);
                if (s <= 0 || seconds < least[way][i]) least[way][i] = seconds;
            }
    const double bytes = (double)b->rows * (double)tensor_format_row_bytes(b->format, COLS) * threads;
    printf("%-6s %-5s %-12s %-12s %6.1f  ", tensor_format_name(b->format), linear_inputs_name(inputs),
           one->name, tokens->name, 1e-9 * bytes / least[0][0]);
    for (int way = 0; way < 2; way++, printf("  "))
        for (size_t i = 1; i < COUNTS; i++) printf(" %5.2f", least[way][i] / least[0][0]);
    printf("\n");
    fflush(stdout);
}

static int bench_formats(struct bench *b, const char *name, enum tensor_format only, struct pool *pool,
                         uint32_t threads, struct helm_err *err)
{
    int filled = -1;
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (int inputs = LINEAR_EXACT; inputs < LINEAR_INPUTS; inputs++) {
            const size_t bytes = tensor_format_of((enum tensor_format)f)->block_bytes;
            b->format = (enum tensor_format)f;
            if (tensor_format_of(b->format)->variable || (only != FORMAT_COUNT && only != b->format))
                continue;
            int rc =
                linear_choose_set(b->format, (enum linear_inputs)inputs, cpu_features(), name, &b->set, err);
            if (rc) return rc;
            if (!b->set.one || !b->set.tokens || (inputs == LINEAR_INT8 && b->set.one->inputs != LINEAR_INT8))
                continue;
            if (filled != f)
                for (uint32_t t = 0; t < threads; t++)
                    random_blocks_fill(b->format, b->weights[t], ALL_BYTES / bytes * bytes);
            filled = f;
            measure(b, (enum linear_inputs)inputs, pool, threads);
        }
    return 0;
}

int bench_few(const char *name, enum tensor_format format, unsigned threads, const struct cpu_set *cpus,
              struct helm_err *err)
{
    static struct bench b; /* large */
    struct pool *pool = NULL;
    const size_t room = (size_t)16 * MIB;
    b.reads = gemv_reads_choose();
    b.x = stats_map_huge((size_t)TOKENS_MAX * COLS * sizeof *b.x);
    for (size_t i = 0; i < COUNTS; i++)
        if (!(b.ordered[counts[i]] = stats_map_huge(room)))
            return helm_fail_errno(err, "no memory to measure with");
    b.tiled = stats_map_huge(room);
    for (uint32_t t = 0; t < threads; t++) {
        b.weights[t] = stats_map_huge(ALL_BYTES);
        b.scratch[t] = stats_map_huge(room);
        b.decoded[t] = stats_map_huge(room);
        b.y[t] = stats_map_huge((size_t)TOKENS_MAX * ROWS_MAX * sizeof(float));
        if (!b.weights[t] || !b.scratch[t] || !b.decoded[t] || !b.y[t])
            return helm_fail_errno(err, "no memory to measure with");
    }
    if (!b.x || !b.tiled) return helm_fail_errno(err, "no memory to measure with");
    for (size_t i = 0; i < (size_t)TOKENS_MAX * COLS; i++)
        b.x[i] = (float)(int)(i * 2654435761u % 255) / 128 - 1;
    int rc = pool_create(threads, cpus->cpu, POOL_SPIN_US_DEFAULT, &pool, err);
    if (rc) return rc;
    printf("%u columns, weights in memory, %u threads; tokens by one token's time\n", COLS, threads);
    printf("                                       one      apart                     together\n");
    printf("format inputs one token    several        GB/s       2     4     8    16       2     4     8    "
           "16\n");
    rc = bench_formats(&b, name, format, pool, threads, err);
    pool_destroy(pool);
    return rc;
}
