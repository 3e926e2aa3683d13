/* Reads in parts, so many at once. See reader.h. */
#include "common/disk/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/disk/queue.h"

struct disk_reader {
    const struct disk_way *way;
    struct disk_queue *queue;
    uint32_t depth, block;
    struct disk_part *part;               /* [depth] */
    struct disk_part *idle;               /* those that are not under way */
    uint32_t under_way;                   /* the others' number */
    struct disk_reading *waiting, **last; /* reads that have parts left to begin, in order */
    struct disk_reading *done, **done_last;
};

int disk_reader_open(const struct disk_reader_options *o, struct disk_reader **reader, struct helm_err *err)
{
    *reader = NULL;
    if (o->depth == 0 || o->depth > DISK_DEPTH_MAX || o->block == 0 || o->block % DISK_ALIGN)
        return helm_fail(err, HELM_E_LIMIT, "a reader of %u parts (at most %d) of %u bytes each (by %d)",
                         o->depth, DISK_DEPTH_MAX, o->block, DISK_ALIGN);
    struct disk_reader *r = calloc(1, sizeof *r);
    struct disk_part *part = calloc(o->depth, sizeof *part);
    int rc = r && part ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a reader of %u parts", o->depth);
    if (!rc) {
        *r = (struct disk_reader){.way = o->way == DISK_URING ? &disk_uring : &disk_threads,
                                  .depth = o->depth,
                                  .block = o->block,
                                  .part = part};
        r->last = &r->waiting;
        r->done_last = &r->done;
        for (uint32_t i = 0; i < o->depth; i++) part[i].next = r->idle, r->idle = &part[i];
        rc = r->way->open(o->depth, &r->queue, err);
    }
    if (rc) {
        free(part);
        free(r);
        return rc;
    }
    *reader = r;
    return 0;
}

int disk_reader_open_usual(struct disk_reader **reader, struct helm_err *refused, struct helm_err *err)
{
    struct disk_reader_options o = {.way = DISK_URING, .depth = DISK_DEPTH, .block = DISK_BLOCK};
    *refused = (struct helm_err){0};
    const int rc = disk_reader_open(&o, reader, refused);
    o.way = DISK_THREADS;
    if (rc == HELM_E_UNSUPPORTED) return disk_reader_open(&o, reader, err);
    return rc ? helm_fail(err, rc, "%s", refused->text) : 0;
}

int disk_reader_direct(int fd, const char *name, struct helm_err *err)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && !fcntl(fd, F_SETFL, flags | O_DIRECT)) return 0;
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "%s: its file system does not read past the page cache (O_DIRECT: %s)", name,
                     strerror(errno));
}

/* Begins as many parts as may be under way. */
static void begin_parts(struct disk_reader *r)
{
    while (r->idle && r->waiting) {
        struct disk_reading *read = r->waiting;
        struct disk_part *part = r->idle;
        const uint64_t left = read->bytes - read->begun;
        *part = (struct disk_part){.read = read,
                                   .at = read->offset + read->begun,
                                   .bytes = left < r->block ? (uint32_t)left : r->block,
                                   .next = part->next};
        r->idle = part->next;
        read->begun += part->bytes;
        if (read->begun == read->bytes && !(r->waiting = read->next)) r->last = &r->waiting;
        r->under_way++;
        r->way->begin(r->queue, part);
    }
    r->way->submit(r->queue);
}

void disk_reader_submit(struct disk_reader *r, struct disk_reading *read)
{
    read->begun = 0;
    read->left = read->bytes;
    read->error = 0;
    read->ended = false;
    read->next = NULL;
    *r->last = read;
    r->last = &read->next;
    begin_parts(r);
}

/* The failure nearest to the read's beginning counts, whichever part is done first. */
static void fail(struct disk_reading *read, uint64_t at, int error)
{
    if ((read->error || read->ended) && read->failed_at <= at) return;
    read->error = error;
    read->ended = !error;
    read->failed_at = at;
}

/* Takes what came of a part: a short one is begun again after its end, unless the file ends there. */
static void take(struct disk_reader *r, struct disk_part *part)
{
    struct disk_reading *read = part->read;
    const bool again = part->result == -EINTR || part->result == -EAGAIN;
    const uint32_t came = part->result > 0 ? (uint32_t)part->result : 0;
    const uint64_t end = part->at + came, needed = read->offset + read->least;
    const bool all = came == part->bytes || (came && end >= needed) || (!came && part->at >= needed);
    if (!all && (came || again) && came % DISK_ALIGN == 0) {
        part->at = end;
        part->bytes -= came;
        read->left -= came;
        r->way->begin(r->queue, part);
        r->way->submit(r->queue);
        return;
    }
    if (!all) fail(read, end, part->result < 0 ? -part->result : 0);
    read->left -= part->bytes;
    part->next = r->idle;
    r->idle = part;
    r->under_way--;
    if (read->left) return;
    read->next = NULL;
    *r->done_last = read;
    r->done_last = &read->next;
}

struct disk_reading *disk_reader_done(struct disk_reader *r, bool wait)
{
    struct disk_part *part;
    while (r->under_way && (part = r->way->end(r->queue, wait && !r->done))) {
        take(r, part);
        begin_parts(r);
    }
    struct disk_reading *read = r->done;
    if (read && !(r->done = read->next)) r->done_last = &r->done;
    return read;
}

void disk_reader_close(struct disk_reader *r)
{
    if (!r) return;
    r->waiting = NULL; /* what has not begun never does */
    while (disk_reader_done(r, true)) continue;
    r->way->close(r->queue);
    free(r->part);
    free(r);
}
