/* Weights into VRAM. See weights.h; called by engine.c.
 *
 * A few threads each take the next piece, read it into one of their two pinned slots and queue its copy; a
 * slot is read into again once its copy is done. So disk, host memory and link work at the same time. A piece
 * is some rows of a matrix; what lies in VRAM in another format is read beside and converted into the slot.
 *
 * A piece of packed matrices is a run of groups: a thread reads it and measures how small it becomes, waits
 * until the pieces before it have their places, takes the next, and packs it into a slot. Pieces are taken in
 * order, so a thread never waits for one that has not begun. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/model/arch.h"
#include "common/model/content.h"
#include "common/model/sample.h"
#include "common/model/shards.h"
#include "common/plan/engine_limits.h"
#include "common/formats/packed.h"
#include "common/base/units.h"
#include "worker-gpu/weights/weights.h"

#define WEIGHTS_PIECE   (4 * MIB)
#define WEIGHTS_SLOTS   2 /* a reader */
#define WEIGHTS_READERS 16
/* As many as GPU_LOAD_STAGING_BYTES has room for, in pieces of the usual size. Those of matrices with very
 * many columns, whose groups are larger than a piece, are fewer. */
static_assert(WEIGHTS_READERS * (WEIGHTS_SLOTS + 1) * WEIGHTS_PIECE <= GPU_LOAD_STAGING_BYTES,
              "the planner's staging memory");

struct piece {
    uint32_t place;
    uint32_t row, rows; /* of packed ones whole groups */
    uint64_t bytes;     /* in the file */
};

struct load_job {
    struct gpu_weights *w;
    struct model_shards shards;
    struct piece *piece;
    uint64_t piece_count, packed_count; /* those of packed matrices are the first */
    uint64_t slot_bytes, values_bytes;  /* of a reader: a slot, and what it packs or converts */
    uint32_t groups;                    /* the most of a piece */
    _Atomic uint64_t next;
    _Atomic uint64_t *bytes_done;
    const _Atomic bool *cancel;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards what follows, places and tables of packed matrices */
    pthread_cond_t placed;
    uint64_t turn; /* the piece that is placed next */
    int rc;
    struct helm_err err;
};

struct reader {
    struct load_job *job;
    pthread_t thread;
    bool started;
    void *slot[WEIGHTS_SLOTS];
    struct device_event *event[WEIGHTS_SLOTS];
    bool busy[WEIGHTS_SLOTS];
    uint16_t *value; /* of packed matrices: a piece, and how it packs */
    struct packed_measure *measure;
};

static void job_fail(struct load_job *job, int rc, const struct helm_err *err)
{
    pthread_mutex_lock(&job->lock);
    if (!job->rc) {
        job->rc = rc;
        job->err = *err;
    }
    atomic_store(&job->failed, true);
    pthread_cond_broadcast(&job->placed);
    pthread_mutex_unlock(&job->lock);
}

/* Queues the copy of a slot's bytes; the slot is busy until it is done. */
static int send_slot(struct reader *r, uint32_t slot, uint64_t to, uint64_t bytes, struct helm_err *err)
{
    struct gpu_weights *w = r->job->w;
    struct device *d = w->device;
    int rc = device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, (char *)w->memory + to, r->slot[slot], bytes, err);
    if (!rc) rc = d->ops->event_record(d, DEVICE_COPY, r->event[slot], err);
    r->busy[slot] = !rc;
    return rc;
}

static int wait_for_slot(struct reader *r, uint32_t slot, struct helm_err *err)
{
    struct device *d = r->job->w->device;
    int rc = r->busy[slot] ? d->ops->event_wait(d, r->event[slot], err) : 0;
    r->busy[slot] = false;
    return rc;
}

/* The piece's groups after all before them: their entries in the table, and in *at where the first is. */
static int place_groups(struct load_job *job, const struct piece *piece, const struct packed_measure *measure,
                        uint64_t *at, struct helm_err *err)
{
    struct gpu_weights *w = job->w;
    struct gpu_weights_place *p = &w->place[piece->place];
    uint32_t *offset = w->packed_table + p->table / sizeof *offset + piece->row / PACKED_ROWS;
    if (piece->row == 0) {
        p->offset = w->packed_bytes;
        *offset = 0;
    }
    *at = gpu_weights_groups_at(w) + w->packed_bytes;
    for (uint32_t g = 0; g < packed_groups(piece->rows); g++) {
        offset[g + 1] = offset[g] + measure[g].bytes / PACKED_ALIGN;
        w->packed_bytes += measure[g].bytes;
    }
    if (w->packed_bytes <= w->packed_room - w->packed_table_bytes) return 0;
    char room[UNITS_TEXT];
    return helm_fail(
        err, HELM_E_CAPACITY,
        "weights pack worse than planned: the %s of VRAM that the placements have for packed ones "
        "are full at %s (%llu of %llu bytes); plan with --pack off",
        units_format_size(w->packed_room, room), p->tensor->name,
        (unsigned long long)(w->packed_bytes + w->packed_table_bytes), (unsigned long long)w->packed_room);
}

static int wait_for_turn(struct load_job *job, const struct piece *piece,
                         const struct packed_measure *measure, uint64_t *at, struct helm_err *err)
{
    const uint64_t index = (uint64_t)(piece - job->piece);
    int rc = 0;
    pthread_mutex_lock(&job->lock);
    while (job->turn != index && !atomic_load(&job->failed)) pthread_cond_wait(&job->placed, &job->lock);
    if (job->turn != index)
        rc = helm_fail(err, HELM_E_CANCELLED, "another reader failed"); /* which is what will be said */
    else
        rc = place_groups(job, piece, measure, at, err);
    if (!rc) job->turn++;
    pthread_cond_broadcast(&job->placed);
    pthread_mutex_unlock(&job->lock);
    return rc;
}

static int load_packed_piece(struct reader *r, uint32_t slot, const struct piece *piece, struct helm_err *err)
{
    struct load_job *job = r->job;
    const struct model_tensor *t = job->w->place[piece->place].tensor;
    const uint32_t cols = (uint32_t)t->cols;
    const struct model_rows rows = {.tensor = t, .row = piece->row, .rows = piece->rows, .format = t->format};
    uint64_t at = 0, bytes = 0;
    int rc = model_shards_read_rows(&job->shards, &rows, r->value, err);
    if (rc) return rc;
    const uint16_t *value = r->value;
    for (uint32_t g = 0; g < packed_groups(piece->rows); g++) {
        uint32_t values = packed_group_values(piece->rows, cols, g);
        packed_measure(value, values, &r->measure[g]);
        value += values;
    }
    rc = wait_for_turn(job, piece, r->measure, &at, err);
    if (!rc) rc = wait_for_slot(r, slot, err);
    value = r->value;
    for (uint32_t g = 0; g < packed_groups(piece->rows) && !rc; g++) {
        uint32_t values = packed_group_values(piece->rows, cols, g);
        rc = packed_write(&r->measure[g], value, values, (char *)r->slot[slot] + bytes, err);
        value += values;
        bytes += r->measure[g].bytes;
    }
    return rc ? rc : send_slot(r, slot, at, bytes, err);
}

static int load_fixed_piece(struct reader *r, uint32_t slot, const struct piece *piece, struct helm_err *err)
{
    const struct gpu_weights_place *p = &r->job->w->place[piece->place];
    const uint64_t cols = p->tensor->cols;
    const struct model_rows rows = {.tensor = p->tensor,
                                    .row = piece->row,
                                    .rows = piece->rows,
                                    .format = p->format};
    int rc = wait_for_slot(r, slot, err);
    if (!rc) rc = model_shards_read_rows(&r->job->shards, &rows, r->slot[slot], err);
    if (rc) return rc;
    return send_slot(r, slot, p->offset + piece->row * tensor_format_row_bytes(p->format, cols),
                     tensor_format_bytes(p->format, piece->rows, cols), err);
}

static int load_piece(struct reader *r, uint32_t slot, const struct piece *piece, struct helm_err *err)
{
    int rc = r->job->w->place[piece->place].format == FORMAT_BF16_PACKED
                 ? load_packed_piece(r, slot, piece, err)
                 : load_fixed_piece(r, slot, piece, err);
    if (!rc && r->job->bytes_done)
        atomic_fetch_add_explicit(r->job->bytes_done, piece->bytes, memory_order_relaxed);
    return rc;
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    struct load_job *job = r->job;
    struct device *d = job->w->device;
    struct helm_err err = {0};
    int rc = d->ops->thread_begin(d, &err);
    for (uint32_t slot = 0; !rc && !atomic_load(&job->failed); slot = (slot + 1) % WEIGHTS_SLOTS) {
        uint64_t at = atomic_fetch_add(&job->next, 1);
        if (at >= job->piece_count) break;
        if (job->cancel && atomic_load_explicit(job->cancel, memory_order_relaxed))
            rc = helm_fail(&err, HELM_E_CANCELLED, "loading was cancelled");
        else
            rc = load_piece(r, slot, &job->piece[at], &err);
    }
    for (uint32_t s = 0; s < WEIGHTS_SLOTS && !rc; s++)
        if (r->busy[s]) rc = d->ops->event_wait(d, r->event[s], &err);
    if (rc) job_fail(job, rc, &err);
    return NULL;
}

static int reader_open(struct reader *r, struct load_job *job, struct helm_err *err)
{
    struct device *d = job->w->device;
    int rc = 0;
    r->job = job;
    for (uint32_t s = 0; s < WEIGHTS_SLOTS && !rc; s++) {
        rc = device_host_alloc(d, job->slot_bytes, &r->slot[s], err);
        if (!rc) rc = d->ops->event_create(d, DEVICE_EVENT_PLAIN, &r->event[s], err);
    }
    if (rc || !job->packed_count) return rc;
    r->value = malloc((size_t)job->values_bytes);
    r->measure = calloc(job->groups, sizeof *r->measure);
    if (r->value && r->measure) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes to pack",
                     (unsigned long long)job->values_bytes);
}

static void reader_close(struct reader *r, struct device *d)
{
    for (uint32_t s = 0; s < WEIGHTS_SLOTS; s++) {
        if (r->event[s]) d->ops->event_free(d, r->event[s]);
        if (r->slot[s]) d->ops->host_free(d, r->slot[s]);
    }
    free(r->value);
    free(r->measure);
}

/* The most rows of a piece, one group or row at least: as many as a slot holds however they pack. */
static uint32_t rows_of_piece(struct load_job *job, const struct gpu_weights_place *p)
{
    const uint32_t cols = (uint32_t)p->tensor->cols;
    const bool packed = p->format == FORMAT_BF16_PACKED;
    const uint64_t stored = tensor_format_row_bytes(p->tensor->format, cols),
                   most = packed ? packed_group_bytes_max(PACKED_ROWS * cols)
                                 : tensor_format_row_bytes(p->format, cols),
                   larger = most > stored ? most : stored;
    uint32_t each = larger < WEIGHTS_PIECE ? (uint32_t)(WEIGHTS_PIECE / larger) : 1;
    if (each * most > job->slot_bytes) job->slot_bytes = each * most;
    if (!packed) return each;
    if (each > job->groups) job->groups = each;
    return each * PACKED_ROWS;
}

static void cut(struct load_job *job, uint32_t place)
{
    const struct gpu_weights_place *p = &job->w->place[place];
    const struct model_tensor *t = p->tensor;
    const uint32_t each = rows_of_piece(job, p), all = (uint32_t)t->rows;
    for (uint32_t row = 0; row < all; row += each) {
        const uint32_t rows = all - row < each ? all - row : each;
        const uint64_t bytes = tensor_format_bytes(t->format, rows, t->cols);
        if (p->format != t->format && bytes > job->values_bytes) job->values_bytes = bytes;
        job->piece[job->piece_count++] =
            (struct piece){.place = place, .row = row, .rows = rows, .bytes = bytes};
    }
}

static int cut_pieces(struct load_job *job, struct helm_err *err)
{
    const struct gpu_weights *w = job->w;
    uint64_t most = 1;
    job->slot_bytes = WEIGHTS_PIECE;
    for (uint32_t i = 0; i < w->place_count; i++) {
        const uint32_t each = rows_of_piece(job, &w->place[i]);
        most += (w->place[i].tensor->rows + each - 1) / each;
    }
    job->piece = calloc(most, sizeof *job->piece);
    if (!job->piece)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu pieces", (unsigned long long)most);
    for (uint32_t i = 0; i < w->place_count; i++)
        if (w->place[i].format == FORMAT_BF16_PACKED) cut(job, i);
    job->packed_count = job->piece_count;
    for (uint32_t i = 0; i < w->place_count; i++)
        if (w->place[i].format != FORMAT_BF16_PACKED && !arch_role_is_vector(w->place[i].tensor->role))
            cut(job, i);
    return 0;
}

static int load_matrices(struct gpu_weights *w, const struct model_shards *shards, uint32_t threads,
                         _Atomic uint64_t *bytes_done, const _Atomic bool *cancel, struct helm_err *err)
{
    struct load_job job = {.w = w,
                           .shards = *shards,
                           .bytes_done = bytes_done,
                           .cancel = cancel,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .placed = PTHREAD_COND_INITIALIZER};
    struct reader reader[WEIGHTS_READERS] = {0};
    if (threads < 1) threads = 1;
    if (threads > WEIGHTS_READERS) threads = WEIGHTS_READERS;
    int rc = cut_pieces(&job, err);
    const uint64_t each = WEIGHTS_SLOTS * job.slot_bytes + job.values_bytes;
    if (!rc && threads * each > GPU_LOAD_STAGING_BYTES)
        threads = each > GPU_LOAD_STAGING_BYTES ? 1 : (uint32_t)(GPU_LOAD_STAGING_BYTES / each);
    if (!rc && threads > job.piece_count) threads = job.piece_count ? (uint32_t)job.piece_count : 1;
    for (uint32_t i = 0; i < threads && !rc; i++) rc = reader_open(&reader[i], &job, err);
    for (uint32_t i = 1; i < threads && !rc; i++)
        reader[i].started = pthread_create(&reader[i].thread, NULL, reader_main, &reader[i]) == 0;
    if (!rc) { /* fewer threads than wanted only make it slower; this one is always there */
        reader_main(&reader[0]);
        for (uint32_t i = 1; i < threads; i++)
            if (reader[i].started) pthread_join(reader[i].thread, NULL);
        rc = job.rc;
        if (rc && err) *err = job.err;
    }
    if (rc) w->device->ops->abandon(w->device); /* copies out of the slots may still run */
    for (uint32_t i = 0; i < threads; i++) reader_close(&reader[i], w->device);
    pthread_cond_destroy(&job.placed);
    pthread_mutex_destroy(&job.lock);
    free(job.piece);
    return rc;
}

static int open_tables(struct gpu_weights *w, struct helm_err *err)
{
    void *memory = NULL;
    if (!w->packed_table_bytes) return 0;
    int rc = device_host_alloc(w->device, w->packed_table_bytes, &memory, err);
    w->packed_table = memory;
    if (!rc) memset(memory, 0, (size_t)w->packed_table_bytes);
    return rc;
}

/* Copies from pinned memory to this place in VRAM, and waits until it is there. */
static int copy_whole(struct gpu_weights *w, uint64_t to, const void *from, uint64_t bytes,
                      struct helm_err *err)
{
    int rc = device_copy(w->device, DEVICE_COPY, DEVICE_TO_DEVICE, (char *)w->memory + to, from, bytes, err);
    return rc ? rc : device_await(w->device, DEVICE_COPY, err);
}

/* Once all groups have their places. */
static int send_tables(struct gpu_weights *w, struct helm_err *err)
{
    uint64_t plain = 0;
    double read = 0; /* of plain bytes, what a token reads */
    const struct model_router *router = &w->model->config.router;
    char before[UNITS_TEXT], after[UNITS_TEXT];
    if (!w->packed_table) return 0;
    for (uint32_t i = 0; i < w->place_count; i++)
        if (w->place[i].format == FORMAT_BF16_PACKED) {
            const struct model_tensor *t = w->place[i].tensor;
            plain += t->bytes;
            read += (double)t->bytes *
                    (arch_role_of_experts(t->role) ? (double)router->chosen / router->experts : 1);
        }
    w->step_bytes += (uint64_t)((double)w->packed_bytes * (read / (double)plain));
    log_info("%s of weights in VRAM are packed as %s, %.1f of 16 bits", units_format_size(plain, before),
             units_format_size(w->packed_bytes, after), 16.0 * (double)w->packed_bytes / (double)plain);
    return copy_whole(w, w->packed_at, w->packed_table, w->packed_table_bytes, err);
}

/* Norm weights and biases: few and small, so read one after another, made fp32, copied at once. */
int gpu_weights_load_vectors(struct gpu_weights *w, const struct model_shards *shards, struct helm_err *err)
{
    void *host = NULL;
    uint64_t random = RANDOM_SEED;
    if (!w->vector_bytes) return 0;
    int rc = device_host_alloc(w->device, w->vector_bytes, &host, err);
    for (uint32_t i = 0; i < w->place_count && !rc; i++) {
        const struct gpu_weights_place *p = &w->place[i];
        const struct model_rows all = {.tensor = p->tensor,
                                       .rows = (uint32_t)p->tensor->rows,
                                       .format = p->format};
        float *at = (float *)(void *)((char *)host + (p->offset - w->vector_at));
        if (!arch_role_is_vector(p->tensor->role)) continue;
        const uint64_t made = shards ? 0 : p->tensor->rows * p->tensor->cols;
        for (uint64_t n = 0; n < made; n++)
            at[n] = model_sample_value(p->tensor->role, (uint32_t)(random_next(&random) >> 32));
        if (shards) rc = model_shards_read_rows(shards, &all, at, err);
        if (shards && !rc) rc = model_vector_finish(&w->model->config, p->tensor, at, err);
    }
    if (!rc) rc = copy_whole(w, w->vector_at, host, w->vector_bytes, err);
    if (host) w->device->ops->host_free(w->device, host);
    return rc;
}

int gpu_weights_load(struct gpu_weights *w, struct device *device, uint32_t threads,
                     _Atomic uint64_t *bytes_done, const _Atomic bool *cancel, struct helm_err *err)
{
    struct model_shards shards;
    w->device = device;
    if (!w->model->shard_count) return gpu_weights_make(w, err);
    int rc = model_shards_open(w->model, &shards, err);
    if (!rc) rc = device_alloc(device, DEVICE_WEIGHTS, w->bytes, &w->memory, err);
    if (!rc) rc = gpu_weights_load_vectors(w, &shards, err);
    if (!rc) w->vectors_content = content_of_config(&w->model->config) + atomic_exchange(shards.content, 0);
    if (!rc) rc = open_tables(w, err);
    if (!rc) rc = load_matrices(w, &shards, threads, bytes_done, cancel, err);
    if (!rc) w->matrices_content = atomic_load(shards.content);
    if (!rc) rc = send_tables(w, err);
    if (!rc) gpu_weights_fill_tables(w, w->memory);
    model_shards_close(&shards);
    return rc;
}
