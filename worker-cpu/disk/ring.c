/* Whole units on disk: a ring in host memory that a thread keeps full. See disk.h.
 *
 * The units and their order are the same in every step, so nothing is chosen: each has its place in the ring
 * (common/plan/disk.h) and its reads from the beginning. Three numbers count units through all steps: those
 * that were sent for, those that are there, those that were computed. The thread alone uses the reader. It
 * also digests what came, and brings interleaved rows in order, so that a step waits for bytes alone. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/model/content.h"
#include "worker-cpu/disk/private.h"

/* Bytes of a read: small enough that the thread soon looks again for places that have become free, and that a
 * digest finds some of them in the caches. */
#define READ_BYTES (8 * MIB)
/* Bytes of a digest. The first time that a read is done all its digests are taken, and then one each time, in
 * turn: with two threads and a disk of 5 GB/s, all of them took a tenth of a step. */
#define DIGEST_BYTES (256 * KIB)

struct ring_read {
    struct disk_reading read;
    const struct model_tensor *tensor;
    uint32_t shard, unit; /* index in `unit` */
    uint64_t *digest;     /* of the first time, of each DIGEST_BYTES; 0: there was none */
    uint32_t done;        /* how often it was */
};

struct ring_unit {
    struct disk_passing passing;
    uint32_t first, end; /* of `read` */
    uint32_t under_way;  /* of these; the thread's */
};

struct ring {
    struct disk *disk;
    struct ring_unit *unit; /* [units] */
    uint32_t units;
    struct ring_read *read; /* [reads] */
    uint32_t reads;
    uint64_t *digest; /* of all reads */
    char *head;       /* rows of the largest interleaved head */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t free, came_some;
    uint64_t sent, came, left; /* units, through all steps */
    bool stop;
    int rc; /* of a read that failed: nothing comes any more */
    struct helm_err err;
};

/* ---- the thread ---- */

/* Whether the next unit's place is free: no unit that was sent for and not computed yet has a part of it. */
static bool is_free(const struct ring *r)
{
    const struct disk_passing *next = &r->unit[r->sent % r->units].passing;
    if (r->sent - r->left == r->units) return false;
    for (uint64_t i = r->left; i < r->sent; i++) {
        const struct disk_passing *other = &r->unit[i % r->units].passing;
        if (other->at < next->at + next->room && next->at < other->at + other->room) return false;
    }
    return true;
}

/* Returns the number of its reads. */
static uint32_t send_next(struct ring *r)
{
    struct ring_unit *unit = &r->unit[r->sent++ % r->units];
    unit->under_way = unit->end - unit->first;
    for (uint32_t i = unit->first; i < unit->end; i++) {
        r->disk->reads++;
        r->disk->bytes_read += r->read[i].read.bytes;
        disk_reader_submit(r->disk->reader, &r->read[i].read);
    }
    return unit->under_way;
}

/* Brings the rows of a matrix that lie interleaved in the file in order, head by head. */
static void order_rows(const struct ring *r, const struct model_tensor *t)
{
    if (!t->interleaved_heads) return;
    const uint64_t rows = t->rows / t->interleaved_heads, row_bytes = t->bytes / t->rows;
    char *at = (char *)(uintptr_t)disk_matrix(r->disk, t);
    for (uint32_t h = 0; h < t->interleaved_heads; h++, at += rows * row_bytes) {
        for (uint64_t row = 0; row < rows; row++)
            memcpy(r->head + row * row_bytes, at + model_shards_row(t, t->rows, row) * row_bytes, row_bytes);
        memcpy(at, r->head, rows * row_bytes);
    }
}

static uint32_t digests_of(uint64_t bytes)
{
    return (uint32_t)((bytes + DIGEST_BYTES - 1) / DIGEST_BYTES);
}

static uint64_t digest_at(const struct disk_reading *read, uint32_t i)
{
    const uint64_t at = i * DIGEST_BYTES, left = read->least - at;
    return content_of(read->to + at, left < DIGEST_BYTES ? left : DIGEST_BYTES, read->offset + at);
}

static int check(const struct ring *r, struct ring_read *read, struct helm_err *err)
{
    const struct disk_reading *done = &read->read;
    const uint32_t digests = digests_of(done->least), turn = read->done % digests;
    const bool whole = !done->error && !done->ended;
    const struct disk_read_of of = {read->tensor, DISK_NONE, read->shard, done->offset + turn * DIGEST_BYTES};
    for (uint32_t i = 1; i < digests && whole && !read->done; i++) read->digest[i] = digest_at(done, i);
    read->done++;
    return disk_check(r->disk, done, &of, whole ? digest_at(done, turn) : 0, &read->digest[turn], err);
}

/* A read that is done. */
static int take_read(struct ring *r, struct disk_reading *done, struct helm_err *err)
{
    struct ring_read *read = (struct ring_read *)done; /* its first member */
    struct ring_unit *unit = &r->unit[read->unit];
    int rc = check(r, read, err);
    if (rc || --unit->under_way) return rc;
    const struct model_unit *model = &r->disk->model->unit[unit->passing.unit];
    for (uint32_t i = 0; i < model->matrix_count; i++) order_rows(r, model->tensor[i]);
    return 0;
}

static void *keep_full(void *arg)
{
    struct ring *r = arg;
    uint64_t under_way = 0; /* reads */
    cpu_run_anywhere();
    pthread_mutex_lock(&r->lock);
    while (!r->stop && !r->rc) {
        while (is_free(r)) under_way += send_next(r);
        if (!under_way) {
            pthread_cond_wait(&r->free, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        struct helm_err err = {0};
        const int rc = take_read(r, disk_reader_done(r->disk->reader, true), &err);
        under_way--;
        pthread_mutex_lock(&r->lock);
        while (r->came < r->sent && !r->unit[r->came % r->units].under_way) r->came++;
        r->rc = rc;
        r->err = err;
        pthread_cond_signal(&r->came_some);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- steps ---- */

int disk_take_unit(struct disk *d, uint32_t unit, struct helm_err *err)
{
    struct ring *r = d->ring;
    pthread_mutex_lock(&r->lock);
    while (!r->rc) {
        const bool there = r->came > r->left;
        if (there && r->unit[r->left % r->units].passing.unit == unit) break;
        if (!there) {
            pthread_cond_wait(&r->came_some, &r->lock);
            continue;
        }
        r->left++; /* of a step that ended before it */
        pthread_cond_signal(&r->free);
    }
    const int rc = r->rc ? helm_fail(err, r->rc, "%s", r->err.text) : 0;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

void disk_leave_unit(struct disk *d)
{
    struct ring *r = d->ring;
    pthread_mutex_lock(&r->lock);
    r->left++;
    pthread_cond_signal(&r->free);
    pthread_mutex_unlock(&r->lock);
}

const void *disk_matrix(const struct disk *d, const struct model_tensor *t)
{
    const uint32_t unit = t->layer < 0 ? DISK_NONE : model_tensor_unit(t);
    for (uint32_t u = 0; d->ring && u < d->ring->units; u++) {
        const struct disk_passing *passing = &d->ring->unit[u].passing;
        const struct model_unit *of = &d->model->unit[passing->unit];
        const char *at = d->memory + passing->at;
        if (passing->unit != unit) continue;
        for (uint32_t i = 0; i < of->matrix_count; i++) {
            const struct disk_blocks blocks = disk_blocks_of(of->tensor[i]);
            if (of->tensor[i] == t) return at + blocks.inside;
            at += blocks.bytes;
        }
    }
    return NULL;
}

/* ---- opening ---- */

static uint32_t reads_of(const struct model_tensor *t)
{
    return (uint32_t)((disk_blocks_of(t).bytes + READ_BYTES - 1) / READ_BYTES);
}

/* The reads of a matrix whose blocks lie at `to`, and the place of the next one's digests. */
static uint64_t *add_reads(struct ring *r, uint32_t unit, const struct model_tensor *t, char *to,
                           uint64_t *digest)
{
    const struct disk_blocks blocks = disk_blocks_of(t);
    for (uint64_t at = 0; at < blocks.bytes; at += READ_BYTES) {
        const uint64_t left = blocks.bytes - at, bytes = left < READ_BYTES ? left : READ_BYTES,
                       needed = blocks.inside + t->bytes - at;
        r->read[r->reads++] = (struct ring_read){.read = {.fd = r->disk->shards.fd[blocks.shard],
                                                          .offset = blocks.offset + at,
                                                          .bytes = bytes,
                                                          .least = needed < bytes ? needed : bytes,
                                                          .to = to + at},
                                                 .tensor = t,
                                                 .shard = blocks.shard,
                                                 .unit = unit,
                                                 .digest = digest};
        digest += digests_of(bytes);
    }
    return digest;
}

static void lay_out(struct ring *r, const struct disk_ring *room)
{
    uint64_t *digest = r->digest;
    for (uint32_t u = 0; u < r->units; u++) {
        const struct disk_passing *passing = &room->passing[u];
        const struct model_unit *of = &r->disk->model->unit[passing->unit];
        char *to = r->disk->memory + passing->at;
        r->unit[u] = (struct ring_unit){.passing = *passing, .first = r->reads};
        for (uint32_t i = 0; i < of->matrix_count; i++) {
            digest = add_reads(r, u, of->tensor[i], to, digest);
            to += disk_blocks_of(of->tensor[i]).bytes;
        }
        r->unit[u].end = r->reads;
    }
}

int disk_ring_open(struct disk *d, const struct disk_ring *room, struct helm_err *err)
{
    struct ring *r = calloc(1, sizeof *r);
    if (!r) return helm_fail(err, HELM_E_NOMEM, "no memory for a ring of weights on disk");
    d->ring = r;
    r->disk = d;
    r->units = room->units;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->free, NULL);
    pthread_cond_init(&r->came_some, NULL);
    uint64_t reads = 0, digests = 0, head = 1;
    for (uint32_t u = 0; u < room->units; u++) {
        const struct model_unit *of = &d->model->unit[room->passing[u].unit];
        for (uint32_t i = 0; i < of->matrix_count; i++) {
            const struct model_tensor *t = of->tensor[i];
            reads += reads_of(t);
            digests += digests_of(disk_blocks_of(t).bytes);
            if (t->interleaved_heads && t->bytes / t->interleaved_heads > head)
                head = t->bytes / t->interleaved_heads;
        }
    }
    r->unit = calloc(room->units, sizeof *r->unit);
    r->read = calloc(reads, sizeof *r->read);
    r->digest = calloc(digests, sizeof *r->digest);
    r->head = malloc(head);
    if (!r->unit || !r->read || !r->digest || !r->head)
        return helm_fail(err, HELM_E_NOMEM, "no memory for a ring of weights on disk");
    lay_out(r, room);
    return 0;
}

int disk_ring_start(struct ring *r, struct helm_err *err)
{
    int rc = pin_create_thread(&r->thread, -1, keep_full, r, err);
    if (rc) return rc;
    pthread_setname_np(r->thread, "disk ring");
    r->started = true;
    return 0;
}

void disk_ring_stop(struct ring *r)
{
    char text[UNITS_TEXT];
    if (!r || !r->started) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->free);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    r->started = false;
    log_info("weights on disk: %s were read, in %llu reads", units_format_size(r->disk->bytes_read, text),
             (unsigned long long)r->disk->reads);
}

void disk_ring_free(struct ring *r)
{
    if (!r) return;
    pthread_cond_destroy(&r->came_some);
    pthread_cond_destroy(&r->free);
    pthread_mutex_destroy(&r->lock);
    free(r->unit);
    free(r->read);
    free(r->digest);
    free(r->head);
    free(r);
}
