/* Parts of reads by threads with pread(2). See queue.h. Owns its threads. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/disk/queue.h"

struct disk_queue {
    pthread_mutex_t lock;
    pthread_cond_t some, ended;          /* there is a part to begin, or the end; a part has ended */
    struct disk_part *begun, **last;     /* in order */
    struct disk_part *done, **done_last; /* likewise */
    bool stop;
    uint32_t threads;
    pthread_t thread[];
};

static void append(struct disk_part ***last, struct disk_part *part)
{
    part->next = NULL;
    **last = part;
    *last = &part->next;
}

static struct disk_part *take(struct disk_part **first, struct disk_part ***last)
{
    struct disk_part *part = *first;
    if (part && !(*first = part->next)) *last = first;
    return part;
}

static void *read_parts(void *arg)
{
    struct disk_queue *q = arg;
    cpu_run_anywhere();
    pthread_mutex_lock(&q->lock);
    while (!q->stop) {
        struct disk_part *part = take(&q->begun, &q->last);
        if (!part) {
            pthread_cond_wait(&q->some, &q->lock);
            continue;
        }
        pthread_mutex_unlock(&q->lock);
        const ssize_t came = pread(part->read->fd, disk_part_to(part), part->bytes, (off_t)part->at);
        part->result = came < 0 ? -errno : (int)came;
        pthread_mutex_lock(&q->lock);
        append(&q->done_last, part);
        pthread_cond_signal(&q->ended);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void close_threads(struct disk_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->some);
    pthread_mutex_unlock(&q->lock);
    for (uint32_t i = 0; i < q->threads; i++) pthread_join(q->thread[i], NULL);
    pthread_cond_destroy(&q->some);
    pthread_cond_destroy(&q->ended);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static int open_threads(uint32_t depth, struct disk_queue **queue, struct helm_err *err)
{
    struct disk_queue *q = calloc(1, sizeof *q + depth * sizeof *q->thread);
    if (!q) return helm_fail(err, HELM_E_NOMEM, "no memory for %u reading threads", depth);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->some, NULL);
    pthread_cond_init(&q->ended, NULL);
    q->last = &q->begun;
    q->done_last = &q->done;
    int rc = 0;
    sigset_t all, old;
    sigfillset(&all); /* signals belong to the main thread (pin_create_thread needs libnuma) */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (q->threads < depth && !(rc = pthread_create(&q->thread[q->threads], NULL, read_parts, q)))
        q->threads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        close_threads(q);
        errno = rc;
        return helm_fail_errno(err, "%u reading threads", depth);
    }
    *queue = q;
    return 0;
}

static void begin(struct disk_queue *q, struct disk_part *part)
{
    pthread_mutex_lock(&q->lock);
    append(&q->last, part);
    pthread_cond_signal(&q->some);
    pthread_mutex_unlock(&q->lock);
}

static void submit(struct disk_queue *q)
{
    (void)q; /* each began by itself */
}

static struct disk_part *end(struct disk_queue *q, bool wait)
{
    pthread_mutex_lock(&q->lock);
    while (wait && !q->done) pthread_cond_wait(&q->ended, &q->lock);
    struct disk_part *part = take(&q->done, &q->done_last);
    pthread_mutex_unlock(&q->lock);
    return part;
}

const struct disk_way disk_threads = {
    .open = open_threads, .begin = begin, .submit = submit, .end = end, .close = close_threads};
