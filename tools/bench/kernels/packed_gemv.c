/* helm-bench-kernels --packed: one token's products with packed weights beside those with the plain ones.
 *
 * Called by tools/bench/kernels/packed.c. In cache: one thread, one group again and again, which is what decoding
 * and multiplying cost. From memory: all threads, a matrix far beyond caches, each its run of groups. Packed
 * and plain take turns; numbers are medians. Owns its pool and buffers for the length of the call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cpu.h"
#include "common/cpu/pool.h"
#include "common/base/units.h"
#include "common/formats/packed.h"
#include "tools/bench/kernels/packed.h"
#include "common/measure/stats.h"
#include "common/cpu/kernels/linear.h"

#define ROUNDS       9
#define CACHE_NS     50000000u           /* of a round in cache */
#define MATRIX_BYTES ((size_t)512 << 20) /* of the plain matrix in memory */
#define BLOCK_ROWS   256u                /* of random rows, which a matrix repeats */

struct gemv_bench {
    const struct linear_kernel *packed, *plain;
    struct gemv_reads reads;
    struct cpu_set cpus;
    unsigned threads;
    uint32_t rows, cols, groups;
    uint16_t *value;
    char *bytes;
    uint32_t *offset;
    float *x, *ordered, *y;
    bool now_packed;
    double seconds[2][ROUNDS]; /* plain, packed */
};

static void multiply(struct gemv_bench *b, bool packed, uint32_t first, uint32_t last)
{
    if (!packed) {
        b->plain->gemv(b->y + first * PACKED_ROWS, b->value + (size_t)first * PACKED_ROWS * b->cols, b->x,
                       (size_t)(last - first) * PACKED_ROWS, b->cols, &b->reads);
        return;
    }
    for (uint32_t g = first; g < last; g++) {
        struct gemv_reads reads = b->reads;
        reads.next = b->bytes + packed_at(b->offset, g + 1 < last ? g + 1 : first);
        b->packed->gemv(b->y + g * PACKED_ROWS, b->bytes + packed_at(b->offset, g), b->ordered, PACKED_ROWS,
                        b->cols, &reads);
    }
}

static void multiply_part(void *ctx, uint32_t part, uint32_t thread)
{
    struct gemv_bench *b = ctx;
    (void)thread;
    multiply(b, b->now_packed, (uint32_t)((uint64_t)b->groups * part / b->threads),
             (uint32_t)((uint64_t)b->groups * (part + 1) / b->threads));
}

static int from_memory(struct gemv_bench *b, struct helm_err *err)
{
    struct pool *pool;
    int rc = pool_create(b->threads, b->cpus.cpu, POOL_SPIN_US_DEFAULT, &pool, err);
    for (int round = 0; round < ROUNDS && !rc; round++)
        for (int packed = 0; packed < 2; packed++) {
            b->now_packed = packed;
            const uint64_t begin = units_now_ns();
            pool_run_region(pool, multiply_part, b, b->threads);
            b->seconds[packed][round] = (double)(units_now_ns() - begin) * 1e-9;
        }
    if (!rc) pool_destroy(pool);
    return rc;
}

static void in_cache(struct gemv_bench *b)
{
    uint32_t times = 1;
    multiply(b, true, 0, 1);
    for (uint64_t begin = units_now_ns(); units_now_ns() - begin < CACHE_NS; times++) multiply(b, true, 0, 1);
    for (int round = 0; round < ROUNDS; round++)
        for (int packed = 0; packed < 2; packed++) {
            const uint64_t begin = units_now_ns();
            for (uint32_t n = 0; n < times; n++) multiply(b, packed, 0, 1);
            b->seconds[packed][round] = (double)(units_now_ns() - begin) * 1e-9 / times;
        }
}

static void print_row(struct gemv_bench *b, const char *where, unsigned threads, double values, double part)
{
    const double plain = 2e-9 * values / stats_quantile(b->seconds[0], ROUNDS, 0.5),
                 packed = 2e-9 * values / stats_quantile(b->seconds[1], ROUNDS, 0.5);
    printf("%-10s %3u %9u %9.2f GB/s %9.2f GB/s %9.2f GB/s %8.3f\n", where, threads, b->cols, plain, packed,
           part * packed, packed / plain);
}

static int measure(struct gemv_bench *b, struct helm_err *err)
{
    const size_t row_bytes = b->cols * sizeof(uint16_t);
    b->rows = (uint32_t)(MATRIX_BYTES / row_bytes) / BLOCK_ROWS * BLOCK_ROWS;
    b->groups = packed_groups(b->rows);
    const size_t value_bytes = b->rows * row_bytes, room = packed_matrix_bytes_max(b->rows, b->cols);
    b->value = stats_map_huge(value_bytes);
    b->bytes = stats_map_huge(room);
    b->offset = malloc(packed_offsets_bytes(b->rows));
    b->x = aligned_alloc(64, b->cols * sizeof(float));
    b->ordered = aligned_alloc(64, b->cols * sizeof(float));
    b->y = aligned_alloc(64, b->rows * sizeof(float));
    int rc = HELM_OK;
    if (!b->value || !b->bytes || !b->offset || !b->x || !b->ordered || !b->y) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for a matrix of %zu MiB and what it packs to",
                       value_bytes >> 20);
        goto out;
    }
    bench_fill_normal(b->value, (size_t)BLOCK_ROWS * b->cols, 0.02);
    for (uint32_t r = BLOCK_ROWS; r < b->rows; r += BLOCK_ROWS)
        memcpy(b->value + (size_t)r * b->cols, b->value, BLOCK_ROWS * row_bytes);
    for (uint32_t c = 0; c < b->cols; c++) b->x[c] = (float)(int)(c * 2654435761u % 255) / 128 - 1;
    b->packed->order(b->ordered, b->x, b->cols);
    rc = packed_write_matrix(b->value, b->rows, b->cols, b->bytes, b->offset, err);
    if (rc != HELM_OK) goto out;
    in_cache(b);
    print_row(b, "in cache", 1, (double)PACKED_ROWS * b->cols,
              (double)packed_at(b->offset, 1) / (double)(PACKED_ROWS * row_bytes));
    rc = from_memory(b, err);
    if (rc != HELM_OK) goto out;
    print_row(b, "memory", b->threads, (double)b->rows * b->cols,
              (double)packed_at(b->offset, b->groups) / (double)value_bytes);
out:
    if (b->value) munmap(b->value, value_bytes);
    if (b->bytes) munmap(b->bytes, room);
    free(b->offset), free(b->x), free(b->ordered), free(b->y);
    return rc;
}

int bench_packed_gemv(unsigned threads, struct helm_err *err)
{
    static const uint32_t cols[] = {1024, 4096, 12288};
    const unsigned features = cpu_features();
    struct gemv_bench b = {.reads = gemv_reads_choose(), .threads = threads};
    int rc =
        linear_choose(FORMAT_BF16_PACKED, LINEAR_ONE_TOKEN, LINEAR_EXACT, features, NULL, &b.packed, err);
    if (rc == HELM_E_UNSUPPORTED) {
        printf("%s\n", err->text);
        return HELM_OK;
    }
    if (rc == HELM_OK)
        rc = linear_choose(FORMAT_BF16, LINEAR_ONE_TOKEN, LINEAR_EXACT, features & ~(unsigned)CPU_AMX_BF16,
                           NULL, &b.plain, err); /* of x as it is */
    if (rc == HELM_OK) rc = cpu_usable(-1, &b.cpus, err);
    if (rc == HELM_OK)
        printf(
            "one token   threads  cols          plain   packed, as plain  packed, read  faster   (%s, %s)\n",
            b.plain->name, b.packed->name);
    for (size_t c = 0; c < sizeof cols / sizeof *cols && rc == HELM_OK; c++) {
        b.cols = cols[c];
        rc = measure(&b, err);
    }
    return rc;
}
