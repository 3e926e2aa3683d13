/* A device made of threads: two queues, memory under a real ceiling, copies at a settable speed. See
 * device.h.
 *
 * Opened by device_open("emulated"). Everything a GPU does asynchronously happens asynchronously here too:
 * each queue is a thread that takes operations in order; graphs are recorded lists; waiting for a word blocks
 * the queue. An operation that fails fails the device: what is queued behind it is dropped, and every later
 * call says why. */
#include "worker-gpu/emulated.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/lane.h"
#include "common/units.h"

#define QUEUE_OPS      1024
#define CONTEXT_BYTES  (1 * MIB) /* what its threads and queues take, so that the ledger has the line */
#define MEMORY_DEFAULT (1 * GIB)
#define GARBAGE_BYTES                                                                                        \
    (64 * MIB) /* fresh device memory up to here is filled with NaN: nobody may rely on it */
#define MEMORY_ALIGN 256
#define COPY_PIECE   (256 * KIB) /* between two looks at the clock */
#define WAIT_SPIN_US 20
#define POLL_SPIN_US 20

struct emulated;

enum op_kind { OP_RUN, OP_COPY, OP_CLEAR, OP_FOLLOW, OP_WORD_WAIT, OP_WORD_WRITE, OP_GRAPH };

struct op {
    enum op_kind kind;
    emulated_run_fn *run;
    void *to;
    const void *from;
    uint64_t bytes; /* COPY, CLEAR; FOLLOW: the operation number to wait for */
    _Atomic uint32_t *word;
    uint32_t value;
    enum device_queue queue; /* FOLLOW: whose */
    struct device_graph *graph;
    _Alignas(16) unsigned char args[EMULATED_ARGS_BYTES];
};

struct device_graph {
    struct op *op;
    uint32_t count, capacity;
};

struct device_event {
    enum device_queue queue;
    uint64_t number; /* done once the queue has finished this many operations */
};

struct queue {
    struct emulated *owner;
    pthread_t thread;
    bool started;
    struct op *ring;
    uint64_t put, taken, done; /* guarded by the owner's lock */
};

struct emulated {
    struct device base;
    struct emulated_math math;
    struct queue queue[DEVICE_QUEUE_COUNT];
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something was put, finished, or failed */
    uint64_t copy_bytes_per_s;
    uint32_t wait_ms;
    bool stop;
    _Atomic bool failed; /* the error is final when it says so; also ends waits */
    struct helm_err error;
    struct device_graph *capture; /* being recorded */
};

static struct emulated *emulated_of(struct device *d)
{
    return (struct emulated *)d;
}

static void fail(struct emulated *e, const struct helm_err *error)
{
    pthread_mutex_lock(&e->lock);
    if (!atomic_load(&e->failed)) {
        e->error = *error;
        atomic_store(&e->failed, true);
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static int emulated_check(struct device *d, struct helm_err *err)
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
    const struct timespec at = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                .tv_nsec = (long)(until_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) continue;
}

static void do_copy(const struct emulated *e, const struct op *op)
{
    uint64_t start_ns = units_now_ns();
    for (uint64_t at = 0; at < op->bytes; at += COPY_PIECE) {
        uint64_t bytes = op->bytes - at < COPY_PIECE ? op->bytes - at : COPY_PIECE;
        memcpy((char *)op->to + at, (const char *)op->from + at, (size_t)bytes);
        if (e->copy_bytes_per_s)
            sleep_until(start_ns + (uint64_t)((double)(at + bytes) * 1e9 / (double)e->copy_bytes_per_s));
    }
}

static void do_word_wait(struct emulated *e, const struct op *op)
{
    struct helm_err error = {0};
    uint32_t seen;
    if (lane_poll(op->word, op->value, WAIT_SPIN_US, (int)e->wait_ms, &e->failed, &seen)) return;
    helm_fail(&error, HELM_E_PEER, "the device waited %u ms for ticket %u of a lane (it is %u)", e->wait_ms,
              op->value, seen);
    fail(e, &error);
}

static void do_follow(struct emulated *e, const struct op *op)
{
    pthread_mutex_lock(&e->lock);
    while (e->queue[op->queue].done < op->bytes && !e->stop && !atomic_load(&e->failed))
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void do_op(struct emulated *e, const struct op *op);

/* The graph itself may be freed by whoever sees the word that its last operation writes. */
static void do_graph(struct emulated *e, const struct op *op, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) do_op(e, &op[i]);
}

static void do_op(struct emulated *e, const struct op *op)
{
    if (atomic_load_explicit(&e->failed, memory_order_relaxed)) return;
    switch (op->kind) {
    case OP_RUN:
        op->run(&e->math, op->args);
        if (e->math.broken) {
            struct helm_err error = {0};
            helm_fail(&error, HELM_E_DEVICE, "the emulated device failed: %s", e->math.broken);
            fail(e, &error);
        }
        break;
    case OP_COPY:
        do_copy(e, op);
        break;
    case OP_CLEAR:
        memset(op->to, 0, (size_t)op->bytes);
        break;
    case OP_FOLLOW:
        do_follow(e, op);
        break;
    case OP_WORD_WAIT:
        do_word_wait(e, op);
        break;
    case OP_WORD_WRITE:
        atomic_store_explicit(op->word, op->value, memory_order_release);
        break;
    case OP_GRAPH:
        do_graph(e, op->graph->op, op->graph->count);
        break;
    }
}

static void *queue_main(void *arg)
{
    struct queue *q = arg;
    struct emulated *e = q->owner;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        while (q->taken == q->put && !e->stop) pthread_cond_wait(&e->changed, &e->lock);
        if (q->taken == q->put) break;
        const struct op *op = &q->ring[q->taken++ % QUEUE_OPS];
        pthread_mutex_unlock(&e->lock);
        do_op(e, op);
        pthread_mutex_lock(&e->lock);
        q->done++;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- putting things into queues ---- */

static int graph_add(struct device_graph *graph, const struct op *op, struct helm_err *err)
{
    if (graph->count == graph->capacity) {
        uint32_t capacity = graph->capacity ? graph->capacity * 2 : 64;
        struct op *grown = aligned_alloc(16, capacity * sizeof *grown);
        if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for a graph of %u operations", capacity);
        if (graph->count) memcpy(grown, graph->op, graph->count * sizeof *grown);
        free(graph->op);
        graph->op = grown;
        graph->capacity = capacity;
    }
    graph->op[graph->count++] = *op;
    return 0;
}

static int put(struct emulated *e, enum device_queue queue, const struct op *op, struct helm_err *err)
{
    struct queue *q = &e->queue[queue];
    if (e->capture && queue == DEVICE_COMPUTE) return graph_add(e->capture, op, err);
    int rc = emulated_check(&e->base, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    while (q->put - q->done >= QUEUE_OPS) pthread_cond_wait(&e->changed, &e->lock);
    q->ring[q->put++ % QUEUE_OPS] = *op;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

int emulated_enqueue(struct device *d, emulated_run_fn *run, const void *args, size_t bytes,
                     struct helm_err *err)
{
    struct op op = {.kind = OP_RUN, .run = run};
    if (bytes > sizeof op.args)
        return helm_fail(err, HELM_E_INTERNAL, "%zu bytes of arguments, room for %zu", bytes, sizeof op.args);
    memcpy(op.args, args, bytes);
    return put(emulated_of(d), DEVICE_COMPUTE, &op, err);
}

static int emulated_copy(struct device *d, enum device_queue queue, enum device_direction direction, void *to,
                         const void *from, uint64_t bytes, struct helm_err *err)
{
    (void)direction;
    const struct op op = {.kind = OP_COPY, .to = to, .from = from, .bytes = bytes};
    return put(emulated_of(d), queue, &op, err);
}

static int emulated_clear(struct device *d, enum device_queue queue, void *memory, uint64_t bytes,
                          struct helm_err *err)
{
    const struct op op = {.kind = OP_CLEAR, .to = memory, .bytes = bytes};
    return put(emulated_of(d), queue, &op, err);
}

static int emulated_word_wait(struct device *d, _Atomic uint32_t *word, uint32_t value,
                              enum device_compare compare, struct helm_err *err)
{
    (void)compare; /* exact in both cases: a word that runs ahead is an error to be seen */
    const struct op op = {.kind = OP_WORD_WAIT, .word = word, .value = value};
    return put(emulated_of(d), DEVICE_COMPUTE, &op, err);
}

static int emulated_word_write(struct device *d, _Atomic uint32_t *word, uint32_t value, struct helm_err *err)
{
    const struct op op = {.kind = OP_WORD_WRITE, .word = word, .value = value};
    return put(emulated_of(d), DEVICE_COMPUTE, &op, err);
}

/* ---- events ---- */

static int emulated_event_create(struct device *d, struct device_event **event, struct helm_err *err)
{
    (void)d;
    *event = calloc(1, sizeof **event);
    return *event ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for an event");
}

static void emulated_event_free(struct device *d, struct device_event *event)
{
    (void)d;
    free(event);
}

static int emulated_event_record(struct device *d, enum device_queue queue, struct device_event *event,
                                 struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    int rc = emulated_check(d, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    event->queue = queue;
    event->number = e->queue[queue].put;
    pthread_mutex_unlock(&e->lock);
    return 0;
}

static int emulated_event_follow(struct device *d, enum device_queue queue, struct device_event *event,
                                 struct helm_err *err)
{
    const struct op op = {.kind = OP_FOLLOW, .queue = event->queue, .bytes = event->number};
    return put(emulated_of(d), queue, &op, err);
}

static int emulated_event_wait(struct device *d, struct device_event *event, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    pthread_mutex_lock(&e->lock);
    while (e->queue[event->queue].done < event->number && !atomic_load(&e->failed))
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return emulated_check(d, err);
}

/* ---- graphs ---- */

static int emulated_capture_begin(struct device *d, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    if (e->capture) return helm_fail(err, HELM_E_STATE, "a graph is being captured already");
    e->capture = calloc(1, sizeof *e->capture);
    return e->capture ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a graph");
}

static void emulated_graph_free(struct device *d, struct device_graph *graph)
{
    if (!graph) return;
    d->used[DEVICE_GRAPHS] -= graph->capacity * sizeof *graph->op;
    free(graph->op);
    free(graph);
}

static int emulated_capture_end(struct device *d, struct device_graph **graph, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    *graph = NULL;
    if (!e->capture) return helm_fail(err, HELM_E_STATE, "no graph is being captured");
    struct device_graph *captured = e->capture;
    e->capture = NULL;
    int rc = device_charge(d, DEVICE_GRAPHS, captured->capacity * sizeof *captured->op, err);
    if (rc) {
        free(captured->op);
        free(captured);
        return rc;
    }
    *graph = captured;
    return 0;
}

static int emulated_graph_launch(struct device *d, struct device_graph *graph, struct helm_err *err)
{
    const struct op op = {.kind = OP_GRAPH, .graph = graph};
    return put(emulated_of(d), DEVICE_COMPUTE, &op, err);
}

/* ---- memory ---- */

static int emulated_host_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    (void)d;
    uint64_t rounded = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    *memory = aligned_alloc(MEMORY_ALIGN, (size_t)(rounded ? rounded : MEMORY_ALIGN));
    return *memory ? 0
                   : helm_fail(err, HELM_E_NOMEM, "the emulated device's %llu bytes are not there",
                               (unsigned long long)bytes);
}

static int emulated_memory_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    int rc = emulated_host_alloc(d, bytes, memory, err);
    if (!rc) memset(*memory, 0xff, (size_t)(bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES));
    return rc;
}

static void emulated_memory_free(struct device *d, void *memory)
{
    (void)d;
    free(memory);
}

static int emulated_host_register(struct device *d, void *base, uint64_t bytes, struct helm_err *err)
{
    (void)d, (void)base, (void)bytes, (void)err;
    return 0;
}

static void emulated_host_unregister(struct device *d, void *base)
{
    (void)d, (void)base;
}

static int emulated_thread_begin(struct device *d, struct helm_err *err)
{
    return emulated_check(d, err);
}

static uint64_t emulated_memory_overhead(struct device *d)
{
    return d->used[DEVICE_CONTEXT] + d->used[DEVICE_GRAPHS];
}

static void emulated_abandon(struct device *d)
{
    struct emulated *e = emulated_of(d);
    struct helm_err error = {0};
    helm_fail(&error, HELM_E_CANCELLED, "the emulated device was abandoned");
    fail(e, &error);
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++)
        while (e->queue[i].done < e->queue[i].put) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void emulated_close(struct device *d)
{
    struct emulated *e = emulated_of(d);
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++) {
        if (e->queue[i].started) pthread_join(e->queue[i].thread, NULL);
        free(e->queue[i].ring);
    }
    if (e->capture) free(e->capture->op);
    free(e->capture);
    emulated_math_close(&e->math);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static const struct device_ops emulated_ops = {
    .close = emulated_close,
    .thread_begin = emulated_thread_begin,
    .memory_alloc = emulated_memory_alloc,
    .memory_free = emulated_memory_free,
    .host_alloc = emulated_host_alloc,
    .host_free = emulated_memory_free,
    .host_register = emulated_host_register,
    .host_unregister = emulated_host_unregister,
    .copy = emulated_copy,
    .clear = emulated_clear,
    .event_create = emulated_event_create,
    .event_free = emulated_event_free,
    .event_record = emulated_event_record,
    .event_follow = emulated_event_follow,
    .event_wait = emulated_event_wait,
    .word_wait = emulated_word_wait,
    .word_write = emulated_word_write,
    .capture_begin = emulated_capture_begin,
    .capture_end = emulated_capture_end,
    .graph_launch = emulated_graph_launch,
    .graph_free = emulated_graph_free,
    .memory_overhead = emulated_memory_overhead,
    .check = emulated_check,
    .abandon = emulated_abandon,
};

/* A queue's thread, with all signals left to the main thread. */
static int queue_start(struct emulated *e, enum device_queue queue, struct helm_err *err)
{
    struct queue *q = &e->queue[queue];
    sigset_t all, before;
    q->owner = e;
    q->ring = aligned_alloc(16, QUEUE_OPS * sizeof *q->ring);
    if (!q->ring) return helm_fail(err, HELM_E_NOMEM, "no memory for a queue");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&q->thread, NULL, queue_main, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) return helm_fail(err, HELM_E_NOMEM, "cannot start a thread: %s", strerror(code));
    q->started = true;
    pthread_setname_np(q->thread, queue == DEVICE_COMPUTE ? "emulated gpu" : "emulated copy");
    return 0;
}

int device_emulated_open(const struct device_options *options, struct device **device, struct helm_err *err)
{
    struct emulated *e = aligned_alloc(64, (sizeof *e + 63) / 64 * 64);
    *device = NULL;
    if (!e) return helm_fail(err, HELM_E_NOMEM, "no memory for the emulated device");
    memset(e, 0, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->base.ops = &emulated_ops;
    e->base.kernels = emulated_kernels;
    e->base.ceiling = options->vram_bytes ? options->vram_bytes : MEMORY_DEFAULT;
    e->base.spin_us = POLL_SPIN_US;
    e->copy_bytes_per_s = options->copy_bytes_per_s;
    e->wait_ms = options->wait_ms;
    int rc = emulated_math_open(&e->math, err);
    for (int i = 0; i < DEVICE_QUEUE_COUNT && !rc; i++) rc = queue_start(e, (enum device_queue)i, err);
    if (!rc) rc = device_charge(&e->base, DEVICE_CONTEXT, CONTEXT_BYTES, err);
    if (rc) {
        emulated_close(&e->base);
        return rc;
    }
    char memory[UNITS_TEXT], speed[UNITS_TEXT];
    snprintf(e->base.text, sizeof e->base.text, "emulated device, %s, attention %s, copies %s%s",
             units_format_size(e->base.ceiling, memory), e->math.attention[DTYPE_F16]->name,
             e->copy_bytes_per_s ? units_format_size(e->copy_bytes_per_s, speed) : "unlimited",
             e->copy_bytes_per_s ? "/s" : "");
    *device = &e->base;
    return 0;
}
