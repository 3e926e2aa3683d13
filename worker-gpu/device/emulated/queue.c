/* The emulated device's queues: a thread each that does operations in order. See emulated/queue.h.
 *
 * An operation that fails fails the device: what is queued after it, in both queues, is dropped. */
#include "worker-gpu/device/emulated/queue.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/shared/lane.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"

#define COPY_PIECE    (256 * KIB) /* between two looks at the clock */
#define WAIT_SPIN_US  20
#define TIMER_SLACK   1000 /* ns: a copy's time is kept better than the kernel's 50 us */
#define NS_PER_SECOND 1000000000u

/* ---- waiting, and being woken ---- */

static bool is_reached(const struct emulated *e, const struct point *at)
{
    const struct queue *q = &e->queue[at->queue];
    return q->done >= at->op || (at->marks && q->done + 1 == at->op && q->marks >= at->marks);
}

void emulated_wait_locked(struct emulated *e, const struct point *at, bool or_end)
{
    struct waiter me = {.at = at, .reached = PTHREAD_COND_INITIALIZER, .next = e->waiters},
                  **link = &e->waiters;
    e->waiters = &me;
    while (!is_reached(e, at) && !(or_end && (e->stop || atomic_load(&e->failed))))
        pthread_cond_wait(&me.reached, &e->lock);
    while (*link != &me) link = &(*link)->next;
    *link = me.next;
    pthread_cond_destroy(&me.reached);
}

/* A queue has moved on. */
static void wake_waiters_locked(struct emulated *e)
{
    for (struct waiter *w = e->waiters; w; w = w->next)
        if (is_reached(e, w->at)) pthread_cond_signal(&w->reached);
}

void emulated_wake_all_locked(struct emulated *e)
{
    for (struct waiter *w = e->waiters; w; w = w->next) pthread_cond_signal(&w->reached);
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++)
        if (e->queue[i].started) pthread_cond_signal(&e->queue[i].fed);
}

void emulated_drain_locked(struct emulated *e)
{
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++) {
        const struct point end = {.queue = (enum device_queue)i, .op = e->queue[i].put};
        emulated_wait_locked(e, &end, false);
    }
}

void emulated_fail(struct emulated *e, const struct helm_err *error)
{
    pthread_mutex_lock(&e->lock);
    if (!atomic_load(&e->failed)) {
        e->error = *error;
        atomic_store(&e->failed, true);
    }
    emulated_wake_all_locked(e);
    pthread_mutex_unlock(&e->lock);
}

int emulated_check(struct device *d, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    if (!atomic_load(&e->failed)) return 0;
    pthread_mutex_lock(&e->lock);
    int rc = helm_fail(err, e->error.code ? e->error.code : HELM_E_DEVICE, "%s", e->error.text);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- what a queue's thread does ---- */

static void sleep_until(uint64_t until_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(until_ns / NS_PER_SECOND),
                                .tv_nsec = (long)(until_ns % NS_PER_SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) continue;
}

/* Takes as long as the bytes take at the speed that is set, or as the memory needs if that is longer. The
 * second of two consecutive copies begins when the first should have ended: a thread that wakes late makes up
 * for it. */
static void do_copy(struct queue *q, const struct device_copy_2d *copy)
{
    struct emulated *e = q->owner;
    const uint64_t begun_ns = units_now_ns(), start_ns = q->copy_due_ns ? q->copy_due_ns : begun_ns;
    uint64_t copied = 0, unslept = 0;
    for (uint64_t row = 0; row < copy->height; row++) {
        char *to = (char *)copy->to + row * copy->to_stride;
        const char *from = (const char *)copy->from + row * copy->from_stride;
        for (uint64_t at = 0; at < copy->width;) {
            uint64_t bytes = copy->width - at < COPY_PIECE ? copy->width - at : COPY_PIECE;
            memcpy(to + at, from + at, (size_t)bytes);
            at += bytes;
            copied += bytes;
            unslept += bytes;
            bool last = row + 1 == copy->height && at == copy->width;
            if (!e->copy_bytes_per_s || (unslept < COPY_PIECE && !last)) continue;
            sleep_until(start_ns + (uint64_t)((double)copied * NS_PER_SECOND / (double)e->copy_bytes_per_s));
            unslept = 0;
        }
    }
    if (e->copy_bytes_per_s)
        q->copy_due_ns = start_ns + (uint64_t)((double)copied * NS_PER_SECOND / (double)e->copy_bytes_per_s);
}

static void do_word_wait(struct queue *q, const struct task *op)
{
    struct emulated *e = q->owner;
    struct helm_err error = {0};
    uint32_t seen;
    bool came =
        lane_poll(op->as.word.word, op->as.word.value, WAIT_SPIN_US, (int)e->wait_ms, &e->failed, &seen);
    if (came) return;
    helm_fail(&error, HELM_E_PEER, "the device waited %u ms for ticket %u of a lane (it is %u)", e->wait_ms,
              op->as.word.value, seen);
    emulated_fail(e, &error);
}

static void do_follow(struct queue *q, const struct point *at)
{
    struct emulated *e = q->owner;
    pthread_mutex_lock(&e->lock);
    if (!is_reached(e, at)) {
        emulated_wait_locked(e, at, true);
        q->copy_due_ns = 0;
    }
    pthread_mutex_unlock(&e->lock);
}

static void do_mark(struct queue *q, uint32_t number)
{
    pthread_mutex_lock(&q->owner->lock);
    q->marks = number;
    wake_waiters_locked(q->owner);
    pthread_mutex_unlock(&q->owner->lock);
}

/* `launch`: of the graph this operation is in, NULL outside. */
static void do_op(struct queue *q, const struct task *op, const struct task *launch)
{
    struct emulated *e = q->owner;
    if (atomic_load_explicit(&e->failed, memory_order_relaxed)) return;
    if (op->kind == TASK_RUN || op->kind == TASK_WORD_WAIT || op->kind == TASK_CLEAR) q->copy_due_ns = 0;
    switch (op->kind) {
    case TASK_RUN:
        op->as.run.run(&e->math, &op->as.run.op);
        if (e->math.broken) {
            struct helm_err error = {0};
            helm_fail(&error, HELM_E_DEVICE, "the emulated device failed: %s", e->math.broken);
            emulated_fail(e, &error);
        }
        break;
    case TASK_COPY:
        do_copy(q, &op->as.copy);
        break;
    case TASK_CLEAR:
        memset(op->as.clear.memory, 0, (size_t)op->as.clear.bytes);
        break;
    case TASK_FOLLOW:
        do_follow(q, &op->as.follow);
        break;
    case TASK_FOLLOW_OWN: {
        const struct point at = {.queue = op->as.follow.queue,
                                 .op = launch->as.graph.op[op->as.follow.queue],
                                 .marks = op->as.follow.marks};
        do_follow(q, &at);
        break;
    }
    case TASK_FOLLOW_CROSS:
        do_follow(q, &launch->as.graph.cross[op->as.cross.slot]);
        break;
    case TASK_MARK:
        do_mark(q, op->as.mark.number);
        break;
    case TASK_WORD_WAIT:
        do_word_wait(q, op);
        break;
    case TASK_WORD_WRITE:
        atomic_store_explicit(op->as.word.word, op->as.word.value, memory_order_release);
        break;
    case TASK_GRAPH: {
        const struct graph_part *part = &op->as.graph.graph->part[q - e->queue];
        for (uint32_t i = 0; i < part->count; i++) do_op(q, &part->op[i], op);
        break;
    }
    }
}

static void *queue_main(void *arg)
{
    struct queue *q = arg;
    struct emulated *e = q->owner;
    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK, 0, 0, 0);
    pthread_mutex_lock(&e->lock);
    for (;;) {
        while (q->taken == q->put && !e->stop) {
            q->idle = true;
            pthread_cond_wait(&q->fed, &e->lock);
            q->idle = false;
            q->copy_due_ns = 0;
        }
        if (q->taken == q->put) break;
        const struct task *op = &q->ring[q->taken++ % EMULATED_QUEUE_OPS];
        pthread_mutex_unlock(&e->lock);
        do_op(q, op, NULL);
        pthread_mutex_lock(&e->lock);
        if (op->kind == TASK_GRAPH) {
            free(op->as.graph.cross);
            emulated_graph_release_locked(op->as.graph.graph);
        }
        q->done++;
        q->marks = 0; /* the next operation may be a graph */
        wake_waiters_locked(e);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- putting things into queues ---- */

void emulated_room_locked(struct emulated *e, enum device_queue queue, uint32_t count)
{
    const struct queue *q = &e->queue[queue];
    while (q->put - q->done + count > EMULATED_QUEUE_OPS) { /* others may put meanwhile */
        const struct point room = {.queue = queue, .op = q->put + count - EMULATED_QUEUE_OPS};
        emulated_wait_locked(e, &room, false);
    }
}

void emulated_put_locked(struct emulated *e, enum device_queue queue, const struct task *op)
{
    struct queue *q = &e->queue[queue];
    q->ring[q->put++ % EMULATED_QUEUE_OPS] = *op;
    if (q->idle) pthread_cond_signal(&q->fed);
}

int emulated_put(struct emulated *e, enum device_queue queue, const struct task *op, struct helm_err *err)
{
    if (e->capture) return emulated_graph_add(e->capture, queue, op, err);
    int rc = emulated_check(&e->base, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    emulated_room_locked(e, queue, 1);
    emulated_put_locked(e, queue, op);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

/* A queue's thread, with all signals left to the main thread. */
int emulated_queue_start(struct emulated *e, enum device_queue queue, struct helm_err *err)
{
    struct queue *q = &e->queue[queue];
    q->owner = e;
    q->ring = aligned_alloc(16, EMULATED_QUEUE_OPS * sizeof *q->ring);
    if (!q->ring) return helm_fail(err, HELM_E_NOMEM, "no memory for a queue");
    pthread_cond_init(&q->fed, NULL);
    const int rc = pin_create_thread(&q->thread, -1, queue_main, q, err);
    if (rc) return rc;
    q->started = true;
    pthread_setname_np(q->thread, queue == DEVICE_COMPUTE ? "emulated gpu" : "emulated copy");
    return 0;
}
