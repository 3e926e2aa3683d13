/* Inside the emulated device: its two queues and what is put into them.
 *
 * Shared by emulated/device.c (memory, opening), emulated/queue.c (the threads) and emulated/graph.c (events,
 * captures) only. The lock guards everything that says so; the threads hold it while they look at what was
 * put, never while they work. */
#pragma once

#include <pthread.h>

#include "worker-gpu/device/emulated/emulated.h"

#define EMULATED_QUEUE_OPS 1024

enum task_kind {
    TASK_RUN,
    TASK_COPY,
    TASK_CLEAR,
    TASK_FOLLOW,       /* wait for a point */
    TASK_FOLLOW_OWN,   /* in a graph: for a mark of the same launch */
    TASK_FOLLOW_CROSS, /* in a graph: for a crossing event as it was when the graph was launched */
    TASK_MARK,         /* in a graph: an event was recorded here */
    TASK_WORD_WAIT,
    TASK_WORD_WRITE,
    TASK_GRAPH, /* a part of a graph */
};

/* A place in a queue: after its first `op` operations, or, with marks, inside the graph that is operation
 * number `op`, after that many of its marks. */
struct point {
    enum device_queue queue;
    uint64_t op;
    uint32_t marks;
};

struct task {
    enum task_kind kind;
    union {
        struct {
            emulated_run_fn *run;
            struct op op;
        } run;
        struct device_copy_2d copy;
        struct {
            void *memory;
            uint64_t bytes;
        } clear;
        struct point follow; /* FOLLOW; FOLLOW_OWN: queue and marks */
        struct {
            uint32_t slot; /* in the launch's list of points */
        } cross;
        struct {
            uint32_t number; /* among the marks of this part, from 1 */
        } mark;
        struct {
            _Atomic uint32_t *word;
            uint32_t value;
        } word;
        struct {
            struct device_graph *graph;
            uint64_t op[DEVICE_QUEUE_COUNT]; /* numbers of both parts' operations */
            struct point *cross;             /* this part's own copy, freed when it is done */
        } graph;
    } as;
};

/* The operations of one queue in a graph. */
struct graph_part {
    struct task *op;
    uint32_t count, capacity, marks;
};

struct crossing_use {
    struct device_event *event;
    enum device_queue queue;
    uint32_t mark; /* of a recording */
};

struct crossing_list {
    struct crossing_use *use;
    uint32_t count, capacity;
};

struct device_graph {
    struct graph_part part[DEVICE_QUEUE_COUNT];
    struct crossing_list recorded, followed; /* crossing events; a followed one's index is its slot */
    uint64_t copied_bytes[DEVICE_QUEUE_COUNT][DEVICE_DIRECTION_COUNT];
    uint64_t serial; /* of the capture */
    uint32_t users;  /* the owner and every part that is queued; guarded by the device's lock */
};

struct device_event {
    bool crossing;
    uint64_t captured; /* serial of the capture in which it was recorded last, 0: outside */
    struct point at;   /* of a captured one: queue and marks */
};

struct queue {
    struct emulated *owner;
    pthread_t thread;
    bool started;
    struct task *ring;
    pthread_cond_t fed; /* something was put, or the device stops */
    bool idle;          /* the thread waits for that; guarded by the lock, like what follows */
    uint64_t put, taken, done;
    uint32_t marks;       /* passed in the graph that is operation number done + 1 */
    uint64_t copy_due_ns; /* the thread's own: when the copy before should have ended; 0: it was idle since */
};

/* A waiter for a point of a queue: a thread of the host or of another queue. On its stack, in a list under
 * the lock. Each has a condition of its own, so an operation wakes only the threads that it concerns. */
struct waiter {
    const struct point *at;
    pthread_cond_t reached;
    struct waiter *next;
};

struct region {
    char *base;
    uint64_t bytes;
    bool host, registered, read_only;
};

struct emulated {
    struct device base;
    struct emulated_math math;
    struct queue queue[DEVICE_QUEUE_COUNT];
    pthread_mutex_t lock;
    struct waiter *waiters;
    uint64_t copy_bytes_per_s;
    uint32_t wait_ms;
    bool stop;
    _Atomic bool failed; /* the error is final when it says so; also ends waits */
    struct helm_err error;
    struct device_graph *capture; /* being recorded */
    uint64_t captures;
    struct region *region; /* memory that copies may touch; guarded by the lock */
    uint32_t region_count, region_capacity;
};

static inline struct emulated *emulated_of(struct device *d)
{
    return (struct emulated *)d;
}

/* emulated/queue.c */
HELM_MUST_CHECK int emulated_queue_start(struct emulated *e, enum device_queue queue, struct helm_err *err);
void emulated_fail(struct emulated *e, const struct helm_err *error);
int emulated_check(struct device *d, struct helm_err *err);
/* Puts an operation into a queue, or into that queue's part of the graph being captured. */
int emulated_put(struct emulated *e, enum device_queue queue, const struct task *op, struct helm_err *err);
/* The same with the lock held, where there is room, and no capture. */
void emulated_put_locked(struct emulated *e, enum device_queue queue, const struct task *op);
/* Waits until there is room for `count` more in a queue; lock held. */
void emulated_room_locked(struct emulated *e, enum device_queue queue, uint32_t count);
/* Waits until a queue has come to a point; with `or_end`, at most until the device fails or stops. Lock held.
 */
void emulated_wait_locked(struct emulated *e, const struct point *at, bool or_end);
/* Waits until all queues have done what was put into them; lock held. */
void emulated_drain_locked(struct emulated *e);
/* Wakes all threads that wait for something that may not come any more; lock held. */
void emulated_wake_all_locked(struct emulated *e);

/* emulated/graph.c */
HELM_MUST_CHECK int emulated_graph_add(struct device_graph *graph, enum device_queue queue,
                                       const struct task *op, struct helm_err *err);
void emulated_graph_release_locked(struct device_graph *graph);
int emulated_event_create(struct device *d, enum device_event_kind kind, struct device_event **event,
                          struct helm_err *err);
void emulated_event_free(struct device *d, struct device_event *event);
int emulated_event_record(struct device *d, enum device_queue queue, struct device_event *event,
                          struct helm_err *err);
int emulated_event_follow(struct device *d, enum device_queue queue, struct device_event *event,
                          struct helm_err *err);
int emulated_event_wait(struct device *d, struct device_event *event, struct helm_err *err);
int emulated_capture_begin(struct device *d, struct helm_err *err);
int emulated_capture_end(struct device *d, struct device_graph **graph, struct helm_err *err);
void emulated_capture_drop(struct emulated *e);
int emulated_graph_launch(struct device *d, struct device_graph *graph, bool alone, struct helm_err *err);
void emulated_graph_free(struct device *d, struct device_graph *graph);
