/* Weights that are packed in host memory: read, packed and written to their places in the arena. See
 * weights.h and common/plan/host_weights.h. Called by weights.c with the pool that loads the others.
 *
 * Groups of a matrix stand one behind the other and differ in size. So matrices are taken some at a time, in
 * two rounds: all groups are measured, then their offsets added up, then all are written. A chunk of the
 * pool's work is a piece of a matrix in either round, so that no thread waits for another's matrix; what the
 * second round reads again is in the page cache. */
#include <pthread.h>
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/units.h"
#include "worker-cpu/weights/weights.h"

/* Of files: a piece of a matrix (no less than a group), and what is measured before it is written. */
#define PIECE_BYTES (2 * MIB)
#define ROUND_BYTES (512 * MIB)

/* Whole groups of one matrix. */
struct piece {
    const struct host_weights_place *place;
    uint32_t group, count;
    uint64_t measure; /* of its first group, in the round's list */
};

struct packing {
    struct weights *w;
    char *region;
    const int *fd; /* per shard */
    struct piece *piece;
    uint32_t pieces;
    struct packed_measure *measure; /* of the round's groups */
    uint16_t **values;              /* a group by thread */
    uint32_t first, last;           /* the round's pieces */
    bool writing;
    _Atomic uint64_t *bytes_done;
    const _Atomic bool *cancel;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards what follows */
    int rc;
    struct helm_err err;
};

static uint32_t *offsets_of(const struct packing *p, const struct host_weights_place *place)
{
    return (uint32_t *)(void *)(p->region + place->offset);
}

static int do_group(struct packing *p, const struct piece *piece, uint32_t i, uint16_t *value,
                    struct helm_err *err)
{
    const struct model_tensor *t = piece->place->tensor;
    const uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols, group = piece->group + i;
    const uint32_t values = packed_group_values(rows, cols, group);
    const uint64_t bytes = (uint64_t)values * sizeof *value,
                   from = (uint64_t)group * PACKED_ROWS * cols * sizeof *value;
    struct packed_measure *measure = &p->measure[piece->measure + i];
    if (p->cancel && atomic_load_explicit(p->cancel, memory_order_relaxed))
        return helm_fail(err, HELM_E_CANCELLED, "loading was cancelled");
    int rc = model_tensor_read(t, p->fd[t->shard], from, bytes, value, err);
    if (rc) return rc;
    if (!p->writing) {
        packed_measure(value, values, measure);
        return 0;
    }
    char *to = p->region + piece->place->offset + packed_groups_at(rows) +
               packed_at(offsets_of(p, piece->place), group);
    rc = packed_write(measure, value, values, to, err);
    if (rc) return helm_err_prefix(err, "%s", t->name), rc;
    if (p->bytes_done) atomic_fetch_add_explicit(p->bytes_done, bytes, memory_order_relaxed);
    return 0;
}

static void do_piece(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct packing *p = ctx;
    const struct piece *piece = &p->piece[p->first + chunk];
    struct helm_err err = {0};
    int rc = 0;
    if (atomic_load_explicit(&p->failed, memory_order_relaxed)) return;
    for (uint32_t i = 0; i < piece->count && !rc; i++) rc = do_group(p, piece, i, p->values[thread], &err);
    if (!rc) return;
    pthread_mutex_lock(&p->lock);
    if (!p->rc) {
        p->rc = rc;
        p->err = err;
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->failed, true);
}

/* The round's tables, from what was measured. */
static void write_offsets(struct packing *p)
{
    for (uint32_t i = p->first; i < p->last; i++) {
        const struct piece *piece = &p->piece[i];
        uint32_t *offset = offsets_of(p, piece->place) + piece->group;
        if (piece->group == 0) *offset = 0;
        for (uint32_t g = 0; g < piece->count; g++)
            offset[g + 1] = offset[g] + p->measure[piece->measure + g].bytes / PACKED_ALIGN;
    }
}

/* Rounds end with a matrix; `measure` begins anew in each. */
static uint32_t round_end(const struct packing *p, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < p->pieces && p->piece[end].measure > 0) end++;
    return end;
}

static bool pack_next(void *ctx, uint32_t thread, struct pool_job *out)
{
    (void)thread;
    struct packing *p = ctx;
    if (atomic_load(&p->failed)) return false;
    if (p->last && !p->writing) {
        write_offsets(p);
        p->writing = true;
    } else {
        if (p->last == p->pieces) return false;
        p->first = p->last;
        p->last = round_end(p, p->first);
        p->writing = false;
    }
    *out = (struct pool_job){.run = do_piece, .chunks = p->last - p->first};
    return true;
}

/* Cuts matrices into pieces, and these into rounds: *groups of the largest, *values of the largest group. */
static int cut_pieces(struct packing *p, uint64_t *groups, uint64_t *values, struct helm_err *err)
{
    uint64_t round_bytes = 0, measure = 0;
    uint32_t capacity = 0;
    *groups = *values = 0;
    for (uint32_t i = 0; i < p->w->host.count; i++) {
        const struct host_weights_place *place = &p->w->host.place[i];
        if (!place->packed) continue;
        const struct model_tensor *t = place->tensor;
        const uint32_t all = packed_groups((uint32_t)t->rows);
        const uint64_t group = PACKED_ROWS * t->cols;
        uint32_t each = (uint32_t)(PIECE_BYTES / (group * sizeof(uint16_t)));
        if (!each) each = 1;
        if (group > *values) *values = group;
        if (round_bytes >= ROUND_BYTES) round_bytes = measure = 0;
        round_bytes += t->bytes;
        for (uint32_t g = 0; g < all; g += each) {
            if (p->pieces == capacity) {
                capacity = capacity ? 2 * capacity : 1024;
                struct piece *grown = realloc(p->piece, capacity * sizeof *grown);
                if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for %u pieces", capacity);
                p->piece = grown;
            }
            const uint32_t count = all - g < each ? all - g : each;
            p->piece[p->pieces++] =
                (struct piece){.place = place, .group = g, .count = count, .measure = measure};
            measure += count;
        }
        if (measure > *groups) *groups = measure;
    }
    return 0;
}

static int take_memory(struct packing *p, uint32_t threads, uint64_t groups, uint64_t values,
                       struct helm_err *err)
{
    p->measure = calloc((size_t)groups, sizeof *p->measure);
    p->values = calloc(threads, sizeof *p->values);
    bool all = p->measure && p->values;
    for (uint32_t i = 0; i < threads && all; i++)
        all = (p->values[i] = malloc((size_t)values * sizeof **p->values)) != NULL;
    if (all) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory to pack weights with %u threads", threads);
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
    uint64_t groups, values;
    const uint32_t threads = pool_threads(pool);
    int rc = cut_pieces(&p, &groups, &values, err);
    if (!rc && p.pieces) rc = take_memory(&p, threads, groups, values, err);
    if (!rc && p.pieces) {
        pool_run(pool, pack_next, &p);
        rc = p.rc;
        if (rc && err) *err = p.err;
    }
    for (uint32_t i = 0; p.values && i < threads; i++) free(p.values[i]);
    free(p.values);
    free(p.measure);
    free(p.piece);
    pthread_mutex_destroy(&p.lock);
    return rc;
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
