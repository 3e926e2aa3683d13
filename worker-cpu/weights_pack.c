/* Weights that only cross the link: read, packed and written to their places in the arena. See weights.h and
 * common/host_weights.h. Called by weights.c with the pool that loads the others.
 *
 * A chunk of the pool's work is a matrix: its groups stand one behind the other, so where one begins is known
 * when the one before it is packed. Matrices are many and threads few. */
#include <pthread.h>
#include <stdlib.h>

#include "common/file.h"
#include "worker-cpu/weights.h"

struct packing {
    struct weights *w;
    char *region;
    const int *fd; /* per shard */
    const struct host_weights_place **place;
    uint32_t count;
    bool handed_out;
    _Atomic uint64_t *bytes_done;
    const _Atomic bool *cancel;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards what follows */
    int rc;
    struct helm_err err;
};

static int pack_group(const struct packing *p, const struct host_weights_place *place, uint32_t group,
                      uint16_t *value, uint64_t *at, struct helm_err *err)
{
    const struct model_tensor *t = place->tensor;
    uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols;
    uint32_t values = packed_group_values(rows, cols, group);
    uint64_t bytes = (uint64_t)values * sizeof *value,
             from = (uint64_t)group * PACKED_ROWS * cols * sizeof *value;
    char *groups = p->region + place->offset + host_weights_groups_at(rows);
    uint32_t *offset = (uint32_t *)(p->region + place->offset);
    struct packed_measure measure;
    if (p->cancel && atomic_load_explicit(p->cancel, memory_order_relaxed))
        return helm_fail(err, HELM_E_CANCELLED, "loading was cancelled");
    int rc = file_pread_all(p->fd[t->shard], value, (size_t)bytes, t->offset + from, t->name, err);
    if (rc) return rc;
    packed_measure(value, values, &measure);
    if (*at + measure.bytes > packed_matrix_bytes_max(rows, cols))
        return helm_fail(err, HELM_E_INTERNAL, "%s is larger packed than it can be", t->name);
    rc = packed_write(&measure, value, values, groups + *at, err);
    if (rc) return rc;
    *at += measure.bytes;
    offset[group + 1] = (uint32_t)(*at / PACKED_ALIGN);
    if (p->bytes_done) atomic_fetch_add_explicit(p->bytes_done, bytes, memory_order_relaxed);
    return 0;
}

static void pack_matrix(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct packing *p = ctx;
    const struct host_weights_place *place = p->place[chunk];
    const struct model_tensor *t = place->tensor;
    struct helm_err err = {0};
    uint64_t at = 0;
    int rc = 0;
    if (atomic_load_explicit(&p->failed, memory_order_relaxed)) return;
    uint16_t *value = malloc((size_t)t->cols * PACKED_ROWS * sizeof *value);
    if (!value) rc = helm_fail(&err, HELM_E_NOMEM, "no memory for %d rows of %s", PACKED_ROWS, t->name);
    *(uint32_t *)(p->region + place->offset) = 0;
    for (uint32_t g = 0; g < packed_groups((uint32_t)t->rows) && !rc; g++)
        rc = pack_group(p, place, g, value, &at, &err);
    free(value);
    if (!rc) return;
    pthread_mutex_lock(&p->lock);
    if (!p->rc) {
        p->rc = rc;
        p->err = err;
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->failed, true);
}

static bool pack_next(void *ctx, uint32_t thread, struct pool_job *out)
{
    (void)thread;
    struct packing *p = ctx;
    if (p->handed_out) return false;
    p->handed_out = true;
    *out = (struct pool_job){.run = pack_matrix, .chunks = p->count};
    return true;
}

int weights_pack(struct weights *w, char *region, const int *fd, struct pool *pool,
                 _Atomic uint64_t *bytes_done, const _Atomic bool *cancel, struct helm_err *err)
{
    struct packing p = {.w = w,
                        .region = region,
                        .fd = fd,
                        .bytes_done = bytes_done,
                        .cancel = cancel,
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    p.place = calloc((size_t)w->host.count + 1, sizeof *p.place);
    if (!p.place) return helm_fail(err, HELM_E_NOMEM, "no memory for a list of %u matrices", w->host.count);
    for (uint32_t i = 0; i < w->host.count; i++)
        if (w->host.place[i].packed) p.place[p.count++] = &w->host.place[i];
    if (p.count) pool_run(pool, pack_next, &p);
    pthread_mutex_destroy(&p.lock);
    free(p.place);
    if (p.rc && err) *err = p.err;
    return p.rc;
}

void weights_count_packed(struct weights *w, const char *region)
{
    w->packed_from = w->packed_to = 0;
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct host_weights_place *place = &w->host.place[i];
        const uint32_t *offset = (const uint32_t *)(region + place->offset);
        if (!place->packed) continue;
        w->packed_from += place->tensor->bytes;
        w->packed_to += packed_at(offset, packed_groups((uint32_t)place->tensor->rows));
    }
}
