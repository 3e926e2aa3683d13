/* Weights: layout, parallel loading. See weights.h. */
#include "worker-cpu/weights/weights.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/arch.h"
#include "common/base/units.h"

/* What one thread populates and reads at a time: a multiple of a huge page, small enough that progress is
 * smooth. */
#define WEIGHTS_PIECE (4 * ARENA_HUGE_PAGE)

static uint64_t digest_add(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ at[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return digest;
}

static void weights_digest_places(struct weights *w)
{
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct host_weights_place *p = &w->host.place[i];
        w->digest = digest_add(w->digest, &p->offset, sizeof p->offset);
        w->digest = digest_add(w->digest, &p->tensor->offset, sizeof p->tensor->offset);
        w->digest = digest_add(w->digest, &p->tensor->bytes, sizeof p->tensor->bytes);
        w->digest = digest_add(w->digest, &p->packed, sizeof p->packed);
        w->digest = digest_add(w->digest, p->tensor->name, strlen(p->tensor->name));
    }
}

/* Which bytes these are: the folder, and each shard's size and time of change. */
static int weights_digest_files(struct weights *w, struct helm_err *err)
{
    char root[PATH_MAX];
    if (!realpath(w->model->folder, root))
        return helm_fail_errno(err, "%s: cannot resolve", w->model->folder);
    w->digest = digest_add(UINT64_C(0xcbf29ce484222325), root, strlen(root));
    for (uint32_t i = 0; i < w->model->shard_count; i++) {
        int fd;
        uint64_t bytes;
        struct stat st;
        int rc = file_open_inside(w->model->folder, w->model->shards[i].file, &fd, &bytes, err);
        if (rc) return rc;
        int failed = fstat(fd, &st);
        close(fd);
        if (failed) return helm_fail_errno(err, "%s: cannot stat", w->model->shards[i].file);
        if (bytes != w->model->shards[i].bytes)
            return helm_fail(err, HELM_E_MISMATCH, "%s changed its size while it was read",
                             w->model->shards[i].file);
        w->digest = digest_add(w->digest, &st.st_ino, sizeof st.st_ino);
        w->digest = digest_add(w->digest, &st.st_size, sizeof st.st_size);
        w->digest = digest_add(w->digest, &st.st_mtim, sizeof st.st_mtim);
    }
    return 0;
}

/* Whether this worker computes with a tensor. */
static bool is_computed(const struct weights *w, const struct model_tensor *t)
{
    uint32_t layers = w->model->config.layers;
    if (t->layer >= 0) return w->computed[model_tensor_unit(t)];
    bool embed = w->computed[unit_count(layers)], head = w->computed[unit_count(layers) + 1];
    if (t->role == TENSOR_EMBED) return embed || (head && w->model->config.tied_head);
    return head;
}

static void note_computed(struct weights *w, const struct plan *plan)
{
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++) {
            const struct plan_stage *stage = &phase.stages[i];
            if (plan_home_processor(stage->home) != PLAN_CPU0) continue;
            for (uint32_t u = plan_stage_first_unit(stage); u <= plan_stage_last_unit(stage); u++)
                w->computed[u] = true;
        }
    }
    w->computed[unit_count(plan->layers)] = plan->embed == PLAN_CPU0;
    w->computed[unit_count(plan->layers) + 1] = plan->head == PLAN_CPU0;
    for (uint32_t i = 0; i < w->host.count; i++)
        if (is_computed(w, w->host.place[i].tensor)) {
            const struct host_weights_place *p = &w->host.place[i];
            w->formats |= format_bit(p->packed ? FORMAT_BF16_PACKED : p->tensor->format);
        }
}

int weights_plan(const struct model *model, const struct plan *plan, struct weights *w, struct helm_err *err)
{
    const struct model_config *c = &model->config;
    memset(w, 0, sizeof *w);
    w->model = model;
    size_t cells = ((size_t)c->layers + 1) * TENSOR_ROLE_COUNT;
    w->matrix = calloc(cells, sizeof *w->matrix);
    w->vector = calloc(cells, sizeof *w->vector);
    w->computed = calloc((size_t)unit_count(c->layers) + 2, sizeof *w->computed);
    int rc = 0;
    if (!w->matrix || !w->vector || !w->computed) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the table of weights");
        goto out;
    }
    rc = host_weights_plan(model, plan, &w->host, err);
    if (!rc) rc = weights_digest_files(w, err);
    if (rc) goto out;
    weights_digest_places(w);
    note_computed(w, plan);
out:
    if (rc) weights_free(w);
    return rc;
}

struct weights_job {
    struct weights *w;
    const struct arena *arena;
    char *region;
    uint64_t region_offset;
    uint32_t pieces;
    bool handed_out;
    const int *fd; /* per shard */
    _Atomic uint64_t *bytes_done;
    const _Atomic bool *cancel;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards what follows */
    int rc;
    struct helm_err err;
    uint64_t huge_bytes, small_bytes;
};

static void job_fail(struct weights_job *job, int rc, const struct helm_err *err)
{
    pthread_mutex_lock(&job->lock);
    if (!job->rc) {
        job->rc = rc;
        if (err) job->err = *err;
    }
    pthread_mutex_unlock(&job->lock);
    atomic_store(&job->failed, true);
}

/* The first tensor that ends after `offset`. */
static uint32_t place_find(const struct weights *w, uint64_t offset)
{
    uint32_t low = 0, high = w->host.count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (w->host.place[mid].offset + w->host.place[mid].tensor->bytes <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Huge pages first, so that data lands in them at once and is never moved. */
static void load_piece(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct weights_job *job = ctx;
    const struct weights *w = job->w;
    uint64_t first = (uint64_t)chunk * WEIGHTS_PIECE, last = first + WEIGHTS_PIECE;
    uint64_t huge = 0, small = 0;
    struct helm_err err = {0};
    if (atomic_load_explicit(&job->failed, memory_order_relaxed)) return;
    if (job->cancel && atomic_load_explicit(job->cancel, memory_order_relaxed)) {
        helm_fail(&err, HELM_E_CANCELLED, "loading was cancelled");
        job_fail(job, HELM_E_CANCELLED, &err);
        return;
    }
    if (last > w->host.region_bytes) last = w->host.region_bytes;
    arena_populate(job->arena, job->region_offset + first, last - first, &huge, &small);
    for (uint32_t i = place_find(w, first); i < w->host.count && w->host.place[i].offset < last; i++) {
        const struct host_weights_place *p = &w->host.place[i];
        if (p->packed) continue;
        uint64_t from = p->offset > first ? p->offset : first;
        uint64_t to = p->offset + p->tensor->bytes < last ? p->offset + p->tensor->bytes : last;
        int rc = model_tensor_read(p->tensor, job->fd[p->tensor->shard], from - p->offset, to - from,
                                   job->region + from, &err);
        if (rc) {
            job_fail(job, rc, &err);
            return;
        }
        if (job->bytes_done) atomic_fetch_add_explicit(job->bytes_done, to - from, memory_order_relaxed);
    }
    pthread_mutex_lock(&job->lock);
    job->huge_bytes += huge;
    job->small_bytes += small;
    pthread_mutex_unlock(&job->lock);
}

static bool load_next(void *ctx, uint32_t thread, struct pool_job *out)
{
    (void)thread;
    struct weights_job *job = ctx;
    if (job->handed_out) return false;
    job->handed_out = true;
    *out = (struct pool_job){.run = load_piece, .chunks = job->pieces};
    return true;
}

/* Norm weights and biases of what is computed here: few and small, so read one after another and kept as
 * fp32. */
static int load_vectors(struct weights *w, const int *fd, const struct kernel_set *kernels,
                        struct helm_err *err)
{
    const struct model *m = w->model;
    uint64_t floats = 0, largest = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        if (!arch_role_is_vector(m->tensors[i].role) || !is_computed(w, &m->tensors[i])) continue;
        floats += (m->tensors[i].rows * m->tensors[i].cols + 15) / 16 * 16;
        if (m->tensors[i].bytes > largest) largest = m->tensors[i].bytes;
    }
    void *raw = malloc((size_t)largest + 1);
    w->vectors = aligned_alloc(64, (size_t)(floats + 16) * sizeof(float));
    int rc = 0;
    if (!raw || !w->vectors) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes of norm weights and biases",
                       (unsigned long long)(floats * sizeof(float)));
        goto out;
    }
    float *at = w->vectors;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct model_tensor *t = &m->tensors[i];
        if (!arch_role_is_vector(t->role) || !is_computed(w, t)) continue;
        size_t n = (size_t)(t->rows * t->cols);
        rc = model_tensor_read(t, fd[t->shard], 0, t->bytes, raw, err);
        if (rc) goto out;
        kernels->vector->load(at, raw, tensor_format_value(t->format), n);
        w->vector[(uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role] = at;
        at += (n + 15) / 16 * 16;
    }
out:
    free(raw);
    return rc;
}

static void fill_matrix_table(struct weights *w, const char *region)
{
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct host_weights_place *p = &w->host.place[i];
        const struct model_tensor *t = p->tensor;
        const char *at = region + p->offset;
        if (p->packed && !is_computed(w, t)) continue;
        const struct tensor_matrix matrix = {.format = p->packed ? FORMAT_BF16_PACKED : t->format,
                                             .data = at,
                                             .bytes = host_weights_room(t, p->packed),
                                             .rows = (uint32_t)t->rows,
                                             .cols = (uint32_t)t->cols};
        w->matrix[(uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role] = matrix;
        if (t->role == TENSOR_EMBED && w->model->config.tied_head) w->matrix[TENSOR_HEAD] = matrix;
    }
}

static int load_matrices(struct weights *w, const struct arena *arena, const int *fd, struct pool *pool,
                         _Atomic uint64_t *bytes_done, const _Atomic bool *cancel, struct helm_err *err)
{
    const struct arena_region *region = &arena_header_of(arena)->region[ARENA_REGION_WEIGHTS];
    uint64_t pieces = (w->host.region_bytes + WEIGHTS_PIECE - 1) / WEIGHTS_PIECE;
    if (pieces == 0) return 0;
    if (pieces > POOL_CHUNKS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "weights: %llu bytes exceed the limit of %llu",
                         (unsigned long long)w->host.region_bytes,
                         (unsigned long long)(POOL_CHUNKS_MAX * WEIGHTS_PIECE));
    struct weights_job job = {.w = w,
                              .arena = arena,
                              .region = arena_region_ptr(arena, ARENA_REGION_WEIGHTS),
                              .region_offset = region->offset,
                              .pieces = (uint32_t)pieces,
                              .fd = fd,
                              .bytes_done = bytes_done,
                              .cancel = cancel,
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    pool_run(pool, load_next, &job);
    w->huge_bytes = job.huge_bytes;
    w->small_bytes = job.small_bytes;
    pthread_mutex_destroy(&job.lock);
    if (job.rc && err) *err = job.err;
    return job.rc;
}

static int open_shards(const struct weights *w, int **fd, uint32_t *open_count, struct helm_err *err)
{
    *open_count = 0;
    *fd = malloc((w->model->shard_count + 1) * sizeof **fd);
    if (!*fd) return helm_fail(err, HELM_E_NOMEM, "no memory for %u file descriptors", w->model->shard_count);
    for (; *open_count < w->model->shard_count; ++*open_count) {
        uint64_t bytes;
        int rc = file_open_inside(w->model->folder, w->model->shards[*open_count].file, &(*fd)[*open_count],
                                  &bytes, err);
        if (rc) return rc;
    }
    return 0;
}

static void close_shards(int *fd, uint32_t open_count)
{
    while (open_count) close(fd[--open_count]);
    free(fd);
}

int weights_place(struct weights *w, const void *region, const struct kernel_set *kernels,
                  struct helm_err *err)
{
    int *fd;
    uint32_t open_count;
    int rc = open_shards(w, &fd, &open_count, err);
    if (!rc) rc = load_vectors(w, fd, kernels, err);
    if (!rc) fill_matrix_table(w, region);
    close_shards(fd, open_count);
    return rc;
}

int weights_load(struct weights *w, const struct arena *arena, const struct kernel_set *kernels,
                 struct pool *pool, bool ready, _Atomic uint64_t *bytes_done, const _Atomic bool *cancel,
                 struct helm_err *err)
{
    const struct arena_region *region = &arena_header_of(arena)->region[ARENA_REGION_WEIGHTS];
    char *base = arena_region_ptr(arena, ARENA_REGION_WEIGHTS);
    int *fd;
    uint32_t open_count;
    if (w->host.region_bytes > region->bytes)
        return helm_fail(err, HELM_E_CAPACITY, "weights need %llu bytes, the arena's region has %llu",
                         (unsigned long long)w->host.region_bytes, (unsigned long long)region->bytes);
    int rc = open_shards(w, &fd, &open_count, err);
    if (rc) goto out;
    rc = load_vectors(w, fd, kernels, err);
    if (rc) goto out;
    uint64_t bytes = (region->bytes + 4095) / 4096 * 4096;
    if (!ready) {
        /* An engine before this one in the same process left it read-only. */
        if (bytes && mprotect(base, (size_t)bytes, PROT_READ | PROT_WRITE) != 0) {
            rc = helm_fail_errno(err, "cannot make the weights region writable");
            goto out;
        }
        rc = load_matrices(w, arena, fd, pool, bytes_done, cancel, err);
        if (!rc) rc = weights_pack(w, base, fd, pool, bytes_done, cancel, err);
        if (rc) goto out;
    }
    weights_count_packed(w, base);
    fill_matrix_table(w, base);
    /* From here on a stray write is a fault, not a silently different model. */
    if (bytes && mprotect(base, (size_t)bytes, PROT_READ) != 0)
        rc = helm_fail_errno(err, "cannot make the weights read-only");
out:
    close_shards(fd, open_count);
    return rc;
}

void weights_free(struct weights *w)
{
    free(w->matrix);
    free(w->vector);
    free(w->vectors);
    free(w->computed);
    host_weights_free(&w->host);
    memset(w, 0, sizeof *w);
}
