/* helm-bench-kernels --packed: packed weights' size and the speed of packing, of random weights or a model's;
 * what computing with them gains is measured in packed_gemv.c.
 *
 * Called by tools/bench/helm_bench_kernels.c. A group is measured and then written, as a loader does it. Owns its
 * threads and buffers for the length of the call. */
#include "tools/bench/kernels/packed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"
#include "common/model/model.h"
#include "common/formats/packed.h"

#define RANDOM_ROWS 4096u
#define RANDOM_COLS 4096u
#define ROUNDS      5 /* of which the fastest counts */

/* A matrix, room for it packed, and how long that took. */
struct job {
    const uint16_t *value;
    uint32_t rows, cols;
    void *packed;
    uint32_t *offset;
    double pack_seconds, read_seconds;
    int rc;
    struct helm_err err;
};

static int job_room(struct job *j, struct helm_err *err)
{
    j->packed = aligned_alloc(PACKED_ALIGN, packed_matrix_bytes_max(j->rows, j->cols));
    j->offset = malloc(packed_offsets_bytes(j->rows));
    if (!j->packed || !j->offset) return helm_fail(err, HELM_E_NOMEM, "no memory to pack in");
    memset(j->packed, 0, packed_matrix_bytes_max(j->rows, j->cols)); /* pages are there before it is timed */
    return HELM_OK;
}
static void job_free(struct job *j)
{
    free(j->packed);
    free(j->offset);
    j->packed = NULL, j->offset = NULL;
}
static uint64_t job_bytes(const struct job *j)
{
    return packed_at(j->offset, packed_groups(j->rows));
}

static void pack_one(void *ctx, uint32_t index, uint32_t thread)
{
    struct job *j = (struct job *)ctx + index;
    (void)thread;
    if (j->rc == HELM_OK)
        j->rc = packed_write_matrix(j->value, j->rows, j->cols, j->packed, j->offset, &j->err);
}

/* Seconds of the fastest round in which all jobs are packed, one a thread of the pool (NULL: here). */
static double pack_jobs(struct job *job, uint32_t count, struct pool *pool)
{
    double fastest = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t begin = units_now_ns();
        if (pool)
            pool_run_region(pool, pack_one, job, count);
        else
            pack_one(job, 0, 0);
        const double seconds = (double)(units_now_ns() - begin) * 1e-9;
        if (round == 0 || seconds < fastest) fastest = seconds;
    }
    return fastest;
}

/* Reads it back and compares. */
static int job_check(struct job *j, const char *name, struct helm_err *err)
{
    const size_t values = (size_t)j->rows * j->cols;
    uint16_t *back = malloc(values * sizeof(*back));
    if (!back) return helm_fail(err, HELM_E_NOMEM, "no memory to read back into");
    memset(back, 0, values * sizeof(*back));
    const uint64_t begin = units_now_ns();
    const struct packed_part all = {.packed = j->packed,
                                    .bytes = job_bytes(j),
                                    .offset = j->offset,
                                    .rows = j->rows,
                                    .cols = j->cols,
                                    .groups = packed_groups(j->rows)};
    int rc = packed_read_groups(&all, back, err);
    j->read_seconds = (double)(units_now_ns() - begin) * 1e-9;
    if (rc == HELM_OK && memcmp(back, j->value, values * sizeof(*back)) != 0)
        rc = helm_fail(err, HELM_E_INTERNAL, "%s: does not come back bit for bit", name);
    free(back);
    return rc;
}

/* ---- random weights ---- */

void bench_fill_normal(uint16_t *value, size_t values, double scale)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < values; i++) {
        double uniform[2];
        for (int n = 0; n < 2; n++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            uniform[n] = (double)(state >> 11) * 0x1p-53;
        }
        const float x =
            (float)(scale * sqrt(-2 * log(uniform[0] + 1e-18)) * cos(6.283185307179586 * uniform[1]));
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        value[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* GB/s of plain weights that `threads` pack at once. */
static int pack_together(const uint16_t *value, unsigned threads, double *gbs, struct helm_err *err)
{
    struct job *job = calloc(threads, sizeof(*job));
    struct pool *pool = NULL;
    int rc = job ? pool_create(threads, NULL, POOL_SPIN_US_DEFAULT, &pool, err)
                 : helm_fail(err, HELM_E_NOMEM, "no memory for %u threads", threads);
    double seconds = 0;
    for (unsigned t = 0; t < threads && rc == HELM_OK; t++) {
        job[t] = (struct job){.value = value, .rows = RANDOM_ROWS, .cols = RANDOM_COLS};
        rc = job_room(&job[t], err);
    }
    if (rc == HELM_OK) seconds = pack_jobs(job, threads, pool);
    for (unsigned t = 0; t < threads && rc == HELM_OK; t++)
        if (job[t].rc != HELM_OK) rc = helm_fail(err, job[t].rc, "%s", job[t].err.text);
    *gbs = seconds > 0 ? 2e-9 * RANDOM_ROWS * RANDOM_COLS * threads / seconds : 0;
    for (unsigned t = 0; job && t < threads; t++) job_free(&job[t]);
    pool_destroy(pool);
    free(job);
    return rc;
}

static int bench_random(unsigned threads, struct helm_err *err)
{
    static const double scales[] = {0.005, 0.01, 0.02, 0.03};
    const size_t values = (size_t)RANDOM_ROWS * RANDOM_COLS;
    uint16_t *value = malloc(values * sizeof(*value));
    if (!value) return helm_fail(err, HELM_E_NOMEM, "no memory for weights");
    int rc = HELM_OK;
    printf("weights            bits  of plain  pack, 1 thread  read back, 1  pack, %u threads\n", threads);
    for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]) && rc == HELM_OK; s++) {
        struct job j = {.value = value, .rows = RANDOM_ROWS, .cols = RANDOM_COLS};
        double together = 0;
        bench_fill_normal(value, values, scales[s]);
        rc = job_room(&j, err);
        if (rc == HELM_OK) {
            j.pack_seconds = pack_jobs(&j, 1, NULL);
            rc = j.rc == HELM_OK ? job_check(&j, "N(0, scale)", err) : helm_fail(err, j.rc, "%s", j.err.text);
        }
        if (rc == HELM_OK) rc = pack_together(value, threads, &together, err);
        if (rc == HELM_OK)
            printf("N(0, %-5g)     %7.3f   %7.4f  %9.2f GB/s %8.2f GB/s %12.2f GB/s\n", scales[s],
                   8.0 * (double)job_bytes(&j) / (double)values,
                   (double)job_bytes(&j) / (2.0 * (double)values), 2e-9 * (double)values / j.pack_seconds,
                   2e-9 * (double)values / j.read_seconds, together);
        job_free(&j);
    }
    free(value);
    return rc;
}

/* ---- a model's weights ---- */

struct role_sum {
    uint64_t count, plain, packed;
    double pack_seconds, read_seconds;
};

static int add_tensor(const struct model *model, const struct model_tensor *tensor, struct role_sum *sum,
                      struct helm_err *err)
{
    int fd = -1;
    uint64_t bytes = 0;
    int rc = file_open_inside(model->folder, model->shards[tensor->shard].file, &fd, &bytes, err);
    if (rc != HELM_OK) return rc;
    uint16_t *value = malloc(tensor->bytes);
    struct job j = {.value = value, .rows = (uint32_t)tensor->rows, .cols = (uint32_t)tensor->cols};
    rc = value ? file_pread_all(fd, value, tensor->bytes, tensor->offset, tensor->name, err)
               : helm_fail(err, HELM_E_NOMEM, "no memory for %s", tensor->name);
    if (rc == HELM_OK) rc = job_room(&j, err);
    if (rc == HELM_OK) {
        j.pack_seconds = pack_jobs(&j, 1, NULL);
        rc = j.rc == HELM_OK ? job_check(&j, tensor->name, err) : helm_fail(err, j.rc, "%s", j.err.text);
    }
    if (rc == HELM_OK) {
        sum->count++;
        sum->plain += tensor->bytes;
        sum->packed += job_bytes(&j);
        sum->pack_seconds += j.pack_seconds;
        sum->read_seconds += j.read_seconds;
    }
    job_free(&j);
    free(value);
    close(fd);
    return rc;
}

static void print_sum(const char *name, const struct role_sum *s)
{
    const double plain = (double)s->plain, packed = (double)s->packed;
    printf("%-8s %6lu %10.1f MB %8.3f   %7.4f  %9.2f GB/s %8.2f GB/s\n", name, (unsigned long)s->count,
           plain / 1e6, 16.0 * packed / plain, packed / plain, plain / s->pack_seconds / 1e9,
           plain / s->read_seconds / 1e9);
}

static int bench_model(const char *folder, struct helm_err *err)
{
    static const struct {
        enum tensor_role role;
        const char *name;
    } roles[] = {{TENSOR_Q, "q"},       {TENSOR_K, "k"},   {TENSOR_V, "v"},      {TENSOR_O, "o"},
                 {TENSOR_GATE, "gate"}, {TENSOR_UP, "up"}, {TENSOR_DOWN, "down"}};
    struct model model;
    struct role_sum all = {0};
    uint64_t left_out = 0;
    int rc = model_read(folder, &model, err);
    if (rc != HELM_OK) return rc;
    printf("matrices  count      plain        bits  of plain   pack, 1 thread  read back, 1\n");
    for (size_t r = 0; r < sizeof(roles) / sizeof(roles[0]) && rc == HELM_OK; r++) {
        struct role_sum sum = {0};
        for (uint32_t i = 0; i < model.tensor_count && rc == HELM_OK; i++) {
            const struct model_tensor *tensor = &model.tensors[i];
            if (tensor->role != roles[r].role) continue;
            if (tensor->rows > UINT32_MAX || tensor->cols > UINT32_MAX || tensor->format != FORMAT_BF16 ||
                !packed_takes(DTYPE_BF16, (uint32_t)tensor->rows, (uint32_t)tensor->cols))
                left_out++;
            else
                rc = add_tensor(&model, tensor, &sum, err);
        }
        if (rc != HELM_OK || sum.count == 0) continue;
        print_sum(roles[r].name, &sum);
        all.count += sum.count, all.plain += sum.plain, all.packed += sum.packed;
        all.pack_seconds += sum.pack_seconds, all.read_seconds += sum.read_seconds;
    }
    if (rc == HELM_OK && all.count > 0) print_sum("all", &all);
    if (rc == HELM_OK && left_out > 0) printf("%lu matrices cannot be packed\n", (unsigned long)left_out);
    model_free(&model);
    return rc;
}

int bench_packed(const char *folder, unsigned threads, struct helm_err *err)
{
    if (folder) return bench_model(folder, err);
    int rc = bench_random(threads, err);
    return rc == HELM_OK ? bench_packed_gemv(threads, err) : rc;
}
