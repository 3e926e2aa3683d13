/* Weights: parallel loading. See weights.h. */
#include "worker-cpu/weights/weights.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/model/content.h"
#include "common/plan/engine_limits.h"
#include "common/formats/packed.h"

/* Bytes that one thread populates and reads at a time: a multiple of a huge page, small enough that progress
 * is smooth. */
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
        const struct placement *p = &w->host.place[i];
        const struct model_tensor *t = placement_tensor(w->model, p);
        w->digest = digest_add(w->digest, &p->offset, sizeof p->offset);
        w->digest = digest_add(w->digest, &t->offset, sizeof t->offset);
        w->digest = digest_add(w->digest, &t->bytes, sizeof t->bytes);
        w->digest = digest_add(w->digest, &p->format, sizeof p->format);
        w->digest = digest_add(w->digest, t->name, strlen(t->name));
    }
}

/* The digest of the files: the folder, and each shard's size and time of change. */
static int weights_digest_files(struct weights *w, struct helm_err *err)
{
    char root[PATH_MAX];
    struct model_shards shards;
    if (!w->model->shard_count) return 0; /* a model that was made to be measured */
    if (!realpath(w->model->folder, root))
        return helm_fail_errno(err, "%s: cannot resolve", w->model->folder);
    w->digest = digest_add(UINT64_C(0xcbf29ce484222325), root, strlen(root));
    int rc = model_shards_open(w->model, &shards, err);
    for (uint32_t i = 0; i < w->model->shard_count && !rc; i++) {
        const char *file = w->model->shards[i].file;
        struct stat st = {0};
        if (fstat(shards.fd[i], &st))
            rc = helm_fail_errno(err, "%s: cannot stat", file);
        else if (shards.bytes[i] != w->model->shards[i].bytes)
            rc = helm_fail(err, HELM_E_MISMATCH, "%s changed its size while it was read", file);
        w->digest = digest_add(w->digest, &st.st_ino, sizeof st.st_ino);
        w->digest = digest_add(w->digest, &st.st_size, sizeof st.st_size);
        w->digest = digest_add(w->digest, &st.st_mtim, sizeof st.st_mtim);
    }
    model_shards_close(&shards);
    return rc;
}

/* Whether this worker computes with a tensor. */
static bool is_computed(const struct weights *w, const struct model_tensor *t)
{
    uint32_t layers = w->model->config.layers;
    if (t->layer >= 0) return w->computed[model_tensor_unit(t)];
    bool embed = w->computed[unit_count(layers)], head = w->computed[unit_count(layers) + 1];
    const struct model_config *c = &w->model->config;
    if (t->role == TENSOR_EMBED) return embed || w->inputs || (head && (c->tied_head || c->drafts));
    if (model_is_input(w->model, t->role)) return w->inputs;
    return head;
}

static void note_computed(struct weights *w, const struct plan *plan)
{
    w->formats |= placements_formats(&w->disk);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        w->computed[u] = plan_computes(plan, PLAN_CPU0, u);
    w->inputs = placement_inputs(w->model, plan, PLAN_CPU0);
    w->computed[unit_count(plan->layers)] = plan->embed == PLAN_CPU0;
    w->computed[unit_count(plan->layers) + 1] = plan->head == PLAN_CPU0;
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct model_tensor *t = placement_tensor(w->model, &w->host.place[i]);
        w->matrix_bytes += t->bytes;
        if (is_computed(w, t)) w->formats |= format_bit(w->host.place[i].format);
    }
    for (uint32_t l = 0; l < plan->layers; l++) /* by a router's numbers, which are kept as fp32 */
        if (model_layer_sparse(&w->model->config, l) && w->computed[unit_of(l, UNIT_MLP)])
            w->formats |= format_bit(FORMAT_F32);
    w->vector_bytes = placement_vectors(w->model, plan, PLAN_CPU0, w->vector_place, &w->vector_count);
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
    w->vector_place = calloc((size_t)model->tensor_count + 1, sizeof *w->vector_place);
    int rc = w->matrix && w->vector && w->computed && w->vector_place
                 ? placement_check(model, plan, err)
                 : helm_fail(err, HELM_E_NOMEM, "no memory for the table of weights");
    if (!rc) rc = weights_digest_files(w, err);
    if (rc) {
        weights_free(w);
        return rc;
    }
    w->host = placements_in(plan, PLAN_HOST);
    w->disk = placements_in(plan, PLAN_DISK);
    weights_digest_places(w);
    note_computed(w, plan);
    return 0;
}

struct weights_job {
    struct weights *w;
    const struct weights_loading *loading;
    char *region;
    uint64_t region_offset;
    struct model_shards shards;
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

/* The first matrix that ends after `offset`. */
static uint32_t place_find(const struct weights *w, uint64_t offset)
{
    uint32_t low = 0, high = w->host.count;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (w->host.place[mid].offset + w->host.place[mid].bytes <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Loads the part of a matrix in the region's bytes from `first` to `last`: of one in another format than in
 * the file the rows that begin there. */
static int load_part(const struct weights_job *job, const struct placement *p, uint64_t first, uint64_t last,
                     struct helm_err *err)
{
    const struct model_tensor *t = placement_tensor(job->w->model, p);
    _Atomic uint64_t *done = job->loading->bytes_done;
    uint64_t bytes;
    const uint64_t from = first > p->offset ? first - p->offset : 0,
                   to = last < p->offset + p->bytes ? last - p->offset : p->bytes,
                   row_bytes = tensor_format_row_bytes(p->format, t->cols),
                   row = (from + row_bytes - 1) / row_bytes, end = (to + row_bytes - 1) / row_bytes;
    const struct model_rows rows = {.tensor = t,
                                    .row = (uint32_t)row,
                                    .rows = (uint32_t)(end - row),
                                    .format = p->format};
    int rc;
    if (p->format == t->format) {
        bytes = to - from;
        rc = model_shards_read(&job->shards, t, from, bytes, job->region + p->offset + from, err);
    } else {
        bytes = (end - row) * tensor_format_row_bytes(t->format, t->cols);
        rc = model_shards_read_rows(&job->shards, &rows, job->region + p->offset + row * row_bytes, err);
    }
    if (!rc && done) atomic_fetch_add_explicit(done, bytes, memory_order_relaxed);
    return rc;
}

/* Huge pages first, so that data lands in them at once and is never moved. */
static void load_piece(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct weights_job *job = ctx;
    const struct weights *w = job->w;
    const struct weights_loading *l = job->loading;
    uint64_t first = (uint64_t)chunk * WEIGHTS_PIECE, last = first + WEIGHTS_PIECE;
    uint64_t huge = 0, small = 0;
    struct helm_err err = {0};
    int rc = 0;
    if (atomic_load_explicit(&job->failed, memory_order_relaxed)) return;
    if (l->cancel && atomic_load_explicit(l->cancel, memory_order_relaxed)) {
        helm_fail(&err, HELM_E_CANCELLED, "loading was cancelled");
        job_fail(job, HELM_E_CANCELLED, &err);
        return;
    }
    if (last > w->host.region_bytes) last = w->host.region_bytes;
    arena_populate(l->arena, job->region_offset + first, last - first, &huge, &small);
    for (uint32_t i = place_find(w, first);
         !l->blank && i < w->host.count && w->host.place[i].offset < last && !rc; i++)
        if (!tensor_format_of(w->host.place[i].format)->variable)
            rc = load_part(job, &w->host.place[i], first, last, &err);
    if (rc) {
        job_fail(job, rc, &err);
        return;
    }
    pthread_mutex_lock(&job->lock);
    job->huge_bytes += huge;
    job->small_bytes += small;
    pthread_mutex_unlock(&job->lock);
}

/* ---- packing ---- */

/* Reads one matrix and packs it into its place. */
static int weights_pack(const struct weights_loading *l, const struct model_shards *shards,
                        const struct model_tensor *t, void *to, struct helm_err *err)
{
    const uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols;
    uint16_t *value = malloc(packed_group_values(rows, cols, 0) * sizeof *value);
    int rc = value ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to pack %s", t->name);
    uint32_t *offset = to;
    char *groups = (char *)to + packed_groups_at(rows);
    offset[0] = 0;
    for (uint32_t g = 0; g < packed_groups(rows) && !rc; g++) {
        const uint32_t values = packed_group_values(rows, cols, g);
        const struct model_rows all = {.tensor = t,
                                       .row = g * PACKED_ROWS,
                                       .rows = values / cols,
                                       .format = t->format};
        struct packed_measure measure;
        if (l->cancel && atomic_load_explicit(l->cancel, memory_order_relaxed))
            rc = helm_fail(err, HELM_E_CANCELLED, "loading was cancelled");
        if (!rc) rc = model_shards_read_rows(shards, &all, value, err);
        if (rc) break;
        packed_measure(value, values, &measure);
        offset[g + 1] = offset[g] + measure.bytes / PACKED_ALIGN;
        rc = packed_write(&measure, value, values, groups + packed_at(offset, g), err);
        if (rc) helm_err_prefix(err, "%s", t->name);
        if (l->bytes_done)
            atomic_fetch_add_explicit(l->bytes_done, values * sizeof *value, memory_order_relaxed);
    }
    free(value);
    return rc;
}

/* Sums up the packed matrices' bytes, as stored and packed, from the region's tables of offsets. */
static void weights_count_packed(struct weights *w, const char *region)
{
    w->packed_from = w->packed_to = 0;
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct placement *place = &w->host.place[i];
        const uint32_t *offset = (const uint32_t *)(region + place->offset);
        if (place->format != FORMAT_BF16_PACKED) continue;
        const struct model_tensor *t = placement_tensor(w->model, place);
        w->packed_from += t->bytes;
        w->packed_to += packed_at(offset, packed_groups((uint32_t)t->rows));
    }
}

/* One matrix, if its size varies. */
static void pack_matrix(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct weights_job *job = ctx;
    const struct placement *p = &job->w->host.place[chunk];
    struct helm_err err = {0};
    if (p->format != FORMAT_BF16_PACKED || atomic_load_explicit(&job->failed, memory_order_relaxed)) return;
    int rc = weights_pack(job->loading, &job->shards, placement_tensor(job->w->model, p),
                          job->region + p->offset, &err);
    if (rc) job_fail(job, rc, &err);
}

/* Norm weights and biases of what is computed here: few and small, so read one after another and kept as
 * fp32. */
static int load_vectors(struct weights *w, const struct model_shards *shards, struct helm_err *err)
{
    w->vectors = aligned_alloc(HOST_ALIGN, (size_t)(w->vector_bytes + HOST_ALIGN));
    int rc = w->vectors ? 0
                        : helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes of norm weights and biases",
                                    (unsigned long long)w->vector_bytes);
    for (uint32_t i = 0; i < w->vector_count && !rc; i++) {
        const struct placement *p = &w->vector_place[i];
        const struct model_tensor *t = placement_tensor(w->model, p);
        const struct model_rows all = {.tensor = t, .rows = (uint32_t)t->rows, .format = p->format};
        float *at = w->vectors + p->offset / sizeof *at;
        if (w->model->shard_count)
            rc = model_shards_read_rows(shards, &all, at, err);
        else
            for (uint64_t n = 0; n < t->rows * t->cols; n++) at[n] = 1;
        if (!rc) rc = model_vector_finish(&w->model->config, t, at, err);
        w->vector[(uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role] = at;
    }
    return rc;
}

static struct tensor_matrix *matrix_at(struct weights *w, const struct model_tensor *t)
{
    return &w->matrix[(uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role];
}

static void fill_matrix_table(struct weights *w, const char *region)
{
    for (uint32_t i = 0; i < w->disk.count; i++) {
        const struct placement *p = &w->disk.place[i];
        const struct model_tensor *t = placement_tensor(w->model, p);
        *matrix_at(w, t) = (struct tensor_matrix){.format = p->format,
                                                  .data = region,
                                                  .bytes = p->bytes,
                                                  .rows = (uint32_t)t->rows,
                                                  .cols = (uint32_t)t->cols};
    }
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct placement *p = &w->host.place[i];
        const struct model_tensor *t = placement_tensor(w->model, p);
        if (p->format != t->format && !is_computed(w, t)) continue;
        const struct tensor_matrix matrix = {.format = p->format,
                                             .data = region + p->offset,
                                             .bytes = p->bytes,
                                             .rows = (uint32_t)t->rows,
                                             .cols = (uint32_t)t->cols};
        *matrix_at(w, t) = matrix;
        if (t->role == TENSOR_EMBED && w->model->config.tied_head) w->matrix[TENSOR_HEAD] = matrix;
    }
}

static int load_matrices(struct weights *w, const struct weights_loading *loading,
                         const struct model_shards *shards, struct helm_err *err)
{
    const struct arena_region *region = &arena_header_of(loading->arena)->region[ARENA_REGION_WEIGHTS];
    uint64_t pieces = (w->host.region_bytes + WEIGHTS_PIECE - 1) / WEIGHTS_PIECE;
    if (pieces == 0) return 0;
    if (pieces > POOL_CHUNKS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "weights: %llu bytes exceed the limit of %llu",
                         (unsigned long long)w->host.region_bytes,
                         (unsigned long long)(POOL_CHUNKS_MAX * WEIGHTS_PIECE));
    struct weights_job job = {.w = w,
                              .loading = loading,
                              .region = arena_region_ptr(loading->arena, ARENA_REGION_WEIGHTS),
                              .region_offset = region->offset,
                              .shards = *shards,
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    /* Pieces of the region, whose pages are then there; and what is packed into it. */
    pool_run_region(loading->pool, load_piece, &job, (uint32_t)pieces);
    pool_run_region(loading->pool, pack_matrix, &job, w->host.count);
    w->huge_bytes = job.huge_bytes;
    w->small_bytes = job.small_bytes;
    pthread_mutex_destroy(&job.lock);
    if (job.rc && err) *err = job.err;
    return job.rc;
}

int weights_place(struct weights *w, const void *region, struct helm_err *err)
{
    struct model_shards shards;
    int rc = model_shards_open(w->model, &shards, err);
    if (!rc) rc = load_vectors(w, &shards, err);
    if (!rc) fill_matrix_table(w, region);
    model_shards_close(&shards);
    return rc;
}

int weights_load(struct weights *w, const struct weights_loading *l, struct helm_err *err)
{
    const struct arena_region *region = &arena_header_of(l->arena)->region[ARENA_REGION_WEIGHTS];
    char *base = arena_region_ptr(l->arena, ARENA_REGION_WEIGHTS);
    const size_t bytes = (size_t)((region->bytes + 4095) / 4096 * 4096);
    struct model_shards shards;
    if (w->host.region_bytes > region->bytes)
        return helm_fail(err, HELM_E_CAPACITY, "weights need %llu bytes, the arena's region has %llu",
                         (unsigned long long)w->host.region_bytes, (unsigned long long)region->bytes);
    int rc = model_shards_open(w->model, &shards, err);
    if (!rc) rc = load_vectors(w, &shards, err);
    /* An engine before this one in the same process left it read-only. */
    if (!rc && !l->ready && bytes && mprotect(base, bytes, PROT_READ | PROT_WRITE))
        rc = helm_fail_errno(err, "cannot make the weights region writable");
    if (!rc) w->vectors_content = content_of_config(&w->model->config) + atomic_exchange(shards.content, 0);
    if (!rc && !l->ready) rc = load_matrices(w, l, &shards, err);
    if (!rc && !l->ready) w->matrices_content = atomic_load(shards.content);
    model_shards_close(&shards);
    if (rc) return rc;
    weights_count_packed(w, base);
    fill_matrix_table(w, base);
    /* From here on a stray write is a fault, not a silently different model. */
    if (bytes && mprotect(base, bytes, PROT_READ))
        return helm_fail_errno(err, "cannot make the weights read-only");
    return 0;
}

void weights_read_from(struct weights *w, const struct disk *disk)
{
    for (uint32_t i = 0; i < w->disk.count; i++) {
        const struct model_tensor *t = placement_tensor(w->model, &w->disk.place[i]);
        const void *at = disk_matrix(disk, t);
        if (at) matrix_at(w, t)->data = at;
    }
}

void weights_free(struct weights *w)
{
    free(w->matrix);
    free(w->vector);
    free(w->vectors);
    free(w->vector_place);
    free(w->computed);
    memset(w, 0, sizeof *w);
}
