/* Parts of reads by io_uring (liburing). See queue.h. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "common/disk/queue.h"

struct disk_queue {
    struct io_uring ring;
};

/* Linux before 5.6 has io_uring without plain reads, and cannot be asked. */
static bool can_read(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    const bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    return can;
}

/* A sandbox may allow to make a ring and not to use it: 0, or what an entry that does nothing fails with. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_cqe *done;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int rc = io_uring_submit_and_wait(ring, 1);
    if (rc >= 0) rc = io_uring_peek_cqe(ring, &done);
    if (rc) return rc;
    rc = done->res;
    io_uring_cqe_seen(ring, done);
    return rc;
}

static int open_ring(uint32_t depth, struct disk_queue **queue, struct helm_err *err)
{
    struct disk_queue *q = calloc(1, sizeof *q);
    if (!q) return helm_fail(err, HELM_E_NOMEM, "no memory for a queue of reads");
    int rc = io_uring_queue_init(depth, &q->ring, 0);
    if (rc) {
        free(q);
        return helm_fail(err, HELM_E_UNSUPPORTED, "io_uring: %s", strerror(-rc));
    }
    rc = try_ring(&q->ring);
    if (rc)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "io_uring: %s", strerror(-rc));
    else if (!can_read(&q->ring))
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "io_uring: it does not say that it reads (Linux 5.6 and later do)");
    if (rc) {
        io_uring_queue_exit(&q->ring);
        free(q);
        return rc;
    }
    *queue = q;
    return 0;
}

/* The ring has as many entries as parts may be under way, so there is always one. */
static void begin(struct disk_queue *q, struct disk_part *part)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&q->ring);
    if (!entry) abort();
    io_uring_prep_read(entry, part->read->fd, disk_part_to(part), part->bytes, part->at);
    io_uring_sqe_set_data(entry, part);
}

/* The kernel may be short of memory for a moment; what it did not take stays in the ring. */
static void submit(struct disk_queue *q)
{
    while (io_uring_sq_ready(&q->ring)) {
        const int rc = io_uring_submit(&q->ring);
        if (rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != -EBUSY) abort();
    }
}

static struct disk_part *end(struct disk_queue *q, bool wait)
{
    struct io_uring_cqe *entry = NULL;
    int rc;
    do rc = wait ? io_uring_wait_cqe(&q->ring, &entry) : io_uring_peek_cqe(&q->ring, &entry);
    while (rc == -EINTR || (wait && rc == -EAGAIN));
    if (rc == -EAGAIN) return NULL;
    if (rc || !entry) abort();
    struct disk_part *part = io_uring_cqe_get_data(entry);
    part->result = entry->res;
    io_uring_cqe_seen(&q->ring, entry);
    return part;
}

static void close_ring(struct disk_queue *q)
{
    io_uring_queue_exit(&q->ring);
    free(q);
}

const struct disk_way disk_uring = {
    .open = open_ring, .begin = begin, .submit = submit, .end = end, .close = close_ring};
