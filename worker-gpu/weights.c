/* Weights into VRAM. See weights.h.
 *
 * A few threads each take the next piece, read it into one of their two pinned slots and queue its copy; a
 * slot is read into again once its copy is done. So disk, host memory and link work at the same time. */
#include "worker-gpu/weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cpu.h"
#include "common/file.h"
#include "common/host_weights.h"
#include "common/model/arch.h"
#include "common/units.h"
#include "worker-cpu/kernels.h"

#define WEIGHTS_ALIGN   UINT64_C(256)
#define WEIGHTS_PIECE   (4 * MIB)
#define WEIGHTS_SLOTS   2 /* a reader */
#define WEIGHTS_READERS 16

struct gpu_weights_place {
    const struct model_tensor *tensor;
    uint64_t offset;
};

static int place(struct gpu_weights *w, enum tensor_role role, int32_t layer, struct helm_err *err)
{
    const struct model_tensor *tensor = model_find(w->model, role, layer);
    if (!tensor) return 0; /* an optional one: the checkpoint reader saw to the others */
    uint64_t bytes = !arch_role_is_vector(role) ? tensor->bytes : tensor->rows * tensor->cols * sizeof(float);
    uint64_t at = (w->bytes + WEIGHTS_ALIGN - 1) / WEIGHTS_ALIGN * WEIGHTS_ALIGN;
    if (units_add(at, bytes, &w->bytes))
        return helm_fail(err, HELM_E_LIMIT, "weights: sizes overflow at %s", tensor->name);
    w->place[w->place_count++] = (struct gpu_weights_place){.tensor = tensor, .offset = at};
    if (arch_role_is_vector(role)) return 0;
    w->matrix_bytes += tensor->bytes;
    if (role != TENSOR_EMBED) w->step_bytes += tensor->bytes;
    return 0;
}

static const enum tensor_role of_layer[] = {TENSOR_Q,         TENSOR_K,         TENSOR_V,
                                            TENSOR_O,         TENSOR_GATE,      TENSOR_UP,
                                            TENSOR_DOWN,      TENSOR_ATTN_NORM, TENSOR_Q_BIAS,
                                            TENSOR_K_BIAS,    TENSOR_V_BIAS,    TENSOR_O_BIAS,
                                            TENSOR_Q_NORM,    TENSOR_K_NORM,    TENSOR_MLP_NORM,
                                            TENSOR_GATE_BIAS, TENSOR_UP_BIAS,   TENSOR_DOWN_BIAS};
#define OF_LAYER_COUNT (sizeof of_layer / sizeof *of_layer)

/* What the GPU does with a unit: weights at home in VRAM, or streamed in some phase. */
enum unit_use { UNIT_NONE, UNIT_STREAMED, UNIT_RESIDENT };

static int read_uses(const struct plan *plan, enum unit_use **uses, struct helm_err *err)
{
    size_t units = 2 * (size_t)plan->layers;
    enum plan_home *home = calloc(units + 1, sizeof *home);
    enum unit_use *use = calloc(units + 1, sizeof *use);
    *uses = use;
    if (!home || !use) {
        free(home);
        return helm_fail(err, HELM_E_NOMEM, "no memory for the homes of %zu units", units);
    }
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        plan_unit_homes(plan, p, home);
        for (size_t u = 0; u < units; u++) {
            if (home[u] == PLAN_HOME_GPU) use[u] = UNIT_RESIDENT;
            if (home[u] == PLAN_HOME_STREAM) use[u] = UNIT_STREAMED;
        }
    }
    free(home);
    return 0;
}

/* Matrices at home in VRAM, or the vectors of everything the GPU computes. */
static int place_all(struct gpu_weights *w, const struct plan *plan, const enum unit_use *use, bool matrices,
                     struct helm_err *err)
{
    bool embed = plan->embed == PLAN_HOME_GPU, head = plan->head == PLAN_HOME_GPU;
    bool tied = w->model->config.tied_head;
    int rc = 0;
    if (matrices && embed && !(tied && head)) rc = place(w, TENSOR_EMBED, -1, err);
    for (uint32_t u = 0; u < 2 * plan->layers; u++) {
        if (use[u] == UNIT_NONE || (matrices && use[u] == UNIT_STREAMED)) continue;
        for (size_t i = 0; i < OF_LAYER_COUNT && !rc; i++)
            if (arch_role_is_vector(of_layer[i]) != matrices && model_role_is_mlp(of_layer[i]) == (u & 1))
                rc = place(w, of_layer[i], (int32_t)(u / 2), err);
    }
    if (!rc && head) rc = place(w, matrices ? TENSOR_HEAD : TENSOR_FINAL_NORM, -1, err);
    return rc;
}

static uint32_t cell_of(const struct model_tensor *t)
{
    return (uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role;
}

/* Where the matrices of streamed units are in the arena. */
static int place_streamed(struct gpu_weights *w, const struct plan *plan, const enum unit_use *use,
                          const void *region, uint64_t region_bytes, struct helm_err *err)
{
    struct host_weights host;
    int rc = host_weights_plan(w->model, plan, &host, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < host.count; i++) {
        const struct host_weights_place *p = &host.place[i];
        const struct model_tensor *t = p->tensor;
        if (t->layer < 0 || use[2 * t->layer + model_role_is_mlp(t->role)] != UNIT_STREAMED) continue;
        const char *at = (const char *)region + p->offset;
        w->matrix[cell_of(t)] =
            (struct gpu_matrix){.host = p->packed ? at + host_weights_groups_at((uint32_t)t->rows) : at,
                                .offset = p->packed ? (const uint32_t *)at : NULL,
                                .dtype = t->dtype,
                                .rows = (uint32_t)t->rows,
                                .cols = (uint32_t)t->cols};
        if (w->host_end == 0) w->host_first = p->offset;
        w->host_end = p->offset + host_weights_room(t, p->packed);
    }
    if (w->host_end > region_bytes)
        rc = helm_fail(err, HELM_E_MISMATCH, "the arena's weights region has %llu bytes, the plan needs %llu",
                       (unsigned long long)region_bytes, (unsigned long long)host.region_bytes);
    host_weights_free(&host);
    return rc;
}

int gpu_weights_plan(const struct model *model, const struct plan *plan, const void *region,
                     uint64_t region_bytes, struct gpu_weights *w, struct helm_err *err)
{
    enum unit_use *use = NULL;
    memset(w, 0, sizeof *w);
    w->model = model;
    size_t cells = ((size_t)model->config.layers + 1) * TENSOR_ROLE_COUNT;
    w->matrix = calloc(cells, sizeof *w->matrix);
    w->vector = calloc(cells, sizeof *w->vector);
    w->place = calloc((size_t)model->tensor_count + 2, sizeof *w->place);
    int rc = w->matrix && w->vector && w->place
                 ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for the table of weights");
    if (!rc) rc = read_uses(plan, &use, err);
    if (!rc) rc = place_all(w, plan, use, true, err);
    if (!rc) w->vector_at = (w->bytes + WEIGHTS_ALIGN - 1) / WEIGHTS_ALIGN * WEIGHTS_ALIGN;
    if (!rc) rc = place_all(w, plan, use, false, err);
    if (!rc && w->bytes < w->vector_at) w->bytes = w->vector_at;
    if (!rc) rc = place_streamed(w, plan, use, region, region_bytes, err);
    free(use);
    if (rc) gpu_weights_free(w);
    return rc;
}

/* ---- loading ---- */

struct piece {
    uint32_t place;
    uint64_t from, bytes; /* of the tensor */
};

struct load_job {
    struct gpu_weights *w;
    const int *fd; /* per shard */
    struct piece *piece;
    uint64_t piece_count;
    _Atomic uint64_t next;
    _Atomic uint64_t *bytes_done;
    const _Atomic bool *cancel;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards what follows */
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
};

static void job_fail(struct load_job *job, int rc, const struct helm_err *err)
{
    pthread_mutex_lock(&job->lock);
    if (!job->rc) {
        job->rc = rc;
        job->err = *err;
    }
    pthread_mutex_unlock(&job->lock);
    atomic_store(&job->failed, true);
}

static int load_piece(struct reader *r, uint32_t slot, const struct piece *piece, struct helm_err *err)
{
    struct load_job *job = r->job;
    struct gpu_weights *w = job->w;
    struct device *d = w->device;
    const struct gpu_weights_place *p = &w->place[piece->place];
    const struct model_tensor *t = p->tensor;
    int rc = 0;
    if (r->busy[slot]) rc = d->ops->event_wait(d, r->event[slot], err);
    r->busy[slot] = false;
    if (!rc)
        rc = file_pread_all(job->fd[t->shard], r->slot[slot], (size_t)piece->bytes, t->offset + piece->from,
                            t->name, err);
    if (!rc)
        rc = device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, (char *)w->memory + p->offset + piece->from,
                         r->slot[slot], piece->bytes, err);
    if (!rc) rc = d->ops->event_record(d, DEVICE_COPY, r->event[slot], err);
    if (rc) return rc;
    r->busy[slot] = true;
    if (job->bytes_done) atomic_fetch_add_explicit(job->bytes_done, piece->bytes, memory_order_relaxed);
    return 0;
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
        rc = device_host_alloc(d, WEIGHTS_PIECE, &r->slot[s], err);
        if (!rc) rc = d->ops->event_create(d, &r->event[s], err);
    }
    return rc;
}

static void reader_close(struct reader *r, struct device *d)
{
    for (uint32_t s = 0; s < WEIGHTS_SLOTS; s++) {
        if (r->event[s]) d->ops->event_free(d, r->event[s]);
        if (r->slot[s]) d->ops->host_free(d, r->slot[s]);
    }
}

static int cut_pieces(struct load_job *job, struct helm_err *err)
{
    const struct gpu_weights *w = job->w;
    uint64_t most = w->matrix_bytes / WEIGHTS_PIECE + w->place_count + 1;
    job->piece = calloc(most, sizeof *job->piece);
    if (!job->piece)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu pieces", (unsigned long long)most);
    for (uint32_t i = 0; i < w->place_count; i++) {
        const struct model_tensor *t = w->place[i].tensor;
        for (uint64_t from = 0; !arch_role_is_vector(t->role) && from < t->bytes; from += WEIGHTS_PIECE)
            job->piece[job->piece_count++] =
                (struct piece){.place = i,
                               .from = from,
                               .bytes = t->bytes - from < WEIGHTS_PIECE ? t->bytes - from : WEIGHTS_PIECE};
    }
    return 0;
}

static int load_matrices(struct gpu_weights *w, const int *fd, uint32_t threads, _Atomic uint64_t *bytes_done,
                         const _Atomic bool *cancel, struct helm_err *err)
{
    struct load_job job = {
        .w = w, .fd = fd, .bytes_done = bytes_done, .cancel = cancel, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct reader reader[WEIGHTS_READERS] = {0};
    if (threads < 1) threads = 1;
    if (threads > WEIGHTS_READERS) threads = WEIGHTS_READERS;
    int rc = cut_pieces(&job, err);
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
    pthread_mutex_destroy(&job.lock);
    free(job.piece);
    return rc;
}

/* Norm weights and biases: few and small, so read one after another, made fp32, copied at once. */
static int load_vectors(struct gpu_weights *w, const int *fd, struct helm_err *err)
{
    struct device *d = w->device;
    const struct vector_variant *vector;
    uint64_t bytes = w->bytes - w->vector_at, largest = 0;
    void *raw = NULL, *host = NULL;
    struct device_event *event = NULL;
    if (!bytes) return 0;
    for (uint32_t i = 0; i < w->place_count; i++)
        if (arch_role_is_vector(w->place[i].tensor->role) && w->place[i].tensor->bytes > largest)
            largest = w->place[i].tensor->bytes;
    int rc = vector_choose(cpu_features(), NULL, &vector, err);
    if (!rc) rc = device_host_alloc(d, bytes, &host, err);
    if (!rc) rc = d->ops->event_create(d, &event, err);
    if (!rc && !(raw = malloc((size_t)largest + 1)))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes", (unsigned long long)largest);
    for (uint32_t i = 0; i < w->place_count && !rc; i++) {
        const struct model_tensor *t = w->place[i].tensor;
        if (!arch_role_is_vector(t->role)) continue;
        rc = file_pread_all(fd[t->shard], raw, (size_t)t->bytes, t->offset, t->name, err);
        if (!rc)
            vector->load((float *)((char *)host + (w->place[i].offset - w->vector_at)), raw, t->dtype,
                         (size_t)(t->rows * t->cols));
    }
    if (!rc)
        rc =
            device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, (char *)w->memory + w->vector_at, host, bytes, err);
    if (!rc) rc = d->ops->event_record(d, DEVICE_COPY, event, err);
    if (!rc) rc = d->ops->event_wait(d, event, err);
    if (event) d->ops->event_free(d, event);
    if (host) d->ops->host_free(d, host);
    free(raw);
    return rc;
}

static void fill_tables(struct gpu_weights *w, const char *base)
{
    for (uint32_t i = 0; i < w->place_count; i++) {
        const struct model_tensor *t = w->place[i].tensor;
        const void *data = base + w->place[i].offset;
        uint32_t cell = cell_of(t);
        if (arch_role_is_vector(t->role)) {
            w->vector[cell] = data;
            continue;
        }
        const struct gpu_matrix matrix = {.data = data,
                                          .dtype = t->dtype,
                                          .rows = (uint32_t)t->rows,
                                          .cols = (uint32_t)t->cols};
        w->matrix[cell] = matrix;
        if (t->role == TENSOR_EMBED && w->model->config.tied_head) w->matrix[TENSOR_HEAD] = matrix;
    }
}

void gpu_weights_pretend(struct gpu_weights *w, const void *base)
{
    fill_tables(w, base);
}

int gpu_weights_load(struct gpu_weights *w, struct device *device, uint32_t threads,
                     _Atomic uint64_t *bytes_done, const _Atomic bool *cancel, struct helm_err *err)
{
    uint32_t open_count = 0, shards = w->model->shard_count;
    int *fd = malloc((shards + 1) * sizeof *fd), rc = 0;
    if (!fd) return helm_fail(err, HELM_E_NOMEM, "no memory for %u file descriptors", shards);
    w->device = device;
    for (; open_count < shards && !rc; open_count += !rc) {
        uint64_t bytes;
        rc = file_open_inside(w->model->folder, w->model->shards[open_count].file, &fd[open_count], &bytes,
                              err);
    }
    if (!rc) rc = device_alloc(device, DEVICE_WEIGHTS, w->bytes, &w->memory, err);
    if (!rc) rc = load_vectors(w, fd, err);
    if (!rc) rc = load_matrices(w, fd, threads, bytes_done, cancel, err);
    if (!rc) fill_tables(w, w->memory);
    while (open_count) close(fd[--open_count]);
    free(fd);
    return rc;
}

void gpu_weights_free(struct gpu_weights *w)
{
    if (w->memory) device_free(w->device, DEVICE_WEIGHTS, w->bytes, w->memory);
    free(w->matrix);
    free(w->vector);
    free(w->place);
    memset(w, 0, sizeof *w);
}
